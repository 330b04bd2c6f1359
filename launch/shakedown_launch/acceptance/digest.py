"""What the text and the page show of an acceptance: figures compared, verdicts grouped, sentences."""

import collections
import dataclasses
import math
import re
import statistics

from .model import FAIL, INCONCLUSIVE, PASS, WARN
from .words import by_number, clean, count, duration, nodes, size

MISSING = "no result"
FEW_PEERS = 3  # as peers.py: fewer are not compared


# ---- nodes ---------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Group:
    """Nodes with the same verdict for the same reasons."""
    outcome: str
    names: list
    findings: list  # of Shown


@dataclasses.dataclass(frozen=True)
class Shown:
    """A finding as people read it."""
    outcome: str
    text: str  # "GPU 3, serial 1654922003211: 7 % slow, all of it clock"
    class_: str
    action: str
    check: str  # of its stage, or the stage
    evidence: str


def gpus_of(acceptance):
    """{UUID: (node's name, Gpu)}"""
    return {gpu.uuid: (verdict.node.name, gpu)
            for verdict in acceptance.verdicts for gpu in verdict.node.gpus}


def part(finding, gpus):
    """"GPU 3, serial 1654922003211"; empty for a whole node."""
    if not finding.gpu:
        named = finding.subject in [f"node {name}" for name in finding.nodes] or \
            finding.cause.startswith(finding.subject)
        return "" if named else clean(finding.subject)
    if finding.gpu not in gpus:
        return clean(f"{finding.subject} ({finding.gpu})" if finding.subject
                     else f"GPU {finding.gpu}")
    gpu = gpus[finding.gpu][1]
    name = f"GPU {gpu.index}, serial {clean(gpu.serial, 40)}" if gpu.serial else \
        f"GPU {gpu.index}, {clean(gpu.uuid, 48)}"
    return name if finding.subject.startswith("GPU") or not finding.subject else \
        f"{name}, {clean(finding.subject)}"


def shown(finding, gpus, with_nodes=False):
    words = [part(finding, gpus)]
    if with_nodes and finding.nodes:
        words.insert(0, nodes(finding.nodes, 60))
    about = ", ".join(filter(None, words))
    cause = clean(finding.cause)
    return Shown(finding.outcome, f"{about}: {cause}" if about else cause, finding.class_,
                 clean(finding.action), clean(finding.check or finding.stage),
                 clean(finding.evidence))


def groups(acceptance):
    """[Group] of the nodes that did not pass: FAIL first."""
    gpus = gpus_of(acceptance)
    found = {}
    for verdict in sorted(acceptance.verdicts, key=lambda each: by_number(each.node.name)):
        if verdict.outcome != PASS:
            # The file differs from node to node where the reason is the same.
            same = (verdict.outcome, tuple(dataclasses.replace(shown(each, gpus), evidence="")
                                           for each in verdict.findings))
            found.setdefault(same, []).append(verdict)
    made = [Group(outcome, [each.node.name for each in verdicts],
                  [shown(each, gpus) for each in verdicts[0].findings])
            for (outcome, _), verdicts in found.items()]
    return sorted(made, key=lambda group: group.outcome != FAIL)


def kinds(of):
    """[("HARDWARE, soak-products", names)] of groups, by their worst finding."""
    found = {}
    for group in of:
        worst = group.findings[0] if group.findings else None
        kind = f"{worst.class_ or 'class unknown'}, {worst.check}" if worst else "no finding"
        found.setdefault(kind, []).extend(group.names)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def warnings(acceptance):
    """[Shown] of nodes that passed, and of no node; the same of several nodes once."""
    gpus = gpus_of(acceptance)
    found = {}
    for verdict in acceptance.verdicts:
        for each in verdict.findings if verdict.outcome == PASS else ():
            found.setdefault((part(each, gpus), each.cause, each.check, each.stage),
                             []).append((verdict.node.name, each))
    return [shown(dataclasses.replace(of[0][1], nodes=tuple(name for name, _ in of)), gpus, True)
            for of in found.values()]


def others(acceptance):
    """[Shown] of links and of the job, worst first."""
    gpus = gpus_of(acceptance)
    order = (FAIL, INCONCLUSIVE, WARN)
    return [shown(each, gpus, True)
            for each in sorted(acceptance.findings, key=lambda each: order.index(each.outcome))]


def tally(acceptance):
    """{outcome: number of nodes}, FAIL first, without those of none."""
    of = [each.outcome for each in acceptance.verdicts]
    return {outcome: of.count(outcome) for outcome in (FAIL, INCONCLUSIVE, PASS)
            if outcome in of}


