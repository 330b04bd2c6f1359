"""What the records of the programs say: what a run found wrong, or could not find out, which GPUs a node has, and which
machine answered for it. It fails closed: a run without a verdict of its own is INCONCLUSIVE and its finding says why."""

import collections
import re

from ..records import UNREADABLE, Ranks, jobs
from ..words import hostlist
from .model import (CLASSES, CONFIG, ENVIRONMENT, EXIT_CODES, FAIL, HARDWARE, INCONCLUSIVE, INFRASTRUCTURE, MISSING,
                    OUTCOMES, PASS, SOFTWARE, STOPPED, Finding, Gpu, Node, worst)
from .stages import INVENTORY

LINK = re.compile(r"(\d+)(?:<->|->)(\d+)")
RATES = "rates"  # check of a program's job verdict that is INCONCLUSIVE for unjudged rates alone
DEATHS = {"signal 9": (ENVIRONMENT, "dmesg: the kernel kills where memory is short; run again"),
          "signal 7": (ENVIRONMENT, "enlarge or clear /dev/shm; run again")}
DEATH = SOFTWARE, "run again; if it repeats on this node alone, run bin/soak on it, else report it"
CODES = {1: (FAIL, "", "failed"),
         2: (INCONCLUSIVE, CONFIG, "usage error"),
         3: (INCONCLUSIVE, "", "inconclusive"),
         4: (INCONCLUSIVE, SOFTWARE, "internal error"),
         STOPPED: (INCONCLUSIVE, "", "stopped by a signal")}


def findings(run, records):
    """`records`: the lines of its record, as records.read returns them. What it says of rates is no
    finding, as bin/judge concludes anew; it does account for the exit code."""
    found, of_rates = [], []
    codes = [] if run.dead or run.lost else [run.code]  # else it is the launcher's of that
    for head, lines in jobs(records):
        found += JobFindings(run, head).findings(lines)
        of_rates += [line.get("verdict") for line in lines if is_of_rates(line)]
        codes += [line.get("exit_code", 3) for line in lines if line["kind"] == "end"]
    heads = [head for head, _ in jobs(records) if head.get("hosts")]
    failures = [line for line in records if line["kind"] == "failure"]
    found += dead_or_lost(run, heads[-1] if heads else {}, failures) or unfinished(run, records)
    found += [] if run.lost else unreadable(run, records)
    return found + unexplained(run, codes, [*(each.outcome for each in found), *of_rates])


def is_of_rates(line):
    """Whether a program's verdict is one of rates: bin/judge has it from their metrics."""
    return line["kind"] == "verdict" and (
        "metric" in line or line.get("scope") == "job" and line.get("check") == RATES)


def about_run(run, outcome, cause, check, nodes=None, **other):
    """It concerns all nodes of the run; which of several, the ladder finds out."""
    return Finding(run.stage, outcome, nodes or run.nodes, cause, check=check, evidence=run.log, **other)


# ---- how it ended ----

def dead_or_lost(run, head, failures):
    """`head`: its `run` record, as far as there is one. `failures`: its lines about ranks that did not
    answer."""
    found = []

    def blame(node, cause, check, subject, class_, action):
        found.append(Finding(run.stage, INCONCLUSIVE, (node,), cause, class_, action, subject=subject,
                             check=check, evidence=run.log))
    for rank, host, how in run.dead:
        node = node_of(run, head, int(rank), host)
        blame(node, f"rank {rank} on {node} died: {how}", "rank-died", f"rank {rank}",
              *DEATHS.get(how.partition(" (")[0], DEATH))
    silent = dict.fromkeys(pair for line in failures for pair in zip(line["ranks"], line["hosts"]))
    for rank, host in silent:
        node = node_of(run, head, int(rank), host)
        blame(node, run.note or f"no answer from rank {rank} on {node}", "no-answer", f"rank {rank}", INFRASTRUCTURE,
              "inspect the node: processes that hang in the kernel or were stopped (ps), its network; run again")
    unknown = []
    for host, cause in run.lost:
        node = Ranks(run.nodes, {"hosts": [host]}).host(host)
        if host and node in run.nodes:
            blame(node, cause, "node-lost", f"node {node}", INFRASTRUCTURE, "inspect the node and its network")
        else:
            unknown.append(about_run(run, INCONCLUSIVE, cause, "node-lost",
                                     action="inspect the nodes and their network"))
    rest = tuple(name for name in run.nodes if (name,) not in {each.nodes for each in found})
    if found and rest:
        found.append(about_run(run, INCONCLUSIVE, f"not finished: {found[0].cause}", "not-finished", nodes=rest))
    return found + unknown


