"""The plots of the page: figures over nodes, and what explains them."""

import math

from ..model import FAIL
from ..words import clean
from . import charts, digest, series
from .markup import element

PLOTS, MORE_PLOTS = 18, 24  # shown at most, and folded
EXPLAINS = {"temperature_c": "GPU temperature, °C", "clock_mhz": "SM clock, MHz",
            "power_w": "power, W"}


def drawn(acceptance):
    """(what the marks mean, plots to look at first, other plots, number of those left out)"""
    found = series.measured(acceptance)
    plots = Plots(acceptance)
    chosen = series.chosen(found, PLOTS)
    first = [plots.of_series(each) for each in chosen]
    for key, name in EXPLAINS.items():
        first += plots.of_explanation(key, name, found)
    rest = [each for each in found if each not in chosen]
    number = sum(len(verdict.node.gpus) for verdict in acceptance.verdicts)
    how = "A dot per value, a line over its samples" if number <= charts.DOTS else \
        "A bar from the lowest to the highest of neighbours, its middle half darker"
    return (f"{how}; red: a finding of FAIL names it.", first,
            [plots.of_series(each) for each in rest[:MORE_PLOTS]], len(rest) - MORE_PLOTS)


class Plots:
    """What plots of one acceptance have in common: where a node and a GPU stand from left to right,
    and which of them a finding of FAIL names."""

    def __init__(self, acceptance):
        verdicts = digest.in_order(acceptance)
        self.gpus = digest.gpus_of(acceptance)
        self.of_gpus, self.of_nodes = gpu_ends(verdicts), node_ends(verdicts)
        self.places, self.named = {}, set()
        for at, verdict in enumerate(verdicts):
            gpus = verdict.node.gpus
            self.places[verdict.node.name] = (at + 0.5) / len(verdicts)
            self.places.update((gpu.uuid, (at + (i + 1) / (len(gpus) + 1)) / len(verdicts))
                               for i, gpu in enumerate(gpus))
            self.named.update((name, each.gpu) for each in verdict.findings
                              if each.outcome == FAIL for name in each.nodes)

    def of_series(self, each):
        return self.draw(each.name, each.unit,
                         [self.point(of, of.value, of.samples) for of in each.figures],
                         [(each.usual, "usual", False), (each.limit, "limit", True)])

    def of_explanation(self, key, name, found):
        """[plot], of the load during which most of it is known; products are the hottest."""
        def known(each):
            return [of for of in each.figures if math.isfinite(series.number(of.more.get(key)))]
        load = max(found, key=lambda each: (len(known(each)), "product/" in each.metric),
                   default=None)
        points = [self.point(of, of.more[key]) for of in known(load)] if load else []
        return [self.draw(name, f"during {load.name}", points)] if points else []

    def point(self, figure_, value, samples=()):
        places = [self.places[name] for name in figure_.nodes if name in self.places]
        middle = sum(places) / len(places) if places else 0.5
        return charts.Point(self.places.get(figure_.gpu, middle), value, figure_,
                            any((name, figure_.gpu) in self.named for name in figure_.nodes),
                            samples)

    def draw(self, name, unit, points, lines=()):
        ends = self.of_gpus if any(each.of.gpu for each in points) else self.of_nodes
        return element(
            "figure", element("figcaption", element("b", clean(name, 80)), f"  {clean(unit, 80)}"),
            charts.strip(f"{clean(name, 80)} over nodes", points,
                         lambda of: series.where(of, self.gpus), ends, lines))


def node_ends(verdicts):
    """Labels below a plot: the names of a few nodes, the first and last of many."""
    shown = range(len(verdicts)) if len(verdicts) <= 6 else (0, len(verdicts) - 1)
    return [((at + 0.5) / len(verdicts), clean(verdicts[at].node.name, 14)) for at in shown]


def gpu_ends(verdicts):
    """Of one node its GPUs."""
    gpus = verdicts[0].node.gpus if len(verdicts) == 1 else ()
    return [((at + 1) / (len(gpus) + 1), f"GPU {gpu.index}")
            for at, gpu in enumerate(gpus)][:8] or node_ends(verdicts)
