"""The tables of docs/measured.md: (headings, rows) of measured.Source objects."""

import json
import re
import statistics

from reporting import words
from reporting.communication_tables import hidden_share
from reporting.intervals import median_interval
from reporting.records import number, numbers
from reporting.summary import Summary, highest, median_of


COMPILED, GRAPH, EAGER = HOW = "torch.compile", "CUDA graph", "eager"


def peers(path):
    """{(GPUs, model, precision, batch per GPU, how): images/s} of PyTorch, of several the last."""
    found = {}
    for one in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        how = COMPILED if one.get("compiled") else GRAPH if one["graph"] else EAGER
        found[one["world"], one["model"], one["precision"], one["batch_per_gpu"], how] = one["images_per_s"]
    return found


def peer_of(sources):
    for source in sources:
        if source.path.name == "pytorch.txt":
            return peers(source.path)
    return {}


def rates(records):
    return ", ".join(words.rate(record["images_per_s"]) for record in records)


def ends(steps):
    """The intervals of those that have one of their images/s."""
    return ", ".join(words.ends((step["images_per_s_low"], step["images_per_s_high"])) for step in steps
                     if number(step, "images_per_s_low") and step.get("images_per_s_interval"))


def known(value, digits=2):
    return None if value is None else f"{value:.{digits}f}"


def gib(record):
    peak = highest(record, "peak_memory_bytes")
    return peak and f"{peak / 2 ** 30:.1f}"


def throughput(sources, interleaved=()):
    """A row for each configuration and revision; `interleaved`: those with PyTorch's runs, of which
    a ratio means something."""
    rows, peer = {}, peer_of(sources)
    for source in sources:
        for run in source.runs:
            for step in run.of("step"):
                variant = "--recompute" if run.header.get("options.recompute") else \
                    "--max-batch" if step.get("max_batch") else ""
                key = (step["model"], step["precision"], step["batch_size"], variant,
                       source.revision(run), source.name)
                rows.setdefault(key, []).append(step)
    heads = ["model", "precision", "batch", "option", "images/s", "95 % interval",
             "step p50, p95 ms", "GiB", "PyTorch", "ratio", "revision", "file"]
    return heads, [row_of_throughput(key, steps, peer, interleaved) for key, steps in rows.items()]


def row_of_throughput(key, steps, peer, interleaved):
    model, precision, batch, variant, revision, file = key
    eager, graph = (peer.get((1, model, precision, batch, how)) for how in (EAGER, GRAPH))
    best = max(eager or 0, graph or 0) if not variant else 0
    return [model, precision, batch, variant and f"`{variant}`", rates(steps), ends(steps),
            f"{median_of(steps, 'step_ms_p50'):.2f}, {median_of(steps, 'step_ms_p95'):.2f}",
            gib(steps[0]),
            f"{words.rate(best)} {'graph' if best == graph else 'eager'}" if best else None,
            f"{median_of(steps, 'images_per_s') / best:.2f}"
            if best and f"{model} {precision} {batch} {revision}" in interleaved else None,
            revision, file]


def windows(sources):
    """Windows next to those of PyTorch, in the second file."""
    ours, theirs = sources[0], peers(sources[1].path)
    rows = []
    for one in Summary(ours.runs).measured.values():
        of = one.conditions
        peer = [theirs.get((1, of.model, of.precision, of.batch, how)) for how in HOW]
        rows.append([of.model, of.precision, of.batch, len(one.steps), words.rate(one.rate.median),
                     words.ends((one.rate.low, one.rate.high)), *(rate and words.rate(rate) for rate in peer),
                     f"{one.rate.median / max(filter(None, peer)):.2f}" if any(peer) else None])
    return ["model", "precision", "batch", "windows", "images/s, median", "range",
            *(f"PyTorch, {how}" for how in HOW), "ratio to the fastest"], rows


def before_after(sources):
    """Interleaved rounds of two trees: the first file is before, the second after."""
    sides = [{}, {}]
    for side, source in zip(sides, sources):
        for step in (step for run in source.runs for step in run.of("step")):
            key = (step["model"], step["precision"], step["batch_size"])
            side.setdefault(key, []).append(step)
    rows = []
    for key, before in sides[0].items():
        after = sides[1].get(key, [])
        rows.append([*key, rates(before), rates(after), ends(after), ", ".join(f"{new['images_per_s'] / old['images_per_s']:.3f}"
                               for old, new in zip(before, after))])
    return ["model", "precision", "batch", "images/s before", "after", "95 % intervals of after",
            "ratio of each round"], rows


