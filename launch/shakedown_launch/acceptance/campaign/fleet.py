"""Runs programs on groups of nodes, many at the same time: in a Slurm allocation on its nodes, else
over ssh on the hosts named, else on this machine."""

import collections
import contextlib
import dataclasses
import math
import os
import re
import resource
import shlex
import time

from ... import hosts, launchers, mpi, places, slurm
from ...command import UsageError
from ...job import RUNNING, Job, Output, Stopped
from ...words import clean
from ..model import Run

GRACE = 10  # seconds, as launch/mpi
ALONE = {"OMPI_MCA_ess_singleton_isolated": "1"}  # Open MPI then starts no daemon
ERROR = re.compile(r"^error: (rank \d+ on .*)", re.M)  # with which a program ends its ranks
LOG_END = 65536  # characters of a log in which it is searched


def at_once():
    """How many jobs run at the same time. Each has 4 descriptors here, an mpirun of 4 MB and under
    Slurm an srun of 4 MB with 9 threads in all, and takes 0.1 s of a core to start."""
    most = [1024, 32 * len(os.sched_getaffinity(0))]
    for limit, of_each in [(resource.RLIMIT_NOFILE, 5), (resource.RLIMIT_NPROC, 16)]:
        soft = resource.getrlimit(limit)[0]
        most += [soft // of_each] if soft != resource.RLIM_INFINITY else []
    return max(16, min(most))


AT_ONCE = at_once()


@dataclasses.dataclass(frozen=True)
class Task:
    """A program that is to run on a group of nodes."""
    stage: str
    nodes: tuple  # names
    ranks: int  # over all of them
    words: tuple
    limit: float  # seconds, after which it counts as hung
    round: int = 0
    group: int = 0  # of the round


def host_names(values, environ):
    """The hosts of --hosts, --hostfile or the Slurm allocation; none: this machine alone."""
    named = hosts.requested(values)
    if named:
        return named
    allocation = slurm.allocation(environ)
    if allocation is None or allocation.nodes == 1 and allocation.on_node:
        return []
    if len(allocation.hosts) != allocation.nodes:
        raise UsageError("Slurm does not name the nodes of this allocation (SLURM_JOB_NODELIST)")
    return allocation.hosts


class Fleet:
    """The nodes by name, and what runs on them. `output` gets a folder per stage with the record
    and the log of each job; `log` a line as each begins and ends. After `deadline` (monotonic)
    nothing is started, and what runs is ended. Without `mpirun_for_one` one rank on this host is
    started as it is: mpirun's files and daemons are no part of it."""

    def __init__(self, names, output, environ, log=lambda text: None, deadline=None, grace=GRACE,
                 mpirun_for_one=True):
        own, of_slurm = os.uname().nodename, environ.get("SLURMD_NODENAME", "")
        # Slurm's commands do not know a host by its name with a domain.
        self._address = {name: name for name in names} or {of_slurm if hosts.same(of_slurm, own) else own: None}
        self._output, self._environ, self._log = output, environ, log
        self._deadline, self._grace = deadline, grace
        self._mpirun_for_one = mpirun_for_one

    @property
    def nodes(self):
        return list(self._address)

    def is_here(self, name):
        return self._address[name] is None or hosts.is_here(name, os.uname().nodename)

    def folder(self, name):
        """A folder in the output for what programs write next to their records."""
        path = f"{self._output}/{name}"
        os.makedirs(path, exist_ok=True)
        return path

    def run(self, tasks, tick=lambda: None):
        """Runs the tasks, AT_ONCE at a time; their model.Run, in the order of the tasks. `tick` is
        called about once a second. Tasks that a signal or the deadline came before have no Run."""
        others = list(filter(None, self._address.values()))
        with contextlib.ExitStack() as stack:
            if any(map(self._by_mpirun, tasks)):
                launcher = launchers.find(None, self._environ)
                stack.enter_context(launcher.session_folder(self._environ, others))
            return self._run(collections.deque(enumerate(tasks)), tick)

    def _run(self, waiting, tick):
        running, runs = {}, {}
        while waiting or running:
            while waiting and len(running) < AT_ONCE and self._may_start():
                number, task = waiting.popleft()
                started = time.gmtime()
                job = self._start(task)
                if job:
                    running[number] = task, job, started
            if not self._may_start():
                waiting.clear()
            tick()
            if running:
                RUNNING.serve(time.monotonic() + 1)
            for number, (task, job, started) in list(running.items()):
                if job.result is not None:
                    del running[number]
                    run = runs[number] = run_of(task, job.result, started, f"{self._output}/{place_of(task)}.log")
                    self._log(f"{run.log}: {run.code} after {run.seconds:.1f} s"
                              f"{run.note and f': {run.note}'}")
        return [runs[number] for number in sorted(runs)]

    def _by_mpirun(self, task):
        return self._mpirun_for_one or task.ranks > 1 or not all(map(self.is_here, task.nodes))

    def _may_start(self):
        return not RUNNING.stopped and self._time_left() > 0

    def _time_left(self):
        return math.inf if self._deadline is None else self._deadline - time.monotonic()

    def _start(self, task):
        """Its Job; None where a signal came first."""
        self.folder(task.stage)
        path = f"{self._output}/{place_of(task)}"
        what = mpi.request({"-n": str(task.ranks)}, [*task.words, "--record", f"{path}.jsonl"], self._environ)
        what = what._replace(hosts=[each for each in map(self._address.get, task.nodes) if each is not None])
        log, limits = f"{path}.log", {"grace": self._grace, "limit": min(task.limit, self._time_left())}
        job = mpi.job(what, self._environ, log=log, shown=False, **limits) if self._by_mpirun(task) else \
            Job(what.words, {**self._environ, **ALONE}, Output(log, shown=False), **limits)
        self._log(f"{place_of(task)}: {shlex.join(task.words)}")
        try:
            job.start()
        except Stopped:
            return None
        return job


def place_of(task):
    """The files of a task without their ending: soak/n017, all_reduce/round-1-group-2."""
    if task.round or len(task.nodes) > 1:
        return f"{task.stage}/round-{task.round}-group-{task.group}"
    return f"{task.stage}/{task.nodes[0].replace('/', '_')}"


def run_of(task, result, started, log):
    """model.Run of a job.Result. `log`: its path."""
    notes = list(result.said)
    if result.code not in (0, 1) and not (result.late or result.dead or result.lost):
        notes += last_error(log)
    place = place_of(task)
    return Run(task.stage, task.nodes, result.code, time.strftime("%Y-%m-%dT%H:%M:%SZ", started), result.seconds,
               f"{place}.jsonl", f"{place}.log", task.round, tuple(result.dead), tuple(result.lost),
               "; ".join(notes), task.group)


def last_error(path):
    """[the last error of a rank] in a job's log; []: there is none."""
    found = ERROR.findall(places.text_of(path)[-LOG_END:])[-1:]
    return [clean(each) for each in found]
