"""launch/variants: runs a program once for each transport variant, since NCCL and Open MPI read
their switches once per process, and prints one table."""

import collections
import contextlib
import os
import re
import time

from . import gpus, launchers, mpi, places, ranks, records, sweep, variants_table
from .command import Command, Option, UsageError, parse, positive, refuse
from .job import RUNNING, Stopped
from .words import count

# settings: variables; without: what they take away, if they do
Variant = collections.namedtuple("Variant", "name settings without meaning")
VARIANTS = [
    Variant("default", "", "", "as the environment stands"),
    Variant("no-shm", "NCCL_SHM_DISABLE=1", "shared memory",
            "GPUs without peer access go over the network"),
    Variant("no-p2p", "NCCL_P2P_DISABLE=1", "GPU peer access",
            "no NVLink, no PCIe peer-to-peer: shared memory"),
    Variant("no-p2p-no-shm", "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1", "the way inside a host",
            "everything over the network, as between hosts"),
    Variant("no-ib", "NCCL_IB_DISABLE=1", "InfiniBand or RoCE", "between hosts: TCP sockets"),
    Variant("no-gdr", "NCCL_NET_GDR_LEVEL=LOC", "GPU-direct RDMA", "between hosts: data go through the host's memory"),
    Variant("no-nvls", "NCCL_NVLS_ENABLE=0", "NVLink multicast",
            "no reduction inside the NVSwitches"),
    Variant("ring", "NCCL_ALGO=Ring", "", "rings only"),
    Variant("tree", "NCCL_ALGO=Tree", "", "trees only"),
    Variant("more-channels", "NCCL_MIN_NCHANNELS=32", "",
            "at least 32 channels: more of the GPU communicates"),
    # Open MPI reads these with pml ob1 alone, and prefers UCX's where it is.
    Variant("mpi-tcp", "OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self", "shared memory",
            "Open MPI: ranks of a host by TCP too"),
    # MPIR_CVAR_NOLOCAL would make a node of each rank, and two nodes of one name are refused.
    Variant("mpich-no-cma", "MPIR_CVAR_CH4_CMA_ENABLE=0", "copying between processes",
            "MPICH: large messages are copied twice"),
    Variant("mpi-no-cma", "OMPI_MCA_pml=ob1 OMPI_MCA_btl_vader_single_copy_mechanism=none "
            "OMPI_MCA_smsc=^cma", "copying between processes", "Open MPI: large messages are copied twice"),
]
COMMAND = Command(
    "[options] PROGRAM [ARGS...]",
    """Runs PROGRAM once for each transport variant, since NCCL and Open MPI read their switches
    once per process, and prints one table: what each variant costs, and which error has which cause
    and remedy. First it reports what node_check finds wrong with this host's shared memory and limits.""",
    [Option(("--variants",), "a,b,c",
            "variants to run, in this order (default: NCCL's where GPUs are used, else MPI's); "
            'the others are compared with the one named "default"'),
     Option(("--sweep",), None,
            "collective_perf with each algorithm and protocol that NCCL's own table has for an operation, LL128 where it is "
            "safe: which are wrong, what NCCL chose, what would have been faster"),
     Option(("--channels",), "N,N",
            "of --sweep: these numbers of channels, too, with the algorithm that NCCL chooses then"),
     Option(("--launches",), "N", "launches of each, interleaved (default: 1)"),
     Option(("--find",), "PERCENT",
            "as many launches as miss a fault in this share of them once in 1,000: 20 find one in 30 %"),
     Option(("--list",), None, "print the variants and the variables that they set, and exit"),
     Option(("--timeout",), "S",
            "seconds per variant (default: 600, more than the programs' own --timeout)"),
     Option(("--table",), "FOLDER", "print the table of an earlier run again"),
     *mpi.RANK_OPTIONS],
    """
    Each variant's record (NAME.jsonl), output (NAME.log) and NCCL's own lines (NAME.nccl.HOST.PID)
    are kept in a folder under runs/ of the current folder (or SHAKEDOWN_RUNS), whose path is
    printed at the end.

    Ends with 0 when all variants ran, else with the worst of the programs' exit codes, where a
    time-out is 3 and an algorithm that NCCL does not have for the operation is no failure; 2: wrong
    usage; 3: GPUs are requested and none is visible; 4: internal error; 5: stopped by SIGINT, SIGTERM, SIGHUP or
    SIGQUIT.
    """)
