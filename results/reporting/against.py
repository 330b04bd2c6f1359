"""`--against OLD NEW`: two runs, configuration by configuration, collectives, links and parts of a job too: one rate for
each, with what it is of and where it was measured."""

import bisect
import math
import statistics
from typing import NamedTuple, Optional

from . import options, verdict, words
from .intervals import (AS_OTHER, NO_INTERVAL, OF_MEAN, OF_MEDIAN, RANGE, SCATTER, Rate, median_interval, rate_of,
                        ratio_interval, scattered, with_interval, without_outliers)
from .records import NotComparable, UsageError, machines_of, number, numbers
from .summary import Measured, Summary
from .tables import FRACTION, Column, Table, points, signed
from .trainings import STOPPED, exit_code

MANY = 40  # rows: of more, only those beyond the threshold are shown
FEW_NAMED = 10  # of what has nothing to be compared with, of each kind
MOST_NODES = 16  # that are named
MOST_CHANCE = 0.05  # that rows are so slow by chance


# ---- what is compared ----------------------------------------------------------------------------

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
UNNAMED = ("backend", "reduction", "root", "aggregate", "blocking", "average", "mpi_algorithm", "split", "traffic", "cta_policy")


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


# ---- two runs ------------------------------------------------------------------------------------

class Change(NamedTuple):
    old: Quantity  # their rates without outliers
    new: Quantity
    outliers: tuple  # (of OLD, of NEW): rates of single runs
    ratio: float  # new / old, of the medians
    low: Optional[float]  # of the ratio
    high: Optional[float]
    outcome: str
    words: str
    kinds: set  # of the intervals that it is judged by
    chance: float  # that a row is slow whose samples are all of one distribution


class Comparison:
    """What two runs have in common, of one kind. Quantities are of one machine and number of nodes.
    Where all of OLD is of one machine and all of NEW of another, the two machines are compared."""

    def __init__(self, kind, old, new, two_machines, threshold):
        self.kind, self.two_machines, self.threshold = kind, two_machines, threshold
        before, after = self.keyed(old), self.keyed(new)
        self.shared = shared_keys([*old, *new])
        self.several_machines = len({q.machine for q in [*old, *new]}) > 1 and not two_machines
        both = [(before[key], after[key]) for key in before if key in after]
        self.changes = without_chance([self.change(*pair) for pair in both])
        known = {quantity.what for quantity in old}
        self.incomparable = [quantity for key, quantity in after.items()
                             if key not in before and quantity.what in known]
        self.only = [("OLD", quantity) for key, quantity in before.items() if key not in after]
        self.only += [("NEW", quantity) for key, quantity in after.items()
                      if key not in before and quantity.what not in known]
        self.old, self.new = old, new

    def keyed(self, several):
        return {(q.what, "" if self.two_machines else q.machine, q.nodes): q for q in several}

    def change(self, old, new):
        (was, far_old), (now, far_new) = without_outliers(old.rate_of_runs), without_outliers(new.rate_of_runs)
        # Where nothing else is known, what is far from the others belongs to how far runs differ.
        was, now = (with_interval(one, other if one.low is not None else all_of_other) for one, other, all_of_other in (
            (was, now, new.rate_of_runs), (now, was, old.rate_of_runs)))
        ratio = now.median / was.median
        low, high = ratio_interval(was, now)
        outcome, said = verdict.of_change(ratio, low, high, self.threshold, self.two_machines)
        if outcome == verdict.PASS and any(
                value < was.median * (1 - self.threshold / 100) for value in far_new):
            outcome, said = verdict.INCONCLUSIVE, verdict.UNEVEN
        return Change(old._replace(rate=without_outliers(old.rate)[0]), new._replace(rate=without_outliers(new.rate)[0]),
                      (far_old, far_new), ratio, low, high, outcome, said, {was.kind, now.kind},
                      0 if self.kind == "steps" else chance_of(was, now))

    def outcomes(self):
        return {change.outcome for change in self.changes} | (
            {verdict.INCONCLUSIVE} if self.incomparable else set())


def chance_of(old, new):
    """The probability that all samples of OLD are above all of NEW, where both are of one distribution."""
    if RANGE not in (old.kind, new.kind) or {SCATTER, AS_OTHER} & {old.kind, new.kind}:
        return 0
    return 1 / math.comb(old.samples + new.samples, old.samples)


def without_chance(changes):
    """A row that is slow by its few samples alone may be so by chance, among many; of k such rows together the probability
    is at most rows x chance / k, however they depend on one another (Markov's inequality)."""
    slow = sorted(change.chance for change in changes if change.outcome == verdict.FAIL)

    def may_be_chance(change):
        return change.outcome == verdict.FAIL and \
            len(changes) * change.chance / bisect.bisect(slow, change.chance) > MOST_CHANCE
    return [change._replace(outcome=verdict.INCONCLUSIVE, words=verdict.FEW) if may_be_chance(change) else change
            for change in changes]


