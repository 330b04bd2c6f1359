"""Ranks: how many, on which hosts, by which mpirun line; Slurm's allocation, names of hosts, GPUs."""

import contextlib
import io
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest
import unittest.mock

from tree import TREE
import transcript
from shakedown_launch import command, gpus, hosts, launchers, mpi, places, ranks, slurm, words  # noqa: F401, in slurm.txt
from shakedown_launch.places import Said


# Of the variable HERE in ranks.txt.
HOSTS = {"": {}, "three-gpus": {"listed": [["GPU-aa"], ["GPU-bb"], ["GPU-cc"]]}, "root": {"is_root": True},
         "mig": {"listed": [["GPU-a", "MIG-x", "MIG-y"]]}, "mixed": {"listed": [["GPU-a"], ["GPU-b", "MIG-x"], ["GPU-c"]]},
         "no-ptrace": {"may_read": False}}


class FakeHost(ranks.Host):
    def __init__(self, listed=(), numa_nodes=2, may_read=True, is_root=False):
        self.name, self.is_root, self.cores = "here.site", is_root, 8
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

    def answer(self, given):
        try:
            return str(eval(f"({given})", dict(NAMES)))  # pylint: disable=eval-used
        except command.UsageError as error:
            return f"refused: {error}"
        except places.InconclusiveError as error:
            return f"inconclusive: {error}"

    def test_functions(self):
        transcript.check(self, TREE / "tests/launch/slurm.txt", self.answer)


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


TWO = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"}
NAMES = {name: value for name, value in globals().items() if name[:1] != "_"}


