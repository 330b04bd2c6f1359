"""What bin/compare's step model says (`link_cost`, `prediction`, `bucket_plan`, `advice`, `winner`
records), by what it was made from."""

import statistics

from . import words
from .records import Configuration, configuration_of, number

KINDS = ("prediction", "bucket_plan", "advice", "winner")
TIE = 0.0005  # a margin below it is none: bin/compare's word too
MOST_ERROR = 0.15  # of a measured step: nothing is printed of a model that is off by more, here and there


class Model:
    """All that is said from one set of conditions, which have no batch: it is of several."""

    def __init__(self, conditions):
        self.conditions = conditions
        self.links = []
        for kind in KINDS:
            setattr(self, f"{kind}s", [])  # (configuration, record)

    @property
    def ring_gbs(self):
        """The measured ring's bandwidths: of several runs each its own."""
        return {number(link, "bandwidth_gbs") for link in self.links if link.get("path") == "ring"}


def models_of(runs):
    """[Model] in the order of the records. A link_cost names no model or precision: it is of the
    records that follow it."""
    models = {}
    for run in runs:
        links = []
        for record in run.records:
            if record["kind"] == "link_cost":
                links.append(record)
            elif record["kind"] in KINDS:
                of, strategy = configuration_of(run, record)
                # A model's batch is a rank's: on more ranks there is more of it.
                of = of._replace(batch=number(record, "batch_size") or 0, batch_of="a rank")
                ranks = number(run.header, "world_size") or of.world_size
                conditions = of._replace(world_size=ranks, batch=0)
                model = models.setdefault(conditions, Model(conditions))
                getattr(model, f"{record['kind']}s").append((Configuration(of, strategy), record))
                model.links += links
                links = []
    return list(models.values())


def measured_ms(summary, configuration, record):
    """The step of what was predicted: as measured in the same job, else in any of the runs."""
    measured = number(record, "step_ms_measured")
    if measured is None and configuration in summary.measured:
        measured = summary.measured[configuration].step_ms
    return measured


def held_against(summary, predictions):
    """[(configuration, step predicted, step measured, ms)] of what was measured."""
    found = [(configuration, number(record, "step_ms_predicted"),
              measured_ms(summary, configuration, record))
             for configuration, record in predictions]
    return [(configuration, predicted, measured) for configuration, predicted, measured in found
            if predicted and measured]


def median_error(held):
    """Of the step, either way; None where nothing was measured."""
    errors = [abs(predicted / measured - 1) for _, predicted, measured in held]
    return statistics.median(errors) if errors else None


def doubt(summary, model):
    """[words]: a margin is worth as much as the model that it is from."""
    off = median_error(held_against(summary, model.predictions))
    return [] if off is None else [f"where steps were measured the model is off by "
                                   f"{words.percent(off)} in the median"]


def is_trusted(summary, model):
    """Whether what it says of what was not measured is worth printing."""
    return all(abs(predicted / measured - 1) <= MOST_ERROR
               for _, predicted, measured in held_against(summary, model.predictions))


def unmeasured(summary, predictions):
    return [(configuration, record) for configuration, record in predictions
            if not measured_ms(summary, configuration, record)]


class WinnerMap:
    """The fastest strategy of each batch and bandwidth."""

    def __init__(self, model):
        self.ring_gbs = sorted(gbs for gbs in model.ring_gbs if gbs is not None)
        self.cells = {}  # {(batch, GB/s): (strategy, margin)}, of several runs the last
        for (conditions, strategy), record in model.winners:
            gbs, margin = number(record, "bandwidth_gbs"), number(record, "margin")
            if None not in (gbs, margin):
                # What several runs measured differs a little, and is one column.
                column = self.ring_gbs[-1] if gbs in self.ring_gbs else gbs
                self.cells[conditions.batch, column] = strategy, margin
        self.batches = sorted({batch for batch, _ in self.cells})
        self.bandwidths = sorted({gbs for _, gbs in self.cells})

    def bandwidth_name(self, gbs):
        if gbs not in self.ring_gbs:
            return f"{gbs:.3g} GB/s"
        ends = dict.fromkeys(f"{end:.3g}" for end in (self.ring_gbs[0], self.ring_gbs[-1]))
        return f"{' to '.join(ends)} GB/s (measured)"

    def parts(self, batch, gbs):
        """(strategy, how much faster in words); None where nothing was predicted."""
        if (batch, gbs) not in self.cells:
            return None
        strategy, margin = self.cells[batch, gbs]
        return strategy, "or another" if margin < TIE else f"{100 * margin:+.1f} %"

    def name(self, batch, gbs):
        return " ".join(self.parts(batch, gbs) or "-")
