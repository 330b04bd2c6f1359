"""History: an append-only file by serial, torn lines, concurrent jobs, repeat offenders (history.txt)."""

import dataclasses
import errno
import json
import os
import pathlib
import unittest
from unittest import mock

from tree import TREE
import acceptance_samples as samples
import transcript
from support import Folder
from shakedown_launch.acceptance.report import history


def changed(one, **changes):
    return dataclasses.replace(one, **changes)


def of(name, day, *found, gpu=None, gpus=8, **changes):
    """An acceptance of a node on this day of November, of which this was found; `gpu` replaces its GPU 3."""
    node = samples.node(name, gpus)
    node = changed(node, gpus=(*node.gpus[:3], gpu, *node.gpus[4:])) if gpu else node
    return samples.acceptance([samples.verdict(node, *(make(node) for make in found))],
                              **{"started": f"2026-11-{day:02}T08:00:00Z", **changes})


def failed(name, day, gpu=None, **changes):
    return of(name, day, samples.slow, gpu=gpu, **changes)


def whole(node, outcome="FAIL"):
    """What names no GPU."""
    return changed(samples.silent(node), outcome=outcome, check="shm", cause="no /dev/shm")


def once(node):
    return changed(samples.slow(node), outcome="WARN", cause="slow in 1 of 2 looks", slow_looks=1)


def gpu(name, **changes):
    """GPU 3 of a node."""
    return changed(samples.node(name).gpus[3], **changes)


class History(Folder):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "site" / "history.jsonl"

    def append(self, *acceptances):
        for each in acceptances:
            history.append(self.path, each)

    def offenders(self, acceptance):
        return [f"{each.outcome} {' '.join(each.nodes)} {each.subject}: {each.cause}"
                for each in history.offenders(self.path, acceptance)]

    def written(self, *acceptances):
        """The lines of the file, without what all have."""
        self.append(*acceptances)
        lines = map(json.loads, self.path.read_text().splitlines()) if self.path.exists() else ()
        return [" ".join(f"{key} {value};" for key, value in line.items() if key in (
            "node", "serial", "subject", "checks", "outcome", "injected")) for line in lines]

    def repeated(self, *acceptances):
        """Who of the last one failed before; whether its own lines are in the file already does not matter."""
        *before, now = acceptances
        self.append(*before)
        found = self.offenders(now)
        self.append(now)
        self.assertEqual(self.offenders(now), found)
        return found

    def answer(self, given):
        self.path.unlink(missing_ok=True)
        names = {**globals(), **vars(samples), "written": self.written, "repeated": self.repeated, "of": of, "gpu": gpu}
        return "\n".join(eval(f"({given})", names)) or "nothing"  # pylint: disable=eval-used

    def test_cases(self):
        transcript.check(self, TREE / "tests/launch/history.txt", self.answer)

    def test_lines_that_cannot_be_read_are_counted_and_kept(self):
        self.append(failed("n1", 9))
        with open(self.path, "ab") as file:
            file.write(b'{"format": "other"}\n[]\n\xff\n' + b"[" * 5000 + b'\n{"format": "shake')
        self.append(failed("n1", 10))  # begins a line of its own
        repeat, skipped = self.offenders(failed("n1", 20))
        self.assertIn(": 3rd finding", repeat)
        self.assertRegex(skipped, "WARN  history: 5 lines of .*history.jsonl skipped: not readable")
        self.assertIn(b'{"format": "shake\n', self.path.read_bytes())
        self.path = self.folder
        self.assertEqual(self.offenders(failed("n1", 3)), [f"WARN  history: {self.folder} cannot be read: Is a directory"])

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
        self.assertEqual(len(self.path.read_text().splitlines()), 81)

    def test_file_systems_without_locks_and_locks_that_hang(self):
        for error in (errno.ENOLCK, errno.EAGAIN):
            with mock.patch.object(history.fcntl, "flock", side_effect=OSError(error, "")), \
                    mock.patch.object(history, "LOCK_S", 0):
                self.append(failed("n1", 3))
        self.assertEqual(len(self.path.read_text().splitlines()), 2)

    def test_a_full_disk_is_reported(self):
        self.path = pathlib.Path("/dev/full")
        with self.assertRaises(OSError) as raised:
            self.append(failed("n1", 3))
        self.assertEqual(raised.exception.errno, errno.ENOSPC)


if __name__ == "__main__":
    unittest.main()