WORKERS_STAGES = ("open", "read", "decode", "augment")  # their times overlap
DEVICE_STAGES = ("copy", "device_decode")


def limiting_stage(records):
    """Of the side that makes fewer images/s, the workers' or the device's: its longest stage and
    that rate; None where there is no input, or a stage is not known."""
    cost = {stage: median_of(records, f"stage_{stage}_ms")
            for stage in WORKERS_STAGES + DEVICE_STAGES}
    if None in cost.values():
        return None
    of_workers = sum(cost[stage] for stage in WORKERS_STAGES) / records[0]["workers"]
    of_device = sum(cost[stage] for stage in DEVICE_STAGES)
    side = WORKERS_STAGES if of_workers > of_device else DEVICE_STAGES
    slower = max(of_workers, of_device)
    if slower <= 0:
        return None
    return f"{max(side, key=cost.get).replace('_', ' ')}, {words.rate(1e3 / slower)}"


def inputs(sources):
    """What the source of the images costs: training on each, as a share of synthetic data, and the
    loader alone. The limiting stage is that of the training, whether or not it waited."""
    steps, alone = {}, {}
    for run in (run for source in sources for run in source.runs):
        for found, kind in ((steps, "step"), (alone, "loader")):
            for record in run.of(kind):
                data = record["data"]
                name = data if data == "synthetic" else \
                    "packed file" if data.endswith(".pack") else "folder"
                found.setdefault((name, record.get("decoder"), record.get("workers")),
                                 []).append(record)
    synthetic = statistics.median(record["images_per_s"] for (name, *_), records in steps.items()
                                  if name == "synthetic" for record in records)

    rows = [[*key, rates(records), f"{median_of(records, 'images_per_s') / synthetic:.3f}",
             limiting_stage(records), rates(alone.get(key, []))]
            for key, records in steps.items()]
    return ["images", "decoder", "workers", "training, images/s", "of synthetic",
            "limiting stage, images/s", "loader alone, images/s"], rows


