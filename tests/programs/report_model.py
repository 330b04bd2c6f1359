"""The step model of results/report: by hand, and as 0.2's bin/compare predicted; run by report_test.py."""

import itertools
import json
import math
import unittest
from pathlib import Path
from unittest import mock

from report_support import Report, read_runs
from reporting import step_model, what_if
from reporting.step_model import Gradient, Inputs, Link, Scenario, Strategy, predict

FIXTURE = Path(__file__).with_name("report_model.jsonl")
TRANSFERS = {  # as `step` records have them
    "none": [], "all-reduce": ["gradients all_reduce whole"], "ddp": ["gradients all_reduce buckets"],
    "parameter-server": ["gradients star whole", "weights star whole"],
    "parameter-server-sharded": ["gradients shards whole", "weights shards whole"],
    "data-parallel": ["inputs star whole each_micro_batch", "gradients star whole", "weights chain whole"],
    "zero1": ["gradients pass buckets", "weights pass whole"],
    "zero2": ["gradients pass blocks each_micro_batch", "weights pass whole"],
    "fsdp": ["gradients pass gathered_blocks each_micro_batch"]}
# Three gradients of 4 MB, each a block and, with the scenario's caps, a bucket of its own; 10 ms + 0.3125 ms per image.
INPUTS = Inputs({128: 50, 64: 30}, [Gradient(4e6, 5, 2), Gradient(4e6, 10, 1), Gradient(4e6, 20, 0)], 20, 64, 2, 0.1,
                0, 1e5)
# An all-reduce of a gradient: 1.5 * 4 MB / 1 GB/s = 6 ms; a pass of one: 3 ms. Sends take 1 ms per message more.
FOUR = Scenario(4, 64, Link(0, 1e9), Link(1e-3, 1e9), bucket_cap_mb=1)


def strategy(name):
    return Strategy(name, [step_model.transfer_of(text) for text in TRANSFERS[name]], int(name == "parameter-server"))