def difference(was, now):
    return None if None in (was, now) else now - was


def compared(old, new, threshold, everything=False):
    """([Table], exit code). Raises NotComparable where nothing is in common."""
    old, again = without_runs_of(old, new)
    before, after = quantities(old), quantities(new)
    machines = [sorted({q.machine for several in side.values() for q in several})
                for side in (before, after)]
    two_machines = [len(names) for names in machines] == [1, 1] and machines[0] != machines[1]
    found = [Comparison(kind, before[kind], after[kind], two_machines, threshold)
             for kind in KINDS if before[kind] and after[kind]]
    found = [one for one in found if one.changes or one.incomparable]
    if not found:
        raise NotComparable("--against: OLD and NEW have no configuration, collective or link in "
                            "common")
    outcomes = set().union(*(one.outcomes() for one in found))
    if is_doubtful(old, new):
        outcomes.add(verdict.INCONCLUSIVE)
    outcome = verdict.worst(outcomes)
    tables = [table_of(one, old, new, everything) for one in found]
    elsewhere = nodes_of(old) != nodes_of(new)
    tables[-1].notes += [*about("OLD", old, elsewhere), *about("NEW", new, elsewhere)]
    if elsewhere:
        tables[-1].notes.append("OLD and NEW are of different nodes: a difference may be that of the nodes")
    for key, (was, now) in options.between(old.runs, new.runs).items():
        tables[-1].notes.append(f"OLD and NEW differ in --{key.replace('_', '-')}: {', '.join(was)}; "
                                f"{', '.join(now)}")
    if again:
        tables[-1].notes.append(f"left out of OLD: {words.count(again, 'run')} that NEW has too")
    tables[-1].notes.append(f"Verdict: {outcome}")
    return tables, verdict.EXIT_CODES[outcome]


def is_doubtful(old, new):
    """Whether runs of NEW did not get to all, or ended otherwise than OLD's: what they lack might be
    slower. A program that judges nothing without a reference does so in both."""
    def of(run):
        return run.header.get("program"), exit_code(run)
    known = {of(one.run) for one in verdict.of_runs(old)}
    return any(exit_code(one.run) in (None, STOPPED) or of(one.run) not in known
               for one in verdict.of_runs(new))


def without_runs_of(old, new):
    """(OLD without the runs that NEW has too, how many they are)."""
    known = {run.identity for run in new.runs}
    kept = [run for run in old.runs if run.identity not in known]
    if not kept:
        raise UsageError("--against: OLD and NEW are the same runs")
    again = len(old.runs) - len(kept)
    return (Summary(kept) if again else old), again


def nodes_of(summary):
    return sorted({host for run in summary.runs for host in run.hosts})


def table_of(found, old, new, everything):
    shown, hidden = found.changes, []
    if len(shown) > MANY and not everything:
        hidden = [c for c in found.changes if c.words.startswith(verdict.SAME)]
        shown = [c for c in found.changes if not c.words.startswith(verdict.SAME)]
    show, unit = shown_by(found), KINDS[found.kind]

    def ends(rate):
        """Of steps only: the names of collectives need the width."""
        return None if rate.low is None or found.kind != "steps" else (rate.low, rate.high)

    def moved(key):
        return lambda change: difference(*(key(side) for side in (change.old, change.new)))
    efficiency = {id(q): s.efficiency_vs_none(q.measured) for s in (old, new) for q in
                  (c.old if s is old else c.new for c in shown) if q.measured}
    common = ", ".join(text for key, _, text in (shown or found.changes)[0].new.what
                       if key in found.shared and text) if found.changes else ""
    table = Table(f"against_{found.kind}", f"OLD against NEW, {KINDS[found.kind]}"
                  f"{', two machines' if found.two_machines else ''}, threshold "
                  f"{found.threshold:g} %{': ' + common if common else ''}", [
        Column("configuration" if found.kind == "steps" else found.kind[:-1],
               lambda c: place_and_name(found, c.new)),
        Column("OLD", lambda c: c.old.rate.median, show, unit),
        Column("low-high", lambda c: ends(c.old.rate), words.ends, csv="OLD"),
        Column("NEW", lambda c: c.new.rate.median, show, unit),
        Column("low-high ", lambda c: ends(c.new.rate), words.ends, csv="NEW"),
        Column("change", lambda c: c.ratio - 1, signed),
        Column("its interval", lambda c: (None, None) if c.low is None else (c.low - 1, c.high - 1),
               interval_words, FRACTION, csv="change"),
        Column("efficiency", moved(lambda q: efficiency.get(id(q))), points),
        Column("accuracy", moved(lambda q: q.measured and q.measured.best_accuracy), points),
        Column("verdict", lambda c: c.words)], shown)
    if hidden:
        table.notes.append(f"{len(hidden)} more within {found.threshold:g} % (median change "
                           f"{100 * (statistics.median(c.ratio for c in hidden) - 1):+.1f} %)")
    table.notes += [*rules(found), *left_out(found)]
    return table


