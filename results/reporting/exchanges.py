"""The exchanges of a step (`bucket` records): one list a round, of which medians are taken."""

import statistics
from typing import NamedTuple, Optional

from .records import number, numbers

TIMES = ("ready_ms", "launch_ms", "start_ms", "end_ms", "hidden_ms", "exposed_ms", "wait_ms",
         "straggler_share")


class Exchange(NamedTuple):
    """None is what was not recorded."""
    index: int  # in the order of the launch
    operation: str
    bytes: Optional[float]
    ready_ms: Optional[float]  # this and what follows: medians over the rounds
    launch_ms: Optional[float]
    start_ms: Optional[float]
    end_ms: Optional[float]
    hidden_ms: Optional[float]
    exposed_ms: Optional[float]
    wait_ms: Optional[float]
    straggler_share: Optional[float]
    straggler_rank: Optional[int]  # of most rounds

    @property
    def duration_ms(self):
        return None if None in (self.start_ms, self.end_ms) else self.end_ms - self.start_ms


def rounds_of(records):
    """Records of one run and configuration: a list per `repeat`, each by index."""
    rounds = {}
    for record in records:
        if number(record, "index") is not None:
            rounds.setdefault(number(record, "repeat") or 1, []).append(record)
    return [sorted(found, key=lambda record: record["index"])
            for _, found in sorted(rounds.items())]


def over_rounds(rounds):
    """[Exchange]. Where rounds have different exchanges (runs with other buckets, say), of the last
    round alone: a median over different things is of nothing."""
    if not rounds:
        return []
    if len({tuple(map(key, found)) for found in rounds}) > 1:
        rounds = rounds[-1:]
    return [merged(same) for same in zip(*rounds)]


def key(record):
    return record["index"], record.get("exchange"), number(record, "bytes")


def merged(records):
    def median(name):
        values = [number(record, name) for record in records]
        return None if None in values else statistics.median(values)

    ranks = numbers(records, "straggler_rank")
    index, operation, size = key(records[0])
    return Exchange(index, operation or "", size, **{name: median(name) for name in TIMES},
                    straggler_rank=max(sorted(set(ranks)), key=ranks.count, default=None))


def total(exchanges, name):
    """Sum of a figure; None where one lacks it, or there are none."""
    values = [getattr(exchange, name) for exchange in exchanges]
    return None if None in values or not values else sum(values)
