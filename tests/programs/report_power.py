"""results/report --power: faults drawn one by one, against the formulas of a soak's verdict; run by report_test.py."""

import dataclasses
import random

from report_support import Report
from support import TREE

from reporting import power
from reporting.reading import read_runs

SOAK = TREE / "results/0.2/h200/soak-5min-1gpu.jsonl"


def found(fault, tool, rates, total_s=120):
    windows = tool(total_s, rates)
    return sum(at <= total_s for at in power.times(fault, tool, windows, random.Random(1))) / power.FAULTS


class Power(Report):
    def test_95_of_100_faults_at_the_stated_power_are_found(self):
        rates = power.rates_of(read_runs([SOAK]))
        for total_s in (10, 120, 900):
            windows = power.soak(total_s, rates)
            products = sum(window.products for window in windows)
            turns = {name: sum(window.turns for window in windows if window.type == name) for name in rates.products}
            few = min(turns, key=turns.get)
            lane = power.Fault("e95", e=3 * power.UNITS["lane"] / power.ELEMENTS / turns[few])
            for fault, of in ((power.Fault("r95", r=3 / products), rates), (lane, None)):
                drawn = [window for window in windows if of or window.type == few]
                share = sum(at <= total_s for at in power.times(fault, power.soak, drawn, random.Random(1))) / power.FAULTS
                self.assertTrue(0.943 < share < 0.957, (fault, total_s, share))

    def test_a_faster_gpu_a_longer_soak_and_a_larger_fault_find_more(self):
        rates = power.rates_of(read_runs([SOAK]))
        faster = power.Rates({name: 3 * rate for name, rate in rates.products.items()})
        rare = power.Fault("", r=1e-5)
        stuck = power.Fault("", unit="SM", e=2e-9)
        for fault, tool in ((rare, power.soak), (rare, power.burn), (rare, power.loop), (stuck, power.soak)):
            share = found(fault, tool, rates)
            self.assertTrue(0 < share < 1, (fault, tool))
            if fault is rare:
                self.assertGreater(found(fault, tool, faster), share)
            self.assertGreater(found(fault, tool, rates, 900), share)
        self.assertGreater(found(dataclasses.replace(rare, r=1e-4), power.soak, rates), found(rare, power.soak, rates))
        self.assertGreater(found(dataclasses.replace(stuck, e=1e-8), power.soak, rates), found(stuck, power.soak, rates))

    def test_what_each_tool_cannot_see(self):
        rates = power.rates_of(read_runs([SOAK]))
        stuck = power.Fault("")
        for fault, by_soak, by_burn, by_loop in (
                (stuck, 1, 0, 0), (dataclasses.replace(stuck, q=0.01), 1, 1, 1), (dataclasses.replace(stuck, nan=True), 1, 0, 1),
                (dataclasses.replace(stuck, alike=True), 0, 0, 0),
                (dataclasses.replace(stuck, alike=True, integers=True), 1, 0, 0)):
            self.assertEqual([found(fault, tool, rates) for _, tool in power.TOOLS], [by_soak, by_burn, by_loop], fault)

    def test_a_share_is_0_or_100_only_where_it_is(self):
        self.assertEqual([power.percent(each / 4000) for each in (0, 1, 40, 3000, 3990, 3999, 4000)],
                         ["0", "<0.1", "1.0", "75", "99.8", ">99.9", "100"])

    def test_a_record_without_a_soak_is_named(self):
        self.assertIn("--power: the record has no steady products of bin/soak",
                      self.report("--power", TREE / "results/0.2/h200/judge-1.jsonl", code=2).stderr)
        self.assertIn("| 1e-9 of the products |", self.report("--power", SOAK).stdout)
