"""launch/mpi: runs a program on several ranks with the launcher of its MPI; after bin/train, bin/compare and bin/soak it
prints the headline of results/report, from their record."""

import contextlib
import os
import re
import shlex
import signal
import tempfile

from . import gpus, hosts, launchers, places, ranks, slurm
from .command import Command, Option, UsageError, parse, positive, say
from .job import RUNNING, Job, Output

RANK_OPTIONS = [
    Option(("-n", "-np"), "N",
           "number of ranks (default: Slurm's number of tasks, unless that is one per node with "
           "several GPUs; else on each host one per GPU visible here, or two without GPUs or with "
           "--backend cpu)"),
    Option(("--gpus",), "0,1,2,3",
           "use these GPUs of each host; CUDA_VISIBLE_DEVICES of the environment applies to this "
           "host only"),
    Option(("--hosts",), "h1,h2", "run on these hosts, with the same number of ranks on each; h1:4,h2:4 starts four on each"),
    Option(("--hostfile",), "FILE",
           "file of hosts, one per line, in place of --hosts; in a Slurm allocation only its nodes "
           "are allowed (default: all of them)"),
    Option(("--bind",), "WHAT",
           "binding of the ranks: none (default: the programs divide the cores themselves), core or "
           "numa"),
    Option(("--launcher",), "NAME",
           f"what starts the ranks: {', '.join(launchers.LAUNCHERS)} (default: what mpirun --version reports)"),
]

COMMAND = Command(
    "[options] PROGRAM [ARGS...]",
    "Runs PROGRAM (train, bin/train or any other) on several ranks with mpirun, of Open MPI, MPICH or Intel MPI.",
    [*RANK_OPTIONS,
     Option(("--grace",), "S",
            "seconds between the failure of a rank, or a signal, and the kill of the ranks that "
            "still run (default: 10); use more where bin/train writes a large checkpoint"),
     Option(("--quiet",), None,
            "do not print the verdict and the sentences of results/report after bin/train, bin/compare and bin/soak"),
     Option(("--dry-run",), None, "print the launcher's command, and exit")],
    """
    PROGRAM is searched in SHAKEDOWN_BIN, in bin/ next to launch/, and in PATH.

    Ends with the programs' own exit code; 2: wrong usage, or no MPI; 3: a requested GPU is
    not visible, a rank died of a signal, a host or a link was lost, or the job or one of its ranks
    could not be started; 4: internal error; 5: stopped by SIGINT, SIGTERM, SIGHUP or SIGQUIT. The first of
    these sends SIGUSR2 to the ranks; one that comes a second later, or after that, kills the job at
    once. SIGUSR1 and SIGUSR2 are passed on to the ranks.
    """)


def request(values, words, environ):
    """The ranks.Request of options and program."""
    if not words:
        raise UsageError("no program named")
    chosen = values.get("--gpus", "0")
    if not re.fullmatch(f"({gpus.ENTRY})(,({gpus.ENTRY}))*", chosen):
        raise UsageError(f"--gpus {chosen} is not a list such as 0,1,2,3")
    entries = [int(entry) if entry.isdigit() else entry for entry in chosen.split(",")]
    if len(set(entries)) < len(entries):
        raise UsageError(f"--gpus {chosen} names a GPU more than once")
    bind = values.get("--bind", "none")
    if bind not in ("none", "core", "numa"):
        raise UsageError(f"--bind {bind}: choose from none, core, numa")
    return ranks.Request([places.find_program(words[0], environ), *words[1:]],
                         positive(values, "-n", None, "ranks") or hosts.ranks(values), values.get("--gpus"),
                         hosts.requested(values), bind, values.get("--launcher"))


def check_launcher(what, environ, names=()):
    """`names`: of the hosts of the job, where they are not this one alone."""
    launchers.find(what.launcher, environ).check(names)


def line(what, environ, host=None):
    """The mpirun line of a ranks.Request."""
    host = host or ranks.Host()
    return launchers.find(what.launcher, environ).line(what, ranks.place(what, environ, host), environ, host)


def environment(what, environ):
    return {**environ, "CUDA_VISIBLE_DEVICES": what.gpus} if what.gpus else dict(environ)


