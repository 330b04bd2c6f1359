#!/usr/bin/env python3
"""health_check, prolog and epilog of launch/slurm as Slurm calls them. Run by tests/run; skipped where
no cluster can be made."""

import os
import re
import signal
import unittest

from slurm_support import HOOKS, TWO_GPUS, Cluster, skip_where_impossible
from support import the_machine, wait_until


# A file broken_n2 in the cluster's configuration lets the checks of n2 fail.
SITE = """
state_folder={folder}/state-$SLURMD_NODENAME
hook_log={folder}/log-$SLURMD_NODENAME
prolog_options=(--backend cpu -n 1)
[[ ! -e /etc/slurm/broken_$SLURMD_NODENAME ]] || node_check_options=(--expect-gpus 4)
[[ ! -e /etc/slurm/wrong_$SLURMD_NODENAME ]] || prolog_options+=(--inject-fault product:0)
"""
CONF = f"""GresTypes=gpu
PrologFlags=Alloc
Prolog={HOOKS}/prolog
Epilog={HOOKS}/epilog
HealthCheckProgram={HOOKS}/health_check
HealthCheckInterval=1
HealthCheckNodeState=ANY"""
REASON = "shakedown:gpu-count: 0 GPUs, 4 expected"


def setUpModule():
    skip_where_impossible()


class Hooks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(conf=CONF, gres=TWO_GPUS, node="CPUs=2 RealMemory=8000 Gres=gpu:2")
        cls.addClassCleanup(cls.cluster.down)
        cls.cluster.set_site(SITE.format(folder=cls.cluster.folder))
        cls.cluster.up()

    def setUp(self):
        context = the_machine()
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def log(self, node):
        path = self.cluster.folder / f"log-{node}"
        return path.read_text() if path.exists() else ""

    def streak(self, node):
        """What the last health checks found, and how many of them."""
        found = (self.cluster.folder / f"state-{node}/streak").read_text().split()
        return (found[0], int(found[1])) if len(found) == 2 else ("", 0)

    def until_state(self, node, state):
        self.assertTrue(wait_until(lambda: re.search(state, self.cluster.node(node, "State")), 20),
                        f"{self.cluster.node(node, 'State')}: {self.log(node)}")

    def test_a_node_that_fails_twice_is_drained_until_it_passes_twice(self):
        broken = self.cluster.folder / "etc/broken_n2"
        broken.touch()
        self.until_state("n2", "DRAIN")
        self.assertTrue(self.cluster.node("n2", "Reason").startswith(REASON))
        self.assertGreaterEqual(self.log("n2").partition("state=drain")[0].count("gpu-count: 0 GPUs"), 2)
        self.assertEqual(self.cluster.node("n1", "State"), "IDLE")
        broken.unlink()
        self.until_state("n2", "^IDLE(?!.*DRAIN)")
        self.assertIn("state=resume", self.log("n2"))

    def test_a_node_that_others_drained_is_left_to_them(self):
        self.cluster("scontrol", "update", "nodename=n1", "state=drain", f"reason={REASON}")
        before = self.streak("n1")[1]
        self.assertTrue(wait_until(lambda: self.streak("n1")[1] > before + 3))
        self.assertIn("DRAIN", self.cluster.node("n1", "State"))
        self.cluster("scontrol", "update", "nodename=n1", "state=resume")
        self.assertNotIn("scontrol", self.log("n1"))

    def test_print_only(self):
        broken = self.cluster.folder / "etc/broken_n3"
        broken.touch()
        self.addCleanup(broken.unlink)
        for said in ["gpu-count: 0 GPUs, 4 expected", "would run: scontrol update nodename=n3 state=drain reason=shakedown:gpu-count"]:
            self.assertRegex(self.cluster("on", "n1", "env", "SLURMD_NODENAME=n3",
                                          HOOKS / "health_check", "--print", code=1), said)

    def test_a_job_s_gpus_are_tested_before_and_after_it(self):
        self.cluster("srun", "--nodes=2", "true")  # a CPU job
        self.cluster("srun", "--nodes=1", "--gpus-per-node=2", "true")
        self.assertNotIn("prolog", self.log("n1"))
        wrong = self.cluster.folder / "etc/wrong_n2"
        wrong.touch()
        job = self.cluster("sbatch", "--parsable", "--nodelist=n2", "--gpus-per-node=2", "--wrap", "true")
        self.addCleanup(self.cluster, "scancel", job.strip())
        self.until_state("n2", "DRAIN")
        self.assertIn("Prolog error", self.cluster.node("n2", "Reason"))
        self.assertRegex(self.log("n2"), "prolog on n2, job .*: launch/acceptance --prolog ended with 1: FAIL n2")
        wrong.unlink()
        self.cluster("scontrol", "update", "nodename=n2", "state=resume")

    def test_what_a_job_has_left_over(self):
        escapes = "(setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $! > left) & wait; sleep 0.3"
        job = self.cluster("sbatch", "--parsable", "--nodelist=n1", "--wrap", escapes).strip()
        self.until_state("n1", "DRAIN")
        self.assertRegex(self.cluster.node("n1", "Reason"), "Epilog error")
        self.assertRegex(self.log("n1"), f"epilog on n1, job {job}: FAIL: processes of the job still run: .* sleep")
        self.cluster("on", "n1", "kill", (self.cluster.work / "left").read_text().strip())
        self.cluster("scontrol", "update", "nodename=n1", "state=resume")
        self.until_state("n1", "^IDLE(?!.*DRAIN)")


if __name__ == "__main__":
    unittest.main()
