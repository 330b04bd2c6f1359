"""Quantities by which two runs are compared: one rate for each configuration, collective, link and
part of a job, with what it is of and where it was measured."""

from typing import NamedTuple, Optional

from . import words
from .intervals import OF_MEDIAN, Rate, median_interval, rate_of, scattered
from .records import number, numbers
from .summary import Measured

KINDS = {"steps": "images/s", "collectives": "GB/s", "links": "GB/s", "splits": "busbw GB/s"}


class Quantity(NamedTuple):
    what: tuple  # ((key, value, text)...): two are comparable where these and the place are equal
    machine: str
    nodes: int
    rate: Rate
    measured: Optional[Measured] = None  # of a step

    def name(self, without=()):
        return ", ".join(text for key, _, text in self.what if text and key not in without)

    @property
    def rate_of_runs(self):
        """The rate, with its interval where that says how far runs differ. On CPUs, whose cores others use too, one
        run says nothing of the next: all its messages, samples or steps may take ten times as long."""
        backend = self.measured.conditions.backend if self.measured else {key: value for key, value, _ in self.what}["backend"]
        is_one = backend == "cpu" and len(self.rate.values) < 2
        return self.rate._replace(low=None, high=None, kind="") if is_one else self.rate

    @property
    def place(self):
        return f"{words.count(self.nodes, 'node')} of {self.machine}"


def quantities(summary):
    """{kind of KINDS: [Quantity]}."""
    return {"steps": steps(summary), "collectives": collectives(summary), "links": links(summary),
            "splits": splits(summary)}


def steps(summary):
    found = []
    for (conditions, strategy), measured in summary.measured.items():
        if measured.rate:
            elsewhere = conditions._replace(machine="", nodes=0)
            texts = words.parts(elsewhere) | {"machine": ""}
            what = [("strategy", strategy, strategy), ("conditions", elsewhere, "")]
            what += [(key, text, text) for key, text in texts.items()]
            found.append(Quantity(tuple(what), conditions.machine, conditions.nodes, measured.rate,
                                  measured))
    return found


def of_records(runs, kind, what_of, rate_of):
    """Records that are of the same are repetitions."""
    found = {}
    for run in runs:
        hosts = len(run.hosts)
        for record in run.of(kind):
            key = tuple(what_of(record)), run.machine, number(record, "nodes") or hosts
            found.setdefault(key, []).append(record)
    made = [Quantity(*key, rate_of(records)) for key, records in found.items()]
    return [quantity for quantity in made if quantity.rate]


def collectives(summary):
    """Of runs with --path none."""
    runs = [run for run in summary.runs if not run.logs_path]
    return of_records(runs, "collective", what_collective, rate_of_collective)


# Besides what is named: that a difference in them makes times incomparable is not shown.
UNNAMED = ("backend", "reduction", "root", "aggregate", "blocking", "average", "mpi_algorithm")


def what_collective(record):
    yield "operation", record.get("operation"), str(record.get("operation"))
    yield "bytes", record.get("bytes"), words.size(number(record, "bytes") or 0)
    for key in ("dtype", "launch_mode", "transport"):
        yield key, record.get(key), str(record.get(key, "")).replace("_", " ")
    yield "in_place", record.get("in_place"), "in place" if record.get("in_place") else ""
    for key, text in (("registration", "registration"), ("ctas", "CTAs")):
        yield key, record.get(key) or 0, f"{text} {record[key]}" if record.get(key) else ""
    yield "ranks", record.get("world_size"), words.count(record.get("world_size"), "rank")
    yield "ranks_per_node", tuple(record.get("ranks_per_node") or ()), ""
    for key in UNNAMED:
        yield key, record.get(key), ""


def rate_of_collective(records):
    """busbw, of one rank algbw, GB/s. A single record has the samples of its time."""
    unit = "busbw_gbs" if number(records[0], "busbw_gbs") else "algbw_gbs"
    rates = [number(record, unit) for record in records]
    if not all(rates):  # nothing is moved
        return None
    if len(records) > 1:
        return rate_of(rates)
    record, time = records[0], number(records[0], "time_us_p50")
    samples = record.get("samples_us") or []
    if time and len(samples) > 1 and all(sample and sample > 0 for sample in samples):
        rates_of_samples = [rates[0] * time / sample for sample in samples]
        return Rate(rates[0], rates[0], *median_interval(rates_of_samples), len(samples))
    low, high = number(record, "time_us_high"), number(record, "time_us_low")
    if time and low and high:
        return Rate(rates[0], rates[0], rates[0] * time / low, rates[0] * time / high, OF_MEDIAN, 1)
    return rate_of(rates)


def links(summary):
    return of_records(summary.runs, "link", what_of("from", " to ", "to", "direction", "concurrency", "transport"),
                      rate_of_key("bandwidth_gbs"))


def splits(summary):
    return of_records(summary.runs, "split", what_of("scope", " ", "name", "transport"), rate_of_key("busbw_gbs"))


def what_of(first, between, second, *keys):
    """What a record with a message's size is of: two keys that name it, and others."""
    def what(record):
        yield "name", (record.get(first), record.get(second)), f"{record.get(first)}{between}{record.get(second)}"
        for key in keys:
            yield key, record.get(key), str(record.get(key, ""))
        yield "bytes", record.get("bytes"), words.size(number(record, "bytes") or 0)
        yield "ranks", record.get("world_size"), words.count(record.get("world_size"), "rank")
        yield "backend", record.get("backend"), ""
    return what


def rate_of_key(key):
    """A single record has the standard deviation of its messages. It stands for that of runs, not divided by the
    root of their number: what disturbs a run disturbs all messages of it."""
    def rate(records):
        rates = [value for value in numbers(records, key) if value]
        deviation = number(records[0], "time_us_cv")
        if len(rates) == 1 and deviation is not None:
            return scattered(rates[0], 2 * deviation)
        return rate_of(rates) if rates else None
    return rate


def shared_keys(several):
    """The parts of `what` in which all are the same, but the first, which names it."""
    parts = [{key: value for key, value, _ in quantity.what[1:]} for quantity in several]
    return {key for key in parts[0] if len({of.get(key) for of in parts}) == 1}
