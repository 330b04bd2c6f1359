"""launch/acceptance: reference files, and figures compared with them."""

import copy
import dataclasses
import functools
import pathlib
import re
import statistics
import sys
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "launch"), str(TREE / "tests/launch")]
from references_samples import BUSBW, CONDITIONS, ENTRY, FILE, Case, busbw, fp16, judge, path  # noqa: E402
from shakedown_launch.acceptance import references  # noqa: E402
from shakedown_launch.acceptance.evidence import figures, records  # noqa: E402
from shakedown_launch.acceptance.model import (CONFIG, ENVIRONMENT, FAIL, HARDWARE,  # noqa: E402
                                               INCONCLUSIVE, UNKNOWN, WARN, Figure, Gpu, Node, Run)
from shakedown_launch.places import UsageError  # noqa: E402

FOLDER = TREE / "results/reference"


class Files(Case):
    def test_every_committed_file_is_read(self):
        loaded = references.load(str(FOLDER))
        self.assertEqual(len(loaded), len(list(FOLDER.glob("*.json"))))
        self.assertTrue(all(each.figures for each in loaded))
        h200 = next(each for each in loaded if each.name == "nvidia-h200")
        self.assertGreater(sum(each.may_fail for each in h200.figures), 80)
        self.assertEqual({each.kind for each in h200.figures}, {"measured", "published", "stated"})

    def test_what_is_measured_is_what_the_records_say(self):
        """No figure is edited by hand. A source: "FILE, REVISION; FILE, REVISION"."""
        @functools.cache
        def figures_of(file):
            return figures.figures(Run("", ("n1",), 0, "", 1, file, ""), records.read(TREE / file))

        for each in references.load(str(FOLDER / "nvidia-h200.json"))[0].figures:
            if each.kind != "measured":
                continue
            wanted = {**each.conditions, **each.path}
            files = [source.partition(",")[0] for source in each.source.split("; ")]
            values = [figure.value for file in files for figure in figures_of(file)
                      if figure.metric == each.metric
                      and wanted.items() <= figure.conditions.items()]
            self.assertEqual(len(values), each.samples, each.metric)
            self.assertAlmostEqual(statistics.median(values) / each.value, 1, places=5,
                                   msg=each.metric)

    def test_what_is_wrong_in_a_file_is_named(self):
        cases = ((lambda t: t["figures"][0].update(valeu=3), "figure 1 .*unknown key 'valeu'"),
                 (lambda t: t["figures"][0].pop("source"), "figure 1 .*source is missing"),
                 (lambda t: t["figures"][1].update(source=" "), "figure 2 .*source is empty"),
                 (lambda t: t["figures"][0].update(unit="GFLOP/s"), "unit 'GFLOP/s'; allowed: "),
                 (lambda t: t["figures"][0].update(kind="guessed"), "kind 'guessed'; allowed: "),
                 (lambda t: t["figures"][0].update(value="600"), "value: '600' has the wrong type"),
                 (lambda t: t["figures"][0].update(value=True), "value: True has the wrong type"),
                 (lambda t: t["figures"][0].update(value=0), "value 0: above 0"),
                 (lambda t: t["figures"].insert(0, 3), "figure 1 .*not an object"),
                 (lambda t: t.pop("devices"), "devices is missing"),
                 (lambda t: t.update(gpus=8), "unknown key 'gpus'"),
                 (lambda t: t.update(nvls="yes"), "nvls 'yes'; allowed: "))
        for change, wanted in cases:
            table = copy.deepcopy(FILE)
            change(table)
            with self.assertRaisesRegex(UsageError, f"{re.escape(self.path)}.*{wanted}"):
                self.load(table)
        pathlib.Path(self.path).write_text("{")
        with self.assertRaisesRegex(UsageError, "no JSON"):
            references.load(self.path)
        with self.assertRaisesRegex(UsageError, "No such file"):
            references.load(self.path + ".gone")

    def test_defaults_are_of_all_figures(self):
        entry = {key: value for key, value in ENTRY.items() if key != "source"}
        loaded = self.load({**FILE, "figures": [entry], "defaults": {"source": "there"}})
        self.assertEqual(loaded.figures[0].source, "there")


