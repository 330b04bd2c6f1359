"""Tables of strategies, for text, HTML and CSV alike."""

from typing import Callable, NamedTuple, Optional

from . import intervals, words
from .intervals import distinct
from .records import number
from .summary import TERMS, median_of, ranked


class Column(NamedTuple):
    """A share is a fraction, from 0 to 1, in `of` and in CSV files; `show` makes a percentage of it."""
    head: str
    of: Callable  # the value for a row's object, of an interval two; None: not measured
    show: Callable = str
    unit: str = ""  # of the value, where `show` is not one of UNITS
    csv: Optional[str] = None  # name in CSV files, if not the heading

    def csv_heads(self, ends):
        """With the unit."""
        unit = self.unit or UNITS.get(self.show, "")
        name = self.head if self.csv is None else self.csv
        if unit == FRACTION:
            name = name.replace("%", "").strip()
        unit = f" ({unit})" if unit and unit not in name.split() else ""
        return [f"{name} {end}".strip() + unit for end in ends]


class Table:
    """The first column names the row; the others are figures. Columns without any are left out,
    those of zeros too where `zeros` is false."""

    def __init__(self, name, title, columns, things, notes=(), zeros=True):
        self.name, self.title, self.notes = name, title, list(notes)
        found = [(column, [column.of(thing) for thing in things]) for column in columns]
        found = [(column, values) for at, (column, values) in enumerate(found)
                 if at == 0 or any(value not in (None, "") and (value != 0 or zeros)
                                   for value in values)]
        self.kept = [column for column, _ in found]
        self.columns = [column.head for column in self.kept]
        self.values = [list(row) for row in zip(*(values for _, values in found))]
        self.rows = [["-" if value is None else column.show(value)
                      for column, value in zip(self.kept, row)] for row in self.values]

    def figures(self):
        """[{CSV heading: value}], a dict for each row, with an interval in two columns."""
        intervals_at = {at for row in self.values for at, value in enumerate(row)
                        if isinstance(value, tuple)}
        heads = [column.csv_heads(("low", "high") if at in intervals_at else ("",))
                 for at, column in enumerate(self.kept)]
        return [{head: end for names, value in zip(heads, row)
                 for head, end in zip(names, value if isinstance(value, tuple) else
                                      [value] * len(names))} for row in self.values]


def figure(digits, unit=""):
    """A value as text with these decimal places."""
    return lambda value: words.unsigned_zero(f"{value:.{digits}f}") + unit


ms = figure(2)
FRACTION = "fraction"


def share(ratio):
    return words.percent(ratio)


def signed(ratio):
    return f"{100 * ratio:+.1f} %"


def points(difference):
    return f"{100 * difference:+.1f} points"


UNITS = {ms: "ms", share: FRACTION, signed: FRACTION, points: FRACTION, words.rate: "images/s",
         words.ends: "images/s", words.size: "bytes"}


def fastest_first(rows):
    return sorted(rows, key=lambda m: -m.rate.median if m.rate else 0)


def by_conditions(summary, name, title, wanted, columns, notes=lambda rows: (), order=list, zeros=True):
    """[Table]: one for each set of conditions under which there is something to compare, one for
    all configurations that stand alone. The columns are of a Measured, the notes of a table's rows."""
    def table(of, rows, strategy):
        rows = order(rows)
        return Table(name, ": ".join(filter(None, (title, of))) or name, [Column("strategy", strategy), *columns], rows, notes(rows),
                     zeros)
    groups = [(conditions, [m for m in group if wanted(m)])
              for conditions, group in summary.groups]
    tables, alone = [], []
    for conditions, rows in groups:
        if len(rows) > 1 or rows and len(groups) == 1:
            tables.append(table(summary.heading(conditions), rows, lambda m: m.strategy))
        else:
            alone += rows
    return tables + ([table("other configurations", alone, summary.named)] if alone else [])


