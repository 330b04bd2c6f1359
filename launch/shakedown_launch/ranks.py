"""How many ranks, on which hosts, with which variables: from a request, the environment and this host. Nothing
is started here."""

import collections
import contextlib
import os
import re
import resource

from . import gpus, hosts, slurm
from .command import UsageError, say

# hosts: names; [] means this one, or those of Slurm's allocation; launcher: its name, None: that of mpirun
Request = collections.namedtuple("Request", "words ranks gpus hosts bind launcher",
                                 defaults=(None, None, (), "none", None))
# tasks: whether Slurm's own tasks are the ranks
# allocated: on nodes of Slurm's, whose slots its tasks are
# elsewhere: whether some are on other hosts than this
Placement = collections.namedtuple("Placement",
                                   "ranks host_count per_host tasks allocated elsewhere")

# mpirun gives these to local ranks anyway; for those of other hosts they must be named. They set up
# GPUs and threads; then what carries messages (libfabric, its NCCL plugin, verbs, ...); then ours.
PASSED_ON = (r"(NCCL|CUDA|CUDNN|CUBLAS|NVIDIA|OMP|GOMP|KMP|DNNL|ONEDNN|"
             r"UCX|UCC|FI|OFI|RDMAV|IBV|MLX4|MLX5|PSM2|PSM3|HCOLL|SHARP|NVSHMEM|GDRCOPY|PMIX_MCA|"
             r"MALLOC|SHAKEDOWN)_|LD_LIBRARY_PATH$")

HOSTS = "SHAKEDOWN_HOSTS"  # how many are to answer: the programs count (common/placement.cpp)


class Host:
    """This host."""

    def __init__(self):
        self.name = os.uname().nodename
        self.is_root = os.geteuid() == 0
        self.allowed = os.sched_getaffinity(0)
        self.cores = len(self.allowed)
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._gpus = None

    def gpus(self):
        if self._gpus is None:
            self._gpus = gpus.listed()
        return self._gpus

    def numa_nodes(self, folder="/sys/devices/system/node"):
        """Those with a core for this process: others are memory alone, such as a GPU's, or of a
        socket that is not its."""
        count = 0
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if re.fullmatch(r"node\d+", name):
                    with open(f"{folder}/{name}/cpulist") as file:
                        cores = file.read().strip()
                        count += bool(cores and self.allowed & set(map(int, slurm.numbers_in(cores))))
        return count or 1

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
    others = [name for name in request.hosts if allocation and name not in allocation.hosts]
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
    per_host = -(-ranks // host_count)
    if request.hosts and per_host * (host_count - 1) >= ranks:
        idle = request.hosts[-(-ranks // per_host):]
        raise UsageError(f"-n {ranks} --hosts {','.join(request.hosts)}: no rank would run on "
                         f"{' '.join(idle)}: use a multiple of the {host_count} hosts")
    return Placement(ranks, host_count, per_host, bool(tasks), bool(allocation), elsewhere)


def where(request, environ, host):
    """(whether ranks run on this host, whether on others): on a login node of Slurm none do."""
    if request.hosts:
        local = [hosts.is_here(name, host.name) for name in request.hosts]
        return any(local), not all(local)
    allocation = slurm.allocation(environ)
    if allocation:
        return allocation.on_node, allocation.nodes > 1 or not allocation.on_node
    return True, False


def counts_for_all_ranks(elsewhere, allocation, environ):
    """Whether "no GPU here" means none anywhere: not where this is no node of the job, or where
    Slurm granted GPUs that are not seen."""
    return not elsewhere or not gpus.built(environ) or \
        bool(allocation and allocation.on_node and not allocation.names_gpus)


def names(request, environ):
    """Of the hosts that ranks may run on; none where that is this one alone."""
    allocation = slurm.allocation(environ)
    return list(request.hosts) or (allocation.hosts if allocation else [])


def passed_on(environ, more="(?!)"):
    """Names of what the ranks of other hosts are given, in order; `more`: a pattern of further ones. Which GPUs are
    visible is each host's own: Slurm may have granted others there."""
    return [name for name in sorted(environ) if re.match(f"{PASSED_ON}|{more}", name)
            and "VISIBLE_DEVICES" not in name and name != HOSTS]


def set_for(request, placement):
    """(name, value) of what all ranks are given."""
    if placement.host_count > 1:
        # Of Slurm's nodes the last have no rank where there are fewer ranks than nodes.
        yield HOSTS, str(placement.host_count if placement.tasks else -(-placement.ranks // placement.per_host))
    if request.gpus:
        yield "CUDA_VISIBLE_DEVICES", request.gpus
