"""The figures that a run measured, from its records. Metrics are stable names, the same in
references and history:

  compute/<type>/burst|sustained                        TFLOP/s of a GPU
  memory/read|write|copy|triad                          GB/s of a GPU
  host/to_device|from_device|both/alone|all_at_once     GB/s of a GPU
  link/<place>/send|receive|both/<when>/worst|median    GB/s of a GPU's links
  link/<place>/latency/<when>/worst|median              us of a GPU's links
      place: within_node|between_nodes, when: alone|concurrent
  split/node|rail|all/all_reduce/busbw                  GB/s of a part of the job's ranks
  collective/<operation>/<type>/<bytes>/<placement>/busbw|latency
      GB/s of a node or group, or us up to 64 KiB; placement: in_place|out_of_place
  path/<operation>/<type>/<bytes>                       channels; its conditions are the path
  train/<model>/<precision>/<batch>/images_per_s_per_rank
  soak/<type>/steady                                    TFLOP/s of a GPU, checked products
  setting/power_limit, setting/nvlinks                  of a GPU, not measured but read
"""

import math
import statistics

from ..model import Figure
from .records import Ranks, jobs

LATENCY_BYTES = 65536  # up to here a collective is judged by its time
SETTLED_S = 1  # timed seconds per round from which on a GPU is at its power limit
EXPLAINS = ("sm_clock_mhz", "power_w", "temperature_c", "throttle_reasons", "rate_per_ghz", "numa",
            "algorithm", "shares")
COLLECTIVE = ("transport", "mpi_algorithm", "launch_mode", "reduction", "root", "registration",
              "aggregate", "blocking", "average", "ctas")
PATH = ("algorithm", "protocol")
TRAINING = ("image_size", "classes", "accumulate", "strategy", "optimizer", "data", "graph",
            "bucket_cap_mb", "invariant", "grad_dtype")
TRAINING_OPTIONS = {"deterministic": False, "check_neighbour": 0, "fusion": "auto"}
HOST_COPIES = {"host to device": "to_device", "device to host": "from_device",
               "both directions": "both"}


def figures(run, records):
    """`records`: the lines of its record, as records.read returns them."""
    found = []
    for head, lines in jobs(records):
        job = JobFigures(run, head)
        for kind, reader in READERS.items():
            found += reader(job, [line for line in lines if line["kind"] == kind])
    return found


class JobFigures:
    """One program's `run` record, and the figures it is made of."""

    def __init__(self, run, head):
        self.head = head
        self.ranks = Ranks(run.nodes, head)
        self._run = run
        self._common = {"backend": head.get("backend", ""),
                        "device": head.get("gpu") or head.get("processor", "")}

    def world(self):
        """Conditions of what depends on how many take part."""
        return {"world_size": len(self.ranks), "ranks_per_node": self.ranks.per_node()}

    def of_rank(self, rank, metric, samples, unit, explains=(), **other):
        return self._figure((self.ranks.node(rank),), metric, samples, unit,
                            gpu=self.ranks.gpu(rank), explains={"rank": rank, **dict(explains)},
                            **other)

    def of_group(self, metric, samples, unit, nodes=None, **other):
        return self._figure(nodes or self._run.nodes, metric, samples, unit, **other)

    def _figure(self, nodes, metric, samples, unit, conditions=(), explains=(), **other):
        samples = tuple(float(sample) for sample in samples)
        return Figure(self._run.stage, tuple(nodes), metric, statistics.median(samples), unit,
                      higher_is_better=unit not in ("us", "ms"),
                      samples=samples if len(samples) > 1 else (),
                      conditions={**self._common, **dict(conditions)},
                      explains=dict(explains), **other)


def numbers(values):
    """Those that are known."""
    return [value for value in values or () if isinstance(value, (int, float))
            and not isinstance(value, bool) and math.isfinite(value)]


def picked(line, keys):
    return {key: line[key] for key in keys if line.get(key) not in (None, "")}


def listed(line):
    """What of `explains` is a list with a value per rank: the lowest clock, the hottest GPU."""
    reasons = " ".join(filter(None, line.get("throttle_reasons") or []))
    all_ = {"sm_clock_mhz": min(numbers(line.get("sm_clock_mhz")), default=None),
            "temperature_c": max(numbers(line.get("temperature_c")), default=None),
            "power_w": max(numbers(line.get("power_w")), default=None),
            "throttle_reasons": " ".join(dict.fromkeys(reasons.split()))}
    return {key: value for key, value in all_.items() if value not in (None, "")}


