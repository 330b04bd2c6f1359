"""Ranks: how many, on which hosts, by which mpirun line; Slurm's allocation, names of hosts, GPUs."""

import contextlib
import io
import os
import pathlib
import subprocess
import tempfile
import unittest
import unittest.mock

from tree import TREE
from shakedown_launch import command, gpus, hosts, mpi, places, ranks, slurm
from shakedown_launch.places import Said


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


def option(words, name):
    return words[words.index(name) + 1]


class Ranks(unittest.TestCase):
    def test_one_per_visible_gpu_else_two(self):
        for visible, count in [("0,1,2", 3), ("", 2), ("1,-1,0", 1), ("NoDevFiles", 2),
                               ("0, 1", 2), (" 0,1gpu2,\t+2", 3), ("0,0", 2), ("0,1,00", 2),
                               ("0x1,1,2", 3), ("0,,1", 1), ("GPU-a,1", 1), ("0,GPU-a", 1),
                               ("GPU-a, GPU-b", 1), (" GPU-a", 2), ("gpu-a", 2), ("GPU-a,GPU-a", 2),
                               ("GPU-a,MIG-b", 1), ("00,01,2", 3),
                               ("GPU-1a,GPU-1b,GPU-1c", 3), ("MIG-1a", 1)]:
            self.assertEqual(option(line("true", CUDA_VISIBLE_DEVICES=visible), "-n"), str(count),
                             visible)
        self.assertEqual(option(line("true", CUDA_VISIBLE_DEVICES="0,1,2", BACKENDS="cpu"), "-n"),
                         "2")
        host = FakeHost([["GPU-a"], ["GPU-b"], ["GPU-c"], ["GPU-d"]])
        self.assertEqual(option(line("true", host=host), "-n"), "4")
        words = line("--gpus", "4,5,6,7", "true")
        self.assertEqual((option(words, "-n"), option(words, "-x")),
                         ("4", "CUDA_VISIBLE_DEVICES=4,5,6,7"))
        for more in [["--backend", "cpu"], ["--backend=cpu"], ["a", "--backend", "cpu", "b"]]:
            self.assertEqual(option(line("--gpus", "0,1,2", "true", *more), "-n"), "2")
        self.assertEqual(option(line("-n", 7, "--gpus", "0", "true"), "-n"), "7")

    def test_fewer_gpus_than_requested(self):
        three = FakeHost([["GPU-aa", "MIG-x1"], ["GPU-bb"], ["GPU-cc"]])
        for words, environ, named in [
                (["--gpus", "0,1,2,3"], {}, "requested GPUs 0,1,2,3: 3 not found; this host has 3"),
                (["-n", "2", "--gpus", "5,1,7"], {}, "5, 7 not found"),
                ([], {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-d"}, "GPU-d not found"),
                (["--gpus", "MIG-x2"], {}, "MIG-x2 not found"),
                (["--hosts", "h1,here", "--gpus", "3"], {}, "3 not found"),
                ([], {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "here", "SLURM_GPUS_ON_NODE": "4"},
                 "Slurm granted 4 GPUs on this node: 1 of them not found; this host has 3")]:
            with self.assertRaisesRegex(places.InconclusiveError, named):
                line(*words, "true", host=three, **environ)
        for words, environ, count in [
                (["--gpus", "0,2"], {}, 2), ([], {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, 2),
                (["--gpus", "0,1,2,3", "--hosts", "h1,h2"], {}, 8),  # other hosts may have four
                (["-n", "4"], {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 4),  # the programs report that
                ([], {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "here", "SLURM_GPUS_ON_NODE": "3"},
                 3)]:
            self.assertEqual(option(line(*words, "true", host=three, **environ), "-n"), str(count),
                             words)
        self.assertEqual(option(line("--gpus", "9", "true", "--backend", "cpu", host=three), "-n"),
                         "2")
        # The login node's GPUs are not those of the job's node.
        self.assertEqual(option(line("--gpus", "0,1,2,3", "true", host=three, SLURM_JOB_ID="1"), "-n"), "4")

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

    def test_binding_and_sharing(self):
        words = line("true")
        self.assertEqual(option(words, "--bind-to"), "none")
        self.assertNotIn("--map-by", words)
        words = line("--bind", "numa", "-n", 7, "true")
        self.assertEqual((option(words, "--bind-to"), option(words, "--map-by")),
                         ("numa:overload-allowed", "ppr:4:numa"))
        words = line("--bind", "core", "true")
        self.assertEqual((option(words, "--bind-to"), option(words, "--map-by")),
                         ("core:overload-allowed", "slot"))
        self.assertNotIn("mpi_yield_when_idle", line("-n", 8, "true"))
        self.assertIn("mpi_yield_when_idle", line("-n", 9, "true"))
        self.assertNotIn("mpi_yield_when_idle", line("-n", 16, "--hosts", "h1,h2", "true"))
        self.assertGreaterEqual(ranks.Host().numa_nodes(), 1)

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

    def test_what_depends_on_this_host(self):
        self.assertNotIn("--allow-run-as-root", line("true"))
        self.assertIn("--allow-run-as-root", line("true", host=FakeHost(is_root=True)))
        name = "btl_vader_single_copy_mechanism"
        self.assertNotIn(name, line("true"))
        forbidden = FakeHost(may_read=False)
        self.assertEqual(option(line("true", host=forbidden), name), "none")
        self.assertNotIn(name,
                         line("true", host=forbidden,
                              OMPI_MCA_btl_vader_single_copy_mechanism="cma"))
        self.assertIs(type(ranks.Host().may_read_processes()), bool)


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

    def test_tasks(self):
        words = line("true", SLURM_NTASKS="16", **self.TWO)
        self.assertEqual(option(words, "-n"), "16")
        self.assertFalse({"--host", "--oversubscribe"} & set(words))
        words = line("true", SLURM_JOB_ID="1", SLURM_NTASKS="1", CUDA_VISIBLE_DEVICES="0,1,2")
        self.assertEqual(option(words, "-n"), "3")
        self.assertIn("--oversubscribe", words)

    def test_one_task_per_node_is_all_of_its_gpus(self):  # torchrun's header
        two = {**self.TWO, "SLURM_NTASKS": "2"}
        for more, visible, count in [([], "0,1,2,3", 8), (["-n", 4], "0,1", 4)]:
            error = io.StringIO()
            with contextlib.redirect_stderr(error):
                words = line(*more, "true", CUDA_VISIBLE_DEVICES=visible, **two)
            self.assertEqual("8 ranks are started, one per GPU" in error.getvalue(), count == 8)
            self.assertEqual((option(words, "-n"), option(words, "--map-by")),
                             (str(count), f"ppr:{count // 2}:node"))
            self.assertIn("--oversubscribe", words)
        for visible in ["0", ""]:
            words = line("true", CUDA_VISIBLE_DEVICES=visible, **two)
            self.assertEqual(option(words, "-n"), "2")
            self.assertNotIn("--map-by", words)

    def test_fewer_tasks_than_gpus_are_pointed_out(self):
        error = io.StringIO()
        with contextlib.redirect_stderr(error):
            words = line("true", CUDA_VISIBLE_DEVICES="0,1,2,3",
                         **{**self.TWO, "SLURM_NTASKS": "4"})
        self.assertIn("use 4 of 8 GPUs; -n 8 uses all", error.getvalue())
        self.assertEqual(option(words, "-n"), "4")

    def test_without_a_number_of_tasks(self):
        for more, visible, count, per_node in [([], "0,1,2,3", "8", "4"),
                                               (["-n", 6], "0,1", "6", "3"),
                                               (["--bind", "core"], "0", "2", "1")]:
            words = line(*more, "true", CUDA_VISIBLE_DEVICES=visible, **self.TWO)
            self.assertEqual((option(words, "-n"), option(words, "--map-by")),
                             (count, f"ppr:{per_node}:node"))
        self.assertEqual(option(line("true", "--backend", "cpu", **self.TWO), "-n"), "4")
        # On a node of the allocation that was given no GPUs, two CPU ranks per node.
        node = {"CUDA_VISIBLE_DEVICES": "", "SLURMD_NODENAME": "n1", **self.TWO}
        self.assertEqual(option(line("true", **node), "-n"), "4")
        self.assertEqual(option(line("true", **self.TWO, BACKENDS="cpu"), "-n"), "4")
        for changes in [{"SLURMD_NODENAME": ""}, {"SLURM_JOB_GPUS": "0,1"}]:
            with self.assertRaisesRegex(command.UsageError, "specify the number of ranks with -n"):
                line("true", BACKENDS="gpu", **{**node, **changes})
        words = line("true", CUDA_VISIBLE_DEVICES="0,1,2", SLURM_JOB_ID="1")
        self.assertEqual(option(words, "-n"), "3")
        self.assertNotIn("--map-by", words)

    def test_node_lists(self):
        for text, names in [("", []), ("n1", ["n1"]), ("n1,n2", ["n1", "n2"]),
                            ("gpu[08-10,2],login", ["gpu08", "gpu09", "gpu10", "gpu2", "login"]),
                            ("r[1-2]n[1,3]-ib", ["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"])]:
            self.assertEqual(slurm.hosts(text), names)
        for text in ["n[000x111]", "n[", "n]", "n[1-]", "n[5-1]", "n[]", "n[a]", "n[[1]]", ",n1", "n1,", "n 1",
                     "n[1-99999999]", "n[1-300]" * 3, "n[²]", "n[-1]"]:
            with self.assertRaises(command.UsageError, msg=text):
                slurm.hosts(text)

    def test_variables_that_slurm_would_not_set(self):
        job = {"SLURM_JOB_ID": "1"}
        self.assertEqual(slurm.allocation({**job, "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4(x2)"}).tasks, 8)
        for name, text in [("SLURM_NTASKS", "x"), ("SLURM_NTASKS_PER_NODE", "4,2"), ("SLURM_JOB_NUM_NODES", "-1"),
                           ("SLURM_NTASKS", "0"), ("SLURM_NTASKS", "4(x2)"), ("SLURM_NNODES", "2.5"), ("SLURM_NTASKS", "²"),
                           ("SLURM_JOB_NODELIST", "n[000x111]"), ("SLURM_NODELIST", "n[1" * 999)]:
            with self.assertRaisesRegex(command.UsageError, f"{name}=") as raised:
                line("true", **job, **{name: text})
            self.assertLess(len(str(raised.exception)), 300)

    def test_a_heterogeneous_job_is_refused(self):
        with self.assertRaisesRegex(command.UsageError, "SLURM_HET_SIZE=2: of a heterogeneous job only the first"):
            line("-n", 2, "true", SLURM_JOB_ID="1", SLURM_HET_SIZE="2")
        line("-n", 2, "true", SLURM_JOB_ID="1", SLURM_HET_SIZE="1")

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

    def test_some_nodes_of_the_allocation(self):
        job = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "4",
               "SLURM_JOB_NODELIST": "n[1-4]"}
        for count, per_node in [(2, 1), (4, 2)]:  # also as many as Slurm's tasks
            words = line("--hosts", "n2,n4", "-n", count, "true", **job)
            self.assertEqual((option(words, "--host"), option(words, "--map-by")),
                             (f"n2:{per_node},n4:{per_node}", f"ppr:{per_node}:node"))
            self.assertIn("--oversubscribe", words)
        words = line("--hosts", "n3", "-n", 2, "true", NCCL_DEBUG="INFO", **job)
        self.assertEqual(option(words, "--map-by"), "ppr:2:node")
        self.assertIn("NCCL_DEBUG", words)  # another host has no other way to it
        for host, job in [("h1", job), ("n1", {"SLURM_JOB_ID": "1"})]:
            with self.assertRaisesRegex(command.UsageError,
                                        f"{host}: not of this Slurm allocation, whose nodes are"):
                line("--hosts", host, "true", **job)


class Options(unittest.TestCase):
    def test_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            comments = pathlib.Path(folder, "comments")
            comments.write_text("# h1\n\n")
            for words in [["-n"], ["-n", "0", "true"], ["-n", "x", "true"], ["-n", "", "true"],
                          ["-n", "²", "true"], ["--wat", "true"], ["--bind", "x", "true"],
                          ["--hostfile", "/nonexistent", "true"], ["--hostfile", folder, "true"],
                          ["--hostfile", "/dev/null", "true"], ["--hostfile", comments, "true"],
                          ["--hosts", "", "true"], ["--hosts", "a,,b", "true"],
                          ["--gpus", "", "true"], ["--gpus=", "true"], ["--gpus", "0,,1", "true"],
                          ["--gpus", "0,a", "true"], ["--gpus", "0,1,0", "true"],
                          ["--gpus", "GPU-a,GPU-a", "true"],
                          ["no_such_program"], ["no/such_program"]]:
                with self.assertRaises(command.UsageError, msg=words) as raised:
                    line(*words)
                self.assertNotIn("\n", str(raised.exception))
                for word in words[:2 if words[0] == "--hostfile" else 1]:
                    self.assertIn(str(word).rstrip("="), str(raised.exception))
            for words, named in [([], "no program"),
                                 (["--hosts", "a", "--hostfile", "b", "true"],
                                  "cannot be combined")]:
                with self.assertRaisesRegex(command.UsageError, named):
                    line(*words)

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
    def test_hosts(self):
        words = line("--hosts", "h1,h2", "--gpus", "0,1,2,3", "true", NCCL_DEBUG="INFO")
        self.assertEqual((option(words, "-n"), option(words, "--host")), ("8", "h1:4,h2:4"))
        for name in ["NCCL_DEBUG", "CUDA_VISIBLE_DEVICES=0,1,2,3"]:
            self.assertIn(name, words)
        words = line("--hosts", "h1,h2", "true", CUDA_VISIBLE_DEVICES="2,3",
                     NVIDIA_TF32_OVERRIDE="0",
                     NVIDIA_VISIBLE_DEVICES="all", FI_PROVIDER="cxi", UCX_TLS="rc")
        self.assertEqual(option(words, "-n"), "4")
        self.assertTrue({"NVIDIA_TF32_OVERRIDE", "FI_PROVIDER", "UCX_TLS"} <= set(words))
        self.assertNotIn("VISIBLE_DEVICES", " ".join(words))  # each host's own
        self.assertFalse({"PATH", "BACKENDS"} & set(words))
        self.assertNotIn("-x", line("true", NCCL_DEBUG="INFO"))

    def test_variables_that_travel_to_other_hosts(self):
        names = ["OFI_NCCL_PROTOCOL", "RDMAV_FORK_SAFE", "HCOLL_MAIN_IB", "NVSHMEM_IB_ENABLE",
                 "SHARP_COLL_LOG_LEVEL", "PMIX_MCA_gds", "UCC_TLS", "FI_PROVIDER", "NCCL_DEBUG"]
        words = line("--hosts", "h1,h2", "-n", 2, "true", **dict.fromkeys(names, "1"), SSH_KEY="secret")
        self.assertEqual([word for before, word in zip(words, words[1:]) if before == "-x"],
                         [*sorted(names), "SHAKEDOWN_HOSTS=2"])

    def test_names_that_differ_in_their_domain_are_two_hosts(self):
        for named, kept in [("w.1.foo,w.2.foo", True), ("h1,h2", False), ("10.0.0.1,10.0.0.2", False),
                            ("h1,h2.site", True)]:
            words = line("--hosts", named, "-n", 2, "true")
            self.assertEqual("orte_keep_fqdn_hostnames" in words, kept, named)
            self.assertIn("SHAKEDOWN_HOSTS=2", words)
        job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "w[1-2].foo"}
        self.assertIn("orte_keep_fqdn_hostnames", line("-n", 2, "true", **job))

    def test_how_many_hosts_are_to_answer(self):
        four = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "n[1-4]"}
        for words, environ, count in [(["--hosts", "h1,h2,h3", "-n", 5], {}, 3), (["-n", 8], four, 4),
                                      (["-n", 3], four, 3), (["-n", 5], four, 3),
                                      (["-n", 2], {**four, "SLURM_NTASKS": "2"}, 4)]:
            self.assertIn(f"SHAKEDOWN_HOSTS={count}", line(*words, "true", **environ), (words, environ))
        self.assertNotIn("SHAKEDOWN_HOSTS", " ".join(line("-n", 3, "true", SHAKEDOWN_HOSTS="7")))

    def test_a_host_without_a_rank_is_refused(self):
        for count, named, idle in [(1, "h1,h2", "h2"), (5, "h1,h2,h3,h4", "h4"), (2, "a,b,c,d", "c d")]:
            with self.assertRaisesRegex(command.UsageError, f"no rank would run on {idle}: use a multiple"):
                line("--hosts", named, "-n", count, "true")

    def test_words_that_are_no_host(self):
        for word, named in [("fd00::5", "fd00::5 is an IPv6 address"), ("::1", "::1 is an IPv6 address"),
                            ("[2001:db8::1]", "IPv6"), ("[fd00::5]:4", "IPv6"), ("fe80::1%eth0", "IPv6"),
                            ("h1:x", "'h1:x' is not a host"), ("h1:", "'h1:' is not"), (":4", "':4' is not"),
                            ("h[1-2]", "is not a host")]:
            with self.assertRaises(command.UsageError, msg=word) as raised:
                line("--hosts", f"h0,{word}", "true")
            self.assertIn(named, str(raised.exception))
        self.assertEqual(option(line("--hosts", "h1:4,h2,h1", "-n", 2, "true"), "--host"), "h1:1,h2:1")

    def test_names_of_one_host(self):
        for one, other, same in [("vm", "vm", True), ("vm", "vm.example.com", True),
                                 ("vm.example.com", "vm", True), ("w.1.foo", "w.2.foo", False),
                                 ("10.0.0.1", "10.0.0.2", False), ("10.0.0.1", "10", False), ("a", "b", False)]:
            self.assertIs(hosts.same(one, other), same, (one, other))
        self.assertEqual(hosts.matched(["w.1.foo", "n2", "n3.b", "x", "w"], ["w.1.foo", "w.2.foo", "n2.a", "n3"]),
                         {"w.1.foo": "w.1.foo", "n2": "n2.a", "n3.b": "n3"})  # w may be two

    def test_a_name_that_is_too_long_for_open_mpi(self):
        long = "n" * 57
        with unittest.mock.patch.object(mpi.os, "uname", lambda: unittest.mock.Mock(nodename=f"{long}.a")):
            with self.assertRaisesRegex(places.InconclusiveError,
                                        f"host name {long} has 57 characters; Open MPI 4 supports 56"):
                mpi.check_open_mpi(os.environ)
        cut = f"n.{'x' * 60}"  # at the first dot, unless another host has a domain as well
        with unittest.mock.patch.object(mpi.os, "uname", lambda: unittest.mock.Mock(nodename=cut)):
            mpi.check_open_mpi(os.environ, ["h1", "h2"])
            with self.assertRaisesRegex(places.InconclusiveError, "has 62 characters"):
                mpi.check_open_mpi(os.environ, ["h1.a"])

    def test_hostfile(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("# two\nh1 slots=8\n\nh2\nh1\n")
            file.flush()
            words = line("--hostfile", file.name, "-n", 5, "true")
        self.assertEqual(option(words, "--host"), "h1:3,h2:3")

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

    def test_no_gpu_to_count_by(self):
        login_node = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n5"}
        for words, environ in [(("--hosts", "h1,h2"), {}), (("--hosts", "h1"), {}), ((), login_node)]:
            with self.assertRaisesRegex(command.UsageError,
                                        "no GPU visible on this host; specify .* -n"):
                line(*words, "true", CUDA_VISIBLE_DEVICES="", BACKENDS="gpu", **environ)
        self.assertEqual(option(line("--hosts", "h1,h2", "true", CUDA_VISIBLE_DEVICES="",
                                     BACKENDS="cpu"), "-n"), "4")

LEAVES = """SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[000-001]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[002,004]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[000-002,004] Switches=leaf[0-1]
"""
BLOCKS = """BlockName=rack1 BlockIndex=0 Nodes=n[000-002] BlockSize=3
BlockName=rack2 BlockIndex=1 Nodes=n004 BlockSize=3
"""
IN_JOB = {"SLURM_JOB_ID": "1"}


def domains(nodes, environ, printed):
    return slurm.domains(nodes, environ, lambda words: Said(0, printed))


class Domains(unittest.TestCase):
    def test_leaves_of_a_tree(self):
        self.assertEqual(domains(["n000", "n002.site", "n004"], IN_JOB, LEAVES),
                         {"n000": "leaf0", "n002.site": "leaf1", "n004": "leaf1"})

    def test_blocks(self):
        self.assertEqual(domains(["n001", "n004"], IN_JOB, BLOCKS),
                         {"n001": "rack1", "n004": "rack2"})

    def test_names_that_differ_in_their_domain(self):
        tree = "SwitchName=a Level=0 Nodes=w.1.foo\nSwitchName=b Level=0 Nodes=w.2.foo\n"
        self.assertEqual(domains(["w.1.foo", "w.2.foo"], IN_JOB, tree),
                         {"w.1.foo": "a", "w.2.foo": "b"})
        self.assertIsNone(domains(["w"], IN_JOB, tree))
        self.assertIsNone(domains(["n1"], IN_JOB, "SwitchName=a Level=0 Nodes=n[000x111]\n"))

    def test_unknown(self):
        for text in ("", "No topology information available\n", LEAVES):
            self.assertIsNone(domains(["n000", "n003"], IN_JOB, text))
        self.assertIsNone(domains(["n000"], {}, LEAVES))


if __name__ == "__main__":
    unittest.main()
