"""Reference files and figures for the tests of acceptance/references."""

import json
import pathlib
import tempfile
import unittest

from shakedown_launch.acceptance import references
from shakedown_launch.acceptance.model import Figure

ENTRY = {"metric": "compute/fp16/sustained", "value": 600, "unit": "TFLOP/s", "kind": "measured",
         "validated": True, "source": "here", "date": "2026-11-23", "data": "random",
         "conditions": {"size": 8192}}
BUSBW = {"metric": "collective/all_reduce/float32/67108864/out_of_place/busbw", "value": 431,
         "unit": "GB/s", "kind": "measured", "validated": True, "source": "here",
         "date": "2026-11-23", "path": {"algorithm": "NVLS", "transport": "nccl"}}
FILE = {"name": "good", "devices": ["NVIDIA H200"], "figures": [ENTRY, BUSBW]}
CONDITIONS = {"device": "NVIDIA H200", "size": 8192, "data": "random"}


def judge(*arguments, **options):
    """The findings."""
    return references.judge(*arguments, **options)[0]


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = str(pathlib.Path(folder.name, "reference.json"))

    def load(self, table):
        pathlib.Path(self.path).write_text(json.dumps(table))
        return references.load(self.path)[0]

    def reference(self, entry=ENTRY, changes=(), **head):
        return self.load({**FILE, "figures": [{**entry, **dict(changes)}], **head})

    def one(self, found, outcome, check=None, class_=None):
        self.assertEqual(len(found), 1, found)
        self.assertEqual(found[0].outcome, outcome, found[0])
        if check:
            self.assertEqual(found[0].check, check)
        if class_ is not None:
            self.assertEqual(found[0].class_, class_)
        return found[0]


def fp16(value, conditions=CONDITIONS, explains=(), gpu="GPU-a", node="n1"):
    return Figure("compute", (node,), ENTRY["metric"], value, "TFLOP/s", gpu=gpu,
                  conditions=dict(conditions), explains=dict(explains))


def path(**conditions):
    return Figure("path", ("n1",), "path/all_reduce/float32/67108864", 24, "channels",
                  conditions={"device": "NVIDIA H200", "transport": "nccl", **conditions})


def busbw(value, stage="collectives", **conditions):
    return Figure(stage, ("n1",), BUSBW["metric"], value, "GB/s",
                  conditions={"device": "NVIDIA H200", "transport": "nccl", **conditions})
