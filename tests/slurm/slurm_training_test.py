#!/usr/bin/env python3
"""Trainings and acceptance under Slurm, and what Slurm does to a job: requeued, cancelled, on lost nodes. Run by
tests/run; skipped where no cluster can be made."""

import unittest

from slurm_support import (LAUNCHERS, TINY, Cluster, Job, Jobs, long, records_of_acceptance, skip_where_impossible,
                           verdicts_of_nodes)
from support import TREE, make_image_folder, wait_until


def setUpModule():
    skip_where_impossible()


class Trainings(Jobs):
    def start(self, *words, launcher="mpirun", options=(), **environ):
        """A training without an end."""
        if not (self.cluster.work / "images").exists():
            make_image_folder(self.cluster.work / "images", 4)
        return self.submit("train.sbatch", *TINY, "--train-dir", "images", "--batch-size", 2, "--epochs",
                           1000000, "--checkpoint-minutes", 1e-6, *words, launcher=launcher,
                           options=["--nodes=2", "--ntasks-per-node=1", *options], **environ)

    def train(self, *words, **options):
        """One that has written a checkpoint, and its folder of checkpoints."""
        while True:
            job = self.start(*words, **options)
            folder = self.cluster.work / f"runs/train-{job.number}/checkpoints"
            job.wait_for(lambda: job.crashed or (folder / "checkpoint_latest.safetensors").exists())
            if not job.crashed:
                return job, folder

    def continue_(self, *jobs):
        """Trainings that are queued again."""
        self.assert_nothing_runs()
        for job in jobs:
            job.start_again()
        for job in jobs:
            job.wait_for(lambda: "continues /" in job.log)
            self.assertIn("restart 1", job.log)


class Requeued(Trainings):
    def test_acceptance(self):
        site = self.cluster.folder / "site.sh"
        site.write_text(f"source {TREE}/launch/slurm/site.sh\nacceptance_options=(--accept governor,nics)\n")
        job = self.submit("acceptance.sbatch", "--quick", "--backend", "cpu", "-n", 1, SHAKEDOWN_SITE=str(site))
        self.assertEqual(job.wait(), 0, job.log)
        output = self.cluster.work / f"runs/acceptance-{job.number}"
        self.assertEqual(set(verdicts_of_nodes(output)), {"n1", "n2"})
        self.assertEqual(records_of_acceptance(output)[0]["settings.accept"], "governor,nics")

    def test_a_signal_queues_it_again_and_it_continues(self):
        jobs, folders = zip(*(self.train("--resume", "none", launcher=launcher) for launcher in LAUNCHERS))
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

    def test_each_task_of_an_array_has_its_own_folder(self):
        job = self.start(options=["--nodes=1", "--ntasks=1", "--array=1-2"])
        runs = self.cluster.work / "runs"
        folders = [runs / f"train-{job.number}_{task}/checkpoints" for task in (1, 2)]
        job.wait_for(lambda: all((folder / "checkpoint_latest.safetensors").exists() for folder in folders))
        self.assertEqual(len({(folder / "checkpoint.lock").read_text() for folder in folders}), 2)
        # The job of the last task has the array's number.
        first, last = (Job(self.cluster, f"{job.number}_{task}") for task in (1, 2))
        self.cluster("scancel", "--signal=USR2", "--batch", last.number)
        last.wait_for(lambda: last.show("Restarts") == "1")
        self.assertEqual((first.state, first.show("Restarts")), ("RUNNING", "0"))
        self.cluster("scancel", job.number)

    def test_a_second_training_of_a_folder_is_refused(self):
        folder = self.cluster.work / "shared"
        one = ["--nodes=1", "--ntasks=1"]
        first = self.start(options=[*one, "--nodelist=n1"], CHECKPOINT_DIR=str(folder))
        first.wait_for((folder / "checkpoint_latest.safetensors").exists)
        second = self.start(options=[*one, "--nodelist=n2"], CHECKPOINT_DIR=str(folder))
        self.expect(second, 2, f"(job {first.number} of cluster ", "host n1, pid", "its heartbeat goes on")
        self.cluster("scancel", first.number)

    def test_a_training_that_is_not_named(self):
        self.expect(self.submit("train.sbatch", options=["--nodes=1"]), 2,
                    "give the training: --train-dir DIR --epochs N")

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
        self.assertRegex(job.log, r"the time limit leaves \d+ s, and the signal to stop comes up to 180 s before")
        job.wait_for(lambda: "is queued again" in job.log, 100)  # it comes at a tick of 30 s
        self.continue_(job)


@long
class Preempted(Trainings):
    """As in docs/slurm.md."""
    OPTIONS = {"conf": "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
                       "PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF\n"
                       "PartitionName=free Nodes=ALL PriorityTier=1 GraceTime=120"}

    def test_a_preempted_training_is_queued_again_and_continues(self):
        for launcher in LAUNCHERS:
            with self.subTest(launcher):
                job, _ = self.train(launcher=launcher, options=["--partition=free"])
                urgent = Job(self.cluster, self.cluster("sbatch", "--parsable", "--partition=urgent", "--exclusive", "--nodes=2",
                                                        "--wrap=sleep 5").strip())
                self.assertEqual(urgent.wait(60), 0, job.log)
                self.assertIn(f"job {job.number} was preempted and is queued again", job.log)
                if launcher == "srun":  # whose ranks alone are sent the signal
                    self.assertRegex(job.log, r"stops: SIGTERM|stopped by SIGTERM")
                    self.assertEqual(job.records("train")[-1]["exit_code"], 5)
                job.wait_for(lambda: "continues /" in job.log)
                self.assertIn("restart 1", job.log)
                self.cluster("scancel", job.number)
                job.wait()


@long
class Lost(Trainings):
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
        self.assertTrue(wait_until(ended), self.cluster.processes("n1"))  # mpirun's srun: half a minute


@long
class LostInAcceptance(Jobs):
    """Slurm gives up the node, by SlurmdTimeout, while the acceptance goes on."""
    OPTIONS = {"nodes": "n1 n2 n3"}

    def test_the_other_nodes_keep_their_verdicts(self):
        job = self.submit("acceptance.sbatch", "--quick", "--backend", "cpu", "-n", 1,
                          options=["--nodes=3"])
        output = self.cluster.work / f"runs/acceptance-{job.number}"
        record = output / "compute/n3.jsonl"
        job.wait_for(lambda: record.exists() and record.stat().st_size, 60)
        self.cluster("node", "n3", "off")
        self.assertEqual(job.wait(120), 3, job.log)
        found = verdicts_of_nodes(output)
        self.assertEqual([found[node]["verdict"] for node in ("n1", "n2", "n3")],
                         ["PASS", "PASS", "INCONCLUSIVE"], job.log)
        self.assertEqual(found["n3"]["class"], "INFRASTRUCTURE")
        self.assertRegex(found["n3"]["cause"], "host n3 (was lost|could not be reached)")
        self.assertIn("soak", found["n1"]["stages"])
        self.assertNotIn("soak", found["n3"]["stages"])
        self.assert_nothing_runs("n1", "n2")


if __name__ == "__main__":
    unittest.main()
