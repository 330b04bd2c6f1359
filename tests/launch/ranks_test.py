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
from shakedown_launch import command, gpus, hosts, launchers, mpi, places, ranks, slurm
from shakedown_launch.places import Said


# Of the variable HERE in ranks.txt.
HOSTS = {"": {}, "three-gpus": {"listed": [["GPU-aa", "MIG-x1"], ["GPU-bb"], ["GPU-cc"]]}, "root": {"is_root": True},
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
        return notes + shlex.join(words)

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


class Ranks(unittest.TestCase):
    def test_requested_gpus_of_which_none_is_visible(self):
        both = {"BACKENDS": "cpu gpu"}
        none, one = list, lambda: [["GPU-a"]]
        for words, environ, named in [
                (["--backend", "gpu"], {}, "--backend gpu: no GPU is visible on this host"),
                (["--backend=cpu", "--backend=gpu"], {"CUDA_VISIBLE_DEVICES": ""}, "--backend gpu"),
                (["--backend", "auto"], {"SLURM_JOB_GPUS": "0,1"}, "SLURM_JOB_GPUS=0,1: no GPU"),
                ([], {"CUDA_VISIBLE_DEVICES": "0,0"}, "CUDA_VISIBLE_DEVICES=0,0: no GPU")]:
            with self.assertRaisesRegex(places.InconclusiveError, named):
                gpus.check_visible(["train", *words], {**both, **environ}, none)
        for words, environ, found in [
                ([], {}, none), (["--backend", "gpu"], {}, one),
                (["--backend", "cpu"], {"SLURM_JOB_GPUS": "0"}, none),
                ([], {"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": ""}, none),
                (["--backend", "gpu"], {"BACKENDS": "cpu"}, none)]:  # the programs end with 2
            gpus.check_visible(["train", *words], {**both, **environ}, found)

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
            self.assertEqual(gpus.visible({"BACKENDS": "gpu"}), 2)
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

class Launchers(unittest.TestCase):
    """Open MPI 4's line is that of all other tests here."""

    def test_found_by_the_version(self):
        said = {"mpirun (Open MPI) 4.1.4\n": "openmpi4", "mpirun (Open MPI) 1.10.7\n": "openmpi4",
                "mpirun (Open MPI) 5.0.11\n": "openmpi5", "mpirun (Open MPI) 10.0\n": "openmpi5",
                "HYDRA build details:\n    Version:                                 5.0.2\n": "hydra",
                "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)\n": "hydra"}
        for text, name in said.items():
            with unittest.mock.patch.object(launchers.places, "ask", lambda *_, text=text: Said(0, text)):
                self.assertEqual(launchers.found.__wrapped__("/bin/mpirun").name, name, text)
        for mpirun, text, named in [("/bin/mpirun", "mpirun (Another MPI) 5.0\n", "(found: mpirun (Another MPI) 5.0)"),
                                    ("/bin/mpirun", "", "(found: none)"), (None, "", "(found: none)")]:
            with unittest.mock.patch.object(launchers.places, "ask", lambda *_, text=text: Said(0, text)), \
                    self.assertRaises(command.UsageError) as raised:
                launchers.found.__wrapped__(mpirun)
            self.assertIn(named, str(raised.exception))

class Slurm(unittest.TestCase):
    TWO = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"}

    def test_allocation(self):
        self.assertIsNone(slurm.allocation({"SLURM_NTASKS": "4"}))
        found = slurm.allocation({**self.TWO, "SLURM_NTASKS": "4", "SLURM_GPUS": "8"})
        self.assertEqual((found.nodes, found.tasks, found.names_gpus, found.on_node,
                          found.gpus_on_node),
                         (2, 4, True, False, None))
        found = slurm.allocation({"SLURM_JOB_ID": "1"})
        self.assertEqual((found.nodes, found.tasks), (1, None))
        found = slurm.allocation({"SLURM_JOB_ID": "1", "SLURM_NNODES": "2",
                                  "SLURM_NTASKS_PER_NODE": "8"})
        self.assertEqual((found.nodes, found.tasks), (2, 16))
        several = {"SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4(x2)"}
        self.assertEqual(slurm.allocation({"SLURM_JOB_ID": "1", **several}).tasks, 8)

    def test_mpirun_s_steps_have_all_gpus(self):
        node = {**self.TWO, "SLURMD_NODENAME": "n1", "SLURM_GPUS_ON_NODE": "2",
                "CUDA_VISIBLE_DEVICES": "0,1"}
        for more, per_node, names in [
                ({"SLURM_GPUS_PER_TASK": "1"}, "2", ["--gpus-per-task=1"]),
                ({"SLURM_GPU_BIND": "single:1", "SLURM_GPUS_PER_NODE": "a100:2"}, "a100:2",
                 ["--gpu-bind=single:1"]),
                ({"SLURM_GPUS": "a100:4"}, "2", []),
                ({"SLURM_GPUS": "3"}, None, []),  # two here and one there
                ({}, "2", [])]:  # --exclusive alone
            environ = slurm.for_mpirun({**node, **more})
            self.assertEqual(environ.get("SLURM_GPUS_PER_NODE"), per_node, more)
            self.assertFalse(set(slurm.GPU_OPTIONS) & set(environ))
            self.assertEqual(environ["CUDA_VISIBLE_DEVICES"], "0,1")
            self.assertEqual(slurm.binding({**node, **more}), names)
        login = slurm.for_mpirun({**self.TWO, "CUDA_VISIBLE_DEVICES": "7"})
        self.assertEqual(login, self.TWO)
        self.assertEqual(slurm.for_mpirun({"CUDA_VISIBLE_DEVICES": "7"}), {"CUDA_VISIBLE_DEVICES": "7"})

    def test_node_lists(self):
        for text, names in [("", []), ("n1", ["n1"]), ("n1,n2", ["n1", "n2"]),
                            ("gpu[08-10,2],login", ["gpu08", "gpu09", "gpu10", "gpu2", "login"]),
                            ("r[1-2]n[1,3]-ib", ["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"])]:
            self.assertEqual(slurm.hosts(text), names)
        for text in ["n[000x111]", "n[", "n]", "n[1-]", "n[5-1]", "n[]", "n[a]", "n[[1]]", ",n1", "n1,", "n 1",
                     "n[1-99999999]", "n[1-300]" * 3, "n[²]", "n[-1]"]:
            with self.assertRaises(command.UsageError, msg=text):
                slurm.hosts(text)

    def test_what_slurm_knows_of_a_job_that_did_not_start(self):
        environ = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]"}
        idle = "n1 idle\nn2 alloc\n"
        for states, job, said in [
                ("n1 alloc\nn2 down*\nn2 down*\n", ("RUNNING\n", ""), "Slurm: node n2 is down*"),
                ("n1 alloc*\n", ("", ""), "Slurm: node n1 is alloc*"),
                (idle, ("RUNNING\n", ""), ""), (idle, ("", ""), ""), ("", ("", ""), ""),
                (idle, ("", "slurm_load_jobs error: Invalid job id specified\n"), "Slurm: job 77 (SLURM_JOB_ID) is over"),
                (idle, ("NODE_FAIL\n", ""), "Slurm: job 77 (SLURM_JOB_ID) is over")]:
            found = slurm.trouble(environ, lambda words, limit: places.Said(0, *(
                    (states, "") if words[0] == "sinfo" else job)))
            self.assertEqual(found.partition(":")[2].partition(": unset")[0], said.partition(":")[2])

