"""Page one: the verdict, and five sentences: what is fastest, where the time goes, what would help
most, what is noise, what failed."""

from . import forecast, machine_tables, verdict, words
from .intervals import distinct
from .records import plain
from .summary import TERMS, ranked

MOST = 3  # sets of conditions, failures or names that a sentence lists
SMALL = 0.01  # of a step: what is not worth a word on page one


def headline(summary):
    """(outcome, [(what, sentence)])."""
    found = verdict.of_runs(summary)
    told = [("Fastest", fastest(summary)), ("Where the time goes", time_goes(summary)),
            ("What would help most", helps(summary)), ("Noise", noise(summary)),
            ("Failed", failed(summary, found))]
    return verdict.worst({one.outcome for one in found}), [(what, text) for what, text in told
                                                           if text]


def compared(summary):
    """[(conditions, strategies that exchange, fastest first)] where there are several."""
    found = [(conditions, ranked(group)) for conditions, group in summary.groups()]
    return [(conditions, order) for conditions, order in found
            if conditions.world_size > 1 and len(order) > 1]


def at(summary, conditions):
    name = summary.name(conditions)
    return f" at {name}" if name else ""


def some(texts, between="; "):
    """The first few, and how many more there are."""
    texts = list(texts)
    more = f"{between}and {len(texts) - MOST} more" if len(texts) > MOST else ""
    return between.join(texts[:MOST]) + more


def fastest(summary):
    groups = compared(summary)
    if groups:
        return some(leader(summary, *group) for group in groups) + "."
    rates = [f"{m.strategy} {words.rate(m.rate.median)} images/s{at(summary, m.conditions)}"
             for m in summary.measured.values() if m.rate]
    if rates:
        return some(rates) + "; nothing to compare."
    tables = {table.name: table for table in machine_tables.tables(summary)}
    if "collectives" in tables:
        table = tables["collectives"]
        busbw = table.columns.index("busbw GB/s")
        best = max(table.values, key=lambda row: row[busbw])
        return f"{best[0]} with a busbw of {best[busbw]:.4g} GB/s."
    if "links" in tables:
        return some(f"{row[0]} {row[2]:.4g} GB/s (median)" for row in tables["links"].values) + "."
    return ""


def leader(summary, conditions, order):
    first, second = order[0], order[1]
    text = f"{first.strategy}{at(summary, conditions)} ({words.rate(first.rate.median)} images/s"
    equal = [m.strategy for m in order[1:] if distinct(first.rate, m.rate) is False]
    if equal:
        return f"{text}, not distinguishable from {words.listed(equal)})"
    return f"{text}, {words.percent(first.rate.median / second.rate.median - 1)} faster than " \
           f"{second.strategy})"


def time_goes(summary):
    """Of the fastest strategy under each set of conditions, else of what has a breakdown."""
    chosen = [order[0] for _, order in compared(summary) if order[0].breakdowns] or [
        measured for measured in summary.measured.values() if measured.breakdowns]
    sentences = [step_of(summary, measured) for measured in chosen]
    return some(sentences) + "." if sentences else ""


def step_of(summary, measured):
    step = measured.term("step_ms")
    terms = [(measured.term(key), name) for key, name in TERMS.items()]
    shares = [(ms / step, name) for ms, name in terms if ms and step and ms / step >= SMALL]
    text = f"{measured.strategy}{at(summary, measured.conditions)}: " + ", ".join(
        f"{name} {words.percent(part, 0)}" for part, name in sorted(shares, reverse=True))
    known = measured.communication
    if known.get("hidden") and known.get("total"):
        text += f"; {words.percent(known['hidden'] / known['total'], 0)} of its communication is hidden"
    return f"{text} (step {words.ms(step)})"


def helps(summary):
    """The largest gain that the step model predicts, if it may be trusted."""
    said, doubted = [], []
    fast = {order[0].strategy for _, order in compared(summary)}
    for model in forecast.models(summary):
        if not model.is_trusted(summary):
            doubted.append(words.percent(model.error(summary)))
            continue
        advice = [one for one in forecast.best_advice(model)]
        best = {}
        for one in [o for o in advice if plain(o[0][0].strategy) in fast] or advice:
            best.setdefault(one[0][0], one)
        for (configuration, change), gain, extrapolated in best.values():
            doubt = f"; model error up to {words.percent(model.error(summary))}" \
                if model.error(summary) else ""
            said.append(f"{change} for {configuration.strategy} at "
                        f"{words.batch(configuration.conditions)} ({gain:+.1f} % images/s predicted"
                        f"{', extrapolated' if extrapolated else ''}{doubt})")
    if said:
        return some(said) + "."
    return f"unknown: the step model is off by up to {doubted[0]}." if doubted else ""


def noise(summary):
    """What these runs cannot distinguish."""
    equal, few = [], 0
    for conditions, order in compared(summary):
        pairs = zip(order, order[1:])
        told = [(a, b, distinct(a.rate, b.rate)) for a, b in pairs]
        few += sum(apart is None for _, _, apart in told)
        equal += [f"{b.strategy} from {a.strategy}{at(summary, conditions)}"
                  for a, b, apart in told if apart is False]
    widths = [(m.rate.high - m.rate.low) / 2 / m.rate.median for m in summary.measured.values()
              if m.rate and m.rate.low is not None]
    text = f"half the widest interval or range is {words.percent(max(widths))} of its median" if widths else \
        "no intervals: one run each" if any(m.rate for m in summary.measured.values()) else ""
    if equal:
        text += f"; not distinguishable: {some(equal, ', ')}"
    if few:
        text += f"; too few runs to distinguish {words.count(few, 'pair')} of neighbours (four each suffice)"
    return text and text + "."


def failed(summary, found):
    if found:
        return some(verdict.merged(found)) + "."
    passed = sum(measured.certified is True for measured in summary.measured.values())
    return f"nothing: {words.count(len(summary.runs), 'run')} ended with exit code 0" + (
        f", {words.count(passed, 'certificate')} passed." if passed else ".")
