"""results/report --against; run by report_test.py."""

import re
import shutil

from report_records import header, step, training
from report_support import Report


class Against(Report):
    def against(self, old, new, *arguments, code):
        files = self.write("old.jsonl", *old), self.write("new.jsonl", *new)
        return self.report("--against", *files, *arguments, code=code).stdout

    def test_a_regression_fails_and_its_reverse_passes(self):
        fast, slow = [step("ddp", 1000, 0.005)], [step("ddp", 900, 0.005)]
        shown = self.against(fast, slow, code=1)
        self.assertRegex(shown, r"ddp, .* 1,000 +995 to 1,005 +900 .*-10\.0 % .*REGRESSION")
        self.assertIn("-10.9 % to -9.1 %", shown)
        self.assertIn("faster", self.against(slow, fast, code=0))
        self.assertIn("within 12 %", self.against(fast, slow, "--threshold", 12, code=0))

    def test_what_may_be_noise_is_neither_a_regression_nor_a_pass(self):
        fast, slow = [step("ddp", 1000, 0.1)], [step("ddp", 900, 0.1)]
        self.assertRegex(self.against(fast, slow, code=3), r"-10\.0 % .* slower, intervals overlap")
        self.assertRegex(self.against(slow, fast, code=0), r"\+11\.1 % .* faster, intervals overl")
        self.assertIn("REGRESSION", self.against([step("ddp", 1000)], [step("ddp", 900)], code=1))

    def test_a_regression_that_spares_the_median_step_is_one(self):
        def steady(rate, low, high):  # 0.1's interval, of the median step
            return step("ddp", rate, images_per_s_low=low, images_per_s_high=high)
        old, new = steady(10000, 9980, 10020), steady(9200, 9975, 10015)
        shown = self.against([old], [new], code=1)
        self.assertRegex(shown, r" 10,000 +- +9,200 +- +-8\.0 % +no interval .* REGRESSION\n")
        self.assertIn("judged by the threshold alone", shown)
        self.assertIn("no interval", self.against([step("ddp", 10000, 0.002)], [new], code=1))
        shown = self.against([old] * 3, [new, steady(9300, 9975, 10015)], code=1)
        self.assertRegex(shown, r"9,200 to 9,300 +-7\.5 % +-8\.0 % to -7\.0 % ")

    def against_machines(self, old, new, code):
        """Each {(machine, nodes): images/s}."""
        sides = []
        for name, side in (("old", old), ("new", new)):
            (self.folder / name).mkdir(exist_ok=True)
            sides.append(self.folder / name)
            for i, ((gpu, nodes), rate) in enumerate(side.items()):
                hosts = [f"n{rank * nodes // 4}" for rank in range(4)]
                self.write(f"{name}/{i}.jsonl", step("ddp", rate),
                           head=header(gpu=gpu, hosts=hosts))
        shown = self.report("--against", *sides, code=code).stdout
        shutil.rmtree(sides[0])
        shutil.rmtree(sides[1])
        return re.sub(r"(?<=[^-\n])\n(?=[a-z])", " ", shown)

    def test_machines_of_a_folder_are_not_mixed_up(self):
        both, one = {("H200", 1): 10000, ("H100", 1): 6000}, {("H200", 1): 10010}
        shown = self.against_machines(both, one, code=0)
        self.assertRegex(shown, r"ddp, .* H200 .* \+0\.1 % .* within 3 %")
        self.assertRegex(shown, r"only in OLD: ddp, .* H100")
        shown = self.against_machines(one, both, code=3)
        self.assertRegex(shown, r"ddp, .* H200 .* -0\.1 % .* within 3 %")
        self.assertRegex(shown, r"not comparable, inconclusive: ddp, .* OLD on 1 node of H200, "
                                r"NEW on 1 node of H100")
        slow = {("H200", 1): 9000, ("H100", 1): 6000}
        self.assertRegex(self.against_machines(one, slow, code=1), r"H200 .* REGRESSION")

    def test_numbers_of_nodes_are_not_compared(self):
        shown = self.against_machines({("H200", 2): 7000}, {("H200", 1): 10000}, code=3)
        self.assertRegex(shown, r"not comparable, inconclusive: .*: OLD on 2 nodes of H200, "
                                r"NEW on 1 node of H200")
        self.assertNotIn("faster", shown)

    def test_two_machines_are_compared_and_that_is_said(self):
        shown = self.against_machines({("H200", 1): 10000}, {("H100", 1): 6000}, code=3)
        self.assertIn("OLD against NEW, two machines, threshold 3 %", shown)
        self.assertRegex(shown, r"-40\.0 % .* slower, other machine")
        self.assertNotIn("REGRESSION", shown)
        self.assertRegex(self.against_machines({("H100", 1): 6000}, {("H200", 1): 10000}, code=0),
                         r"\+66\.7 % .* faster")

    def test_efficiency_is_in_points_and_one_regression_is_enough(self):
        old = [step("none", 1000), step("ddp", 950), step("all-reduce", 900)]
        new = [step("none", 1000), step("ddp", 900), step("all-reduce", 905)]
        shown = self.against(old, new, code=1)
        self.assertRegex(shown, r"ddp, .*-5\.0 points +- +REGRESSION")
        self.assertRegex(shown, r"all-reduce, .*\+0\.5 points +- +within 3 %")
        shown = self.against(training("ddp", [0.9]), training("ddp", [0.85]), code=0)
        self.assertIn("-5.0 points", shown)

    def test_a_failed_run_is_told(self):
        old, new = self.write("old.jsonl", step("ddp", 1000)), self.folder / "new.jsonl"
        new.write_text(old.read_text().replace('"exit_code": 0', '"exit_code": 1'))
        self.assertRegex(self.report("--against", old, new).stdout,
                         r"NEW: .*1 run, 1 of them failed")

    def test_what_only_one_has_is_named(self):
        old = [step("ddp", 1000), step("zero1", 900)]
        self.assertIn("only in OLD: zero1", self.against(old, old[:1], code=0))
        other = self.write("other.jsonl", step("ddp", 1000, batch_size=1))
        result = self.report("--against", other, self.write("r.jsonl", *old), code=2)
        self.assertIn("no configuration in common", result.stderr)
