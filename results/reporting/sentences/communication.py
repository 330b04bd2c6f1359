"""What a step's communication takes, how much of it the step waits for, and the bytes it moves."""

from .. import words
from ..summary import median_of, ranked
from . import overlap

COUNTED_BY = {"nvlink": "by the GPUs' NVLink counters",
              "communicator": "by the communicator's count"}
APART = 0.001  # figures of bytes that print alike


def sentences(summary):
    for conditions, group in summary.groups():
        about = [text for measured in group if measured.strategy != "none" for text in
                 (*times(measured), *beyond_none(group, measured), *overlap.gain(measured),
                  *overlap.exchanges(measured), *overlap.stragglers(measured),
                  *bytes_sent(measured))]
        about += against_all_reduce(group)
        about += [text for measured in group for text in overlap.accounts(measured)]
        yield from ((conditions, text) for text in about)


def times(measured):
    known = measured.communication
    total, exposed, hidden = (known.get(key) for key in ("total", "exposed", "hidden"))
    waits = None if exposed is None else f"the step waits {words.ms(exposed)}"
    if "push" in known and "pull" in known:
        yield (f"{measured.strategy}: pushing gradients takes {words.ms(known['push'])} of a step, "
               f"pulling weights {words.ms(known['pull'])}" +
               (f"; {waits} for them." if waits else "."))
    elif total and None not in (hidden, exposed):
        share = f"{words.ms(hidden)} ({words.percent(hidden / total)})" if hidden > 0 else "none"
        yield (f"{measured.strategy}: communication takes {words.ms(total)} a step, {share} of it "
               f"hidden behind computing; {waits} for it.")
    elif total and exposed is not None and 0 <= exposed <= total:
        hides = "the rest is hidden behind computing" if exposed < total else "none is hidden"
        yield (f"{measured.strategy}: communication takes {words.ms(total)} a step; {waits} for it "
               f"({words.percent(exposed / total)}), {hides}.")
    elif total is not None:
        yield f"{measured.strategy}: communication takes {words.ms(total)} a step."
    elif waits:
        yield f"{measured.strategy}: {waits} for communication."


def beyond_none(group, measured):
    """The step's time beyond that of `none`: all that the exchange costs, interference too."""
    none = next((other for other in group if other.strategy == "none"), None)
    if none is None or None in (none.step_ms, measured.step_ms):
        return
    more = measured.step_ms - none.step_ms
    if more > 0:
        yield (f"{measured.strategy}: its median step is {words.ms(more)} longer than none's, "
               f"{words.ms(measured.step_ms)} against {words.ms(none.step_ms)} "
               f"(+{words.percent(more / none.step_ms)}).")


def against_all_reduce(group):
    """The parameter server's push and pull beside all-reduce's time."""
    times_of = {measured.strategy: measured.communication.get("total") for measured in group}
    reference = times_of.get("all-reduce")
    if not reference:
        return
    for strategy, total in times_of.items():
        if strategy.startswith("parameter-server") and total:
            longer = total >= reference
            ratio = total / reference if longer else reference / total
            yield (f"{strategy} communicates {words.ms(total)} a step, all-reduce "
                   f"{words.ms(reference)}: {ratio:.2f} times as {'long' if longer else 'short'}.")


def per_rank(steps, key):
    """{rank: median over the repetitions} of a key with one value a rank."""
    records = [dict(enumerate(step[key])) for step in steps if isinstance(step.get(key), list)]
    ranks = {rank: median_of(records, rank) for record in records for rank in record}
    return {rank: value for rank, value in ranks.items() if value is not None}


def bytes_sent(measured):
    """What the busiest rank sends, by whom it was counted, and what theory says; the
    communicator's own count where it differs, for that tells padding from what the links add."""
    ranks = per_rank(measured.steps, "bytes_per_step_measured")
    if not ranks:
        return
    rank, sent = max(ranks.items(), key=lambda item: item[1])
    sources = sorted({step["bytes_source"] for step in measured.steps if step.get("bytes_source")})
    text = f"{measured.strategy}: rank {rank} sends most, {words.size(sent)} a step"
    if sources:
        text += " " + words.listed(COUNTED_BY.get(source, f"by {source}") for source in sources)
    counted = per_rank(measured.steps, "bytes_per_step_counted").get(rank)
    if counted and abs(sent / counted - 1) >= APART:
        text += f", {words.size(counted)} by the communicator's"
    predicted = per_rank(measured.steps, "bytes_per_step_predicted").get(rank)
    if predicted:
        text += (f"; {words.size(predicted)} are predicted "
                 f"({100 * (sent / predicted - 1):+.1f} %)")
    yield text + "."


def overhead(group):
    """[(strategy, {part: ms})] for the plot; parts as in Measured.communication, and beyond_none
    where nothing else is known. Empty where nothing is."""
    none = next((other.step_ms for other in group if other.strategy == "none"), None)
    bars = []
    for measured in ranked(group):
        known = measured.communication
        if not known and None not in (none, measured.step_ms):
            known = {"beyond_none": max(measured.step_ms - none, 0)}
        if known:
            bars.append((measured.strategy, known))
    return bars
