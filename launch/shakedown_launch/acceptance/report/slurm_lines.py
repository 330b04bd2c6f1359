"""The Slurm commands that drain what failed, and later resume it. They are printed, never run."""

import re

from ...words import clean, count, hostlist, nodes
from ..model import FAIL, INCONCLUSIVE
from .digest import injected, is_named

PREFIX = "shakedown:"  # of each reason: only what was drained by these lines is resumed by them
SLURM_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
REASON = 120  # characters
REASONS = 32  # lines at most; more are grouped by their checks
PER_HOUR = 2


def drain_lines(acceptance):
    """Lines of a shell script; [] where no node failed. What is INCONCLUSIVE is not drained."""
    failed = [verdict for verdict in acceptance.verdicts if verdict.outcome == FAIL]
    if not failed:
        return []
    ours = [verdict for verdict in failed if SLURM_NAME.fullmatch(verdict.node.name)]
    foreign = [verdict.node.name for verdict in failed if verdict not in ours]
    unclear = [each.node.name for each in acceptance.verdicts if each.outcome == INCONCLUSIVE]
    reasons = grouped(ours, reason_of)
    lines = [f"# A fault was injected ({each}): nothing is to be drained."
             for each in injected(acceptance)]
    many = f" More than {PER_HOUR} nodes per hour rarely fail by themselves: look for a common " \
        "cause first." if len(ours) > PER_HOUR else ""
    lines += [f"# Drain {count(len(ours), 'node')}; nothing was drained.{many}"]
    if len(reasons) > REASONS:
        reasons = [(f"{check}: see the report", names) for check, names in grouped(ours, check_of)]
    lines += [f'scontrol update nodename="{names}" state=drain reason="{reason}"'
              for reason, names in reasons]
    lines += [f"# {clean(name, 80)!a} is not a name that Slurm allows: drain it by hand."
              for name in foreign]
    lines += [f"# Not drained, INCONCLUSIVE: {nodes(unclear)}; run the acceptance again."] \
        if unclear else []
    lines += ["# Resume, after an acceptance that passed, those that still have this reason:"]
    lines += [f"sinfo -hR -n \"{names}\" -o '%N %E' | grep -F ' {check}:' | cut -d' ' -f1 | "
              "xargs -rI{} scontrol update nodename={} state=resume"
              for check, names in grouped(ours, check_of)]
    lines = lines if ours else lines[:-1]
    # Of a test of itself no line can be run by mistake.
    return [f"# {line}" if injected(acceptance) and line[0] != "#" else line for line in lines]


def grouped(verdicts, reason):
    """[(reason, hostlist)], in the order of the verdicts."""
    groups = {}
    for verdict in verdicts:
        groups.setdefault(reason(verdict), []).append(verdict.node.name)
    return [(text, hostlist(names)) for text, names in groups.items()]


def check_of(verdict):
    worst = verdict.findings[0] if verdict.findings else None
    check = quotable(worst.check or worst.stage) if worst else ""
    return PREFIX + (check.strip().replace(" ", "-") or "unknown")


def reason_of(verdict):
    worst = verdict.findings[0] if verdict.findings else None
    about = "see the report"
    if worst:
        about = worst.cause if is_named(worst) else f"{worst.subject}, {worst.cause}"
    return clean(f"{check_of(verdict)}: {quotable(about)}", REASON).rstrip()


def quotable(text):
    """What means nothing to a shell within quotes, in ASCII."""
    return re.sub(r"[^A-Za-z0-9 _.,:;/()%+=<>-]", "", clean(text))
