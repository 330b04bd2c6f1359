"""`--against OLD NEW`: two runs, configuration by configuration."""

from typing import NamedTuple, Optional

from . import words
from .intervals import NO_INTERVAL, OF_MEAN, RANGE, ratio_interval
from .records import UsageError
from .tables import Table

PASS, FAIL, INCONCLUSIVE = 0, 1, 3
REGRESSION, UNSURE, ELSEWHERE = "REGRESSION", "slower, intervals overlap", "slower, other machine"
FASTER, PERHAPS_FASTER, SAME = "faster", "faster, intervals overlap", "within"


class Change(NamedTuple):
    name: str
    old: object  # intervals.Rate
    new: object
    ratio: float  # new / old images/s, of the medians
    low: Optional[float]  # of the ratio
    high: Optional[float]
    efficiency: Optional[float]  # points by which the efficiency against none moved
    accuracy: Optional[float]  # points by which the best validation accuracy moved
    verdict: str


class Comparison:
    """What two runs have in common. Configurations are of one machine and number of nodes. Where
    all of OLD is of one machine and all of NEW of another, the two machines are compared."""

    def __init__(self, old, new, threshold):
        self.old, self.new, self.threshold = old, new, threshold
        machines = [machines_of(old), machines_of(new)]
        self.one_each = [len(names) for names in machines] == [1, 1]
        self.two_machines = self.one_each and machines[0] != machines[1]
        self.before, self.after = self.rated(old), self.rated(new)
        self.changes = [self.change(key) for key in self.before if key in self.after]
        self.incomparable = [key for key in self.after
                             if key not in self.before and self.alike(key, self.before)]

    def rated(self, summary):
        return {(conditions._replace(machine="") if self.two_machines else conditions, strategy):
                measured for (conditions, strategy), measured in summary.measured.items()
                if measured.rate}

    @staticmethod
    def alike(key, others):
        """Those that differ from it in nothing but machine and nodes."""
        def anywhere(key):
            return key[0]._replace(machine="", nodes=0), key[1]
        return [other for other in others if anywhere(other) == anywhere(key)]

    def change(self, key):
        before, after = self.before[key], self.after[key]
        ratio = after.rate.median / before.rate.median
        low, high = ratio_interval(before.rate, after.rate)
        return Change(self.name(key), before.rate, after.rate, ratio, low, high,
                      points(self.old.efficiency_vs_none(before),
                             self.new.efficiency_vs_none(after)),
                      points(before.best_accuracy, after.best_accuracy),
                      self.verdict(ratio, low, high))

    def verdict(self, ratio, low, high):
        """Without an interval the threshold alone decides."""
        if ratio < 1 - self.threshold / 100:
            if self.two_machines:
                return ELSEWHERE
            return UNSURE if high is not None and high >= 1 else REGRESSION
        if ratio > 1 + self.threshold / 100:
            return PERHAPS_FASTER if low is not None and low <= 1 else FASTER
        return SAME

    def name(self, key):
        """The heading names the machines, where each side has one."""
        conditions, strategy = key
        return f"{strategy}, {words.setting(conditions, {'machine'} if self.one_each else ())}"

    @property
    def exit_code(self):
        verdicts = {change.verdict for change in self.changes}
        if REGRESSION in verdicts:
            return FAIL
        return INCONCLUSIVE if self.incomparable or verdicts & {UNSURE, ELSEWHERE} else PASS


def machines_of(summary):
    return {conditions.machine for (conditions, _), measured in summary.measured.items()
            if measured.rate}


def points(was, now):
    return None if None in (was, now) else 100 * (now - was)


def compared(old, new, threshold):
    """(table, exit code). Raises UsageError where nothing is in common."""
    found = Comparison(old, new, threshold)
    if not found.changes and not found.incomparable:
        raise UsageError("--against: OLD and NEW have no configuration in common, of those with "
                         "step or epoch records (collectives: collective_perf --reference)")
    table = Table(f"OLD against NEW{', two machines' if found.two_machines else ''}, "
                  f"threshold {threshold:g} %",
                  ["configuration", "OLD images/s", "low to high", "NEW images/s", "low to high",
                   "change", "its interval", "efficiency", "best accuracy", "verdict"])
    table.rows = [row(change, threshold) for change in found.changes]
    table.notes = [*rules(found), *left_out(found), *about("OLD", old), *about("NEW", new)]
    return table, found.exit_code


def row(change, threshold):
    return [change.name, words.rate(change.old.median), words.interval(change.old),
            words.rate(change.new.median), words.interval(change.new), signed(change.ratio),
            "no interval" if change.low is None else
            f"{signed(change.low)} to {signed(change.high)}",
            *("-" if moved is None else f"{moved:+.1f} points"
              for moved in (change.efficiency, change.accuracy)),
            f"within {threshold:g} %" if change.verdict == SAME else change.verdict]


def signed(ratio):
    return f"{100 * (ratio - 1):+.1f} %"


def rules(found):
    kinds = {rate.kind for change in found.changes for rate in (change.old, change.new)}
    said = ["its interval: from NEW's low over OLD's high to NEW's high over OLD's low; of two "
            "95 % intervals it is one of 95 % or more",
            "efficiency (images/s over those of none) and best accuracy: NEW less OLD; neither is "
            "part of the verdict"]
    if RANGE in kinds:
        said.append("low to high is the range where there are fewer than six repetitions, and the "
                    "change's interval then goes from range to range")
    if OF_MEAN in kinds:
        said.append("low to high of a single run is the interval of its mean step; another run may "
                    "differ by more")
    if "" in kinds:
        said.append(f"no interval: {NO_INTERVAL}; the change is judged by the threshold alone")
    verdicts = {change.verdict for change in found.changes}
    if UNSURE in verdicts:
        said.append(f"{UNSURE}: slower by more than the threshold, but perhaps by noise: "
                    "inconclusive, repeat the runs")
    if ELSEWHERE in verdicts:
        said.append(f"{ELSEWHERE}: inconclusive, as the machine may be the reason")
    return said


def left_out(found):
    for key in found.incomparable:
        others = words.listed(place(of) for of, _ in found.alike(key, found.before))
        yield (f"not comparable, inconclusive: {found.name(key)}: OLD on {others}, "
               f"NEW on {place(key[0])}")
    for name, one, other in (("OLD", found.before, found.after),
                             ("NEW", found.after, found.before)):
        yield from (f"only in {name}: {found.name(key)}" for key in one
                    if key not in other and key not in found.incomparable)


def place(conditions):
    return " of ".join(filter(None, (words.count(conditions.nodes, "node"), conditions.machine)))


def about(name, summary):
    crashed = [run for run in summary.runs if run.end is None]
    failed = [run for run in summary.runs if run.end and run.end.get("exit_code")]
    yield (f"{name}: {words.listed(sorted({run.machine for run in summary.runs}))}, "
           f"{words.count(len(summary.runs), 'run')}" +
           (f", {len(crashed)} of them crashed (no end record)" if crashed else "") +
           (f", {len(failed)} of them failed (see its report)" if failed else ""))
