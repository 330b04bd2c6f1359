"""Tables, for text and HTML alike."""

import statistics
from dataclasses import dataclass, field

from . import what_if, words
from .intervals import NO_INTERVAL, OF_MEAN, OF_MEDIAN, RANGE
from .records import number
from .summary import TERMS, highest, median_of


@dataclass
class Table:
    title: str
    columns: list  # the first is text, the others are figures
    rows: list = field(default_factory=list)
    notes: list = field(default_factory=list)


def methods(summary):
    """A table for each set of conditions under which methods can be compared, the fastest first;
    one for all that stand alone."""
    groups = [(conditions, [m for m in group if m.rate or m.histories])
              for conditions, group in summary.groups()]
    tables, alone = [], []
    for conditions, rows in groups:
        if len(rows) > 1 or rows and len(groups) == 1:
            rows.sort(key=lambda measured: -measured.rate.median if measured.rate else 0)
            tables.append(method_table(summary, summary.name(conditions) or
                                       words.setting(conditions), rows, lambda m: m.strategy))
        else:
            alone += rows
    if alone:
        tables.append(method_table(
            summary, "configurations with one method", alone,
            lambda m: ", ".join(filter(None, (m.strategy, summary.name(m.conditions))))))
    return tables


def method_table(summary, title, rows, name):
    table = Table(title, ["method", "mean images/s", "s/epoch", "best accuracy",
                          "median images/s", "low to high", "samples", "of none"])
    for measured in rows:
        rate, accuracy = measured.rate, measured.best_accuracy
        table.rows.append([
            name(measured), words.rate(rate and rate.mean), words.seconds(measured.epoch_s),
            words.percent(accuracy, 2), words.rate(rate and rate.median),
            words.interval(rate) if rate else "-",
            samples(measured), words.percent(summary.efficiency_vs_none(measured))])
    table.notes = method_notes(rows)
    return table


def samples(measured):
    if measured.steps:
        return words.count(len(measured.steps), "run")
    return words.count(len(measured.timed_epochs()), "epoch")


def method_notes(rows):
    rated = [measured for measured in rows if measured.rate and measured.rate.kind]
    of = {RANGE: "range, where samples are fewer than six", OF_MEDIAN: OF_MEDIAN,
          OF_MEAN: f"{OF_MEAN} over the steps of the one run; another may differ by more"}
    notes = [f"low to high: {of[kind]}" for kind in sorted({m.rate.kind for m in rated})]
    if any(measured.rate and not measured.rate.kind for measured in rows):
        notes.append(f"no low to high: {NO_INTERVAL}")
    for measured in rows:
        first = median_of([epoch for h in measured.histories for epoch in h[:1]], "epoch_s")
        others_ = median_of([epoch for h in measured.histories for epoch in h[1:]], "epoch_s")
        if first and others_ and first > 1.2 * others_:
            notes.append(f"{measured.strategy}: the first epoch took {words.seconds(first)} s, the "
                         f"median of the others is {words.seconds(others_)} s; the means hold both")
    return notes


def breakdowns(summary):
    """Where the time of a step goes, ms: a table for each set of conditions under which strategies
    stand side by side, one for those that stand alone."""
    groups = [(conditions, [measured for measured in group if measured.breakdowns])
              for conditions, group in summary.groups()]
    tables = [breakdown_table(summary.name(conditions), rows, lambda measured: measured.strategy)
              for conditions, rows in groups if len(rows) > 1]
    alone = [measured for _, rows in groups if len(rows) == 1 for measured in rows]
    if alone:
        tables.append(breakdown_table("", alone, lambda measured: ", ".join(filter(None, (
            measured.strategy, summary.name(measured.conditions))))))
    if tables:
        tables[-1].notes = BREAKDOWN_NOTES
    return tables


LADDER = {"hidden_comm_ms": "hidden", "none_step_ms": "none's step",
          "comm_alone_ms": "exchange alone", "serial_step_ms": "serial"}
