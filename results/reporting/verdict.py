"""The one place that judges: outcomes, their exit codes, and what the runs themselves concluded."""

import math
from typing import NamedTuple, Optional

from . import words
from .intervals import distinct
from .records import Run, number, text, texts
from .summary import ranked
from .trainings import STOPPED, exit_code, restarts_of

PASS, WARN, UNKNOWN, INCONCLUSIVE, FAIL = "PASS", "WARN", "UNKNOWN", "INCONCLUSIVE", "FAIL"
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
    run: Optional[Run] = None  # where it was found


NOISY = 0.1  # half an interval or range over the median: more, and no fastest strategy is named


def worst(outcomes):
    """What is neither is INCONCLUSIVE; nothing found is PASS."""
    if FAIL in outcomes:
        return FAIL
    return INCONCLUSIVE if set(outcomes) - {PASS} else PASS


REGRESSION, FASTER, SAME = "REGRESSION", "faster", "within"
UNSURE, PERHAPS_FASTER = "slower, intervals overlap", "faster, intervals overlap"
FEW, ELSEWHERE = "slower, too few samples", "slower, other machine"
UNEVEN, SINGLE = "single runs slower", "slower, spread unknown"


def of_change(ratio, low, high, threshold, two_machines=False):
    """(outcome, words) of NEW's rate over OLD's, with its interval; the threshold is in percent."""
    if ratio < 1 - threshold / 100:
        if two_machines:
            return INCONCLUSIVE, ELSEWHERE
        if high is None:
            return INCONCLUSIVE, SINGLE
        if high >= 1:
            return INCONCLUSIVE, UNSURE
        return FAIL, REGRESSION
    if ratio > 1 + threshold / 100:
        return PASS, PERHAPS_FASTER if low is not None and low <= 1 else FASTER
    return PASS, f"{SAME} {threshold:g} %"


def of_summary(summary):
    """[Verdict] of all that did not pass, FAIL first: what the runs concluded, and what all of them
    together leave open."""
    found = of_runs(summary)
    for measured in summary.measured.values():
        found += of_learning(summary, measured)
    for conditions, group in summary.groups:
        found += of_noise(summary, conditions, group)
    if not found and not any(run.records for run in summary.runs):
        found.append(Verdict(INCONCLUSIVE, "job", "", "nothing was measured"))
    return sorted(found, key=lambda one: one.outcome != FAIL)


def of_runs(summary):
    """[Verdict] of runs that did not pass: what the programs recorded, and what their records show
    whatever they say."""
    found = []
    continued = {id(run) for restarted in restarts_of(summary.runs) for run in restarted.stopped}
    for run in summary.runs:
        found += recorded(run)
        for kind in ("collective", "link", "split"):
            wrong = [r for r in run.of(kind) if number(r, "wrong_elements")]
            if wrong:
                elements = sum(record["wrong_elements"] for record in wrong)
                found.append(Verdict(
                    FAIL, "job", "", f"wrong data: {words.count(int(elements), 'wrong element')} in "
                    f"{words.count(len(wrong), f'{kind} record')}{classes_of(wrong)}", run=run))
        if run.end is None:
            cut = f"; its last line, {run.cut_at}, is cut off" if run.cut_at else ""
            cut += "".join(f"; no answer from rank {rank} on {host}" for record in run.of("failure")
                           if isinstance(record.get("ranks"), list)
                           for rank, host in zip(record["ranks"], texts(record, "hosts")))
            if run.records:
                cut += f"; what it recorded before ({words.count(len(run.records), 'record')}) is used"
            found.append(Verdict(INCONCLUSIVE, "job", "", f"crashed: no end record{cut}", run=run))
            # Of a soak, which concludes from them only at its end.
            wrong = [record for record in run.of("mismatch") if record.get("verdict") != INCONCLUSIVE]
            if wrong:
                found.append(Verdict(
                    FAIL, "job", "", f"wrong data: {words.count(len(wrong), 'mismatch', 'mismatches')}, the first on rank "
                    f"{wrong[0].get('rank')} of {wrong[0].get('host')}", run=run))
        elif exit_code(run) != 0 and id(run) not in continued:
            found.append(ended(run))
        elif not run.header:
            found.append(Verdict(INCONCLUSIVE, "job", "", "without its first line (kind run)", run=run))
    return found


WRONG_DATA = ("stale", "torn", "misrouted", "missing_addend", "doubled_addend", "stale_addend", "unwritten",
              "bit_flip", "unknown")


def classes_of(records):
    """": stale in 3 of 4 regions that were decoded", of the classes of wrong data in these records."""
    regions = {name: sum(number(record, f"wrong_{name}") or 0 for record in records) for name in WRONG_DATA}
    found = [f"{name.replace('_', ' ')} in {count}" for name, count in regions.items() if count]
    return f": {words.listed(found)} of {words.count(sum(regions.values()), 'region')} that were decoded" if found else ""


def ended(run):
    """Verdict on a run that ended with another exit code than 0."""
    code, elapsed = exit_code(run), number(run.end, "elapsed_s")
    cause = f"ended with exit code {code}"
    if code == STOPPED:
        minutes = number(run.header, "options.minutes")
        planned = f" of {words.seconds(60 * minutes)}" if minutes else ""
        after = "" if elapsed is None else f" after {words.seconds(elapsed)}{planned} s"
        cause = f"stopped by a signal{after}, not complete (exit code {code})"
    return Verdict(FAIL if code == 1 else INCONCLUSIVE, "job", "", cause, run=run)


