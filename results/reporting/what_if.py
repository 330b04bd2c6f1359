"""What a step would take on more ranks, with other batches, buckets and links: the step model (step_model.py),
fitted to what bin/compare recorded of the job's links (`link_cost`) and of `none` (`ready`, `breakdown`), with
its error where a step was measured. Records of 0.1 and 0.2 have predictions in place of ready times: they are
shown as recorded."""

import functools
import math
import statistics

from . import words
from .records import Configuration, configuration_of, number, numbers, numbers_in, plain, text
from .step_model import (Gradient, Inputs, Link, Scenario, Strategy, fit_link, predict, transfer_of,
                         usual_changes)
from .summary import Summary, median_of

KINDS = ("prediction", "advice", "winner", "model")
IDENTITY = ("backend", "model", "image_size", "classes", "precision", "batch_size", "accumulate", "world_size",
            "strategy", "optimizer", "data", "bucket_cap_mb", "throttle_gbs")
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
TRUSTED = 0.15  # a model further off what was measured predicts nothing
TIMES_RANKS = (2, 4, 8)
SLOW_NETWORKS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # GB/s
GIGA = 1e9


def groups_of(run):
    """[[Measured]] of one model and precision each; none of --settings, which the model does not describe."""
    found = {}
    for (conditions, _), measured in Summary([run]).measured.items():
        if measured.steps and not conditions.setting:
            found.setdefault(conditions._replace(batch=0, batch_is_global=False, world_size=0), []).append(measured)
    return list(found.values())


def identity_of(measured):
    return {key: measured.steps[0][key] for key in IDENTITY if key in measured.steps[0]}


def batch_of(measured):
    """Of a rank."""
    return number(measured.steps[0], "batch_size") or 0


def described(measured):
    """The strategy as the model knows it; None where it does not."""
    first, ranks = measured.steps[0], measured.conditions.world_size
    names = first.get("transfers")
    transfers = [transfer_of(name) for name in names] if isinstance(names, list) else [None]
    if None in transfers:
        return None
    return Strategy(plain(measured.strategy), transfers, ranks - (number(first, "ranks_computing") or ranks))


def gradient_factor(measured):
    return BYTES.get(text(measured.steps[0], "grad_dtype"), 4) / 4


def ready_of(measured):
    """The last `ready` record that has all that the model needs."""
    return next(filter(is_whole, reversed(measured.ready)), None)