class StepModel(unittest.TestCase):
    def predicted(self, name, inputs=INPUTS, **changes):
        return predict(inputs, strategy(name), FOUR._replace(**changes))

    def steps(self, expected, **changes):
        for name, ms in expected.items():
            self.assertAlmostEqual(self.predicted(name, **changes).step_ms, ms, 9, name)

    def test_compute_between_and_beyond_the_measured_batches(self):
        for measured, expected in (
                ({128: 50, 64: 30}, {64: (30, False), 96: (40, False), 128: (50, False), 256: (90, True), 32: (20, True)}),
                ({64: 30}, {128: (60, True)}), ({16: 2, 32: 30}, {8: (1, True)}),  # a line that ends below 0
                ({16: 12, 32: 14, 64: 30}, {32: (14, False), 48: (22, False), 65: (30.5, True), 8: (11, True)})):
            for batch, found in expected.items():
                self.assertEqual(step_model.compute_ms(measured, batch), found)

    def test_strategies_by_hand(self):
        # ddp: 5..11, 11..17, 20..26 while backward ends at 20. fsdp: forward exposes 3.5, backward 7; 16.5 hidden.
        self.steps({"none": 32, "all-reduce": 32 + 18, "ddp": 30 + 6 + 1.2 + 2, "parameter-server": 32 + 2 * 39,
                    "parameter-server-sharded": 30 + 12 + 12 + 0.5, "zero1": 30 + 3 + 0.6 + 9 + 0.5,
                    "zero2": 30 + 3 + 0.6 + 9 + 0.5, "data-parallel": 32 + 22.2 + 39 + 15,
                    "fsdp": 30 + 10.5 + 1.65 + 0.5})
        ddp, served = self.predicted("ddp"), self.predicted("parameter-server")
        self.assertAlmostEqual(ddp.images_per_s, 4 * 64 / 39.2e-3)
        self.assertAlmostEqual(ddp.efficiency, 32 / 39.2)
        self.assertAlmostEqual(served.efficiency, 3 / 4 * 32 / 110)
        self.assertFalse(ddp.extrapolated)
        self.assertAlmostEqual(self.predicted("ddp", bucket_cap_mb=25).exposed_ms, 12)  # 20..32
        larger = self.predicted("ddp", batch=256)  # compute 90 ms; ready at 15, 30, 60
        self.assertEqual((round(larger.exposed_ms, 9), larger.extrapolated), (6, True))
        self.steps({"ddp": 30 + 3 + 0.6 + 2}, gradient_factor=0.5)
        self.steps({"zero1": 30 + 3.6 + 4.5 + 0.5, "parameter-server": 32 + 39 + 21}, weight_factor=0.5)
        self.steps({"all-reduce": 62 + 18, "ddp": 60 + 7.2 + 2, "zero1": 60 + 3.6 + 9 + 0.5, "zero2": 60 + 7.2 + 9 + 0.5,
                    "fsdp": 60 + 2 * 12.15 + 0.5, "data-parallel": 62 + 2 * 22.2 + 39 + 15}, accumulate=2)
        self.steps({"ddp": 50, "zero2": 30 + 9 + 9 + 0.5, "fsdp": 30 + 27 + 0.5}, overlap=False)
        late = FOUR.ring._replace(latency_s=1e-3)  # by block, whatever the buckets: 5..11, 11..17, 20..26; 12 gathering
        for cap in (1, 25):
            self.assertAlmostEqual(self.predicted("zero2", ring=late, bucket_cap_mb=cap).exposed_ms, 6 + 12)

    def test_servers_average_what_they_receive(self):
        averaging = INPUTS._replace(average_ms_per_byte=1e-6)  # 12 ms for one rank's gradients
        for name, factor in itertools.product(TRANSFERS, (1, 0.5)):
            more = (self.predicted(name, averaging, gradient_factor=factor).exposed_ms
                    - self.predicted(name, gradient_factor=factor).exposed_ms)
            self.assertAlmostEqual(more, factor * {"parameter-server": 36, "data-parallel": 48,
                                                   "parameter-server-sharded": 12}.get(name, 0), msg=name)
        self.assertEqual(self.predicted("data-parallel", averaging, world_size=1).exposed_ms, 0)

    def test_links_that_cost_nothing_and_links_that_cost_less(self):
        free = Link(0, math.inf)
        for name in TRANSFERS:
            predicted = self.predicted(name, ring=free, star=free)
            self.assertAlmostEqual(predicted.exposed_ms, 0, msg=name)
            if name != "parameter-server":
                self.assertAlmostEqual(self.predicted(name, world_size=1).efficiency, 1, msg=name)
            last = math.inf
            for power in range(28, 52):
                link = Link(0, 2.0 ** (power * 0.8))
                ms = self.predicted(name, ring=link, star=link).step_ms
                self.assertLessEqual(ms, last * (1 + 1e-12), name)
                self.assertLessEqual(self.predicted(name, ring=link, star=link, gradient_factor=0.25).step_ms, ms + 1e-9)
                self.assertGreaterEqual(self.predicted(name, ring=Link(1e-3, link.bytes_per_s), star=link).step_ms, ms - 1e-9)
                last = ms

    def test_pieces_start_after_one_another_and_after_their_gradients(self):
        def time(size):
            return 1 + 0.1 * size if size else 0
        self.assertEqual(step_model.overlapped([(10, 2), (20, 3), (30, 9)], 10, time), (6, 3))  # 2..4, 4..7, 9..13
        self.assertEqual(step_model.overlapped([(10, 2)], 10, time), (2, 0))
        self.assertEqual(step_model.overlapped([(10, 10), (0, 10)], 10, time), (0, 2))
        self.assertEqual(step_model.overlapped([], 10, time), (0, 0))
        blocks, one, two = [(10, 4), (10, 10)], lambda size: 1.0, lambda size: 2.0
        self.assertEqual(step_model.gathered(blocks, 5, 10, one, two), (4, 4))
        self.assertEqual(step_model.gathered(blocks, 6, 12, one, two)[1], 2)  # what comes after the blocks hides
        self.assertEqual(step_model.gathered([], 5, 10, one, two), (0, 0))
        gradients = [Gradient(1, 1, 2), Gradient(2, 3, 2), Gradient(4, 2, 1), Gradient(8, 5, 0)]
        self.assertEqual(step_model.in_blocks(gradients), [(3, 3), (4, 2), (8, 5)])  # the slowest, not the last
        self.assertEqual(step_model.in_buckets(gradients, 4, 100), [(7, 3), (8, 5)])
        self.assertEqual(step_model.in_buckets(gradients, 1, 4), [(1, 1), (6, 3), (8, 5)])
        self.assertEqual(step_model.in_buckets([], 4, 100), [])

    def test_a_fit_of_a_link(self):
        # Two ranks: 2 latencies + bytes / bandwidth.
        for points, latency, rate, error in (
                ([(1e6, 120e-6), (3e6, 320e-6)], 10e-6, 1e10, 0),
                ([(1e3, 1.1e-4), (1e6, 0.9e-4)], 5e-5, math.inf, 1 / 0.9 - 1),  # falling: all is latency
                ([(1e6, 0.5e-4), (2e6, 1.5e-4)], 0, 1e10, 1)):  # faster than in proportion
            link, worst = step_model.fit_link("all_reduce", 2, points)
            self.assertAlmostEqual(link.latency_s, latency)
            self.assertTrue(math.isclose(link.bytes_per_s, rate))
            self.assertAlmostEqual(worst, error)
        for points in ([], [(1e6, 1e-3)], [(1e6, 1e-3), (1e6, 2e-3)]):
            self.assertIsNone(step_model.fit_link("all_reduce", 2, points))
        measured = [(4194304, 35.2e-6), (8388608, 49.3e-6), (16777216, 78.0e-6), (33554432, 143.7e-6),
                    (67108864, 255.0e-6), (134217728, 470.8e-6)]  # NCCL on two H200
        exact, _ = step_model.fit_link("all_reduce", 2, measured)
        for at in range(len(measured)):  # one bad point moves little
            for factor in (0.5, 3, 100):
                points = [(size, seconds * factor if n == at else seconds)
                          for n, (size, seconds) in enumerate(measured)]
                link, worst = step_model.fit_link("all_reduce", 2, points)
                self.assertLess(abs(link.bytes_per_s / exact.bytes_per_s - 1), 0.1)
                self.assertGreater(worst, 0.4)

    def test_changes(self):
        changes = dict(step_model.usual_changes(INPUTS, strategy("ddp"), FOUR, 128))
        def step_ms(change):
            return predict(INPUTS, strategy("all-reduce"), changes[change]).step_ms
        for change, ms in (("batch 128", 50 + 18 + 2), ("fp16 gradients", 30 + 9 + 2), ("a path 2 times as fast", 41),
                           ("gradients compressed to a quarter", 36.5), ("an update every 2 micro-batches", 80)):
            self.assertAlmostEqual(step_ms(change), ms, msg=change)
        self.assertNotIn("batch 256", changes)
        half = dict(step_model.usual_changes(INPUTS, strategy("ddp"), FOUR._replace(gradient_factor=0.5), 64))
        self.assertFalse({"fp16 gradients", "batch 128"} & set(half))
        # 6 ms per bucket and 6 ms per gradient; the first alone: 5..17, 20..38.
        late = FOUR._replace(ring=FOUR.ring._replace(latency_s=1e-3))
        best, scenario = step_model.usual_changes(INPUTS, strategy("ddp"), late, 64)[-1]
        self.assertEqual(best, "--bucket-cap-mb 5 --small-bucket-mb 1")
        self.assertAlmostEqual(predict(INPUTS, strategy("ddp"), scenario).step_ms, 30 + 18 + 1.2 + 2)
        alone = step_model.usual_changes(INPUTS, strategy("ddp"), late._replace(overlap=False), 64)
        self.assertNotIn("--bucket", alone[-1][0])


