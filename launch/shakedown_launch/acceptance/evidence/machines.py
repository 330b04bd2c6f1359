"""Which machine answered for each node, by the host name and the boot id in the programs' records."""

from ..model import CONFIG, INCONCLUSIVE, INFRASTRUCTURE, Finding
from ...words import hostlist

CHECK = "machine"


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


def findings(runs, records):
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
                    "host name", subject=f"node {node}", check=CHECK, evidence=first[node,].record)
            for (host, _), names in nodes.items() if len(names) > 1 for node in names]


def not_meant(run, nodes, cause):
    return Finding(run.stage, INCONCLUSIVE, nodes, cause, INFRASTRUCTURE,
                   "see whether the node was restarted (last reboot), and whom its name leads to "
                   "(getent hosts)", subject="node", check=CHECK, evidence=run.record)


def described(machines):
    return ", ".join(f"{host} (boot {boot[:8] or 'unknown'})" for host, boot in machines)
