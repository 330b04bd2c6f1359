"""Figures as series: a metric over all that it was measured of, next to what the reference has."""

import collections
import dataclasses
import math
import re
import statistics

from ..words import clean, nodes, size

FEW_PEERS = 3  # as peers.py: fewer are not compared
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
    reference: dict  # {} where there is none

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
        """nan of fewer than FEW_PEERS: of two it is their mean."""
        return statistics.median(each.value for each in self.figures) \
            if len(self.figures) >= FEW_PEERS else math.nan

    @property
    def off(self):
        """"-7.2 %": the worst of peers next to their median, of two next to the other."""
        usual = self.best if len(self.figures) == 2 else self.median
        known = math.isfinite(usual) and usual
        return f"{100 * (self.worst.value / usual - 1):+.1f} %" if known else ""

    @property
    def expected(self):
        return number(self.reference.get("value"))

    @property
    def floor(self):
        """nan where missing it only warns: what others published."""
        return number(self.reference.get("floor")) if self.reference.get("may_fail", True) else \
            math.nan

    @property
    def source(self):
        """"measured, results/0.2/h200/compute.jsonl"."""
        return clean(", ".join(filter(None, map(self.reference.get, ("kind", "source")))), 80)

    @property
    def missed(self):
        worst_ = self.worst.value
        return worst_ < self.floor if self.higher_is_better else worst_ > self.floor


def measured(acceptance):
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
    """all_reduce/float32/1 GiB/in_place of collective/all_reduce/float32/1073741824/in_place/busbw:
    what the unit says is left out."""
    metric = re.sub(r"(?<=/)[0-9]{4,}(?=/)", lambda found: size(int(found[0])), metric)
    for long, short in SHORT:
        metric = metric.replace(long, short)
    return clean(metric, 56)


def reference_of(acceptance, figure):
    """What the reference has of it under the same conditions, or {}."""
    return next((each for each in acceptance.reference.get("figures", {}).get(figure.metric, ())
                 if all(figure.conditions.get(key) == value
                        for key, value in each.get("conditions", {}).items())), {})


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


def reference_name(acceptance):
    return ": ".join(clean(acceptance.reference[key]) for key in ("name", "source")
                     if acceptance.reference.get(key))