# Figures of tests/peers/torch_compute.py, and compute_perf's of the same.
SAME_RATES = {f"product {name}": f"{name} sustained"
              for name in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")}
SAME_RATES |= {"device copy (read + write)": "memory copy",
               "host to device": "host to device, alone", "device to host": "device to host, alone"}
OLD_NAMES = {"memory/copy": "memory copy", "host_link/to_device/alone": "host to device, alone",
             "host_link/from_device/alone": "device to host, alone"}


def rates_of(run):
    """(test, unit, samples), as records of 0.2 name them, of those and of metric lines."""
    for record in run.of("compute"):
        yield record["test"], record["unit"], record["samples"]
    for record in run.of("metric"):
        kind, *of = record["metric"].split("/")
        test = f"{of[0]} sustained" if kind == "product" and of[1:] == ["tflops"] else \
            OLD_NAMES.get(record["metric"])
        if test:
            yield test, record["unit"], record["samples"]


def compute(sources):
    """compute_perf before and after PyTorch's figures, in the last file."""
    samples, units, peer = {}, {}, {}
    for test, unit, of_round in (rate for source in sources[:-1] for run in source.runs
                                 for rate in rates_of(run)):
        samples.setdefault(test, []).extend(of_round)
        units[test] = unit
    for line in map(json.loads, sources[-1].path.read_text(encoding="utf-8").splitlines()):
        peer[line["what"]] = line.get("tflops", line.get("gbs"))
    rows = [[test, units[test], f"{peer[what]:.1f}", f"{statistics.median(samples[test]):.1f}",
             f"{min(samples[test]):.1f} to {max(samples[test]):.1f}",
             f"{statistics.median(samples[test]) / peer[what]:.3f}"]
            for what, test in SAME_RATES.items() if what in peer and test in samples]
    return ["rate", "unit", "PyTorch", "compute_perf", "of the rounds", "ratio"], rows


def share_of(measured):
    shares = numbers(measured.steps, "efficiency_vs_none")
    if not shares:
        return None
    low, high, _ = median_interval(shares)
    text = f"{statistics.median(shares):.3f}"
    return text if low is None else f"{text} ({low:.3f}-{high:.3f})"


def shares(sources):
    """none, ddp and peer of several GPUs, and PyTorch's DDP."""
    rows, peer = [], peer_of(sources)
    for source, run in ((source, run) for source in sources for run in source.runs):
        summary = Summary([run])
        for measured in summary.measured.values():
            of, none = measured.conditions, summary.same(measured, "none")
            if measured.strategy not in ("ddp", "peer") or not none:
                continue
            eager, graph = (peer.get((of.world_size, of.model, of.precision, of.batch, how))
                            if source.known.get("peer") else None for how in (EAGER, GRAPH))
            window = statistics.median(step["iterations"] * step["step_ms_p50"] / 1e3
                                       for step in measured.steps)
            rows.append([of.world_size, of.batch, measured.strategy, f"{window:.1f}",
                         len(measured.steps), words.rate(none.rate.median),
                         words.rate(measured.rate.median),
                         share_of(measured), eager and words.rate(eager),
                         graph and words.rate(graph), source.revision(run), source.name])
    return ["GPUs", "batch", "strategy", "window s", "rounds", "none", "images/s", "share of none",
            "PyTorch DDP, eager", "graph", "revision", "file"], sorted(
                rows, key=lambda row: (-row[0], -row[1]))


def strategies(sources, terms_of=64):
    """A row for each strategy; the breakdown is of one batch."""
    source = sources[0]
    ranks = max(run.header["world_size"] for run in source.runs)
    found = [m for m in Summary(source.runs).measured.values()
             if m.rate and m.conditions.world_size == ranks]
    batches = sorted({m.conditions.batch for m in found})
    by = {(m.strategy, m.conditions.batch): m for m in found}
    heads = ["strategy", *(head for batch in batches for head in (f"batch {batch}", "share")),
             f"exposed ms ({terms_of})", "hidden", "hidden %", "interference",
             "sent per rank, MiB: theory", "measured"]
    order = sorted({m.strategy for m in found}, key=lambda name: (name != "none", -by.get(
        (name, terms_of), by[next(k for k in by if k[0] == name)]).rate.median))
    rows = []
    for name in order:
        row = [name]
        for batch in batches:
            one = by.get((name, batch))
            row += [one and words.rate(one.rate.median), one and name != "none" and share_of(one)
                    or None]
        one = by.get((name, terms_of))
        exchanging = one if name != "none" else None
        row += [exchanging and known(one.term(key)) for key in ("exposed_comm_ms", "hidden_comm_ms")]
        hidden = exchanging and hidden_share(one)
        row += [words.percent(hidden, 0) if hidden else None, exchanging and known(one.term("interference_ms") or None)]
        row += [sent(one, key) for key in ("bytes_per_step_predicted", "bytes_per_step_measured")]
        rows.append(row)
    return heads, rows


def sent(measured, key):
    """The least and the most of the ranks."""
    values = [step[key] for step in measured.steps
              if step.get(key) and None not in step[key]] if measured else []
    if not values:
        return None
    ends = dict.fromkeys(f"{of(map(statistics.median, zip(*values))) / 2 ** 20:.4g}"
                         for of in (min, max))
    return " to ".join(ends)


def settings(sources):
    """images/s compared with plain ddp in the same round."""
    summary = Summary(sources[0].runs)
    found = [m for m in summary.measured.values()
             if m.conditions.setting and m.conditions.world_size > 1]
    batches = sorted({m.conditions.batch for m in found})
    by = {(m.conditions.setting, m.conditions.batch): median_of(m.steps, "speedup_vs_plain")
          for m in found}
    names = sorted({setting for setting, _ in by})
    return ["setting", *(f"batch {batch}" for batch in batches)], [
        [name, *(known(by.get((name, batch)), 3) for batch in batches)] for name in names]


def buckets(sources):
    """ddp by its order and size of buckets, a row for each run."""
    rows = []
    for source in sources:
        for run in source.runs:
            header = run.header
            for one in Summary([run]).measured.values():
                if one.strategy.startswith("ddp") and one.steps:
                    terms = [one.term(key) for key in ("step_ms", "exposed_comm_ms",
                                                       "hidden_comm_ms", "interference_ms")]
                    rows.append([one.conditions.world_size, one.conditions.batch,
                                 header["options.bucket_order"],
                                 f"{median_of(one.steps, 'bucket_cap_mb'):g}",
                                 header.get("options.comm_ctas") or "default",
                                 words.rate(one.rate.median), share_of(one), len(one.steps),
                                 *map(known, terms),
                                 source.name])
    return ["GPUs", "batch", "bucket order", "cap MiB", "CTAs", "ddp images/s", "share of none",
            "rounds", "traced step ms", "exposed", "hidden", "interference", "file"], rows


def trainings(sources):
    rows = []
    for source in sources:
        for run in source.runs:
            epochs = run.of("epoch")
            if epochs:
                last, header = epochs[-1], run.header
                rows.append([last["model"], header["world_size"],
                             f"{header['options.learning_rate']:g}",
                             header.get("options.fusion"), last["epoch"],
                             f"{100 * last['val_top1']:.1f} %", words.percent(max(
                                 epoch["val_top1"] for epoch in epochs), 1),
                             words.rate(median_of(epochs[1:] or epochs, "images_per_s")),
                             source.revision(run), source.name])
    return ["model", "GPUs", "learning rate", "fusion", "epochs", "last top-1", "best",
            "images/s, median", "revision", "file"], rows


def links(sources):
    rows = []
    for source in sources:
        for link in (link for run in source.runs for link in run.of("link")):
            rows.append([f"{link['from']} to {link['to']}", link["direction"], link["concurrency"],
                         words.size(link["bytes"]), f"{link['bandwidth_gbs']:.1f}",
                         known(link.get("latency_us"), 1),
                         source.name])
    return ["ranks", "direction", "other pairs", "message", "GB/s", "latency us", "file"], rows


ROW = re.compile(r"^ *(\d+) +\d+ +\w+ +\w+ +-?\d+ +([\d.e+]+) +\S+ +\S+ +\S+ +([\d.e+]+) ", re.M)
CLASSES = (("below 64 KiB", 1, 1 << 16), ("64 KiB to 1 MiB", 1 << 16, 1 << 20),
           ("from 1 MiB", 1 << 20, 1 << 60))
NAMES = {"alltoall": "all_to_all"}  # nccl-tests'


def theirs(path):
    """{(operation, in place, bytes): [us]} of nccl-tests' tables."""
    found = {}
    for run in path.read_text(encoding="utf-8").split("== ")[1:]:
        operation = NAMES.get(run.split()[0], run.split()[0])
        for size, outside, inside in ROW.findall(run):
            found.setdefault((operation, False, int(size)), []).append(float(outside))
            found.setdefault((operation, True, int(size)), []).append(float(inside))
    return found


def collectives(sources):
    """Time, ours / nccl-tests', of the medians of all runs; sources in pairs."""
    rows = []
    for ours, peer in zip(sources[::2], sources[1::2]):
        mine, other = {}, theirs(peer.path)
        for record in (record for run in ours.runs for record in run.of("collective")):
            key = record["operation"], record["in_place"], record["bytes"]
            mine.setdefault(key, []).append(record["time_us_p50"])
        ratios = {key: statistics.median(mine[key]) / statistics.median(other[key])
                  for key in sorted(mine.keys() & other.keys()) if key[2] > 0}
        for name, least, most in CLASSES:
            of_class = {key: ratio for key, ratio in ratios.items() if least <= key[2] < most}
            if of_class:
                (operation, inside, size), worst = max(of_class.items(), key=lambda item: item[1])
                rows.append([ours.runs[0].header["world_size"], name, len(of_class),
                             f"{statistics.median(of_class.values()):.3f}", f"{worst:.3f}",
                             f"{operation}{', in place' if inside else ''}, {words.size(size)}",
                             ours.name])
    return ["GPUs", "sizes", "compared", "median ratio", "highest", "of", "file"], rows


def modes(sources):
    """us, out of place: back to back, in a graph, with symmetric windows."""
    kinds = ("back_to_back", "graph", "symmetric")
    found, gpus = {}, []
    for source in sources:
        gpus.append(source.runs[0].header["world_size"])
        for record in (record for run in source.runs for record in run.of("collective")):
            if not record["in_place"] and record["bytes"]:
                mode = "symmetric" if record["registration"] == 2 else record["launch_mode"]
                row = found.setdefault((record["operation"], record["bytes"]), {})
                row[gpus[-1], mode] = record["time_us_p50"]
    heads = [f"{n} GPUs: {kind.replace('_', ' ')}" for n in gpus for kind in kinds]
    return ["operation", "size", *heads], [
        [operation, words.size(size), *(known(row.get((n, kind))) for n in gpus for kind in kinds)]
        for (operation, size), row in found.items()]
