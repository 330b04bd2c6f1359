"""Which fault of which program ends how: exit code by DESIGN.md, what is said, what is kept."""

import collections
import functools
import json
import os
import pathlib
import resource
import signal
import subprocess
import tempfile

import support
from programs import PROGRAMS

HERE = pathlib.Path(__file__).resolve().parent
BOUND_S = 45  # until a job has ended after the fault, on a busy machine
# --timeout of a run that hangs, which must also be enough for the start of MPI; and of others: longer than the
# bound, so that no job ends by it.
HANGS_S = 10 if support.GPUS >= 2 else 3
TIMEOUT_S = 60

# code: the exit code. said: regular expressions, each found. kept: kinds of records. code_of_gpu: where the code
# differs in a build with the gpu backend.
Expected = collections.namedtuple("Expected", "code said kept code_of_gpu", defaults=((), (), None))
# `inject(job, program)` is done to a program at work; without it the program runs to its end, changed by
# `arrange(words, folder)`, which returns words and environment. expected: by program. quick: the programs
# whose case is part of tests/run. needs: "gpus", "no gpus" or "mounts".
Fault = collections.namedtuple("Fault", "name expected inject arrange quick needs timeout_s",
                               defaults=(None, None, (), None, TIMEOUT_S))
Case = collections.namedtuple("Case", "fault program expected is_quick")


ALONE = [name for name, program in PROGRAMS.items() if not program.rank]


def every(expected, without=(), **others):
    """The same of every program but these."""
    return {name: others.get(name, expected) for name in ALONE if name not in without}


def of(names, expected):
    return {name: expected for name in names}


# ---- what is done to a program at work -----------------------------------------------------------

def to_rank(rank, number):
    return lambda job, program: os.kill(job.rank(rank, program), number)


def terminate(job, _):
    os.kill(job.pid, signal.SIGTERM)


def interrupt(job, _):
    os.killpg(job.pid, signal.SIGINT)  # a Ctrl-C


def kill_mpirun(job, _):
    os.kill(job.process_of("orterun", "mpirun", "prterun"), signal.SIGKILL)


def fill_disk(job, program):
    """Of what rank 0 writes to its record from now on, half a line fits."""
    room = job.record.stat().st_size + 40
    resource.prlimit(job.rank(0, program), resource.RLIMIT_FSIZE, (room, room))


# ---- how its start is changed --------------------------------------------------------------------

def on_rank(rank, commands):
    """A rank does this in a shell before it becomes the program."""
    def arrange(words, folder):
        script = f'if [ "$OMPI_COMM_WORLD_RANK" = {rank} ]; then {commands}; fi; exec "$@"'
        return ["bash", "-c", script, "rank", *words], {"FOLDER": folder}
    return arrange


def with_option(*more):
    return lambda words, folder: ([*words, *more], {})


def in_environment(**variables):
    return lambda words, folder: (words, variables)


# Loaded before oneDNN it has that be of another version.
VERSION = """
typedef struct { int major, minor, patch; const char* hash; unsigned cpu, gpu; } dnnl_version_t;
static const dnnl_version_t version = {9, 9, 9, "", 0, 0};
const dnnl_version_t* dnnl_version(void) { return &version; }
"""


def with_other_library(words, folder):
    (folder / "version.c").write_text(VERSION)
    library = folder / "version.so"
    subprocess.run(["mpicc", "-shared", "-fPIC", folder / "version.c", "-o", library], check=True)
    return on_rank(1, f"export LD_PRELOAD={library}")(words, folder)


@functools.lru_cache(None)
def saved_weights():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "w.safetensors"
        subprocess.run([support.BIN / "train", "--model", "tiny", "--image-size", "32", "--batch-size", "4",
                        "--iterations", "1", "--warmup", "1", "--certificate", "off", "--save", path],
                       check=True, capture_output=True)
        return path.read_bytes()


def weights(path, differ=False):
    """Those of the small network, as bin/train saves them; or with one bit of one of them turned."""
    data = bytearray(saved_weights())
    begin = 8 + int.from_bytes(data[:8], "little")
    first = begin + json.loads(data[8:begin])["conv1.weight"]["data_offsets"][0]
    if differ:
        data[first] ^= 1
    path.write_bytes(data)


def with_other_weights(words, folder):
    """A relative path, and another folder on rank 1."""
    weights(folder / "w.safetensors")
    (folder / "other").mkdir()
    weights(folder / "other/w.safetensors", differ=True)
    return on_rank(1, 'cd "$FOLDER/other"')([*words, "--weights", "w.safetensors"], folder)