SHORT = {"exposed_comm_ms": "exposed"}  # of summary.TERMS
SHARES = {"interference_ms": "interference_slowdown", "residual_ms": "residual"}
BREAKDOWN_NOTES = [
    "of the round with the median step; step: what stands left of it together; exposed: the stream "
    "that computes exchanges or waits for an exchange; interference in brackets: by how much "
    "computing is slower while an exchange goes on; residual in brackets: of the step",
    "hidden: exchanges go on while the rank computes; exchange alone: without computing; serial: "
    "the step with the same exchanges in turn with computing"]


def breakdown_table(title, rows, name):
    """Without the columns in which there is nothing."""
    heads = {**{key: SHORT.get(key, term) for key, term in TERMS.items()}, "step_ms": "step",
             **LADDER}
    cells = {key: [milliseconds(measured, key) for measured in rows] for key in heads}
    shown = {key: found for key, found in cells.items()
             if {cell.split(" ")[0] for cell in found} - {"-", "0.00"}}
    table = Table("where a step's time goes, ms" + (f": {title}" if title else ""),
                  ["method", *(heads[key] for key in shown)])
    table.rows = [[name(measured), *(found[i] for found in shown.values())]
                  for i, measured in enumerate(rows)]
    return table


def milliseconds(measured, key):
    """A term with its share; a strategy that does not overlap has none of interference."""
    value = measured.term(key)
    if value is None or measured.strategy == "none" and key in LADDER:
        return "-"
    share = measured.term(SHARES[key]) if key in SHARES else None
    text = words.unsigned_zero(f"{value:.2f}")
    if share is None or key == "interference_ms" and value == 0:
        return text
    return f"{text} ({words.unsigned_zero(f'{100 * share:.1f}')} %)"


def winners(summary):
    """The map of the fastest strategies by batch and bandwidth."""
    tables = []
    for model in summary.models:
        grid = what_if.WinnerMap(model)
        if not grid.cells or not what_if.is_trusted(summary, model):
            continue
        name = summary.name(model.conditions)
        table = Table("fastest strategy by the step model, by the bandwidth of every rank's link" +
                      (f": {name}" if name else ""),
                      ["batch", *(grid.bandwidth_name(gbs) for gbs in grid.bandwidths)])
        table.rows = [[str(batch), *(grid.name(batch, gbs) for gbs in grid.bandwidths)]
                      for batch in grid.batches]
        table.notes = ["%: images/s over the second's; or another: less than "
                       f"{words.percent(what_if.TIE, 2)} apart"]
        table.notes += what_if.doubt(summary, model)
        tables.append(table)
    return tables


def collectives(summary):
    """Latency at the smallest size that moves anything and the highest busbw, of each operation
    and way of running."""
    table = Table("collectives", ["operation", "ranks", "smallest, median us", "highest busbw GB/s",
                                  "at", "wrong elements"])
    found = {}
    for run in summary.runs:
        for record in run.of("collective"):
            if None not in (number(record, "bytes"), number(record, "busbw_gbs")):
                key = way_of_running(run, record), record.get("world_size", 0)
                found.setdefault(key, []).append(record)
    for (way, ranks), records in sorted(found.items(), key=lambda item: str(item[0])):
        least = min((record["bytes"] for record in records if record["bytes"] > 0), default=None)
        latency = median_of([r for r in records if r["bytes"] == least], "time_us_p50")
        fastest = max(records, key=lambda record: record["busbw_gbs"])
        wrong = [number(r, "wrong_elements") for r in records]
        wrong = [elements for elements in wrong if elements is not None]
        table.rows.append([
            way, str(ranks), "-" if latency is None else f"{latency:.2f} at {words.size(least)}",
            f"{fastest['busbw_gbs']:.4g}", words.size(fastest["bytes"]),
            f"{sum(wrong):.0f}" if wrong else "not checked"])
    return [table] if table.rows else []


def way_of_running(run, record):
    parts = [record.get("operation"), record.get("dtype"),
             "in place" if record.get("in_place") else "",
             str(record.get("launch_mode", "")).replace("_", " "),
             f"registration {record['registration']}" if record.get("registration") else "",
             record.get("transport"), run.machine]
    return ", ".join(part for part in parts if part)


