"""acceptance/evidence: what a run's record and end are found to be, and which machine answered for each node. Fails closed."""

import json
import pathlib
import tempfile
import unittest

from tree import TREE
import transcript
from acceptance_fakes import FakeFleet, FakeJudge, conduct, run_of as fake_run
from shakedown_launch import records
from shakedown_launch.acceptance import evidence, stages
from shakedown_launch.acceptance.model import FAIL, INCONCLUSIVE, PASS, UNKNOWN, WARN, Gpu, Run  # noqa: F401, in evidence.txt

HOSTS, GPUS = ["n1", "n1", "n2", "n2"], ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
HEAD = {"kind": "run", "run_id": "r", "program": "soak", "hosts": HOSTS, "gpu_uuids": GPUS}
END = {"kind": "end", "run_id": "r", "exit_code": 0}
OK = {"kind": "verdict", "scope": "job", "name": "soak", "verdict": PASS, "cause": "0 wrong"}


def run_of(code=0, nodes=("n1", "n2"), **other):
    return Run("soak", nodes, code, "2026-11-23T08:00:00Z", 1, "soak.jsonl", "soak.log", **other)


def ended(code):
    return {**END, "exit_code": code}


def verdict(scope, name, outcome, **other):
    return {"kind": "verdict", "scope": scope, "name": name, "verdict": outcome, "cause": "why",
            **other}


def of(*lines, run=None, head=HEAD):
    return evidence.findings(run or run_of(), [head, *lines])


def failed(scope, name):
    return verdict(scope, name, FAIL, **{"class": "HARDWARE", "action": "RMA"})


def silent(ranks):
    return {"kind": "failure", "run_id": "another's", "check": "no-answer", "ranks": ranks,
            "hosts": ["n2.site"] * len(ranks), "waited_s": 120}


WAITS = "rank 0 on n1: an all_reduce did not finish within 120 s (--timeout); no answer from rank 3 on n2"
RATE = {"metric": "memory/copy", "witness": "peers", "slow_looks": 3, "looks": 3}
DISPUTED = {"kind": "neighbour_check", "updates_checked": 5, "disputes": 1}
MISMATCH = {"kind": "mismatch", "rank": 2, "host": "n2", "load": "product bf16", "where": "tile 3,4",
            "cause": "the others contradict it", "capsule": "capsule.json"}


def text_of(found):
    """A line each: outcome, nodes, what people call it, check, class, cause, action, file."""
    return "\n".join(" ".join(filter(None, [
        each.outcome, ",".join(each.nodes), each.gpu, f"({each.subject})" * bool(each.subject), f"[{each.check}]",
        each.class_, f": {each.cause}", f"-> {each.action}" * bool(each.action), f"see {each.evidence}" * bool(each.evidence)
    ])).replace(" : ", ": ") for each in found) or "nothing"


class Findings(unittest.TestCase):
    def answer(self, given):
        """What evidence.txt's expression finds: of a text, as of a record's file."""
        found = eval(f"({given})", dict(NAMES))  # pylint: disable=eval-used
        if not isinstance(found, str):
            return text_of(found)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "record.jsonl")
            path.write_text(found)
            return text_of(evidence.findings(run_of(), records.read(path))).replace(folder, "FOLDER")

    def test_findings(self):
        transcript.check(self, TREE / "tests/launch/evidence.txt", self.answer)


A, B = ("w.1.foo", "boot-a"), ("w.2.foo", "boot-b")
ALONE = [("inventory", "n1", [A]), ("inventory", "n2", [B])]


def machines(*answered):
    """Of runs (stage, node or nodes, the machines that answered)."""
    runs = {fake_run(stage, nodes): [{"kind": "run", "hosts": [host for host, _ in of_run],
                                    "boot_ids": [boot for _, boot in of_run]}]
            for stage, nodes, of_run in answered}
    return evidence.wrong_machines(list(runs), runs.__getitem__)


NAMES = {name: value for name, value in globals().items() if name[:1] != "_"}


class Machines(unittest.TestCase):
    def test_no_further_stage_runs_on_them(self):
        class OneAnswers(FakeJudge):
            def records(self, run):
                return [{"kind": "run", "hosts": ["n1"], "boot_ids": ["a"]}]
        one = conduct(FakeFleet(["n1", "n2"]), judge=OneAnswers(), backend=stages.CPU)
        self.assertEqual({task.stage for task in one.fleet.tasks}, {"inventory"})
        self.assertEqual(set(one.left_out), {"n1", "n2"})


if __name__ == "__main__":
    unittest.main()
