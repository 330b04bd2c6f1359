"""Tables of a step's exchanges: their time, how much is hidden, their cost and bytes."""

import statistics

from . import words
from .summary import median_of, total
from .tables import Column, by_conditions, figure, ms, share, signed

ROUNDS = ("exposed = total - hidden + waits; total, hidden, exposed and alone: of the round of the step breakdown, where "
          "it has them; all else: of medians over the rounds")


def communications(summary):
    """What the exchanges of a step take, how much of it the step waits for, and what they cost."""
    def known(key):
        return lambda m: m.communication.get(key)

    def of(value, base):
        return value / base if value is not None and base else None

    def none_ms(m):
        none = summary.same(m, "none")
        return none and none.step_ms

    def beyond(m):
        return None if None in (none_ms(m), m.step_ms) else m.step_ms - none_ms(m)

    def of_reference(m):
        other = summary.same(m, "all-reduce")
        return of(m.communication.get("total"), other and other.communication.get("total"))

    def communicates(m):
        return m.strategy != "none" and (m.communication or m.exchanges or beyond(m) is not None)
    return by_conditions(summary, "communication", "communication per step, ms", communicates, [
        Column("total", known("total"), ms),
        Column("hidden", known("hidden"), ms),
        Column("hidden %", hidden_share, share),
        Column("exposed", known("exposed"), ms),
        Column("of it waits", waits, ms),
        Column("push", known("push"), ms),
        Column("pull", known("pull"), ms),
        Column("alone", lambda m: m.term("comm_alone_ms"), ms),
        Column("x all-reduce", of_reference, figure(2)),
        Column("over none", beyond, ms),
        Column("over none %", lambda m: of(beyond(m), none_ms(m)), share),
    ], lambda rows: [ROUNDS] if any(m.breakdowns for m in rows) else [])


def waits(measured):
    """What of the exposed time no exchange is in flight: the ranks wait for one another."""
    known = measured.communication
    if not {"total", "hidden", "exposed"} <= set(known):
        return None
    return max(0, known["exposed"] - (known["total"] - known["hidden"]))


def hidden_share(measured):
    """Share of the communication that is hidden; None where nothing is exchanged."""
    known = measured.communication
    if "hidden" in known and known.get("total"):
        return known["hidden"] / known["total"]
    hidden, exposed = (total(measured.exchanges, key) for key in ("hidden_ms", "exposed_ms"))
    return hidden / (hidden + exposed) if None not in (hidden, exposed) and hidden + exposed else \
        None


def overlaps(summary):
    """What overlap gains compared with the same exchanges on the compute stream, and its price."""
    return by_conditions(summary, "overlap", "overlap, ms per step", lambda m: m.term("serial_step_ms"), [
        Column("none's step", lambda m: m.term("none_step_ms"), ms),
        Column("serial step", lambda m: m.term("serial_step_ms"), ms),
        Column("step", lambda m: m.term("step_ms"), ms),
        Column("serial - none", lambda m: median_difference(m, "serial_step_ms", "none_step_ms"), ms),
        Column("overlap saves", saved),
        Column("compute slower by", lambda m: m.term("interference_slowdown"), share),
        Column("residual", lambda m: m.term("residual"), share),
    ], lambda rows: ["serial: the same exchanges on the compute stream; overlap saves: serial step - step, as a share of "
                     "serial - none; compute slower by: while an exchange is in flight",
                     "serial - none and overlap saves: medians of the differences within each round; the others: of the "
                     "round of the step breakdown"])


def median_difference(measured, longer, shorter):
    found = measured.differences(longer, shorter)
    return statistics.median(found) if found else None


def saved(measured):
    """Text of the median over the rounds, or that they disagree about its sign."""
    found = sorted(measured.differences("serial_step_ms", "step_ms"))
    if not found:
        return None
    if found[0] < 0 < found[-1]:
        return f"unclear ({found[0]:.2f} to {found[-1]:.2f} ms)"
    typical = statistics.median(found)
    cost = median_difference(measured, "serial_step_ms", "none_step_ms")
    text = ms(typical)
    return f"{text} ({100 * typical / cost:.0f} %)" if typical > 0 and cost and cost > 0 else text