def job(what, environ=None, log=None, shown=True, grace=10, limit=None):
    """A Job, not yet started, of a ranks.Request."""
    environ = environment(what, os.environ if environ is None else environ)
    environ.setdefault(RECORD, "")  # the program does not print how to report: the command that starts it does
    terminals = "".join(str(descriptor) for descriptor in (1, 2) if shown and os.isatty(descriptor))
    if terminals:
        environ["SHAKEDOWN_TERMINAL"] = terminals  # to the ranks they are pipes
    host = ranks.Host()
    placement = ranks.place(what, environ, host)
    launcher = launchers.find(what.launcher, environ)
    words = launcher.line(what, placement, environ, host)
    output = Output(log, shown)
    others = [name for name in what.hosts if not hosts.is_here(name, host.name)]

    def report(text):
        say(text, output.line)

    def ask():
        return slurm.trouble(environ) if placement.allocated and placement.elsewhere else ""
    # mpirun forwards USR2 to the ranks on all hosts: bin/train then writes a checkpoint, others end
    # by it. At TERM mpirun would kill them within a second.
    return Job([words[0], *launcher.in_job, *words[1:]],
               {**launcher.environment(environ), **slurm.for_steps(environ, launcher.name == launchers.Srun.name)}, output,
               launcher.messages(report, output.line, others, placement.ranks, ask), grace, report,
               stop_signal=signal.SIGUSR2, elsewhere=placement.elsewhere, limit=limit)


def main(arguments):
    values, words = parse(COMMAND, arguments)
    grace = positive(values, "--grace", 10, "seconds")
    what = request(values, words, os.environ)
    check_launcher(what, os.environ, ranks.names(what, os.environ))
    if slurm.binding(os.environ):
        say(f"Slurm's {' '.join(slurm.binding(os.environ))} is not applied: the ranks of a node see "
            "all of its GPUs, and choose one each")
    if "--dry-run" in values:
        import shlex
        print(shlex.join(line(what, environment(what, os.environ))))
        return 0
    first = next(iter(ranks.names(what, os.environ)), "localhost")
    headline = Headline(what.words, "" if hosts.is_here(first, os.uname().nodename) else first, "--quiet" in values)
    started = job(what, {**os.environ, **headline.environment()}, grace=grace)
    started.start()
    started.wait()
    if started.result.code and started.result.stopped and RUNNING.stopped:
        say(f"stopped by {signal.Signals(RUNNING.stopped).name}")
    headline.show(started.result.code)
    return started.result.code


# ---- the headline of results/report --------------------------------------------------------------

RECORD = "SHAKEDOWN_RECORD"  # the programs' --record, where that is not given; set, the job's launcher reports
PROGRAMS = ("train", "compare", "soak")
USAGE = 2  # exit code


def record_of(words):
    """The last value of --record among a program's words, as the program uses; empty without one."""
    path = ""
    for at, word in enumerate(words):
        if word.startswith("--record="):
            path = word.partition("=")[2]
        elif word == "--record":
            path = "".join(words[at + 1:at + 2])
    return path


class Headline:
    """`words`: the program's. `host`: rank 0's, where that is not this one; then its record is read only if both
    hosts see it. The record of a program without --record is a temporary file."""

    def __init__(self, words, host="", quiet=False):
        self._shown = not quiet and os.path.basename(words[0]) in PROGRAMS and "--describe" not in words
        self._host, self._kept, self._temporary = host, record_of(words), None
        if self._shown and not self._kept and not host:
            with contextlib.suppress(OSError):  # no space: the job itself does not need it
                self._temporary = tempfile.NamedTemporaryFile(prefix="shakedown_", suffix=".jsonl")
        self.path = self._kept or (self._temporary.name if self._temporary else "")
        self._start = os.path.getsize(self.path) if os.path.isfile(self.path) else 0

    def environment(self):
        return {RECORD: self.path if self._shown else ""}

    def show(self, code):
        """After the job, whatever its exit code but that of a usage error. A program that recorded nothing and
        passed, as with --help, has nothing to report; one that failed measured nothing."""
        if self._shown and code != USAGE:
            if os.path.isfile(self.path):
                if code or os.path.getsize(self.path) > self._start:
                    self._print(code)
            elif self._kept and self._host:
                say(f"record: {self._host}:{self._kept}", print)
        if self._temporary:
            self._temporary.close()

    def _print(self, code):
        try:
            from reporting.headline import text_of
            text = text_of(self.path, self._start, code)
        except Exception as error:  # the job's own end counts
            say(f"no headline: {error}")
            return
        if not self._kept:  # the file goes now
            text = re.sub(rf"\s+\({re.escape(self.path)}\)", "", text)
        how = f"results/report {shlex.quote(self._kept)}" if self._kept else "--record FILE keeps what results/report reads"
        try:
            print(f"\n{text}\nreport: {how}" if text else f"report: {how}", flush=True)
        except OSError:  # nobody reads it, or the disk is full: as the program's own output shows
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
