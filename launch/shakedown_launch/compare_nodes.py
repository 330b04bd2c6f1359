"""launch/slurm/compare_nodes: one table over nodes that were measured in jobs of their own, such as
the tasks of an array."""

import os

from .acceptance.evidence import figures, records
from .acceptance.judge import peers
from .acceptance.model import FAIL, INCONCLUSIVE, Run
from .command import Command, UsageError, parse, say

COMMAND = Command(
    "RECORD...",
    """Compares nodes that were measured in jobs of their own: a line per figure, with the node or GPU
    that is farthest below the median of all.""",
    [], """
    RECORD: .jsonl files of jobs on one node each, or folders of them, such as
    runs/collectives-1234_*.jsonl of an array. The last record of a node counts.

    Ends with 0: no node is slow; 1: a node or GPU is slower than its peers; 2: wrong usage, or a
    file that is no record; 3: fewer than three nodes have comparable figures, or several machines
    have one host name.
    """)


def main(arguments):
    _, paths = parse(COMMAND, arguments)
    if not paths:
        raise UsageError("no record named")
    found, machines = [], {}
    for path in files(paths):
        of_file = figures_of(path, machines)
        if not of_file:
            say(f"{path}: has no figures of one node alone")
        found += of_file
    lines = peers.summary(found)
    for line in lines:
        print(line)
    findings = list(peers.judge(found))
    for each in findings:
        print(f"{each.outcome} {' '.join(each.nodes)} {each.subject}: {each.cause}")
    outcomes = {each.outcome for each in findings}
    if not lines:
        say(f"nodes with figures: {len({each.nodes for each in found})}; at least {peers.FEWEST} "
            "are needed, each measured alone and with the same options")
    alike = [node for node, boots in machines.items() if len(boots) > 1]
    for node in alike:
        say(f"{node}: the records are of {len(machines[node])} boots, and the last of them counts. It was "
            "restarted, or several machines have this host name: give each its own")
    hidden = any(of_several_machines(machines[node].values()) for node in alike)
    return 1 if FAIL in outcomes else 3 if INCONCLUSIVE in outcomes or hidden or not lines else 0


def of_several_machines(gpus_by_boot):
    """Whether two boots have no GPU in common."""
    known = [each for each in gpus_by_boot if each]
    return any(not one & other for one in known for other in known)


def files(paths):
    for path in paths:
        if os.path.isdir(path):
            yield from sorted(f"{path}/{name}" for name in os.listdir(path)
                              if name.endswith(".jsonl"))
        else:
            yield path


def figures_of(path, machines):
    """Those of each job in a record that ran on a single node; of a file that a job left empty none. To
    `machines` it adds {node: {boot id: its GPUs}}."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            if not any(map(str.strip, file)):
                return []
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    read = records.read(path)
    if all(line["kind"] == records.UNREADABLE for line in read):
        raise UsageError(f"{path}: not a record, which is a .jsonl file of a program: line "
                         f"{read[0]['line']}: {read[0]['cause']}")
    try:
        return list(of_single_nodes(path, read, machines))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: its figures cannot be read: {error!r}") from None


def of_single_nodes(path, lines, machines):
    for head, of_job in records.jobs(lines):
        nodes = tuple(dict.fromkeys(head.get("hosts", [])))
        if len(nodes) == 1:
            for boot in dict.fromkeys(head.get("boot_ids", [])):
                machines.setdefault(nodes[0], {}).setdefault(boot, set()).update(
                    head.get("gpu_uuids", []))
            run = Run(head.get("program", ""), nodes, 0, head.get("started", ""), 0, path, "")
            yield from figures.figures(run, [head, *of_job])
