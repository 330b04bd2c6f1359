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
from shakedown_launch import command, gpus, hosts, launchers, mpi, places, ranks, slurm
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


class Case(unittest.TestCase):
    def lines(self, *rows, host=None, **environ):
        """(launch/mpi's words, variables, what the mpirun line has, what it lacks), parts of it separated by ;"""
        for words, more, has, *lacks in rows:
            made = f" {' '.join(line(*words.split(), host=host, **environ, **more))} "
            for part in has.split("; "):
                self.assertIn(f" {part} ", made, (words, more))
            for part in "".join(lacks).split("; ") if lacks else ():
                self.assertNotIn(part, made, (words, more))

    def refused(self, *rows, error=command.UsageError, host=None, **environ):
        """(launch/mpi's words, variables, what the message has)"""
        for words, more, named in rows:
            with self.assertRaises(error, msg=(words, more)) as raised:
                line(*words.split(), host=host, **environ, **more)
            self.assertIn(named, str(raised.exception))
            self.assertLess(len(str(raised.exception)), 300)


class Ranks(Case):
    def test_one_per_visible_gpu_else_two(self):
        for visible, count in [("0,1,2", 3), ("", 2), ("1,-1,0", 1), ("NoDevFiles", 2),
                               ("0, 1", 2), (" 0,1gpu2,\t+2", 3), ("0,0", 2), ("0,1,00", 2),
                               ("0x1,1,2", 3), ("0,,1", 1), ("GPU-a,1", 1), ("0,GPU-a", 1),
                               ("GPU-a, GPU-b", 1), (" GPU-a", 2), ("gpu-a", 2), ("GPU-a,GPU-a", 2),
                               ("GPU-a,MIG-b", 1), ("00,01,2", 3),
                               ("GPU-1a,GPU-1b,GPU-1c", 3), ("MIG-1a", 1)]:
            self.lines(("true", {"CUDA_VISIBLE_DEVICES": visible}, f"-n {count}"))
        self.lines(("true", {}, "-n 4"), host=FakeHost([["GPU-a"], ["GPU-b"], ["GPU-c"], ["GPU-d"]]))
        self.lines(("true", {"CUDA_VISIBLE_DEVICES": "0,1,2", "BACKENDS": "cpu"}, "-n 2"),
                   ("--gpus 4,5,6,7 true", {}, "-n 4; -x CUDA_VISIBLE_DEVICES=4,5,6,7"),
                   ("-n 7 --gpus 0 true", {}, "-n 7"), ("--gpus 0,1,2 true --backend cpu", {}, "-n 2"),
                   ("--gpus 0,1,2 true --backend=cpu", {}, "-n 2"), ("--gpus 0,1,2 true a --backend cpu b", {}, "-n 2"))

    def test_fewer_gpus_than_requested(self):
        three = FakeHost([["GPU-aa", "MIG-x1"], ["GPU-bb"], ["GPU-cc"]])
        on_node = {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "here"}
        self.refused(
            ("--gpus 0,1,2,3 true", {}, "requested GPUs 0,1,2,3: 3 not found; this host has 3"),
            ("-n 2 --gpus 5,1,7 true", {}, "5, 7 not found"), ("--gpus MIG-x2 true", {}, "MIG-x2 not found"),
            ("true", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-d"}, "GPU-d not found"),
            ("--hosts h1,here --gpus 3 true", {}, "3 not found"),
            ("true", {**on_node, "SLURM_GPUS_ON_NODE": "4"},
             "Slurm granted 4 GPUs on this node: 1 of them not found; this host has 3"),
            error=places.InconclusiveError, host=three)
        self.lines(
            ("--gpus 0,2 true", {}, "-n 2"), ("true", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "-n 2"),
            ("--gpus 0,1,2,3 --hosts h1,h2 true", {}, "-n 8"),  # other hosts may have four
            ("-n 4 true", {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "-n 4"),  # the programs report that
            ("true", {**on_node, "SLURM_GPUS_ON_NODE": "3"}, "-n 3"), ("--gpus 9 true --backend cpu", {}, "-n 2"),
            # The login node's GPUs are not those of the job's node.
            ("--gpus 0,1,2,3 true", {"SLURM_JOB_ID": "1"}, "-n 4"), host=three)

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
        self.lines(("true", {}, "--bind-to none", "--map-by"),
                   ("--bind numa -n 7 true", {}, "--bind-to numa:overload-allowed; --map-by ppr:4:numa"),
                   ("--bind core true", {}, "--bind-to core:overload-allowed; --map-by slot"),
                   ("-n 8 true", {}, "-n 8", "mpi_yield_when_idle"), ("-n 9 true", {}, "--mca mpi_yield_when_idle 1"),
                   ("-n 16 --hosts h1,h2 true", {}, "-n 16", "mpi_yield_when_idle"))
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
        name = "btl_vader_single_copy_mechanism"
        self.lines(("true", {}, "true", f"{name}; --allow-run-as-root"))
        self.lines(("true", {}, "--allow-run-as-root"), host=FakeHost(is_root=True))
        self.lines(("true", {}, f"--mca {name} none"), host=FakeHost(may_read=False))
        self.lines(("true", {f"OMPI_MCA_{name}": "cma"}, "true", name), host=FakeHost(may_read=False))
        self.assertIs(type(ranks.Host().may_read_processes()), bool)


class Launchers(Case):
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
        self.refused(("--launcher srun true", {}, "--launcher srun: choose from openmpi4, openmpi5, hydra"))

    def test_lines(self):
        two = {"NCCL_DEBUG": "INFO", "I_MPI_FABRICS": "ofi", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/"}
        self.lines(
            ("--launcher openmpi5 -n 9 true", {}, "mpirun -n 9 --oversubscribe --bind-to none; mpi_yield_when_idle 1"),
            ("--launcher openmpi5 --hosts a.x,b.x -n 2 true", {}, "--prtemca prte_keep_fqdn_hostnames 1", "orte_"),
            ("--launcher hydra -n 3 true", {}, "mpiexec.hydra -n 3 -print-all-exitcodes -bind-to none -genv I_MPI_PIN 0 true",
             "-genvlist; -hosts; -ppn"),
            ("--launcher hydra --bind core true", {}, "-bind-to core -genv I_MPI_PIN_DOMAIN core"),
            ("--launcher hydra --gpus 4,5 true", {}, "-n 2; -genv CUDA_VISIBLE_DEVICES 4,5"),
            ("--launcher hydra --hosts h1,h2 -n 4 true", two,
             "-hosts h1,h2 -ppn 2 -genvlist I_MPI_FABRICS,NCCL_DEBUG -genv SHAKEDOWN_HOSTS 2 true", "VISIBLE"),
            ("--launcher hydra -n 4 true", {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"}, "-n 4; -ppn 2", "-hosts"))
        self.lines(("--launcher openmpi5 true", {}, "true", "vader"), host=FakeHost(may_read=False))
        self.refused(("--launcher hydra --bind numa true", {}, "--bind numa: of MPICH and Intel MPI choose from none, core"))


class Slurm(Case):
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

    def said(self, words, has, **environ):
        """What it says on standard error, of a line that has these."""
        error = io.StringIO()
        with contextlib.redirect_stderr(error):
            self.lines((words, environ, has), **self.TWO)
        return error.getvalue()

    def test_tasks(self):
        self.lines(("true", {**self.TWO, "SLURM_NTASKS": "16"}, "-n 16", "--host; --oversubscribe"),
                   ("true", {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", "CUDA_VISIBLE_DEVICES": "0,1,2"},
                    "-n 3; --oversubscribe"))
        # One per node is all of its GPUs, as in torchrun's header.
        self.assertIn("8 ranks are started, one per GPU", self.said(
            "true", "-n 8; --map-by ppr:4:node; --oversubscribe", CUDA_VISIBLE_DEVICES="0,1,2,3", SLURM_NTASKS="2"))
        self.assertEqual("", self.said("-n 4 true", "-n 4; --map-by ppr:2:node; --oversubscribe",
                                       CUDA_VISIBLE_DEVICES="0,1", SLURM_NTASKS="2"))
        self.assertIn("use 4 of 8 GPUs; -n 8 uses all", self.said(
            "true", "-n 4", CUDA_VISIBLE_DEVICES="0,1,2,3", SLURM_NTASKS="4"))
        for visible in ("0", ""):
            self.lines(("true", {"CUDA_VISIBLE_DEVICES": visible, "SLURM_NTASKS": "2"}, "-n 2", "--map-by"), **self.TWO)

    def test_without_a_number_of_tasks(self):
        # On a node of the allocation that was given no GPUs, two CPU ranks per node.
        node = {"CUDA_VISIBLE_DEVICES": "", "SLURMD_NODENAME": "n1"}
        self.lines(("true", {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, "-n 8; --map-by ppr:4:node"),
                   ("-n 6 true", {"CUDA_VISIBLE_DEVICES": "0,1"}, "-n 6; --map-by ppr:3:node"),
                   ("--bind core true", {"CUDA_VISIBLE_DEVICES": "0"}, "-n 2; --map-by ppr:1:node"),
                   ("true --backend cpu", {}, "-n 4"), ("true", node, "-n 4"), ("true", {"BACKENDS": "cpu"}, "-n 4"),
                   **self.TWO)
        self.refused(*(("true", {"BACKENDS": "gpu", **node, **each}, "specify the number of ranks with -n")
                       for each in ({"SLURMD_NODENAME": ""}, {"SLURM_JOB_GPUS": "0,1"})), **self.TWO)
        self.lines(("true", {"CUDA_VISIBLE_DEVICES": "0,1,2", "SLURM_JOB_ID": "1"}, "-n 3", "--map-by"))

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
        self.refused(*(("true", {name: text}, f"{name}={text[:80]}") for name, text in [
            ("SLURM_NTASKS", "x"), ("SLURM_NTASKS_PER_NODE", "4,2"), ("SLURM_JOB_NUM_NODES", "-1"),
            ("SLURM_NTASKS", "0"), ("SLURM_NTASKS", "4(x2)"), ("SLURM_NNODES", "2.5"), ("SLURM_NTASKS", "²"),
            ("SLURM_JOB_NODELIST", "n[000x111]"), ("SLURM_NODELIST", "n[1" * 999)]), **job)
        self.refused(("-n 2 true", {"SLURM_HET_SIZE": "2"}, "SLURM_HET_SIZE=2: of a heterogeneous job only the first"), **job)
        self.lines(("-n 2 true", {"SLURM_HET_SIZE": "1"}, "-n 2"), **job)

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
        self.lines(("--hosts n2,n4 -n 2 true", job, "--host n2:1,n4:1; --map-by ppr:1:node; --oversubscribe"),
                   ("--hosts n2,n4 -n 4 true", job, "--host n2:2,n4:2; --map-by ppr:2:node; --oversubscribe"),
                   # Another host has no other way to the variable.
                   ("--hosts n3 -n 2 true", {**job, "NCCL_DEBUG": "INFO"}, "--map-by ppr:2:node; -x NCCL_DEBUG"))
        self.refused(("--hosts h1 true", job, "h1: not of this Slurm allocation, whose nodes are n1 n2 n3 n4"),
                     ("--hosts n1 true", {"SLURM_JOB_ID": "1"}, "n1: not of this Slurm allocation, whose nodes are unknown"))


class Options(Case):
    def test_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "comments").write_text("# h1\n\n")
            self.refused(*((words, {}, words.split()[0].rstrip("=")) for words in (
                "-n", "-n 0 true", "-n x true", "-n ² true", "--wat true", "--bind x true", "--hosts a,,b true",
                "--gpus= true", "--gpus 0,,1 true", "--gpus 0,a true", "--gpus 0,1,0 true", "--gpus GPU-a,GPU-a true",
                "no_such_program", "no/such_program")), *(
                    (f"--hostfile {path} true", {}, f"--hostfile {path}") for path in (
                        "/nonexistent", folder, "/dev/null", f"{folder}/comments")),
                         ("", {}, "no program"), ("--hosts a --hostfile b true", {}, "cannot be combined"))
        for words in (["-n", "", "true"], ["--hosts", "", "true"], ["--gpus", "", "true"]):
            with self.assertRaisesRegex(command.UsageError, words[0]):
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


class Hosts(Case):
    def test_hosts(self):
        two = "--hosts h1,h2"
        self.lines((f"{two} --gpus 0,1,2,3 true", {"NCCL_DEBUG": "INFO"},
                    "-n 8; --host h1:4,h2:4; -x NCCL_DEBUG; -x CUDA_VISIBLE_DEVICES=0,1,2,3"),
                   (f"{two} true", {"CUDA_VISIBLE_DEVICES": "2,3", "NVIDIA_TF32_OVERRIDE": "0",
                                    "NVIDIA_VISIBLE_DEVICES": "all"},
                    "-n 4; -x NVIDIA_TF32_OVERRIDE", "VISIBLE_DEVICES; PATH; BACKENDS"),  # the first are each host's own
                   ("true", {"NCCL_DEBUG": "INFO"}, "true", "-x"))

    def test_variables_that_travel_to_other_hosts(self):
        names = ["OFI_NCCL_PROTOCOL", "RDMAV_FORK_SAFE", "HCOLL_MAIN_IB", "NVSHMEM_IB_ENABLE", "UCX_TLS",
                 "SHARP_COLL_LOG_LEVEL", "PMIX_MCA_gds", "UCC_TLS", "FI_PROVIDER", "NCCL_DEBUG"]
        words = line("--hosts", "h1,h2", "-n", 2, "true", **dict.fromkeys(names, "1"), SSH_KEY="secret")
        self.assertEqual([word for before, word in zip(words, words[1:]) if before == "-x"],
                         [*sorted(names), "SHAKEDOWN_HOSTS=2"])

    def test_names_that_differ_in_their_domain_are_two_hosts(self):
        kept, hosts_ = "--mca orte_keep_fqdn_hostnames 1", "-x SHAKEDOWN_HOSTS=2"
        job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "w[1-2].foo"}
        self.lines(("--hosts w.1.foo,w.2.foo -n 2 true", {}, f"{kept}; {hosts_}"), ("-n 2 true", job, kept),
                   ("--hosts h1,h2.site -n 2 true", {}, f"{kept}; {hosts_}"),
                   ("--hosts h1,h2 -n 2 true", {}, hosts_, "orte_keep"),
                   ("--hosts 10.0.0.1,10.0.0.2 -n 2 true", {}, hosts_, "orte_keep"))

    def test_how_many_hosts_are_to_answer(self):
        four = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "n[1-4]"}
        self.lines(*((words, environ, f"-x SHAKEDOWN_HOSTS={count}") for words, environ, count in [
            ("--hosts h1,h2,h3 -n 5 true", {}, 3), ("-n 8 true", four, 4), ("-n 3 true", four, 3), ("-n 5 true", four, 3),
            ("-n 2 true", {**four, "SLURM_NTASKS": "2"}, 4)]), ("-n 3 true", {"SHAKEDOWN_HOSTS": "7"}, "-n 3", "_HOSTS"))

    def test_a_host_without_a_rank_is_refused(self):
        self.refused(*((f"-n {count} --hosts {named} true", {}, f"no rank would run on {idle}: use a multiple")
                       for count, named, idle in [(1, "h1,h2", "h2"), (5, "h1,h2,h3,h4", "h4"), (2, "a,b,c,d", "c d")]))

    def test_words_that_are_no_host(self):
        self.refused(*((f"--hosts h0,{word} true", {}, named) for word, named in [
            ("fd00::5", "fd00::5 is an IPv6 address"), ("::1", "::1 is an IPv6 address"), ("[2001:db8::1]", "IPv6"),
            ("[fd00::5]:4", "IPv6"), ("fe80::1%eth0", "IPv6"), ("h1:x", "'h1:x' is not a host"), ("h1:", "'h1:' is not"),
            (":4", "':4' is not"), ("h[1-2]", "is not a host")]))
        self.lines(("--hosts h1:4,h2,h1 -n 2 true", {}, "--host h1:1,h2:1"))

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

    def test_hostfile(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("# two\nh1 slots=8\n\nh2\nh1\n")
            file.flush()
            self.lines((f"--hostfile {file.name} -n 5 true", {}, "--host h1:3,h2:3"))

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
        none = {"CUDA_VISIBLE_DEVICES": "", "BACKENDS": "gpu"}
        self.refused(*((words, {**none, **more}, "no GPU visible on this host; specify the number of ranks with -n")
                       for words, more in [("--hosts h1,h2 true", {}), ("--hosts h1 true", {}),
                                           ("true", {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n5"})]))
        self.lines(("--hosts h1,h2 true", {**none, "BACKENDS": "cpu"}, "-n 4"))


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
