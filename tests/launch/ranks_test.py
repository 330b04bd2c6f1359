"""Ranks: how many, on which hosts, by which mpirun line; Slurm's allocation, names of hosts, GPUs."""

import contextlib
import io
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from tree import TREE
import transcript
from support import write_script
from shakedown_launch import command, gpus, hosts, launchers, mpi, places, ranks, slurm, words  # noqa: F401, in slurm.txt
from shakedown_launch.acceptance.report import text  # noqa: F401, in slurm.txt
from shakedown_launch.places import Said


# Of the variable HERE in ranks.txt.
HOSTS = {"": {}, "three-gpus": {"listed": [["GPU-aa"], ["GPU-bb"], ["GPU-cc"]]}, "root": {"is_root": True},
         "mig": {"listed": [["GPU-a", "MIG-x", "MIG-y"]]}, "mixed": {"listed": [["GPU-a"], ["GPU-b", "MIG-x"], ["GPU-c"]]},
         "no-ptrace": {"may_read": False}}


class FakeHost(ranks.Host):
    def __init__(self, listed=(), numa_nodes=2, may_read=True, is_root=False):
        self.name, self.is_root, self.cores, self.files = "here.site", is_root, 8, 1024
        self._listed, self._numa_nodes, self._may_read = list(listed), numa_nodes, may_read

    def gpus(self):
        return self._listed

    def numa_nodes(self):
        return self._numa_nodes

    def may_read_processes(self):
        return self._may_read


def line(*words, host=None, **environ):
    """The mpirun line, as words."""
    environ = {"PATH": os.environ["PATH"], "BACKENDS": "cpu gpu", **environ}
    values, rest = command.parse(mpi.COMMAND, list(map(str, words)))
    what = mpi.request(values, rest, environ)
    return mpi.line(what, mpi.environment(what, environ), host or FakeHost())


class Lines(unittest.TestCase):
    def answer(self, given):
        """Of a line of ranks.txt."""
        *before, after = re.split(r"(?<!\\S)launch/mpi(?!\\S)", given)
        environ = dict(word.split("=", 1) for word in shlex.split("".join(before)))
        host = FakeHost(**HOSTS[environ.pop("HERE", "")])
        noted = io.StringIO()
        try:
            with contextlib.redirect_stderr(noted):
                words = line(*shlex.split(after), host=host, **environ)
        except (command.UsageError, places.InconclusiveError) as error:
            kind = "inconclusive" if isinstance(error, places.InconclusiveError) else "refused"
            self.assertLess(len(str(error)), 300)
            return f"{kind}: {error}".replace(str(TREE), "TREE")
        notes = "".join(f"note: {text.partition(': ')[2]}\n" for text in noted.getvalue().splitlines())
        return notes + shlex.join(words).replace(f"{TREE}/", "TREE/")

    def test_lines(self):
        transcript.check(self, TREE / "tests/launch/ranks.txt", self.answer)

    def test_files_of_hosts(self):
        with tempfile.TemporaryDirectory() as folder:
            hosts_, comments = pathlib.Path(folder, "hosts"), pathlib.Path(folder, "comments")
            hosts_.write_text("# two\nh1 slots=8\n\nh2\nh1\n")
            comments.write_text("# h1\n\n")
            self.assertIn(" --host h1:3,h2:3 ", self.answer(f"launch/mpi --hostfile {hosts_} -n 5 true"))
            for path in ("/nonexistent", folder, "/dev/null", comments):
                self.assertIn(f"refused: --hostfile {path}", self.answer(f"launch/mpi --hostfile {path} true"))


class Functions(unittest.TestCase):
    """Of Slurm, hosts, launchers and GPUs: what they make of variables, and of what commands print."""

    def test_functions(self):
        transcript.expressions(self, TREE / "tests/launch/slurm.txt", globals(),
                               {command.UsageError: "refused", places.InconclusiveError: "inconclusive"})


def printing(*answers):
    """In the place of places.ask: each command prints the next of these."""
    answers = list(answers)
    return lambda *_, **__: Said(0, *([answer] if isinstance(answer := answers.pop(0), str) else answer))


def step(**more):
    """What mpirun's steps of a job on two nodes with two GPUs each inherit of GPUs; then what is not applied."""
    environ = {**TWO, "SLURMD_NODENAME": "n1", "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1", **more}
    kept = slurm.for_steps(environ)
    return {key: value for key, value in kept.items() if "GPU" in key or "CUDA" in key}, slurm.binding(environ)


def launcher(text, mpirun="/bin/mpirun"):
    """The one whose mpirun prints this."""
    with unittest.mock.patch.object(launchers.places, "ask", printing(text)):
        return launchers.found.__wrapped__(mpirun).name


def visible(*words, gpus_=(), **environ):
    return gpus.check_visible(["train", *words], {"BACKENDS": "cpu gpu", **environ}, lambda: gpus_)