class Floors(Case):
    def floor(self, **changes):
        return self.reference(changes=changes).figures[0].floor

    def test_by_the_metric_s_own_spread(self):
        cases = (({}, 552),  # 92 % where no spread is known
                 ({"spread": 6, "units": 8, "samples": 8}, 570),  # 5 sigma
                 ({"spread": 0.1, "units": 8, "samples": 8}, 585),  # at least 0.5 %
                 ({"spread": 0.1, "units": 2, "samples": 9}, 552),  # too few GPUs to narrow it
                 ({"spread": 30, "units": 2, "samples": 9}, 450),  # wide: it decides
                 ({"spread": 30, "units": 8, "samples": 9}, 450),
                 ({"spread": 130}, None),  # too wide to judge by
                 ({"is_limit": True}, 600))
        for changes, wanted in cases:
            floor = self.floor(**changes)
            self.assertEqual(floor if floor is None else round(floor, 6), wanted, changes)

    def test_of_a_time_it_is_the_most(self):
        time = {"unit": "us", "value": 10}
        self.assertAlmostEqual(self.floor(**time), 10 / 0.92)
        self.assertAlmostEqual(self.floor(**time, spread=1), 15)
        self.assertAlmostEqual(self.floor(**time, spread=0.1, units=4), 10.5)


class Matching(Case):
    NODE = Node("n1", (Gpu(0, "GPU-a", model="NVIDIA H200"), Gpu(1, "GPU-b", model="NVIDIA H200")))

    def test_by_model_and_count(self):
        eight = self.reference(ranks_per_node=[8])
        any_ = self.reference(changes={"kind": "published"})
        both = [any_, eight]
        self.assertIs(references.match(both, self.NODE, 8), eight)
        self.assertIs(references.match(both, self.NODE, 2), any_)

    def test_link_and_nvls_come_before_the_number_of_figures(self):
        """And an exact count before a reference of any."""
        big = self.load({**FILE, "link": "pcie"})
        small = self.reference(link="nvlink")
        links = [Figure("inventory", ("n1",), "setting/nvlinks", value, "links", gpu=f"GPU-{value}")
                 for value in (0, 18)]
        for of, wanted in [([], big), (links[:1], big), (links[1:], small)]:
            self.assertIs(references.match([small, big], self.NODE, 2, of), wanted)
        self.assertIs(references.match([small, big], self.NODE, 1, links[1:]), big)  # alone
        on, off = self.reference(nvls="on"), self.load({**FILE, "nvls": "off"})
        for of, wanted in [([], off), ([path(nvls="on")], on), ([path(nvls="off")], off)]:
            self.assertIs(references.match([on, off], self.NODE, 2, of), wanted)
        any_, exact = self.load(FILE), self.reference(ranks_per_node=[2])
        self.assertIs(references.match([any_, exact], self.NODE, 2), exact)

    def test_no_reference_of_another_or_a_mixed_node(self):
        found = [self.reference()]
        mixed = dataclasses.replace(self.NODE, gpus=(*self.NODE.gpus, Gpu(2, "c", model="L4")))
        for node in (Node("n1"), mixed, Node("n1", (Gpu(0, "a", model="NVIDIA H100"),))):
            self.assertIsNone(references.match(found, node, 2))
        processor = Node("n1", identity={"processor": "EPYC"})
        self.assertIsNotNone(references.match([self.reference(devices=["EPYC"])], processor, 2))

    def test_ours_is_found_for_an_h200_node(self):
        found = references.match(references.load(str(FOLDER)), self.NODE, 2)
        self.assertEqual(found.name, "nvidia-h200")


