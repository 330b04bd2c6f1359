"""What overlap hides, gains and costs; a step's exchanges one by one; accounts that do not add up.
"""

import statistics

from .. import words
from ..exchanges import total
from ..records import number

WAIT_MATTERS = 0.05  # of the exchanges' time
RESIDUAL_MATTERS = 0.02  # of the step, on a GPU, where events leave nothing out


def differences(measured, longer, shorter):
    """Of the rounds that have both, ms: within a round, for rounds drift."""
    pairs = [(number(record, longer), number(record, shorter)) for record in measured.breakdowns]
    return [a - b for a, b in pairs if None not in (a, b)]


def gain(measured):
    """Against the same exchanges on the stream that computes; and the price."""
    saved = differences(measured, "serial_step_ms", "step_ms")
    added = differences(measured, "serial_step_ms", "none_step_ms")
    if not saved or not added:
        return
    least, typical, most = min(saved), statistics.median(saved), max(saved)
    cost = statistics.median(added)
    text = (f"{measured.strategy}: with the same exchanges in turn with computing its step takes "
            f"{words.ms(abs(cost))} {'more' if cost >= 0 else 'less'} than none's; ")
    if least < 0 < most:
        text += (f"the rounds do not tell whether overlap saves anything ({words.ms(least)} to "
                 f"{words.ms(most)})")
    elif typical <= 0:
        text += f"overlap saves nothing, it takes {words.ms(-typical)} more"
    elif cost > 0:
        text += f"overlap saves {words.ms(typical)} of that ({words.percent(typical / cost, 0)})"
    else:
        text += f"overlap saves {words.ms(typical)}"
    yield text + price(measured) + "."


def price(measured):
    slowdown, slower = measured.term("interference_slowdown"), measured.term("interference_ms")
    if None in (slowdown, slower) or min(slowdown, slower) <= 0:
        return ""
    return (f", and computing is {words.percent(slowdown)} slower while an exchange goes on "
            f"({words.ms(slower)} a step)")


def accounts(measured):
    residual, step = measured.term("residual_ms"), measured.term("step_ms")
    if measured.conditions.backend != "gpu" or residual is None or not step or \
            abs(residual) <= RESIDUAL_MATTERS * step:
        return
    how = "are in none of its terms" if residual > 0 else "too much are in its terms"
    yield (f"{measured.strategy}: the account of its step does not add up: "
           f"{words.ms(abs(residual))} ({words.percent(abs(residual) / step)}) {how}.")


def exchanges(measured):
    """How many, and which the step waits for; of one, and of push and pull, all is said before."""
    found, known = measured.exchanges, measured.communication
    hidden, exposed = total(found, "hidden_ms"), total(found, "exposed_ms")
    if len(found) < 2 or "push" in known or None in (hidden, exposed):
        return
    busy = hidden + exposed
    operations = [one.operation for one in found if one.operation]
    kinds = dict.fromkeys(operations)
    kinds = ", ".join(f"{operations.count(kind)} {kind}" if kinds.keys() - {kind} else kind
                      for kind in kinds)
    text = f"{len(found)} exchanges a step" + (f" ({kinds})" if kinds else "")
    if "hidden" not in known and busy > 0:
        text += (f", {words.percent(hidden / busy)} of their {words.ms(busy)} hidden behind "
                 f"computing")
    if exposed > 0:
        longest = max(found, key=lambda one: one.exposed_ms)
        size = f" ({words.size(longest.bytes)})" if longest.bytes else ""
        text += (f"; exchange {longest.index}{size} has the largest part of the "
                 f"{words.ms(exposed)} exposed, {words.ms(longest.exposed_ms)}")
    yield f"{measured.strategy}: {text}."


def stragglers(measured):
    """Somebody is always last; it is told where the others wait for it long."""
    found = measured.exchanges
    wait, time = total(found, "wait_ms"), total(found, "duration_ms")
    ranks = [one.straggler_rank for one in found if one.straggler_rank is not None]
    if None in (wait, time) or not ranks or time <= 0 or wait < WAIT_MATTERS * time:
        return
    late = max(sorted(set(ranks)), key=ranks.count)
    text = (f"{measured.strategy}: waiting for the last rank is {words.ms(wait)} of the "
            f"{words.ms(time)} of its {'exchange' if len(found) == 1 else 'exchanges'} "
            f"({words.percent(wait / time)}, mean over the ranks); rank {late} is last")
    if len(ranks) > 1:
        text += f" for {ranks.count(late)} of {len(ranks)}"
    shares = [one.straggler_share for one in found if one.straggler_rank == late]
    if None not in shares:
        text += f", in {words.percent(statistics.fmean(shares), 0)} of the steps"
    yield text + "."
