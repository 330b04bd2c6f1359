"""The exchanges of a step (`bucket` records): one list a round, of which medians are taken."""

import statistics
from types import SimpleNamespace

from .records import number, numbers

MEDIANS = ("ready_ms", "launch_ms", "start_ms", "end_ms", "hidden_ms", "exposed_ms", "wait_ms",
           "straggler_share")


def rounds_of(records):
    """Records of one run and configuration: a list per `repeat`, each by index."""
    rounds = {}
    for record in records:
        if number(record, "index") is not None:
            rounds.setdefault(number(record, "repeat") or 1, []).append(record)
    return [sorted(found, key=lambda record: record["index"])
            for _, found in sorted(rounds.items())]


def over_rounds(rounds):
    """[an exchange, as `merged`]. Where rounds have different exchanges (runs with other buckets, say), of the last
    round alone: a median over different things is of nothing."""
    if not rounds:
        return []
    if len({tuple(map(key, found)) for found in rounds}) > 1:
        rounds = rounds[-1:]
    return [merged(same) for same in zip(*rounds)]


def key(record):
    return record["index"], record.get("exchange"), number(record, "bytes")


def merged(records):
    """index (in the order of the launch), operation, bytes, MEDIANS, duration_ms, and straggler_rank, that of most
    rounds. None is what was not recorded."""
    def median(name):
        values = [number(record, name) for record in records]
        return None if None in values else statistics.median(values)

    ranks = numbers(records, "straggler_rank")
    index, operation, size = key(records[0])
    one = SimpleNamespace(index=index, operation=operation or "", bytes=size, **{name: median(name) for name in MEDIANS},
                          straggler_rank=max(sorted(set(ranks)), key=ranks.count, default=None))
    one.duration_ms = None if None in (one.start_ms, one.end_ms) else one.end_ms - one.start_ms
    return one


def total(exchanges, name):
    """Sum of a figure; None where one lacks it, or there are none."""
    values = [getattr(exchange, name) for exchange in exchanges]
    return None if None in values or not values else sum(values)
