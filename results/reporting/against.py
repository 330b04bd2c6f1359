"""`--against OLD NEW`: two runs, configuration by configuration."""

from typing import NamedTuple, Optional

from . import words
from .records import UsageError
from .tables import Table

FASTER, SLOWER, UNSURE, SAME = "faster", "REGRESSION", "slower, intervals overlap", "within"


class Change(NamedTuple):
    name: str
    old: object  # intervals.Rate
    new: object
    ratio: float  # new / old images/s, of the medians
    low: Optional[float]  # of the ratio, from the ends of both intervals
    high: Optional[float]
    efficiency: Optional[float]  # points by which the efficiency against none moved
    accuracy: Optional[float]  # points by which the best validation accuracy moved
    verdict: str


def without_machine(summary):
    """{what is compared: Measured}. A run on other machines of the same kind is what NEW often is,
    so the machine does not part them; the heading names both."""
    return {(conditions._replace(machine="", nodes=1), strategy): measured
            for (conditions, strategy), measured in summary.measured.items() if measured.rate}


def changes(old, new, threshold):
    """Those of the configurations that both measured; threshold in percent."""
    before, after = without_machine(old), without_machine(new)
    found = []
    for key in before:
        if key in after:
            found.append(change(old, before[key], new, after[key], threshold))
    return found


def change(old, before, new, after, threshold):
    was, now = before.rate, after.rate
    ratio = now.median / was.median
    low = high = None
    if None not in (was.low, now.low):
        low, high = now.low / was.high, now.high / was.low
    return Change(f"{after.strategy}, {words.setting(after.conditions, without=('machine',))}",
                  was, now, ratio, low, high,
                  points(old.efficiency_vs_none(before), new.efficiency_vs_none(after)),
                  points(before.best_accuracy, after.best_accuracy),
                  verdict(ratio, high, low, threshold))


def points(was, now):
    return None if None in (was, now) else 100 * (now - was)


def verdict(ratio, high, low, threshold):
    """A regression is slower by more than the threshold, and not for noise: where both sides have
    an interval, the ratio's must lie below 1."""
    if ratio < 1 - threshold / 100:
        return SLOWER if high is None or high < 1 else UNSURE
    if ratio > 1 + threshold / 100 and (low is None or low > 1):
        return FASTER
    return SAME


def compared(old, new, threshold):
    """(text, whether anything regressed). Raises UsageError where nothing is in common."""
    found = changes(old, new, threshold)
    if not found:
        raise UsageError("--against: OLD and NEW have no configuration in common, of those with "
                         "step or epoch records (collectives: collective_perf --reference)")
    table = Table(f"OLD against NEW, threshold {threshold:g} %",
                  ["configuration", "OLD images/s", "low to high", "NEW images/s", "low to high",
                   "change", "its interval", "efficiency", "best accuracy", "verdict"])
    for one in found:
        table.rows.append([
            one.name, words.rate(one.old.median), words.interval(one.old),
            words.rate(one.new.median), words.interval(one.new),
            signed(one.ratio),
            "-" if one.low is None else f"{signed(one.low)} to {signed(one.high)}",
            *("-" if moved is None else f"{moved:+.1f} points"
              for moved in (one.efficiency, one.accuracy)),
            f"within {threshold:g} %" if one.verdict == SAME else one.verdict])
    table.notes = notes(old, new, found)
    return table, any(one.verdict == SLOWER for one in found)


def signed(ratio):
    return f"{100 * (ratio - 1):+.1f} %"


def notes(old, new, found):
    said = ["its interval: from NEW's low over OLD's high to NEW's high over OLD's low",
            "efficiency (images/s over those of none) and best accuracy: NEW less OLD; neither is "
            "part of the verdict"]
    ranges = [one for one in found if "range" in (one.old.kind, one.new.kind)]
    if ranges:
        said.append("low to high is the range where there are fewer than six repetitions, and the "
                    "change's interval then goes from range to range")
    for name, one, other in (("OLD", old, new), ("NEW", new, old)):
        only = [key for key in without_machine(one) if key not in without_machine(other)]
        said += [f"only in {name}: {strategy}, {words.setting(conditions, without=('machine',))}"
                 for conditions, strategy in only]
        machines = sorted({run.machine for run in one.runs})
        crashed = [run for run in one.runs if run.end is None]
        failed = [run for run in one.runs if run.end and run.end.get("exit_code")]
        said.append(f"{name}: {words.listed(machines)}, "
                    f"{words.count(len(one.runs), 'run')}" +
                    (f", {len(crashed)} of them crashed (no end record)" if crashed else "") +
                    (f", {len(failed)} of them failed (see its report)" if failed else ""))
    return said
