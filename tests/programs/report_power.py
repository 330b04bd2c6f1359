"""results/report --power: shares of faults that are found, next to the formulas of a soak's verdict; run by report_test.py."""

import random

from report_support import Report
from support import TREE

from reporting import power
from reporting.reading import read_runs

SOAK = TREE / "results/0.2/h200/soak-5min-1gpu.jsonl"
PLACEMENTS = TREE / "results/0.2/h200/placements.jsonl"


class Power(Report):
    def setUp(self):
        super().setUp()
        self.rates = power.rates_of(read_runs([SOAK, PLACEMENTS]))

    def found(self, fault, tool, rates=None, total_s=120):
        return power.share(fault, tool, tool(total_s, rates or self.rates))

    def test_95_of_100_faults_at_the_stated_power_are_found(self):
        for total_s in (10, 120, 900):
            windows = power.soak(total_s, self.rates)
            turns = {name: sum(window.turns for window in windows if window.type == name) for name in self.rates.products}
            few = min(turns, key=turns.get)
            lane = power.Fault("", e=3 * power.UNITS["lane"] / power.ELEMENTS / turns[few])
            rare = power.Fault("", r=3 / sum(window.products for window in windows))
            for fault, of in ((rare, windows), (lane, [window for window in windows if window.type == few])):
                self.assertAlmostEqual(power.share(fault, power.soak, of), 0.95, delta=0.003)

    def test_what_each_tool_cannot_see(self):
        for more, by_soak, by_burn, by_loop in (
                ({"q": 0.0}, 1, 0, 0), ({"q": 0.01}, 1, 1, 1), ({}, 1, 1, 1), ({"nan": True}, 1, 0, 1), ({"alike": True}, 0, 0, 0),
                ({"alike": True, "integers": True}, 1, 0, 0)):
            for (_, tool), share in zip(power.TOOLS, (by_soak, by_burn, by_loop)):
                self.assertAlmostEqual(self.found(power.Fault("", **more), tool), share, 6, more)

    def test_moving_blocks_show_a_fault_that_sticks(self):
        """As often as in simulated products, whose blocks are on other SMs in a share q of them: then each element is in the unit by
        chance, anew."""
        chance, of, products = random.Random(1), 2000, 100
        for unit, e, q in (("SM", 3e-8, 0.8), ("SM", 1e-6, 0.1), ("lane", 1e-4, 0.8), ("lane", 1e-4, 0.02)):
            excited, found = e * power.ELEMENTS, 0  # elements of the product
            for _ in range(of):
                elements = round(chance.gauss(excited, excited ** 0.5)) if excited > 50 else sum(
                    chance.random() < excited / 100 for _ in range(100))
                shown = 1 - (1 - 1 / power.UNITS[unit]) ** elements  # that one of them is in the unit
                first = chance.random() < shown
                found += any(chance.random() < q and (first or chance.random() < shown) for _ in range(products))
            windows = [power.Window("bf16", 1.0, products, q=q)]
            self.assertAlmostEqual(power.share(power.Fault("", unit, e=e), power.loop, windows), found / of, delta=0.04)

    def test_half_of_the_faults(self):
        windows = [power.Window("fp32", end, 10) for end in range(1, 101)]
        for rate, end in ((1, 1), (0.01, 7), (1e-3, 70), (1e-4, float("inf"))):  # ln 2 / rate products
            self.assertEqual(power.median(power.Fault("", r=rate), power.soak, windows), end)

    def test_a_share_is_0_or_100_only_where_it_is(self):
        self.assertEqual([power.percent(each / 4000) for each in (0, 1, 40, 3000, 3990, 3999, 4000)],
                         ["0", "<0.1", "1.0", "75", "99.8", ">99.9", "100"])

    def test_a_record_without_a_soak_is_named(self):
        self.assertIn("--power: the record has no steady products of bin/soak",
                      self.report("--power", TREE / "results/0.2/h200/judge-1.jsonl", code=2).stderr)
        lacking = self.write("lacking.jsonl", {"kind": "soak"}, {"kind": "soak", "phase": "steady products fp32", "seconds": None})
        self.assertIn("no steady products", self.report("--power", lacking, code=2).stderr)
        alone = self.report("--power", SOAK).stdout  # what is not known of other tools is not 0
        self.assertIn("q: not measured.", alone)
        self.assertNotIn("gpu-burn", alone)
        moving = self.report("--power", SOAK, PLACEMENTS).stdout
        self.assertIn("q: bf16 0.8, ", moving)
        self.assertIn("| 1e-9 of the products |", moving)