# ---- one device ----

def compute(job, lines):
    """Of a pass that measured again what counts is the second; what the first had is kept next to it.
    The rates of a GPU that others use as well are none of its own."""
    last, first = {}, {}
    for line in lines:
        key = line.get("rank"), line.get("test")
        if line.get("pass", 1) >= last.get(key, {}).get("pass", 1):
            last[key] = line
        if line.get("pass", 1) == 1:
            first[key] = {"first_samples": numbers(line.get("samples"))}
    found = []
    for (rank, test), line in last.items():
        samples = numbers(line.get("samples"))
        if line.get("correct") and "in_use" not in line and \
                samples and len(samples) == len(line["samples"]):
            found.append(job.of_rank(rank, compute_metric(test), samples, line["unit"],
                                     conditions=compute_conditions(job, line),
                                     explains={**picked(line, EXPLAINS), **(
                                         first.get((rank, test), {}) if line.get("pass", 1) > 1 else {})}))
    return found


def compute_metric(test):
    """"fp16 burst", "memory copy", "host to device, all at once"."""
    if ", " in test:
        copies, manner = test.split(", ")
        return f"host/{HOST_COPIES[copies]}/{manner.replace(' ', '_')}"
    first, second = test.split(" ")
    return f"memory/{second}" if first == "memory" else f"compute/{first}/{second}"


def compute_conditions(job, line):
    conditions = {"device": line["model"], **picked(line, ("size", "bytes"))}
    if "size" in line:
        conditions["data"] = "random"
    if line["test"].endswith("sustained"):
        conditions["settled"] = line["seconds"] >= SETTLED_S
    if line["test"].endswith("all at once"):
        conditions["ranks_per_node"] = job.ranks.per_node()
    return conditions


def soak(job, lines):
    samples, seen = {}, {}
    for line in lines:
        shape, _, load = line["phase"].partition(" products ")
        if shape != "steady" or not load:
            continue
        settled = line["seconds"] >= SETTLED_S
        for rank, rate in enumerate(line.get("tflops") or []):
            if numbers([rate]):
                key = rank, load, line["size"], settled
                samples.setdefault(key, []).append(rate)
                seen[key] = {name: line[name][rank] for name in EXPLAINS
                             if numbers((line.get(name) or [])[rank:rank + 1])}
    return [job.of_rank(rank, f"soak/{load}/steady", rates, "TFLOP/s", explains=seen[key],
                        conditions={"size": size, "data": "random", "settled": settled,
                                    **job.world()})  # ranks vote about each product
            for key, rates in samples.items() for rank, load, size, settled in (key,)]


def health(job, lines):
    """The settings that other figures depend on; of the last reading of each GPU."""
    last = {line["uuid"]: line for line in lines if line.get("uuid")}
    found = []
    for uuid, line in last.items():
        for metric, key, unit in (("setting/power_limit", "power_limit_w", "W"),
                                  ("setting/nvlinks", "nvlinks_active", "links")):
            for value in numbers([line.get(key)]):
                found.append(job.of_group(metric, [value], unit, gpu=uuid,
                                          nodes=(job.ranks.host(line["host"]),),
                                          conditions={"device": line.get("model", "")}))
    return found


# ---- links ----

def link(job, lines):
    """Of each rank the worst of its links and, of several, the median: a whole matrix judges
    nothing that these do not, and a GPU has a slow link or only slow ones."""
    values, about = {}, {}
    for line in lines:
        here, there = line["from"], line["to"]
        same = job.ranks.node(here) == job.ranks.node(there)
        place = "within_node" if same else "between_nodes"
        both = line["direction"] == "bidirectional"
        ends = [(here, "both"), (there, "both")] if both else [(here, "send"), (there, "receive")]
        rates = [(rank, way, line["bandwidth_gbs"]) for rank, way in ends]
        if "latency_us" in line:
            rates.append((here, "latency", line["latency_us"]))
        for rank, way, value in rates:
            key = rank, place, way, line["concurrency"]
            values.setdefault(key, []).append((value, there if rank == here else here))
            about[key] = {"bytes": line["bytes"]} if way != "latency" else {"bytes": 8}
            about[key].update(picked(line, ("transport",)))
    return [figure for key in values for figure in links_of(job, key, values[key], about[key])]


