"""History: an append-only file by serial, torn lines, concurrent jobs, repeat offenders."""

import dataclasses
import errno
import json
import os
import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import acceptance_samples as samples  # noqa: E402
from support import Folder  # noqa: E402
from shakedown_launch.acceptance.report import history  # noqa: E402

DAYS = {day: f"2026-11-{day:02}T08:00:00Z" for day in range(1, 31)}


def failed(name, day, gpu=None, **changes):
    """An acceptance in which GPU 3 of a node is slow; `gpu` replaces it."""
    of = samples.node(name)
    if gpu:
        of = dataclasses.replace(of, gpus=(*of.gpus[:3], gpu, *of.gpus[4:]))
    return samples.acceptance([samples.verdict(of, samples.slow(of))], started=DAYS[day], **changes)


def passed(name, day, gpu=None):
    return dataclasses.replace(failed(name, day, gpu), verdicts=tuple(
        samples.verdict(each.node) for each in failed(name, day, gpu).verdicts))


class History(Folder):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "site" / "history.jsonl"

    def append(self, *acceptances):
        for each in acceptances:
            history.append(self.path, each)

    def lines(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def offenders(self, acceptance):
        found = history.offenders(self.path, acceptance)
        self.assertEqual({each.outcome for each in found} - {"WARN"}, set())
        return [(each.nodes, each.gpu, each.cause) for each in found]

    def test_a_line_per_part_that_failed(self):
        of = samples.node("n7")
        whole = dataclasses.replace(samples.slow(of), gpu="", subject="", cause="no /dev/shm")
        self.append(samples.acceptance(
            [samples.verdict(of, samples.slow(of), samples.corrupt(of, 3), whole)]), samples.clean())
        gpu, node = self.lines()
        self.assertEqual((gpu["serial"], gpu["uuid"], gpu["node"], gpu["time"]),
                         (of.gpus[3].serial, of.gpus[3].uuid, "n7", samples.STARTED))
        self.assertEqual(gpu["checks"], [samples.FP16, "soak-products"])
        self.assertEqual((node["node"], node["cause"]), ("n7", "no /dev/shm"))
        self.assertNotIn("serial", node)

    def test_what_is_no_failure_is_not_written(self):
        of = samples.node("n7")
        self.append(samples.acceptance([samples.verdict(of, samples.silent(of),
                                                        samples.warned(of))]))
        self.assertFalse(self.path.exists())
        self.assertEqual(self.offenders(failed("n7", 3)), [])  # nor is there a file to read

    def test_what_was_slow_at_first_is_remembered(self):
        of = samples.node("n7")
        once = dataclasses.replace(samples.slow(of), outcome="WARN", cause="slow in 1 of 2 looks", slow_looks=1)
        for day in (3, 4):
            self.append(samples.acceptance([samples.verdict(of, once)], started=DAYS[day]))
        self.assertEqual([line["outcome"] for line in self.lines()], ["WARN"] * 2)
        (_, gpu, cause), = self.offenders(passed("n7", 20))
        self.assertEqual(gpu, of.gpus[3].uuid)
        self.assertRegex(cause, "^passed now, 2 findings .*slow in 1 of 2 looks")

    def test_third_finding_in_the_window(self):
        self.append(failed("n1", 2), failed("n1", 9))
        for before in (False, True):  # the order of append and offenders does not matter
            if before:
                self.append(failed("n1", 20))
            (nodes, gpu, cause), = self.offenders(failed("n1", 20))
            self.assertEqual((nodes, gpu), (("n1",), samples.node("n1").gpus[3].uuid))
            self.assertRegex(cause, "^3rd finding in 30 days, on n1; before on 2026-11-09: 7 % slow")
        self.assertEqual(history.offenders(self.path, failed("n1", 20))[0].subject,
                         "GPU 3, serial 1650000000103")
        self.assertEqual(self.offenders(failed("n2", 20)), [])
        self.assertRegex(self.offenders(passed("n1", 20))[0][2], "^passed now, 2 findings")

    def test_the_same_gpu_came_back(self):
        moved = samples.node("n3").gpus[3]
        self.append(failed("n3", 9))
        other_slot = dataclasses.replace(moved, index=6)
        for gpu in (other_slot, dataclasses.replace(other_slot, uuid="GPU-other"),
                    dataclasses.replace(other_slot, serial="[N/A]")):
            (nodes, uuid, cause), = self.offenders(passed("n17", 20, gpu))
            self.assertEqual((nodes, uuid), (("n17",), gpu.uuid))
            self.assertIn("on n3: the same GPU came back on another node", cause)
            (_, _, cause), *_ = [each for each in self.offenders(failed("n17", 20, gpu))]
            self.assertIn("2nd finding in 30 days, on n3, n17: the same GPU came back", cause)

    def test_no_offence(self):
        def bare(name):  # every virtual GPU has serial 0
            return dataclasses.replace(samples.node(name).gpus[3], serial="0")
        for before, now in [(failed("n1", 9), passed("n1", 20)),  # repaired
                            (failed("n1", 9, bare("n1")), failed("n2", 20, bare("n2"))),
                            (dataclasses.replace(failed("n1", 1), started="2026-10-01T00:00:00Z"), failed("n1", 20)),
                            (failed("n1", 9, settings={"inject_fault": "slow:3"}), failed("n1", 20))]:
            self.append(before)
            self.assertEqual(self.offenders(now), [])
            injected = self.lines()[0].get("injected")
            self.path.unlink()
        self.assertEqual(injected, "inject_fault slow:3")

    def test_nodes_by_name(self):
        of = samples.node("cpu1", gpus=0)
        whole = dataclasses.replace(samples.silent(of), outcome="FAIL")
        for day in (3, 4):
            self.append(samples.acceptance([samples.verdict(of, whole)], started=DAYS[day]))
        (nodes, gpu, cause), = self.offenders(
            samples.acceptance([samples.verdict(of, whole)], started=DAYS[5]))
        self.assertEqual((nodes, gpu), (("cpu1",), ""))
        self.assertRegex(cause, "^3rd finding")

    def test_lines_that_cannot_be_read_are_counted_and_kept(self):
        self.append(failed("n1", 9))
        with open(self.path, "ab") as file:
            file.write(b'{"format": "other"}\n[]\n\xff\n' + b"[" * 5000 + b'\n{"format": "shake')
        self.append(failed("n1", 10))  # begins a line of its own
        found = self.offenders(failed("n1", 20))
        self.assertRegex(found[0][2], "^3rd finding")
        self.assertRegex(found[1][2], "^5 lines of .*history.jsonl skipped: not readable")
        self.assertIn(b'{"format": "shake\n', self.path.read_bytes())

    def test_concurrent_appends(self):
        self.append(failed("n0", 1))
        children = []
        for job in range(4):
            child = os.fork()
            if not child:
                try:
                    for i in range(20):
                        self.append(failed(f"n{job}", i + 1))
                    os._exit(0)
                finally:
                    os._exit(1)
            children.append(child)
        self.assertEqual([os.waitpid(child, 0)[1] for child in children], [0] * 4)
        self.assertEqual(len(self.lines()), 81)

    def test_file_systems_without_locks_and_locks_that_hang(self):
        for error in (errno.ENOLCK, errno.EAGAIN):
            with mock.patch.object(history.fcntl, "flock", side_effect=OSError(error, "")), \
                    mock.patch.object(history, "LOCK_S", 0):
                self.append(failed("n1", 3))
        self.assertEqual(len(self.lines()), 2)

    def test_a_file_that_cannot_be_read_is_reported(self):
        found, = history.offenders(self.folder, failed("n1", 3))
        self.assertEqual(found.cause, f"{self.folder} cannot be read: Is a directory")

    def test_a_full_disk_is_reported(self):
        self.path = pathlib.Path("/dev/full")
        with self.assertRaises(OSError) as raised:
            self.append(failed("n1", 3))
        self.assertEqual(raised.exception.errno, errno.ENOSPC)

    def test_ordinals(self):
        self.assertEqual([history.ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 112)],
                         ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th"])


if __name__ == "__main__":
    unittest.main()
