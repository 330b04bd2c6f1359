"""The GPUs that programs started here would use. As a program it prints their number."""

import os
import re
import subprocess

from .places import TREE, InconclusiveError

VISIBLE = "CUDA_VISIBLE_DEVICES"
ENTRY = r"[0-9]+|(GPU|MIG)-[^,]+"  # of --gpus
NAMES_ONE = r"(GPU-|MIG-)|\s*\+?[0-9]"  # how CUDA_VISIBLE_DEVICES begins that does not hide all GPUs


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
    """The GPUs of CUDA_VISIBLE_DEVICES as CUDA reads it (13.0 on two H100): up to the first entry that
    names none, or not in the way of the first; of a number the digits alone ("0, 1", "1gpu2"); and none
    at all where one is named twice."""
    first = re.match(NAMES_ONE, text)
    kind = f"({first[1]}.+)" if first and first[1] else r"\s*\+?0*([0-9]{1,9})"
    entries = []
    for entry in text.split(",") if first else ():
        found = re.match(kind, entry)
        if not found:
            break
        entries.append(found[1])
    return entries if len(set(entries)) == len(entries) else []


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
        return f"{VISIBLE}={environ[VISIBLE]}" if re.match(NAMES_ONE, environ[VISIBLE]) else ""
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
