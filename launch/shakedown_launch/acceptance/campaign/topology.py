"""Which nodes share a leaf switch or an NVLink domain, as Slurm knows it: the ladder's domains."""

import re
import subprocess

from ... import slurm
from ...command import UsageError
from ...hosts import matched

TIMEOUT_S = 10
# Of a tree only the leaves: switches of higher levels list the same nodes again.
LEAF = re.compile(r"^(?:SwitchName=(?P<leaf>\S+) Level=0|BlockName=(?P<block>\S+))\s.*?"
                  r"\bNodes=(?P<nodes>\S+)", re.M)


def scontrol():
    """What `scontrol show topology` prints; "" where it does not."""
    try:
        return subprocess.run(["scontrol", "show", "topology"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                              timeout=TIMEOUT_S).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return ""


def domains(nodes, environ, show=scontrol):
    """{node: its switch or block}; None outside Slurm and where it does not know all nodes."""
    if "SLURM_JOB_ID" not in environ:
        return None
    found = {}
    for leaf in LEAF.finditer(show()):
        try:
            hosts = slurm.hosts(leaf["nodes"])
        except UsageError:  # a list of another form
            return None
        for host in hosts:
            found[host] = leaf["leaf"] or leaf["block"]
    known = matched(nodes, found)
    return {node: found[known[node]] for node in nodes} if len(known) == len(nodes) else None
