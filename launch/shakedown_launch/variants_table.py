"""The table of a launch/variants run, from the records in its folder; after it, what went wrong."""

import glob
import pathlib
import re
import statistics
from typing import NamedTuple

from reporting.verdict import WRONG_DATA
from reporting.words import count, size

from . import records
from .command import UsageError
from .words import in_columns

RESULTS = {0: "ok", 1: "fail", 2: "usage error", 3: "inconclusive", 4: "internal error",
           5: "stopped"}
FILE = "variants.tsv"  # a launch per line: the variant's name, settings, what they take away, exit code
TIMEOUT = 124  # in place of the exit code
WORST_FIRST = [5, 1, 4, 3, 2, 0]
FEWEST_SAMPLES = 6  # of which a median has a 95 % interval
SWITCHES = {"nccl": "NCCL_", "mpi": ("OMPI_", "MPIR_")}  # whose variables a transport reads


class Figure(NamedTuple):
    value: float
    more_is_better: bool
    interval: tuple = ()  # where the record has one
    interval_of: str = "95 % intervals"
    doubt: str = ""  # about a difference
    wrong_elements: int = 0
    wrong_as: str = ""  # what most of them are: "stale"


def severity(code):
    return WORST_FIRST.index(code if code in RESULTS else 4)


def name_of_launch(variant, number):
    """Of its files."""
    return f"{variant}.{number + 1}" if number else variant


class Variant:
    def __init__(self, folder, name, rows):
        self.name, self.lines, self.launches, said = name, [], [], []
        results = []
        for number, row in enumerate(rows):
            _, self.settings, self.without, code = row.split("\t")
            path = folder / name_of_launch(name, number)
            read = records.read(f"{path}.jsonl")
            self.lines += [line for line in read if line["kind"] != records.UNREADABLE]  # of a run that was killed, too
            logs = [f"{path}.log", *sorted(glob.glob(f"{glob.escape(str(path))}.nccl.*"))]
            said.append([line for log in logs for line in pathlib.Path(log).read_text(errors="replace").splitlines()])
            results.append(self.result_of(int(code), said[-1]))
            self.launches.append((results[-1][0], str(path), "\n".join(said[-1])))
        self.figures = dict(measured(self.lines))
        worst = min(range(len(rows)), key=lambda number: severity(results[number][0]))
        (self.code, self.result), self.said = results[worst], said[worst]
        self.ok = self.result == "ok"
        if len(set(results)) > 1:
            self.result += f" in {results.count(results[worst])} of {len(rows)}"

    def result_of(self, code, said):
        if code == TIMEOUT:
            return 3, "timeout"
        if code and "NCCL_ALGO" in self.settings and first(NO_ALGORITHM, said):
            return 0, "not available"
        return code, RESULTS.get(code, f"exit code {code}")

    def run(self):
        return next((line for line in self.lines if line["kind"] == "run"), {})

    def applies(self):
        """Whether the transport reads this variant's variables."""
        prefix = SWITCHES.get(self.run().get("transport"), "")
        return not self.settings or self.settings.startswith(prefix)


RATE = {"step": ("images_per_s", "images/s", " (too few steps for an interval)"),
        "link": ("bandwidth_gbs", "GB/s", " (no interval)"), "visit": ("forward_gbs", "GB/s", " (no interval)")}


def what_of(line):
    """What a record measured, in words: others of it are repetitions."""
    kind = line["kind"]
    if kind == "collective":
        reduction = line.get("reduction")
        return " ".join([line["operation"], line["dtype"], *[reduction] * (reduction not in (None, "none", "sum"))])
    if kind == "step":
        cap = line.get("bucket_cap_mb")
        parts = (f"{line['model']} {line['strategy']}", cap and f"{cap:g} MiB", line.get("setting"), line.get("precision"),
                 f"batch {line['batch_size']}", line.get("world_size") and count(line["world_size"], "rank"))
        return ", ".join(filter(None, parts))
    return ", ".join(filter(None, ("links, one direction", line.get("concurrency"))))