def headline(acceptance):
    """"2 of 128 nodes FAIL, 1 INCONCLUSIVE, 125 PASS"."""
    total = len(acceptance.verdicts)
    if not total:
        return "no node was judged"
    parts = [f"{number:,} {outcome}" for outcome, number in tally(acceptance).items()]
    return f"{count(total, 'node')}: {', '.join(parts)}" if total > 1 else \
        f"node {clean(acceptance.verdicts[0].node.name)}: {acceptance.verdicts[0].outcome}"


def injected(acceptance):
    """Settings that make an acceptance a test of itself."""
    return [f"{clean(key)} {clean(value)}" for key, value in acceptance.settings.items()
            if "inject" in key and value]


# ---- what ran ------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Stage:
    name: str
    runs: int
    rounds: int
    nodes: int
    seconds: float  # of each round its longest run
    outcomes: dict  # {outcome or MISSING: number of nodes}


def stages(acceptance):
    """[Stage], in the order in which they began."""
    runs = {}
    for run in acceptance.runs:
        runs.setdefault(run.stage, []).append(run)
    made = []
    for name, of in runs.items():
        longest = {}
        for run in of:
            longest[run.round] = max(run.seconds, longest.get(run.round, 0))
        outcomes = [each.stages.get(name, MISSING) for each in acceptance.verdicts
                    if name in each.stages or name in each.missing]
        made.append(Stage(name, len(of), len(longest), len({n for run in of for n in run.nodes}),
                          sum(longest.values()),
                          {outcome: outcomes.count(outcome)
                           for outcome in (FAIL, INCONCLUSIVE, PASS, MISSING)
                           if outcome in outcomes}))
    return made


def not_judged(acceptance):
    """Sentences on what this acceptance leaves open."""
    found = {}
    for verdict in acceptance.verdicts:
        for stage in verdict.missing:
            found.setdefault(stage, []).append(verdict.node.name)
    lines = [f"{clean(stage)}: no result of {nodes(names)}" for stage, names in found.items()]
    measured = series(acceptance)
    if measured and not acceptance.reference:
        alone = sum(len(each.figures) < FEW_PEERS for each in measured)
        lines.append("no reference matched: " + (
            f"{alone} of {len(measured)} metrics have fewer than {FEW_PEERS} values and were "
            "compared with nothing" if alone else "figures were compared with one another only"))
    elif "figures" in acceptance.reference:
        unknown = [each.name for each in measured if not each.reference]
        if unknown:
            lines.append(f"not in the reference: {', '.join(unknown[:3])}" +
                         (f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""))
    if not acceptance.statement:
        lines.append("the soak did not pass: it proves nothing of rare wrong results"
                     if any(run.stage == "soak" for run in acceptance.runs) else
                     "no soak: rare wrong results would not have been found")
    return lines


# ---- figures -------------------------------------------------------------------------------------

# What is looked at first, and how many of each; the last ones, which are of the most bytes.
HEADLINES = ((r"compute/.*/sustained", 7), (r"memory/copy", 1), (r"host/.*/all_at_once", 2),
             (r"link/.*/send/concurrent/worst", 2),
             (r"collective/all_reduce/.*/in_place/busbw", 2),
             (r"train/.*/images_per_s_per_rank", 1))


@dataclasses.dataclass(frozen=True)
class Series:
    """A metric over all that it was measured of."""
    name: str  # the metric, with its stage where several have it
    metric: str
    figures: list  # with a finite value
    reference: dict  # value, floor; {} where there is none

    @property
    def unit(self):
        return clean(self.figures[0].unit, 20)

    @property
    def higher_is_better(self):
        return self.figures[0].higher_is_better

    @property
    def worst(self):
        return (min if self.higher_is_better else max)(self.figures, key=lambda each: each.value)

    @property
    def best(self):
        return (max if self.higher_is_better else min)(each.value for each in self.figures)

    @property
    def median(self):
        return statistics.median(each.value for each in self.figures)

    @property
    def expected(self):
        return number(self.reference.get("value"))

    @property
    def floor(self):
        return number(self.reference.get("floor"))

    @property
    def missed(self):
        worst_ = self.worst.value
        return worst_ < self.floor if self.higher_is_better else worst_ > self.floor


