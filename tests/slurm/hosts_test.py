#!/usr/bin/env python3
"""launch/mpi and launch/acceptance over ssh on hosts that are network namespaces, each with a name, an sshd and a /tmp
of its own. Run by tests/run; skipped where such hosts cannot be made."""

import re
import subprocess
import time
import unittest

from slurm_support import (Cluster, OnCluster, long, records_of_acceptance, skip_where_impossible,
                           verdicts_of_nodes)
from support import TREE, needs_cpu_backend, wait_until

LOST = "host n5 (was lost|could not be reached)"  # mpirun notices first, or ssh


def setUpModule():
    skip_where_impossible("ssh")


LATE_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec -= 3600;
  return status;
}
"""


class OnHosts(OnCluster):
    def bring_up(self, nodes):
        self.cluster = Cluster(nodes=nodes, service="ssh")
        self.addCleanup(self.cluster.down)
        self.cluster.up()

    def accept(self, *words, on="n1", ranks=1):
        self.output = self.cluster.work / self._testMethodName
        return self.cluster.start("on", on, TREE / "launch/acceptance", "--quick", "--backend", "cpu",
                                  "-n", ranks, "--output", self.output, *words,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def verdicts(self):
        return verdicts_of_nodes(self.output)


@needs_cpu_backend
class Machines(OnHosts):
    """The machine that answers is the one that was meant."""

    def test_hosts_that_differ_only_in_their_domain(self):
        self.bring_up("w.1.foo w.2.foo")
        line = ["on", "w.1.foo", TREE / "launch/mpi", "-n", 2, "--hosts"]
        self.assertEqual(sorted(self.cluster(*line, "w.1.foo,w.2.foo", "hostname").split()),
                         ["w.1.foo", "w.2.foo"])
        said = self.cluster(*line, "w.1.foo,w.2.foo", "node_check", "--backend", "cpu", code=None)
        self.assertRegex(said, r"nodes-alike +\d+ facts are the same on 2 nodes")
        said = self.cluster(*line, "w.1.foo,w.7.nowhere", "hostname", code=3)
        self.assertIn("host w.7.nowhere could not be reached", said)
        self.cluster("node", "w.2.foo", "kill")  # its sshd: to wait for a link that is down takes 15 s
        said = self.cluster(*line, "w.1.foo,w.2.foo", "hostname", code=3)
        self.assertIn("host w.2.foo could not be reached", said)
        out, _ = self.accept("--hosts", "w.1.foo,w.2.foo", on="w.1.foo").communicate(timeout=120)
        self.assertEqual(self.verdicts()["w.2.foo"]["verdict"], "INCONCLUSIVE", out)
        self.assertIn("host w.2.foo could not be reached", self.verdicts()["w.2.foo"]["cause"])

    def test_two_names_of_one_machine(self):
        self.bring_up("n1 n2")
        with (self.cluster.folder / "hosts").open("a") as hosts:
            hosts.write("10.77.0.1 n1-ib\n")
        line = ["on", "n1", TREE / "launch/mpi", "-n", 2, "--hosts", "n1,n1-ib"]
        said = self.cluster(*line, "collective_perf", "--backend", "cpu", "--max-bytes", "1K", code=3)
        self.assertIn("2 hosts were requested, and 1 answered: n1;", said)
        out, _ = self.accept("--hosts", "n1,n1-ib").communicate(timeout=120)
        self.assertIn("one machine, n1, answered for n1,n1-ib", out)
        self.assertEqual({each["verdict"] for each in self.verdicts().values()}, {"INCONCLUSIVE"}, out)

    def test_two_machines_with_one_name(self):
        self.bring_up("n1 n2")
        for node in ("n1", "n2"):
            self.cluster("on", node, "hostname", "localhost.localdomain")
        line = ["on", "n1", TREE / "launch/mpi", "-n", 2, "--hosts", "n1,n2"]
        for program in ("link_matrix", "node_check"):
            self.assertIn("ranks 0 and 1 are on two machines with the host name localhost.localdomain: give each",
                          self.cluster(*line, program, "--backend", "cpu", code=2))

    @long
    def test_a_corrupt_collective_is_of_one_node_of_two(self):
        self.bring_up("n1 n2")
        process = self.accept("--hosts", "n1,n2", "--inject-fault", "collective:3", ranks=2)
        out, _ = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 1, out)
        # Of two nodes that share cores none is right where their rates differ by far: INCONCLUSIVE.
        self.assertEqual({name: each["verdict"] == "FAIL" for name, each in self.verdicts().items()},
                         {"n1": False, "n2": True}, out)
        found = [line for line in records_of_acceptance(self.output) if line["kind"] == "verdict" and "stage" in line
                 and line["verdict"] == "FAIL"]
        self.assertEqual({(*line["nodes"], line["subject"]) for line in found}, {("n2", "rank 1")})
        self.assertEqual({line["stage"] for line in found}, {"node_check", "soak"})
        self.assertEqual(self.verdicts()["n2"]["class"], "HARDWARE")
        self.assertIn("isolation: 1 test in 1 round", out)


@needs_cpu_backend
class Hosts(OnHosts):
    """n1 and n2 are good, n3 refuses ssh, on n4 the programs are missing, n6 does not let this user in,
    and nobody knows n9."""

    def setUp(self):
        self.bring_up("n1 n2 n3 n4 n5 n6")
        self.cluster("node", "n3", "kill")
        self.cluster("on", "n4", "mount", "-t", "tmpfs", "none", TREE)
        self.cluster("on", "n6", "mount", "--bind", "/dev/null",
                     self.cluster.folder / "etc/authorized_keys")

    def test_a_job_names_the_host_that_it_lacks(self):
        line = ["on", "n1", TREE / "launch/mpi", "-n", 2, "--hosts"]
        program = [TREE / "bin/node_check", "--passive"]
        for node, cause in [("n3", "host n3 could not be reached: Connection refused"),
                            ("n4", f"rank 1 on n4: {TREE}/bin/node_check is not there or cannot be"),
                            ("n6", "host n6 could not be reached: Permission denied"),
                            ("n9", "host n9 could not be reached: ")]:
            self.assertIn(cause, self.cluster(*line, f"n1,{node}", *program, code=3))
        process = self.cluster.start(*line, "n1,n5", "sleep", 300, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT)
        self.addCleanup(process.kill)
        self.assertTrue(wait_until(lambda: "sleep 300 " in self.cluster.processes("n5")))
        self.cluster("node", "n5", "off")
        out, _ = process.communicate(timeout=40)
        self.assertEqual(process.returncode, 3)
        self.assertRegex(out, LOST)
        self.assert_nothing_runs("n1", "n4")

    def test_a_host_whose_clock_is_an_hour_behind_is_named(self):
        shim = self.cluster.work / "clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", shim, "-", "-ldl"], input=LATE_CLOCK, check=True,
                       text=True)
        late = f"[[ $(hostname) != n2 ]] || export LD_PRELOAD={shim}; exec {TREE}/bin/node_check"
        said = self.cluster("on", "n1", TREE / "launch/mpi", "-n", 2, "--hosts", "n1,n2", "bash", "-c", late, code=1)
        self.assertRegex(said, r"FAIL +nodes-alike +n1: the clock is 3[56]\d\d\.\d s ahead of that of n2")

    @long
    def test_a_host_whose_ssh_hangs(self):
        self.cluster("on", "n2", "kill", "-STOP", (self.cluster.folder / "n2/sshd.pid").read_text().strip())
        start = time.monotonic()
        said = self.cluster("on", "n1", TREE / "launch/mpi", "-n", 2, "--hosts", "n1,n2", "hostname", code=3)
        self.assertIn("host n2 could not be reached", said)
        self.assertLess(time.monotonic() - start, 30)

    def lose(self, hosts, how, when, *words, code=3):
        """What an acceptance of the hosts prints; n5 goes off, or its link, as the file `when` of its output is there."""
        process = self.accept("--hosts", hosts, *words)
        self.addCleanup(process.kill)
        path = self.output / when
        wait_until(lambda: path.exists() and (path.suffix == ".log" or path.stat().st_size), 90)
        self.cluster("node", "n5", how)
        out, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, code, out)
        return out

    def are(self, out, **expected):
        """{node: (verdict, class, what its cause matches)}"""
        verdicts = self.verdicts()
        for node, (outcome, class_, cause) in expected.items():
            with self.subTest(node):
                found = verdicts[node]
                self.assertEqual((found["verdict"], found.get("class")), (outcome, class_), out)
                self.assertTrue(re.search(cause, found.get("cause", "")), out)
        self.assert_nothing_runs("n1", "n2")

    @long
    def test_each_host_has_its_own_verdict(self):
        """n2 computes wrong products, n5 loses its power while it works."""
        out = self.lose("n1,n2,n3,n4,n5,n6,n9", "off", "compute/n5.jsonl", "--inject-fault", "product:1", code=1)
        missed = "INCONCLUSIVE", "INFRASTRUCTURE"
        self.are(out, n1=("PASS", None, ""), n2=("FAIL", "HARDWARE", "wrong"),
                 n3=(*missed, "host n3 could not be reached: Connection refused"),
                 n4=("INCONCLUSIVE", None, "bin/node_check is not there or cannot be executed"),
                 n5=(*missed, LOST), n6=(*missed, "host n6 could not be reached: Permission denied"),
                 n9=(*missed, "host n9 could not be reached: "))
        self.assertIn("soak", self.verdicts()["n1"]["stages"])
        self.assert_nothing_runs("n4")

    @long
    def test_a_host_whose_link_is_cut_while_it_works(self):
        out = self.lose("n1,n2,n5", "cut", "compute/n5.jsonl")
        self.are(out, n1=("PASS", None, ""), n2=("PASS", None, ""), n5=("INCONCLUSIVE", "INFRASTRUCTURE", LOST))
        left = [line for line in self.cluster.processes("n5") if not re.match("sshd: |orted ", line)]
        self.assertEqual(left, [])  # its connections end when the kernel gives them up

    @long
    def test_a_host_that_is_lost_while_hosts_are_tested_together(self):
        out = self.lose("n1,n2,n5", "off", "all_reduce/round-0-group-0.log")
        self.are(out, n1=("PASS", None, ""), n2=("PASS", None, ""),
                 n5=("INCONCLUSIVE", "INFRASTRUCTURE", "was lost, and did not answer again"))
        rounds = sorted(path.name for path in (self.output / "all_reduce").glob("round-*.log"))
        self.assertEqual(rounds, ["round-0-group-0.log", "round-1-group-0.log"])


if __name__ == "__main__":
    unittest.main()
