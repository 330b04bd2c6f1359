"""launch/mpi: runs a program on several ranks with Open MPI's mpirun."""

import contextlib
import errno
import os
import re
import signal
import stat

from . import gpus, hosts, messages, places, ranks, slurm
from .command import Command, InconclusiveError, Option, UsageError, parse, positive, say
from .headline import RECORD, Headline
from .job import RUNNING, Job, Output

RANK_OPTIONS = [
    Option(("-n", "-np"), "N",
           "number of ranks (default: Slurm's number of tasks, unless that is one per node with "
           "several GPUs; else on each host one per GPU visible here, or two without GPUs or with "
           "--backend cpu)"),
    Option(("--gpus",), "0,1,2,3",
           "use these GPUs of each host; CUDA_VISIBLE_DEVICES of the environment applies to this "
           "host only"),
    Option(("--hosts",), "h1,h2", "run on these hosts, with the same number of ranks on each"),
    Option(("--hostfile",), "FILE",
           "file of hosts, one per line, in place of --hosts; in a Slurm allocation only its nodes "
           "are allowed (default: all of them)"),
    Option(("--bind",), "WHAT",
           "binding of the ranks: none (default: the programs divide the cores themselves), core or "
           "numa"),
]
# Between mpirun and its daemons: a host that is silent for 20 s is lost; Open MPI's own are 8 minutes.
KEEPALIVE = {"OMPI_MCA_oob_tcp_keepalive_time": "8", "OMPI_MCA_oob_tcp_keepalive_intvl": "4",
             "OMPI_MCA_oob_tcp_keepalive_probes": "3"}
# Of ssh, while the daemons start: the site's own agent or arguments (in a file of parameters) stay.
SSH_ARGUMENTS = "-o ConnectTimeout=15 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"

COMMAND = Command(
    "[options] PROGRAM [ARGS...]",
    "Runs PROGRAM (train, bin/train or any other) on several ranks with Open MPI's mpirun.",
    [*RANK_OPTIONS,
     Option(("--grace",), "S",
            "seconds between the failure of a rank, or a signal, and the kill of the ranks that "
            "still run (default: 10); use more where bin/train writes a large checkpoint"),
     Option(("--quiet",), None,
            "do not print the verdict and the sentences of results/report after bin/train, bin/compare and bin/soak"),
     Option(("--dry-run",), None, "print the mpirun command, and exit")],
    """
    PROGRAM is searched in SHAKEDOWN_BIN, in bin/ next to launch/, and in PATH.

    Ends with the programs' own exit code; 2: wrong usage, or no Open MPI; 3: a requested GPU is
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
                         positive(values, "-n", None, "ranks"), values.get("--gpus"),
                         hosts.requested(values), bind)


def check_open_mpi(environ, names=()):
    """`names`: of the hosts of the job, where they are not this one alone."""
    version = places.ask(["mpirun", "--version"], 60, environ).output.partition("\n")[0]
    if "Open MPI" not in version:
        remedy = "make setup, or " if places.in_source_tree() else ""
        raise UsageError(f"Open MPI's mpirun is required (found: {version or 'none'}); "
                         f"{remedy}module load openmpi")
    name = name_of_this_host(names)
    if len(name) > hosts.LONGEST_NAME and re.search(r"Open MPI\) [1-4]\.", version):
        raise InconclusiveError(f"the host name {name} has {len(name)} characters; Open MPI 4 supports "
                                f"{hosts.LONGEST_NAME}")


def name_of_this_host(names):
    """As Open MPI 4 has it in a job on the hosts `names`."""
    own = os.uname().nodename
    return own if hosts.have_domains(names) else own.partition(".")[0]


def line(what, environ, host=None):
    """The mpirun line of a ranks.Request."""
    host = host or ranks.Host()
    return ranks.mpirun_line(what, ranks.place(what, environ, host), environ, host)


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
    words = ranks.mpirun_line(what, placement, environ, host)
    output = Output(log, shown)
    others = [name for name in what.hosts if not hosts.is_here(name, host.name)]

    def report(text):
        say(text, output.line)

    def ask():
        return slurm.trouble(environ) if placement.allocated and placement.elsewhere else ""
    # mpirun forwards USR2 to the ranks on all hosts: bin/train then writes a checkpoint, others end
    # by it. At TERM mpirun would kill them within a second.
    return Job([words[0], "-x", "OPAL_OUTPUT_STDERR_FD=2", *words[1:]],
               {**time_outs(environ), **slurm.for_mpirun(environ)}, output,
               messages.Messages(report, output.line, others, placement.ranks, ask), grace, report,
               stop_signal=signal.SIGUSR2, elsewhere=placement.elsewhere, limit=limit)


def time_outs(environ):
    """Open MPI's settings after which a host that does not answer is lost."""
    files = ["~/.openmpi/mca-params.conf", "/etc/openmpi/openmpi-mca-params.conf"]
    mpirun = places.which("mpirun", environ)
    files += [os.path.join(os.path.dirname(mpirun), "../etc/openmpi-mca-params.conf")] if mpirun else []
    text = "".join(map(places.text_of, files))
    if "OMPI_MCA_plm_rsh_agent" in environ or re.search(r"^\s*plm_rsh_a", text, re.M):
        return KEEPALIVE
    return {**KEEPALIVE, "OMPI_MCA_plm_rsh_args": SSH_ARGUMENTS}


@contextlib.contextmanager
def session_folder(environ, names=()):
    """Open MPI 4 has the files of all jobs of a user in one folder of a host. The first job makes it and
    the last removes it: of jobs that start at the same time one could not, and would fail. Here it
    stays, because something is in it. In a folder that another user can write, that user could
    replace what mpirun writes: it is refused."""
    place = next(filter(None, map(environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp")
    top = f"{place}/ompi.{name_of_this_host(names)}.{os.geteuid()}"
    kept = f"{top}/shakedown.{os.getpid()}"
    with contextlib.suppress(OSError):  # mpirun will say why
        os.makedirs(top, mode=0o700, exist_ok=True)
    check_private(top)
    with contextlib.suppress(OSError):
        os.mkdir(kept, mode=0o700)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # another job may use it
            os.rmdir(kept)
            os.rmdir(top)


def check_private(folder):
    try:
        status = os.lstat(folder)
    except OSError:
        return
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(
            errno.EPERM, "mpirun keeps the files of a run there, but it is not a folder that only this "
            "user can use (mode 0700): remove it, or set TMPDIR to another folder", folder)


def main(arguments):
    values, words = parse(COMMAND, arguments)
    grace = positive(values, "--grace", 10, "seconds")
    what = request(values, words, os.environ)
    check_open_mpi(os.environ, ranks.names(what, os.environ))
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
