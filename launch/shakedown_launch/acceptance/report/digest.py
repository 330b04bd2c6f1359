"""What the text and the page show of an acceptance: verdicts grouped, stages, sentences."""

import dataclasses
import math

from ...hosts import same
from ...words import by_number, clean, count, duration, nodes
from ..model import FAIL, INCONCLUSIVE, PASS, UNKNOWN, WORST_FIRST
from ..stages import CPU, INVENTORY, only_on_gpus

MISSING = "no result"
NOT_KNOWN, ACCEPTED = "Not known", "Accepted"  # titles of what comes last


# ---- nodes ---------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class NodeGroup:
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
        return "" if is_named(finding) else clean(finding.subject)
    if finding.gpu not in gpus:
        return clean(f"{finding.subject} ({finding.gpu})" if finding.subject
                     else f"GPU {finding.gpu}")
    gpu = gpus[finding.gpu][1]
    name = f"GPU {gpu.index}, serial {clean(gpu.serial, 40)}" if gpu.serial else \
        f"GPU {gpu.index}, {clean(gpu.uuid, 48)}"
    return name if finding.subject.startswith("GPU") or not finding.subject else \
        f"{name}, {clean(finding.subject)}"


def is_named(finding):
    """Whether its subject is the node, or is in its cause already."""
    return any(same(finding.subject, f"node {name}") for name in finding.nodes) or \
        finding.cause.startswith((finding.subject, f"{finding.subject.removeprefix('link ')} "))


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
    """[NodeGroup] of the nodes that did not pass: FAIL first."""
    gpus = gpus_of(acceptance)
    found = {}
    for verdict in in_order(acceptance):
        if verdict.outcome != PASS:
            # The file differs from node to node where the reason is the same.
            own = [each for each in verdict.findings if not is_apart(acceptance, each)]
            same = (verdict.outcome, tuple(dataclasses.replace(shown(each, gpus), evidence="")
                                           for each in own))
            found.setdefault(same, []).append((verdict.node.name, own))
    made = [NodeGroup(outcome, [name for name, _ in alike], [shown(each, gpus) for each in alike[0][1]])
            for (outcome, _), alike in found.items()]
    return sorted(made, key=lambda group: group.outcome != FAIL)


def kinds(of):
    """[("HARDWARE, soak-products", names)] of groups, by their worst finding."""
    found = {}
    for group in of:
        worst = group.findings[0] if group.findings else None
        kind = f"{worst.class_ or 'class unknown'}, {worst.check}" if worst else "no finding"
        found.setdefault(kind, []).extend(group.names)
    return sorted(found.items(), key=lambda item: -len(item[1]))


def is_apart(acceptance, finding):
    """Whether it is listed at the end, after what somebody should look at."""
    return finding.accepted or \
        finding.outcome == UNKNOWN and not acceptance.settings.get("strict")


def merged(findings, gpus):
    """[Shown]; the same of several nodes once."""
    alike = {}
    for each in findings:
        alike.setdefault((part(each, gpus), each.cause, each.check, each.stage), []).append(each)
    return [shown(dataclasses.replace(same[0], nodes=tuple(dict.fromkeys(
                name for each in same for name in each.nodes))), gpus, True)
            for same in alike.values()]


def concerns(acceptance):
    """[(title, [Shown])]: of links and of the job, worst first; what nodes that passed warn of."""
    gpus = gpus_of(acceptance)
    others = sorted(acceptance.findings, key=lambda each: WORST_FIRST.index(each.outcome))
    warned = merged([each for verdict in acceptance.verdicts if verdict.outcome == PASS
                     for each in verdict.findings if not is_apart(acceptance, each)], gpus)
    found = [("Links and job", [shown(each, gpus, True) for each in others if not is_apart(acceptance, each)]),
             ("Warnings", warned)]
    return [(title, of) for title, of in found if of]


def apart(acceptance):
    """{NOT_KNOWN, ACCEPTED: [Shown]}, of any node; a fact that is not known of several GPUs is one."""
    alike = {}
    for each in acceptance.all_findings():
        if is_apart(acceptance, each):
            alike.setdefault((each.cause, each.check, each.accepted), []).append(each)
    found = {NOT_KNOWN: [], ACCEPTED: []}
    for same in alike.values():
        gpus = len({each.gpu for each in same if each.gpu})
        if gpus > 1:
            same = [dataclasses.replace(each, gpu="", subject=f"{gpus} GPUs") for each in same]
        found[ACCEPTED if same[0].accepted else NOT_KNOWN] += merged(same, gpus_of(acceptance))
    return found


def apart_sentences(acceptance):
    """[(title, lines)] of what comes last."""
    return [(f"{title} ({len(found)})", [f"{each.text} [{each.check}]" for each in found])
            for title, found in apart(acceptance).items() if found]


def sentences(acceptance):
    """[(title, lines)] after the tables."""
    found = [("Soak", [clean(acceptance.statement)] if acceptance.statement else []),
             ("Not judged", not_judged(acceptance)), ("Machine", identity(acceptance))]
    return [(title, lines) for title, lines in found if lines]