def measured(lines):
    """((what, unit), Figure) of a record; the median of what was measured repeatedly."""
    groups = {}
    for line in lines:
        if line["kind"] in ("collective", *RATE) and not line.get("direction", "").startswith("bi"):
            groups.setdefault((line["kind"], what_of(line)), []).append(line)
    for (kind, what), group in groups.items():
        if kind == "collective":
            yield from measured_collective(what, group)
            continue
        key, unit, doubt = RATE[kind]
        ends = tuple(filter(None, (median(group, f"{key}_low"), median(group, f"{key}_high"))))
        ends = ends if len(ends) == 2 else ()
        yield (what, unit), Figure(median(group, key), True, ends, doubt="" if ends else doubt)


def measured_collective(what, lines):
    """The bandwidth of the largest size, and the time of the smallest."""
    lines = [line for line in lines if not line["in_place"]] or lines
    lines = [line for line in lines if line["bytes"] > 0] or lines  # else nothing moved
    wrong = sum(line.get("wrong_elements") or 0 for line in lines)
    regions = {name: sum(line.get(f"wrong_{name}") or 0 for line in lines) for name in WRONG_DATA}
    wrong_as = max(regions, key=regions.get).replace("_", " ") if any(regions.values()) else ""
    for key, unit, more_is_better, pick in [("busbw_gbs", "GB/s", True, max),
                                            ("time_us_p50", "us", False, min)]:
        bytes_ = pick(line["bytes"] for line in lines)
        of_size = [line for line in lines if line["bytes"] == bytes_]
        value, time = median(of_size, key), median(of_size, "time_us_p50")
        ends, interval_of = spread(of_size)
        if more_is_better:
            ends = tuple(value * time / end for end in reversed(ends)) if value and time else ()
        yield (f"{what}, {size(bytes_)}", unit), Figure(
            value, more_is_better, ends, interval_of, wrong_elements=wrong, wrong_as=wrong_as,
            doubt="" if ends else " (too few samples for an interval)")


def spread(lines):
    """((low, high), what they are) of the times of collectives, as results/report has them; none
    of a single sample."""
    samples = [line.get("samples_us") or () for line in lines]
    fewest = min(map(len, samples))
    low, high = median(lines, "time_us_low"), median(lines, "time_us_high")
    if fewest >= FEWEST_SAMPLES and low and high:
        return (low, high), "95 % intervals"
    if fewest > 1 and min(map(min, samples)) > 0:
        return (min(map(min, samples)), max(map(max, samples))), "samples"
    return (), ""


def median(lines, key):
    values = [line[key] for line in lines if line.get(key) is not None]
    return statistics.median(values) if values else None


def remark(variant, figure, reference):
    if figure.wrong_elements:
        return f"wrong data: {figure.wrong_elements:.0f} elements" + (f", {figure.wrong_as}" if figure.wrong_as else "")
    if not figure.value or not reference or not reference.value or not variant.applies():
        return ""
    change = figure.value / reference.value - 1
    if abs(change) <= 0.05:
        return ""
    text = f"{100 * change:+.{1 if change < -0.99 else 0}f} %"
    if figure.interval and reference.interval and figure.interval[0] <= reference.interval[1] and \
            reference.interval[0] <= figure.interval[1]:
        spread_of = "samples" if "samples" in (figure.interval_of, reference.interval_of) else \
            figure.interval_of
        return f"not significant: {text}, but the {spread_of} overlap"
    worse = (change < 0) == figure.more_is_better
    doubt = figure.doubt or reference.doubt
    if variant.without and doubt:  # names no cause
        return f"{text} without {variant.without}{doubt}"
    if variant.without:
        return f"{variant.without} carries this: {text} without it" if worse else \
            f"better without {variant.without}: {text}"
    return f"{'worse' if worse else 'better'} than the default: {text}{doubt}"


