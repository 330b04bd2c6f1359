"""Figures as series: a metric under the same conditions, over all that it was measured of."""

import collections
import dataclasses
import math
import re
import statistics

from reporting.words import size

from ...words import clean, nodes
from ..model import FAIL, PASS

FEW = 3  # values that have a median: of two it is their mean
CONDITION = "condition."
# What is looked at first, and how many of each; the last ones, which are of the most bytes.
HEADLINES = ((r"product/.*/flop_per_cycle_sm", 7), (r"product/.*/tflops", 2), (r"memory/copy", 1),
             (r"host_link/.*/all_at_once", 2), (r"link/copy_engine/.*", 2),
             (r"collective/all_reduce/busbw", 2), (r"train/step_ms", 1))


@dataclasses.dataclass(frozen=True)
class Series:
    name: str  # the metric, with what distinguishes it from others of its name
    metric: str
    figures: list  # with a finite value

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
        """nan of fewer than FEW."""
        return statistics.median(each.value for each in self.figures) \
            if len(self.figures) >= FEW else math.nan

    @property
    def slower(self):
        """"7.2 %": the worst than usual, as bin/judge has it; "" where it is not."""
        share = number(self.worst.more.get("slower"))
        return f"{100 * share:.1f} %" if share >= 0.0005 else ""

    @property
    def witness(self):
        """"reference", "first principles", "peers"; "": nothing."""
        return self.worst.witness.replace("_", " ")

    @property
    def missed(self):
        return any(each.outcome == FAIL for each in self.figures)


def measured(acceptance):
    """[Series], in the order in which they were measured. What a group of nodes does is not what
    each of them does alone."""
    found = {}
    for figure in acceptance.figures:
        if math.isfinite(figure.value):
            found.setdefault(figure.metric, {}).setdefault(kind_of(figure), []).append(figure)
    made = []
    for metric, of in found.items():
        keys = collections.Counter(item for kind in of for item in kind)
        differ = {key for (key, _), number_ in keys.items() if number_ < len(of)} | {"condition.bytes"}
        made += [Series(readable(metric, kind, differ), metric, figures) for kind, figures in of.items()]
    return made


EXPLAINS = {"temperature_c": ("GPU temperature", "°C"), "clock_mhz": ("SM clock", "MHz"), "power_w": ("power", "W")}


def explaining(found):
    """[Series] of what was seen meanwhile, of the load during which most of it is known; products are the
    hottest."""
    made = []
    for key, (name, unit) in EXPLAINS.items():
        loads = [(each.name, [dataclasses.replace(of, value=of.more[key], unit=unit, usual=math.nan, limit=math.nan,
                                                  outcome=PASS, witness="", more={}) for of in each.figures
                              if math.isfinite(number(of.more.get(key)))]) for each in found]
        load, figures = max(loads, key=lambda each: (len(each[1]), "product/" in each[0]), default=("", []))
        made += [Series(f"{name} during {load}", "", figures)] if figures else []
    return made


def kind_of(figure):
    """What figures of one series have in common: ((key, value), ...)."""
    return (("stage", figure.stage), ("nodes", len(figure.nodes)),
            *((key, value) for key, value in figure.more.items()
              if key.startswith(CONDITION) or key in ("board", "path_class")))


SHORT = (("collective/", ""), ("/busbw", ""), ("/flop_per_cycle_sm", ""))


def readable(metric, kind, differ):
    """"all_reduce 1 GiB in place": the metric, and of its kind what differs; without what the unit
    says."""
    for long, short in SHORT:
        metric = metric.replace(long, short)
    return clean(" ".join([metric, *(worded(key, value) for key, value in kind if key in differ)]), 56)


def worded(key, value):
    if key == "condition.bytes" and str(value).isdigit():
        return size(int(value))
    if key == "condition.in_place":
        return "in place" if str(value).lower() == "true" else "out of place"
    if key == "nodes":
        return f"of {value} nodes" if value > 1 else "of a node"
    return str(value) if key in ("stage", "board", "path_class") or re.search("[a-z]", str(value), re.I) else \
        f"{key.removeprefix(CONDITION)} {value}"


def headlines(found, most):
    """Those of HEADLINES, or without any the first: the same ones in every run."""
    first = [each for pattern, number_ in HEADLINES
             for each in [each for each in found if re.fullmatch(pattern, each.metric)][-number_:]]
    return (first or found)[:most]


def chosen(found, most):
    """Of many series: the headlines, and what misses its limit by most; in their order."""
    if len(found) <= most:
        return found
    missed = sorted((each for each in found if each.missed),
                    key=lambda each: -number(each.worst.more.get("slower", 0)))
    first = headlines(found, most)
    taken = set(map(id, [*first, *missed[:max(most - len(first), most // 4)]]))
    return [each for each in found if id(each) in taken]


def where(figure, gpus):
    """"n017 GPU 3"."""
    name = nodes(figure.nodes, 24)
    if figure.gpu in gpus:
        return f"{name} GPU {gpus[figure.gpu][1].index}"
    if figure.scope in ("rank", "link", "rail"):
        return f"{name} {figure.scope} {clean(figure.name, 24)}"
    return f"{name} {clean(figure.gpu, 48)}".strip()


def number(value):
    return float(value) if isinstance(value, (int, float)) else math.nan