class Gpus(unittest.TestCase):
    def test_gpus_that_nvidia_smi_lists(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = pathlib.Path(folder, "nvidia-smi")
            fake.write_text("#!/bin/sh\ncat <<'END'\nGPU 0: NVIDIA H200 (UUID: GPU-5a)\n"
                            "  MIG 1g.18gb Device  0: (UUID: MIG-6b)\nGPU 1: NVIDIA H200 (UUID: GPU-7c)\nEND\n")
            fake.chmod(0o755)
            before = os.environ["PATH"]
            self.addCleanup(os.environ.__setitem__, "PATH", before)
            os.environ["PATH"] = f"{folder}:{before}"
            self.assertEqual(gpus.listed(), [["GPU-5a", "MIG-6b"], ["GPU-7c"]])
            self.assertEqual(gpus.visible({"BACKENDS": "gpu"}), 1)  # CUDA shows no instance next to a GPU
            mpi_ = subprocess.run([TREE / "launch/mpi", "--gpus", "1,2", "--dry-run", "true"], text=True,
                                  capture_output=True, env={**os.environ, "BACKENDS": "gpu"})
            self.assertEqual((mpi_.returncode, "requested GPUs 1,2: 2 not found" in mpi_.stderr), (3, True),
                             mpi_.stderr)
            for script in ("echo 'GPU 0: NVIDIA H200 (UUID: GPU-5a)'; exit 15", "exec sleep 60", "echo GPU",
                           "echo 'GPU 0: Unknown Error'", "echo 'GPU 0: NVIDIA H200 (UUID: )'",
                           "echo 'Unable to determine the device handle for GPU0: GPU is lost (UUID: GPU-5a)'"):
                fake.write_text(f"#!/bin/sh\n{script}\n")
                self.assertEqual(gpus.listed(1), [], script)
            os.environ["PATH"] = "/nonexistent"
            self.assertEqual(gpus.listed(), [])

    def test_gpus_by_the_numbers_of_their_device_files(self):
        """They are Slurm's: on some machines the order of the bus, which nvidia-smi has, is another."""
        def by_minor(*texts, more=""):
            with tempfile.TemporaryDirectory() as folder:
                for number, text in enumerate(texts):
                    place = pathlib.Path(folder, f"gpus/0000:{number}8:00.0")
                    place.mkdir(parents=True)
                    (place / "information").write_bytes(text.encode("latin-1"))
                if more:
                    pathlib.Path(folder, more).mkdir(parents=True)
                return gpus.by_minor(folder)
        one = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-0{0}\nBus Location: \t 0000:18:00.0\nDevice Minor: \t {1}\n"
        self.assertEqual(by_minor(one.format("a", 1), one.format("b", 0)), {1: "GPU-0a", 0: "GPU-0b"})
        self.assertEqual(by_minor(one.format("?", 0)), {0: ""})
        for texts in [(), ("",), (one.format("a", 1), one.format("b", 1)), (one.format("a", "x"),), ("\xff\0",),
                      (one.format("a", 0), one[:60])]:
            self.assertIsNone(by_minor(*texts))
        self.assertIsNone(by_minor(one.format("a", 0), more="capabilities/gpu0/mig/gi1"))  # of instances
        self.assertIsNone(by_minor(one.format("a", 0), more="gpus/0000:99:00.0/information"))

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

    def test_numa_nodes_with_cores_for_this_process(self):
        host = ranks.Host()
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(host.numa_nodes(folder), 1)
            host.allowed = {0, 1, 8}
            for number, cores in enumerate(["0-3,8", "4-7", "", "", "8-9"]):  # two of memory alone
                pathlib.Path(folder, f"node{number}").mkdir()
                pathlib.Path(folder, f"node{number}/cpulist").write_text(f"{cores}\n")
            pathlib.Path(folder, "possible").write_text("0-4\n")
            self.assertEqual(host.numa_nodes(folder), 2)
            self.assertEqual(host.numa_nodes(f"{folder}/none"), 1)

class Options(unittest.TestCase):
    def test_forms(self):
        for words in [["--gpus=0,1", "true", "-n", "9"],
                      ["--gpus", "0,1", "--", "true", "-n", "9"]]:
            self.assertEqual(line(*words)[-4:], ["CUDA_VISIBLE_DEVICES=0,1", "true", "-n", "9"])
        values, words = command.parse(mpi.COMMAND, ["--wat=1", "-n", "3", "word", "--", "x"],
                                      keep_unknown=True)
        self.assertEqual((values, words), ({"-n": "3"}, ["--wat=1", "word", "--", "x"]))

class Hosts(unittest.TestCase):
    def test_a_name_that_is_too_long_for_open_mpi(self):
        long = "n" * 57
        check = launchers.OpenMpi4().check
        with unittest.mock.patch.object(launchers.os, "uname", lambda: unittest.mock.Mock(nodename=f"{long}.a")):
            launchers.OpenMpi5().check([])
            with self.assertRaisesRegex(places.InconclusiveError,
                                        f"host name {long} has 57 characters; Open MPI 4 supports 56"):
                check([])
        cut = f"n.{'x' * 60}"  # at the first dot, unless another host has a domain as well
        with unittest.mock.patch.object(launchers.os, "uname", lambda: unittest.mock.Mock(nodename=cut)):
            check(["h1", "h2"])
            with self.assertRaisesRegex(places.InconclusiveError, "has 62 characters"):
                check(["h1.a"])

    def test_ranks_elsewhere(self):
        """Where some are, those of a job that was killed may still run there."""
        def elsewhere(*hosts, **environ):
            words = ["--hosts", ",".join(hosts)] if hosts else []
            environ = {"PATH": os.environ["PATH"], **environ}
            values, rest = command.parse(mpi.COMMAND, ["-n", "2", *words, "true"])
            with unittest.mock.patch.object(ranks, "Host", FakeHost):
                return mpi.job(mpi.request(values, rest, environ), environ)._elsewhere
        one = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n5"}
        two = {**one, "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[5-6]"}
        node = {"SLURMD_NODENAME": "n5"}
        for hosts, environ, expected in [
                ([], {}, False), (["here", "localhost:2"], {}, False), (["here.site"], {}, False),
                (["here.other"], {}, True), (["here", "h2"], {}, True),
                (["h2"], {}, True), ([], {**one, **node}, False), ([], {**two, **node}, True),
                ([], one, True), ([], two, True)]:  # on a login node
            self.assertIs(elsewhere(*hosts, **environ), expected, (hosts, environ))

if __name__ == "__main__":
    unittest.main()