def table(variants):
    default = next((variant for variant in variants if variant.name == "default"), None)
    yield "variant", "result", "measured", "figure", "to default", "remark"
    for variant in variants:
        names = [variant.name, variant.result]
        for key, figure in variant.figures.items():
            what, unit = key
            reference = default.figures.get(key) if default and default is not variant else None
            value = "-"
            if figure.value is not None:
                value = f"{figure.value:{',.0f' if figure.value >= 1000 else '.4g'}} {unit}"
            ratio = figure.value / reference.value if reference and reference.value and figure.value is not None else None
            ratio = "" if ratio is None else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"
            yield (*names, what, value, ratio, remark(variant, figure, reference))
            names = ["", ""]
        if not variant.figures:
            yield (*names, "nothing", "", "", "")


def last_words(said):
    """The last lines that report a failure; otherwise the last lines that are not empty."""
    lines = [line.strip() for line in said
             if re.search(r"\w", line) and "Collective test concluded" not in line]
    failures = [line for line in lines if re.search(r"\bFAIL|\berror:", line)]
    return (failures or lines or ["nothing"])[-3:]


def explanation(variant):
    """Cause and remedy of a run that did not end well, with the line that shows it."""
    yield f"\n{variant.name}: {variant.result}"
    found = explain(variant.said)
    for line, cause, remedy in found:
        yield f"  message: {line[:300]}\n  cause:   {cause}\n  remedy:  {remedy}"
    warned = [line for line in variant.said if "NCCL WARN" in line][-1:]  # which says it itself
    if warned and not any("NCCL WARN" in line for line, _, _ in found):
        yield f"  NCCL:    {warned[0].strip()[:300]}"
    if not found:
        yield from (f"  last output: {line[:300]}" for line in last_words(variant.said))


def read(folder):
    """([Variant] of a run's folder, how many lines of its launches are cut)."""
    folder = pathlib.Path(folder)
    try:
        text = (folder / FILE).read_text()
    except OSError:
        raise UsageError(
            f"{folder} is not the folder of a launch/variants run: it has no {FILE}") from None
    rows = re.findall(r"^([^\t\n]+\t[^\t\n]*\t[^\t\n]*\t\d+)\n", text, re.MULTILINE)  # a full disk cuts the last
    if not rows:
        raise UsageError(f"{folder}/{FILE}: no launch in it came to its end")
    of_variant = {}
    for row in rows:
        of_variant.setdefault(row.split("\t")[0], []).append(row)
    return [Variant(folder, name, launches) for name, launches in of_variant.items()], len(text.splitlines()) - len(rows)


def show(variants, write):
    """Writes the lines of the table, and what went wrong. The worst of the programs' codes."""
    run = next((variant.run() for variant in variants if variant.run()), None)
    if run:
        write("\n{program}: {world_size} ranks, {backend}, transport {transport}".format_map(run))
    for line in ("", *in_columns(table(variants))):
        write(line)
    idle = [variant.name for variant in variants if not variant.applies()]
    if idle:
        write(f"{', '.join(idle)}: the transport is {run['transport']}, which does not read these "
              "switches: what differs is noise")
    for variant in variants:
        for line in explanation(variant) if not variant.ok else ():
            write(line)
    write("")
    return WORST_FIRST[min(severity(variant.code) for variant in variants)]


# ---- error texts of NCCL, CUDA, Open MPI and this package ----------------------------------------