CONFIGURATION_FILES = ("/etc/nccl.conf", "~/.nccl.conf")
OWN = {"--record": "each variant writes its own record",
       "--checkpoint-dir": "the second variant would continue the first"}


def choose(text, words, environ, mpi_variables, visible=gpus.visible):
    known = {variant.name: variant for variant in VARIANTS}
    if text is None:
        on_cpu = gpus.backend(words) == "cpu" or visible(environ) == 0
        family = mpi_variables if on_cpu else "NCCL_"
        return [variant for variant in VARIANTS
                if not variant.settings or variant.settings.startswith(family)]
    for name in text.split(","):
        if name not in known:
            raise UsageError(f"--variants {text}: '{name}' is none of {' '.join(known)}")
    return [known[name] for name in dict.fromkeys(text.split(","))]


def settings_of(variant):
    return dict(word.split("=", 1) for word in variant.settings.split())


def notes(variants, environ, files=CONFIGURATION_FILES):
    """What is set already, and is not in effect in a variant; the default variant runs with it."""
    texts = [(path, places.text_of(path)) for path in files]
    for variant in variants:
        for key, value in settings_of(variant).items():
            if key in environ:
                yield (f"note: your environment has {key}={environ[key]}; {variant.name} runs with "
                       f"{key}={value} instead")
            for path, text in texts:
                if re.search(rf"(?m)^{key}=", text):
                    yield f"note: {path} sets {key}; {variant.name} runs with {key}={value} instead"


CHECKS = ("shared-memory", "limits", "host-memory")  # of node_check: what messages within a host need


def fitness(folder, environ):
    """Lines on this host's shared memory and limits. Reported, not enforced: a run shows more."""
    record = os.path.join(folder, "node_check.jsonl")
    program = places.own_program("node_check", environ) or "node_check"
    said = places.ask([program, "--passive", "--record", record], 20, environ)
    found = [line for line in records.read(record) if line.get("check") in CHECKS]
    for line in found:
        yield f"{line['verdict']} {line['check']}: {line['cause']}{line.get('action') and ' -> ' + line['action'] or ''}"
    if not found:
        yield "shared memory and limits of this host: " + (
            "no finding (node_check)" if said.code in (0, 1) else f"not known: node_check {said.error or said.code}")


def environment(variant, name, folder, environ):
    return {"NCCL_DEBUG": "WARN",
            "NCCL_DEBUG_FILE": os.path.join(folder, f"{name}.nccl.%h.%p"),
            **environ, **settings_of(variant)}


def run_all(variants, launches, what, folder, environ, timeout):
    """Runs them, their launches interleaved; a line of variants.tsv records how each launch ended."""
    if launches > 1:
        print(f"{launches} launches each, {launches * len(variants)} in all{sweep.found_text(launches)}")
    for number in range(launches):
        for variant in variants:
            name = variants_table.name_of_launch(variant.name, number)
            print(f"{name} ({variant.settings})" if variant.settings else name, "... ", end="", flush=True)
            start = time.monotonic()
            result = sweep.run(what, environment(variant, name, folder, environ), os.path.join(folder, name), timeout)
            code = 5 if RUNNING.stopped else variants_table.TIMEOUT if result.late else result.code
            print(f"{time.monotonic() - start:.0f} s", flush=True)
            with open(os.path.join(folder, variants_table.FILE), "a") as file:
                print(variant.name, variant.settings, variant.without, code, sep="\t", file=file)
            # What the program refuses once, it refuses in every variant.
            if RUNNING.stopped or code == 2 and variant is variants[0]:
                return


