"""The job's allocation, from Slurm's variables in its batch script or step."""

import collections

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