NO_ALGORITHM = r"(?i)no algorithm/protocol available"
# A message of NCCL (2.4 to 2.30), CUDA or Open MPI; the cause; the remedy.
CAUSES = [
    (r"shared memory (segment|file)|failed to extend /dev/shm|fallocate failed|died of signal 7|"
     r"No space left on device",
     "/dev/shm (or the disk named) is full, too small (docker gives 64 MiB) or not writable",
     "docker run --shm-size=1g or --ipc=host, clear left-overs; NCCL_SHM_DISABLE=1 avoids it"),
    (r"(?i)too many open files", "the limit of open files is too low for NCCL's and MPI's connections",
     "ulimit -n 65536: in limits.conf, and of the service that starts the ranks (sshd, slurmd)"),
    (NO_ALGORITHM, "the NCCL_ALGO or NCCL_PROTO that is set does not support this collective",
     "unset it, or set it only for collectives that support it: NCCL_ALGO=allreduce:tree"),
    (r"Duplicate GPU detected", "two ranks use one GPU",
     "fewer ranks (-n), or more GPUs: --gpus, CUDA_VISIBLE_DEVICES, Slurm's --gpus-per-node"),
    (r"invalid device ordinal|no CUDA-capable device", "a rank has no GPU",
     "fewer ranks (-n); look at CUDA_VISIBLE_DEVICES and nvidia-smi -L"),
    (r"no socket interface found", "no network interface fits NCCL_SOCKET_IFNAME",
     "unset it, or name one of `ip -br address` that all hosts have"),
    (r"(?i)connect.*(connection refused|No route to host|timed out|unreachable)",
     "hosts do not reach one another over the interface chosen, or a firewall blocks it",
     "NCCL_SOCKET_IFNAME=<interface of the cluster network>; for MPI OMPI_MCA_btl_tcp_if_include"),
    (r"Call to ibv_|ibv_\w+\(\)|Unable to open (IB )?device|local work queue operation error|"
     r"NET/IB.*Got completion",
     "InfiniBand or RoCE fails: port, cable, locked memory or GID",
     "ibstat, ulimit -l unlimited, NCCL_IB_HCA, NCCL_IB_GID_INDEX; NCCL_IB_DISABLE=1 avoids it"),
    (r"(?i)fail.*(NVLS|multicast)|NVLS.*fail|Cuda failure.*operation not permitted|"
     r"fabric ?manager|system not yet initialized",
     "NVLink multicast or the NVSwitches are not usable",
     "systemctl status nvidia-fabricmanager; NCCL_NVLS_ENABLE=0 avoids multicast"),
    (r"(?i)peer access|peer mapping|P2P is disabled between",
     "GPUs of this host cannot reach each other's memory (ACS, IOMMU, a container's devices)",
     "nvidia-smi topo -p2p r; NCCL_P2P_DISABLE=1 avoids it"),
    (r"(?i)out of memory|Failed to CUDA \w*alloc", "the GPU's memory is full",
     "nvidia-smi shows who holds it; a smaller --batch-size, fewer channels (NCCL_MAX_NCHANNELS)"),
    (r"not enough slots", "more ranks than the hosts or the allocation have slots",
     "a smaller -n, or more --ntasks"),
    (r"unable to reach each other|MPI process is unreachable|pml-add-procs-fail",
     "the MPI transport that is set does not connect these ranks",
     "unset OMPI_MCA_btl, or add what connects them (vader, of Open MPI 5 sm, inside a host, tcp between hosts)"),
    (r"Read -1, expected \d+, errno = 1", "the container forbids reading another process's memory",
     "OMPI_MCA_btl_vader_single_copy_mechanism=none, or docker run --cap-add SYS_PTRACE"),
]
# These follow from others, and are reported only when nothing above is found.
FOLLOWS = [
    (r"died of signal 9", "a rank was killed, mostly by the kernel for memory",
     "dmesg; fewer ranks or --workers, more --mem"),
    (r"remote process exited or there was a network error|Connection closed by remote peer",
     "another rank ended first, or the network between them broke",
     "look for the first error in the log; then the links"),
    (r"unhandled (system|cuda) error", "a system or CUDA call inside NCCL failed",
     "NCCL_DEBUG=INFO launch/variants ... names it"),
]


def explain(lines):
    """(line, cause, remedy) of each cause that is found in the lines of a log."""
    for causes in (CAUSES, FOLLOWS):
        found = [(first(pattern, lines), cause, remedy) for pattern, cause, remedy in causes]
        found = [entry for entry in found if entry[0]]
        if found:
            return found
    return []


def first(pattern, lines):
    return next((line.strip() for line in lines if re.search(pattern, line)), None)
