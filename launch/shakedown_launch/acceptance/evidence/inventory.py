"""What a node is, from the records that programs left of it: its GPUs, its versions, and the machine that
answered for it."""

import collections

from ...words import hostlist
from ..model import CONFIG, FAIL, HARDWARE, INCONCLUSIVE, INFRASTRUCTURE, SOFTWARE, Finding, Gpu, Node
from ..stages import INVENTORY

MACHINE = "machine"  # check of the finding that another one answered
IDENTITY = ("driver", "processor", "git_revision")  # keys of a `run` record, and versions.*


def gpus(records):
    """Those that node_check's `health` records name, in NVML's order."""
    found = {}
    for line in records:
        if line.get("kind") == "health" and line.get("uuid"):
            found[line["uuid"]] = Gpu(line.get("index", len(found)), line["uuid"],
                                      line.get("serial", ""), line.get("model", ""),
                                      line.get("pci_id", ""))
    return tuple(sorted(found.values(), key=lambda gpu: gpu.index))


def node(name, records):
    """`records`: of all that ran on the node alone."""
    identity = {}
    for line in records:
        if line.get("kind") == "run":
            for key, value in line.items():
                if value and (key in IDENTITY or key.startswith("versions.")):
                    identity.setdefault(key, value)
    return Node(name, gpus(records), identity)


def of_node(name, outcome, cause, check, class_="", action="", subject=""):
    return Finding(INVENTORY, outcome, (name,), cause, class_, action, subject=subject or f"node {name}", check=check)


def missing(name, cause, subject="", driver_works=True):
    """Where no GPU answers it is rather the driver that is missing."""
    class_, action = (HARDWARE, "see the kernel's messages; reboot, RMA if it stays away") \
        if driver_works else (SOFTWARE, "load the driver, or start the container with its GPUs "
                              "(nvidia-smi, dmesg); reboot")
    return of_node(name, FAIL, cause, "gpu-count", class_, action, subject)


def too_few(counts):
    """Findings about nodes with fewer GPUs than most nodes have, of three or more. `counts`: {node:
    number}."""
    if not counts:
        return []
    (most, number), = collections.Counter(counts.values()).most_common(1)
    if len(counts) >= 3 and number > len(counts) / 2:
        return [missing(name, f"{count} GPUs, {most} on {number} of {len(counts)} nodes", driver_works=count > 0)
                for name, count in counts.items() if count < most]
    most = max(counts.values())  # of as many nodes with each number either may be the right one
    return [of_node(name, INCONCLUSIVE, f"{count} GPUs, {most} on other nodes: how many there should be is not known",
                    "gpu-count", action="--expect-gpus") for name, count in counts.items() if count < most]


def of_job(name, job_gpus, found):
    """Findings about those of a prolog's job that cannot be tested. `job_gpus`: {Slurm's number:
    UUID}; `found`: the node's GPUs, none where the inventory says why."""
    known = {gpu.uuid for gpu in found}
    lost = [missing(name, "the job's GPU (SLURM_JOB_GPUS) is not found", f"GPU {number}")
            for number, uuid in job_gpus.items() if found and uuid != "" and uuid not in known]
    unclear = [number for number, uuid in job_gpus.items() if uuid == ""]
    if unclear:
        lost.append(of_node(
            name, INCONCLUSIVE, f"which GPU is /dev/nvidia{', '.join(unclear)} of SLURM_JOB_GPUS is not known",
            "gpu-unknown", CONFIG, "see Device Minor in /proc/driver/nvidia/gpus/*/information"))
    return lost


def refused(run, uuid, error):
    """Of a GPU that the driver lists."""
    return Finding(run.stage, FAIL, run.nodes, f"CUDA cannot open it, tried twice: {error}",
                   SOFTWARE, "see the kernel's messages and nvidia-fabricmanager; reload the "
                   "driver or reboot", gpu=uuid, subject="GPU", check="gpu-refused",
                   evidence=run.log)


def unusable(name, why):
    return of_node(name, INCONCLUSIVE, f"no GPU can be used, though {why}", "gpu-unusable", CONFIG,
                   "see make doctor and CUDA_VISIBLE_DEVICES; --backend cpu accepts a node without its GPUs")


# ---- machines ------------------------------------------------------------------------------------

def answered(records):
    """The machines, (host, boot id), in the order of their ranks. Containers of one machine have one
    boot id, but names of their own."""
    found = {}
    for line in records:
        if line.get("kind") == "run":
            hosts = list(map(str, line.get("hosts") or []))
            boots = list(map(str, line.get("boot_ids") or [])) + len(hosts) * [""]
            found.update(dict.fromkeys(zip(hosts, boots)))
    return tuple(found)


def wrong_machines(runs, records):
    """About nodes for which another's machine answered, or not always the same. `records`: of a run."""
    machine, found = {}, []
    for run in runs:
        machines = answered(records(run))
        if len(run.nodes) > 1 or not machines:
            continue
        node, = run.nodes
        machine.setdefault(node, machines[0])
        if machines != (machine[node],):
            found.append(not_meant(run, run.nodes, f"{described(machines)} answered, and before it "
                                   f"{described([machine[node]])}: it was restarted, or its name "
                                   "leads to another machine"))
    found += shared(runs, machine)
    for run in runs:
        machines = answered(records(run))
        missing = tuple(node for node in run.nodes if node in machine and machine[node] not in machines)
        if len(run.nodes) > 1 and machines and missing:
            found.append(not_meant(run, missing, f"{described(machines)} answered, and not the machine "
                                   "that answered for it alone"))
    return found


def shared(runs, machine):
    """About the nodes of which several are one machine."""
    nodes = {}
    for node, each in machine.items():
        nodes.setdefault(each, []).append(node)
    first = {run.nodes: run for run in reversed(runs)}
    return [Finding(first[node,].stage, INCONCLUSIVE, (node,), f"one machine, {host}, answered for "
                    f"{hostlist(names)}", CONFIG, "name each machine once (--hosts); give each its own "
                    "host name", subject=f"node {node}", check=MACHINE, evidence=first[node,].record)
            for (host, _), names in nodes.items() if len(names) > 1 for node in names]


def not_meant(run, nodes, cause):
    return Finding(run.stage, INCONCLUSIVE, nodes, cause, INFRASTRUCTURE,
                   "see whether the node was restarted (last reboot), and whom its name leads to "
                   "(getent hosts)", subject="node", check=MACHINE, evidence=run.record)


def described(machines):
    return ", ".join(f"{host} (boot {boot[:8] or 'unknown'})" for host, boot in machines)
