"""The time of a training step elsewhere: from a job's own measurements to other rank counts, batches, buckets
and links. Numbers in, numbers out.

A link costs a latency per message and a time per byte (Hockney 1994). Collectives are counted as their rings
(Patarasuk and Yuan 2009), which assumes a ring where another rank count is predicted. To first order: what
overlaps slows compute down, but gradients do not become ready later for it; ranks are equally fast."""

import statistics
from typing import NamedTuple

MIB = 2 ** 20

# How often an exchange of N ranks pays the latency, and how many times its bytes cross the busiest link.
PATTERNS = {
    "all_reduce": lambda n: (2 * (n - 1), 2 * (n - 1) / n),
    "pass": lambda n: (n - 1, (n - 1) / n),  # a reduce-scatter or all-gather
    "shards": lambda n: (n - 1, (n - 1) / n),  # each rank sends every other rank its shard
    "star": lambda n: (n - 1, n - 1),  # between one rank and every other
    "chain": lambda n: (n - 1, float(n > 1)),  # on from rank to rank, in pieces that follow one another
}
COLLECTIVES = ("all_reduce", "pass")
SHARDED = ("pass", "shards")  # after which each rank updates its share of the weights
OVERLAPPED = ("buckets", "blocks", "gathered_blocks")
PIECES = ("whole", *OVERLAPPED)
VOLUMES = ("gradients", "weights", "inputs")


class Link(NamedTuple):
    latency_s: float
    bytes_per_s: float  # infinite where no slope was measured


def fit_link(pattern, ranks, points):
    """(Link, worst error at a measured size) of [(bytes, seconds)]: medians of the slopes between all pairs of
    points, and of what remains, so that one bad point moves nothing (Theil 1950, Sen 1968). None without two
    sizes."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a in points for b in points if a[0] < b[0]]
    if not slopes:
        return None
    slope = max(0.0, statistics.median(slopes))
    latency = max(0.0, statistics.median(seconds - slope * size for size, seconds in points))
    messages, volume = PATTERNS[pattern](ranks)
    error = max(abs((latency + slope * size) / seconds - 1) for size, seconds in points)
    return Link(latency / messages, volume / slope if slope else float("inf")), error


class Transfer(NamedTuple):
    """What a strategy exchanges in a step, as `step` records have it: "gradients all_reduce buckets"."""
    volume: str
    pattern: str
    pieces: str
    each_micro_batch: bool  # else once per update


def transfer_of(text):
    """None for one that is not known."""
    volume, pattern, pieces, *more = text.split() + [""] * 3
    known = volume in VOLUMES and pattern in PATTERNS and pieces in PIECES
    return Transfer(volume, pattern, pieces, "each_micro_batch" in more) if known else None


class Gradient(NamedTuple):
    bytes: float  # in float32
    ready_ms: float  # since backward began
    block: int  # of the network


class Strategy(NamedTuple):
    name: str
    transfers: list  # [Transfer]
    servers: int = 0  # ranks that do not compute


class Inputs(NamedTuple):
    """A job's measurements without an exchange."""
    compute: dict  # {batch: forward and backward of a micro-batch, ms}
    gradients: list  # [Gradient], in the order in which backward finishes them
    backward_ms: float
    batch: int  # of ready_ms and backward_ms
    optimizer_ms: float
    interference: float = 0  # by which compute slows while an exchange runs: 0.1 is 10 %
    average_ms_per_byte: float = 0  # a server's, per byte of each rank's gradients
    input_bytes_per_image: float = 0


class Scenario(NamedTuple):
    world_size: int
    batch: int  # per rank that computes, of a micro-batch
    ring: Link
    star: Link
    accumulate: int = 1
    small_bucket_mb: float = 1
    bucket_cap_mb: float = 25
    gradient_factor: float = 1  # bytes sent for one of float32
    weight_factor: float = 1
    overlap: bool = True


class Prediction(NamedTuple):
    """step = compute + exposed + interference + optimizer."""
    step_ms: float
    images_per_s: float
    efficiency: float  # images/s over world_size times a single rank's
    exposed_ms: float
    extrapolated: bool  # the batch lies outside the measured ones