def busiest(text):
    with unittest.mock.patch.object(gpus, "asked", return_value=text):
        return gpus.busiest()


def by_minor(*texts, more=""):
    """Of GPUs in /proc, each with this text, and a folder more."""
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(texts):
            place = pathlib.Path(folder, f"gpus/0000:{number}8:00.0")
            place.mkdir(parents=True)
            (place / "information").write_bytes(text.encode("latin-1"))
        if more:
            pathlib.Path(folder, more).mkdir(parents=True)
        return gpus.by_minor(folder)


def information(uuid, minor):
    return f"Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-0{uuid}\nBus Location: \t 0000:18:00.0\nDevice Minor: \t {minor}\n"


def listed(script):
    """By an nvidia-smi that is this script; and how many CUDA shows."""
    with tempfile.TemporaryDirectory() as folder:
        write_script(f"{folder}/nvidia-smi", script)
        with unittest.mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"):
            found = gpus.listed(1)
            return found and (found, gpus.visible({"BACKENDS": "gpu"}))


def numa_nodes(*cpulists, allowed=()):
    """Nodes with these cores, for a process that may use some."""
    host = ranks.Host()
    host.allowed = set(allowed) or host.allowed
    with tempfile.TemporaryDirectory() as folder:
        for number, cores in enumerate(cpulists):
            pathlib.Path(folder, f"node{number}").mkdir()
            pathlib.Path(folder, f"node{number}/cpulist").write_text(f"{cores}\n")
        if cpulists:
            pathlib.Path(folder, "possible").write_text(f"0-{len(cpulists) - 1}\n")
        return host.numa_nodes(folder)


def checked(launcher, name, *hosts_):
    """Whether Open MPI runs on a host of this name, with others."""
    with unittest.mock.patch.object(launchers.os, "uname", lambda: unittest.mock.Mock(nodename=name)):
        return launcher().check(list(hosts_)) or "runs"


def name_of(path, in_source_tree):
    with unittest.mock.patch.object(sys, "argv", [path]), \
            unittest.mock.patch.object(command, "in_source_tree", lambda: in_source_tree):
        return command.name()


def elsewhere(*hosts_, **environ):
    """Whether a job on these may have ranks on other hosts: where it was killed, these may still run."""
    chosen = ["--hosts", ",".join(hosts_)] if hosts_ else []
    environ = {"PATH": os.environ["PATH"], **environ}
    values, rest = command.parse(mpi.COMMAND, ["-n", "2", *chosen, "true"])
    with unittest.mock.patch.object(ranks, "Host", FakeHost):
        return mpi.job(mpi.request(values, rest, environ), environ)._elsewhere


TWO = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"}
ONE_OF = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n5"}
TWO_OF = {**TWO, "SLURM_JOB_NODELIST": "n[5-6]"}


class Gpus(unittest.TestCase):
    def test_gpus_that_the_driver_does_not_list(self):
        with tempfile.TemporaryDirectory() as folder:
            write_script(f"{folder}/nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-5a)'; echo 'GPU 1: NVIDIA H200 (UUID: GPU-7c)'")
            result = subprocess.run([TREE / "launch/mpi", "--gpus", "1,2", "--dry-run", "true"], text=True, capture_output=True,
                                    env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "BACKENDS": "gpu"})
            self.assertEqual((result.returncode, "requested GPUs 1,2: 2 not found" in result.stderr), (3, True), result.stderr)

    def test_gpus_that_cuda_cannot_open(self):
        fake = """\nimport os, types\ndef CDLL(name):
    error = {"GPU-a": 0, "GPU-b": 802, "GPU-c": 2, "GPU-d": 46}[os.environ["CUDA_VISIBLE_DEVICES"]]
    def named(error, name):
        name._obj.value = b"CUDA_ERROR_" + {802: b"SYSTEM_NOT_READY", 2: b"OUT_OF_MEMORY",
                                            46: b"DEVICE_UNAVAILABLE"}[error]
    return types.SimpleNamespace(cuInit=lambda flags: error, cuDeviceGet=lambda *_: 0, cuGetErrorName=named,
                                 cuDevicePrimaryCtxRetain=lambda *_: 0)
ctypes.CDLL = CDLL\n"""
        with unittest.mock.patch.object(gpus, "OPEN", gpus.OPEN.replace("import ctypes\n", "import ctypes" + fake)):
            self.assertEqual(gpus.refused(["GPU-a", "GPU-b", "GPU-c", "GPU-d"], {}, 30),
                             {"GPU-b": "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)"})
        for script in ("raise OSError", "import time; time.sleep(60)", "print('x')", ""):
            with unittest.mock.patch.object(gpus, "OPEN", script):
                self.assertEqual(gpus.refused(["GPU-a"], {}, 1), {})


if __name__ == "__main__":
    unittest.main()