class Judging(Case):
    def test_which_rates_were_judged(self):
        """Of what stage and node: those that could have failed."""
        def judged(figure, **changes):
            return references.judge([figure], self.reference(changes=changes))[1]
        for value in (600, 100):
            self.assertEqual(judged(fp16(value)), {("compute", "n1")})
        self.assertEqual(judged(fp16(600, {**CONDITIONS, "size": 1})), set())
        self.assertEqual(judged(fp16(600), kind="published"), set())
        self.assertEqual(judged(fp16(600), spread=200), set())

    def test_above_the_floor_is_nothing(self):
        self.assertEqual(judge([fp16(553)], self.reference()), [])

    def test_below_it_fails_the_gpu(self):
        found = judge([fp16(551, explains={"rank": 0})], self.reference())
        found = self.one(found, FAIL, ENTRY["metric"], HARDWARE)
        self.assertEqual((found.nodes, found.gpu, found.subject),
                         (("n1",), "GPU-a", "GPU of rank 0"))
        self.assertIn("8.2 % below the reference 600 (floor 552; measured, 2026-11-23, here)",
                      found.cause)

    def test_a_clock_that_accounts_for_it_is_the_environment(self):
        reference = self.reference(changes={"sm_clock_mhz": 1400, "temperature_c": 55})
        hot = {"sm_clock_mhz": 1200, "temperature_c": 83, "throttle_reasons": "sw_thermal"}
        found = self.one(judge([fp16(510, explains=hot)], reference), FAIL, None,
                         ENVIRONMENT)
        self.assertRegex(found.cause, "all of it clock: 1200 MHz, reference 1400 MHz; 83 C, "
                                      "reference 55 C; throttle reasons: sw_thermal")
        for clock in (1400, 1390):
            hot["sm_clock_mhz"] = clock
            found = judge([fp16(510, explains=hot)], reference)
            self.assertIn("at a normal clock", self.one(found, FAIL, None, HARDWARE).cause)

    def test_where_all_gpus_are_alike_it_is_a_setting(self):
        two = [fp16(500), fp16(500, gpu="GPU-b")]
        found = judge(two, self.reference())
        self.assertEqual([(each.outcome, each.class_) for each in found], [(FAIL, CONFIG)] * 2)
        found = judge([*two, fp16(600, gpu="GPU-c")], self.reference())
        self.assertEqual([each.class_ for each in found], [HARDWARE] * 2)

    def test_what_others_published_or_stated_warns(self):
        for changes in ({"kind": "published"}, {"kind": "stated", "is_limit": True},
                        {"validated": False}):
            two = [fp16(500), fp16(400, gpu="GPU-b")]
            found = judge(two, self.reference(changes=changes))
            found = self.one(found, WARN, "below-reference", "")
            self.assertIn("500 TFLOP/s (16.7 % below 600, ", found.cause)
            self.assertIn("400 TFLOP/s (33.3 % below 600, ", found.cause)
            self.assertIn(f"600, {changes.get('kind', 'measured, not validated')}: ", found.cause)

    def test_a_measured_figure_is_used_before_a_published_one(self):
        published = {**ENTRY, "kind": "published", "value": 900}
        reference = self.load({**FILE, "figures": [published, ENTRY]})
        self.assertEqual(judge([fp16(600)], reference), [])

    def test_other_hardware_s_reference_is_inconclusive(self):
        found = judge([fp16(600, {**CONDITIONS, "device": "NVIDIA H100"}),
                                  fp16(100, {**CONDITIONS, "device": "NVIDIA H100"})],
                                 self.reference())
        self.assertIn("of NVIDIA H200, this is NVIDIA H100",
                      self.one(found, INCONCLUSIVE, "not-comparable", CONFIG).cause)

    def test_another_count_link_power_limit_or_data_is_inconclusive(self):
        reference = self.reference(ranks_per_node=[8], link="nvlink", power_limit_w=700)
        limit = Figure("inventory", ("n1",), "setting/power_limit", 600, "W", gpu="GPU-a")
        links = Figure("inventory", ("n1",), "setting/nvlinks", 0, "links", gpu="GPU-a")
        for more, why in ((limit, "700 W, here 600 W"), (links, "linked by nvlink, here by pcie"),
                          (busbw(1, ranks_per_node=2), "this has 2")):
            other = dataclasses.replace(more, gpu="GPU-b")
            found = judge([fp16(100), more, other], reference)
            self.assertIn(why, self.one(found, INCONCLUSIVE, "not-comparable", CONFIG).cause)
        self.assertEqual(judge([fp16(600), links], reference), [])  # a GPU alone
        same = [dataclasses.replace(limit, value=700), dataclasses.replace(links, value=18)]
        self.assertEqual(judge([fp16(600), *same], reference), [])
        found = judge([fp16(600, {**CONDITIONS, "data": "zeros"})], self.reference())
        self.assertIn("data zeros, reference random", self.one(found, INCONCLUSIVE).cause)

    def test_other_conditions_are_not_compared_and_say_so(self):
        found = judge([fp16(100, {**CONDITIONS, "size": 4096})], self.reference())
        self.assertIn("size 4096, reference 8192", self.one(found, UNKNOWN, "not-compared").cause)
        self.assertEqual(judge([dataclasses.replace(fp16(1), metric="x")],
                                          self.reference()), [])

    def test_a_reference_that_was_requested_and_compares_nothing_is_inconclusive(self):
        other = dataclasses.replace(fp16(1), metric="x")
        found = judge([other], self.reference(), requested=True)
        self.one(found, INCONCLUSIVE, "not-comparable", CONFIG)
        self.assertEqual(judge([other, fp16(600)], self.reference(), requested=True), [])
        group = dataclasses.replace(other, nodes=("n1", "n2"))
        self.assertEqual(judge([group], self.reference(), requested=True), [])

    def test_a_wide_spread_judges_nothing(self):
        reference = self.reference(changes={"spread": 200})
        self.one(judge([fp16(1)], reference), UNKNOWN, "not-compared")


