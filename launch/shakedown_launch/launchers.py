"""What starts the ranks: Open MPI 4, Open MPI 5 (PRRTE), Hydra (MPICH, Intel MPI) or Slurm's srun. A launcher is a class
with all in which it differs from the others before a job runs; what it writes while one runs is read by its
`messages`. Which one is there is what `mpirun --version` prints, unless --launcher or SHAKEDOWN_LAUNCHER names it."""

import contextlib
import errno
import functools
import os
import re
import shlex
import stat

from . import hosts, messages, places, ranks, slurm
from .places import InconclusiveError, UsageError

# Of ssh, while the daemons start, and later: a host that is silent for 15 s is lost.
SSH_ARGUMENTS = "-o ConnectTimeout=15 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"


class Launcher:
    in_job = []  # options of a job that are not printed

    def check(self, names):
        """Raises where it cannot start a job. `names`: of the hosts of the job, where they are not this one alone."""
        if not places.which(self.messages.program, os.environ):
            raise UsageError(f"--launcher {self.name}: {self.messages.program} is not in PATH")

    def session_folder(self, environ, names=()):
        """A context in which it has a folder for its files: by itself each job's own."""
        return contextlib.nullcontext()


class OpenMpi5(Launcher):
    name = "openmpi5"
    version = r"Open MPI\) ([5-9]|\d\d+)\."  # in what `mpirun --version` prints
    variables = "OMPI_"  # its settings; launch/variants has transports of them
    messages = messages.OpenMpi5
    parameters, ssh = "PRTE_MCA_", "plm_ssh"  # of the daemons
    full_names = ["--prtemca", "prte_keep_fqdn_hostnames", "1"]
    copies_between_processes = []  # it notices itself where it may not

    def line(self, request, placement, environ, host):
        """The command of a ranks.Request."""
        most = max(0, (host.files - 32) // 5)  # pipes and sockets of ranks here; without them mpirun waits forever
        if 0 <= host.files and most < placement.per_host and ranks.where(request, environ, host)[0] and \
                "OMPI_MCA_opal_set_max_sys_limits" not in environ:
            raise UsageError(f"-n {placement.ranks}: mpirun may open {host.files} files (ulimit -n), enough for {most} ranks "
                             f"on a host, not for {placement.per_host}")
        line = ["mpirun", "-n", str(placement.ranks)]
        if host.is_root:
            line.append("--allow-run-as-root")
        spread = None
        if request.hosts:
            line += ["--host", ",".join(f"{name}:{placement.per_host}" for name in request.hosts)]
        if hosts.have_domains(ranks.names(request, environ)):
            line += self.full_names
        if not request.hosts and placement.host_count == 1:
            # Open MPI counts cores without their hardware threads, and refuses more ranks than that.
            line.append("--oversubscribe")
        elif placement.allocated and not placement.tasks:  # Slurm's slots are then meaningless
            line.append("--oversubscribe")
            spread = f"ppr:{placement.per_host}:node"
        line += self.binding(request.bind, placement, spread, host)
        if placement.per_host > host.cores:
            line += ["--mca", "mpi_yield_when_idle", "1"]
        if placement.elsewhere:
            for name in ranks.passed_on(environ):
                line += ["-x", name]
        for name, value in ranks.set_for(request, placement):
            line += ["-x", f"{name}={value}"]
        if not (environ.get("OMPI_MCA_btl_vader_single_copy_mechanism") or host.may_read_processes()):
            line += self.copies_between_processes
        return [*line, *request.words]

    def binding(self, bind, placement, spread, host):
        if bind == "none":
            return ["--bind-to", "none", *(["--map-by", spread] if spread else [])]
        if bind == "core":
            return ["--bind-to", "core:overload-allowed", "--map-by", spread or "slot"]
        # In order, as the GPUs are: the first ranks to the first NUMA node.
        per_node = -(-placement.per_host // host.numa_nodes())
        return ["--bind-to", "numa:overload-allowed", "--map-by", f"ppr:{per_node}:numa"]

    def environment(self, environ):
        """Settings after which a host that does not answer is lost: the daemons' own are 8 minutes. The site's own
        agent or arguments of ssh (in a file of parameters) stay."""
        keepalive = {f"{self.parameters}oob_tcp_keepalive_{name}": value
                     for name, value in [("time", "8"), ("intvl", "4"), ("probes", "3")]}
        files = ["~/.openmpi/mca-params.conf", "/etc/openmpi/openmpi-mca-params.conf", "~/.prte/mca-params.conf"]
        mpirun = places.which("mpirun", environ)
        files += [os.path.join(os.path.dirname(mpirun), f"../etc/{name}-mca-params.conf")
                  for name in ("openmpi", "prte") if mpirun]
        text = "".join(map(places.text_of, files))
        if f"{self.parameters}{self.ssh}_agent" in environ or re.search(r"^\s*plm_(rsh|ssh)_a", text, re.M):
            return keepalive
        return {**keepalive, f"{self.parameters}{self.ssh}_args": SSH_ARGUMENTS}


class OpenMpi4(OpenMpi5):
    name = "openmpi4"
    version = r"Open MPI\) [1-4]\."
    messages = messages.Messages
    parameters, ssh = "OMPI_MCA_", "plm_rsh"
    in_job = ["-x", "OPAL_OUTPUT_STDERR_FD=2"]  # of the ranks: mpirun's own messages are written elsewhere
    full_names = ["--mca", "orte_keep_fqdn_hostnames", "1"]
    copies_between_processes = ["--mca", "btl_vader_single_copy_mechanism", "none"]

    def check(self, names):
        name = name_of_this_host(names)
        if len(name) > hosts.LONGEST_NAME:
            raise InconclusiveError(f"the host name {name} has {len(name)} characters; Open MPI 4 supports "
                                    f"{hosts.LONGEST_NAME}")

    @contextlib.contextmanager
    def session_folder(self, environ, names=()):
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


class Hydra(Launcher):
    name = "hydra"
    version = r"HYDRA|Intel\(R\) MPI"
    variables = "MPIR_"
    messages = messages.Hydra
    bindings = {"none": ["-bind-to", "none", "-genv", "I_MPI_PIN", "0"],
                "core": ["-bind-to", "core", "-genv", "I_MPI_PIN_DOMAIN", "core"]}

    def line(self, request, placement, environ, host):
        if request.bind not in self.bindings:
            raise UsageError(f"--bind {request.bind}: of MPICH and Intel MPI choose from {', '.join(self.bindings)}")
        line = ["mpiexec.hydra", "-n", str(placement.ranks), "-print-all-exitcodes", *self.bindings[request.bind]]
        if request.hosts:
            line += ["-hosts", ",".join(request.hosts)]
        if placement.host_count > 1:
            line += ["-ppn", str(placement.per_host)]
        if placement.elsewhere:  # else all of the environment would go there
            line += ["-genvlist", ",".join(ranks.passed_on(environ, r"(MPICH|MPIR|I_MPI)_"))]
        for name, value in ranks.set_for(request, placement):
            line += ["-genv", name, value]
        return [*line, *request.words]

    def environment(self, environ):
        """As of Open MPI, but Hydra has no keep-alive of its own: its daemons' ssh has. That of Intel MPI would be quiet about
        a host that is lost, unless it is called as an rsh."""
        own = ("SLURM_JOB_ID", "HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP",
               "I_MPI_HYDRA_BOOTSTRAP_EXEC")
        if any(map(environ.get, own)):
            return {}
        return {"HYDRA_LAUNCHER_EXTRA_ARGS": SSH_ARGUMENTS, "I_MPI_HYDRA_BOOTSTRAP": "rsh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": "ssh",
                "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": SSH_ARGUMENTS}


class Srun(Launcher):
    """Of any MPI: --mpi is SHAKEDOWN_SRUN_MPI, else that of the mpirun in PATH."""
    name = "srun"
    version = "(?!)"  # of no mpirun
    messages = messages.Srun
    bindings = {"none": "none", "core": "cores", "numa": "ldoms"}

    def mpi(self, environ):
        if environ.get("SHAKEDOWN_SRUN_MPI"):
            return environ["SHAKEDOWN_SRUN_MPI"]
        try:
            return "pmi2" if isinstance(found(places.which("mpirun", environ)), Hydra) else "pmix"
        except UsageError:
            raise UsageError("without an mpirun in PATH set SHAKEDOWN_SRUN_MPI to one of srun --mpi=list: pmix for Open MPI, "
                             "pmi2 for MPICH and Intel MPI") from None

    @property
    def variables(self):
        return "MPIR_" if self.mpi(os.environ) == "pmi2" else "OMPI_"

    def line(self, request, placement, environ, host):
        line = ["srun", "-n", str(placement.ranks), f"--mpi={self.mpi(environ)}"]
        if request.hosts:
            line += [f"--nodes={placement.host_count}", f"--nodelist={','.join(request.hosts)}"]
        if not placement.tasks:
            line.append(f"--ntasks-per-node={placement.per_host}")
        if environ.get("SLURM_GPUS_ON_NODE", "0") != "0":  # each rank sees all of its node's, as under mpirun
            line.append(f"--gpus-per-node={environ['SLURM_GPUS_ON_NODE']}")
        # Ranks end together, or PMIx ends those that remain: --kill-on-bad-exit would replace their codes by a signal's.
        line += ["--overcommit", "--kill-on-bad-exit=0", "--wait=30", "--cpu-bind=none",
                 *shlex.split(environ.get("SHAKEDOWN_SRUN_OPTIONS", ""))]
        if request.bind != "none":
            line.append(f"--cpu-bind={self.bindings[request.bind]}")
        settings = [f"{name}={value}" for name, value in ranks.set_for(request, placement)]
        return [*line, *(["env", *settings] if settings else []), *request.words]

    def environment(self, environ):
        """A PMIx with munge and a Slurm without would not agree how to authenticate. A code of srun's own is never a
        program's FAIL."""
        return {"PMIX_MCA_psec": "native", "SLURM_EXIT_ERROR": "3"}

    def check(self, names):
        if not slurm.allocation(os.environ):
            raise UsageError("srun starts ranks in a Slurm job alone: salloc, sbatch, or another --launcher")


LAUNCHERS = {launcher.name: launcher for launcher in (OpenMpi4(), OpenMpi5(), Hydra(), Srun())}
BY_SITE = "SHAKEDOWN_LAUNCHER"  # mpirun or srun: launch/slurm/site.sh


def find(name, environ):
    """That of --launcher, or of the site, or of the mpirun in PATH."""
    if name:
        if name not in LAUNCHERS:
            raise UsageError(f"--launcher {name}: choose from {', '.join(LAUNCHERS)}")
        return LAUNCHERS[name]
    by_site = environ.get(BY_SITE) or "mpirun"
    if by_site not in ("mpirun", Srun.name):
        raise UsageError(f"{BY_SITE}={by_site}: choose mpirun or srun")
    return LAUNCHERS[Srun.name] if by_site == Srun.name else found(places.which("mpirun", environ))


@functools.lru_cache(maxsize=None)
def found(mpirun):
    said = places.ask([mpirun, "--version"], 60).output if mpirun else ""
    for launcher in LAUNCHERS.values():
        if re.search(launcher.version, said):
            return launcher
    remedy = "make setup, or " if places.in_source_tree() else ""
    raise UsageError("the mpirun of Open MPI, MPICH or Intel MPI is required "
                     f"(found: {said.partition(chr(10))[0] or 'none'}); {remedy}module load openmpi")


def name_of_this_host(names):
    """As Open MPI 4 has it in a job on the hosts `names`."""
    own = os.uname().nodename
    return own if hosts.have_domains(names) else own.partition(".")[0]


def check_private(folder):
    try:
        status = os.lstat(folder)
    except OSError:
        return
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(
            errno.EPERM, "mpirun keeps the files of a run there, but it is not a folder that only this "
            "user can use (mode 0700): remove it, or set TMPDIR to another folder", folder)
