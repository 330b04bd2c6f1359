"""Error texts of NCCL, CUDA, Open MPI and this package: what they mean, what helps."""

import re

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
