"""Tables of bin/train --layers: the time of a step's calls by layer and by kernel, compared with the roofs that the
same run measured: the copy bandwidth of the device's memory, and the rate of a large matrix product."""

from . import words
from .records import number, numbers, text
from .tables import FRACTION, Column, Table, figure, share

ROOFS = ("roof ms: max(FLOP / matrix rate, bytes / copy bandwidth) of each call; roof: the one that most of it is; of "
         "the roof, above 100 %: data came from a cache")
NEEDED = ("calls", "time_ms", "step_ms", "logged_step_ms", "calls_ms", "copy_gbs", "matrix_tflops")
SUMS = ("calls", "time_ms", "flop", "bytes", "roof_ms", "forward_ms", "backward_ms")


def tables(summary):
    made = []
    for run in summary.runs:
        layers, kernels = ([record for record in run.of(kind)
                            if is_whole(record)] for kind in ("layer", "kernel"))
        if layers or kernels:
            made += [table for table in (of_layers(run, layers), of_kernels(run, kernels), of_sizes(run, kernels))
                     if table.rows]
            made[-1].notes += account((layers or kernels)[0], layers or kernels)
    return made


def is_whole(record):
    """Without FLOP and bytes the roof is 0."""
    return all(number(record, key) for key in NEEDED) and number(record, "roof_ms") is not None


def rate(record, key, unit):
    """A sum over the time, in 10^9/s or 10^12/s."""
    return number(record, key) / record["time_ms"] / unit if number(record, key) else None


def summed(records, **names):
    return {**records[0], **names, **{key: sum(numbers(records, key)) for key in SUMS
                                      if any(number(record, key) is not None for record in records)}}


def columns(*first, with_flop=True):
    flop = [Column("TFLOP/s", lambda one: rate(one, "flop", 1e9), figure(2))] if with_flop else []
    return [*first, Column("of the step", lambda one: one["time_ms"] / one["step_ms"], share, FRACTION), *flop,
            Column("GB/s", lambda one: rate(one, "bytes", 1e6), figure(0))]


def of_layers(run, layers):
    rows = layers and [*layers, summed(layers, layer="sum")]
    return Table("layers", f"layers, medians of {steps(layers)}: {run.title}", [
        *columns(Column("layer", lambda one: text(one, "layer")),
                 Column("ms", lambda one: one["time_ms"], figure(3)),
                 Column("forward", lambda one: number(one, "forward_ms"), figure(3), "ms"),
                 Column("backward", lambda one: number(one, "backward_ms"), figure(3), "ms")),
        Column("roof ms", lambda one: one["roof_ms"], figure(3)),
        Column("of the roof", lambda one: one["roof_ms"] / one["time_ms"], share, FRACTION),
        Column("roof", lambda one: text(one, "roof") if one.get("layer") != "sum" else None),
    ], rows, [ROOFS] if rows else [])


def steps(records):
    return words.count(max(numbers(records, "logged_steps"), default=0), "step")


def of_copy(one):
    return rate(one, "bytes", 1e6) and rate(one, "bytes", 1e6) / one["copy_gbs"]


def per_call(one):
    return 1e3 * one["time_ms"] / one["calls"]


def of_kernels(run, kernels):
    """The sizes of each kernel together, the most time first."""
    named = {}
    for kernel in kernels:
        named.setdefault(text(kernel, "kernel"), []).append(kernel)
    rows = sorted(map(summed, named.values()), key=lambda one: -one["time_ms"])
    return Table("kernels", f"kernels, per step, medians of {steps(kernels)}: {run.title}", [
        *columns(Column("kernel", lambda one: text(one, "kernel")), Column("calls", lambda one: one["calls"]),
                 Column("ms", lambda one: one["time_ms"], figure(3)),
                 Column("us per call", per_call, figure(1))),
        Column("of the copy", of_copy, share, FRACTION)], rows)


def of_sizes(run, kernels):
    rows = sorted((one for one in kernels if not number(one, "flop_per_call")), key=lambda one: -one["time_ms"])
    return Table("kernel_sizes", f"calls without FLOP, by size: {run.title}", [
        *columns(Column("kernel", lambda one: text(one, "kernel")),
                 Column("bytes per call", lambda one: number(one, "bytes_per_call"), words.size),
                 Column("calls", lambda one: one["calls"]), Column("ms", lambda one: one["time_ms"], figure(3)),
                 Column("us per call", per_call, figure(1)), with_flop=False),
        Column("of the copy", of_copy, share, FRACTION)], rows)


def account(first, records):
    """What the step's time is made of, beyond the calls."""
    step, logged, calls = (first[key] for key in ("step_ms", "logged_step_ms", "calls_ms"))
    roof = sum(numbers(records, "roof_ms"))
    copied = f" (a copy of {words.size(first['copy_bytes'])})" if number(first, "copy_bytes") else ""
    size = first.get("matrix_size")
    product = f" (a product of {size} x {size} matrices in {first.get('precision')})" if size else ""
    yield f"roofs: {first['copy_gbs']:.1f} GB/s{copied}, {first['matrix_tflops']:.3g} TFLOP/s{product}"
    events = logged - step
    number_of = sum(numbers(records, "calls"))
    yield (f"step: {step:.3f} ms without the log, {logged:.3f} ms with it: " + (
        f"no slower with events between {number_of} calls" if events < 0 else
        f"events between {number_of} calls cost {events:.3f} ms ({words.percent(events / step)})"))
    rest = f": {first['rest']}" if text(first, "rest") else ""
    yield (f"calls: {calls:.3f} ms, {words.percent(calls / step)} of the step without the log; the rest of the step "
           f"with it, {logged - calls:.3f} ms{rest}")
    yield f"roof: {roof:.3f} ms, {words.percent(roof / calls)} of the calls' time"
