"""The GPUs that programs started here would use. As a program it prints their number."""

import os
import re
import subprocess

from .places import TREE, InconclusiveError

VISIBLE = "CUDA_VISIBLE_DEVICES"
ENTRY = r"\d+|(GPU|MIG)-[^,]+"  # of CUDA_VISIBLE_DEVICES


def built(environ):
    """Whether the programs have the gpu backend (not built yet: perhaps)."""
    backends = environ.get("BACKENDS") or ""
    if not backends:
        try:
            with open(os.path.join(TREE, "build", "machine.mk")) as file:
                backends = file.read().partition("BACKENDS := ")[2].partition("\n")[0]
        except OSError:
            pass
    return not backends or "gpu" in backends.split()


def listed(limit_s=20):
    """The UUIDs of each GPU of this host, its own and those of its MIG instances, in the order of
    their indices; none where the driver does not work."""
    try:  # nvidia-smi can hang for minutes on a broken driver
        text = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, timeout=limit_s,
                              stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = []
    for line in text.decode(errors="replace").splitlines():
        if line.startswith("GPU"):
            found.append([])
        if found:
            found[-1] += re.findall(r"UUID: ([^)\s]+)", line)
    return found


def busiest():
    """The utilisation in percent of this host's busiest GPU; None where none can be read."""
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=utilization.gpu",
                               "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, timeout=5,
                              stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return max(map(int, re.findall(rb"\d+", text)), default=None)


def named(text):
    """The entries of CUDA_VISIBLE_DEVICES, which ends at its first invalid one."""
    entries = []
    for entry in text.split(","):
        if not re.fullmatch(ENTRY, entry):
            break
        entries.append(entry)
    return entries


def missing(entries, gpus):
    """Those of the entries that are none of the GPUs listed."""
    uuids = [uuid for gpu in gpus for uuid in gpu]

    def found(entry):
        if entry.isdigit():
            return int(entry) < len(gpus)
        return any(uuid.startswith(entry) for uuid in uuids)
    return [entry for entry in entries if not found(entry)]


def visible(environ, gpus=listed):
    """How many GPUs a program started here would use."""
    if not built(environ):
        return 0
    if VISIBLE in environ:
        return len(named(environ[VISIBLE]))
    return len(gpus())


def requested(environ):
    """The variable by which the user or Slurm requests GPUs, as gpu_request of
    common/placement.cpp: "SLURM_JOB_GPUS=0,1"; "" where none does."""
    if VISIBLE in environ:
        return f"{VISIBLE}={environ[VISIBLE]}" if named(environ[VISIBLE]) else ""
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        if environ.get(name):
            return f"{name}={environ[name]}"
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS", "SLURM_GPUS_PER_NODE",
                 "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK"):
        if re.search(r"(^|[:,])0*[1-9]\d*(,|$)", environ.get(name, "")):
            return f"{name}={environ[name]}"
    return ""


def backend(words):
    """--backend among the words of a program; auto where it is not."""
    return re.findall(r" --backend[ =](auto|gpu|cpu)(?= )", f" --backend auto {' '.join(words)} ")[-1]


def check_visible(words, environ, gpus=listed):
    """Refuses once what each of several runs on this host would refuse: requested GPUs, and none
    visible."""
    chosen = backend(words)
    request = "--backend gpu" if chosen == "gpu" else requested(environ)
    if chosen != "cpu" and request and built(environ) and not visible(environ, gpus):
        raise InconclusiveError(f"{request}: no GPU is visible on this host. Check the driver "
                                f"(nvidia-smi) and {VISIBLE}; --backend cpu runs without GPUs")


def check(environ, allocation, gpus=listed):
    """Fewer GPUs than requested would be a smaller job than was meant, or one that fails later."""
    request = environ.get(VISIBLE)
    granted = allocation.gpus_on_node if allocation and allocation.on_node else None
    if not built(environ) or not (request or granted):
        return
    found = gpus()
    if not found:  # a login node, or a driver that does not work: the programs report that
        return
    here = f"this host has {len(found)} (nvidia-smi -L)"
    absent = missing(named(request or ""), found)
    if absent:
        raise InconclusiveError(f"requested GPUs {request}: {', '.join(absent)} not found; {here}")
    if request is None and granted and granted > len(found):
        lost = granted - len(found)
        raise InconclusiveError(f"Slurm granted {granted} GPUs on this node: {lost} of them "
                                f"not found; {here}")


if __name__ == "__main__":
    print(visible(os.environ))