def links_of(job, key, values, conditions):
    rank, place, way, when = key
    unit = "us" if way == "latency" else "GB/s"
    worst, peer = max(values) if way == "latency" else min(values)
    typical = statistics.median(value for value, _ in values)
    conditions = {**conditions, **job.world()}
    metric = f"link/{place}/{way}/{when}"
    explains = {"worst_with": f"rank {peer} on {job.ranks.node(peer)}"}
    found = [job.of_rank(rank, f"{metric}/worst", [worst], unit, conditions=conditions,
                         explains=explains)]
    if len(values) > 1:
        found.append(job.of_rank(rank, f"{metric}/median", [typical], unit, conditions=conditions))
    return found


def split(job, lines):
    found = []
    for line in lines:
        if line["scope"] == "without_node":
            continue
        nodes = (job.ranks.host(line["name"]),) if line["scope"] == "node" else None
        found.append(job.of_group(
            f"split/{line['scope']}/{line['operation']}/busbw", [line["busbw_gbs"]], "GB/s",
            nodes=nodes, explains={"part": line["name"]},
            conditions={**picked(line, ("transport", "world_size", "bytes")),
                        "ranks_per_node": job.ranks.per_node()}))
    return found


# ---- groups ----

def collective(job, lines):
    """Repetitions of an operation are the samples of one figure."""
    values, about = {}, {}
    for line in lines:
        samples = [each for each in numbers(line.get("samples_us")) if each > 0]
        small = line["bytes"] <= LATENCY_BYTES
        if not samples or line["busbw_gbs"] <= 0 or is_logged(line):
            continue  # nothing moved; or NCCL's log is in the time
        if not small:
            samples = [line["busbw_gbs"] * line["time_us_p50"] / each for each in samples]
        key = (line["operation"], line["dtype"], line["bytes"], line["in_place"],
               tuple(sorted(collective_conditions(job, line).items())))
        values.setdefault(key, []).extend(samples)
        about[key] = line
    found = []
    for key, samples in values.items():
        operation, dtype, size, in_place, conditions = key
        small = size <= LATENCY_BYTES
        placement = "in_place" if in_place else "out_of_place"
        found.append(job.of_group(
            f"collective/{operation}/{dtype}/{size}/{placement}/"
            f"{'latency' if small else 'busbw'}",
            samples, "us" if small else "GB/s", conditions=conditions,
            explains=picked(about[key], ("wait_for_straggler_us", "straggler_rank"))))
    return found + paths(job, lines)


def is_logged(line):
    return "algorithm" in line or "transports" in line


def paths(job, lines):
    """What --path logged: of each operation and size the last."""
    last = {f"path/{line['operation']}/{line['dtype']}/{line['bytes']}": line
            for line in lines if is_logged(line)}
    return [job.of_group(metric, [line.get("channels", 0)], "channels",
                         conditions=collective_conditions(job, line))
            for metric, line in last.items()]


def collective_conditions(job, line):
    """Its path among them, as far as it is known: --path records what NCCL logs of it."""
    conditions = {**picked(line, COLLECTIVE + PATH), **job.world()}
    if line.get("transports"):
        conditions["transports"] = " ".join(sorted(line["transports"]))
    if line.get("transport") == "nccl":
        nvls = nvls_of(job.head, line)
        conditions.update({"nvls": nvls} if nvls else {})
    return conditions


def nvls_of(head, line):
    """"on", "off"; "" unknown."""
    if "algorithm" in line:
        return "on" if "NVLS" in line["algorithm"].upper() else "off"
    return "off" if str(head.get("environment.NCCL_NVLS_ENABLE")) == "0" else ""


def step(job, lines):
    values, about = {}, {}
    for line in lines:
        conditions = {**picked(line, TRAINING), **job.world(),
                      **{name: job.head.get(f"options.{name}", usual)
                         for name, usual in TRAINING_OPTIONS.items()}}
        key = (f"train/{line['model']}/{line['precision']}/{line['batch_size']}",
               tuple(sorted(conditions.items())))
        values.setdefault(key, []).append(line)
        about[key] = {**listed(line), **picked(line, ("step_ms_p50", "step_ms_p95"))}
    return [job.of_group(f"{metric}/images_per_s_per_rank",
                         [row["images_per_s_per_rank"] for row in rows], "images/s",
                         conditions=conditions, explains=about[metric, conditions])
            for (metric, conditions), rows in values.items()]


READERS = {"compute": compute, "link": link, "split": split, "collective": collective,
           "step": step, "soak": soak, "health": health}
