"""launch/slurm/compare_nodes: one table over nodes that were measured in jobs of their own."""

import collections
import os

from . import slurm
from .acceptance.evidence import figures, records
from .acceptance.judge import pairs, peers
from .acceptance.model import FAIL, INCONCLUSIVE, Run
from .acceptance.words import count, nodes
from .command import Command, Option, UsageError, parse, say

COMMAND = Command(
    "[--expect-nodes NODES] RECORD...",
    """Compares nodes that were measured in jobs of their own: a line per figure, with the node or GPU
    that is farthest below the median of all, then how many jobs and nodes there were.""",
    [Option(("--expect-nodes",), "NODES",
            "nodes that must have figures, as n[001-128] or a file of such lists: those that have none are "
            "named, and the result is inconclusive")], """
    RECORD: .jsonl files of jobs on one node each, or folders of them. The last job of a node counts.

    Ends with 0: no node is slow; 1: a node or GPU is slower than its peers; 2: wrong usage, or a
    file that is no record; 3: fewer than three nodes have comparable figures, an expected node has
    none, or machines share a host name; 4: internal error.
    """)

# A job on one node. `gpus`: UUIDs; `boot`: the kernel's boot id, "" where the record has none.
Job = collections.namedtuple("Job", "node gpus boot figures")


def main(arguments):
    values, paths = parse(COMMAND, arguments)
    if not paths:
        raise UsageError("no record named")
    expected = nodes_in(values["--expect-nodes"]) if "--expect-nodes" in values else []
    jobs = []
    for path in files(paths):
        of_file = jobs_in(path)
        if not of_file:
            say(f"{path}: has no figures of one node alone")
        jobs += of_file
    found = [figure for job in jobs for figure in job.figures]
    lines = peers.summary(found)
    findings = [*peers.judge(found), *pairs.judge(found)]
    for line in [*lines, *(f"{each.outcome} {' '.join(each.nodes)} {each.subject}: {each.cause}"
                           for each in findings)]:
        print(line)
    open_ = unsettled(jobs, expected)
    measured = {job.node for job in jobs}
    print("; ".join([f"{count(len(jobs), 'job')}, {count(len(measured), 'node')}", *open_]))
    if not lines:
        say(f"nodes with figures: {len(measured)}; at least {peers.FEWEST} are needed, each measured "
            "alone and with the same options")
    outcomes = {each.outcome for each in findings}
    return 1 if FAIL in outcomes else 3 if INCONCLUSIVE in outcomes or open_ or not lines else 0


def unsettled(jobs, expected):
    """Sentences about nodes of which it is not known how they do."""
    measured = {job.node for job in jobs}
    measured |= {node.partition(".")[0] for node in measured}  # as Slurm has them
    missing = [node for node in expected if node not in measured]
    said = [f"not measured: {nodes(missing)}"] if missing else []
    for node in dict.fromkeys(job.node for job in jobs):
        several = machines([job for job in jobs if job.node == node])
        if several > 1:
            said.append(f"{several} machines, or boots of one, have the host name {node}, and the last job "
                        "alone counts: give each machine its own name")
    return said


def machines(jobs):
    """How many the jobs of one host name ran on, as far as their GPUs, else the kernel's boot, tell."""
    known = [(set(job.gpus), job.boot) for job in jobs]
    distinct = []
    for gpus, boot in known:
        if not any(gpus & others if gpus and others else not boot or boot == other
                   for others, other in distinct):
            distinct.append((gpus, boot))
    return len(distinct)


def nodes_in(value):
    """Those of Slurm's node list, or of a file of such lists."""
    text = value
    if os.path.isfile(value):
        with open(value, encoding="utf-8", errors="replace") as file:
            text = ",".join(file.read().split())
    try:
        found = slurm.hosts(text)
    except (UsageError, ValueError):
        found = []
    if not found:
        raise UsageError(f"--expect-nodes {value}: neither a file nor a list of nodes such as n[001-128]")
    return list(dict.fromkeys(found))


def files(paths):
    for path in paths:
        if os.path.isdir(path):
            yield from sorted(f"{path}/{name}" for name in os.listdir(path)
                              if name.endswith(".jsonl"))
        else:
            yield path


def jobs_in(path):
    """Those of a record that ran on a single node; of a file that a job left empty none."""
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
        return list(of_single_nodes(path, read))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: its figures cannot be read: {error!r}") from None


def of_single_nodes(path, lines):
    for head, of_job in records.jobs(lines):
        hosts = tuple(dict.fromkeys(head.get("hosts", [])))
        if len(hosts) == 1:
            run = Run(head.get("program", ""), hosts, 0, head.get("started", ""), 0, path, "")
            found = figures.figures(run, [head, *of_job])
            if found:
                yield Job(hosts[0], head.get("gpu_uuids") or (), "".join(head.get("boot_ids", [])[:1]), found)
