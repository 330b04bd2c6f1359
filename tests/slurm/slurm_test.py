#!/usr/bin/env python3
"""The job scripts of launch/slurm on a Slurm of two and of four nodes, as they are submitted by users. Run by
tests/run; skipped where no cluster can be made."""

import os
import subprocess
import unittest

from slurm_support import HOOKS, LAUNCHERS, TINY, TWO_GPUS, Job, Jobs, long, skip_where_impossible
from support import TREE

QUICK = ["--backend", "cpu", "-b", "1K", "-e", "1K", "-n", 2, "-w", 1]  # of collective_perf
SHOWS = """#!/bin/bash
echo "rank on $(hostname): gpus=$CUDA_VISIBLE_DEVICES cpus=$SLURM_CPUS_PER_TASK psec=$PMIX_MCA_psec"
"""


def setUpModule():
    skip_where_impossible()


def executable(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def show_environment(cluster):
    """Puts a script in the place of one of Shakedown's programs: what a rank has of its environment."""
    executable(cluster.work / "shows/collective_perf", SHOWS)


class Scripts(Jobs):
    """n1 has four CPUs, n2 two; both have two "GPUs"."""
    OPTIONS = {"conf": "GresTypes=gpu\nTaskProlog=@CLUSTER@/etc/task_prolog", "gres": TWO_GPUS,
               "node": {"n1": "CPUs=4 RealMemory=8000 Gres=gpu:2",
                        "n2": "CPUs=2 RealMemory=8000 Gres=gpu:2"}}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        show_environment(cls.cluster)
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

        # As if a component of a heterogeneous job or a task of an array had submitted them.
        others = {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "5", "SLURM_HET_SIZE": "2", "SLURM_MEM_PER_CPU": "100"}

        def submit(name, launcher):
            return self.submit(f"{name}.sbatch", *checks[name], launcher=launcher,
                               options=["--nodes=2", "--ntasks=3", "--mem=4000"], **others)

        jobs = [(name, launcher, submit(name, launcher)) for name in checks for launcher in LAUNCHERS]
        for name, launcher, job in jobs:
            with self.subTest(name, launcher=launcher):
                while job.wait() and job.crashed:
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
            (["--gpus=4", "--ntasks-per-gpu=1"], 4, ["--ntasks-per-gpu=1 is not applied", *both]),
            (["--ntasks-per-node=2"], 4, both),  # --exclusive alone
            (["--ntasks-per-node=1", "--gpus-per-node=1", "--cpus-per-task=2"], 4,  # --exclusive grants both
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

    def test_what_a_job_cannot_start_with(self):
        """Each ends with 2 and names what to change, instead of a rank's or python's own words and code."""
        broken = self.cluster.work / "broken"
        executable(broken / "python3", "#!/bin/sh\nexit 1\n")
        for script, options, environ, said in [
                ("links.sbatch", [], {"SHAKEDOWN_RUNS": "/proc/no"}, "SHAKEDOWN_RUNS=/proc/no (site.sh): cannot be made"),
                ("links.sbatch", ["--export=NONE"], {}, "sbatch --export=NONE drops it: --export=SHAKEDOWN"),
                ("links.sbatch", [], {"PATH": f"{broken}:{os.environ['PATH']}"}, "python3, which starts the ranks")]:
            self.expect(self.submit(script, options=["--nodes=1", *options], **environ), 2, said)
        site = self.cluster.folder / "etc/shakedown.sh"
        site.symlink_to("/not/mounted.sh")
        self.addCleanup(site.unlink)
        self.expect(self.submit("links.sbatch", options=["--nodes=1"]), 2, "/etc/slurm/shakedown.sh: the site's settings cannot be read")

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
                    "0 GPUs, 2 expected (Slurm)", 'scontrol update nodename="n[1-2]" state=drain')


class FourNodes(Jobs):
    """Without GPUs, whose rates decide nothing."""
    OPTIONS = {"nodes": "n1 n2 n3 n4", "node": "CPUs=2 RealMemory=4000"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        show_environment(cls.cluster)

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
        # 3 for all nodes: jobs that share this machine's cores may be too noisy to be compared
        for expected, codes, said in [("n[1-4]", (0, 3), "4 jobs, 4 nodes\n"),
                                      ("n[1-6]", (3,), "4 jobs, 4 nodes; not measured: n[5-6]\n")]:
            table = subprocess.run([HOOKS / "compare_nodes", "--expect-nodes", expected, self.cluster.work / "runs"],
                                   capture_output=True, text=True)
            self.assertIn(table.returncode, codes, table)
            self.assertTrue(table.stdout.endswith(said), table)
        self.assertRegex(table.stdout, "all_reduce.* has the worst of 4, ")

    @long
    def test_a_partition_in_use_is_accepted_node_by_node(self):
        """n1 is in use at first; the first job of n2 is cancelled."""
        user = Job(self.cluster, self.cluster("sbatch", "--parsable", "--exclusive", "--nodelist=n1", "--wrap=sleep 600").strip())
        self.addCleanup(self.cluster, "scancel", user.number, code=None)
        user.wait_for(lambda: user.state == "RUNNING")
        campaign = [HOOKS / "rolling", "--output", self.cluster.work / "campaign", "--nodes", "n[1-2]"]
        options = ["--every", 1, "--sbatch", "--time=10", "--", "--quick", "--backend", "cpu", "--expect-gpus", 0]
        said = self.cluster(*campaign, "--once", *options, code=3)
        self.assertRegex(said, r"n1 +not yet +(allocated|mixed)")
        self.assertRegex(said, r"n2 +(waiting|running)")
        jobs = self.cluster.work / "campaign/rolling.tsv"
        noted = jobs.read_text()
        jobs.write_text("")  # as where slurmctld did not return the number
        said = self.cluster(*campaign, "--once", *options, code=3)
        self.assertRegex(said, r"n2 +(waiting|running)")
        self.assertNotIn("n2", jobs.read_text())
        jobs.write_text(noted + jobs.read_text())
        self.assertRegex(self.cluster(*campaign, "--output", self.cluster.work / "other", "--status", code=3), r"n2 +not yet")
        cancelled = Job(self.cluster, noted.split("\t")[1])
        self.assertGreater(int(cancelled.show("Nice")), 2**31 - 10)
        self.cluster("scancel", cancelled.number)
        cancelled.wait()
        self.assertRegex(self.cluster(*campaign, "--once", *options, code=3), r"n2 +(waiting|running)")
        self.cluster("scancel", user.number)
        said = self.cluster(*campaign, *options, code=None)
        self.assertRegex(said, r"n1 +PASS")
        self.assertRegex(said, r"n2 +PASS")
        self.assertIn("2 nodes: 2 PASS", said)
        self.assertEqual(len(jobs.read_text().splitlines()), 3)
        # The next night, as in a scrontab.
        for path in (self.cluster.work / "campaign").glob("n*/*/acceptance.jsonl"):
            os.utime(path, (path.stat().st_mtime - 86400,) * 2)
        self.cluster(*campaign, "--days", 1, *options, code=None)
        said = self.cluster(*campaign, "--status", "--against", 7, code=None)
        for node in ("n1", "n2"):
            self.assertRegex(said, rf"{node}: rolling-\d+ compared with 1 result before: exit code [013]")
        self.cluster("pkill", "-x", "slurmctld")  # of ctl's own processes
        self.assertIn("Unable to contact slurm controller", self.cluster(*campaign, "--status", code=3))
        self.cluster("slurmctld")

    def test_a_job_that_is_over(self):
        """Its variables are still set: Open MPI takes it for a fault of the network."""
        stale = ["SLURM_JOB_ID=77", "SLURM_JOBID=77", "SLURM_JOB_NODELIST=n[1-2]", "SLURM_NODELIST=n[1-2]",
                 "SLURM_JOB_NUM_NODES=2", "SLURM_NNODES=2", "SLURM_TASKS_PER_NODE=1(x2)", "SLURM_NTASKS=2"]
        said = self.cluster("env", *stale, TREE / "launch/mpi", "hostname", code=3)
        self.assertIn("the job could not be started (Slurm: job 77 (SLURM_JOB_ID) is over: unset it", said)
        self.assertNotIn("network", said)

    def test_a_login_node_s_gpus_are_its_own(self):
        said = self.cluster("salloc", "--nodes=2", TREE / "launch/mpi", "-n", 2,
                            self.cluster.work / "shows/collective_perf", CUDA_VISIBLE_DEVICES="7")
        self.assertEqual(said.count("gpus= "), 2, said)


if __name__ == "__main__":
    unittest.main()
