"""launch/slurm/compare_nodes: one table over the records of many nodes (compare_nodes.txt)."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest
from unittest import mock

from tree import TREE
import transcript
from shakedown_launch import command, compare_nodes

HEAD = {"kind": "run", "program": "collective_perf", "backend": "gpu", "gpu": "NVIDIA H200"}
METRIC = {"kind": "metric", "metric": "collective/all_reduce/busbw", "unit": "GB/s", "scope": "node", "ranks": [0, 1],
          "backend": "gpu", "board": "ACME 1", "condition.bytes": "268435456", "look": 1, "check": "verified",
          "outcome": "measured"}


def of(node, busbw=450, hosts=None, gpus=("a", "b"), code=0, **head):
    """The record of an all_reduce on a node; code None: it did not come to its end."""
    hosts = hosts or [node, node]
    return [{**HEAD, "run_id": node, "hosts": hosts, "gpu_uuids": gpus, **head},
            {**METRIC, "run_id": node, "name": node, "hosts": hosts,
             "samples": [busbw * (1 + 0.001 * i) for i in (-2, -1, 0, 1, 2)]},
            *([] if code is None else [{"kind": "end", "run_id": node, "exit_code": code}])]


def nodes(*several):
    """{file: record} of nodes, or of (node, busbw)."""
    return {f"{at}": of(*(each if isinstance(each, tuple) else (each,))) for at, each in enumerate(several)}


GOOD = nodes("n1", "n2", "n3")


class Table(unittest.TestCase):
    def compare(self, files, *words):
        """What is printed of the files in a folder; of one that is a text, None (a link to nothing) or a folder too."""
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            for name, lines in files.items():
                path = pathlib.Path(folder, name if "." in name else f"{name}.jsonl")
                if lines is None:
                    path.symlink_to("nothing")
                elif lines == {}:
                    path.mkdir()
                else:
                    path.write_text(lines if isinstance(lines, str) else "".join(json.dumps(line) + "\n" for line in lines))
            out = io.StringIO()
            for context in (contextlib.redirect_stdout(out), contextlib.redirect_stderr(out),
                            mock.patch.object(command, "name", lambda: "compare_nodes")):
                stack.enter_context(context)
            try:
                code = compare_nodes.main([word.replace("FOLDER", folder) for word in words or ("FOLDER",)])
            except command.UsageError as error:
                code = f"refused: {error}"
            return f"{out.getvalue()}{code}".replace(f"{folder}/", "").replace(folder, "FOLDER")

    def test_cases(self):
        transcript.expressions(self, TREE / "tests/launch/compare_nodes.txt", {**globals(), "compare": self.compare})


if __name__ == "__main__":
    unittest.main()
