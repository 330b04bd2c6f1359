"""launch/acceptance: figures from records, those of results/ (an H200) among them."""

import json
import pathlib
import sys
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "launch"))
from shakedown_launch.acceptance.evidence import figures, records  # noqa: E402
from shakedown_launch.acceptance.model import Run  # noqa: E402

H200 = "GPU-f98dd571-5fb7-51a1-c5f6-fa7665f424fb"
HEAD = {"kind": "run", "run_id": "r", "program": "x", "backend": "gpu", "gpu": "NVIDIA H200",
        "hosts": ["n1", "n1", "n2", "n2"], "gpu_uuids": ["a", "b", "c", "d"]}


def run_of(*nodes):
    return Run("stage", nodes or ("n1", "n2"), 0, "", 1, "r.jsonl", "r.log")


def of(*lines, head=HEAD, nodes=("n1", "n2")):
    return {(each.metric, each.gpu): each
            for each in figures.figures(run_of(*nodes), [head, *lines])}


def committed(name):
    return figures.figures(run_of("n1"), records.read(TREE / "results" / name))


class OfOneDevice(unittest.TestCase):
    def test_of_an_h200(self):
        found = committed("0.2/h200/compute-first-1gpu.jsonl")
        self.assertEqual(len(found), 48)  # two jobs
        bf16 = next(each for each in found if each.metric == "compute/bf16/sustained")
        self.assertAlmostEqual(bf16.value, 656.65, places=2)
        self.assertEqual((bf16.unit, bf16.nodes, bf16.gpu), ("TFLOP/s", ("n1",), H200))
        self.assertTrue(bf16.higher_is_better)
        self.assertEqual(bf16.conditions, {"backend": "gpu", "device": "NVIDIA H200", "size": 8192,
                                           "data": "random", "settled": True})
        self.assertEqual((bf16.explains["sm_clock_mhz"], bf16.explains["throttle_reasons"]),
                         (1395.0, "sw_power_cap"))
        metrics = {each.metric for each in found}
        for name in ("compute/fp8/burst", "memory/triad", "host/to_device/alone",
                     "host/from_device/all_at_once", "host/both/alone"):
            self.assertIn(name, metrics)

    LINE = {"kind": "compute", "rank": 2, "model": "NVIDIA H200", "test": "fp16 sustained",
            "unit": "TFLOP/s", "seconds": 0.2, "size": 8192, "samples": [3.0, 1.0, 2.0],
            "correct": True}

    def test_a_rank_is_a_gpu_of_a_node_and_the_value_the_median(self):
        found = of(self.LINE)["compute/fp16/sustained", "c"]
        self.assertEqual((found.value, found.samples, found.nodes), (2, (3, 1, 2), ("n2",)))
        self.assertFalse(found.conditions["settled"])  # the power limit does not yet act

    def test_rates_of_a_gpu_that_others_use_are_no_figures(self):
        self.assertEqual(of({**self.LINE, "in_use": "in use by other processes: pid 99"}), {})

    def test_the_second_look_counts(self):
        again = {**self.LINE, "pass": 2, "samples": [9.0]}
        for lines in ((self.LINE, again), (again, self.LINE)):
            found = of(*lines)["compute/fp16/sustained", "c"]
            self.assertEqual((found.value, found.explains["first_samples"]), (9, [3, 1, 2]))
        self.assertNotIn("first_samples", of(self.LINE)["compute/fp16/sustained", "c"].explains)

    def test_what_was_wrong_or_not_measured_is_no_figure(self):
        for change in ({"correct": False}, {"samples": []}, {"samples": [1.0, None]},
                       {"samples": None}):
            self.assertEqual(of({**self.LINE, **change}), {})

    def test_the_soak_s_steady_products_of_each_window(self):
        found = {each.metric: each for each in committed("0.2/h200/soak-1gpu.jsonl")}
        self.assertEqual(len(found), 7)
        self.assertEqual(len(found["soak/bf16/steady"].samples), 4)
        self.assertEqual(found["soak/bf16/steady"].gpu, H200)

    def test_settings_that_figures_depend_on(self):
        line = {"kind": "health", "host": "n2", "uuid": "d", "model": "NVIDIA H200",
                "power_limit_w": 700.0, "nvlinks_active": 18}
        found = of(line, {**line, "power_limit_w": 600.0}, {"kind": "health", "host": "n1"})
        self.assertEqual({key[0]: each.value for key, each in found.items()},
                         {"setting/power_limit": 600, "setting/nvlinks": 18})
        self.assertEqual(found["setting/power_limit", "d"].nodes, ("n2",))