def interval_words(ends):
    return "no interval" if None in ends else f"{100 * ends[0]:+.1f} to {100 * ends[1]:+.1f} %"


def place_and_name(found, quantity):
    """The machine is named where either side has several."""
    return quantity.name(found.shared) + (f", {quantity.machine}" if found.several_machines else "")


SLOWER = "slower by more than the threshold"
RULES = {  # by what is compared, the kind of an interval, or the words of a verdict
    "steps": "efficiency (images/s relative to none's) and accuracy (of the best epoch): NEW minus OLD; neither is part of "
             "the verdict",
    RANGE: "low-high: range of fewer than six runs or samples; the interval of the change is then computed from ranges",
    OF_MEAN: "low-high of a single run: 95 % interval of its mean step; another run may differ by more",
    SCATTER: f"a single measurement of a link is taken to be off by {SCATTER}",
    AS_OTHER: "a single measurement may be off as far as one more of those that it is compared with",
    verdict.SINGLE: f"{SLOWER}, but how far runs differ is not known: inconclusive; repeat the runs",
    verdict.UNSURE: f"{SLOWER}, but not distinguishable from noise: inconclusive; repeat the runs",
    verdict.UNEVEN: "single runs of NEW are slower by more than the threshold: inconclusive; repeat the runs",
    verdict.FEW: "among this many rows, chance alone makes as many this slow in more than "
                 f"{words.percent(MOST_CHANCE, 0)} of comparisons: inconclusive; take more samples",
    verdict.ELSEWHERE: "inconclusive: the machine may be the reason"}


def rules(found):
    kinds = set().union(*(change.kinds for change in found.changes))
    said = {change.words for change in found.changes}
    if kinds - {""}:
        yield ("its interval: from NEW's low / OLD's high to NEW's high / OLD's low; at least a 95 % "
               "interval where both are 95 % intervals")
    if "" in kinds:
        yield f"no interval: {NO_INTERVAL if found.kind == 'steps' else 'a single measurement without samples'}, or one on CPUs"
    for key, text in RULES.items():
        if key in {found.kind, *kinds, *said}:
            yield f"{key}: {text}" if key in said else text


def shown_by(found):
    return words.rate if found.kind == "steps" else "{:,.4g}".format


def left_out(found):
    show, unit = shown_by(found), KINDS[found.kind]
    for change in found.changes:
        for side, far, rate in zip(("OLD", "NEW"), change.outliers, (change.old.rate, change.new.rate)):
            if far:
                yield (f"{side} of {change.new.name(found.shared) or found.kind}: left out "
                       f"{words.listed(map(show, far))} {unit}, far from the median of "
                       f"{words.count(rate.samples + len(far), 'run')}, {show(rate.median)}")
    for quantity in found.incomparable[:FEW_NAMED]:
        others = words.listed(q.place for q in found.old if q.what == quantity.what)
        yield (f"not comparable, inconclusive: {quantity.name(found.shared)}: OLD on {others}, "
               f"NEW on {quantity.place}")
    if len(found.incomparable) > FEW_NAMED:
        yield f"not comparable, inconclusive: {len(found.incomparable) - FEW_NAMED} more"
    for side in ("OLD", "NEW"):
        only = [quantity for name, quantity in found.only if name == side]
        for quantity in only[:FEW_NAMED]:
            yield f"only in {side}: {quantity.name(found.shared)}, {quantity.machine}"
        if len(only) > FEW_NAMED:
            yield f"only in {side}: {len(only) - FEW_NAMED} more"


def about(name, summary, with_nodes):
    crashed = sum(run.end is None for run in summary.runs)
    failed = len({id(one.run) for one in verdict.of_runs(summary) if one.run.end is not None})
    nodes = nodes_of(summary)
    more = f" and {len(nodes) - MOST_NODES} more" if len(nodes) > MOST_NODES else ""
    yield (f"{name}: {words.listed(machines_of(summary.runs))}, "
           f"{words.count(len(summary.runs), 'run')}" +
           (f" on {', '.join(nodes[:MOST_NODES])}{more}" if with_nodes else "") +
           (f", {crashed} crashed (no end record)" if crashed else "") +
           (f", {failed} failed or incomplete (see its report)" if failed else ""))
