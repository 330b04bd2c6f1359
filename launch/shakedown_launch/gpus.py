"""The GPUs that programs started here would use. As a program it prints their number."""

import concurrent.futures
import glob
import os
import re
import sys

from .places import TREE, InconclusiveError, ask, text_of

VISIBLE = "CUDA_VISIBLE_DEVICES"
ENTRY = r"[0-9]+|(GPU|MIG)-[^,]+"  # of --gpus
NAMES_ONE = r"(GPU-|MIG-)|\s*\+?[0-9]"  # how CUDA_VISIBLE_DEVICES begins that does not hide all GPUs


def built(environ):
    """Whether the programs have the gpu backend (not built yet: perhaps)."""
    backends = environ.get("BACKENDS") or ""
    if not backends:
        made = text_of(os.path.join(TREE, "build", "machine.mk"))
        backends = made.partition("BACKENDS := ")[2].partition("\n")[0]
    return not backends or "gpu" in backends.split()


def asked(words, limit_s, program="nvidia-smi"):
    """What the program prints; None where it fails: nvidia-smi prints its errors in the same place."""
    said = ask([program, *words], limit_s)
    return said.output if said.code == 0 else None


def listed(limit_s=20):
    """The UUIDs of each GPU of this host that answers, its own and those of its MIG instances, in the
    order of their indices; none where the driver does not work."""
    found = []
    for line in (asked(["-L"], limit_s) or "").splitlines():
        gpu = re.fullmatch(r"GPU \d+: .*\(UUID: (GPU-[^)\s]+)\)\s*", line)
        instance = re.fullmatch(r"\s+MIG .*\(UUID: (MIG-[^)\s]+)\)\s*", line)
        if gpu:
            found.append([gpu[1]])
        elif instance and found:
            found[-1].append(instance[1])
    return found


def by_minor(folder="/proc/driver/nvidia"):
    """{N of /dev/nvidiaN: UUID}, "" where the driver does not know the UUID yet; None where the
    driver does not say. N is Slurm's number of a GPU, unless there are MIG instances, whose devices
    are others. The index of nvidia-smi and of CUDA follows the PCI bus: on some machines it is
    another GPU's."""
    folder, found = glob.escape(folder), {}
    if glob.glob(f"{folder}/capabilities/gpu*/mig/gi*"):
        return None
    for path in glob.glob(f"{folder}/gpus/*/information"):
        text = asked([path], 2, "cat") or ""  # the driver writes it, and may hang
        minor = re.search(r"^Device Minor:\s*(\d{1,4})\s*$", text, re.M | re.A)
        uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", text, re.M)
        if not minor or int(minor[1]) in found:
            return None
        found[int(minor[1])] = uuid[1] if uuid else ""
    return found or None


def busiest():
    """The utilisation in percent of this host's busiest GPU; None where that of one is not known."""
    text = asked(["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"], 5)
    percents = (text or "").split("\n")[:-1]
    if not percents or not all(re.fullmatch(r"100|\d{1,2}", each, re.A) for each in percents):
        return None
    return max(map(int, percents))


# Opens the first GPU of CUDA_VISIBLE_DEVICES, and prints what CUDA refuses.
OPEN = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context, name = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_char_p()
for call, arguments in [("cuInit", (0,)), ("cuDeviceGet", (ctypes.byref(device), 0)),
                        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device))]:
    error = getattr(cuda, call)(*arguments)
    if error:
        cuda.cuGetErrorName(error, ctypes.byref(name))
        print(f"{call}: {(name.value or b'CUDA_ERROR').decode()} ({error})")
        break
"""


def refused(uuids, environ, limit_s=4):
    """{UUID: CUDA's error} of the GPUs that CUDA cannot open. None are those by which others may just
    use the GPU: memory that is in use, a GPU that one process has for itself."""
    def opened(uuid):
        return ask([sys.executable, "-I", "-c", OPEN], limit_s, {**environ, VISIBLE: uuid}).output
    found, uuids = {}, list(uuids)
    with concurrent.futures.ThreadPoolExecutor(max(1, len(uuids))) as pool:
        for uuid, text in zip(uuids, pool.map(opened, uuids)):
            error = re.fullmatch(r"(cu\w+: CUDA_ERROR\w* \(\d+\))\n", text)
            if error and not re.search("OUT_OF_MEMORY|DEVICE_UNAVAILABLE", text):
                found[uuid] = error[1]
    return found


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
    """How many GPUs a program started here would use. CUDA shows a process one MIG instance, and that
    only where it has no whole GPU."""
    if not built(environ):
        return 0
    uuids = named(environ[VISIBLE]) if VISIBLE in environ else [gpu[-1] for gpu in gpus()]
    whole = [uuid for uuid in uuids if not uuid.startswith("MIG-")]
    return len(whole) or min(len(uuids), 1)


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
    names = named(request or "")
    absent = missing(names, found)
    if len(names) > 1 and names[0].startswith("MIG-"):
        raise InconclusiveError(f"requested GPUs {request}: CUDA shows a process one MIG instance: name one")
    if absent:
        raise InconclusiveError(f"requested GPUs {request}: {', '.join(absent)} not found; {here}")
    if request is None and granted and granted > len(found):
        lost = granted - len(found)
        raise InconclusiveError(f"Slurm granted {granted} GPUs on this node: {lost} of them "
                                f"not found; {here}")


if __name__ == "__main__":
    print(visible(os.environ))