def with_missing_file(option):
    def arrange(words, folder):
        (folder / "only_here").touch()
        return on_rank(1, "cd /")([words[0], *words[-4:], option, "only_here"], folder)  # --timeout, --record
    return arrange


# What needs more than 1 GiB of a GPU.
BIG = {"train": ["--model", "resnet50", "--batch-size", 256, "--image-size", 224],
       "compare": ["--model", "resnet50", "--batch-size", 256, "--image-size", 224],
       "collective_perf": ["-b", "4G", "-e", "4G"], "link_matrix": ["--bytes", "4G"],
       "compute_perf": ["--bytes", "4G"]}


def next_to_a_full_gpu(words, folder):
    big = BIG[pathlib.Path(words[0]).name]
    return on_rank(0, f'exec python3 {HERE / "full_gpu.py"} "$@"')([*words, *big], folder)


LATE = rf"within {HANGS_S} s \(--timeout\)"
SILENT = rf"error: rank 0 on \S+: .* {LATE}.*; no answer from rank 1 on \S+"
FIRST_SILENT = rf"error: rank 1 on \S+: .* {LATE}.*; no answer from rank 0 on \S+"
STOPPED = r"launch/mpi: stopped by {}"
KILLED = r"launch/mpi: rank {} on \S+ died of signal 9 \(Killed\)"
NO_GPU = r"SLURM_JOB_GPUS=0,1 requests GPUs"
FULL = r"error: rank 0 on \S+: {} \S+: cannot be written: {}"
NO_SPACE = "No space left on device"
BACKENDS = [name for name, program in PROGRAMS.items() if program.uses_gpus]
MEASURED = {"collective_perf": ("collective",), "gpu_monitor": ("health",)}


def ended(code, *said):
    """A program at work keeps what it has recorded."""
    return {name: Expected(code, said, ("run", *MEASURED.get(name, ()))) for name in ALONE}


def reported(code, *said):
    """launch/acceptance writes its report whatever became of a stage."""
    return {"acceptance": Expected(code, ("Shakedown acceptance: INCONCLUSIVE", *said), ("run", "verdict", "end"))}


def silent(words):
    """A rank at work is stopped: the record says which. soak's ranks meet at the end of a window, those of collective_perf
    also between operations."""
    expected = {**ended(3, words),
                "soak": Expected(3, (words,), ("run",)),
                "collective_perf": Expected(3, (words, r"rank \d on \S+: .*(all_reduce of 64 KiB float32|exchanging a value)",
                                                r"(?s)\A(?!.*all_reduce of 64 KiB.*all_reduce of 64 KiB)"),
                                            ("run", "collective"))}
    return {name: each._replace(kept=(*each.kept, "failure")) for name, each in expected.items()}


def signalled(name):
    """soak and gpu_monitor end with what they know, the latter as requested."""
    said = STOPPED.format(name)
    return {**{program: expected._replace(kept=(*expected.kept, "end"))
               for program, expected in ended(5, said).items()},
            "soak": Expected(5, (said, "INCONCLUSIVE job soak: .*stopped by SIG"), ("run", "verdict", "end")),
            "gpu_monitor": Expected(0, ("(?m)^cost ",), ("run", "health", "end")),
            **reported(5, "by a signal: what had not run by then is missing")}


