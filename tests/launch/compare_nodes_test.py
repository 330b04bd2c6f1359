"""launch/slurm/compare_nodes: one table over the records of many nodes."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import tree  # noqa: F401 - what is imported below is in its folders
from shakedown_launch import command, compare_nodes


class Table(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enter(tempfile.TemporaryDirectory()))

    def enter(self, context):
        self.addCleanup(context.__exit__, None, None, None)
        return context.__enter__()

    def write(self, node, busbw, name=None, hosts=None, gpus=("a", "b"), **head):
        lines = [{"kind": "run", "run_id": node, "program": "collective_perf", "backend": "gpu",
                  "gpu": "NVIDIA H200", "hosts": hosts or [node, node], "gpu_uuids": gpus, **head},
                 {"kind": "metric", "run_id": node, "metric": "collective/all_reduce/busbw", "unit": "GB/s",
                  "scope": "node", "name": node, "ranks": [0, 1], "hosts": hosts or [node, node], "backend": "gpu",
                  "board": "ACME 1", "condition.bytes": "268435456", "look": 1, "check": "verified",
                  "outcome": "measured", "samples": [busbw * (1 + 0.001 * i) for i in (-2, -1, 0, 1, 2)]}]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (self.folder / f"{name or node}.jsonl").write_text(text)

    def compare(self, *paths):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = compare_nodes.main([str(path) for path in paths or [self.folder]])
        return code, output.getvalue()

    def test_a_slow_node_is_named(self):
        for number in range(1, 129):
            self.write(f"n{number:03}", 450 + number % 3)
        code, said = self.compare()
        self.assertIn("all_reduce 256 MiB: n003 has the worst of 128, 450.0 GB/s, ", said)
        self.assertEqual(code, 0, said)
        self.write("n017", 380)
        code, said = self.compare()
        self.assertEqual(code, 1, said)
        self.assertIn("n017 has the worst of 128, 380.0 GB/s, ", said)
        self.assertRegex(said, r"% slower than usual \(45\d\.\d, by peers\)")
        self.assertIn("FAIL n017", said)

    def test_what_cannot_be_compared_is_inconclusive(self):
        self.write("n1", 450)
        self.write("n3", 100, hosts=["n1", "n2"])  # of two nodes
        code, said = self.compare()
        self.assertEqual(code, 3)
        self.assertIn("no figure was compared", said)
        self.assertIn("n3.jsonl: has no figures of one node alone", said)
        for wrong in ([], ["nothing"]):
            with self.assertRaises(command.UsageError):
                compare_nodes.main(wrong)

    def test_two_nodes_that_differ_by_far_say_so(self):
        self.write("n1", 450)
        self.write("n2", 60)
        code, said = self.compare()
        self.assertEqual(code, 3)
        for node in ("n1", "n2"):
            self.assertIn(f"INCONCLUSIVE {node} node {node}: ", said)

    def test_nodes_that_were_not_measured_are_named(self):
        """Tasks of an array may share a node: 6 of them were on 4 nodes."""
        for number, node in enumerate(("n1", "n2", "n2", "n4", "n4", "n5.cluster")):
            self.write(node, 450 + number, name=f"task-{number}")
        code, said = self.compare()
        self.assertEqual((code, said.splitlines()[-1]), (0, "6 jobs, 4 nodes"))
        names = self.folder / "nodes"
        names.write_text("n[1-3]\nn4 n5\nn17\n")
        for expected in ("n[1-5],n17", names):
            code, said = self.compare("--expect-nodes", expected, *self.folder.glob("*.jsonl"))
            self.assertEqual((code, said.splitlines()[-1]), (3, "6 jobs, 4 nodes; not measured: n[3,17]"))
        self.assertEqual(self.compare("--expect-nodes", "n[1-2],n4", self.folder)[0], 0)
        self.write("n1", 300, name="task-0")  # what is slow stays a failure
        self.assertEqual(self.compare("--expect-nodes", names, self.folder)[0], 1)
        for wrong in ("n[a-b]", ""):
            with self.assertRaisesRegex(command.UsageError, "--expect-nodes"):
                self.compare("--expect-nodes", wrong, self.folder)

    def test_machines_of_one_host_name_are_no_result(self):
        """A slow one among them would be hidden by the last of that name."""
        for node in ("n1", "n2", "n3"):
            self.write(node, 450)
        for first, second, same in [
                ({"gpus": ["a", "b"]}, {"gpus": ["b", "c"]}, True), ({"gpus": ["a"]}, {"gpus": ["c"]}, False),
                ({"gpus": [], "boot_ids": ["x", "x"]}, {"gpus": [], "boot_ids": ["y", "y"]}, False),
                ({"gpus": ["a"], "boot_ids": ["x"]}, {"gpus": ["a"], "boot_ids": ["y"]}, True),  # booted again
                ({"gpus": []}, {"gpus": []}, True)]:
            self.write("localhost", 100, name="one", **first)
            self.write("localhost", 450, name="two", **second)
            code, said = self.compare()
            self.assertEqual((code, "2 machines, or boots of one, have the host name localhost" in said),
                             (0, False) if same else (3, True), said)

    def test_a_file_that_is_no_record_is_named(self):
        for number in range(1, 4):
            self.write(f"n{number}", 450)
        broken = self.folder / "broken.jsonl"
        broken.write_text("Nodes\n")
        with self.assertRaisesRegex(command.UsageError, f"{broken}: not a record.*line 1: no JSON"):
            self.compare()
        head = {"kind": "run", "program": "collective_perf", "hosts": ["n4"]}
        broken.write_text(f'{json.dumps(head)}\n{{"kind": "metric", "metric": "memory/copy"}}\n')
        code, said = self.compare()  # whose program was killed
        self.assertEqual((code, "broken.jsonl: has no figures" in said), (0, True), said)
        for text in ("", "\n\n"):  # of a job that was lost
            broken.write_text(text)
            code, said = self.compare()
            self.assertEqual((code, "broken.jsonl: has no figures" in said), (0, True), said)

    def test_a_path_that_cannot_be_read_is_named(self):
        link, folder = self.folder / "link.jsonl", self.folder / "folder"
        link.symlink_to("nothing")
        (folder / "x.jsonl").mkdir(parents=True)
        for path, wrong, why in [(link, link, "No such file or directory"),
                                 (self.folder, link, "No such file or directory"),
                                 (folder, folder / "x.jsonl", "Is a directory")]:
            with self.assertRaises(command.UsageError) as raised:
                self.compare(path)
            self.assertEqual(str(raised.exception), f"{wrong}: {why}")


if __name__ == "__main__":
    unittest.main()
