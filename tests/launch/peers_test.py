"""acceptance/peers: which figures are outliers among their peers, and why."""

import pathlib
import random
import sys
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "launch"), str(TREE / "tests" / "simulation")]
import fleet as simulation  # noqa: E402
from shakedown_launch.acceptance.judge import peer_groups, peers  # noqa: E402
from shakedown_launch.acceptance.model import (  # noqa: E402
    CONFIG, ENVIRONMENT, FAIL, HARDWARE, INCONCLUSIVE, WARN, Figure)

COMPUTE, MEMORY, HOST = "compute/fp16/sustained", "memory/copy", "host/to_device/alone"
NORMAL = {"sm_clock_mhz": 1530, "temperature_c": 71, "power_w": 699,
          "throttle_reasons": "sw_power_cap"}


def figure(gpu, value, metric=COMPUTE, unit="TFLOP/s", samples=5, node=None, **other):
    other.setdefault("explains", NORMAL if metric == COMPUTE else {})
    chance = random.Random(gpu)
    values = tuple(value * (1 + chance.uniform(-0.002, 0.002)) for _ in range(samples))
    return Figure("compute", (node or f"n{gpu // 8:03}",), metric, value, unit,
                  gpu=f"GPU-{gpu:08x}", samples=values, **other)


def fleet(metric=COMPUTE, value=650, count=16, spread=0.005, **other):
    chance = random.Random(1)
    return [figure(gpu, value * (1 + chance.uniform(-spread, spread)), metric, **other)
            for gpu in range(count)]


def explained(share, **seen):
    """The Finding about a GPU that reaches this share of its peers' rate."""
    figures = fleet()
    figures[3] = figure(3, 650 * share, explains={**NORMAL, **seen})
    found, = peers.judge(figures)
    return found


class Outliers(unittest.TestCase):
    def test_healthy(self):
        for metric, spread in [(COMPUTE, 0.04), (MEMORY, 0.01), (HOST, 0.002)]:
            self.assertEqual(peers.judge(fleet(metric, spread=spread, count=64)), [], metric)

    def test_limits_of_each_metric(self):
        for metric, share, outcome in [
                (COMPUTE, 0.96, None), (COMPUTE, 0.93, WARN), (COMPUTE, 0.88, FAIL),
                (MEMORY, 0.975, None), (MEMORY, 0.95, WARN), (MEMORY, 0.92, FAIL),
                (HOST, 0.985, None), (HOST, 0.96, WARN), (HOST, 0.88, FAIL),
                ("link/within_node/both/alone/median", 0.92, FAIL),
                ("setting/power_limit", 600 / 700, FAIL)]:
            figures = fleet(metric, 100, spread=0.001)
            figures[5] = figure(5, 100 * share, metric)
            found = peers.judge(figures)
            self.assertEqual([each.outcome for each in found], [outcome] if outcome else [],
                             (metric, share))
            if found:
                self.assertEqual((found[0].gpu, found[0].nodes, found[0].check),
                                 ("GPU-00000005", ("n000",), metric))

    def test_ratio_alone_is_not_enough(self):
        """12 % below, among GPUs that differ by as much: nobody is blamed, nor are the last cleared."""
        found = peers.judge([figure(i, value) for i, value in enumerate(
            (700, 690, 680, 655, 650, 645, 630, 610, 572))])
        self.assertEqual([(each.outcome, each.gpu) for each in found],
                         [(INCONCLUSIVE, "GPU-00000007"), (INCONCLUSIVE, "GPU-00000008")])

    def test_most_samples_must_be_slow(self):
        figures = fleet()
        for slow, outcomes in [(2, []), (3, [FAIL])]:
            samples = (500,) * slow + (650,) * (5 - slow)
            figures[3] = Figure("compute", ("n000",), COMPUTE, sorted(samples)[2], "TFLOP/s",
                                gpu="GPU-00000003", samples=samples, explains=NORMAL)
            self.assertEqual([each.outcome for each in peers.judge(figures)], outcomes)

    def test_one_sample_blames_nobody_and_clears_nobody(self):
        for value, outcome in [(600, WARN), (400, INCONCLUSIVE)]:
            figures = [figure(i, 650, samples=0) for i in range(8)]
            figures[2] = figure(2, value, samples=0)
            self.assertEqual([each.outcome for each in peers.judge(figures)], [outcome])

    def test_faster_is_not_wrong(self):
        figures = fleet()
        figures[3] = figure(3, 900)
        self.assertEqual(peers.judge(figures), [])

    def test_longer_is_worse_where_lower_is_better(self):
        figures = [Figure("training", (f"n{i}",), "train/resnet50/fp16/256/step",
                          24 if i != 4 else 30, "ms", higher_is_better=False,
                          samples=(24 if i != 4 else 30,) * 3) for i in range(8)]
        found, = peers.judge(figures)
        self.assertEqual((found.outcome, found.nodes), (FAIL, ("n4",)))

    def test_fewer_than_three(self):
        self.assertEqual(peers.judge([figure(0, 650), figure(1, 300)]), [])
        self.assertEqual(peers.judge([]), [])

    def test_only_comparable_figures(self):
        """Another model, another size, another stage, a group of nodes."""
        other = [figure(20 + i, 300, conditions={"device": "A100"}) for i in range(2)]
        group = Figure("collectives", ("n000", "n001"), COMPUTE, 1, "TFLOP/s")
        self.assertEqual(peers.judge(fleet() + other + [group]), [])

    def test_numa_nodes_differ(self):
        figures = [figure(i, 54.5 if i % 8 < 4 else 51.3, "host/both/all_at_once", "GB/s",
                          explains={"numa": f"node {i % 8 // 4}"}) for i in range(16)]
        self.assertEqual(peers.judge(figures), [])

    def test_ranks_of_a_cpu_warn(self):
        def of_cpu(rank, value):
            return Figure("compute", ("n000",), "compute/fp32/sustained", value, "TFLOP/s",
                          samples=(value,) * 5, conditions={"backend": "cpu"},
                          explains={"rank": rank})
        found, = peers.judge([of_cpu(rank, 1 if rank else 0.5) for rank in range(4)])
        self.assertEqual((found.outcome, found.subject), (WARN, "rank 0"))
        memory = [figure(rank, 1 if rank else 0.5, MEMORY, conditions={"backend": "cpu"})
                  for rank in range(4)]
        found, = peers.judge(memory)
        self.assertNotRegex(found.action, "RMA|nvidia|ECC")

    def test_ranks_that_share_cores_are_no_peers(self):
        self.assertEqual(peers.judge([Figure(
            "compute", ("n000",), "compute/fp32/sustained", 1 if rank else 0.3, "TFLOP/s", samples=(1,) * 5,
            conditions={"backend": "cpu"}, explains={"rank": rank, "shares": "3 ranks on 2 cores of n000"})
            for rank in range(3)]), [])

    def test_zero(self):
        figures = fleet()
        figures[3] = figure(3, 0)
        self.assertEqual([each.outcome for each in peers.judge(figures)], [FAIL])