def strategies(summary):
    """The table that answers most questions."""
    tables = by_conditions(summary, "strategies", "", lambda m: m.rate and not m.conditions.setting, [
        Column("images/s", lambda m: m.rate and m.rate.median, words.rate),
        Column("low-high", interval_of, words.ends),
        Column("step ms", lambda m: m.step_ms, ms),
        Column("% none", summary.efficiency_vs_none, lambda ratio: f"{100 * ratio:.1f}", FRACTION),
        Column("exposed", lambda m: m.communication.get("exposed"), ms),
        Column("hidden", lambda m: m.communication.get("hidden"), ms),
        Column("GiB", lambda m: m.peak_memory and m.peak_memory / 2 ** 30, figure(2)),
        Column("MHz", lambda m: m.lowest("sm_clock_mhz"), figure(0)),
        Column("W", lambda m: m.highest("power_w"), figure(0)),
        Column("limit", limited_by),
        Column("weights", lambda m: m.verdict_of_weights),
    ], lambda rows: [*rate_notes(summary, rows), *server_notes(rows), *ratio_notes(summary, rows)], fastest_first)
    for table in [table for table in tables if {"MHz", "W"} & set(table.columns)][:1]:
        table.notes.append(
            "MHz, W: lowest SM clock and highest power of a rank; limit: what reduced the clocks")
    return tables


LIMITS = {"sw_power_cap": "power", "hw_power_brake": "power", "sw_thermal_slowdown": "heat",
          "hw_thermal_slowdown": "heat"}


def limited_by(measured):
    """What reduced the clocks in the timed windows; None where no clocks were recorded."""
    if not any(key in step for step in measured.steps
               for key in ("sm_clock_mhz", "power_w", "throttle_reasons")):
        return None
    names = reasons_of(measured.steps, "throttle_reasons")
    return ", ".join(dict.fromkeys(LIMITS.get(name, name) for name in names)) or "-"


def reasons_of(records, key):
    """Throttle reasons, which are texts with blanks between them, empty where there were none, or
    lists of such: all that are in the records, and that some are unknown where a key is absent or
    null."""
    values = []
    for record in records:
        value = record.get(key)
        values += value if isinstance(value, list) else [value]
    named = sorted({reason for value in values for reason in (value or "").split()})
    return named + ["unknown"] * (None in values)


def server_notes(rows):
    found = {}
    for m in rows:
        if m.ranks_computing < m.conditions.world_size:
            found.setdefault((m.ranks_computing, m.conditions.world_size), {})[m.strategy] = None
    for (computing, held), strategies_ in found.items():
        yield f"{', '.join(strategies_)}: {computing} of {held} ranks compute"


def ratio_notes(summary, rows):
    """Where "% none" is not the ratio of the medians in the table."""
    for m in rows:
        recorded, bound = summary.efficiency_vs_none(m), summary.bound(m)
        if bound and m.rate and recorded is not None and \
                abs(recorded - m.rate.median / bound.median) >= 0.0005:
            yield ("% none: median of the ratios within each round, in which both were measured; not the "
                   "ratio of the two medians")
            return


def settings(summary):
    """bin/compare --settings: what each changes in plain ddp, a table for each set of conditions."""
    found = {}
    for conditions, group in summary.groups:
        if conditions.setting:
            found.setdefault(conditions._replace(setting=""), []).extend(
                measured for measured in group if measured.rate)
    return [Table("settings", ": ".join(filter(None, ("ddp's settings", summary.name(conditions)))), [
        Column("setting", lambda m: m.conditions.setting),
        Column("images/s", lambda m: m.rate.median, words.rate),
        Column("low-high", interval_of, words.ends, csv=""),
        Column("of plain ddp", lambda m: median_of(m.steps, "speedup_vs_plain"), share),
        Column("step ms", lambda m: m.step_ms, ms),
        Column("exposed", lambda m: m.communication.get("exposed"), ms),
        Column("hidden", lambda m: m.communication.get("hidden"), ms),
        Column("certificate", lambda m: m.verdict_of_weights),
    ], fastest_first(rows)) for conditions, rows in found.items()]


def interval_of(measured):
    rate = measured.rate
    return None if rate is None or rate.low is None else (rate.low, rate.high)


