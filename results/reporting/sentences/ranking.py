"""Which strategy is fastest, and which term of the step makes it so."""

from .. import words
from ..intervals import told_apart
from ..summary import TERMS, ranked

SMALL = 0.001  # ratios closer than this print as the same figure


def sentences(summary):
    for conditions, group in summary.groups():
        order = ranked(group)
        said = []
        if len(order) > 1:
            said.append(order_sentence(order))
            said += [why for slow in order[1:] for why in reasons(order[0], slow)]
        if conditions.world_size > 1:
            said += [text for measured in order for text in against_none(summary, measured)]
        said += [text for measured in order for text in waiting_for_data(measured)]
        yield from ((conditions, text) for text in said)


def order_sentence(order):
    first = order[0].rate
    parts = [f"{order[0].strategy} {words.rate(first.median)} images/s"]
    for measured in order[1:]:
        rate = measured.rate
        behind = 1 - rate.median / first.median
        apart = {True: "intervals apart", False: "intervals overlap: not told apart",
                 None: "too few runs to tell apart"}[told_apart(first, rate)]
        parts.append(f"{measured.strategy} {words.rate(rate.median)} "
                     f"({words.percent(behind)} less, {apart})")
    return f"By median throughput: {', '.join(parts)}."


def reasons(fast, slow):
    """Why one is slower: ranks that do not compute; the term that adds most to its step, from the
    breakdowns of both."""
    if slow.ranks_computing < fast.ranks_computing:
        yield (f"Why: {slow.ranks_computing} of {slow.strategy}'s ranks compute, "
               f"{fast.ranks_computing} of {fast.strategy}'s.")
    steps = fast.term("step_ms"), slow.term("step_ms")
    if None in steps or steps[1] <= steps[0]:
        return
    more = {key: slow.term(key) - fast.term(key) for key in TERMS
            if None not in (slow.term(key), fast.term(key))}
    key = max(more, key=more.get, default=None)
    if key is not None and more[key] > 0:
        yield (f"Why: {slow.strategy}'s step takes {words.ms(steps[1] - steps[0])} more than "
               f"{fast.strategy}'s ({words.ms(steps[1])} against {words.ms(steps[0])}); "
               f"{TERMS[key]} adds most, {words.ms(slow.term(key))} against "
               f"{words.ms(fast.term(key))}.")


def against_none(summary, measured):
    """What the exchange costs against none, as far as the runs show it."""
    efficiency, bound = summary.efficiency_vs_none(measured), summary.bound(measured)
    if efficiency is None or bound is None:
        return
    text = (f"{measured.strategy} reaches {words.percent(efficiency)} of none, which exchanges "
            f"nothing ({words.rate(measured.rate.median)} of {words.rate(bound.median)} images/s)")
    if efficiency > 1 + SMALL:
        text += ": more than without exchange, so these runs do not show what the exchange costs"
    elif told_apart(bound, measured.rate) is False:
        text += "; their intervals overlap, so the cost of the exchange is not told from noise"
    yield text + "."


def waiting_for_data(measured):
    """Of a training: the share of its epochs in which rank 0 waited for images."""
    known = [epoch for epoch in measured.timed_epochs()
             if epoch.get("epoch_s") and epoch.get("input_stall_ms") is not None]
    if known:
        waited = sum(epoch["input_stall_ms"] for epoch in known) / 1e3
        total = sum(epoch["epoch_s"] for epoch in known)
        yield (f"{measured.strategy} waited for data {words.percent(waited / total)} of its "
               f"training ({waited:.2f} of {total:.2f} s).")
