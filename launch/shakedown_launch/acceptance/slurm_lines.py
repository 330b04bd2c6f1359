"""The Slurm commands that drain what failed, and later resume it. They are printed, never run."""

import re

from .model import FAIL, INCONCLUSIVE
from .words import clean, count, hostlist, nodes

PREFIX = "shakedown:"  # of each reason: what we drained can be told from what others drained
SLURM_NAME = re.compile(r"[A-Za-z0-9._-]+")
REASON = 120  # characters
REASONS_AT_MOST = 32  # more are grouped by check alone
PER_HOUR = 2


def drain_lines(acceptance):
    """Lines of a shell script; [] where no node failed. What is INCONCLUSIVE is not drained."""
    failed = [verdict for verdict in acceptance.verdicts if verdict.outcome == FAIL]
    if not failed:
        return []
    ours = [verdict for verdict in failed if SLURM_NAME.fullmatch(verdict.node.name)]
    lines = [f"# Drains {count(len(ours), 'node')}. Printed only; nothing was drained. A fleet does "
             "not fail at once:",
             f"# where this names more than {PER_HOUR} nodes per hour, look for a common cause "
             "first."]
    lines += [f'scontrol update nodename="{names}" state=drain reason="{reason}"'
              for reason, names in grouped(ours, reason_of)]
    lines += ["# Afterwards, when a new acceptance has passed: resumes those that still have this "
              "reason."]
    lines += [f'sinfo -hR -n "{names}" -o "%N %E" | grep " {check}:" | cut -d" " -f1 | '
              "xargs -rI{} scontrol update nodename={} state=resume"
              for check, names in grouped(ours, check_of)]
    others = {verdict.node.name for verdict in failed} - {verdict.node.name for verdict in ours}
    lines += [f"# {clean(name, 80)!a}: not a name of Slurm; drain it by hand"
              for name in sorted(others)]
    unclear = [each.node.name for each in acceptance.verdicts if each.outcome == INCONCLUSIVE]
    if unclear:
        lines.append(f"# Not drained, INCONCLUSIVE: {nodes(unclear)}")
    return lines


def grouped(verdicts, reason):
    """[(reason, hostlist)], in the order of the verdicts."""
    groups = {}
    for verdict in verdicts:
        groups.setdefault(reason(verdict), []).append(verdict.node.name)
    if len(groups) > REASONS_AT_MOST:
        groups = {}
        for verdict in verdicts:
            groups.setdefault(check_of(verdict), []).append(verdict.node.name)
    return [(text, hostlist(names)) for text, names in groups.items()]


def check_of(verdict):
    worst = verdict.findings[0] if verdict.findings else None
    return PREFIX + (quotable(worst.check or worst.stage or "unknown").replace(" ", "-")
                     if worst else "unknown")


def reason_of(verdict):
    worst = verdict.findings[0] if verdict.findings else None
    parts = [worst.subject, worst.cause] if worst else []
    return clean(f"{check_of(verdict)}: {quotable(' '.join(filter(None, parts)))}", REASON)


def quotable(text):
    """What means nothing to a shell within double quotes, nor to grep, in ASCII."""
    return re.sub(r"[^A-Za-z0-9 _.,:;/()%+=<>-]", "", clean(text))
