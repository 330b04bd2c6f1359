#!/usr/bin/env python3
"""launch/acceptance over ssh on hosts that are network namespaces, each with a name, an sshd and a /tmp
of its own. Run by tests/run; skipped where such hosts cannot be made."""

import json
import subprocess
import unittest

from slurm_support import Cluster, skip_where_impossible
from support import TREE, needs_cpu_backend, the_machine, wait_until


def setUpModule():
    skip_where_impossible("ssh")


@needs_cpu_backend
class Hosts(unittest.TestCase):
    NODES = "n1 n2 n3 n4 n5 n6"

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(nodes=cls.NODES, service="ssh")
        cls.addClassCleanup(cls.cluster.down)
        cls.cluster.up()

    def setUp(self):
        context = the_machine()
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def accept(self, *words):
        self.output = self.cluster.work / self._testMethodName
        return self.cluster.start("on", "n1", TREE / "launch/acceptance", "--quick", "--backend", "cpu",
                                  "-n", 1, "--output", self.output, *words,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def verdicts(self):
        """{node: its verdict's record}"""
        lines = map(json.loads, (self.output / "acceptance.jsonl").read_text().splitlines())
        return {line["name"]: line for line in lines if line["kind"] == "verdict"
                and line["scope"] == "node" and "stage" not in line}

    def assert_nothing_runs(self, *nodes):
        for node in nodes:
            self.assertTrue(wait_until(lambda: not self.cluster.processes(node), 30),
                            f"{node}: {self.cluster.processes(node)}")

    def test_each_host_has_its_own_verdict(self):
        """n1 is good, n2 computes wrong products, n3 refuses ssh, on n4 the programs are missing, n5
        loses its power while it works, n6 does not let this user in, and nobody knows n9."""
        self.cluster("node", "n3", "kill")
        self.cluster("on", "n4", "mount", "-t", "tmpfs", "none", TREE)
        self.cluster("on", "n6", "sh", "-c", f"mount --bind /dev/null {self.cluster.folder}/etc/authorized_keys")
        process = self.accept("--hosts", "n1,n2,n3,n4,n5,n6,n9", "--inject-fault", "product:1")
        self.addCleanup(process.kill)
        record = self.output / "compute/n5.jsonl"
        wait_until(lambda: record.exists() and record.stat().st_size, 60)
        self.cluster("node", "n5", "off")
        out, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, out)
        verdicts = self.verdicts()
        for node, outcome, class_, cause in [
                ("n1", "PASS", None, ""),
                ("n2", "FAIL", "HARDWARE", "wrong"),
                ("n3", "INCONCLUSIVE", "INFRASTRUCTURE", "host n3 could not be reached: Connection refused"),
                ("n4", "INCONCLUSIVE", None, "bin/node_check is not there or cannot be executed"),
                ("n5", "INCONCLUSIVE", "INFRASTRUCTURE", "host n5 was lost: it or its network link failed"),
                ("n6", "INCONCLUSIVE", "INFRASTRUCTURE", "host n6 could not be reached: Permission denied"),
                ("n9", "INCONCLUSIVE", "INFRASTRUCTURE", "host n9 could not be reached: Temporary failure")]:
            with self.subTest(node):
                found = verdicts[node]
                self.assertEqual((found["verdict"], found.get("class")), (outcome, class_), out)
                self.assertIn(cause, found.get("cause", ""))
        self.assertIn("soak", verdicts["n1"]["stages"])
        self.assert_nothing_runs("n1", "n2", "n4")

    def test_a_host_whose_link_is_cut_while_it_works(self):
        self.cluster("on", "n4", "sh", "-c", f"! mountpoint -q {TREE} || umount {TREE}")
        process = self.accept("--hosts", "n1,n2,n4")
        self.addCleanup(process.kill)
        record = self.output / "compute/n4.jsonl"
        wait_until(lambda: record.exists() and record.stat().st_size, 60)
        self.cluster("node", "n4", "cut")
        out, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 3, out)
        self.assertEqual([self.verdicts()[node]["verdict"] for node in ("n1", "n2", "n4")],
                         ["PASS", "PASS", "INCONCLUSIVE"], out)
        self.assertIn("host n4 was lost", self.verdicts()["n4"]["cause"])
        self.assert_nothing_runs("n1", "n2", "n4")


if __name__ == "__main__":
    unittest.main()
