"""Tables of GPUs' rates, collectives, links and health."""

import statistics

from . import words
from .records import number, numbers, text, texts
from .summary import median_of
from .tables import FRACTION, Column, Table, by_conditions, figure, reasons_of, share


def grouped(summary, kind, wanted, key):
    """{key(run, record): [record]} of the records of a kind that have the figure `wanted`."""
    found = {}
    for run in summary.runs:
        for record in run.of(kind):
            if number(record, wanted) is not None:
                found.setdefault(key(run, record), []).append(record)
    return found


def collectives(summary):
    """Latency at the smallest size that moves anything and the highest busbw, of each operation
    and mode. Modes of one operation are compared up to the largest size that all of them have."""
    found = grouped(summary, "collective", "busbw_gbs",
                    lambda run, record: (mode_of(run, record), number(record, "world_size") or 0))
    if not found:
        return []
    shared = shared_parts([mode for mode, _ in found])
    common = common_sizes(found)

    def smallest(records):
        least = min((r["bytes"] for r in records if number(r, "bytes")), default=None)
        latency = median_of([r for r in records if r.get("bytes") == least], "time_us_p50")
        return None if None in (least, latency) else f"{latency:.2f} at {words.size(least)}"

    def fastest(item):
        """Of the sizes that the operation's other modes have too."""
        sizes = common[of_operation(item[0])]
        return highest_busbw([r for r in item[1] if number(r, "bytes") in sizes] or item[1])

    def beyond(item):
        best = highest_busbw(item[1])
        return None if best["busbw_gbs"] <= fastest(item)["busbw_gbs"] else \
            f"{best['busbw_gbs']:.4g} at {words.size(number(best, 'bytes') or 0)}"

    def wrong(records):
        known = numbers(records, "wrong_elements")
        return f"{sum(known):.0f}" if known else "not checked"
    return [Table("collectives", ", ".join(["collectives", *shared]), [
        Column("operation", lambda item: ", ".join(
            part for part in item[0][0] if part not in shared)),
        Column("ranks", lambda item: item[0][1]),
        Column("smallest, us", lambda item: smallest(item[1])),
        Column("busbw GB/s", lambda item: fastest(item)["busbw_gbs"], "{:.4g}".format),
        Column("at", lambda item: number(fastest(item), "bytes") or 0, words.size),
        Column("at other sizes", beyond),
        Column("wrong", lambda item: wrong(item[1])),
    ], sorted(found.items(), key=lambda item: str(item[0])), [
        "busbw: the highest over the sizes that all modes of an operation have; at other sizes: what is "
        "higher there"])]


def highest_busbw(records):
    return max(records, key=lambda record: record["busbw_gbs"])


def of_operation(key):
    (operation, *_), ranks = key
    return operation, ranks


def common_sizes(found):
    """{(operation, ranks): the sizes that all its modes have}."""
    sizes = {}
    for key, records in found.items():
        of = {number(record, "bytes") for record in records}
        sizes[of_operation(key)] = sizes.get(of_operation(key), of) & of
    return sizes


def shared_parts(several):
    """The parts that all have in common, except the first: for the title."""
    return [part for part in (several or [()])[0][1:] if all(part in one for one in several)]


MODES = (("reduction", "{}", "sum", "none"), ("registration", "registration {}", 0), ("mpi_algorithm", "{} algorithm", "library"),
         ("split", "{}"), ("traffic", "{}"), ("aggregate", "--agg-iters {}", 1), ("blocking", "--blocking {}", 0),
         ("average", "--average {}", 1), ("ctas", "{} CTAs", 0),
         ("cta_policy", "--cta-policy {}"))  # key, its words, values that are not named


def mode_of(run, record):
    """In parts, of which the first is the operation."""
    parts = [str(record.get("operation")), record.get("dtype"),
             "in place" if record.get("in_place") else "",
             str(record.get("launch_mode", "")).replace("_", " "),
             *(said.format(record[key]) for key, said, *usual in MODES if record.get(key) not in (None, *usual)),
             "--path" if run.logs_path else "", record.get("transport"), run.machine]
    return tuple(part for part in parts if part)