def exchanges(summary):
    return by_conditions(summary, "exchanges", "exchanges per step, ms", lambda m: m.exchanges, [
        Column("operations", operations),
        Column("ms", lambda m: total(m.exchanges, "duration_ms"), ms),
        Column("exposed", lambda m: total(m.exchanges, "exposed_ms"), ms),
        Column("most exposed", most_exposed),
        Column("wait", lambda m: total(m.exchanges, "wait_ms"), ms),
        Column("last rank", last_rank),
    ], lambda rows: ["medians over the rounds. most exposed: which in the order of launch; wait: for the last rank, mean "
                     "over the ranks; last rank: the rank that is last most often, for how many of the exchanges, and in "
                     "what share of the steps"])


def operations(measured):
    found = [one.operation for one in measured.exchanges if one.operation]
    kinds = dict.fromkeys(found)
    return ", ".join(f"{found.count(kind)} {kind}" for kind in kinds)


def most_exposed(measured):
    if not total(measured.exchanges, "exposed_ms"):
        return None
    longest = max(measured.exchanges, key=lambda one: one.exposed_ms)
    size = f" ({words.size(longest.bytes)})" if longest.bytes else ""
    return f"{longest.index}{size}"


def last_rank(measured):
    found = measured.exchanges
    ranks = [one.straggler_rank for one in found if one.straggler_rank is not None]
    if not ranks or not total(found, "wait_ms"):
        return None
    late = max(sorted(set(ranks)), key=ranks.count)
    shares = [one.straggler_share for one in found if one.straggler_rank == late]
    often = "" if None in shares else f", {100 * sum(shares) / len(shares):.0f} %"
    return f"{late} ({ranks.count(late)}x{often})"


COUNTED_BY = {"nvlink": "NVLink counters", "communicator": "communicator"}


def bytes_sent(summary):
    """Bytes that the busiest rank sends, their source, and the bytes in theory."""
    def sources(measured):
        return {COUNTED_BY.get(step["bytes_source"], step["bytes_source"]) for step in measured.steps
                if step.get("bytes_source")}

    def theory(measured):
        return of_busiest(measured, "bytes_per_step_predicted")

    def sends(measured):
        return sent_bytes(measured) and measured.strategy != "none"
    return by_conditions(summary, "bytes", "sent per step by the rank that sends most", sends, [
        Column("rank", lambda m: busiest(m)[0]),
        Column("sent", lambda m: busiest(m)[1], words.size),
        Column("counted by", lambda m: words.listed(sorted(sources(m))) or None),
        Column("by communicator", lambda m: of_busiest(m, "bytes_per_step_counted"), words.size),
        Column("theory", theory, words.size),
        Column("sent - theory", lambda m: busiest(m)[1] / theory(m) - 1 if theory(m) else None, signed),
    ], lambda rows: ["data-parallel: theory leaves out the images that rank 0 sends"]
        if any(m.strategy == "data-parallel" for m in rows) else ())


def per_rank(steps, key):
    """{rank: median over the repetitions} of a key with one value per rank."""
    records = [dict(enumerate(step[key])) for step in steps if isinstance(step.get(key), list)]
    ranks = {rank: median_of(records, rank) for record in records for rank in record}
    return {rank: value for rank, value in ranks.items() if value is not None}


def sent_bytes(measured):
    """{rank: bytes} by counters; where there are none, as the communicator counts."""
    return per_rank(measured.steps, "bytes_per_step_measured") or \
        per_rank(measured.steps, "bytes_per_step_counted")


def busiest(measured):
    return max(sent_bytes(measured).items(), key=lambda item: item[1])


def of_busiest(measured, key):
    return per_rank(measured.steps, key).get(busiest(measured)[0])


def tables(summary):
    return [table for make in (communications, overlaps, exchanges, bytes_sent)
            for table in make(summary)]