FAULTS = [
    Fault("kill -9 of rank 1",
          {**ended(3, KILLED.format(1)), **reported(3, r"rank 1 on \S+ died: signal 9")},
          to_rank(1, signal.SIGKILL),
          quick=("collective_perf", "link_matrix", "compute_perf", "soak", "gpu_monitor", "node_check")),
    Fault("kill -9 of rank 0", ended(3, KILLED.format(0)), to_rank(0, signal.SIGKILL), quick=("train", "compare")),
    Fault("kill -9 of mpirun",
          {**ended(3, r"launch/mpi: mpirun died of signal 9 \(Killed\)"), **reported(3, "mpirun died of signal 9")},
          kill_mpirun, quick=("collective_perf",)),
    # node_check's rank 0 hangs already: it waits for its file.
    Fault("kill -STOP of rank 1",
          {name: expected for name, expected in silent(SILENT).items() if name != "node_check"},
          to_rank(1, signal.SIGSTOP),
          quick=("train", "collective_perf", "link_matrix", "compute_perf", "gpu_monitor"), timeout_s=HANGS_S),
    Fault("kill -STOP of rank 0", silent(FIRST_SILENT), to_rank(0, signal.SIGSTOP),
          quick=("soak", "node_check"), timeout_s=HANGS_S),
    Fault("SIGTERM", signalled("SIGTERM"), terminate, quick=("compare", "compute_perf", "node_check")),
    Fault("Ctrl-C", signalled("SIGINT"), interrupt, quick=("train", "gpu_monitor", "link_matrix")),
    Fault("a disk that fills up",
          of(("collective_perf", "gpu_monitor"),
             Expected(3, (FULL.format("--record", "File too large"),), ("run",))), fill_disk,
          quick=("collective_perf", "gpu_monitor")),
    Fault("a full disk: --record", every(Expected(3, (FULL.format("--record", NO_SPACE),))),
          arrange=with_option("--record", "/dev/full"), quick=("soak",)),
    *[Fault(f"a full disk: {option}",
            of([name for name, program in PROGRAMS.items() if option in program.outputs],
               Expected(3, (FULL.format(f"{option}.*", NO_SPACE),), ("run",))),
            arrange=with_option(option, "/dev/full"), quick=quick)
      for option, quick in [("--output-file", ("collective_perf",)), ("--trace", ("compare",)),
                            ("--save", ()), ("--save-readings", ("gpu_monitor",))]],
    Fault("a rank that cannot be run",
          every(Expected(3, ("launch/mpi: (a rank|rank 1) ended with 127: its program, or a library that it needs, "
                             "could not be run",))), arrange=on_rank(1, "exit 127"), quick=("node_check",)),
    Fault("a rank that stops before MPI starts",
          every(Expected(3, (rf"error: rank 0 on \S+: MPI_Init did not finish {LATE}",
                             "launch/mpi: rank 1 did not start MPI"))),
          arrange=on_rank(1, "kill -STOP $$"), quick=("compute_perf",), timeout_s=HANGS_S),
    Fault("a rank that ends before MPI starts",
          every(Expected(3, (rf"error: rank 0 on \S+: MPI_Init did not finish {LATE}",
                             "launch/mpi: rank 1 did not start MPI"))),
          arrange=on_rank(1, "exit 0"), quick=("gpu_monitor",), timeout_s=HANGS_S),
    Fault("GPUs that are not there",
          every(Expected(2, (NO_GPU,), code_of_gpu=3), without=("gpu_monitor",),
                node_check=Expected(1, (r"FAIL +gpu-count +0 GPUs, 2 expected \(Slurm\)",), ("run", "verdict", "end"))),
          arrange=in_environment(SLURM_JOB_GPUS="0,1", CUDA_VISIBLE_DEVICES=None), needs="no gpus",
          quick=("soak", "node_check")),
    Fault("a GPU missing on one rank",
          of(BACKENDS, Expected(3, ("no GPU is visible to rank 1 on .*while others see some",))),
          arrange=on_rank(1, "export CUDA_VISIBLE_DEVICES="), needs="gpus"),
    Fault("two ranks on one GPU",
          of(BACKENDS, Expected(2, ("2 ranks and 1 visible GPU",))),
          arrange=in_environment(CUDA_VISIBLE_DEVICES="0"), needs="gpus"),
    Fault("a GPU whose memory is full", of(BIG, Expected(2, ("memory",))), arrange=next_to_a_full_gpu,
          needs="gpus"),
    Fault("a library that differs",
          every(Expected(0, (r"versions differ from those of rank 0 on \S+: rank 1 on \S+ \(versions.onednn 9.9.9",),
                         ("run", "end")), without=("node_check", "gpu_monitor"),
                **of(("soak",),
                     Expected(2, (r"error: rank 1 on \S+: .*oneDNN 9.9.9",), ("run",)))),
          arrange=with_other_library, needs="no gpus", quick=("compute_perf", "link_matrix")),
    # Rank 0 alone reads them. That weights which differ are found: tests/training/certificates_mpitest.cpp.
    Fault("another file of weights on one rank",
          of(("train", "compare"), Expected(0, (), ("run", "end"))), arrange=with_other_weights, quick=("compare",)),
    *[Fault(f"a file missing on one rank: {option}",
            of(names, Expected(2, (rf"error: rank 1 on \S+: {option} only_here: No such file",))),
            arrange=with_missing_file(option))
      for option, names in [("--weights", ("train", "compare")), ("--reference", ("compute_perf",)),
                            ("--replay", ("soak",))]],
    Fault("a small /dev/shm",
          # They go on. Open MPI's warning is at times lost when a job ends; node_check names it.
          every(Expected(0, (), ("run", "end")),
                node_check=Expected(1, ("FAIL +shared-memory +/dev/shm",), ("run", "verdict", "end"))),
          arrange=with_option(), needs="mounts", quick=("collective_perf",)),
]
CASES = [Case(fault, program, expected, program in fault.quick)
         for fault in FAULTS for program, expected in fault.expected.items()]