class OfLinks(unittest.TestCase):
    def link(self, here, there, rate, **other):
        return {"kind": "link", "from": here, "to": there, "direction": "unidirectional",
                "concurrency": "alone", "bytes": 67108864, "bandwidth_gbs": rate,
                "transport": "nccl", **other}

    def test_worst_and_median_of_each_gpu_and_direction(self):
        found = of(self.link(0, 1, 300.0, latency_us=14.0), self.link(0, 2, 50.0),
                   self.link(0, 3, 40.0), self.link(3, 0, 45.0),
                   self.link(0, 1, 500.0, direction="bidirectional"))
        self.assertEqual(found["link/within_node/send/alone/worst", "a"].value, 300)
        slow = found["link/between_nodes/send/alone/worst", "a"]
        self.assertEqual((slow.value, slow.nodes, slow.explains["worst_with"]),
                         (40, ("n1",), "rank 3 on n2"))
        self.assertEqual(found["link/between_nodes/send/alone/median", "a"].value, 45)
        self.assertEqual(found["link/between_nodes/receive/alone/worst", "d"].value, 40)
        self.assertEqual(found["link/between_nodes/receive/alone/worst", "a"].value, 45)
        for gpu in ("a", "b"):
            self.assertEqual(found["link/within_node/both/alone/worst", gpu].value, 500)
        latency = found["link/within_node/latency/alone/worst", "a"]
        self.assertEqual((latency.value, latency.unit, latency.higher_is_better), (14, "us", False))

    def test_of_two_h200s(self):
        links = committed("0.1/h200/links-2gpu.jsonl")
        found = {(each.metric, each.gpu[:8]): each for each in links}
        rate = found["link/within_node/send/alone/worst", "GPU-0599"]
        self.assertAlmostEqual(rate.value, 297.45, places=2)
        self.assertEqual(rate.conditions["world_size"], 2)

    def test_splits(self):
        line = {"kind": "split", "scope": "node", "name": "n2", "operation": "all_reduce",
                "busbw_gbs": 300.0, "bytes": 8, "world_size": 2, "transport": "nccl"}
        found = of(line, {**line, "scope": "rail", "name": "1"}, {**line, "scope": "without_node"})
        self.assertEqual({key[0]: each.nodes for key, each in found.items()},
                         {"split/node/all_reduce/busbw": ("n2",),
                          "split/rail/all_reduce/busbw": ("n1", "n2")})


class OfGroups(unittest.TestCase):
    ROW = {"kind": "collective", "transport": "nccl", "operation": "all_reduce",
           "dtype": "float32", "reduction": "sum", "bytes": 67108864, "in_place": False,
           "busbw_gbs": 300.0, "time_us_p50": 100.0, "samples_us": [100.0, 120.0, 80.0]}
    BUSBW = "collective/all_reduce/float32/67108864/out_of_place/busbw"

    def test_busbw_of_each_sample_of_large_sizes_and_time_of_small_ones(self):
        found = of(self.ROW, {**self.ROW, "bytes": 32768, "in_place": True})
        large = found[self.BUSBW, ""]
        self.assertEqual((large.value, large.unit, large.nodes), (300, "GB/s", ("n1", "n2")))
        self.assertEqual(sorted(large.samples), [250, 300, 375])
        small = found["collective/all_reduce/float32/32768/in_place/latency", ""]
        self.assertEqual((small.value, small.unit, small.higher_is_better), (100, "us", False))

    def test_repetitions_are_samples_and_other_conditions_another_figure(self):
        again = {**self.ROW, "samples_us": [200.0]}
        self.assertEqual(len(of(self.ROW, again)[self.BUSBW, ""].samples), 4)
        both = figures.figures(run_of(), [HEAD, self.ROW, {**self.ROW, "launch_mode": "graph"}])
        self.assertEqual(len(both), 2)

    def test_the_path_as_far_as_it_is_known(self):
        self.assertNotIn("nvls", of(self.ROW)[self.BUSBW, ""].conditions)
        off = of(self.ROW, head={**HEAD, "environment.NCCL_NVLS_ENABLE": "0"})
        self.assertEqual(off[self.BUSBW, ""].conditions["nvls"], "off")
        logged = {**self.ROW, "algorithm": "NVLS", "protocol": "SIMPLE",
                  "transports": ["P2P/CUMEM", "NET/IB"]}
        found = of(logged)
        self.assertEqual([key[0] for key in found], ["path/all_reduce/float32/67108864"])
        seen = found["path/all_reduce/float32/67108864", ""].conditions
        self.assertEqual((seen["nvls"], seen["algorithm"], seen["protocol"], seen["transports"]),
                         ("on", "NVLS", "SIMPLE", "NET/IB P2P/CUMEM"))

    def test_nothing_moved_is_no_figure(self):
        self.assertEqual(of({**self.ROW, "busbw_gbs": 0.0}), {})
        self.assertEqual(of({**self.ROW, "samples_us": [0.0]}), {})

    def test_training_of_an_h200(self):
        found = {each.metric: each for each in committed("0.2/h200/throughput-head.jsonl")}
        rate = found["train/resnet50/fp16/256/images_per_s_per_rank"]
        self.assertAlmostEqual(rate.value, 9998.36, places=2)
        self.assertEqual((rate.conditions["strategy"], rate.conditions["deterministic"]),
                         ("none", False))
        self.assertEqual(rate.explains["sm_clock_mhz"], 1680)
        self.assertAlmostEqual(rate.explains["step_ms_p50"], 25.43, places=2)


class Jobs(unittest.TestCase):
    def test_an_empty_record_and_one_without_ranks_have_no_figures(self):
        for lines in ([], [{"kind": "end", "exit_code": 2}], [records.unreadable(0, "empty")]):
            self.assertEqual(figures.figures(run_of(), lines), [])

    def test_a_figure_is_of_the_host_that_answered(self):
        for hosts, node in [(["n1"] * 4, "n1"), (["n1.a", "n1.a", "n2.a", "n2.a"], "n2"),
                            (["h1", "h1", "h2", "h2"], "n2"), (["n1", "n1", "vm", "vm"], "n2")]:
            line = {**OfOneDevice.LINE, "rank": 2}
            found = of(line, head={**HEAD, "hosts": hosts})
            self.assertEqual(found["compute/fp16/sustained", "c"].nodes, (node,), hosts)

    def test_metrics_are_plain_texts(self):
        found = committed("0.2/h200/compute-first-1gpu.jsonl")
        json.dumps([[each.conditions, each.explains] for each in found])
        self.assertTrue(all(" " not in each.metric for each in found))


if __name__ == "__main__":
    unittest.main()
