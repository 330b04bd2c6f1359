#!/usr/bin/env python3
"""health_check, prolog and epilog of launch/slurm as Slurm calls them. Run by tests/run; skipped where
no cluster can be made."""

import re
import shutil
import unittest

from slurm_support import HOOKS, TWO_GPUS, Cluster, skip_where_impossible
from support import wait_until


# Files in the cluster's configuration, such as broken_n2, let the checks of a node fail.
SITE = """
state_folder={folder}/state-$SLURMD_NODENAME
hook_log={folder}/log-$SLURMD_NODENAME
PATH=/etc/slurm/fakes:$PATH
prolog_options=(--backend cpu -n 1) apart_seconds=0
driver_folder={folder}/driver cgroup_folder={folder}/cgroup-$SLURMD_NODENAME
[[ ! -e /etc/slurm/broken_$SLURMD_NODENAME ]] || node_check_options=(--expect-gpus 4)
[[ ! -e /etc/slurm/wrong_$SLURMD_NODENAME ]] || prolog_options+=(--inject-fault product:0)
"""
SMI = """#!/bin/bash
[[ "$*" == --id=0000:3b:00.0,0000:18:00.0\\ --query-gpu=pci.bus_id,memory.used* ]] || exit 1
[[ ! -e /etc/slurm/used_$(hostname) ]] || used=2048
printf '00000000:3B:00.0, 4\\n00000000:18:00.0, %d\\n' ${used-4}
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
        cls.cluster = Cluster("n1 n2 n3", conf=CONF, gres=TWO_GPUS, node="CPUs=2 RealMemory=8000 Gres=gpu:2")
        cls.addClassCleanup(cls.cluster.down)
        smi = cls.cluster.folder / "etc/fakes/nvidia-smi"
        smi.parent.mkdir()
        smi.write_text(SMI)
        smi.chmod(0o755)
        for address, minor in [("0000:18:00.0", 1), ("0000:3b:00.0", 0)]:
            place = cls.cluster.folder / "driver/gpus" / address
            place.mkdir(parents=True)
            (place / "information").write_text(f"Device Minor: \t {minor}\n")
        for node in ("n1", "n2"):  # the cluster's Slurm has none
            (cls.cluster.folder / f"cgroup-{node}/freezer/slurm_{node}").mkdir(parents=True)
        cls.cluster.set_site(SITE.format(folder=cls.cluster.folder))
        cls.cluster.up()

    def log(self, node):
        path = self.cluster.folder / f"log-{node}"
        return path.read_text() if path.exists() else ""

    def until_state(self, node, state):
        self.assertTrue(wait_until(lambda: re.search(state, self.cluster.node(node, "State"))),
                        f"{self.cluster.node(node, 'State')}: {self.log(node)}")

    def test_a_node_that_fails_twice_is_drained_until_it_passes_twice(self):
        broken = self.cluster.folder / "etc/broken_n2"
        broken.touch()
        self.until_state("n2", "DRAIN")
        self.assertIn(REASON, self.cluster.node("n2", "Reason"))
        self.assertEqual(self.log("n2").count("gpu-count: 0 GPUs, 4 expected (--expect-gpus) ->"), 1)
        self.assertEqual(self.cluster.node("n1", "State"), "IDLE")
        broken.unlink()
        self.until_state("n2", "^IDLE$")
        self.assertIn("state=resume", self.log("n2"))

    def check_on_n3(self, *options, code=1):
        """A health_check in addition to Slurm's, with notes of its own, which finds too few GPUs."""
        site = self.cluster.folder / "etc/other.sh"
        site.write_text("source /etc/slurm/shakedown.sh\nnode_check_options=(--expect-gpus 4)\n"
                        f"state_folder={self.cluster.folder}/state-other\n")
        return self.cluster("on", "n3", "env", "SLURMD_NODENAME=n3", f"SHAKEDOWN_SITE={site}",
                            HOOKS / "health_check", *options, code=code)

    def test_of_many_nodes_only_the_first_are_drained(self):
        for node in ("n1", "n2"):
            self.cluster("scontrol", "update", f"nodename={node}", "state=drain", f"reason={REASON}")
            self.addCleanup(self.cluster, "scontrol", "update", f"nodename={node}", "state=resume")
        for said in ["gpu-count: 0 GPUs, 4 expected", "not drained: 2 nodes were within an hour"]:
            self.assertIn(said, self.check_on_n3())
        shutil.rmtree(self.cluster.folder / "state-other")

    def test_settings_that_are_a_link_to_nothing(self):
        """Their health_action may be print."""
        said = self.cluster("on", "n3", "unshare", "-m", "bash", "-c", f"""
            mount -t tmpfs none /etc/slurm; ln -s /not/mounted.sh /etc/slurm/shakedown.sh
            for hook in health_check prolog epilog; do {HOOKS}/$hook; echo code $?; done""")
        self.assertEqual(re.findall(r"code (\d+)", said), ["3", "0", "0"], said)
        self.assertEqual(said.count("/etc/slurm/shakedown.sh: the site's settings cannot be read: nothing is checked"), 3, said)

    def mark(self, name):
        path = self.cluster.folder / "etc" / name
        path.touch()
        self.addCleanup(path.unlink)

    def drained_by(self, node, reason, *said):
        """Once its log has these, and the Epilog has ended."""
        self.assertTrue(wait_until(lambda: all(re.search(words, self.log(node)) for words in said)),
                        self.log(node))
        self.until_state(node, r"^IDLE\+DRAIN$")
        # health_check replaces "Prolog error" by what the prolog found.
        self.assertTrue(wait_until(lambda: self.cluster.node(node, "Reason").startswith("shakedown:")))
        self.assertRegex(self.cluster.node(node, "Reason"), reason)
        self.cluster("scontrol", "update", f"nodename={node}", "state=resume")
        self.until_state(node, "^IDLE$")

    def test_a_job_s_gpus_are_tested_before_and_after_it(self):
        self.cluster("srun", "--nodes=2", "true")  # a CPU job
        for mark in ("used_n1", "wrong_n2"):
            self.mark(mark)
        jobs = [self.cluster("sbatch", "--parsable", f"--nodelist={node}", "--gpus-per-node=2",
                             "--wrap", "true").strip() for node in ("n1", "n2")]
        self.addCleanup(self.cluster, "scancel", *jobs)
        self.drained_by("n2", "^shakedown:prolog: .*wrong", f"prolog on n2, job {jobs[1]}: FAIL: .*wrong")
        used = "in use after the job: GPU 00000000:18:00.0: 2048 MiB"
        self.drained_by("n1", f"^shakedown:epilog: {used}", f"epilog on n1, job {jobs[0]}: FAIL: {used}")
        self.assertIn("PENDING", self.cluster("squeue", "--noheader", "--format=%T", f"--jobs={jobs[1]}"))
        self.assertNotIn("prolog", self.log("n1"))
        self.assertNotIn("epilog", self.log("n2"))  # which tests nothing again

    def test_full_disks_change_nothing(self):
        """Neither the reason of the administrator, nor what is found: with a full /tmp all was drained anew, and
        resumed."""
        self.cluster("scontrol", "update", "nodename=n2", "state=drain", "reason=ADMIN: keep off")
        self.addCleanup(self.cluster, "scontrol", "update", "nodename=n2", "state=resume")
        folder = self.cluster.folder  # below /tmp itself
        site = (folder / "etc/shakedown.sh").read_text().replace(str(HOOKS), "/srv/launch/slurm")
        (folder / "etc/full.sh").write_text(site.replace(str(folder), "/mnt").replace("state-", "full-") +
                                            "node_check_options=(--expect-gpus 4)\n")
        said = self.cluster("on", "n2", "unshare", "-m", "bash", "-c", f"""
            mount --bind {folder} /mnt; mount --bind {HOOKS.parents[1]} /srv
            for full in /tmp /run; do
              mount -t tmpfs -o size=4k none $full; head -c 9999 /dev/zero >$full/zeros
              for each in 1 2 3; do
                SHAKEDOWN_SITE=/mnt/etc/full.sh SLURMD_NODENAME=n2 /srv/launch/slurm/health_check; echo code $?
              done
            done""")
        self.assertEqual(re.findall(r"code (\d+)", said), ["1", "1", "1", "3", "3", "3"], said)
        self.assertEqual(said.count("FAIL gpu-count: 0 GPUs, 4 expected"), 3, said)
        self.assertIn("INCONCLUSIVE: node_check ended with 3: error: --record /run/shakedown.", said)
        self.assertNotIn("scontrol", said)
        self.assertEqual(self.cluster.node("n2", "Reason").partition(" [")[0], "ADMIN: keep off", said)


if __name__ == "__main__":
    unittest.main()