class Spread(unittest.TestCase):
    """Peers among which z shows no outlier."""
    RATES = (50, 60, 70, 80, 100, 100, 100, 100)

    def test_far_below_the_better_half(self):
        for metric in (COMPUTE, MEMORY, HOST):
            found = peers.judge([figure(i, rate, metric, node=f"n{i}") for i, rate in enumerate(self.RATES)])
            self.assertEqual([(each.outcome, *each.nodes) for each in found],
                             [(INCONCLUSIVE, f"n{i}") for i in range(4)])
            self.assertIn("50 against 100 TFLOP/s, the median of the better half of 8 GPUs",
                          found[0].cause)

    def test_time_and_three_peers(self):
        times = [Figure("train", (f"n{i}",), "train/resnet50/step", 1000 / rate, "ms",
                        higher_is_better=False) for i, rate in enumerate(self.RATES)]
        self.assertEqual([each.nodes[0] for each in peers.judge(times)], ["n0", "n1", "n2", "n3"])
        found, = peers.judge([figure(i, rate) for i, rate in enumerate((100, 90, 50))])
        self.assertEqual((found.outcome, found.gpu), (INCONCLUSIVE, "GPU-00000002"))

    def test_ranks_of_a_cpu_are_not_judged_by_it(self):
        self.assertEqual(peers.judge([figure(i, rate, conditions={"backend": "cpu"})
                                      for i, rate in enumerate(self.RATES)]), [])

    def test_healthy_peers_are_not_concerned(self):
        """With the spread that healthy hardware was measured to have."""
        for seed in range(300):
            fleet_ = simulation.Fleet((1, 2, 4, 16)[seed % 4], seed)
            self.assertEqual([each for each in peers.judge(fleet_.figures())
                              if each.outcome != WARN], [], seed)