class Paths(Case):
    def test_another_path_is_a_setting_and_its_bandwidth_is_not_judged(self):
        reference = self.reference(BUSBW)
        found = judge([busbw(15, algorithm="RING")], reference)
        found = self.one(found, FAIL, "path", CONFIG)
        self.assertIn("algorithm RING, reference NVLS", found.cause)
        self.one(judge([busbw(15, algorithm="NVLS", transport="mpi")], reference), FAIL,
                 "path", CONFIG)
        found = judge([busbw(15, algorithm="NVLS")], reference)
        self.one(found, FAIL, BUSBW["metric"], HARDWARE)
        self.assertEqual(judge([busbw(430, algorithm="NVLS")], reference), [])

    def test_what_one_run_proved_is_true_of_the_same_operation_in_another(self):
        found = judge([busbw(15), path(algorithm="RING")], self.reference(BUSBW))
        self.assertEqual(self.one(found, FAIL, "path", CONFIG).stage, "collectives")
        found = judge([busbw(15), path(algorithm="NVLS")], self.reference(BUSBW))
        self.one(found, FAIL, BUSBW["metric"], HARDWARE)
        other = dataclasses.replace(path(algorithm="RING"), metric="path/all_reduce/float32/8")
        found = judge([busbw(15), other], self.reference(BUSBW))
        self.assertIn("its path is not known", self.one(found, FAIL).cause)

    def test_an_unknown_path_fails_and_blames_nothing(self):
        found = judge([busbw(15)], self.reference(BUSBW))
        self.assertIn("its path is not known", self.one(found, FAIL, None, "").cause)
        self.assertEqual(judge([busbw(430)], self.reference(BUSBW)), [])

    def test_a_published_path_warns(self):
        reference = self.reference(BUSBW, {"kind": "published"})
        self.one(judge([busbw(15, algorithm="RING")], reference), WARN, "path")

    def test_a_path_needs_no_validated_figure(self):
        reference = self.reference(BUSBW, {"validated": False})
        self.one(judge([busbw(15, algorithm="RING")], reference), FAIL, "path", CONFIG)
        self.one(judge([busbw(15, algorithm="NVLS")], reference), WARN)


if __name__ == "__main__":
    unittest.main()