class Fitted:
    """The model of the job's links and of `none` on the most ranks, of each batch, of one group."""

    def __init__(self, run, group):
        self.run, self.group = run, group
        most = max((one.conditions.world_size for one in group), default=1)
        self.bases = [one for one in group if one.strategy == "none" and one.conditions.world_size == most > 1 and
                      ready_of(one) and batch_of(one) and median_of(one.breakdowns, "compute_ms")]
        costs = next((one.links for one in self.bases if {"ring", "star"} <= set(one.links)), None)
        self.fits = costs and {path: fit_link(pattern, most, points_of(costs[path]))
                               for path, pattern in (("ring", "all_reduce"), ("star", "star"))}
        if not self.fits or None in self.fits.values():
            self.bases = []
            return
        self.costs = costs
        self.ddp = next((one for one in group if plain(one.strategy) == "ddp" and described(one)), None)

    def records(self):
        """`link_cost`s with the fit, `model`, and `prediction`, `advice` and `winner` as 0.2 recorded them."""
        if not self.bases:
            return []
        lines = []
        for path, (link, error) in self.fits.items():
            lines.append({**self.costs[path], "alpha_us": link.latency_s * 1e6, "worst_error": error,
                         "bandwidth_gbs": finite(link.bytes_per_s / GIGA)})
        measured = [one for base in self.bases for one in self.compared(base)]
        errors = [abs(one["error"]) for one in measured]
        trusted = bool(errors) and max(errors) <= TRUSTED
        lines.append({"kind": "model", **identity_of(self.bases[0]), "trusted": trusted,
                     **({"model_error": max(errors)} if errors else {})})
        lines += measured
        if trusted:
            lines += [one for base in self.bases for one in [*self.more_ranks(base), *self.advice(base)]]
            lines += self.winners()
        return lines

    def inputs(self, base):
        ready = ready_of(base)
        hidden = [(one, median_of(one.breakdowns, "hidden_comm_ms")) for one in self.group
                  if plain(one.strategy) == "ddp" and one.conditions == base.conditions]
        slowed = next((max(0.0, (median_of(one.breakdowns, "interference_ms") or 0) / ms)
                       for one, ms in hidden if ms), 0.0)
        average = number(base.links.get("star", self.costs["star"]), "average_gbs")
        return Inputs(
            {batch_of(one): median_of(one.breakdowns, "compute_ms") / one.conditions.accumulate for one in self.bases},
            [Gradient(*one) for one in zip(ready["bytes"], ready["ready_ms"], ready["block"])],
            ready["backward_ms"], batch_of(base), median_of(base.breakdowns, "optimizer_ms") or 0.0, slowed,
            1e3 / (average * GIGA) if average else 0.0, number(ready, "input_bytes_per_image") or 0.0)

    def scenario(self, base, of):
        """What `of` measured, on the fitted links."""
        options = self.run.header
        caps = numbers_in(options, "options.bucket_caps") or [25]
        return Scenario(
            of.conditions.world_size, batch_of(of), self.fits["ring"][0], self.fits["star"][0], of.conditions.accumulate,
            number(options, "options.small_bucket_mb") or 1, median_of(of.steps, "bucket_cap_mb") or caps[0],
            gradient_factor(of), number(ready_of(base), "weight_bytes_factor") or 1,
            overlap=base.conditions.backend == "gpu" and not options.get("options.no_overlap"))

    def is_alike(self, measured):
        """Whether a rank that computes has the share of its host that it has in `none`: on the cpu backend a
        server leaves cores and memory to the workers."""
        strategy = described(measured)
        return strategy and (measured.conditions.backend == "gpu" or not strategy.servers)

    def compared(self, base):
        inputs = self.inputs(base)
        for one in self.group:
            if one is base or one.conditions.world_size == 1 or batch_of(one) != batch_of(base) or not self.is_alike(one):
                continue
            predicted = predict(inputs, described(one), self.scenario(base, one))
            if one.step_ms:
                yield {"kind": "prediction", **identity_of(one), **fields_of(predicted), "step_ms_measured": one.step_ms,
                       "error": predicted.step_ms / one.step_ms - 1}

    def of_ddp(self, base):
        """(the scenario of ddp at the base's batch, the identity of its records)."""
        scenario = self.scenario(base, base)._replace(gradient_factor=gradient_factor(self.ddp))
        return scenario, {**identity_of(base), "strategy": "ddp", "bucket_cap_mb": scenario.bucket_cap_mb}

    def more_ranks(self, base):
        if self.ddp is None:
            return
        scenario, identity = self.of_ddp(base)
        for times in TIMES_RANKS:
            more = scenario._replace(world_size=scenario.world_size * times)
            yield {"kind": "prediction", **identity, "world_size": more.world_size,
                   **fields_of(predict(self.inputs(base), described(self.ddp), more))}

    def advice(self, base):
        """The changes that would make ddp faster, the best first."""
        if self.ddp is None:
            return []
        scenario, identity = self.of_ddp(base)
        memory = min(numbers_in(self.run.header, "device_memory_bytes"), default=0)
        peak = max(numbers_in(base.steps[0], "peak_memory_bytes"), default=0)
        largest = int(batch_of(base) * min(memory / peak, 1e3)) if peak else 0
        inputs, strategy = self.inputs(base), described(self.ddp)
        rate = predict(inputs, strategy, scenario).images_per_s
        gains = []
        for change, changed in usual_changes(inputs, strategy, scenario, largest):
            predicted = predict(inputs, strategy, changed)
            gains.append((100 * (predicted.images_per_s / rate - 1), change, predicted.extrapolated))
        return [{"kind": "advice", **identity, "change": change, "gain_percent": gain, "extrapolated": outside}
                for gain, change, outside in sorted(gains, key=lambda one: -one[0]) if gain > 1e-6]

    def winners(self):
        """The fastest of the strategies that were measured on the most ranks, by batch, and by bandwidth from a
        slow network's to the measured. `none` would always win."""
        first = self.bases[0]
        known = {plain(one.strategy): described(one) for one in self.group if one.strategy != "none" and
                 one.conditions.world_size == first.conditions.world_size and self.is_alike(one)}
        measured = self.fits["ring"][0].bytes_per_s
        bandwidths = [gbs * GIGA for gbs in SLOW_NETWORKS if gbs * GIGA < 0.7 * measured]
        for base in self.bases if known else ():
            for bandwidth in [*bandwidths, *([measured] if math.isfinite(measured) else [])]:
                scenario = self.scenario(first, first)
                scenario = scenario._replace(batch=batch_of(base), gradient_factor=scenario.weight_factor)
                if bandwidth != measured:  # where the star keeps its own
                    scenario = scenario._replace(ring=Link(scenario.ring.latency_s, bandwidth),
                                                 star=Link(scenario.star.latency_s, bandwidth))
                rates = sorted(((predict(self.inputs(first), strategy, scenario).images_per_s, name)
                                for name, strategy in known.items()), key=lambda one: -one[0])
                second = rates[1] if len(rates) > 1 else (rates[0][0], "")
                yield {"kind": "winner", **identity_of(base), "strategy": rates[0][1],
                       "bandwidth_gbs": bandwidth / GIGA, "second": second[1],
                       "margin": rates[0][0] / second[0] - 1}


