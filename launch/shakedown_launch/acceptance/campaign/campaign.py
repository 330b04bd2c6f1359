"""The stages of an acceptance, one after the other: what ran, which node was left out why, and how long the rest will
need."""

import contextlib
import dataclasses
import os
import sys
import time

from ... import gpus, slurm
from ...job import RUNNING, Stopped
from ...words import duration
from .. import evidence, stages
from ..ladder import ladder
from ..model import FAIL, INCONCLUSIVE, Facts, Rounds
from .fleet import AT_ONCE, Task

CPU_RANKS = 2  # per node
# Findings of the inventory after which programs cannot start, or would wait for one another
UNUSABLE = ("gpu-count", "management", "management-stall", "management-error")
ATTEMPTS = 3  # at what several nodes do together, while some of them are lost
ISOLATION_S = {stages.QUICK: 60, stages.DEFAULT: 900, stages.FULL: 3600}
SETTLE_S = (0.5, 5)  # between two stages on GPUs, at least and at most
IDLE_PERCENT = 5  # utilisation


class Campaign:
    """`judge`: a judge.Judge. `fault`: KIND:RANK, perhaps with :AMOUNT, the rank counted over all nodes.
    `job_gpus`: {number: UUID} of a prolog's job; None: of no job."""

    def __init__(self, fleet, settings, judge, progress, environ, ranks=None, expect_gpus=None,
                 fault="", visible=gpus.visible, job_gpus=None):
        self.fleet, self.settings, self.judge, self.progress = fleet, settings, judge, progress
        self._environ, self._visible = environ, visible
        self._ranks, self._expect_gpus = ranks, expect_gpus
        self._needs_gpus = settings.backend == stages.GPU  # not chosen by what the nodes have
        self._fault, self._job_gpus = fault, job_gpus or {}
        self.runs = []
        self.ranks = {}  # node: its ranks
        self.left_out = {}  # node: why no further stage ran on it
        self.findings = []  # of the inventory over all nodes
        self.isolations, self.rounds = {}, Rounds()  # of the ladder, by stage; of all
        self.injected = set()  # (stage, node) of the programs that were given the fault

    def run(self):
        """Raises job.Stopped after a signal; what has run by then is in `runs`."""
        self._inventory()
        on_nodes = self._chosen(stages.NODE)[1:]
        together = self._chosen(stages.GROUP) if len(self.fleet.nodes) > 1 else []
        coming = [(stage.name, self._estimate(stage)) for stage in (*on_nodes, *together)]
        self.progress.expect(coming)
        slurm.check_time(sum(seconds for _, seconds in coming), self._seconds_left(), "the job")
        for stage in on_nodes:
            self._on_each_node(stage)
        for stage in together:
            self._on_all_nodes(stage)

    def end(self, why):
        """No further stage runs on any node."""
        ran = {(run.stage, name) for run in self.runs for name in run.nodes}
        for node, expected in self.expected().items():
            if any((stage, node) not in ran for stage in expected):
                self.left_out.setdefault(node, why)

    def stopped(self):
        """Ends it after a signal; what sent it, as far as it is known."""
        left = self._seconds_left()
        by = "by the job's time limit (--time)" if left is not None and left <= slurm.LAST_S else \
            "by a signal"
        self.end(f"stopped {by}")
        return by

    def facts(self):
        """model.Facts; the nodes as far as the records say what they are."""
        records = {}
        for run in self.runs:
            if len(run.nodes) == 1:
                records.setdefault(run.nodes[0], []).extend(self.judge.records(run))
        # On the CPU no rates have to be judged; what more was measured needs a judgement too.
        rates = stages.rates(self.settings, min(filter(None, self.ranks.values()), default=0))
        return Facts([evidence.node(name, records.get(name, [])) for name in self.fleet.nodes], self.runs,
                     self.findings, self.isolations, self.rounds, rates, self.expected(), self.left_out)

    def expected(self):
        """{node: names of the stages that it has to pass}."""
        scopes = [stages.NODE, stages.GROUP][:2 if len(self.fleet.nodes) > 1 else 1]
        most = max(self.ranks.values(), default=None)
        return {node: [stage.name for scope in scopes for stage in
                       stages.chosen(self.settings, scope, self.ranks.get(node) or most or None)]
                for node in self.fleet.nodes}

    def kinds_of_faults(self):
        """Those that a stage of this tier finds on the ranks that the nodes have."""
        most = max(self.ranks.values(), default=0)
        return sorted({kind for scope, ranks in [(stages.NODE, most),
                                                 (stages.GROUP, sum(self.ranks.values()))]
                       for stage in stages.chosen(self.settings, scope, most)
                       for kind in stages.faults(stage, self.settings, ranks)})

    def _chosen(self, scope):
        return stages.chosen(self.settings, scope, max(self.ranks.values(), default=0))

    def _estimate(self, stage):
        waves = -(-len(self.fleet.nodes) // AT_ONCE) if stage.scope == stages.NODE else 1
        return stages.seconds(stage, self.settings) * waves

    def _seconds_left(self):
        """None in hooks as well, which must not call Slurm."""
        if self.settings.tier in (stages.PROLOG, stages.PASSIVE):
            return None
        return slurm.seconds_left(self._environ)

    def _usable(self, least_ranks=1):
        return [node for node in self.fleet.nodes
                if node not in self.left_out and self.ranks.get(node, 0) >= least_ranks]

    # ---- stages ----

    def _inventory(self):
        """Which GPUs the nodes have, before any communicator is made."""
        stage = stages.named(stages.INVENTORY)
        self._begin(stage, self.fleet.nodes)
        runs = self._run([self._task(stage, [name], ranks=1) for name in self.fleet.nodes])
        found = {run.nodes[0]: evidence.gpus(self.judge.records(run)) for run in runs}
        self._racks = {run.nodes[0]: evidence.rack(self.judge.records(run)) for run in runs}
        self._choose_backend(found, {run.nodes[0] for run in runs if self._unusable(run) is not None})
        on_gpus = self.settings.backend == stages.GPU
        if on_gpus and self._expect_gpus is None and not self._job_gpus:
            models = {gpus_[0].model for gpus_ in found.values() if gpus_}
            for model in models or {""}:
                self.findings += evidence.too_few({node: len(gpus_) for node, gpus_ in found.items()
                                                    if len(models) < 2 or gpus_ and gpus_[0].model == model})
        node = self.fleet.nodes[0]
        of_job = evidence.of_job(node, self._job_gpus, found.get(node, ()))
        self.findings += of_job
        self.left_out.update({each.nodes[0]: each.cause for each in [
            *self.findings, *evidence.wrong_machines(runs, self.judge.records)]
            if each.outcome == FAIL or each in of_job or each.check == evidence.MACHINE})
        for run in runs:
            self._count_ranks(run, len(found[run.nodes[0]]), on_gpus)

    def _unusable(self, run):
        """Why programs cannot start on the node, of its inventory; None where they can."""
        return next((each.cause for each in self.judge.findings(run)
                     if each.outcome in (FAIL, INCONCLUSIVE) and each.check in UNUSABLE), None)

    def _choose_backend(self, found, failed):
        """GPUs where a node has one that is usable; a node that is meant for them and has none is not
        accepted on the CPU."""
        if self.settings.backend != "auto":
            return
        usable = any(found.values()) and (len(self.fleet.nodes) > 1 or self._visible(self._environ) > 0)
        meant, tier = "", self.settings.tier
        if not usable and (request := gpus.requested(self._environ)):
            meant = f"{request} requests GPUs"
        elif not usable and any(found.values()) and tier not in (stages.PROLOG, stages.PASSIVE):
            meant = f"the node has {max(map(len, found.values()))}"  # hooks are for jobs without GPUs too
        if tier == stages.PROLOG and not usable and not meant:  # a job without GPUs
            tier = stages.PASSIVE
        self.settings = dataclasses.replace(
            self.settings, backend=stages.GPU if usable or meant else stages.CPU, tier=tier)
        for node in self.fleet.nodes if meant else ():
            if node not in failed:
                self._leave_out(node, meant)

    def _leave_out(self, node, why):
        """No GPU of it can be used."""
        self.findings.append(evidence.unusable(node, why))
        self.left_out[node] = self.findings[-1].cause

    def _count_ranks(self, run, count, on_gpus):
        """`count`: of the GPUs that the inventory found."""
        node, = run.nodes
        allocation = slurm.allocation(self._environ)
        count = granted = min(count, allocation and allocation.gpus_on_node or count)
        if on_gpus and self.fleet.is_here(node) and self.settings.tier != stages.PASSIVE:
            count = self._visible(self._environ)
        self.ranks[node] = self._ranks or (count if on_gpus else CPU_RANKS)
        why = self._unusable(run)
        if node in self.left_out:
            return
        if why is not None:
            self.left_out[node] = why
        elif run.code not in (0, 1):
            self.left_out[node] = run.note or "its inventory has no result"
        elif on_gpus and count == 0 and self._needs_gpus:
            self._leave_out(node, "--backend gpu requests GPUs")
        elif self.ranks[node] == 0:
            self.left_out[node] = "no GPU was found"
        elif on_gpus and self.settings.tier not in (stages.PROLOG, stages.PASSIVE):
            meant = granted if self._expect_gpus is None else self._expect_gpus
            self.findings += evidence.untested(node, self.ranks[node], meant)

    def _on_each_node(self, stage):
        nodes = self._usable(stage.least_ranks)
        if nodes:
            self._settle()
            self._begin(stage, nodes)
            for run in self._run([self._task(stage, [node]) for node in nodes]):
                self._leave_out_lost(run, stage)
                if self._job_gpus and run.code not in (0, 1) and run.seconds < stages.PROLOG_HANG:
                    self._open_again(run)

    def _open_again(self, run):
        """The GPUs of a prolog's job, after a program that did not measure them: the job would not
        either."""
        refused = gpus.refused(filter(None, self._job_gpus.values()), self._environ)
        self.findings += [evidence.refused(run, uuid, error) for uuid, error in refused.items()]

    def _on_all_nodes(self, stage):
        nodes = self._usable()
        if len(nodes) < 2:
            self.left_out.update({node: "no other node was left" for node in nodes})
            return
        self._settle()
        self._begin(stage, nodes)
        if stage.name == stages.LADDER:
            self._isolate(stage, nodes)
        else:
            self._together(stage, nodes)

    def _together(self, stage, nodes):
        """Again without the nodes that were lost; traced to a node where there is no result and
        nothing says why."""
        for attempt in range(ATTEMPTS):
            run, = self._run([self._task(stage, nodes, round_=attempt)])
            lost = self._leave_out_lost(run, stage)
            nodes = [node for node in nodes if node not in lost]
            if not lost or len(nodes) < 2:
                break
        named = any(len(each.nodes) == 1 and each.blames
                    for each in self.judge.findings(run))
        if self.judge.outcome(run) == INCONCLUSIVE and not named:
            self._isolate(stage, nodes, ATTEMPTS)

    def _domains(self, nodes):
        """{node: what it shares a switch with}: as Slurm has it, else its rack; None where several are not known."""
        racks = {node: self._racks[node] for node in nodes}
        several = all(racks.values()) and len(set(racks.values())) > 1
        return slurm.domains(nodes, self._environ) or (racks if several else None)

    def _isolate(self, stage, nodes, first_round=0):
        lost = set()
        search = ladder.isolate(nodes, self._domains(nodes), lost)
        outcomes, number = None, first_round
        end_at = time.monotonic() + ISOLATION_S.get(self.settings.tier, ISOLATION_S[stages.DEFAULT])
        try:
            while True:
                groups = search.send(outcomes)
                if number > first_round and time.monotonic() > end_at:
                    search.send(None)  # what is open is inconclusive
                runs = self._run([self._task(stage, group, round_=number, group=i)
                                  for i, group in enumerate(groups)])
                outcomes, self.rounds = self.judge.round(runs, self.runs, self.rounds)
                number += 1
                lost |= self._lost(stage, number, [
                    run for run in runs if run.code == 3 and self.judge.outcome(run) == INCONCLUSIVE])
        except StopIteration as end:
            self.isolations[stage.name] = end.value

    def _lost(self, stage, number, runs):
        """The nodes of these runs that do not answer: every later round would wait for them."""
        named = [[name for name in run.nodes if name in dict(run.lost)] for run in runs]
        inventory_ = stages.named(stages.INVENTORY)
        tasks = [dataclasses.replace(
            self._task(inventory_, [name], round_=number, group=i), stage=f"{stage.name}/answer")
            for i, name in enumerate(name for run, lost in zip(runs, named)
                                     for name in lost or run.nodes)]
        lost = {run.nodes[0]: run.note for run in self.fleet.run(tasks, self.progress.tick)
                if run.code not in (0, 1)}
        self.left_out.update({name: f"lost in {stage.name}" + (f": {note}" if note else "")
                              for name, note in lost.items()})
        return set(lost)

    # ---- jobs ----

    def _begin(self, stage, nodes):
        text = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
        self.progress.begin(stage.name, text)

    def _run(self, tasks):
        runs = self.fleet.run(tasks, self.progress.tick)
        self.runs += runs
        if RUNNING.stopped:
            raise Stopped
        return runs

    def _task(self, stage, nodes, ranks=None, round_=0, group=0):
        ranks = ranks or (1 if stage.one_rank else min(self.ranks[node] for node in nodes))
        total = ranks * len(nodes)
        line = stages.words(stage, self.settings, total, self._fault_on(nodes, ranks),
                            self.fleet.folder("capsules"))
        if "--inject-fault" in line:
            self.injected.update((stage.name, node) for node in nodes)
        if stage.program == "node_check" and self._expect_gpus is not None:
            line += ["--expect-gpus", str(self._expect_gpus)]
        return Task(stage.name, tuple(nodes), total, tuple(line),
                    stages.limit(stage, self.settings), round_, group)

    def _fault_on(self, nodes, ranks):
        """The fault with its rank within these nodes; "" where the rank is on another."""
        if not self._fault or not self.ranks:
            return ""
        kind, text, *amount = self._fault.split(":")
        rank = int(text)
        for node in self.fleet.nodes:
            if rank < self.ranks[node]:
                if node in nodes and rank < ranks:
                    return ":".join([kind, str(list(nodes).index(node) * ranks + rank), *amount])
                return ""
            rank -= self.ranks[node]
        return ""

    def _leave_out_lost(self, run, stage):
        """The nodes of a run that no longer answer: they would hold up all that is to come."""
        lost = {name for name in run.nodes if name in dict(run.lost)}
        if len(run.nodes) == 1 and (run.lost or
                                    run.code == 3 and run.seconds >= stages.limit(stage, self.settings)):
            lost = set(run.nodes)
        for name in lost:
            self.left_out[name] = f"lost in {stage.name}" + (f": {run.note}" if run.note else "")
        return lost

    def _settle(self):
        """Until this host's GPUs are idle; other hosts have the same time."""
        if self.settings.backend != stages.GPU or self.settings.tier == stages.PROLOG:
            return
        least, most = SETTLE_S
        least = least / 5 if self.settings.tier == stages.QUICK else least
        end = time.monotonic() + most
        time.sleep(least)
        while (busiest := gpus.busiest()) is not None and busiest > IDLE_PERCENT and \
                time.monotonic() < end:
            time.sleep(0.2)
        if busiest is None:
            self.progress.log("not known whether the GPUs were idle: nvidia-smi cannot be read")


# ---- progress ------------------------------------------------------------------------------------

class Log:
    def __init__(self, path):
        self._path = path

    def line(self, text):
        with open(self._path, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {text}\n")


class Progress:
    """`log` is given each stage once. Nothing is written elsewhere unless `shown`."""

    def __init__(self, log, shown=True, write=None, terminal=None):
        self.log, self._shown = log, shown
        self._write = write or to_standard_error
        self._terminal = os.isatty(2) if terminal is None else terminal
        self._coming = {}  # stage: seconds
        self._number = self._count = 0
        self._stage = self._what = self._last = ""
        self._until = 0.0

    def expect(self, seconds):
        """[(stage, seconds)] of those still to come."""
        self._coming = dict(seconds)
        self._count = self._number + len(self._coming)

    def begin(self, stage, what):
        if stage != self._stage:
            self._number += 1
            self._until = time.monotonic() + self._coming.pop(stage, 0)
        self._stage, self._what = stage, what
        self.log(self._line())
        if self._shown and not self._terminal:
            self._write(f"{self._line()}\n")
        self.tick()

    def tick(self):
        if self._shown and self._terminal and self._line() != self._last:
            self._last = self._line()
            self._write(f"\r{self._last}\x1b[K")

    def end(self):
        if self._last:
            self._write("\r\x1b[K")
            self._last = ""

    def _line(self):
        head = f"{self._number}/{self._count} " if self._count else ""
        left = sum(self._coming.values()) + max(0, self._until - time.monotonic())
        tail = f", about {duration(round(left))} left" if self._count else ""
        return f"{head}{self._stage} on {self._what}{tail}"


def to_standard_error(text):
    with contextlib.suppress(OSError):  # nobody reads it
        sys.stderr.write(text)
        sys.stderr.flush()