def node_of(run, head, rank, host):
    """By its rank, where the record has the name that the host gives itself."""
    ranks = Ranks(run.nodes, head or {"hosts": [host]})
    return ranks.node(rank) if head and rank < len(ranks) else ranks.host(host)


def unreadable(run, records):
    """Without a record that is missing because its program did not come that far."""
    cut_short = run.dead or run.lost or run.code not in (0, 1)
    why = f"{run.note}; " if run.note else ""  # rather than the record that it did not write
    return [about_run(run, INCONCLUSIVE, why + line["cause"] if line["line"] == 0 else
                      f"record line {line['line']}: {line['cause']}", "record")
            for line in records
            if line.get("kind") == UNREADABLE and (line["line"] > 0 or not cut_short)]


def unfinished(run, records):
    """The jobs that wrote no `end` line, or that there is none that began."""
    causes = [f"{head.get('program', 'the program')} did not end in order"
              for head, lines in jobs(records) if not any(line["kind"] == "end" for line in lines)]
    if not records:
        causes.append("wrote no record")
    how = run.note or f"its record has no end line (exit code {run.code})"
    return [about_run(run, INCONCLUSIVE, f"{cause}: {how}", "not-finished", action="see the log")
            for cause in causes]


def unexplained(run, codes, outcomes):
    """An exit code that none of the outcomes accounts for."""
    accounted = {EXIT_CODES.get(outcome, 0) for outcome in outcomes}
    missing = []
    for code in dict.fromkeys(codes):
        outcome, class_, what = CODES.get(code, (INCONCLUSIVE, "", "killed"))
        if code == 0 or code in accounted or (code == 3 and 1 in accounted):
            continue
        why = f": {run.note}" if run.note else \
            "" if code == STOPPED else ", and its record does not say why"
        stopped = code == STOPPED
        missing.append(about_run(run, outcome, f"{what}, exit code {code}{why}",
                                 MISSING if stopped else "exit-code", class_=class_,
                                 action="run again" if stopped else "see the log"))
    return missing


# ---- what it recorded ----

