"""What differs by far where there are only two to compare: which of them is wrong is not known, but
both do not pass.

On GPUs it is a figure of which there are two values. On the CPU, where a rate is also what other
work leaves of the cores, it is two nodes of which one is far slower in two stages or more."""

import statistics

from ..model import INCONCLUSIVE, Finding
from . import peers

APART = 0.8  # ratio that no two healthy GPUs or nodes of a kind reach
APART_CPU = 0.5
STAGES_CPU = 2
ACTION = "accept them with a third one, or with --reference: it shows which is wrong"


def judge(figures, judged=()):
    """Findings. `judged`: (stage, node) of the rates that a reference has judged."""
    rates = [each for each in figures if peers.limits_of(each.metric).fail > 0
             and not all((each.stage, name) in judged for name in each.nodes)]
    groups = peers.peers_of(rates)
    return [*of_gpus(groups), *of_cpus(groups)]


def of_gpus(groups):
    """A Finding per stage and node, of the figure that differs most."""
    apart = {}
    for pair in groups:
        if len(pair) != 2 or peers.shares_cores(pair[0]):
            continue
        slow, fast = worse_first(*pair)
        spread = max(peers.deviation(each.samples or (each.value,), each.value) for each in pair)
        if peers.is_slow(slow, APART, fast.value, spread):
            names = dict.fromkeys(name for each in pair for name in each.nodes)
            apart.setdefault((slow.stage, tuple(names)), []).append((slow, fast))
    return [found for (_, names), pairs in apart.items() for found in findings(names, pairs)]


def of_cpus(groups):
    """A Finding per stage and node, where two nodes differ in several stages in the same way."""
    slower = {}  # (slow node, fast node): {stage: its figures}
    for group in groups:
        names = list(dict.fromkeys(each.nodes[0] for each in group))
        if len(names) == 2 and peers.shares_cores(group[0]):
            slow, fast = worse_first(*(typical(group, name) for name in names))
            slower.setdefault((slow.nodes[0], fast.nodes[0]), {}).setdefault(
                slow.stage, []).append((slow, fast))
    found = []
    for names, stages in slower.items():
        apart = [[pair for pair in pairs if share(*pair) < APART_CPU] for stage, pairs in stages.items()
                 if statistics.median(share(*pair) for pair in pairs) < APART_CPU]
        if len(apart) >= STAGES_CPU:
            found += [each for pairs in apart for each in findings(names, pairs)]
    return found


def typical(group, node):
    """The figure of the node's rank in the middle."""
    own = sorted((each for each in group if each.nodes == (node,)), key=lambda each: each.value)
    return own[len(own) // 2]


def worse_first(one, other):
    return sorted((one, other), key=lambda each: each.value, reverse=not one.higher_is_better)


def share(slow, fast):
    return peers.ratio(slow.value, fast.value, slow)


def findings(nodes, pairs):
    slow, fast = min(pairs, key=lambda pair: share(*pair))
    here, there = (f"{each.nodes[0]} {peers.figure_name(each)}".strip() for each in (slow, fast))
    more = f", and so in {len(pairs) - 1} more of its figures" if len(pairs) > 1 else ""
    times = 1 / share(slow, fast) if share(slow, fast) else 0
    cause = (f"{here} is {f'{times:.1f} times' if times else 'far'} slower than {there}: "
             f"{slow.metric}: {peers.shown(slow.value)} against {peers.shown(fast.value)} {slow.unit}"
             f"{more}; with two it is not known which is wrong")
    return [Finding(slow.stage, INCONCLUSIVE, (name,), cause, action=ACTION, subject=f"node {name}",
                    check=slow.metric, off=1 - share(slow, fast)) for name in nodes]
