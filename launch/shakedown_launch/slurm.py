"""The job's allocation, from Slurm's variables in its batch script or step; and what mpirun's own
steps must not inherit of them."""

import collections
import re
import subprocess

# Options of the job that srun applies to each step. mpirun starts its daemons in a step of one task
# per node: by --gpus-per-task the ranks of the other nodes would see one GPU, by --gpus=16 the step
# is refused, and without an option of GPUs (--exclusive alone) they would see none.
GPU_OPTIONS = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND")
BINDING = {"SLURM_GPUS_PER_TASK": "--gpus-per-task", "SLURM_GPU_BIND": "--gpu-bind"}

Allocation = collections.namedtuple("Allocation", "nodes tasks names_gpus on_node gpus_on_node "
                                    "hosts")


def allocation(environ):
    """None outside of a job. tasks: None if the job did not request a number of tasks;
    on_node: this is one of the job's nodes, not a login node; gpus_on_node: GPUs granted here, None
    where Slurm does not say; hosts: names of its nodes, none where Slurm does not say."""
    if not environ.get("SLURM_JOB_ID"):
        return None
    gpus = environ.get("SLURM_GPUS_ON_NODE", "")
    nodes = int(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or 1)
    per_node = int(environ.get("SLURM_NTASKS_PER_NODE") or 0)  # older Slurm says no more
    return Allocation(
        nodes=nodes,
        tasks=int(environ.get("SLURM_NTASKS") or per_node * nodes) or None,
        names_gpus=any(map(environ.get, ("SLURM_JOB_GPUS", "SLURM_GPUS", "SLURM_GPUS_ON_NODE"))),
        on_node=bool(environ.get("SLURMD_NODENAME")),
        gpus_on_node=int(gpus) if gpus.isdigit() else None,
        hosts=hosts(environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""))


def hosts(node_list):
    """The names in a node list such as "gpu[01-03,7],login", as `scontrol show hostnames` gives
    them: a prolog must not call it."""
    names = []
    for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", node_list):
        heads = [""]
        for text, numbers in re.findall(r"([^\[]+)|\[([^\]]*)\]", entry):
            heads = [head + tail for head in heads
                     for tail in ([text] if text else numbers_in(numbers))]
        names += heads
    return names


def numbers_in(text):
    """Those of "01-03,7", with their leading zeros."""
    for each in text.split(","):
        first, _, last = each.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def seconds_left(environ, timeout=10):
    """Until the job's time limit; None outside of a job, without a limit, and where Slurm does not say."""
    if not environ.get("SLURM_JOB_ID"):
        return None
    try:
        said = subprocess.run(
            ["squeue", "--noheader", "--format=%L", "--jobs", environ["SLURM_JOB_ID"]],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=timeout, env=environ).stdout.decode(errors="replace").strip()
    except (OSError, subprocess.TimeoutExpired):
        return None
    if not re.fullmatch(r"(\d+-)?(\d+:){1,2}\d+", said):  # also UNLIMITED, INVALID
        return None
    days, _, clock = said.rpartition("-")
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return 86400 * int(days or 0) + seconds


def binding(environ):
    """The job's options that bind each task to some of its node's GPUs, as "--gpus-per-task=1"."""
    return [f"{option}={environ[name]}" for name, option in BINDING.items() if environ.get(name)]


def for_mpirun(environ):
    """The environment in which mpirun's steps have all GPUs that the job has on each node."""
    job = allocation(environ)
    if job is None:
        return dict(environ)
    kept = {name: value for name, value in environ.items() if name not in GPU_OPTIONS}
    if not job.on_node:  # of a login node, whose GPUs are others
        kept.pop("CUDA_VISIBLE_DEVICES", None)
    total = environ.get("SLURM_GPUS", "").rpartition(":")[2]
    if job.gpus_on_node and total in ("", str(job.nodes * job.gpus_on_node)):
        kept.setdefault("SLURM_GPUS_PER_NODE", str(job.gpus_on_node))
    return kept
