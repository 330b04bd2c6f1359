"""Page one: the verdict with its reason, and four sentences: what is fastest, where the time goes, what
would help most, what is noise."""

import pathlib

from . import machine_tables, soak, text, verdict, what_if, words
from .communication_tables import hidden_share
from .intervals import distinct
from .options import distinguish
from .reading import read_file
from .records import number
from .summary import TERMS, Summary, ranked

MOST = 3  # sets of conditions, failures or names that a sentence lists
SMALL = 0.01  # of a step: what is not worth a word on page one
UNACCOUNTED = 0.5  # of a step: more says that something else ran


def text_of(path, start=0, code=0):
    """The headline of the runs that a file has from this byte on, of a job with this exit code, as launch/mpi
    prints it; empty where nothing was trained or soaked, as nothing was to be."""
    runs = read_file(pathlib.Path(path), start)
    measured = any(run.of(kind) for run in runs for kind in ("step", "epoch", "soak", "soak_summary"))
    if not measured and code == 0:
        return ""
    distinguish(runs)
    outcome, reason, sentences = headline(Summary(runs))
    if not measured and not any(run.of("verdict") for run in runs):
        outcome = verdict.worst({outcome, verdict.INCONCLUSIVE})
        what = "load" if any(run.header.get("program") == "soak" for run in runs) else "step"
        reason = f"no {what} was measured: the job ended with exit code {code}; " \
                 f"{reason if runs else 'nothing was recorded.'}"
    return words.lines(text.verdict_text(outcome, reason, sentences, text.terminal_width()))


def headline(summary):
    """(outcome, its reason, [(what, sentence)])."""
    found = verdict.of_summary(summary)
    outcome = verdict.worst({one.outcome for one in found})
    reason = some(verdict.merged(found, without=outcome)) if found else verdict.passed(summary)
    sentences = [("Fastest", fastest(summary)), ("Where the time goes", time_goes(summary)),
                 ("What would help most", helps(summary)), ("Evaluation", evaluated(summary)), ("Noise", noise(summary)), ("Soak", sentence(soak.statements(summary)))]
    return outcome, f"{reason}.", [
        (what, text) for what, text in sentences if text]


def compared(summary):
    """[(conditions, strategies that exchange, fastest first)] where there are several."""
    found = [(conditions, ranked(group)) for conditions, group in summary.groups]
    return [(conditions, order) for conditions, order in found
            if conditions.world_size > 1 and len(order) > 1]


def at(summary, conditions):
    name = summary.label(conditions)
    return f" at {name}" if name else ""


def sentence(texts):
    joined = some(texts)
    return joined and f"{joined}."


def some(texts, between="; "):
    """The first few, and how many more there are."""
    texts = list(texts)
    more = f"{between}and {len(texts) - MOST} more" if len(texts) > MOST else ""
    return between.join(texts[:MOST]) + more


def fastest(summary):
    groups = compared(summary)
    if groups:
        return sentence(leader(summary, *group) for group in groups)
    rates = [f"{m.strategy} {words.rate(m.rate.median)} images/s{at(summary, m.conditions)}"
             for m in summary.measured.values() if m.rate]
    if rates:
        return some(rates) + "; nothing to compare."
    rows = [record for record in summary.records("collective")
            if number(record, "busbw_gbs")]
    if rows:
        best = machine_tables.highest_busbw(rows)
        return (f"{best.get('operation')} with a busbw of {best['busbw_gbs']:.4g} GB/s at "
                f"{words.size(number(best, 'bytes') or 0)}.")
    tables = {table.name: table for table in machine_tables.tables(summary)}
    if "links" in tables:
        return sentence(f"{row[0]} {row[2]:.4g} GB/s (median)" for row in tables["links"].values)
    return ""


def evaluated(summary):
    return sentence(f"{weights}: accuracy {words.percent(record['val_top1'], 2)} of "
                    f"{words.count(int(number(record, 'validated_images') or 0), 'image')}{at(summary, measured.conditions)}"
                    for measured in summary.measured.values() for weights, record in measured.evaluations)


def leader(summary, conditions, order):
    first, second = order[0], order[1]
    named = f"{first.strategy}{at(summary, conditions)} ({words.rate(first.rate.median)} images/s"
    equal = [m.strategy for m in order[1:] if distinct(first.rate, m.rate) is False]
    if equal:
        return f"no single one: {named}) is not distinguishable from {words.listed(equal)}"
    named += f", {words.percent(first.rate.median / second.rate.median - 1)} faster than " \
             f"{second.strategy}"
    return named + (")" if distinct(first.rate, second.rate) else
                    "; too few runs to exclude chance)")


