"""What stands for nodes and judge in the tests of launch/acceptance."""

import json
import pathlib
import tempfile
import unittest
import unittest.mock

import tree  # noqa: F401 - what is imported below is in its folders
from shakedown_launch.acceptance import judge, stages
from shakedown_launch.acceptance.campaign import campaign
from shakedown_launch.acceptance.model import FAIL, INCONCLUSIVE, PASS, Facts, Node, Run, worst


def run_of(stage, nodes, code=0, record="", **more):
    nodes = (nodes,) if isinstance(nodes, str) else tuple(nodes)
    return Run(stage, nodes, code, "2026-11-23T00:00:00Z", 1.0, record or f"{stage}/r.jsonl",
               f"{stage}/r.log", **more)


class FakeFleet:
    """`codes(task)`: how a job ends; `lost(task)`: the hosts lost in it, where there are some."""

    def __init__(self, nodes, codes=lambda task: 0, lost=lambda task: ()):
        self.nodes, self.tasks, self._codes, self._lost = list(nodes), [], codes, lost

    def is_here(self, name):
        return False

    def folder(self, name):
        return f"out/{name}"

    def run(self, tasks, tick):
        self.tasks += tasks
        return [run_of(task.stage, task.nodes, 3 if self._lost(task) else self._codes(task), round=task.round,
                       lost=tuple((name, f"host {name} was lost") for name in self._lost(task)))
                for task in tasks]


class FakeJudge:
    def __init__(self, gpus=0, findings=None, racks=None):
        self._gpus, self._findings, self._racks = gpus, findings or {}, racks or {}

    def records(self, run):
        return [{"kind": "health", "uuid": f"GPU-{run.nodes[0]}-{i}", "index": i,
                 "fabric_cluster": self._racks.get(run.nodes[0], "")} for i in range(self._gpus)]

    def findings(self, run):
        return self._findings.get((run.stage, run.nodes), [])

    def outcome(self, run):
        return {0: PASS, 1: FAIL}.get(run.code, INCONCLUSIVE)

    def round(self, runs, so_far, rounds):
        assert set(runs) <= set(so_far)
        return [self.outcome(run) for run in runs], rounds


class FakeProgram(judge.Program):
    """bin/judge, of rates that all pass: a node is what runs.jsonl says of it alone. `lines`: more of
    its record; `failed`: why it has no result. `asked`: its options and the lines of runs.jsonl."""

    def __init__(self, folder, lines=(), failed=""):
        super().__init__(folder, {})
        self.lines, self.failed, self.asked = lines, failed, []

    def run(self, words, limit=0):
        (_, record), *options = zip(words[::2], words[1::2])
        runs = list(map(json.loads, (pathlib.Path(record).parent / judge.RUNS).read_text().splitlines()))
        self.asked.append((dict(options), runs))
        said = [line for line in runs if line["kind"] == "verdict"]
        nodes = [{"kind": "verdict", "scope": "node", "name": line["name"], "cause": "",
                  "verdict": worst(each["verdict"] for each in said if each["nodes"] == [line["name"]])}
                 for line in runs if line["kind"] == "node"]
        pathlib.Path(record).write_text("".join(f"{json.dumps(line)}\n" for line in [*nodes, *self.lines]))
        return self.failed


def concluded(nodes, runs, found, isolations=(), **more):
    """The NodeVerdicts, of what is no rate. `found`: all that was, the isolations' too."""
    with tempfile.TemporaryDirectory() as folder:
        made = judge.Judge(folder, FakeProgram(folder))
        made.findings = made.records = lambda run: []
        made.all_findings = lambda facts: []
        return made.conclude(Facts(list(map(Node, nodes)), runs, tuple(found), dict(isolations), **more))[0]


def conduct(made, tier=stages.QUICK, backend="auto", judge=None, environ=None, **more):
    quiet = campaign.Progress(lambda text: None, shown=False)
    with unittest.mock.patch.object(campaign, "SETTLE_S", (0, 0)):
        one = campaign.Campaign(made, stages.Settings(tier, backend), judge or FakeJudge(), quiet,
                                environ or {}, visible=lambda environ: 0, **more)
        one.run()
    return one