def links(summary):
    table = Table("links", ["direction", "links", "median GB/s", "slowest GB/s", "slowest",
                            "highest latency us"])
    kinds = {}
    for run in summary.runs:
        for link in run.of("link"):
            if number(link, "bandwidth_gbs") is not None:
                key = (f"{link.get('direction')}, {link.get('concurrency')}, "
                       f"{words.count(link.get('world_size'), 'rank')}, {run.machine}")
                kinds.setdefault(key, []).append(link)
    for key, records in kinds.items():
        slowest = min(records, key=lambda link: link["bandwidth_gbs"])
        latencies = [number(link, "latency_us") for link in records]
        latencies = [latency for latency in latencies if latency is not None]
        table.rows.append([
            key, str(len(records)),
            f"{statistics.median(link['bandwidth_gbs'] for link in records):.4g}",
            f"{slowest['bandwidth_gbs']:.4g}", f"{slowest.get('from')} to {slowest.get('to')}",
            f"{max(latencies):.4g}" if latencies else "-"])
    return [table] if table.rows else []


def splits(summary):
    """All-reduces within a part of the ranks: medians over repetitions."""
    table = Table("all-reduce within rails and nodes", ["part", "ranks", "bytes", "busbw GB/s"])
    found = {}
    for run in summary.runs:
        for record in run.of("split"):
            if number(record, "busbw_gbs") is not None:
                key = (f"{record.get('scope')} {record.get('name')}, {run.machine}",
                       record.get("world_size"), number(record, "bytes") or 0)
                found.setdefault(key, []).append(record["busbw_gbs"])
    table.rows = [[part, str(ranks), words.size(size), f"{statistics.median(rates):.4g}"]
                  for (part, ranks, size), rates in found.items()]
    return [table] if table.rows else []


def health(summary):
    """What each GPU went through: of the samples, else of the throughput runs' windows."""
    table = Table("GPUs", ["host and GPU", "samples", "highest C", "highest W", "lowest SM MHz",
                           "mean utilisation %", "clocks held back by"])
    samples_of = {}
    for record in summary.records("health"):
        samples_of.setdefault(f"{record.get('host')} GPU {record.get('gpu')}", []).append(record)
    for gpu, records in samples_of.items():
        def values(key, records=records):
            return [v for v in (number(record, key) for record in records) if v is not None]
        table.rows.append([gpu, str(len(records)), *(
            f"{of(values(key)):.0f}" if values(key) else "-" for of, key in (
                (max, "temperature_c"), (max, "power_w"), (min, "sm_clock_mhz"),
                (statistics.fmean, "utilisation"))), held_back(records, "reasons")])
    return [table] if table.rows else []


def held_back(records, key):
    """Throttle reasons, which are texts with blanks between them, empty where there were none, or
    lists of such: all that are in the records, and that some are unknown where a key is absent or
    null."""
    values = []
    for record in records:
        value = record.get(key)
        values += value if isinstance(value, list) else [value]
    named = sorted({reason for value in values for reason in (value or "").split()})
    return ", ".join(named + ["unknown"] * (None in values)) or "nothing"


def step_conditions(summary):
    """What the GPUs did in the timed windows of the throughput runs."""
    table = Table("GPUs in the timed windows, the worst rank",
                  ["configuration", "peak memory", "C", "W", "J/image", "clocks held back by"])
    for measured in summary.measured.values():
        steps = measured.steps
        tops = [[highest(step, key) for step in steps] for key in ("temperature_c", "power_w")]
        if not any(top is not None for column in tops for top in column):
            continue
        joules = [number(step, "joules_per_image") for step in steps]
        joules = [value for value in joules if value is not None]
        table.rows.append([
            f"{measured.strategy}, {summary.name(measured.conditions)}",
            words.size(measured.peak_memory) if measured.peak_memory else "-",
            *(f"{max(t for t in top if t is not None):.0f}"
              if any(t is not None for t in top) else "-" for top in tops),
            f"{statistics.median(joules):.3g}" if joules else "-",
            held_back(steps, "throttle_reasons")])
    return [table] if table.rows else []


def others(summary):
    """The tables behind the first: in text and page after the sentences."""
    return [table for make in (breakdowns, winners, collectives, links, splits, step_conditions,
                               health) for table in make(summary)]