class Explained(unittest.TestCase):
    def test_cooling(self):
        found = explained(0.85, sm_clock_mhz=1300, temperature_c=83)
        self.assertEqual((found.outcome, found.class_), (FAIL, ENVIRONMENT))
        self.assertIn("15 % slow, all of it clock (1,300 against 1,530 MHz), 83 °C against 71: "
                      "cooling", found.cause)

    def test_thermal_slowdown_at_the_same_temperature(self):
        found = explained(0.85, sm_clock_mhz=1300, throttle_reasons="hw_thermal_slowdown")
        self.assertEqual(found.class_, ENVIRONMENT)

    def test_power_brake(self):
        found = explained(0.85, sm_clock_mhz=1300, throttle_reasons="hw_slowdown hw_power_brake")
        self.assertEqual(found.class_, ENVIRONMENT)
        self.assertIn("power supply", found.action)

    def test_lower_power_limit(self):
        found = explained(0.85, sm_clock_mhz=1300, power_w=560)
        self.assertEqual(found.class_, CONFIG)
        figures = fleet() + [figure(i, 600 if i == 3 else 700, "setting/power_limit", "W",
                                    samples=0) for i in range(16)]
        figures[3] = figure(3, 560, explains={**NORMAL, "sm_clock_mhz": 1320})
        found = {each.check: each for each in peers.judge(figures)}
        self.assertEqual({each.class_ for each in found.values()}, {CONFIG})
        self.assertIn("600 against 700 W", found[COMPUTE].cause)

    def test_at_the_power_limit_as_its_peers(self):
        self.assertEqual(explained(0.85, sm_clock_mhz=1300).class_, ENVIRONMENT)

    def test_locked_clock(self):
        found = explained(0.85, sm_clock_mhz=1300, throttle_reasons="")
        self.assertEqual(found.class_, CONFIG)
        self.assertIn("nvidia-smi -rgc", found.action)

    def test_slow_at_a_normal_clock(self):
        for clock in (1530, 1450):
            found = explained(0.8, sm_clock_mhz=clock)
            self.assertEqual((found.outcome, found.class_), (FAIL, HARDWARE))

    def test_unknown(self):
        self.assertEqual(explained(0.8, sm_clock_mhz=None).class_, "")
        self.assertEqual(explained(0.85, sm_clock_mhz=1300, throttle_reasons="unknown").class_, "")

    def test_what_no_clock_explains(self):
        figures = fleet(HOST, 55.3, spread=0.001)
        figures[3] = figure(3, 27, HOST)
        found, = peers.judge(figures)
        self.assertEqual((found.class_, "reseat" in found.action), (HARDWARE, True))


class TwoGroups(unittest.TestCase):
    def test_half_of_them_slow(self):
        """Median and MAD show nothing of it; it must not pass."""
        for slow in (6, 8, 10):
            figures = fleet(value=650)
            for gpu in range(slow):
                figures[gpu] = figure(gpu, 550 + gpu, node=f"n{gpu:03}")
            found = peers.judge(figures)
            self.assertEqual({each.outcome for each in found}, {INCONCLUSIVE}, slow)
            self.assertEqual({each.nodes for each in found},
                             {(f"n{gpu:03}",) for gpu in range(slow)})
            self.assertIn("two groups, n000 GPU 00000000, n001", found[0].cause)

    def test_a_third_of_them_slow(self):
        figures = fleet(value=650, count=18)
        for gpu in range(5):
            figures[gpu] = figure(gpu, 550 + gpu)
        self.assertEqual([each.outcome for each in peers.judge(figures)], [FAIL] * 5)


class Groups(unittest.TestCase):
    @staticmethod
    def of_group(first, size, *bandwidths, **conditions):
        nodes = tuple(f"n{first + i:03}" for i in range(size))
        return [Figure("all_reduce", nodes, f"collective/all_reduce/float/{2 ** (28 + i)}/"
                       "in_place/busbw", value, "GB/s", conditions=conditions)
                for i, value in enumerate(bandwidths)]

    def test_slower_than_most_of_its_size(self):
        groups = peer_groups.Groups()
        of_four = [self.of_group(4 * i, 4, 390 + i, 400 - i) for i in range(5)]
        self.assertEqual(groups.slow([*of_four, self.of_group(90, 4, 340, 345),
                                      self.of_group(50, 8, 200, 200)]), [False] * 5 + [True, False])
        for _ in range(5):  # those that were slow are no measure for those to come
            self.assertEqual(groups.slow([self.of_group(90, 4, 340, 345)]), [True])

    def test_most_of_its_bandwidths(self):
        of_four = [self.of_group(4 * i, 4, 400, 400, 400) for i in range(4)]
        for bandwidths, slow in [((300, 400, 400), False), ((300, 300, 400), True)]:
            found = peer_groups.Groups().slow([*of_four, self.of_group(90, 4, *bandwidths)])
            self.assertEqual(found[-1], slow)

    def test_not_comparable(self):
        groups = [self.of_group(4 * i, 4, 400) for i in range(2)]
        self.assertEqual(peer_groups.Groups().slow([*groups[:1], self.of_group(8, 4, 300)]),
                         [False, False])
        for conditions in ({"backend": "cpu"}, {"algorithm": "TREE"}):
            others = [self.of_group(4 * i, 4, 400, **conditions) for i in range(3)]
            last = {"backend": "cpu"} if "backend" in conditions else {}
            slow = peer_groups.Groups().slow([*others, self.of_group(90, 4, 300, **last)])
            self.assertEqual(slow, [False] * 4)
        self.assertEqual(peer_groups.Groups().slow([[]]), [False])


class Summary(unittest.TestCase):
    def test_lines(self):
        metric = "train/resnet50/fp16/256/images_per_s_per_rank"
        nodes = [Figure("training", (f"n{i:03}",), metric, 9400 if i == 17 else 10000, "images/s")
                 for i in range(128)]
        lines = peers.summary(nodes + fleet(MEMORY, 4270, unit="GB/s"))
        self.assertIn("n017 is 6 % below the median of 128 nodes (9,400 against 10,000 images/s)",
                      lines[0])
        self.assertIn("memory/copy: all of 16 GPUs within", lines[1])
        self.assertEqual(peers.summary(nodes[:2]), [])


if __name__ == "__main__":
    unittest.main()