class Options(unittest.TestCase):
    def test_forms(self):
        for words in [["--gpus=0,1", "true", "-n", "9"],
                      ["--gpus", "0,1", "--", "true", "-n", "9"]]:
            self.assertEqual(line(*words)[-4:], ["CUDA_VISIBLE_DEVICES=0,1", "true", "-n", "9"])
        values, words = command.parse(mpi.COMMAND, ["--wat=1", "-n", "3", "word", "--", "x"],
                                      keep_unknown=True)
        self.assertEqual((values, words), ({"-n": "3"}, ["--wat=1", "word", "--", "x"]))

    def test_help_fits_a_terminal(self):
        text = command.help_text(mpi.COMMAND)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        for each in (*mpi.COMMAND.options, command.HELP):
            for name in each.names:
                self.assertIn(name, text)


class Hosts(unittest.TestCase):
    def test_names_of_one_host(self):
        for one, other, same in [("vm", "vm", True), ("vm", "vm.example.com", True),
                                 ("vm.example.com", "vm", True), ("w.1.foo", "w.2.foo", False),
                                 ("10.0.0.1", "10.0.0.2", False), ("10.0.0.1", "10", False), ("a", "b", False)]:
            self.assertIs(hosts.same(one, other), same, (one, other))
        self.assertEqual(hosts.matched(["w.1.foo", "n2", "n3.b", "x", "w"], ["w.1.foo", "w.2.foo", "n2.a", "n3"]),
                         {"w.1.foo": "w.1.foo", "n2": "n2.a", "n3.b": "n3"})  # w may be two

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

LEAVES = """SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[000-001]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[002,004]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[000-002,004] Switches=leaf[0-1]
"""
BLOCKS = """BlockName=rack1 BlockIndex=0 Nodes=n[000-002] BlockSize=3
BlockName=rack2 BlockIndex=1 Nodes=n004 BlockSize=3
"""
IN_JOB = {"SLURM_JOB_ID": "1"}


class Domains(unittest.TestCase):
    def test_what_slurm_knows_of_switches(self):
        of_foo = "SwitchName=a Level=0 Nodes=w.1.foo\nSwitchName=b Level=0 Nodes=w.2.foo\n"
        for printed, nodes, found in [
                (LEAVES, ["n000", "n002.site", "n004"], {"n000": "leaf0", "n002.site": "leaf1", "n004": "leaf1"}),
                (BLOCKS, ["n001", "n004"], {"n001": "rack1", "n004": "rack2"}),
                (of_foo, ["w.1.foo", "w.2.foo"], {"w.1.foo": "a", "w.2.foo": "b"}), (of_foo, ["w"], None),
                ("SwitchName=a Level=0 Nodes=n[000x111]\n", ["n1"], None), ("", ["n000"], None),
                ("No topology information available\n", ["n000"], None), (LEAVES, ["n000", "n003"], None)]:
            self.assertEqual(slurm.domains(nodes, IN_JOB, lambda words, said=printed: Said(0, said)), found)
        self.assertIsNone(slurm.domains(["n000"], {}))


if __name__ == "__main__":
    unittest.main()
