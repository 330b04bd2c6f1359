"""The job's allocation, from Slurm's variables in its batch script or step; and what mpirun's own
steps must not inherit of them."""

import collections

# Options of the job that srun applies to each step. mpirun starts its daemons in a step of one task
# per node: by --gpus-per-task the ranks of the other nodes would see one GPU, by --gpus=16 the step
# is refused, and without an option of GPUs (--exclusive alone) they would see none.
GPU_OPTIONS = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND")
BINDING = {"SLURM_GPUS_PER_TASK": "--gpus-per-task", "SLURM_GPU_BIND": "--gpu-bind"}

Allocation = collections.namedtuple("Allocation", "nodes tasks names_gpus on_node gpus_on_node")


def allocation(environ):
    """None outside of a job. tasks: None if the job did not request a number of tasks;
    on_node: this is one of the job's nodes, not a login node; gpus_on_node: GPUs granted here, None
    where Slurm does not say."""
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
        gpus_on_node=int(gpus) if gpus.isdigit() else None)


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