def of_noise(summary, conditions, group):
    """Whether noise leaves open which strategy is the fastest, what the exchange costs, or what the rate
    of the only strategy is."""
    timed = [measured for measured in ranked(group) if measured.steps]
    bound = [measured for measured in group if measured.strategy == "none" and measured.steps]
    open_ = []
    if len(timed) > 1 and distinct(timed[0].rate, timed[1].rate) is False:
        open_.append(("name the fastest strategy", timed[:2]))
    if timed and bound:
        open_.append(("show what the exchange costs", bound))
    elif len(timed + bound) == 1:
        open_.append(("be one figure", timed + bound))
    name = summary.label(conditions)
    for purpose, needed in open_:
        unsteady = [f"{m.strategy} \u00b1{words.percent(noise_of(m.rate), 0)}" for m in needed
                    if (noise_of(m.rate) or 0) > NOISY]
        if unsteady:
            yield Verdict(INCONCLUSIVE, "rates", name and f"at {name}",
                          f"too uneven to {purpose}: {words.listed(unsteady)} of the median",
                          action="repeat on a machine that runs nothing else")


def noise_of(rate):
    """Half the interval or range, over the median; None where there is no interval."""
    return None if rate is None or rate.low is None else (rate.high - rate.low) / 2 / rate.median


def merged(found, name_of=lambda run: run.title, without=""):
    """Text of verdicts; those of one cause share a line. `name_of` names a run; the outcome `without`
    is left out."""
    alike = {}
    for one in found:
        name = one.name or (name_of(one.run) if one.run else "")
        where = f", in {name_of(one.run)}" if one.run and one.name else ""
        alike.setdefault((one._replace(name="", run=None), where), []).append(name)
    for (one, where), several in alike.items():
        names = [f"{name} ({several.count(name)} times)" if several.count(name) > 1 else name
                 for name in dict.fromkeys(several) if name]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        about = subject(one.scope, ", ".join(names[:MOST_NAMES]) + more, one.cause)
        fault = f" ({one.fault})" if one.fault else ""
        action = f"; {one.action}" if one.action else ""
        outcome = "" if one.outcome == without else f"{one.outcome}: "
        yield f"{outcome}{about}{one.cause}{fault}{where}{action}"


def subject(scope, name, cause):
    """"rank 1: ", less what the cause begins with."""
    if scope == "link" and cause.startswith(f"{name} "):
        return f"{scope} "
    whole = f"{scope} {name}".rstrip()
    return "" if cause.startswith(f"{whole} ") else f"{whole}: "


def passed(summary):
    """What a pass is made of, and what it does not say."""
    good = [run for run in summary.runs if exit_code(run) == 0]
    certified = sum(measured.certified is True for measured in summary.measured.values())
    said = [f"{words.count(len(good), 'run')} ended with exit code 0"]
    said += [f"{restarted.run.title} is complete after "
             f"{words.count(len(restarted.stopped), 'restart')}, "
             f"{words.seconds(restarted.lost_s)} s lost" for restarted in restarts_of(summary.runs)
             if restarted.is_complete]
    said += [f"{words.count(certified, 'certificate')} passed"] if certified else []
    found = would_have_found(summary)
    if found:
        said += found
    elif any(measured.rate for measured in summary.measured.values()):
        said.append("rates are not compared with a reference")
    return "; ".join(said)


def would_have_found(summary):
    """["would have found at 99 %: products 1.4 %, memory 3.9 %"], of bin/judge; else the programs' own."""
    shares = [f"{record['rates'].replace('_', ' ')} {math.ceil(1000 * share - 1e-6) / 10:.1f} %"
              for record in summary.records("found")
              if (share := number(record, "slow_down")) is not None and text(record, "rates")]
    if shares:
        return [f"would have found at 99 %: {', '.join(dict.fromkeys(shares))}"]
    return list(dict.fromkeys(
        text(record, "cause") for record in summary.records("verdict")
        if record.get("scope") == "job" and record.get("check") == "rates" and record.get("verdict") == PASS))


def recorded(run):
    """Neither a warning nor, where the program passed, what a part of it left unknown is a reason
    against what the program concluded."""
    concluded = exit_code(run) == 0 and {record.get("verdict") for record in run.of("verdict")
                                         if record.get("scope") == "job"} == {PASS}
    dropped = {PASS, INCONCLUSIVE} if concluded else {PASS}
    return [as_verdict(record.get("verdict"), record, run) for record in run.of("verdict")
            if record.get("verdict") not in dropped and not is_remark(record)]


def as_verdict(outcome, record, run):
    return Verdict(outcome, record.get("scope") or "job", record.get("name") or "without a name",
                   record.get("cause") or "no cause recorded", record.get("class") or "", record.get("action") or "", run)


def is_remark(record):
    """A warning, or a fact that the machine does not show: no reason against what was judged. Records of
    0.2 have both as INCONCLUSIVE with a severity, and of node_check's only the job's verdict says whether
    what is unknown mattered."""
    return record.get("verdict") in (WARN, UNKNOWN) or record.get("severity") == WARN or \
        record.get("severity") == UNKNOWN and "stage" in record


def warnings(summary):
    """[Verdict] of what somebody should look at, next to what did not pass."""
    return [as_verdict(WARN, record, run) for run in summary.runs for record in run.of("verdict")
            if WARN in (record.get("verdict"), record.get("severity"))]


def of_learning(summary, measured):
    name = summary.named(measured)
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
