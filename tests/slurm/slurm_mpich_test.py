#!/usr/bin/env python3
"""The job scripts with programs that are built with MPICH (tests/sites): by srun --mpi=pmi2, without an mpirun, and by
Hydra in the allocation. It lasts minutes: make slurm-test."""

import shutil
import sys
import unittest

import slurm_test
import slurm_training_test
from slurm_support import long, skip_where_impossible, verdicts_of_nodes
from support import TREE

sys.path.insert(0, str(TREE / "tests/sites"))
from sites import NotHere, Site  # noqa: E402


@long
class Mpich(slurm_training_test.Trainings):
    @classmethod
    def setUpClass(cls):
        skip_where_impossible()
        site = Site("mpich4")
        try:
            site.build()
        except NotHere as error:
            raise unittest.SkipTest(str(error)) from None
        cls.OPTIONS = {"environ": site.on_cluster}
        super().setUpClass()

    test_scripts = slurm_test.Scripts.test_every_script_under_both_launchers
    test_requeue = slurm_training_test.Requeued.test_a_signal_queues_it_again_and_it_continues

    def test_acceptance_by_srun(self):
        """Where no mpirun is."""
        folder = self.cluster.folder / "bin"
        folder.mkdir()
        for name in ("python3", "srun", "scontrol", "sinfo", "squeue", "mkdir", "dirname", "env"):
            (folder / name).symlink_to(shutil.which(name))
        self.cluster.set_site(f"PATH={folder}")
        self.addCleanup((self.cluster.folder / "etc/shakedown.sh").unlink)
        job = self.submit("acceptance.sbatch", "--quick", "--backend", "cpu", "-n", 1, launcher="srun",
                          SHAKEDOWN_SRUN_MPI="pmi2")
        self.assertEqual(job.wait(), 0, job.log)
        self.assertIn("started by srun", job.log)
        found = verdicts_of_nodes(self.cluster.work / f"runs/acceptance-{job.number}")
        self.assertEqual({node: line["verdict"] for node, line in found.items()}, {"n1": "PASS", "n2": "PASS"})


if __name__ == "__main__":
    unittest.main()