def is_whole(ready):
    """Whether a `ready` record has all that the model needs."""
    lists = [numbers_in(ready, key) for key in ("bytes", "ready_ms", "block")]
    return bool(lists[0]) and len(set(map(len, lists))) == 1 and number(ready, "backward_ms") is not None


def finite(value):
    return value if math.isfinite(value) else None


def points_of(cost):
    """[(bytes, seconds)] of a `link_cost` record."""
    return [(size, time / 1e6) for size, time in zip(numbers_in(cost, "bytes"), numbers_in(cost, "time_us"))
            if size > 0 and time > 0]


def fields_of(predicted):
    return {"step_ms_predicted": predicted.step_ms, "images_per_s_predicted": predicted.images_per_s,
            "efficiency_predicted": predicted.efficiency, "exposed_comm_ms_predicted": predicted.exposed_ms,
            "extrapolated": predicted.extrapolated}


@functools.lru_cache(maxsize=256)
def modelled(run):
    """Links, predictions, advice and winners of a run, whose records are all read."""
    if run.of("ready"):
        return [record for group in groups_of(run) for record in Fitted(run, group).records()]
    return [record for record in run.records if record["kind"] in (*KINDS, "link_cost")]


class Model:
    """All that is known for one set of conditions, of several batches."""

    def __init__(self, conditions):
        self.conditions = conditions
        self.links = []
        for kind in KINDS:
            setattr(self, f"{kind}s", [])  # (configuration, record)

    def measured(self, summary):
        """[(configuration, step predicted, step measured, ms)]."""
        found = [(configuration, number(record, "step_ms_predicted"),
                  measured_ms(summary, configuration, record))
                 for configuration, record in self.predictions]
        return [one for one in found if one[1] and one[2]]

    def errors(self, summary):
        """Absolute relative errors of the predicted steps that were measured."""
        return [abs(predicted / measured - 1)
                for _, predicted, measured in self.measured(summary)]

    def error(self, summary):
        """The largest; None where nothing was measured."""
        return max(numbers(self.records(), "model_error") + self.errors(summary), default=None)

    def records(self):
        return [record for kind in KINDS for _, record in getattr(self, f"{kind}s")]

    def is_trusted(self):
        """Whether it was compared with a step, and is near enough; 0.1 does not record it."""
        return not any(record.get("trusted") is False for record in self.records())

    def doubt(self, summary):
        errors = self.errors(summary)
        return [] if not errors else [
            f"model error where steps were measured: {words.percent(statistics.median(errors))} "
            f"in the median, {words.percent(max(errors))} at most"]

    def unmeasured(self, summary):
        return [(configuration, record) for configuration, record in self.predictions
                if not measured_ms(summary, configuration, record)]


def measured_ms(summary, configuration, record):
    """The step of what was predicted: as measured in the same job, else in any of the runs."""
    measured = number(record, "step_ms_measured")
    if measured is None and configuration in summary.measured:
        measured = summary.measured[configuration].step_ms
    return measured


def models(summary):
    """[Model] in the order of the records. A link_cost is of the records that follow it: 0.1 and 0.2 do not name
    its model."""
    found = {}
    for run in summary.runs:
        links = []
        for record in modelled(run):
            if record["kind"] == "link_cost":
                links.append(record)
                continue
            of, strategy = configuration_of(run, record)
            # A model's batch is of one rank: more ranks have more of it.
            of = of._replace(batch=number(record, "batch_size") or 0, batch_is_global=False)
            ranks = number(run.header, "world_size") or of.world_size
            conditions = of._replace(world_size=ranks, batch=0)
            model = found.setdefault(conditions, Model(conditions))
            getattr(model, f"{record['kind']}s").append((Configuration(of, strategy), record))
            model.links += links
            links = []
    return list(found.values())


def best_advice(model):
    """[((configuration, change), gain in percent, extrapolated)], the largest gain first."""
    found = {}
    for configuration, record in model.advices:
        if number(record, "gain_percent") is not None:
            found.setdefault((configuration, record.get("change")), []).append(record)
    gains = [(key, median_of(records, "gain_percent"), any(r.get("extrapolated") for r in records))
             for key, records in found.items()]
    return sorted(gains, key=lambda one: -one[1])