class Recorded(Report):
    def equal(self, run, kinds, tolerance, strategies=TRANSFERS):
        """The number of recorded predictions that results/report computes again."""
        def key(line):
            return tuple(line.get(name) for name in ("kind", "strategy", "bucket_cap_mb", "batch_size", "world_size",
                                                     "change", "path"))
        predicted = {key(line): line for line in what_if.modelled(run)}
        compared = [line for line in run.records if line["kind"] in kinds and line["strategy"] in strategies]
        for line in compared:
            for name in ("step_ms_predicted", "images_per_s_predicted", "efficiency_predicted", "step_ms_measured",
                         "exposed_comm_ms_predicted", "gain_percent", "alpha_us", "bandwidth_gbs", "worst_error"):
                if line.get(name) is not None:
                    found = predicted[key(line)][name]
                    self.assertLessEqual(abs(found - line[name]), tolerance * abs(line[name]), (line, found))
        return len(compared)

    def test_predictions_of_the_programs_themselves(self):
        """The fixture: a CPU run of 0.2's bin/compare that recorded ready times and transfers, too, and predicted as
        for GPUs (its records say gpu); its links are those of batch 2."""
        with mock.patch.object(what_if, "TRUSTED", 1):
            run, = read_runs([FIXTURE])
            self.assertEqual(self.equal(run, ["prediction", "advice", "link_cost"], 1e-6), 41)
            winners = [[(line["batch_size"], line["strategy"], line["second"], round(line["margin"], 6)) for line in lines
                        if line["kind"] == "winner"] for lines in (run.records, what_if.modelled(run))]
        self.assertEqual(*winners)
        self.assertEqual(len(winners[0]), 4)

    def test_a_model_that_is_off_or_was_compared_with_nothing_predicts_nothing(self):
        for only, doubt in ((None, "the model is off by up to 44.9 %"), ("none", "could be compared with")):
            path = self.folder / "r.jsonl"
            path.write_text("".join(line for line in FIXTURE.read_text().splitlines(True)
                                    if not (only and '"kind":"step"' in line and f'"strategy":"{only}"' not in line)))
            run, = read_runs([path])
            self.assertFalse([line for line in what_if.modelled(run) if line["kind"] in ("advice", "winner") or
                              line["kind"] == "prediction" and "step_ms_measured" not in line])
            content = self.content_of([path])
            self.assertIn(doubt, dict(content.sentences)["What would help most"].replace("unknown: the step", "the"))
            self.assertEqual("predictions and advice are left out" in str([table.notes for table in content.tables]),
                             only is None)

    def test_what_ddp_shows_of_interference_slows_each_batch(self):
        """And of one strategy alone there is no second."""
        lines = [json.loads(line) for line in FIXTURE.read_text().splitlines()]
        kept = [line for line in lines if line.get("strategy") in (None, "none", "ddp")]
        for line in kept:
            if line["kind"] == "breakdown" and line["strategy"] == "ddp":
                line |= {"hidden_comm_ms": 20, "interference_ms": line["batch_size"]}
        run, = read_runs([self.write("r.jsonl", *kept[1:-1], head=kept[0])])
        with mock.patch.object(what_if, "TRUSTED", 10):
            found = what_if.modelled(run)
        group, = what_if.groups_of(run)
        fitted = what_if.Fitted(run, group)
        self.assertEqual([fitted.inputs(base).interference for base in fitted.bases], [0.1, 0.2])
        self.assertEqual({(line["strategy"], line["second"], line["margin"]) for line in found if line["kind"] == "winner"},
                         {("ddp", "", 0)})


if __name__ == "__main__":
    unittest.main()