class JobFindings:
    """One program's part of the record."""

    def __init__(self, run, head):
        self._run, self._ranks = run, Ranks(run.nodes, head)
        self._program = head.get("program", run.stage)

    def findings(self, lines):
        verdicts = [line for line in lines if line["kind"] == "verdict"]
        parts = [line for line in verdicts if line.get("scope") != "job"]
        found = [self._verdict(line) for line in parts if not is_of_rates(line)]
        found = [each for each in found if each]
        found += self._wrong(lines, found)
        explained = worst([*(each.outcome for each in found),
                           *(line["verdict"] for line in parts
                             if is_of_rates(line) and line["verdict"] in OUTCOMES)])
        for line in verdicts:
            if line.get("scope") == "job" and not is_of_rates(line):
                found += self._of_job(line, explained)
        return found

    def _of_job(self, line, explained):
        """A program's own verdict, where none of its parts already accounts for it."""
        outcome = line.get("verdict")
        if outcome not in OUTCOMES:
            return [self._unknown(line)]
        if EXIT_CODES.get(outcome, 0) == 0 or worst([outcome, explained]) == explained:
            return []
        return [self._finding(line, outcome, self._run.nodes, "", line.get("name", ""))]

    def _verdict(self, line):
        """None where all is well."""
        outcome = line.get("verdict")
        place = self._place(line.get("scope"), str(line.get("name", "")), line.get("host"))
        if outcome not in OUTCOMES or place is None:
            return self._unknown(line)
        return None if outcome == PASS else self._finding(line, outcome, *place)

    def _place(self, scope, name, host):
        """(nodes, UUID, subject); None where the record does not say."""
        ranks, all_ = self._ranks, self._run.nodes
        if scope == "gpu":
            rank = ranks.rank_of(name)
            nodes = (ranks.node(rank),) if rank is not None else \
                (ranks.host(host),) if host else all_
            return nodes, name, "" if rank is None else f"GPU of rank {rank}"
        if scope == "rank" and name.isdigit() and int(name) < len(ranks):
            return (ranks.node(int(name)),), ranks.gpu(int(name)), f"rank {name}"
        if scope == "link" and (match := LINK.fullmatch(name)):
            ends = [int(rank) for rank in match.groups()]
            if max(ends) < len(ranks):
                nodes = dict.fromkeys(ranks.node(rank) for rank in ends)
                return tuple(nodes), "", f"link {name}"
        if scope == "node" and name:
            return (ranks.host(name),), "", f"node {name}"
        if scope in ("operation", "strategy", "rail"):
            return all_, "", f"rail {name}" if scope == "rail" else name
        return None

    def _unknown(self, line):
        known = {key: line.get(key) for key in ("scope", "name", "verdict")}
        return about_run(self._run, INCONCLUSIVE, f"{self._program}: unknown verdict {known}",
                         "unknown-verdict", class_=SOFTWARE, action="report it, with the record")

    def _finding(self, line, outcome, nodes, gpu, subject):
        class_ = line.get("class", "")
        return Finding(self._run.stage, outcome, nodes, line.get("cause", ""),
                       class_=class_ if class_ in CLASSES else "", action=line.get("action", ""),
                       gpu=gpu, subject=subject,
                       check=line.get("check") or f"{self._program}-{line.get('scope')}",
                       evidence=self._run.record)

    def _wrong(self, lines, found):
        """Wrong data that no verdict names, as where the program was killed before its verdicts."""
        failed = [each for each in found if each.blames]
        wrong = []
        for line in lines:
            if line["kind"] == "mismatch" and line.get("verdict", FAIL) == FAIL:
                rank = line.get("rank", -1)
                place = self._place("rank", str(rank), line.get("host")) or \
                    ((self._ranks.host(line.get("host", "")),), "", f"rank {rank}")
                if not any(each.gpu == place[1] and each.nodes == place[0] for each in failed):
                    wrong.append(self._wrong_data(
                        f"{line.get('load')} {line.get('where')}: {line.get('cause')}", place,
                        line.get("capsule", "")))
            elif (line.get("wrong_elements") or 0) > 0 and not failed:
                what = line.get("operation") or f"link {line.get('from')}->{line.get('to')}"
                count = f"{line['wrong_elements']:.0f} wrong elements"
                wrong.append(self._wrong_data(f"{what}: {count}", (self._run.nodes, "", what)))
        return wrong

    def _wrong_data(self, cause, place, capsule=""):
        nodes, gpu, subject = place
        return Finding(self._run.stage, FAIL, nodes, f"wrong data: {cause}", action="run bin/soak on it",
                       gpu=gpu, subject=subject, check="wrong-data", evidence=capsule or self._run.record)


# ---- what a node is ------------------------------------------------------------------------------

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


def rack(records):
    """That of the NVLink domain which the node's GPUs are in with those of other nodes; None: of none."""
    return next((f"rack {line['fabric_cluster'][:8]}" for line in records
                 if line.get("kind") == "health" and line.get("fabric_cluster")), None)


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


def untested(name, count, meant):
    """About a node that has more GPUs than ranks."""
    return [of_node(name, INCONCLUSIVE, f"{meant - count} of its {meant} GPUs are not tested", "gpus-untested", CONFIG,
                    "leave out -n and CUDA_VISIBLE_DEVICES, and request all from Slurm; "
                    f"--expect-gpus {count} accepts these alone")] if count < meant else []


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
