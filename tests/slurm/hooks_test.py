#!/usr/bin/env python3
"""health_check, prolog and epilog of launch/slurm as Slurm calls them. Run by tests/run; skipped where
no cluster can be made."""

import re
import subprocess
import unittest

from slurm_support import HOOKS, TWO_GPUS, Cluster, skip_where_impossible
from support import wait_until


# Files in the cluster's configuration, such as broken_n2, let the checks of a node fail.
SITE = """
state_folder={folder}/state-$SLURMD_NODENAME
hook_log={folder}/log-$SLURMD_NODENAME
PATH=/etc/slurm/fakes:$PATH
prolog_options=(--backend cpu -n 1)
[[ ! -e /etc/slurm/broken_$SLURMD_NODENAME ]] || node_check_options=(--expect-gpus 4)
[[ ! -e /etc/slurm/wrong_$SLURMD_NODENAME ]] || prolog_options+=(--inject-fault product:0)
"""
SMI = """#!/bin/bash
[[ "$*" == --id=0,1\\ --query-gpu=index,memory.used* && -e /etc/slurm/used_$SLURMD_NODENAME ]] || exit 1
printf '0, 4\\n1, 2048\\n'
"""
# Of one second, slurmctld would never ask the nodes whether they respond.
CONF = f"""GresTypes=gpu
PrologFlags=Alloc
Prolog={HOOKS}/prolog
Epilog={HOOKS}/epilog
HealthCheckProgram={HOOKS}/health_check
HealthCheckInterval=2
HealthCheckNodeState=ANY"""
REASON = "shakedown:gpu-count: 0 GPUs, 4 expected"


def setUpModule():
    skip_where_impossible()


class Hooks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(conf=CONF, gres=TWO_GPUS, node="CPUs=2 RealMemory=8000 Gres=gpu:2")
        cls.addClassCleanup(cls.cluster.down)
        smi = cls.cluster.folder / "etc/fakes/nvidia-smi"
        smi.parent.mkdir()
        smi.write_text(SMI)
        smi.chmod(0o755)
        cls.cluster.set_site(SITE.format(folder=cls.cluster.folder))
        cls.cluster.up()

    def log(self, node):
        path = self.cluster.folder / f"log-{node}"
        return path.read_text() if path.exists() else ""

    def streak(self, node):
        """What the last health checks found, and how many of them."""
        found = (self.cluster.folder / f"state-{node}/streak").read_text().split()
        return (found[0], int(found[1])) if len(found) == 2 else ("", 0)

    def until_state(self, node, state):
        self.assertTrue(wait_until(lambda: re.search(state, self.cluster.node(node, "State"))),
                        f"{self.cluster.node(node, 'State')}: {self.log(node)}")

    def test_a_node_that_fails_twice_is_drained_until_it_passes_twice(self):
        broken = self.cluster.folder / "etc/broken_n2"
        broken.touch()
        self.until_state("n2", "DRAIN")
        self.assertIn(REASON, self.cluster.node("n2", "Reason"))
        self.assertGreaterEqual(self.log("n2").partition("state=drain")[0].count("gpu-count: 0 GPUs"), 2)
        self.assertEqual(self.cluster.node("n1", "State"), "IDLE")
        broken.unlink()
        self.until_state("n2", "^IDLE$")
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
        for option, said in [((), "gpu-count: 0 GPUs, 4 expected"), (("--print",), "would run: scontrol update nodename=n3 state=drain reason=shakedown:gpu-count")]:
            self.assertRegex(self.cluster("on", "n1", "env", "SLURMD_NODENAME=n3",
                                          HOOKS / "health_check", *option, code=1), said)

    def test_of_many_nodes_only_the_first_are_drained(self):
        for node in ("n1", "n2"):
            self.cluster("scontrol", "update", f"nodename={node}", "state=drain", f"reason={REASON}")
            self.addCleanup(self.cluster, "scontrol", "update", f"nodename={node}", "state=resume")
        self.mark("broken_n4")
        for said in ["gpu-count: 0 GPUs, 4 expected", "not drained: 2 nodes were within an hour"]:
            self.assertIn(said, self.cluster("on", "n1", "env", "SLURMD_NODENAME=n4", HOOKS / "health_check",
                                             code=1))

    def mark(self, name):
        path = self.cluster.folder / "etc" / name
        path.touch()
        self.addCleanup(path.unlink)

    def drained_by(self, node, *said):
        """Once its log has these, and the Epilog has ended."""
        self.assertTrue(wait_until(lambda: all(re.search(words, self.log(node)) for words in said)),
                        self.log(node))
        self.until_state(node, r"^IDLE\+DRAIN$")
        self.assertRegex(self.cluster.node(node, "Reason"), "^(Prolog|Epilog) error")
        self.cluster("scontrol", "update", f"nodename={node}", "state=resume")
        self.until_state(node, "^IDLE$")

    def test_a_job_s_gpus_are_tested_before_and_after_it(self):
        self.cluster("srun", "--nodes=2", "true")  # a CPU job
        for mark in ("used_n1", "wrong_n2"):
            self.mark(mark)
        jobs = [self.cluster("sbatch", "--parsable", f"--nodelist={node}", "--gpus-per-node=2",
                             "--wrap", "true").strip() for node in ("n1", "n2")]
        self.addCleanup(self.cluster, "scancel", *jobs)
        fails = f"on n2, job {jobs[1]}: launch/acceptance --prolog ended with 1: FAIL n2"
        self.drained_by("n2", f"prolog {fails}", f"epilog {fails}")
        self.drained_by("n1", f"epilog on n1, job {jobs[0]}: FAIL: memory is in use after the job: "
                        "GPU 1: 2048 MiB")
        self.assertIn("PENDING", self.cluster("squeue", "--noheader", "--format=%T", f"--jobs={jobs[1]}"))
        self.assertNotIn("prolog", self.log("n1"))

    def test_what_a_job_has_left_over(self):
        escapes = "(setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $! > left) & wait; sleep 0.3"
        job = self.cluster("sbatch", "--parsable", "--nodelist=n1", "--wrap", escapes).strip()
        self.drained_by("n1", f"epilog on n1, job {job}: FAIL: processes of the job still run: .* sleep")
        self.cluster("on", "n1", "kill", (self.cluster.work / "left").read_text().strip())

    def test_what_hangs_is_not_waited_for(self):
        script = f"source {HOOKS}/hook.sh; within 2 bash -c 'echo up; trap : TERM; sleep 60 & wait'; echo $? $said"
        result = subprocess.run(["bash", "-c", script, "hook"], capture_output=True, text=True, timeout=50)
        self.assertEqual(result.stdout, "124 up\n", result)


if __name__ == "__main__":
    unittest.main()
