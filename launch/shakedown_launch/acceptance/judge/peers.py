"""Figures compared with those of peers: the GPUs of one model over all nodes, or the nodes.

A figure is an outlier where both its ratio to the median is beyond the metric's limit and its
robust z, |x - median| / max(1.4826 MAD, 0.5 % of the median), is above 5, in 60 % of its samples.
Limits are as far from 1 as healthy devices differ in the metric. What the clock, the heat, the
power limit explains is not the chip's. Where the peers differ so much that z could not show one at
the limit, those beyond the limit of the better half's median are inconclusive."""

import dataclasses
import re
import statistics

from ..model import FAIL, INCONCLUSIVE, WARN, Finding
from .slowness import explain, figure_name

FEWEST = 3  # of two, either may be the slow one
LEAST_SAMPLES = 3  # fewer can warn
Z = 5
LEAST_DEVIATION = 0.005  # of the median
SHARE = 0.6  # of the samples that must be slow
MINORITY = 1 / 3  # of the peers; more of them are no outliers, but a second group


@dataclasses.dataclass(frozen=True)
class Limits:
    """Ratios to the median: below `warn` it is noticed, below `fail` it fails."""
    warn: float
    fail: float


# Healthy spread: host links 0.2 %, device memory and NVLink 1 %, products 3 to 5 % (power),
# collectives 2 to 3 %. The first counts that matches the metric's name.
LIMITS = ((r"^setting/", Limits(0.995, 0.99)),
          (r"/latency", Limits(0.80, 0.0)),  # it depends on the place in the network: a warning
          (r"^host/", Limits(0.98, 0.90)),
          (r"^(memory|link)/", Limits(0.97, 0.93)),
          (r"", Limits(0.95, 0.90)))


def limits_of(metric):
    return next(limits for pattern, limits in LIMITS if re.search(pattern, metric))


def judge(figures):
    """Findings about those that are slower than their peers."""
    settings = {each.gpu: each for each in figures if each.metric == "setting/power_limit"}
    found = []
    for peers in peers_of(figures):
        if len(peers) >= FEWEST:
            found += second_group(peers) or [*outliers(peers, settings), *far_below_best(peers)]
    return found


def compared(figures):
    """{(stage, node)} of which one was."""
    return {(figure.stage, figure.nodes[0]) for peers in peers_of(figures) if len(peers) >= FEWEST
            for figure in peers}


def summary(figures):
    """A line per metric: "compute/fp16/sustained: n017 is 6 % below the median of 128 ..."."""
    return [line for peers in peers_of(figures) if len(peers) >= FEWEST
            for line in [summary_line(peers)] if line]


def peers_of(figures):
    """Lists of comparable figures, one figure of each device or node: the last one."""
    groups = {}
    for figure in figures:
        if len(figure.nodes) != 1:
            continue  # of a group of nodes there are no peers
        if figure.explains.get("shares"):
            continue  # more ranks than cores: how many of them run, is the scheduler's choice
        conditions = tuple(sorted((key, str(value)) for key, value in figure.conditions.items()))
        near = figure.explains.get("numa") if figure.metric.startswith("host/") else None
        key = figure.stage, figure.metric, figure.unit, bool(figure.gpu), near, conditions
        device = figure.nodes, figure.gpu, figure.explains.get("rank")
        groups.setdefault(key, {})[device] = figure
    return [list(group.values()) for group in groups.values()]


def ratio(value, median, figure):
    """Below 1: worse."""
    if median <= 0 or value <= 0:
        return 0.0 if value <= 0 and figure.higher_is_better else 1.0
    return value / median if figure.higher_is_better else median / value


def deviation(values, median):
    mad = statistics.median(abs(value - median) for value in values)
    return max(1.4826 * mad, LEAST_DEVIATION * abs(median)) or LEAST_DEVIATION


# ---- outliers ----

def outliers(peers, settings):
    values = [each.value for each in peers]
    median = statistics.median(values)
    scale = deviation(values, median)
    for figure in peers:
        outcome = outcome_of(figure, median, scale)
        if outcome:
            yield finding(figure, peers, median, scale, outcome, settings)


def outcome_of(figure, median, scale):
    """FAIL, WARN or None."""
    limits = limits_of(figure.metric)
    if not is_slow(figure, limits.warn, median, scale):
        return None
    if shares_cores(figure) or not is_slow(figure, limits.fail, median, scale):
        return WARN
    samples = figure.samples or (figure.value,)
    enough = len(samples) >= LEAST_SAMPLES or figure.metric.startswith("setting/")
    return FAIL if enough else INCONCLUSIVE


def is_slow(figure, limit, median, scale=0):
    samples = figure.samples or (figure.value,)
    seen = sum(ratio(sample, median, figure) < limit and abs(sample - median) > Z * scale
               for sample in samples)
    return seen >= SHARE * len(samples)


def shares_cores(figure):
    """Ranks on a CPU compete for its cores, caches and memory: a slow one is worth a warning."""
    return figure.conditions.get("backend") == "cpu"