def show(folder, write):
    """The table, and which variant fails more often than the others. The worst of the programs' codes."""
    variants, cut = variants_table.read(folder)
    code = variants_table.show(variants, write)
    if cut:
        write(f"{count(cut, 'line')} of {variants_table.FILE} cut off: not known how the launch ended")
        code = code or 3
    launches = [sweep.Launch("", variant.name, number, *launch) for variant in variants
                for number, launch in enumerate(variant.launches)]
    if len(launches) > len(variants):
        for line in sweep.blame(launches, lambda launch: launch.code == 1 or sweep.is_wrong(launch)):
            write(line)
    return code


def launches_of(values):
    """--launches or --find."""
    if "--find" not in values:
        return positive(values, "--launches", 1, "launches")
    if "--launches" in values:
        raise UsageError("--find and --launches: one of them")
    percent = positive(values, "--find", 30, "percent")
    if percent > 99:
        raise UsageError(f"--find {percent}: 1 to 99 percent are allowed")
    return sweep.launches_to_find(percent / 100)


def sweep_all(what, seen, environ, values, launches, timeout):
    """The exit code of --sweep."""
    if os.path.basename(what.words[0]) != "collective_perf":
        raise UsageError(f"--sweep: {what.words[0]}: NCCL's algorithms are of collectives: the program must be collective_perf")
    if gpus.backend(what.words) == "cpu" or gpus.visible(seen) == 0:
        raise UsageError("--sweep: NCCL runs on GPUs, and none is used")
    channels = values["--channels"].split(",") if "--channels" in values else []
    if not all(each.isascii() and each.isdigit() and 1 <= int(each) <= 64 for each in channels):
        raise UsageError(f"--channels {values['--channels']}: must be numbers of 1 to 64, with commas between")
    folder = places.new_folder("sweep", environ)
    with table_of(folder) as write:
        return sweep.sweep(what, folder, environ, channels, launches, timeout, write)


@contextlib.contextmanager
def table_of(folder):
    """What writes a line to standard output and to table.txt; after them it prints where the results are."""
    with open(os.path.join(folder, "table.txt"), "w", encoding="utf-8", errors="replace") as file:
        def write(line):
            print(line, flush=True)
            print(line, file=file)
        yield write
    print(f"results: {folder}", flush=True)


def main(arguments):
    values, words = parse(COMMAND, arguments)
    if "--list" in values:
        for variant in VARIANTS:
            settings = f" ({variant.settings})" if variant.settings else ""
            print(f"{variant.name:<14} {variant.meaning}{settings}")
        return 0
    if "--table" in values:
        return show(values["--table"], print)
    timeout = positive(values, "--timeout", 600, "seconds")
    if "--channels" in values and "--sweep" not in values:
        raise UsageError("--channels is of --sweep")
    launches = launches_of(values)
    refuse(words, OWN)
    environ = dict(os.environ)
    what = mpi.request(values, words, environ)
    mpi.check_launcher(what, environ, ranks.names(what, environ))
    seen = mpi.environment(what, environ)
    here, _ = ranks.where(what, environ, ranks.Host())
    if here:
        gpus.check_visible(words, seen)
    mpi.line(what, seen)  # refuses what cannot be placed
    if "--sweep" in values:
        return sweep_all(what, seen, environ, values, launches, timeout)
    chosen = choose(values.get("--variants"), words, seen, launchers.find(what.launcher, environ).variables)

    folder = places.new_folder("variants", environ)
    print(*fitness(folder, environ), *notes(chosen, environ), "", sep="\n", flush=True)
    run_all(chosen, launches, what, folder, environ, timeout)
    with table_of(folder) as write:
        code = show(folder, write)
    if RUNNING.stopped:
        raise Stopped
    return code
