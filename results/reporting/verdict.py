"""The one place that judges: outcomes, their exit codes, and what the runs themselves concluded."""

from typing import NamedTuple

from . import words
from .records import number

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
MOST_NAMES = 4  # that failed by one cause
EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}


class Verdict(NamedTuple):
    """The fields of a `verdict` record."""
    outcome: str
    scope: str
    name: str
    cause: str
    fault: str = ""  # class: HARDWARE, CONFIG, SOFTWARE, ENVIRONMENT, INFRASTRUCTURE
    action: str = ""

    def __str__(self):
        fault = f" ({self.fault})" if self.fault else ""
        return f"{self.scope} {self.name}: {self.cause}{fault}" + (
            f"; {self.action}" if self.action else "")


def worst(outcomes):
    """What is neither is INCONCLUSIVE; nothing found is PASS."""
    if FAIL in outcomes:
        return FAIL
    return INCONCLUSIVE if set(outcomes) - {PASS} else PASS


REGRESSION, FASTER, SAME = "REGRESSION", "faster", "within"
UNSURE, PERHAPS_FASTER = "slower, intervals overlap", "faster, intervals overlap"
FEW, ELSEWHERE = "slower, too few samples", "slower, other machine"


def of_change(ratio, low, high, threshold, two_machines=False, by_chance=False):
    """(outcome, words) of NEW's rate over OLD's, with its interval; without one the threshold, in
    percent, alone decides. `by_chance`: it may be chance, with these few samples."""
    if ratio < 1 - threshold / 100:
        if two_machines:
            return INCONCLUSIVE, ELSEWHERE
        if high is not None and high >= 1:
            return INCONCLUSIVE, UNSURE
        if by_chance:
            return INCONCLUSIVE, FEW
        return FAIL, REGRESSION
    if ratio > 1 + threshold / 100:
        return PASS, PERHAPS_FASTER if low is not None and low <= 1 else FASTER
    return PASS, f"{SAME} {threshold:g} %"


def of_runs(summary):
    """[Verdict] of all that did not pass: what the programs recorded, and what their records show
    whatever they say."""
    found = []
    for run in summary.runs:
        found += recorded(run)
        for kind in ("collective", "link", "split"):
            wrong = [r for r in run.of(kind) if number(r, "wrong_elements")]
            if wrong:
                elements = sum(record["wrong_elements"] for record in wrong)
                found.append(Verdict(
                    FAIL, "job", run.name, f"wrong data: {words.count(int(elements), 'wrong element')} in "
                    f"{words.count(len(wrong), f'{kind} record')}"))
        if run.end is None:
            cut = f"; its last line, {run.cut_at}, is cut off" if run.cut_at else ""
            found.append(Verdict(
                INCONCLUSIVE, "job", run.name, f"crashed: no end record{cut}; what it recorded before "
                f"({words.count(len(run.records), 'record')}) is used"))
        elif run.end.get("exit_code") != 0:
            code = run.end.get("exit_code")
            found.append(Verdict(FAIL if code == 1 else INCONCLUSIVE, "job", run.name,
                                 f"ended with exit code {code}"))
    for measured in summary.measured.values():
        found += of_learning(summary, measured)
    return found


def merged(found):
    """Text of verdicts; those of one cause share a line."""
    names = {}
    for one in found:
        names.setdefault(one._replace(name=""), {})[one.name] = None
    for one, named in names.items():
        more = f" and {len(named) - MOST_NAMES} more" if len(named) > MOST_NAMES else ""
        yield f"{one.outcome}: {one._replace(name=', '.join(list(named)[:MOST_NAMES]) + more)}"


def recorded(run):
    """Neither a warning nor, where the program passed, what a part of it left unknown is a reason
    against what the program concluded."""
    passed = {record.get("verdict") for record in run.of("verdict")
              if record.get("scope") == "job"} == {PASS}
    dropped = {PASS, INCONCLUSIVE} if passed else {PASS}
    return [Verdict(record.get("verdict"), record.get("scope"), record.get("name"),
                    f"{record.get('cause')} ({run.name})", record.get("class") or "",
                    record.get("action") or "")
            for record in run.of("verdict")
            if record.get("verdict") not in dropped and not is_remark(record)]


def is_remark(record):
    """A warning; of an acceptance also a fact that is not known, which is no reason against a node."""
    return record.get("severity") == "WARN" or record.get("severity") == "UNKNOWN" and "stage" in record


def of_learning(summary, measured):
    name = ", ".join(filter(None, (measured.strategy, summary.name(measured.conditions))))
    if measured.diverged:
        yield Verdict(FAIL, "strategy", name,
                      f"diverged: its loss is not finite in {measured.diverged[0]}")
    failed = [c for c in measured.certificates if c.get("pass") is False]
    if failed:
        worst_ = max(failed, key=lambda c: number(c, "max_abs_diff") or 0)
        figures = ""
        if None not in (number(worst_, "max_abs_diff"), number(worst_, "tolerance")):
            figures = (f", they differ by {worst_['max_abs_diff']:.3g} where "
                       f"{worst_['tolerance']:.3g} is allowed")
        reference = worst_.get("reference") or "its reference"
        yield Verdict(FAIL, "strategy", name, "certificate failed: " + (
            worst_.get("cause") or f"its weights are not those of {reference} after a "
            f"step{figures}"))