def series(acceptance):
    """[Series], in the order in which they were measured. What a group of nodes does is not what
    each of them does alone."""
    found = {}
    for figure in acceptance.figures:
        if math.isfinite(figure.value):
            key = figure.metric, figure.stage, len(figure.nodes)
            found.setdefault(key, []).append(figure)
    several = collections.Counter(metric for metric, _, _ in found)
    made = []
    for (metric, stage, width), figures in found.items():
        name = readable(metric)
        if several[metric] > 1:
            name += f" ({clean(stage, 24)}{f', {width} nodes' if width > 1 else ''})"
        made.append(Series(name, metric, figures, reference_of(acceptance, figures[0])))
    return made


SHORT = (("collective/", ""), ("/busbw", ""), ("link/within_node/", "link/"),
         ("/images_per_s_per_rank", " per rank"))


def readable(metric):
    """"all_reduce/float32/1 GiB/in_place" of collective/all_reduce/float32/1073741824/in_place/busbw:
    what the unit says is left out."""
    metric = re.sub(r"(?<=/)[0-9]{4,}(?=/)", lambda found: size(int(found[0])), metric)
    for long, short in SHORT:
        metric = metric.replace(long, short)
    return clean(metric, 56)


def reference_of(acceptance, figure):
    """What the reference has of it under the same conditions, or {}."""
    found = acceptance.reference.get("figures", {}).get(figure.metric, {})
    same = all(figure.conditions.get(key) == value
               for key, value in found.get("conditions", {}).items())
    return found if same else {}


def headlines(found, most):
    """Those of HEADLINES, or without any the first: the same ones in every run."""
    first = [each for pattern, number_ in HEADLINES
             for each in [each for each in found if re.fullmatch(pattern, each.metric)][-number_:]]
    return (first or found)[:most]


def chosen(found, most):
    """Of many series: the headlines, and what misses its floor by most; in their order."""
    if len(found) <= most:
        return found
    missed = sorted((each for each in found if each.missed),
                    key=lambda each: abs(each.worst.value - each.floor) / (abs(each.floor) or 1))
    first = headlines(found, most)
    taken = set(map(id, [*first, *missed[::-1][:max(most - len(first), most // 4)]]))
    return [each for each in found if id(each) in taken]


def where(figure, gpus):
    """"n017 GPU 3"."""
    name = nodes(figure.nodes, 24)
    if figure.gpu in gpus:
        return f"{name} GPU {gpus[figure.gpu][1].index}"
    return f"{name} {clean(figure.gpu, 48)}".strip()


def number(value):
    return float(value) if isinstance(value, (int, float)) else math.nan


# ---- identity ------------------------------------------------------------------------------------

def identity(acceptance):
    """Sentences: what the nodes are, and who differs from most."""
    models = {}
    for verdict in acceptance.verdicts:
        gpus = [gpu.model for gpu in verdict.node.gpus]
        kind = f"{len(gpus)} x {most(gpus)}" if gpus else "no GPU"
        models.setdefault(clean(kind), []).append(verdict.node.name)
    lines = [f"{count(len(names), 'node')} with {kind}" + (
        f": {nodes(names, 60)}" if len(models) > 1 else "") for kind, names in models.items()]
    keys = dict.fromkeys(key for verdict in acceptance.verdicts for key in verdict.node.identity)
    usual, differ = [], []
    for key in keys:
        values = {}
        for verdict in acceptance.verdicts:
            value = clean(verdict.node.identity.get(key, "unknown"), 60)
            values.setdefault(value, []).append(verdict.node.name)
        ranked = sorted(values, key=lambda value: -len(values[value]))
        name = clean(key).replace("versions.", "")
        usual.append(f"{name} {ranked[0]}")
        differ += [f"{name} {value} on {nodes(values[value], 60)}, {ranked[0]} elsewhere"
                   for value in ranked[1:]]
    return lines + ([", ".join(usual)] if usual else []) + differ


def most(values):
    return max(sorted(set(values)), key=values.count)


def about(acceptance):
    """"default, 7 min 12 s, 2026-11-23T09:12:44Z"."""
    ladder = ""
    if acceptance.tests:
        ladder = f"; isolation: {count(acceptance.tests, 'test')} in " \
                 f"{count(acceptance.rounds, 'round')}"
    return f"{clean(acceptance.tier)}, {duration(acceptance.seconds)}, " \
           f"started {clean(acceptance.started)}{ladder}"


def reference_name(acceptance):
    return ": ".join(clean(acceptance.reference[key]) for key in ("name", "source")
                     if acceptance.reference.get(key))