def rate_notes(summary, rows):
    """What low-high is; where it is not the same for all rows, of which strategies."""
    of = {}
    strategies_ = [m.strategy for m in rows]
    for m in rows:
        name = m.strategy if strategies_.count(m.strategy) == 1 else summary.named(m)
        of.setdefault(m.rate.kind, {})[name] = None
    ranges = {"runs" if m.steps else "epochs" for m in rows if m.rate.kind == intervals.RANGE}
    said = {intervals.RANGE: f"{{}}: range of fewer than six {' or '.join(sorted(ranges))}",
            intervals.OF_MEDIAN: f"{{}}: {intervals.OF_MEDIAN}",
            intervals.OF_MEAN: f"{{}}: {intervals.OF_MEAN} over the steps of a single run; "
                               "another run may differ by more",
            "": f"{{}} unknown: {intervals.NO_INTERVAL}"}
    between = "; " if any(", " in name for names in of.values() for name in names) else ", "
    return [text.format(f"low-high of {between.join(of[kind])}" if len(of) > 1 else "low-high") for kind, text in said.items() if kind in of]


def trainings(summary):
    return by_conditions(summary, "trainings", "training", lambda m: m.histories, [
        Column("images/s", lambda m: m.rate and m.rate.median, words.rate),
        Column("mean", lambda m: m.rate and m.rate.mean, words.rate),
        Column("s/epoch", lambda m: m.epoch_s, words.seconds),
        Column("epochs", lambda m: median_of([h[-1] for h in m.histories], "epoch"), figure(0)),
        Column("best accuracy", lambda m: m.best_accuracy, lambda v: words.percent(v, 2), FRACTION),
        Column("at epoch", lambda m: median_of(m.best_epochs, "epoch"), figure(0)),
        Column("train loss", lambda m: median_of([h[-1] for h in m.histories], "train_loss"), "{:.4g}".format),
        Column("waited for data", waited_for_data, share),
    ], first_epochs, fastest_first)


def evaluations(summary):
    found = [(weights, record, measured) for measured in summary.measured.values() for weights, record in measured.evaluations]
    return [Table("evaluations", "evaluation", [
        Column("weights", lambda one: one[0]),
        Column("configuration", lambda one: summary.label(one[2].conditions)),
        Column("accuracy", lambda one: number(one[1], "val_top1"), lambda v: words.percent(v, 2), FRACTION),
        Column("top-5", lambda one: number(one[1], "val_top5"), lambda v: words.percent(v, 2), FRACTION),
        Column("loss", lambda one: number(one[1], "val_loss"), "{:.4g}".format),
        Column("images", lambda one: number(one[1], "validated_images"), figure(0)),
    ], found)] if found else []


def waited_for_data(measured):
    """The share of its epochs in which rank 0 waited for images."""
    known = [epoch for epoch in measured.timed_epochs()
             if epoch.get("epoch_s") and epoch.get("input_stall_ms") is not None]
    time = sum(epoch["epoch_s"] for epoch in known)
    return sum(epoch["input_stall_ms"] for epoch in known) / 1e3 / time if known else None


def first_epochs(rows):
    for measured in rows:
        first = median_of([epoch for h in measured.histories for epoch in h[:1]], "epoch_s")
        others = median_of([epoch for h in measured.histories for epoch in h[1:]], "epoch_s")
        if first and others and first > 1.2 * others:
            yield (f"{measured.strategy}: the first epoch took {words.seconds(first)} s, the "
                   f"median of the others is {words.seconds(others)} s; the means include both")


SHORT = {"exposed_comm_ms": "exposed"}  # of summary.TERMS


def breakdowns(summary):
    """Where the time of a step goes, ms."""
    terms = {**{key: SHORT.get(key, term) for key, term in TERMS.items()}, "step_ms": "traced step",
             "hidden_comm_ms": "hidden"}
    tables = by_conditions(summary, "breakdown", "step breakdown, ms", lambda m: m.breakdowns, [
        Column(head, lambda m, key=key: term_of(m, key), ms) for key, head in terms.items()], tracing, zeros=False)
    if tables:
        tables[-1].notes.append(
            "the round with the median step. exposed: the compute stream exchanges or waits; "
            "interference: slower compute during an exchange; residual: unexplained, below 0 where the "
            "terms add up to more than the step; hidden: exchanges during compute")
    return tables