def links(summary):
    found = grouped(summary, "link", "bandwidth_gbs", lambda run, link: tuple(filter(None, (
        str(link.get("direction")), link.get("from_host") != link.get("to_host") and "between nodes",
        str(link.get("concurrency")), number(link, "bytes") and words.size(link["bytes"]), words.count(link.get("world_size"), "rank"),
        run.machine))))
    shared = shared_parts(list(found))

    def median(records):
        return statistics.median(link["bandwidth_gbs"] for link in records)

    def slowest(records):
        return min(records, key=lambda link: link["bandwidth_gbs"])
    return [Table("links", ", ".join(["links", *shared]), [
        Column("direction", lambda item: ", ".join(
            part for part in item[0] if part not in shared)),
        Column("links", lambda item: len({tuple(link.get(end) for end in ("from_host", "from", "to_host", "to"))
                                          for link in item[1]})),
        Column("median GB/s", lambda item: median(item[1]), "{:.4g}".format),
        Column("slowest GB/s", lambda item: slowest(item[1])["bandwidth_gbs"], "{:.4g}".format),
        Column("ranks", lambda item: "{} to {}".format(
            *(slowest(item[1]).get(end) for end in ("from", "to")))),
        Column("below median", lambda item: 1 - slowest(item[1])["bandwidth_gbs"] /
               median(item[1]) if len(item[1]) > 2 else None, share),
        Column("latency us", lambda item: max((number(link, "latency_us") or 0
                                               for link in item[1])) or None, "{:.4g}".format),
    ], list(found.items()), ["latency: the highest"])] if found else []


def splits(summary):
    """All-reduces within a part of the ranks: medians over repetitions."""
    found = grouped(summary, "split", "busbw_gbs", lambda run, record: (
        f"{record.get('scope')} {record.get('name')}, {run.machine}", record.get("world_size"),
        number(record, "bytes") or 0))
    return [Table("splits", "all-reduce within rails and nodes", [
        Column("part", lambda item: item[0][0]), Column("ranks", lambda item: item[0][1]),
        Column("bytes", lambda item: item[0][2], words.size),
        Column("busbw GB/s", lambda item: median_of(item[1], "busbw_gbs"), "{:.4g}".format),
    ], list(found.items()))] if found else []


BEST = ("memory/", "host_link/")  # to which other work only adds time: the best sample counts, as for the judge (limits.json)


def last_looks(summary):
    """{(metric, path class, machine, conditions): {who: (figure, record)}} of GPUs and CPU ranks: of several
    measurements of one, the last. GPUs choose algorithms and shapes of products themselves."""
    found = {}
    for run in summary.runs:
        for record in run.of("metric"):
            values = [value for value in record.get("samples") or () if isinstance(value, (int, float))]
            if record.get("scope") in ("gpu", "rank") and values:
                product = text(record, "metric").startswith("product/")
                conditions = tuple((name[10:], value) for name, value in record.items()
                                   if name.startswith("condition.manner" if product else "condition."))
                key = text(record, "metric"), text(record, "path_class"), text(record, "board") or run.machine, conditions
                who = (*texts(record, "hosts"), text(record, "name"))
                found.setdefault(key, {})[who] = (max if key[0].startswith(BEST) else statistics.median)(values), record
    return found


def differing(looks):
    """{key of last_looks: the conditions in which others of its metric differ, in words}."""
    alike = {}
    for *what, conditions in looks:
        alike.setdefault(tuple(what), []).append(conditions)
    return {key: ", ".join(f"{name} {value}" for name, value in key[-1]
                           if not all((name, value) in other for other in alike[key[:-1]])) for key in looks}


def products(summary):
    """What is the GPU's own, and what heat and power make of it."""
    found, looks = {}, last_looks(summary)
    for key, others in differing(looks).items():
        parts = key[0].split("/")
        if len(parts) == 3 and parts[0] == "product":
            kind = ", ".join(filter(None, (parts[1], others)))
            found.setdefault((kind, key[2]), {})[parts[2]] = [value for value, _ in looks[key].values()]

    def figures(key, over):
        return lambda item: over(item[1][key]) if key in item[1] else None
    shared = shared_parts([("products", machine) for _, machine in found])
    return [Table("products", ", ".join(["products", *shared]), [
        Column("type", lambda item: item[0][0]),
        Column("machine", lambda item: "" if item[0][1] in shared else item[0][1]),
        Column("GPUs or ranks", lambda item: max(map(len, item[1].values()))),
        Column("FLOP/cycle/SM", figures("flop_per_cycle_sm", statistics.median), "{:.5g}".format),
        Column("least", figures("flop_per_cycle_sm", min), "{:.5g}".format),
        Column("SM MHz", figures("clock_mhz", statistics.median), figure(0)),
        Column("lowest", figures("clock_mhz", min), figure(0)),
        Column("TFLOP/s", figures("tflops", statistics.median), "{:.4g}".format),
    ], list(found.items()), ["medians over GPUs, and the GPU with the least; clocks of the SMs' own counters"])] \
        if found else []