def compute_ms(measured, batch):
    """(ms, whether the batch is outside): lines between the measured batches, the nearest of which goes on
    beyond them; of a single batch, constant images/s."""
    if batch in measured:
        return measured[batch], False
    sizes = sorted(measured)
    outside = batch < sizes[0] or batch > sizes[-1]
    nearest = sizes[0] if batch < sizes[0] else sizes[-1] if batch > sizes[-1] else batch
    if len(sizes) > 1:
        at = min(max(sum(size < batch for size in sizes), 1), len(sizes) - 1)
        below, above = sizes[at - 1:at + 1]
        ms = measured[below] + (measured[above] - measured[below]) * (batch - below) / (above - below)
        if ms > 0:  # a line through two noisy times could end below 0
            return ms, outside
    return measured[nearest] * batch / nearest, True


def in_buckets(gradients, small_cap, cap):
    """[(bytes, ready ms)] by PyTorch's rule: a bucket is closed by the gradient that reaches its cap."""
    buckets, size, ready = [], 0.0, 0.0
    for at, gradient in enumerate(gradients, 1):
        size, ready = size + gradient.bytes, max(ready, gradient.ready_ms)
        if size >= (cap if buckets else small_cap) or at == len(gradients):
            buckets.append((size, ready))
            size, ready = 0.0, 0.0
    return buckets


def in_blocks(gradients):
    """[(bytes, ready ms)] of each block of the network."""
    blocks = {}
    for gradient in gradients:
        size, ready = blocks.get(gradient.block, (0.0, 0.0))
        blocks[gradient.block] = size + gradient.bytes, max(ready, gradient.ready_ms)
    return list(blocks.values())


def overlapped(pieces, backward_ms, time):
    """(hidden, exposed) ms: one exchange at a time, each once its piece is ready (Li et al. 2020)."""
    busy = free = 0.0
    for size, ready in pieces:
        busy += time(size)
        free = max(ready, free) + time(size)
    exposed = max(0.0, free - backward_ms)
    return busy - exposed, exposed


class Streams:
    """A rank that gathers a block's weights before it computes with them: two streams."""

    def __init__(self):
        self.free = self.computed = self.began = self.busy = 0.0

    def communicate(self, earliest, ms):
        self.free = max(self.free, earliest) + ms
        self.busy += ms

    def compute(self, ms, gathered):
        self.began = max(self.computed, gathered)
        self.computed = self.began + ms


def gathered(blocks, forward_ms, backward_ms, gather, scatter):
    """(hidden, exposed) ms: weights are gathered block by block in forward and again in backward, where
    gradients are scattered too (Zhao et al. 2023); each gather is issued when the block before begins."""
    readies = [0.0, *(ready for _, ready in blocks)]
    own = [after - before for before, after in zip(readies, readies[1:])]
    forward, backward = Streams(), Streams()
    for (size, _), ms in reversed(list(zip(blocks, own))):
        forward.communicate(forward.began, gather(size))
        forward.compute(ms * forward_ms / backward_ms, forward.free)
    for at, ((size, _), ms) in enumerate(zip(blocks, own)):
        backward.communicate(backward.began, gather(size))
        there = backward.free
        if at:
            backward.communicate(backward.computed, scatter(blocks[at - 1][0]))
        backward.compute(ms, there)
    if blocks:
        backward.communicate(backward.computed, scatter(blocks[-1][0]))
    # What belongs to no block runs after the last one.
    forward_end = forward.computed + forward_ms * (1 - readies[-1] / backward_ms)
    backward_end = max(backward.computed + backward_ms - readies[-1], backward.free)
    exposed = forward_end - forward_ms + backward_end - backward_ms
    return max(0.0, forward.busy + backward.busy - exposed), exposed


