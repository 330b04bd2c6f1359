"""What a node is, from the records that programs left of it."""

from .model import Gpu, Node

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
