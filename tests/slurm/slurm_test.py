#!/usr/bin/env python3
"""The job scripts of launch/slurm on a two-node Slurm, as they are submitted by users, and what Slurm
does to a job. Run by tests/run; skipped where no cluster can be made."""

import json
import os
import subprocess
import unittest

from slurm_support import HOOKS, TWO_GPUS, Cluster, Job, skip_where_impossible
from support import TREE, make_image_folder, wait_until


TINY = ["--backend", "cpu", "--model", "tiny", "--image-size", 32]
QUICK = ["--backend", "cpu", "-b", "1K", "-e", "1K", "-n", 2, "-w", 1]  # of collective_perf
LAUNCHERS = ("mpirun", "srun")
SHOWS = """#!/bin/bash
echo "rank on $(hostname): gpus=$CUDA_VISIBLE_DEVICES cpus=$SLURM_CPUS_PER_TASK psec=$PMIX_MCA_psec"
"""


# In `make slurm-test`, not in tests/run.
long = unittest.skipUnless(os.environ.get("SHAKEDOWN_LONG_TESTS"), "lasts minutes: make slurm-test")


def setUpModule():
    skip_where_impossible()


def executable(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Jobs(unittest.TestCase):
    """On a cluster for all tests of a class."""
    OPTIONS = {}

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(**cls.OPTIONS)
        cls.addClassCleanup(cls.cluster.down)
        cls.cluster.up()
        # In the place of one of Shakedown's programs: what a rank has of its environment.
        executable(cls.cluster.work / "shows/collective_perf", SHOWS)

    def submit(self, script, *arguments, launcher="mpirun", options=("--nodes=2",), **environ):
        job = self.cluster.submit(script, *arguments, options=options, SHAKEDOWN_LAUNCHER=launcher,
                                  **environ)
        self.addCleanup(self.cluster, "scancel", job.number, code=None)
        return job

    def expect(self, job, code, *said):
        self.assertEqual(job.wait(), code, job.log)
        for words in said:
            self.assertIn(words, job.log)

    def assert_nothing_runs(self, *nodes):
        for node in nodes or ["n1", "n2"]:
            self.assertTrue(wait_until(lambda: not self.cluster.processes(node)),
                            f"{node}: {self.cluster.processes(node)}")

    def train(self, *words, launcher="mpirun", options=()):
        """A training without an end that has written a checkpoint, and its folder of checkpoints."""
        if not (self.cluster.work / "images").exists():
            make_image_folder(self.cluster.work / "images", 4)
        folder = self.cluster.work / f"checkpoints-{len(list(self.cluster.work.iterdir()))}"
        job = self.submit("train.sbatch", *TINY, "--train-dir", "images", "--batch-size", 2, "--epochs",
                          1000000, "--checkpoint-minutes", 1e-6, *words, launcher=launcher,
                          options=["--nodes=2", "--ntasks-per-node=1", *options],
                          CHECKPOINT_DIR=str(folder))
        job.wait_for((folder / "checkpoint_latest.safetensors").exists)
        return job, folder

    def continue_(self, *jobs):
        """Trainings that are queued again."""
        self.assert_nothing_runs()
        for job in jobs:
            job.start_again()
        for job in jobs:
            job.wait_for(lambda: "continues /" in job.log)
            self.assertIn("restart 1", job.log)


class Scripts(Jobs):
    """n1 has four CPUs, n2 two; both have two "GPUs"."""
    OPTIONS = {"conf": "GresTypes=gpu\nTaskProlog=@CLUSTER@/etc/task_prolog", "gres": TWO_GPUS,
               "node": {"n1": "CPUs=4 RealMemory=8000 Gres=gpu:2",
                        "n2": "CPUs=2 RealMemory=8000 Gres=gpu:2"}}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # A module that only n2 has loaded.
        executable(cls.cluster.folder / "etc/task_prolog",
                   "#!/bin/sh\n[ $(hostname) != n2 ] || cat /etc/slurm/only_n2 2>/dev/null\nexit 0\n")

    def test_every_script_under_both_launchers(self):
        checks = {
            "collectives": QUICK,
            "compare": [*TINY, "--batch-size", 2, "--iterations", 1, "--warmup", 1, "--repeats", 1,
                        "--strategies", "all-reduce", "--certificate", "off"],
            "soak": ["--backend", "cpu", "--minutes", 0.01, "--types", "fp32", "--loads", "products",
                     "--shape", "steady", "--size", 128]}

        def submit(name, launcher):
            return self.submit(f"{name}.sbatch", *checks[name], launcher=launcher,
                               options=["--nodes=2", "--ntasks=3"])

        jobs = [(name, launcher, submit(name, launcher)) for name in checks for launcher in LAUNCHERS]
        for name, launcher, job in jobs:
            with self.subTest(name, launcher=launcher):
                # On busy machines 1 of 550 jobs of srun ended so while MPI started (Debian's Open MPI
                # 4.1.4 and PMIx 4.2.2).
                if launcher == "srun" and job.wait() and "Segmentation fault" in job.log:
                    job = submit(name, launcher)
                self.expect(job, 0, f"started by {launcher}")
                run, *_, end = job.records(name)
                self.assertEqual(run["hosts"], ["n1", "n1", "n2"])
                self.assertEqual(run["environment.SLURM_JOB_ID"], job.number)
                self.assertEqual(run["environment.SLURM_JOB_NODELIST"], "n[1-2]")
                self.assertEqual(end["exit_code"], 0)

    def test_what_the_ranks_see(self):
        both = ["rank on n1: gpus=0,1", "rank on n2: gpus=0,1"]
        bound = ["--gpus-per-task=1 is not applied", *both]
        cases = [  # Slurm's options, ranks, what the log has
            (["--ntasks-per-node=2", "--gpus-per-task=1"], 4, bound),
            (["--gpus=4", "--ntasks-per-node=2"], 4, both),
            (["--ntasks-per-node=2"], 4, both),  # --exclusive alone
            (["--ntasks-per-node=1", "--gpus-per-node=2", "--cpus-per-task=2"], 4,
             ["one task per node: 4 ranks are started, one per GPU", *both])]
        jobs = [(launcher, *case, self.submit("collectives.sbatch", launcher=launcher,
                                              options=["--nodes=2", *case[0]],
                                              SHAKEDOWN_BIN=str(self.cluster.work / "shows"),
                                              BACKENDS="cpu gpu", CUDA_VISIBLE_DEVICES="7"))
                for case in cases for launcher in LAUNCHERS]
        for launcher, options, ranks, said, job in jobs:
            with self.subTest(options, launcher=launcher):
                self.expect(job, 0, *said)
                self.assertEqual(job.log.count("rank on"), ranks, job.log)
                if launcher == "srun":
                    self.assertEqual(job.log.count("psec=native"), ranks)
                    self.assertEqual("cpus=2" in job.log, "--cpus-per-task=2" in options)

    def test_a_launcher_that_is_none(self):
        self.expect(self.submit("compare.sbatch", launcher="mpiexec"), 2, "choose mpirun or srun")

    def test_another_library_on_one_node(self):
        library = self.cluster.folder / "onednn.so"
        source = self.cluster.folder / "onednn.cpp"
        source.write_text("#include <dnnl.h>\n"
                          "extern \"C\" const dnnl_version_t* dnnl_version() {\n"
                          "  static const dnnl_version_t version = {9, 8, 7, \"other\", 0, 0};\n"
                          "  return &version;\n}\n")
        subprocess.run(["g++", "-shared", "-fPIC", source, "-o", library], check=True)
        only_n2 = self.cluster.folder / "etc/only_n2"
        only_n2.write_text(f"export LD_PRELOAD={library}\n")
        self.addCleanup(only_n2.unlink)
        self.expect(self.submit("collectives.sbatch", *QUICK, options=[
            "--nodes=2", "--ntasks-per-node=1"]), 0,
                    "versions differ from", "on n2 (versions.onednn 9.8.7 instead of ")

    def test_acceptance_of_nodes_without_the_gpus_that_slurm_grants(self):
        self.expect(self.submit("acceptance.sbatch", "--quick", "--backend", "cpu"), 1,
                    "0 GPUs, 2 expected (Slurm)", 'scontrol update nodename="n2" state=drain')


class Training(Jobs):
    def test_acceptance(self):
        job = self.submit("acceptance.sbatch", "--quick", "--backend", "cpu", "-n", 1)
        self.assertEqual(job.wait(), 0, job.log)
        lines = [json.loads(line) for line in
                 (self.cluster.work / f"runs/acceptance-{job.number}/acceptance.jsonl").read_text().splitlines()]
        self.assertEqual({line["name"] for line in lines
                          if line["kind"] == "verdict" and line["scope"] == "node"}, {"n1", "n2"})

    def test_a_signal_queues_it_again_and_it_continues(self):
        jobs, folders = zip(*(self.train(launcher=launcher) for launcher in LAUNCHERS))
        for job in jobs:
            self.cluster("scancel", "--signal=USR2", "--batch", job.number)
        self.continue_(*jobs)
        by_mpirun, by_srun = jobs
        (folders[1] / "STOP").touch()
        self.cluster("scancel", by_mpirun.number)
        self.expect(by_srun, 5)
        by_mpirun.wait()
        self.assert_nothing_runs()
        by_srun.wait_for(lambda: by_srun.state == "FAILED")  # neither is queued again
        by_mpirun.wait_for(lambda: by_mpirun.state == "CANCELLED")
        for job in jobs:
            runs = [line for line in job.records("train") if line["kind"] == "run"]
            self.assertEqual([run.get("environment.SLURM_RESTART_COUNT") for run in runs], [None, "1"])

    def test_slurmd_dies_and_it_continues(self):
        job, _ = self.train(launcher="srun")
        self.cluster("node", "n2", "kill")
        job.wait_for(lambda: job.state in ("PENDING", "NODE_FAIL"))
        self.assert_nothing_runs("n1")
        self.cluster("node", "n2", "start")
        self.assertTrue(wait_until(lambda: self.cluster.node("n2", "State") == "IDLE"))
        self.continue_(job)
        self.cluster("scancel", job.number)
        job.wait()
        self.assert_nothing_runs()

    @long
    def test_the_time_limit_queues_it_again(self):
        job, _ = self.train(options=["--time=1"])
        job.wait_for(lambda: "is queued again" in job.log, 100)  # it comes at a tick of 30 s
        self.continue_(job)


class FourNodes(Jobs):
    """Without GPUs. A slow one is found only where there are peers."""
    OPTIONS = {"nodes": "n1 n2 n3 n4", "node": "CPUs=2 RealMemory=4000"}

    def test_a_slow_node_is_named(self):
        self.cluster("node", "n3", "slow", *"tbf rate 40mbit burst 32k latency 400ms".split())
        self.addCleanup(self.cluster, "node", "n3", "fast")
        job = self.submit("links.sbatch", "--backend", "cpu", "--bytes", "128K", "--iterations", 3,
                          "--warmup", 1, "--latency-iterations", 5, "--alone", "off",
                          "--fail-on-outlier", options=["--nodes=4", "--ntasks-per-node=1"],
                          CUDA_VISIBLE_DEVICES="7")
        self.expect(job, 1, "CUDA_VISIBLE_DEVICES=7 of the submission is ignored", "FAIL node n3: all_reduce")
        self.assertNotIn("environment.CUDA_VISIBLE_DEVICES", job.records("links")[0])

    def test_an_array_measures_each_node(self):
        job = self.submit("collectives.sbatch", *QUICK, options=[
            "--array=1-4", "--nodes=1", "--ntasks=2", "--output=%x-%A_%a.out"])
        tasks = [Job(self.cluster, f"{job.number}_{task}") for task in range(1, 5)]
        hosts = set()
        for number, task in enumerate(tasks, 1):
            self.expect(task, 0, f"job {job.number}_{number} on n")
            run = task.records("collectives")[0]
            self.assertEqual((run["environment.SLURM_ARRAY_JOB_ID"],
                              run["environment.SLURM_ARRAY_TASK_ID"]), (job.number, str(number)))
            hosts.update(run["hosts"])
        self.assertEqual(hosts, {"n1", "n2", "n3", "n4"})  # a node each, by --exclusive
        table = subprocess.run([HOOKS / "compare_nodes", self.cluster.work / "runs"],
                               capture_output=True, text=True)
        self.assertEqual(table.returncode, 0, table)
        self.assertRegex(table.stdout, "collective/all_reduce/float32/1024/.* of 4 nodes")

    def test_a_login_node_s_gpus_are_its_own(self):
        said = self.cluster("salloc", "--nodes=2", TREE / "launch/mpi", "-n", 2,
                            self.cluster.work / "shows/collective_perf", CUDA_VISIBLE_DEVICES="7")
        self.assertEqual(said.count("gpus= "), 2, said)


@long
class Lost(Jobs):
    """With Slurm's own time-out of a node: the programs and launch/mpi are faster. A cluster each: a
    node that was lost is Slurm's for minutes."""

    @classmethod
    def setUpClass(cls):
        pass

    def setUp(self):
        self.cluster = Cluster(conf="SlurmdTimeout=300")
        self.addCleanup(self.cluster.down)
        self.cluster.up()

    def lose_the_link(self, launcher):
        job, _ = self.train("--timeout", 5, launcher=launcher)
        self.cluster("node", "n2", "cut")
        self.assertEqual(job.wait(40), 3, job.log)
        self.assertIn("no answer from rank 1 on n2", job.log)

    def test_a_lost_link_ends_the_job_under_mpirun(self):
        self.lose_the_link("mpirun")

    def test_a_lost_link_ends_the_job_under_srun(self):
        self.lose_the_link("srun")

    def test_a_lost_node_ends_the_job(self):
        job, _ = self.train()
        self.cluster("node", "n2", "off")
        job.wait_for(lambda: "host n2 was lost" in job.log)

        def ended():  # Slurm keeps the job until it has given up the node
            return all(line.startswith("slurmstepd") for line in self.cluster.processes("n1"))
        self.assertTrue(wait_until(ended, 20), self.cluster.processes("n1"))


if __name__ == "__main__":
    unittest.main()
