"""How many ranks, on which hosts, bound to what: from a request, the environment and this host, the
mpirun line. Nothing is started here."""

import collections
import os
import re

from . import gpus, slurm
from .command import UsageError, say

# hosts: [] means this one, or those of Slurm's allocation
Request = collections.namedtuple("Request", "words ranks gpus hosts bind",
                                 defaults=(None, None, (), "none"))
# tasks: whether Slurm's own tasks are the ranks
# allocated: on nodes of Slurm's, whose slots its tasks are
# elsewhere: whether some are on other hosts than this
Placement = collections.namedtuple("Placement",
                                   "ranks host_count per_host tasks allocated elsewhere")

# mpirun gives these to local ranks anyway; for those of other hosts they must be named.
PASSED_ON = (r"(NCCL|CUDA|CUDNN|CUBLAS|NVIDIA|OMP|DNNL|ONEDNN|UCX|FI|MALLOC|SHAKEDOWN)_|"
             r"LD_LIBRARY_PATH$")


class Host:
    """This host."""

    def __init__(self):
        self.name = os.uname().nodename
        self.is_root = os.geteuid() == 0
        self.cores = len(os.sched_getaffinity(0))
        self._gpus = None

    def gpus(self):
        if self._gpus is None:
            self._gpus = gpus.listed()
        return self._gpus

    def numa_nodes(self):
        try:
            return sum(bool(re.match(r"node\d", name))
                       for name in os.listdir("/sys/devices/system/node")) or 1
        except OSError:
            return 1

    def may_read_processes(self):
        """Large messages inside a host go by process_vm_readv. Where a container's seccomp filter
        forbids it, Open MPI 4.1 falls back, but prints "Read -1, expected N, errno = 1" at each: so
        it is tried here, on this process's own memory."""
        try:
            with open("/proc/self/status") as status:
                mode = status.read().partition("Seccomp:")[2].split()[:1]
            if mode in ([], ["0"]):
                return True
            import ctypes
            libc, text = ctypes.CDLL(None), ctypes.create_string_buffer(8)
            vector = (ctypes.c_size_t * 2)(ctypes.addressof(text), 8)
            return libc.process_vm_readv(os.getpid(), vector, 1, vector, 1, 0) == 8
        except (OSError, ImportError, AttributeError):
            return True


def place(request, environ, host):
    """The number of ranks: as requested; else Slurm's tasks; else one per visible GPU; else two per
    host."""
    allocation = slurm.allocation(environ)
    others = [name for name in names(request.hosts) if allocation and name not in allocation.hosts]
    if others:
        raise UsageError(f"{' '.join(others)}: not of this Slurm allocation, whose nodes are "
                         f"{' '.join(allocation.hosts) or 'unknown'} (--hosts, --hostfile)")
    host_count = len(request.hosts) or (allocation.nodes if allocation else 1)
    here, elsewhere = where(request, environ, host)
    on_cpu = gpus.backend(request.words) == "cpu"
    if here and not on_cpu and (request.gpus or not request.ranks):
        gpus.check(environ, allocation, host.gpus)
    tasks = allocation and not request.hosts and allocation.tasks
    if request.ranks:
        ranks, tasks = request.ranks, tasks == request.ranks
    else:
        per_host = 0 if on_cpu else gpus.visible(environ, host.gpus)
        # One task per node with several GPUs (torchrun's header) represents the node.
        if tasks == host_count and per_host >= 2:
            say(f"Slurm's job has one task per node: {per_host * host_count} ranks are started, "
                "one per GPU")
            tasks = None
        if not (tasks or per_host or on_cpu
                or counts_for_all_ranks(elsewhere, allocation, environ)):
            raise UsageError("no GPU visible on this host; specify the number of ranks with -n")
        ranks = tasks or (per_host or 2) * host_count
        if tasks and ranks < per_host * host_count:
            gpu_count = per_host * host_count
            say(f"Slurm's job has {ranks} tasks, which use {ranks} of {gpu_count} GPUs; "
                f"-n {gpu_count} uses all")
    return Placement(ranks, host_count, -(-ranks // host_count), bool(tasks), bool(allocation),
                     elsewhere)


def where(request, environ, host):
    """(whether ranks run on this host, whether on others): on a login node of Slurm none do."""
    if request.hosts:
        local = [name in ("localhost", host.name) for name in names(request.hosts)]
        return any(local), not all(local)
    allocation = slurm.allocation(environ)
    if allocation:
        return allocation.on_node, allocation.nodes > 1 or not allocation.on_node
    return True, False


def names(hosts):
    """Without the slots of "h1:4"."""
    return [host.split(":")[0] for host in hosts]


def counts_for_all_ranks(elsewhere, allocation, environ):
    """Whether "no GPU here" means none anywhere: not where this is no node of the job, or where
    Slurm granted GPUs that are not seen."""
    return not elsewhere or not gpus.built(environ) or \
        bool(allocation and allocation.on_node and not allocation.names_gpus)


def mpirun_line(request, placement, environ, host):
    line = ["mpirun", "-n", str(placement.ranks)]
    if host.is_root:
        line.append("--allow-run-as-root")
    spread = None
    if request.hosts:
        line += ["--host",
                 ",".join(f"{name}:{placement.per_host}" for name in names(request.hosts))]
    if not request.hosts and placement.host_count == 1:
        # Open MPI counts cores without their hardware threads, and refuses more ranks than that.
        line.append("--oversubscribe")
    elif placement.allocated and not placement.tasks:  # Slurm's slots are then meaningless
        line.append("--oversubscribe")
        spread = f"ppr:{placement.per_host}:node"
    line += binding(request.bind, placement, spread, host)
    if placement.per_host > host.cores:
        line += ["--mca", "mpi_yield_when_idle", "1"]
    if request.hosts or placement.host_count > 1:
        # Which GPUs are visible is each host's own: Slurm may have granted others there.
        for name in sorted(environ):
            if re.match(PASSED_ON, name) and "VISIBLE_DEVICES" not in name:
                line += ["-x", name]
    if request.gpus:
        line += ["-x", f"CUDA_VISIBLE_DEVICES={request.gpus}"]
    if not (environ.get("OMPI_MCA_btl_vader_single_copy_mechanism") or host.may_read_processes()):
        line += ["--mca", "btl_vader_single_copy_mechanism", "none"]
    return [*line, *request.words]


def binding(bind, placement, spread, host):
    if bind == "none":
        return ["--bind-to", "none", *(["--map-by", spread] if spread else [])]
    if bind == "core":
        return ["--bind-to", "core:overload-allowed", "--map-by", spread or "slot"]
    # In order, as the GPUs are: the first ranks to the first NUMA node.
    per_node = -(-placement.per_host // host.numa_nodes())
    return ["--bind-to", "numa:overload-allowed", "--map-by", f"ppr:{per_node}:numa"]
