"""The headline of results/report after a job of launch/mpi: of which record, and when (headline.txt)."""

import contextlib
import io
import json
import os
import pathlib
import shlex
import tempfile
import unittest
from unittest import mock

from tree import TREE
import transcript
from shakedown_launch import command
from shakedown_launch.mpi import RECORD, Headline, record_of  # noqa: F401, in headline.txt

HEAD = {"kind": "run", "program": "train", "started": "2026-11-21T16:14:04Z", "host": "n1", "hosts": ["n1"]}
STEP = {"kind": "step", "strategy": "ddp", "images_per_s": 1000, "world_size": 2}
END = {"kind": "end", "exit_code": 0}
SOAK, WINDOW = {**HEAD, "program": "soak"}, {"kind": "soak", "window": 0, "phase": "steady probes"}
MISMATCH = {"kind": "mismatch", "rank": 1, "host": "n2", "where": "core 0"}
WRONG = {"kind": "verdict", "verdict": "FAIL", "scope": "operation", "name": "broadcast", "cause": "wrong"}


def ended(code, **more):
    return {"kind": "end", "exit_code": code, **more}


class AfterAJob(unittest.TestCase):
    def after(self, line, *records, code=0, before=(), **how):
        """What is printed after a job with this line, in which RECORD is a file, that appended these to the record that the
        programs were to use."""
        with tempfile.TemporaryDirectory() as folder:
            path, out = pathlib.Path(folder, "RECORD"), io.StringIO()
            path.write_text("".join(json.dumps(record) + "\n" for record in before))
            headline = Headline(shlex.split(line.replace("RECORD", str(path))), **how)
            used = headline.environment()[RECORD]
            if records and used:
                with open(used, "a") as file:
                    file.write("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records))
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), \
                    mock.patch.object(command, "name", lambda: "launch/mpi"):
                headline.show(code)
            if used not in ("", str(path), "/nonexistent/record"):
                self.assertFalse(os.path.exists(used))
                used, text = "temporary", out.getvalue().replace(used, "TEMPORARY")
            else:
                text = out.getvalue().replace(f"{folder}/", "")
            return f"{used.removeprefix(f'{folder}/') or 'no record'}\n{text}".replace("\n\n", "\n")

    def test_cases(self):
        transcript.expressions(self, TREE / "tests/launch/headline.txt", {**globals(), "after": self.after})


if __name__ == "__main__":
    unittest.main()