def in_order(acceptance):
    """The verdicts, by the names of the nodes: n2 before n10."""
    return sorted(acceptance.verdicts, key=lambda each: by_number(each.node.name))


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
    head = f"{count(total, 'node')}: {', '.join(parts)}" if total > 1 else \
        f"node {clean(acceptance.verdicts[0].node.name)}: {acceptance.verdicts[0].outcome}"
    return head + reservation(acceptance)


def passed(acceptance):
    """The names of the nodes that passed."""
    return [verdict.node.name for verdict in acceptance.verdicts if verdict.outcome == PASS]


def reservation(acceptance):
    """What a PASS does not say: on the CPU rates are no reason to fail. Or nothing."""
    ran = any(run.stage != INVENTORY for run in acceptance.runs)
    return ", correctness only" if acceptance.backend == CPU and ran and passed(acceptance) else ""


def would_have_found(acceptance):
    """"would have found at 99 %: products 1.4 % more cycles, memory 3.9 %"; empty: nothing, and on the
    CPU, whose rates fail nobody. As common/judge words it."""
    if acceptance.backend == CPU:
        return ""
    parts = [f"{clean(rates).replace('_', ' ')} {math.ceil(1000 * share - 1e-6) / 10:.1f} %"
             f"{' more cycles' * (rates == 'products')}{f' (from {100 * warns:g} % a warning)' if warns else ''}"
             for rates, _, _, share, warns in acceptance.found]
    return f"would have found at 99 %: {', '.join(parts)}" if parts else ""


def injected(acceptance):
    """Settings that make an acceptance a test of itself."""
    return [f"{clean(key)} {clean(value)}" for key, value in acceptance.settings.items()
            if "inject" in key and value]


# ---- what ran ------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class StageSummary:
    name: str
    runs: int
    rounds: int
    nodes: int
    seconds: float  # of each round its longest run
    outcomes: dict  # {outcome or MISSING: number of nodes}


def stages(acceptance):
    """[StageSummary], in the order in which they began."""
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
        made.append(StageSummary(
            name, len(of), len(longest), len({n for run in of for n in run.nodes}),
            sum(longest.values()), {outcome: outcomes.count(outcome)
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
    if not acceptance.statement:
        lines.append("the soak did not pass: it proves nothing of rare wrong results"
                     if any(run.stage == "soak" for run in acceptance.runs) else
                     "no soak: rare wrong results would not have been found")
    return lines


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
    usual, differ = {}, []
    for key in keys:
        values = {}
        for verdict in acceptance.verdicts:
            value = clean(verdict.node.identity.get(key, "unknown"), 60)
            values.setdefault(value, []).append(verdict.node.name)
        ranked = sorted(values, key=lambda value: -len(values[value]))
        usual[key] = ranked[0]
        differ += [f"{spoken(key, value)} on {nodes(values[value], 60)}, {ranked[0]} elsewhere"
                   for value in ranked[1:]]
    machine = [spoken(key, usual[key]) for key in sorted(usual, key=lambda key: key.endswith(AT_BUILD))
               if usual.get(key.removesuffix(AT_BUILD)) != usual[key] or not key.endswith(AT_BUILD)]
    return lines + ([", ".join(machine)] if machine else []) + differ


AT_BUILD = "_built"  # end of the key of a version that Shakedown was built with
SPOKEN = {"git_revision": "Shakedown", "mpi": "", "cuda": "CUDA", "cudnn": "cuDNN",
          "cublas": "cuBLAS", "nccl": "NCCL", "onednn": "oneDNN"}


def spoken(key, value):
    """"cuDNN 9.14.0", "built with cuDNN 9.19.0"."""
    key = clean(key).replace("versions.", "")
    name = key.removesuffix(AT_BUILD)
    words = ["built with" * (name != key), SPOKEN.get(name, name), value]
    return " ".join(filter(None, words))


def most(values):
    return max(sorted(set(values)), key=values.count)


def about(acceptance):
    """"default, 7 min 12 s, 2026-11-23T09:12:44Z"."""
    ladder = ""
    if acceptance.tests:
        ladder = f"; isolation: {count(acceptance.tests, 'test')} in " \
                 f"{count(acceptance.rounds, 'round')}"
    return f"{clean(acceptance.tier)}, {duration(acceptance.seconds)}, " \
           f"started {clean(acceptance.started)}{ladder}{without_gpus(acceptance)}"


def without_gpus(acceptance):
    """On the CPU the stages are short, and some are left out."""
    left_out = only_on_gpus(acceptance.tier)
    ran = any(run.stage != INVENTORY for run in acceptance.runs)
    short = f", in short stages without {' and '.join(left_out)}" if left_out and ran else ""
    if acceptance.settings.get("backend") == "cpu":
        return f"; --backend cpu: no GPU was tested{short}"
    none = not any(verdict.node.gpus for verdict in acceptance.verdicts)
    return f"; no GPU was found: nothing but the host was tested{short}" if none else ""
