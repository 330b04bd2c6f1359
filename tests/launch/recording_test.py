"""launch/acceptance: figures that --record-reference writes."""

import dataclasses
import pathlib
import statistics
import sys
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "launch"), str(TREE / "tests/launch")]
from references_samples import CONDITIONS, Case, busbw, fp16, judge, path  # noqa: E402
from shakedown_launch.acceptance import references  # noqa: E402
from shakedown_launch.acceptance.evidence import figures, records  # noqa: E402
from shakedown_launch.acceptance.model import (CONFIG, FAIL, INCONCLUSIVE, PASS, WARN,  # noqa: E402
                                               Acceptance, Figure, Node, NodeVerdict, Run)
from shakedown_launch.places import UsageError  # noqa: E402

FOLDER = TREE / "results/reference"


def accepted(*found, outcomes=(PASS,), started="2026-11-23T09:00:00Z"):
    names = dict.fromkeys(name for each in found for name in each.nodes)
    verdicts = tuple(NodeVerdict(Node(name, identity={"driver": "580", "versions.cuda": "13.0"}),
                                 outcome) for name, outcome in zip(names, outcomes * 9))
    return Acceptance("default", started, 1, verdicts, (), tuple(found), ())


class Recording(Case):
    def recorded(self, *acceptances):
        references.record(list(acceptances), self.path)
        return references.load(self.path)[0]

    def test_medians_spread_clocks_and_versions_of_the_nodes(self):
        values = (600, 610, 620, 590, 605)
        found = [fp16(value, {**CONDITIONS, "backend": "gpu"}, {"sm_clock_mhz": 1400 + i,
                                                                "temperature_c": 55},
                      gpu=f"GPU-{i}") for i, value in enumerate(values)]
        limit = Figure("inventory", ("n1",), "setting/power_limit", 700, "W", gpu="GPU-0")
        reference = self.recorded(accepted(*found, limit))
        entry, = reference.figures
        self.assertEqual((entry.value, entry.samples, entry.units, entry.sm_clock_mhz,
                          entry.temperature_c, entry.data, entry.date),
                         (605, 5, 5, 1402, 55, "random", "2026-11-23"))
        self.assertAlmostEqual(entry.spread, statistics.stdev(values))
        self.assertEqual(entry.versions, {"driver": "580", "versions.cuda": "13.0"})
        self.assertEqual(entry.conditions, {"size": 8192, "backend": "gpu"})
        self.assertEqual((reference.devices, reference.power_limit_w, entry.power_limit_w),
                         (("NVIDIA H200",), 700, 700))
        self.assertTrue(entry.may_fail)
        self.assertEqual(judge([*found, limit], reference, requested=True), [])

    def test_only_nodes_that_pass(self):
        good, bad = fp16(600), fp16(300, node="n2")
        reference = self.recorded(accepted(good, bad, outcomes=(PASS, FAIL)))
        self.assertEqual((reference.figures[0].value, reference.figures[0].samples), (600, 1))
        self.one(judge([bad], reference), FAIL)
        with self.assertRaisesRegex(UsageError, "no node passed"):
            self.recorded(accepted(bad, outcomes=(INCONCLUSIVE,)))

    def test_one_model_only(self):
        with self.assertRaisesRegex(UsageError, "found: H100, NVIDIA H200"):
            self.recorded(accepted(fp16(600), fp16(1, {"device": "H100"}, node="n2")))

    def test_several_acceptances_and_the_path(self):
        runs = [accepted(busbw(value), path(algorithm="NVLS"))
                for value in (430, 431, 432)]
        entry, = self.recorded(*runs).figures
        self.assertEqual((entry.value, entry.path), (431, {"algorithm": "NVLS",
                                                           "transport": "nccl"}))
        found = judge([busbw(431, algorithm="RING")],
                                 references.load(self.path)[0])
        self.one(found, FAIL, "path", CONFIG)

    def test_data_of_a_training_are_synthetic_or_a_folder(self):
        found = [fp16(600, {**CONDITIONS, "data": data, "device": "EPYC"})
                 for data in ("synthetic", "/data/train")]
        reference = self.recorded(accepted(*found))
        self.assertEqual([(each.data, each.conditions.get("data")) for each in reference.figures],
                         [("", "/data/train"), ("synthetic", None)])
        self.assertEqual(judge(found, reference, requested=True), [])

    def test_of_the_cpu_backend_it_only_warns(self):
        """Its cores do other work as well."""
        conditions = {"device": "EPYC", "backend": "cpu", "data": "random"}
        slower = [fp16(value, conditions, gpu="") for value in (0.5, 0.1)]
        reference = self.recorded(accepted(fp16(0.6, conditions, gpu="")))
        self.assertFalse(reference.figures[0].may_fail)
        self.assertEqual({each.outcome for each in judge(slower, reference)}, {WARN})

    def test_a_run_of_an_h200_meets_what_it_recorded(self):
        run = Run("compute", ("n1",), 3, "", 1, "", "")
        found = figures.figures(run, records.read(TREE / "results/0.2/h200/compute-1gpu.jsonl"))
        reference = self.recorded(accepted(*found[:24]))
        self.assertEqual(judge(found[24:], reference, requested=True), [])
        ours = references.load(str(FOLDER / "nvidia-h200.json"))[0]
        self.assertEqual(judge(found, ours, requested=True), [])
        slow = [dataclasses.replace(each, value=each.value * 0.8) for each in found[:24]]
        self.assertEqual({each.outcome for each in judge(slow, ours)}, {FAIL})


if __name__ == "__main__":
    unittest.main()
