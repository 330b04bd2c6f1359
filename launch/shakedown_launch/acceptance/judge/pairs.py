"""What differs by far where there are only two to compare: which of them is wrong is not known, but
both do not pass.

On GPUs it is a figure of which there are two values. On the CPU, where a rate is also what other
work leaves of the cores, it is two nodes of which one is far slower in two stages or more."""

import dataclasses
import statistics

from ..model import INCONCLUSIVE, Finding
from . import peers

APART = 0.8  # ratio that no two healthy GPUs or nodes of a kind reach
APART_HOST = 0.6  # of copies, which depend on the cores' NUMA node: 0.85 on two healthy H100s
APART_CPU, STAGES_CPU = 0.5, 2
OWN_WORK = ("compute/", "train/", "soak/")  # messages between ranks that share cores take any time
ACTION = "accept them with a third one, or with --reference: it shows which is wrong"


def judge(figures, judged=()):
    """Findings. `judged`: (stage, node) of the rates that a reference has judged."""
    groups = peers.peers_of(comparable(each) for each in figures
                            if peers.limits_of(each.metric).fail > 0)
    return [each for each in [*of_gpus(groups), *of_cpus(groups)]
            if (each.stage, each.nodes[0]) not in judged]


def comparable(figure):
    """Ranks that share cores are no peers; their nodes, with the same number of ranks and cores each, are."""
    return dataclasses.replace(figure, explains={**figure.explains, "shares": None})


def of_gpus(groups):
    apart = {}
    for pair in groups:
        if len(pair) != 2 or peers.shares_cores(pair[0]):
            continue
        slow, fast = sorted(pair, key=lambda each: each.value,
                            reverse=not pair[0].higher_is_better)
        spread = max(peers.deviation(each.samples or (each.value,), each.value) for each in pair)
        limit = APART_HOST if slow.metric.startswith("host/") else APART
        if peers.is_slow(slow, limit, fast.value, spread):
            nodes = tuple(sorted({slow.nodes[0], fast.nodes[0]}))
            apart.setdefault((slow.stage, nodes), []).append((slow, fast))
    return [each for (_, nodes), pairs in apart.items() for each in findings(nodes, pairs)]


def of_cpus(groups):
    measured = {}  # two nodes: {stage: [(figure of the first, of the second)]}
    for group in groups:
        nodes = tuple(sorted({each.nodes[0] for each in group}))
        if len(nodes) == 2 and peers.shares_cores(group[0]) and \
                group[0].metric.startswith(OWN_WORK):
            measured.setdefault(nodes, {}).setdefault(group[0].stage, []).append(
                tuple(typical(group, name) for name in nodes))
    found = []
    for nodes, stages in measured.items():
        for slow in (0, 1):
            apart = [[(pair[slow], pair[1 - slow]) for pair in pairs] for pairs in stages.values()]
            apart = [pairs for pairs in apart if statistics.median(
                share(*pair) for pair in pairs) < APART_CPU]
            if len(apart) >= STAGES_CPU:
                found += [each for pairs in apart for each in findings(nodes, pairs)]
    return found


def typical(group, node):
    """The figure of the node's rank in the middle."""
    own = sorted((each for each in group if each.nodes == (node,)), key=lambda each: each.value)
    return own[len(own) // 2]


def share(slow, fast):
    return peers.ratio(slow.value, fast.value, slow)


def findings(nodes, pairs):
    """One per node, of the pair that differs most."""
    slow, fast = min(pairs, key=lambda pair: share(*pair))
    reached = share(slow, fast)
    here, there = (f"{each.nodes[0]} {peers.figure_name(each)}".strip() for each in (slow, fast))
    how = f"{1 / reached:.1f} times" if reached else "infinitely"
    more = f" (the most of {len(pairs)} figures)" if len(pairs) > 1 else ""
    cause = (f"{here} is {how} slower than {there}, and with two it is not known which is wrong; "
             f"{slow.metric}: {peers.shown(slow.value)} against {peers.shown(fast.value)} "
             f"{slow.unit}{more}")
    return [Finding(slow.stage, INCONCLUSIVE, (name,), cause, action=ACTION, subject=f"node {name}",
                    check=slow.metric, off=1 - reached) for name in nodes]