def tracing(rows):
    """How much longer the traced steps are than the timed ones."""
    longer = [m.term("step_ms") / m.step_ms - 1 for m in rows if m.term("step_ms") and m.step_ms]
    if longer:
        ends = list(dict.fromkeys(f"{100 * end:+.1f}" for end in (min(longer), max(longer))))
        yield (f"traced step: of the rounds that record the time line; {' to '.join(ends)} % compared with "
               "the timed step (step ms)")


OF_EXCHANGES = ("hidden_comm_ms", "none_step_ms", "comm_alone_ms", "serial_step_ms")


def term_of(measured, key):
    """A term in ms; of none, which has no exchanges, no figures of them."""
    return None if measured.strategy == "none" and key in OF_EXCHANGES else measured.term(key)


def throughputs(summary):
    """What the first table leaves out of the throughput."""
    return by_conditions(summary, "throughput", "throughput", lambda m: m.rate, [
        Column("median", lambda m: m.rate.median, words.rate),
        Column("mean", lambda m: m.rate.mean, words.rate),
        Column("s/epoch", lambda m: m.epoch_s, words.seconds),
        Column("samples", samples),
        Column("slower by", lambda m: slower_by(summary, m), share),
        Column("distinct", lambda m: from_fastest(summary, m)),
        Column("of all-reduce", lambda m: of_all_reduce(summary, m), share),
        Column("of N x 1 rank", lambda m: summary.efficiency_vs_single(m)
               if m.conditions.world_size > 1 else None, share),
    ], lambda rows: ["distinct: from the fastest; no: the intervals overlap; too few: more runs are needed to decide"] *
        (len(rows) > 1), fastest_first)


def samples(measured):
    if measured.steps:
        return words.count(len(measured.steps), "run")
    return words.count(len(measured.timed_epochs()), "epoch")


def fastest_rate(summary, measured):
    """Rate of the fastest strategy under the same conditions; None for itself, and for none."""
    order = ranked(dict(summary.groups)[measured.conditions])
    return order[0].rate if measured in order[1:] else None


def slower_by(summary, measured):
    fast = fastest_rate(summary, measured)
    return fast and 1 - measured.rate.median / fast.median


def from_fastest(summary, measured):
    fast = fastest_rate(summary, measured)
    return fast and {True: "yes", False: "no", None: "too few"}[distinct(fast, measured.rate)]


def of_all_reduce(summary, measured):
    other = summary.same(measured, "all-reduce")
    return measured.rate.median / other.rate.median if other and other.rate and \
        measured.strategy != "none" else None


def scalings(summary):
    """Throughput over ranks; the share is of a rank that computes, so a server is left out."""
    series = summary.series()
    ranks = sorted({m.conditions.world_size for points in series.values() for m in points})
    if not series:
        return []

    def on(points, n):
        return next((m.rate.median for m in points if m.conditions.world_size == n), None)

    def change(points):
        first, last = (m.rate.median / m.ranks_computing for m in (points[0], points[-1]))
        return last / first - 1
    return [Table("scaling", "images/s over ranks", [
        Column("strategy", lambda item: ", ".join(filter(None, (
            item[0][1], summary.name(item[0][0], without=("world_size",)))))),
        *(Column(words.count(n, "rank"), lambda item, n=n: on(item[1], n), words.rate)
          for n in ranks),
        Column("per computing rank", lambda item: change(item[1]), signed),
    ], list(series.items()), ["per computing rank: change of the throughput per rank that "
                              "computes, from the fewest ranks to the most"])]


def front(summary):
    """Those that stand in the report itself, as far as there is room."""
    return [*strategies(summary), *settings(summary), *trainings(summary), *evaluations(summary), *breakdowns(summary)]
