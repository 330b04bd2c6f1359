"""`--against OLD NEW`: two runs, configuration by configuration, collectives and links too."""

import math
import statistics
from typing import NamedTuple, Optional

from . import options, verdict, words
from .intervals import AS_OTHER, NO_INTERVAL, OF_MEAN, RANGE, SCATTER, ratio_interval, with_interval, without_outliers
from .quantities import KINDS, Quantity, quantities, shared_keys
from .records import NotComparable, UsageError, machines_of
from .summary import Summary
from .tables import FRACTION, Column, Table, points, signed
from .trainings import STOPPED, exit_code

MANY = 40  # rows: of more, only those beyond the threshold are shown
MOST_NODES = 16  # that are named
MOST_CHANCE = 0.05  # that one row of all is so slow by chance


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


class Comparison:
    """What two runs have in common, of one kind. Quantities are of one machine and number of nodes.
    Where all of OLD is of one machine and all of NEW of another, the two machines are compared."""

    def __init__(self, kind, old, new, two_machines, threshold):
        self.kind, self.two_machines, self.threshold = kind, two_machines, threshold
        before, after = self.keyed(old), self.keyed(new)
        self.shared = shared_keys([*old, *new])
        both = [(before[key], after[key]) for key in before if key in after]
        self.changes = [self.change(*pair, len(both)) for pair in both]
        known = {quantity.what for quantity in old}
        self.incomparable = [quantity for key, quantity in after.items()
                             if key not in before and quantity.what in known]
        self.only = [("OLD", quantity) for key, quantity in before.items() if key not in after]
        self.only += [("NEW", quantity) for key, quantity in after.items()
                      if key not in before and quantity not in self.incomparable]
        self.old, self.new = old, new

    def keyed(self, several):
        return {(q.what, "" if self.two_machines else q.machine, q.nodes): q for q in several}

    def change(self, old, new, rows):
        (was, far_old), (now, far_new) = without_outliers(old.rate_of_runs), without_outliers(new.rate_of_runs)
        # Where nothing else is known, what is far from the others belongs to how far runs differ.
        was, now = (with_interval(one, other if one.low is not None else all_of_other) for one, other, all_of_other in (
            (was, now, new.rate_of_runs), (now, was, old.rate_of_runs)))
        ratio = now.median / was.median
        low, high = ratio_interval(was, now)
        outcome, said = verdict.of_change(
            ratio, low, high, self.threshold, self.two_machines,
            self.kind != "steps" and by_chance(was, now, rows) > MOST_CHANCE)
        if outcome == verdict.PASS and any(
                value < was.median * (1 - self.threshold / 100) for value in far_new):
            outcome, said = verdict.INCONCLUSIVE, verdict.UNEVEN
        return Change(old._replace(rate=without_outliers(old.rate)[0]), new._replace(rate=without_outliers(new.rate)[0]),
                      (far_old, far_new), ratio, low, high, outcome, said, {was.kind, now.kind})

    def outcomes(self):
        return {change.outcome for change in self.changes} | (
            {verdict.INCONCLUSIVE} if self.incomparable else set())


def by_chance(old, new, rows):
    """The probability that at least one of `rows` rows has all samples of NEW above all of OLD."""
    if RANGE not in (old.kind, new.kind) or {SCATTER, AS_OTHER} & {old.kind, new.kind}:
        return 0
    return rows / math.comb(old.samples + new.samples, old.samples)


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
        hidden = [c for c in shown if c.words.startswith(verdict.SAME)]
        shown = [c for c in found.changes if c not in hidden]
    show, unit = words.rate if found.kind == "steps" else "{:.4g}".format, KINDS[found.kind]

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
    several = len({q.machine for q in [*found.old, *found.new]}) > 1 and not found.two_machines
    return quantity.name(found.shared) + (f", {quantity.machine}" if several else "")


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
    verdict.FEW: "among this many rows, chance alone makes one this slow in more than "
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


def left_out(found):
    unit = KINDS[found.kind]
    for change in found.changes:
        for side, far, rate in zip(("OLD", "NEW"), change.outliers, (change.old.rate, change.new.rate)):
            if far:
                yield (f"{side} of {change.new.name(found.shared) or found.kind}: left out "
                       f"{words.listed(f'{value:,.4g}' for value in far)} {unit}, far from the median of "
                       f"{words.count(rate.samples + len(far), 'run')}, {rate.median:,.4g}")
    for quantity in found.incomparable:
        others = words.listed(q.place for q in found.old if q.what == quantity.what)
        yield (f"not comparable, inconclusive: {quantity.name(found.shared)}: OLD on {others}, "
               f"NEW on {quantity.place}")
    for side in ("OLD", "NEW"):
        only = [quantity for name, quantity in found.only if name == side]
        for quantity in only[:MANY // 4]:
            yield f"only in {side}: {quantity.name(found.shared)}, {quantity.machine}"
        if len(only) > MANY // 4:
            yield f"only in {side}: {len(only) - MANY // 4} more"


def about(name, summary, with_nodes):
    crashed = sum(run.end is None for run in summary.runs)
    failed = sum(one.run.end is not None for one in verdict.of_runs(summary))
    nodes = nodes_of(summary)
    more = f" and {len(nodes) - MOST_NODES} more" if len(nodes) > MOST_NODES else ""
    yield (f"{name}: {words.listed(machines_of(summary.runs))}, "
           f"{words.count(len(summary.runs), 'run')}" +
           (f" on {', '.join(nodes[:MOST_NODES])}{more}" if with_nodes else "") +
           (f", {crashed} crashed (no end record)" if crashed else "") +
           (f", {failed} failed or incomplete (see its report)" if failed else ""))
