#!/usr/bin/env python3
"""The job scripts of launch/slurm on a two-node Slurm, as they are submitted by users, and what Slurm
does to a job. Run by tests/run; skipped where no cluster can be made."""

import unittest

from slurm_support import Cluster, TWO_GPUS, skip_where_impossible
from support import make_image_folder


TINY = ["--backend", "cpu", "--model", "tiny", "--image-size", 32]
LAUNCHERS = ("mpirun", "srun")


def setUpModule():
    skip_where_impossible()


def start(test_class, **options):
    """A cluster for all tests of a class."""
    cluster = Cluster(**options)
    test_class.addClassCleanup(cluster.down)
    cluster.up()
    return cluster


class Scripts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # n2 has fewer CPUs.
        cls.cluster = start(cls, conf="GresTypes=gpu", gres=TWO_GPUS,
                            node={"n1": "CPUs=4 RealMemory=8000 Gres=gpu:2",
                                  "n2": "CPUs=2 RealMemory=8000 Gres=gpu:2"})
        cls.images = cls.cluster.work / "images"
        make_image_folder(cls.images, 16)

    def submit(self, script, *arguments, launcher="mpirun", options=(), **environ):
        return self.cluster.submit(script, *arguments, options=["--nodes=2", *options],
                                   SHAKEDOWN_LAUNCHER=launcher, **environ)

    def succeeds(self, job):
        self.assertEqual(job.wait(), 0, job.log)

    def test_every_script_under_both_launchers(self):
        checks = {
            "collectives": ["--backend", "cpu", "-b", "1K", "-e", "4K", "-n", 2, "-w", 1],
            "compare": [*TINY, "--batch-size", 2, "--iterations", 2, "--warmup", 1, "--repeats", 1,
                        "--strategies", "ddp"],
            "soak": ["--backend", "cpu", "--minutes", 0.02, "--types", "fp32", "--loads", "products",
                     "--shape", "steady", "--size", 128]}
        jobs = [(name, launcher, self.submit(f"{name}.sbatch", *words, launcher=launcher,
                                             options=["--ntasks=3"]))
                for name, words in checks.items() for launcher in LAUNCHERS]
        for name, launcher, job in jobs:
            with self.subTest(name, launcher=launcher):
                self.succeeds(job)
                import sys; sys.stderr.write(f"{name} {launcher} {job.show('StartTime')} {job.show('EndTime')}\n")
                run, *_, end = job.records(name)
                self.assertEqual(run["world_size"], 3)
                self.assertEqual(run["hosts"], ["n1", "n1", "n2"])
                self.assertEqual(run["environment.SLURM_JOB_ID"], job.number)
                self.assertEqual(run["environment.SLURM_JOB_NODELIST"], "n[1-2]")
                self.assertEqual(end["exit_code"], 0)


if __name__ == "__main__":
    unittest.main()
