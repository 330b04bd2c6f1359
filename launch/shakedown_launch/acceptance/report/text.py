"""acceptance.txt. The text is bounded: what passed is counted, not listed. And the Slurm commands that drain what failed,
and later resume it: they are printed, never run."""

import math
import re
import textwrap

from reporting.words import glued

from ...words import aligned, clean, count, duration, figure, hostlist, nodes
from ..model import FAIL, INCONCLUSIVE, MISSING, PASS
from . import digest, series

WIDTH = 98
MARGIN = 14  # of what stands below an outcome
GROUPS = {FAIL: 9, INCONCLUSIVE: 4}  # of nodes, shown at most
KINDS, LINES, METRICS = 6, 8, 20  # shown at most
FINDINGS, LEAST = 9, 3  # of all groups, and of each at least
LONGEST = 100_000  # characters of a command, which is never cut
MORE = "more: acceptance.jsonl"


def text(acceptance, sections=()):
    """`sections`: [(title, lines)] to add: repeat offenders, Slurm lines."""
    parts = [[f"Shakedown acceptance: {acceptance.outcome}",
              *(line for each in (digest.headline(acceptance), digest.about(acceptance),
                                  digest.would_have_found(acceptance)) for line in folded(each, 0)),
              *(f"injected for a test: {each}" for each in digest.injected(acceptance))],
             node_lines(acceptance),
             *([title, *listed(map(finding_lines, found))] for title, found in digest.concerns(acceptance)),
             titled("Stages", stage_lines(acceptance)),
             titled("Figures", figure_lines(acceptance)),
             *([title, *listed(map(folded, lines))] for title, lines in
               [*digest.sentences(acceptance), *digest.apart_sentences(acceptance)]),
             *(titled(clean(title), [f"  {clean(line, LONGEST)}" for line in lines])
               for title, lines in sections)]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def titled(title, lines):
    return [title, *lines] if lines else []


def folded(sentence, margin=2):
    lines = textwrap.wrap(glued(sentence), WIDTH, initial_indent=" " * margin,
                          subsequent_indent=" " * (margin + 2), break_on_hyphens=False, break_long_words=False)
    return [line.replace("\u00a0", " ") for line in lines]


def listed(blocks):
    """The lines of the first blocks."""
    blocks = list(blocks)
    lines = [line for block in blocks[:LINES] for line in block]
    return lines + ([f"  and {len(blocks) - LINES} {MORE}"] if len(blocks) > LINES else [])


# ---- nodes and findings --------------------------------------------------------------------------

def node_lines(acceptance):
    lines, failed = [], digest.groups(acceptance)
    for outcome, most in GROUPS.items():
        groups = [group for group in failed if group.outcome == outcome]
        for group in groups[:most]:
            lines += group_lines(group, max(LEAST, FINDINGS // len(failed)))
        for kind, names in digest.kinds(groups[most:])[:KINDS]:
            lines += [f"{outcome:<{MARGIN}}{count(len(names), 'more node')}, {kind}:",
                      f"{'':{MARGIN}}{nodes(names, 60)}"]
    names = digest.passed(acceptance)
    if names:
        who = nodes(names) if len(names) <= 4 else count(len(names), "node")
        lines.append(f"{PASS:<{MARGIN}}{who}")
    return lines


def group_lines(group, most):
    lines = [f"{group.outcome:<{MARGIN}}{nodes(group.names, 60)}"]
    for finding in group.findings[:most]:
        same = finding.outcome == group.outcome
        lines += finding_lines(finding, MARGIN, "" if same else f"{finding.outcome} ")
    if len(group.findings) > most:
        lines.append(f"{'':{MARGIN}}and {len(group.findings) - most} {MORE}")
    return lines


def finding_lines(finding, margin=2, before=None):
    """The cause, and below it class, action, check, evidence. Of what blames nobody, and of what did
    not run, only what is known."""
    before = f"{finding.outcome} " if before is None else before
    all_ = finding.outcome in (FAIL, INCONCLUSIVE) and finding.check != MISSING
    if not (all_ or finding.class_ or finding.action):
        return folded(f"{before}{finding.text} [{finding.check}]", margin)
    about = {"class": finding.class_ or "unknown" * all_,
             "action": finding.action or "none known" * all_, "check": finding.check,
             "evidence": finding.evidence}
    return [*folded(before + finding.text, margin),
            *folded("; ".join(f"{name}:\u00a0{value}" for name, value in about.items() if value),
                    margin + 2)]


# ---- tables --------------------------------------------------------------------------------------

def stage_lines(acceptance):
    return aligned([
        [clean(stage.name, 24), duration(stage.seconds), count(stage.nodes, "node"),
         count(stage.runs, "run"), f"{stage.rounds} rounds" if stage.rounds > 1 else "",
         ", ".join(f"{number:,} {outcome}" for outcome, number in stage.outcomes.items())]
        for stage in digest.stages(acceptance)], {0, 5}, most=WIDTH)


def figure_lines(acceptance):
    gpus, found = digest.gpus_of(acceptance), series.measured(acceptance)
    chosen = series.chosen(found, METRICS)
    lines = aligned([
        [each.name, each.unit, figure(each.worst.value), series.where(each.worst, gpus), each.slower,
         known(math.nan if each.worst.usual == each.worst.usual else each.median),
         known(each.best if len(each.figures) == 2 else math.nan), known(each.worst.limit), known(each.worst.usual),
         "missed" * each.missed] for each in chosen], {0, 1, 3, 9},
        ["", "unit", "worst", "of", "slower", "median", "best", "limit", "usual", ""], WIDTH)
    if len(found) > len(chosen):
        lines.append(f"  and {len(found) - len(chosen)} {MORE}")
    return lines


def known(value):
    return figure(value) if value == value else "-"


# ---- Slurm ---------------------------------------------------------------------------------------

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
             for each in digest.injected(acceptance)]
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
    lines += [f"""sinfo -hR -n "{names}" -o '%N|%E' | awk -F'|' '$2 == "{reason}" {{print $1}}' | """
              "xargs -rI{} scontrol update nodename={} state=resume" for reason, names in reasons]
    lines = lines if ours else lines[:-1]
    # Of a test of itself no line can be run by mistake.
    return [f"# {line}" if digest.injected(acceptance) and line[0] != "#" else line for line in lines]


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
        about = worst.cause if digest.is_named(worst) else f"{worst.subject}, {worst.cause}"
    return clean(f"{check_of(verdict)}: {quotable(about)}", REASON).rstrip()


def quotable(text):
    """What means nothing to a shell within quotes, in ASCII."""
    return re.sub(r"[^A-Za-z0-9 _.,:;/()%+=<>-]", "", clean(text))