def rates(summary):
    """Memory, host link and training of each GPU; collectives and links have tables of their own."""
    found = {key: of for key, of in last_looks(summary).items() if not key[0].startswith("product/")}
    shared, others = shared_parts([("rates", key[2]) for key in found]), differing(found)

    def slowest(of):
        most = max if next(iter(of.values()))[1].get("unit") in ("us", "ms", "s") else min
        return most(of.items(), key=lambda item: item[1][0])
    return [Table("rates", ", ".join(["rates", *shared]), [
        Column("metric", lambda item: ", ".join(filter(None, (
            *item[0][:2], others[item[0]], "" if item[0][2] in shared else item[0][2])))),
        Column("unit", lambda item: next(iter(item[1].values()))[1].get("unit")),
        Column("GPUs or ranks", lambda item: len(item[1])),
        Column("median", lambda item: statistics.median(value for value, _ in item[1].values()), "{:.5g}".format),
        Column("slowest", lambda item: slowest(item[1])[1][0], "{:.5g}".format),
        Column("of", lambda item: " ".join(slowest(item[1])[0])),
    ], list(found.items()), ["of each GPU the best sample of memory and host link, the median of all else"])] if found else []


def samples(summary):
    """The samples of each GPU."""
    found = {}
    for record in summary.records("health"):
        found.setdefault(f"{record.get('host')} GPU {record.get('index')}", []).append(record)

    def over(of, key):
        def value(item):
            values = numbers(item[1], key)
            return of(values) if values else None
        return value

    def grown(*keys):
        """Since the first reading; a counter that became less was reset."""
        def value(item):
            series = [numbers(item[1], key) for key in keys]
            return sum(max(0, later - earlier) for of in series for earlier, later in zip(of, of[1:])) \
                if any(series) else None
        return value

    def throttled(item):
        known = [record["reasons"] for record in item[1] if isinstance(record.get("reasons"), str)]
        return sum(map(bool, known)) / len(known) if known else None
    return [Table("gpus", "GPUs", [
        Column("host and GPU", lambda item: item[0]),
        Column("samples", lambda item: len(item[1])),
        Column("highest C", over(max, "temperature_c"), figure(0)),
        Column("mean W", over(statistics.fmean, "power_w"), figure(0)),
        Column("highest W", over(max, "power_w"), figure(0)),
        Column("lowest SM MHz", over(min, "sm_clock_mhz"), figure(0)),
        Column("new ECC errors", grown("volatile_corrected", "volatile_uncorrected")),
        Column("readings stalled", lambda item: sum("stalled" in record for record in item[1]) or None),
        Column("mean utilisation %", over(lambda values: statistics.fmean(values) / 100,
                                          "utilisation_percent"),
               lambda mean: f"{100 * mean:.0f}", FRACTION),
        Column("reduced %", throttled, lambda ratio: f"{100 * ratio:.0f}", FRACTION),
        Column("clocks reduced by", lambda item: reduced_by(item[1], "reasons")),
    ], list(found.items()))] if found else []


def reduced_by(records, key):
    return ", ".join(reasons_of(records, key)) or "nothing"


def timed_windows(summary):
    """What the GPUs did in the timed windows of the throughput runs, the worst rank."""
    def known(measured):
        return any(measured.highest(key) is not None for key in ("temperature_c", "power_w"))
    return by_conditions(summary, "timed_windows", "GPUs in the timed windows, the worst rank", known, [
        Column("C", lambda m: m.highest("temperature_c"), figure(0)),
        Column("W", lambda m: m.highest("power_w"), figure(0)),
        Column("lowest SM MHz", lambda m: m.lowest("sm_clock_mhz"), figure(0)),
        Column("images/s per rank", lambda m: m.rate and m.rate.median / m.ranks_computing, words.rate),
        Column("TFLOP/s per rank", lambda m: median_of(m.steps, "tflops_per_rank"), figure(1)),
        Column("J/image", lambda m: median_of(m.steps, "joules_per_image"), "{:.3g}".format),
        Column("clocks reduced by", lambda m: reduced_by(m.steps, "throttle_reasons")),
    ])


def loaders(summary):
    """Of `train --loader-only`: what the input alone reaches, and the workers' time per image."""
    found = [record for run in summary.runs for record in run.of("loader")]

    def us(key):
        return lambda record: None if number(record, key) is None else 1e3 * record[key]
    return [Table("loader", "loader alone", [
        Column("data", lambda record: text(record, "data")),
        *(Column(head, lambda record, key=key: record.get(key)) for head, key in (
            ("size", "image_size"), ("batch", "batch_size"), ("ranks", "world_size"), ("workers", "workers"),
            ("decoder", "decoder"))),
        Column("images/s", lambda record: number(record, "images_per_s"), words.rate),
        *(Column(f"{stage} us", us(f"stage_{stage}_ms"), figure(1)) for stage in (
            "open", "read", "decode", "augment", "copy", "device_decode")),
    ], found, ["us: per image; open to augment of the workers, which work at the same time"], zeros=False)] if found else []


def tables(summary):
    return [table for make in (products, rates, collectives, links, splits, loaders) for table in make(summary)]