def broken_down(summary):
    """The fastest strategy under each set of conditions, else all that have a breakdown."""
    return [order[0] for _, order in compared(summary) if order[0].breakdowns] or [
        measured for measured in summary.measured.values() if measured.breakdowns]


def shares_of(measured):
    """[(share of the step, term)], the largest first, whatever its sign: a residual is negative
    where the terms add up to more than the step."""
    step = measured.term("step_ms")
    terms = [(measured.term(key), name) for key, name in TERMS.items()]
    return sorted(((ms / step, name) for ms, name in terms if ms and step),
                  key=lambda one: -abs(one[0]))


def is_accounted(measured):
    residual, step = measured.term("residual_ms"), measured.term("step_ms")
    return residual is None or not step or abs(residual) <= UNACCOUNTED * step


def time_goes(summary):
    return sentence(step_of(summary, measured) for measured in broken_down(summary))


def step_of(summary, measured):
    if not is_accounted(measured):
        step = measured.term("step_ms")
        return f"{measured.strategy}{at(summary, measured.conditions)}: unknown: a traced step took " \
               f"{words.ms(step)} and its parts {words.ms(step - measured.term('residual_ms'))}"
    text = f"{measured.strategy}{at(summary, measured.conditions)}: " + ", ".join(
        f"{name} {words.percent(part, 0)}" for part, name in shares_of(measured)
        if abs(part) >= SMALL)
    hidden = hidden_share(measured)
    if hidden:
        text += f"; {words.percent(hidden, 0)} of its communication is hidden"
    timed = f"; timed {words.ms(measured.step_ms)}" if measured.step_ms else ""
    return f"{text} (traced step {words.ms(measured.term('step_ms'))}{timed})"


def helps(summary):
    """The largest gains that the step model predicts, if it may be trusted; else what there is to
    gain."""
    models = what_if.models(summary)
    advice = sentence(text for model in models if model.is_trusted()
                      for text in advised(summary, model, len(models) > 1))
    doubted = [model.error(summary) for model in models if not model.is_trusted()]
    if advice or doubted:
        errors = [error for error in doubted if error is not None]
        return advice or (f"unknown: the step model is off by up to {words.percent(max(errors))}."
                          if errors else "unknown: no step was measured that the step model could be "
                          "compared with.")
    costs = [(m, [one for one in shares_of(m) if one[1] != "compute" and one[0] >= SMALL])
             for m in broken_down(summary) if is_accounted(m)]
    return sentence(f"less {found[0][1]}, {words.percent(found[0][0], 0)} of the step of "
                    f"{m.strategy}{at(summary, m.conditions)}" for m, found in costs if found)


def advised(summary, model, is_one_of_several):
    """The best advice for each configuration of the fastest strategies."""
    advice = what_if.best_advice(model)
    fast = {order[0].strategy for _, order in compared(summary)}
    best = {}
    for one in [one for one in advice if one[0][0].strategy in fast] or advice:
        best.setdefault(one[0][0], one)
    error = model.error(summary)
    for (configuration, change), gain, extrapolated in best.values():
        where = at(summary, configuration.conditions) if is_one_of_several else f" at {words.batch(configuration.conditions)}"
        yield (f"{change} for {configuration.strategy}{where} ({gain:+.1f} % images/s predicted"
               f"{', extrapolated' if extrapolated else ''}"
               f"{f'; model error up to {words.percent(error)}' if error else ''})")


def noise(summary):
    """Differences that these runs cannot distinguish from noise."""
    equal, few = [], 0
    for conditions, order in compared(summary):
        pairs = zip(order, order[1:])
        compared_pairs = [(a, b, distinct(a.rate, b.rate)) for a, b in pairs]
        few += sum(differs is None for _, _, differs in compared_pairs)
        equal += [f"{b.strategy} from {a.strategy}{at(summary, conditions)}"
                  for a, b, differs in compared_pairs if differs is False]
    widths = [width for m in summary.measured.values()
              if (width := verdict.noise_of(m.rate)) is not None]
    text = ""
    if widths:
        text = f"half the widest interval or range is {words.percent(max(widths))} of its median"
    elif any(m.rate for m in summary.measured.values()):
        text = "no intervals: one run each"
    if equal:
        text += f"; not distinguishable: {some(equal, ', ')}"
    if few:
        text += f"; too few runs (four each suffice) for {words.count(few, 'pair')} of neighbours"
    return text and text + "."
