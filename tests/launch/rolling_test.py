"""launch/slurm/rolling: which nodes get a job, what is known of each. sinfo, squeue and sbatch are scripts."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tests/programs"))
import report_records  # noqa: E402

FAKES = {
    "sinfo": "cat $FAKE/nodes",
    "squeue": "cat $FAKE/queue",
    "sbatch": 'n=$(($(cat $FAKE/count) + 1)); echo $n >$FAKE/count; echo "$SHAKEDOWN_RUNS $*" >>$FAKE/submitted; '
              'echo "$n|PENDING" >>$FAKE/queue; echo $n'}


class Rolling(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.fake = pathlib.Path(folder.name)
        self.output = self.fake / "campaign"
        for name, text in FAKES.items():
            path = self.fake / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        self.queue("")
        (self.fake / "count").write_text("0\n")
        self.nodes(n1="allocated", n2="idle", n3="drained", n4="idle", n5="mixed")

    def nodes(self, **states):
        (self.fake / "nodes").write_text("".join(f"{name}|{state}|{'broken fan' if state == 'drained' else 'none'}\n"
                                                 for name, state in states.items()))

    def queue(self, text):
        (self.fake / "queue").write_text(text)

    def result(self, node, job, verdict, cause="", ended=True, code=0):
        folder = self.output / node / f"rolling-{job}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [{"kind": "run"}, {"kind": "verdict", "scope": "node", "name": node, "verdict": verdict, "cause": cause, "stages": ["x"]}]
        lines += [{"kind": "end", "exit_code": code}] if ended else []
        (folder / "acceptance.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def night(self, node, job, busbw):
        """A result with a rate."""
        self.result(node, job, "PASS")
        folder = self.output / node / f"rolling-{job}"
        rate = report_records.collective(2**20, 1e6 / busbw)
        head = report_records.header(program="collective_perf", host=node, hosts=[node] * 4, started=f"2026-11-{job + 1:02}T02:00:00Z")
        (folder / "collectives.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (
            head, rate, {"kind": "end", "exit_code": 0})))
        os.utime(folder / "acceptance.jsonl", (job, job))

    def run_it(self, *words, code=3):
        done = subprocess.run([TREE / "launch/slurm/rolling", "--output", self.output, "--partition", "gpu", *words],
                              env={**os.environ, "FAKE": str(self.fake), "PATH": f"{self.fake / 'bin'}:{os.environ['PATH']}"},
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        rows = [line.split() for line in done.stdout.splitlines()]
        return done, {row[0]: " ".join(row[1:]) for row in rows[1:-1]}

    def submitted(self):
        try:
            return [line.split("--nodelist ")[1].split()[0] for line in (self.fake / "submitted").read_text().splitlines()]
        except OSError:
            return []

    def test_idle_nodes_first_and_no_more_at_a_time_than_wanted(self):
        _, rows = self.run_it("--once", "--most", "3", "--sbatch", "--qos=low --time=60", "--", "--full")
        self.assertEqual(self.submitted(), ["n2", "n4"])
        self.assertEqual(rows["n3"], "not available drained: broken fan")
        self.assertEqual((rows["n1"], rows["n2"]), ("not yet allocated", "waiting idle"))
        line = (self.fake / "submitted").read_text().splitlines()[0]
        self.assertTrue(line.startswith(f"{self.output}/n2 "), line)
        for words in ("--nodes=1", "--partition gpu", "--nice=", "--requeue", "--qos=low --time=60 ", "acceptance.sbatch --full"):
            self.assertIn(words, line)
        # What is in use comes when no idle one is left, in the room that there is.
        self.run_it("--once", "--most", "3")
        self.assertEqual(self.submitted(), ["n2", "n4", "n1"])

    def test_it_goes_on_where_it_was(self):
        self.run_it("--once")
        self.queue("2|RUNNING\n")  # n2's job has ended
        self.result("n2", 1, "FAIL", "rank 0: wrong data")
        done, rows = self.run_it("--status", code=1)
        self.assertRegex(rows["n2"], r"FAIL \d{4}-\d\d-\d\d \d\d:\d\d rank 0: wrong data")
        self.assertEqual(rows["n4"], "running idle")
        self.assertIn("5 nodes: 2 not yet, 1 FAIL, 1 not available, 1 running", done.stdout)
        self.assertEqual(self.submitted(), ["n2", "n4"])

    def test_a_job_that_was_lost_is_submitted_again_but_not_for_ever(self):
        self.nodes(n2="idle")
        for expected in (1, 2, 3, 3):
            self.run_it("--once")
            self.assertEqual(len(self.submitted()), expected)
            self.queue("")
            self.result("n2", "cut", "PASS", ended=False) if expected == 1 else None
            self.result("n2", "cancelled", "INCONCLUSIVE", code=5) if expected == 2 else None
        _, rows = self.run_it("--status")
        self.assertIn("no result 3 jobs ended without one", rows["n2"])

    def test_a_job_that_waits_for_a_drained_node_takes_no_room(self):
        self.nodes(n1="idle", n2="allocated")
        self.run_it("--once", "--most", "1")
        self.nodes(n1="drained", n2="allocated")
        _, rows = self.run_it("--once", "--most", "1")
        self.assertEqual((self.submitted(), rows["n1"]), (["n1", "n2"], "not available drained: broken fan"))
        self.nodes(n1="idle", n2="allocated")  # it is back, and its job is still there
        _, rows = self.run_it("--once")
        self.assertEqual((self.submitted(), rows["n1"]), (["n1", "n2"], "waiting idle"))

    def test_all_nodes_pass(self):
        self.nodes(n1="idle", n2="idle")
        for number, node in enumerate(("n1", "n2")):
            self.result(node, number, "PASS")
        self.run_it(code=0)  # and ends
        self.assertEqual(self.submitted(), [])
        os.utime(self.output / "n2/rolling-1/acceptance.jsonl", (0, 0))
        self.run_it("--once", "--days", "30")
        self.assertEqual(self.submitted(), ["n2"])

    def test_a_slow_night_against_those_before(self):
        self.nodes(n1="idle", n2="idle")
        for job, busbw in enumerate([130, 100, 101, 100, 99, 100, 101, 100]):
            self.night("n1", job, busbw)
            self.night("n2", job, busbw)
        done, _ = self.run_it("--status", "--against", "6", code=0)
        self.assertIn("n1: rolling-7 compared with 6 results before: exit code 0\n", done.stdout)
        self.night("n2", 8, 80)
        done, _ = self.run_it("--status", "--against", "6", code=1)
        self.assertIn("n2: rolling-8 compared with 6 results before: exit code 1\n", done.stdout)
        self.assertRegex(done.stdout, r"all_reduce.* -20\.0 %.* REGRESSION")

    def test_usage(self):
        done, _ = self.run_it("--nodes", "n[1-9]", "--once", code=2)
        self.assertIn("Slurm does not know n[6-9]", done.stderr)
        for words, said in [(["--full"], "--full"), (["--nodes", "n[1-"], "--nodes n[1-: is not a list of nodes"),
                            (["--sbatch", "--qos=low -J mine"], "-J cannot be used: each node has one job"),
                            (["--", "--quick", "--hosts", "n1"], "--hosts cannot be used: each job accepts its own node")]:
            done, _ = self.run_it(*words, code=2)
            self.assertIn(said, done.stderr)
        self.run_it("--status")
        self.assertFalse(self.output.exists())
        (self.fake / "bin/sinfo").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
        done, _ = self.run_it()
        self.assertIn("Unable to contact slurm controller", done.stderr)

    def test_the_time_limit_before_the_first_job(self):
        for sbatch, words, needed in [("--time=10", ["--full"], "18 min 58 s, and each job has 10 min 0 s until its time limit: "
                                                                "request --time=00:25:00"),
                                      ("--qos=low -t 0:50", ["--quick"], "38 s, and each job has 50 s"),
                                      ("", ["--full", "--soak-minutes", "60"], "1 h 3 min, and each job has 30 min 0 s")]:
            done, _ = self.run_it("--once", *(["--sbatch", sbatch] if sbatch else []), "--", *words, code=2)
            self.assertIn(needed, done.stderr)
        self.run_it("--once", "--sbatch", "--time=1-0", "--", "--full", "--soak-minutes", "60")
        done, _ = self.run_it("--once", "--", "--ful", code=2)
        self.assertIn("unknown option --ful", done.stderr)


if __name__ == "__main__":
    unittest.main()