def finding(figure, peers, median, scale, outcome, settings):
    below = ratio(figure.value, median, figure)
    cause, class_, action = explain(figure, peers, below, limits_of(figure.metric), settings)
    samples = figure.samples or (figure.value,)
    slow = sum(ratio(sample, median, figure) < limits_of(figure.metric).warn for sample in samples)
    evidence = (f"{shown(figure.value)} against {shown(median)} {figure.unit}, the median of "
                f"{count(peers)}; z = {abs(figure.value - median) / scale:.0f}, "
                f"in {slow} of {len(samples)} samples")
    return Finding(figure.stage, outcome, figure.nodes,
                   f"{percent(below)} {cause}; {figure.metric}: {evidence}", class_, action,
                   gpu=figure.gpu, subject=subject(figure), check=figure.metric, off=1 - below)


# ---- peers that differ too much ----

def far_below_best(peers):
    """Of peers among which z shows no outlier: who is right is not known, but not all of them are."""
    values = [each.value for each in peers]
    median, limit = statistics.median(values), limits_of(peers[0].metric).fail
    scale = deviation(values, median)
    mad = statistics.median(abs(value - median) for value in values)
    if Z * 1.4826 * mad <= (1 - limit) * median or shares_cores(peers[0]):
        return
    better = sorted(values, reverse=peers[0].higher_is_better)[:(len(values) + 1) // 2]
    best = statistics.median(better)
    for figure in peers:
        if is_slow(figure, limit, best) and outcome_of(figure, median, scale) != FAIL:
            cause = (f"{percent(ratio(figure.value, best, figure))} slower than the better half; "
                     f"{figure.metric}: {shown(figure.value)} against {shown(best)} {figure.unit}, the "
                     f"median of the better half of {count(peers)}, which differ too much to show "
                     "who is wrong")
            yield Finding(figure.stage, INCONCLUSIVE, figure.nodes, cause, gpu=figure.gpu,
                          action="compare the settings of the slow ones, or use a reference",
                          subject=subject(figure), check=figure.metric,
                          off=1 - ratio(figure.value, best, figure))


# ---- two groups ----

def second_group(peers):
    """Where many peers are slow, medians and MADs show nothing: the largest gap does. Either group
    may be the wrong one, so that it is inconclusive, of each node in the slower one."""
    ordered = sorted(peers, key=lambda each: each.value)
    cut = max(range(1, len(ordered)), key=lambda i: abs(ordered[i].value - ordered[i - 1].value))
    slow, fast = ordered[:cut], ordered[cut:]
    if min(len(slow), len(fast)) < max(2, MINORITY * len(peers)) or shares_cores(slow[0]) or \
            not slow[0].higher_is_better:
        return []
    medians = [statistics.median(each.value for each in side) for side in (slow, fast)]
    spread = max(deviation([each.value for each in side], median)
                 for side, median in zip((slow, fast), medians))
    gap = abs(fast[0].value - slow[-1].value)
    below = ratio(medians[0], medians[1], slow[0])
    if below >= limits_of(slow[0].metric).warn or gap < 3 * spread:
        return []
    cause = (f"{slow[0].metric}: two groups, {members(slow)} at {shown(medians[0])} and "
             f"{members(fast)} at {shown(medians[1])} {slow[0].unit}, {percent(below)} apart: "
             "peers cannot show which of them is right")
    return [Finding(slow[0].stage, INCONCLUSIVE, nodes, cause,
                    action="compare the settings of both groups, or use a reference",
                    subject=f"node {nodes[0]}", check=slow[0].metric)
            for nodes in dict.fromkeys(each.nodes for each in slow)]


def members(side):
    names = [f"{each.nodes[0]} {figure_name(each)}".strip() for each in side]
    return ", ".join(names) if len(names) <= 4 else \
        f"{', '.join(names[:3])} and {len(names) - 3} more"


# ---- words ----

def subject(figure):
    return figure_name(figure) or f"node {figure.nodes[0]}"


def count(peers):
    kind = "GPUs" if peers[0].gpu else "ranks" if "rank" in peers[0].explains else "nodes"
    return f"{len(peers)} {kind}"


def shown(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share):
    off = 100 * abs(1 - share)
    return f"{off:.1f} %" if off < 1.95 else f"{off:.0f} %"


def summary_line(peers):
    median = statistics.median(each.value for each in peers)
    if median <= 0:
        return ""
    worst = min(peers, key=lambda each: ratio(each.value, median, each))
    below = ratio(worst.value, median, worst)
    who = f"{worst.nodes[0]} {figure_name(worst)}".strip()
    side = "below" if worst.higher_is_better else "above"
    off = percent(worst.value / median)
    if below >= limits_of(worst.metric).warn:
        return (f"{worst.metric}: all of {count(peers)} within {off} of the median "
                f"({shown(median)} {worst.unit}) or better")
    return (f"{worst.metric}: {who} is {off} {side} the median of {count(peers)} "
            f"({shown(worst.value)} against {shown(median)} {worst.unit})")
