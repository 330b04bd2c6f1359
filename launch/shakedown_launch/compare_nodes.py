"""launch/slurm/compare_nodes: one table over nodes that were measured in jobs of their own."""

import collections
import os
import tempfile
import types

from . import records, slurm
from .acceptance import judge as judging
from .acceptance.model import FAIL, INCONCLUSIVE, Run
from .acceptance.report import series
from .words import count, figure, nodes
from .command import Command, Option, UsageError, parse, say

COMMAND = Command(
    "[--expect-nodes NODES] RECORD...",
    """Compares nodes that were measured in jobs of their own: a line per figure, with the node or GPU
    that is slowest, then what bin/judge concludes of them, and how many jobs and nodes there were.""",
    [Option(("--expect-nodes",), "NODES",
            "nodes that must have figures, as n[001-128] or a file of such lists: those that have none are "
            "named, and the result is inconclusive")], """
    RECORD: .jsonl files of jobs on one node each, or folders of them. The last job of a program on a
    node counts.

    Ends with 0: no node is slow; 1: a node or GPU is slower than its peers or its reference, or its job
    ended with 1, as by wrong data; 2: wrong usage, or a file that is no record; 3: figures have nothing to
    be compared with, an expected node has none, a job did not come to its end, a line of a record cannot be
    read, or machines share a host name; 4: internal error.
    """)

# A program's job on one node. `gpus`: UUIDs; `boot`: the kernel's boot id, "" where the record has none; `code`: exit code,
# None of one that did not come to its end; `damage`: the first line of its record that cannot be read, "" of none.
Job = collections.namedtuple("Job", "node program gpus boot lines code damage started")
COMPLETE = (0, 1, 3)  # 3: of a job alone, whose rates nothing else judges


def main(arguments):
    values, paths = parse(COMMAND, arguments)
    if not paths:
        raise UsageError("no record named")
    expected = nodes_in(values["--expect-nodes"]) if "--expect-nodes" in values else []
    # By time: collectives-10.jsonl comes before collectives-9.jsonl.
    jobs = sorted((job for path in files(paths) for job in jobs_in(path)), key=lambda job: job.started)
    programs = {job.program for job in jobs if job.lines}  # others never have figures
    jobs = [job for job in jobs if job.program in programs or job.damage]
    last = list({(job.node, job.program): job for job in jobs}.values())
    judged = judge([job for job in last if job.lines])
    compared = False
    for each in series.measured(types.SimpleNamespace(figures=judged.figures)):
        compared |= bool(each.witness)
        print(line_of(each))
    for each in judged.findings:
        print(f"{each.outcome} {' '.join(each.nodes)} {each.subject or each.gpu}: {each.cause}")
    outcomes = {each.outcome for each in judged.findings}
    slow = {node for each in judged.findings if each.outcome == FAIL for node in each.nodes}
    for job in last:
        if job.code == 1 and job.node not in slow:
            outcomes.add(FAIL)
            print(f"{FAIL} {job.node}: {job.program} ended with 1: wrong data, or below a bar")
    open_ = unsettled(jobs, expected)
    open_ += [f"{job.program} did not come to its end on {job.node}" for job in last if job.code not in COMPLETE]
    open_ += [f"{job.program} has no figure of {job.node}" for job in last if job.code == 3 and not job.lines]
    open_ += [job.damage for job in last if job.damage]
    print("; ".join([f"{count(len(jobs), 'job')}, {count(len({job.node for job in jobs}), 'node')}", *open_]))
    if not compared:
        say("no figure was compared: nodes must be measured alone, with the same options, and be three or more")
    return 1 if FAIL in outcomes else 3 if INCONCLUSIVE in outcomes or open_ or not compared else 0


def judge(jobs):
    """What bin/judge concludes of their figures."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [Run(job.program, (job.node,), 0, "", 0, f"{number}.jsonl", "")
                for number, job in enumerate(jobs)]
        for run, job in zip(runs, jobs):
            with open(os.path.join(folder, run.record), "w", encoding="utf-8") as file:
                file.write("\n".join(map(judging.text_of, job.lines)) + "\n")
        judged = judging.Program(folder, os.environ).judge(
            {job.node: [job.node] for job in jobs}, runs)
    if judged.failed:
        raise UsageError(judged.failed)
    return judged


def line_of(each):
    """"train/step_ms: n017 has the worst of 128, 31.2 ms, 6.0 % slower than usual (29.4, by peers)"."""
    worst = f"{each.name}: {series.where(each.worst, {})} has the worst of {len(each.figures)}, " \
            f"{figure(each.worst.value)} {each.unit}"
    if not each.witness:
        return f"{worst}, not compared"
    return f"{worst}, {f'{each.slower} slower than' if each.slower else 'as'} usual ({figure(each.worst.usual)}, " \
           f"by {each.witness})"


def unsettled(jobs, expected):
    """Sentences about nodes of which it is not known how they do."""
    measured = {job.node for job in jobs if job.lines}
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
    """Those of a record that ran on a single node, also without figures; of a file that a job left empty none."""
    try:
        read = records.lines(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    damage = next((f"line {line['line']}: {line['cause']}" for line in read if line["kind"] == records.UNREADABLE), "")
    if read and all(line["kind"] == records.UNREADABLE for line in read):
        raise UsageError(f"{path}: not a record, which is a .jsonl file of a program: {damage}")
    found = []
    for head, lines in records.jobs(read):
        hosts, metrics = set(head.get("hosts", [])), [line for line in lines if line["kind"] == "metric"]
        code = next((line["exit_code"] for line in reversed(lines) if line["kind"] == "end"), None)
        if len(hosts) == 1:
            found.append(Job(hosts.pop(), head.get("program", ""), head.get("gpu_uuids") or (),
                             "".join(head.get("boot_ids", [])[:1]), metrics, code, damage and f"{path}: {damage}", str(head.get("started", ""))))
    if damage and not found:
        raise UsageError(f"{path}: has no job of one node alone: {damage}")
    if not any(job.lines for job in found):
        say(f"{path}: has no figures of one node alone")
    return found