class Step:
    """A micro-batch in a scenario: its compute, and what its transfers cost."""

    def __init__(self, inputs, scenario):
        self.inputs, self.scenario = inputs, scenario
        self.compute_ms, self.extrapolated = compute_ms(inputs.compute, scenario.batch)
        stretch = self.compute_ms / compute_ms(inputs.compute, inputs.batch)[0]
        self.backward_ms = inputs.backward_ms * stretch
        self.forward_ms = max(0.0, self.compute_ms - self.backward_ms)
        self.gradients = [one._replace(ready_ms=one.ready_ms * stretch) for one in inputs.gradients]
        self.bytes = sum(one.bytes for one in inputs.gradients)

    def time(self, transfer, volume):
        """The time of an exchange, by its size in float32; nothing is sent for no bytes."""
        s = self.scenario
        factor = {"gradients": s.gradient_factor, "weights": s.weight_factor, "inputs": 1}[volume]
        messages, share = PATTERNS[transfer.pattern](s.world_size)
        link = s.ring if transfer.pattern in COLLECTIVES else s.star
        return lambda size: 1e3 * (messages * link.latency_s + share * factor * size / link.bytes_per_s) \
            if size > 0 else 0.0

    def exchanged(self, transfer):
        """(hidden, exposed) ms."""
        time, s = self.time(transfer, transfer.volume), self.scenario
        if transfer.pieces not in OVERLAPPED:
            size = self.inputs.input_bytes_per_image * s.batch if transfer.volume == "inputs" else self.bytes
            return 0.0, time(size)
        if transfer.pieces == "gathered_blocks":
            hidden, exposed = gathered(in_blocks(self.gradients), self.forward_ms, self.backward_ms,
                                       self.time(transfer, "weights"), time)
        else:
            pieces = in_blocks(self.gradients) if transfer.pieces == "blocks" else in_buckets(
                self.gradients, s.small_bucket_mb * MIB, s.bucket_cap_mb * MIB)
            hidden, exposed = overlapped(pieces, self.backward_ms, time)
        return (hidden, exposed) if s.overlap else (0.0, hidden + exposed)

    def average_ms(self, transfer, computing):
        """A server averages what the ranks that compute sent it; a collective has done so."""
        n = self.scenario.world_size
        if transfer.volume != "gradients" or transfer.pattern in COLLECTIVES or n == 1:
            return 0.0
        servers = n if transfer.pattern == "shards" else 1
        return self.inputs.average_ms_per_byte * self.bytes * self.scenario.gradient_factor * computing / servers


def predict(inputs, strategy, scenario):
    """What a micro-batch leaves exposed is counted each time: that the next forward might hide it is not."""
    step, n = Step(inputs, scenario), scenario.world_size
    computing = n - strategy.servers
    hidden = exposed = 0.0
    for transfer in strategy.transfers:
        times = scenario.accumulate if transfer.each_micro_batch else 1
        one = step.exchanged(transfer)
        hidden += times * one[0]
        exposed += times * one[1] + step.average_ms(transfer, computing)
    compute = scenario.accumulate * step.compute_ms
    shares = n if any(transfer.pattern in SHARDED for transfer in strategy.transfers) else 1
    step_ms = compute + exposed + inputs.interference * hidden + inputs.optimizer_ms / shares
    images = scenario.batch * scenario.accumulate
    rate = 1e3 * images * computing / step_ms
    single = 1e3 * images / (compute + inputs.optimizer_ms)
    return Prediction(step_ms, rate, rate / (n * single), exposed, step.extrapolated)


def usual_changes(inputs, ddp, base, largest_batch):
    """[(what, Scenario)]: larger batches, float16 gradients where they are not yet, gradients compressed to a
    quarter, a faster path, accumulation, and of the caps that people try the fastest."""
    changes = [(f"batch {base.batch * factor}", base._replace(batch=base.batch * factor))
               for factor in (2, 4) if base.batch * factor <= largest_batch]
    if base.gradient_factor > 0.5:
        changes.append(("fp16 gradients", base._replace(gradient_factor=0.5)))
    changes.append(("gradients compressed to a quarter", base._replace(gradient_factor=base.gradient_factor / 4)))
    for factor in (2, 4, 8):
        ring, star = (link._replace(bytes_per_s=link.bytes_per_s * factor) for link in (base.ring, base.star))
        changes += [(f"a path {factor} times as fast", base._replace(ring=ring, star=star)),
                    (f"an update every {base.accumulate * factor} micro-batches",
                     base._replace(accumulate=base.accumulate * factor))]
    if base.overlap:
        caps = [base._replace(small_bucket_mb=small, bucket_cap_mb=cap)
                for small in (1, 5, 10) for cap in (5, 10, 25, 50, 100, 200)]
        best = min(caps, key=lambda caps_: predict(inputs, ddp, caps_).step_ms)
        changes.append((f"--bucket-cap-mb {best.bucket_cap_mb:g} --small-bucket-mb {best.small_bucket_mb:g}", best))
    return changes
