"""What a step's communication takes, how much of it the step waits for, and the bytes it moves."""

from .. import words
from ..records import number
from ..summary import median_of, ranked


def sentences(summary):
    for conditions, group in summary.groups():
        about = [text for measured in group if measured.strategy != "none" for text in
                 (*times(measured), *beyond_none(group, measured), *bytes_sent(measured),
                  *buckets(measured))]
        about += against_all_reduce(group)
        yield from ((conditions, text) for text in about)


def times(measured):
    known = measured.communication
    total, exposed = known.get("total"), known.get("exposed")
    if "push" in known and "pull" in known:
        yield (f"{measured.strategy}: pushing gradients takes {words.ms(known['push'])} of a step, "
               f"pulling weights {words.ms(known['pull'])}.")
    if None not in (total, exposed) and 0 <= exposed <= total and total > 0:
        hidden = "the rest is hidden behind computing" if exposed < total else "none is hidden"
        yield (f"{measured.strategy}: communication takes {words.ms(total)} a step; the step waits "
               f"for {words.ms(exposed)} of it ({words.percent(exposed / total)}), {hidden}.")
    elif total is not None and "push" not in known:
        yield f"{measured.strategy}: communication takes {words.ms(total)} a step."
    elif exposed is not None:
        yield f"{measured.strategy}: the step waits for {words.ms(exposed)} of communication."


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
    ranks = per_rank(measured.steps, "bytes_per_step_measured")
    if not ranks:
        return
    rank, sent = max(ranks.items(), key=lambda item: item[1])
    sources = sorted({step["bytes_source"] for step in measured.steps if step.get("bytes_source")})
    counted = f", counted by {words.listed(sources)}" if sources else ""
    text = f"{measured.strategy}: rank {rank} moves most, {words.size(sent)} a step{counted}"
    predicted = per_rank(measured.steps, "bytes_per_step_predicted").get(rank)
    if predicted:
        text += (f"; {words.size(predicted)} are predicted "
                 f"({100 * (sent / predicted - 1):+.1f} %)")
    yield text + "."


def buckets(measured):
    if not measured.buckets:
        return
    records = measured.buckets[-1]
    exposed = {record.get("index"): number(record, "exposed_ms") for record in records}
    hidden = [number(record, "hidden_ms") for record in records]
    if None in exposed.values() or None in hidden:
        return
    busy = sum(hidden) + sum(exposed.values())
    if busy > 0:
        index = max(exposed, key=exposed.get)
        last = "" if exposed[index] == 0 else (f"; bucket {index} is exposed longest, "
                                               f"{words.ms(exposed[index])}")
        yield (f"{measured.strategy}: of {words.ms(busy)} in "
               f"{words.count(len(records), 'bucket')}, "
               f"{words.percent(sum(hidden) / busy)} is hidden behind backward{last}.")
    ranks = [record["straggler_rank"] for record in records
             if number(record, "straggler_rank") is not None]
    if ranks:
        late = max(set(ranks), key=ranks.count)
        yield (f"{measured.strategy}: rank {late} is the last to be ready for "
               f"{ranks.count(late)} of {words.count(len(ranks), 'bucket')}.")


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
