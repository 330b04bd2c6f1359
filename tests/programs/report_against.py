"""results/report --against and --side-by-side; run by report_test.py."""

import csv
import re
import shutil

from report_records import collective, header, link, step, training
from report_support import Report


class Against(Report):
    def against(self, old, new, *arguments, code):
        files = self.write("old.jsonl", *old), self.write("new.jsonl", *new)
        return self.report("--against", *files, *arguments, code=code).stdout

    def test_a_regression_fails_and_its_reverse_passes(self):
        fast, slow = [step("ddp", 1000, 0.005)], [step("ddp", 900, 0.005)]
        shown = self.against(fast, slow, code=1)
        self.assertRegex(shown, r"ddp +1,000 +995-1,005 +900 .*-10\.0 % .*REGRESSION")
        self.assertIn("-10.9 to -9.1 %", shown)
        self.assertIn("Verdict: FAIL", shown)
        self.assertIn("faster", self.against(slow, fast, code=0))
        self.assertIn("within 12 %", self.against(fast, slow, "--threshold", 12, "--csv", "--output",
                                                  self.out, code=0))
        with (self.out / "against_steps.csv").open(newline="") as file:
            found, = csv.DictReader(file)
        self.assertEqual({key: round(float(found[key]), 4) for key in found if "(" in key}, {
            "OLD (images/s)": 1000, "OLD low (images/s)": 995, "OLD high (images/s)": 1005,
            "NEW (images/s)": 900, "NEW low (images/s)": 895.5, "NEW high (images/s)": 904.5,
            "change (fraction)": -0.1, "change low (fraction)": -0.109,
            "change high (fraction)": -0.091})

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
        self.assertRegex(shown, r" 10,000 +9,200 +-8\.0 % +no interval +REGRESSION\n")
        self.assertIn("judged by the threshold alone", shown)
        self.assertIn("no interval", self.against([step("ddp", 10000, 0.002)], [new], code=1))
        shown = self.against([old] * 3, [new, steady(9300, 9975, 10015)], code=1)
        self.assertRegex(shown, r"9,200-9,300 +-7\.5 % +-8\.0 to -7\.0 % ")

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
        return shown

    def test_machines_of_a_folder_are_not_mixed_up(self):
        both, one = {("H200", 1): 10000, ("H100", 1): 6000}, {("H200", 1): 10010}
        shown = self.against_machines(both, one, code=0)
        self.assertRegex(shown, r"ddp, H200 .* \+0\.1 % .* within 3 %")
        self.assertRegex(shown, r"only in OLD: ddp, H100")
        shown = self.against_machines(one, both, code=3)
        self.assertRegex(shown, r"ddp, H200 .* -0\.1 % .* within 3 %")
        self.assertRegex(shown, r"not comparable, inconclusive: ddp: OLD on 1 node of H200, "
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
        self.assertIn("OLD against NEW, images/s, two machines, threshold 3 %", shown)
        self.assertRegex(shown, r"-40\.0 % .* slower, other machine")
        self.assertNotIn("REGRESSION", shown)
        self.assertRegex(self.against_machines({("H100", 1): 6000}, {("H200", 1): 10000}, code=0),
                         r"\+66\.7 % .* faster")

    def test_efficiency_is_in_points_and_one_regression_is_enough(self):
        old = [step("none", 1000), step("ddp", 950), step("all-reduce", 900)]
        new = [step("none", 1000), step("ddp", 900), step("all-reduce", 905)]
        shown = self.against(old, new, code=1)
        self.assertRegex(shown, r"ddp .*-5\.0 points +REGRESSION")
        self.assertRegex(shown, r"all-reduce .*\+0\.5 points +within 3 %")
        shown = self.against(training("ddp", [0.9]), training("ddp", [0.85]), code=0)
        self.assertIn("-5.0 points", shown)

    def test_a_failed_run_is_named_and_no_pass(self):
        old, new = self.write("old.jsonl", step("ddp", 1000)), self.folder / "new.jsonl"
        for code in (1, 5):
            new.write_text(old.read_text().replace('"exit_code": 0', f'"exit_code": {code}'))
            self.assertRegex(self.report("--against", old, new, code=3).stdout, r"NEW: .*1 run, 1 failed")
        for code, both in ((3, 0), (5, 3)):  # what judges nothing does so in both; what was stopped lacks rows
            for path in (old, new):
                path.write_text(re.sub(r'"exit_code": \d', f'"exit_code": {code}', path.read_text()))
            self.report("--against", old, new, code=both)

    def test_a_new_run_that_crashed_is_no_pass(self):
        old = self.write("old.jsonl", step("ddp", 1000))
        new = self.write("new.jsonl", step("ddp", 1000), ended=False)
        shown = self.report("--against", old, new, code=3).stdout
        self.assertIn("1 run, 1 crashed (no end record)", shown)
        self.assertIn("Verdict: INCONCLUSIVE", shown)
        self.assertIn("Verdict: PASS", self.report("--against", new, old, code=0).stdout)
        slower = self.write("slower.jsonl", step("ddp", 500), ended=False)
        self.report("--against", old, slower, code=1)

    def test_what_only_one_has_is_named(self):
        old = [step("ddp", 1000), step("zero1", 900)]
        self.assertIn("only in OLD: zero1", self.against(old, old[:1], code=0))
        other = self.write("other.jsonl", step("ddp", 1000, batch_size=1))
        result = self.report("--against", other, self.write("r.jsonl", *old), code=3)
        self.assertIn("no configuration, collective or link in common", result.stderr)

    def test_collectives(self):
        old = [collective(2 ** n, 10.0) for n in (10, 20)] + [collective(0, 5.0)]
        same = [collective(2 ** n, 10.1) for n in (10, 20)]
        shown = self.against(old, same, code=0)
        self.assertIn("OLD against NEW, GB/s, threshold 3 %: float32, back to back", shown)
        self.assertRegex(shown, r"(?m)^all_reduce, 1 KiB +0\.1536 .* -1\.0 % .* within 3 %$")
        slow = [collective(2 ** 10, 10.1), collective(2 ** 20, 12.0)]
        self.assertRegex(self.against(old, slow, code=1), r"1 MiB .* -16\.7 % .* REGRESSION")
        noisy = [collective(2 ** 10, 10.1), collective(2 ** 20, 12.0, spread=0.5)]
        self.assertRegex(self.against(old, noisy, code=3), r"1 MiB .* slower, intervals overlap")
        other = [collective(2 ** 20, 12.0, launch_mode="graph")]
        result = self.report("--against", self.write("a.jsonl", *old),
                             self.write("b.jsonl", *other), code=3)
        self.assertIn("in common", result.stderr)
        a, b = (self.write(f"{gpu}{n}.jsonl", *old, head=header(gpu=gpu, hosts=hosts))
                for n, gpu, hosts in ((1, "H200", ["a"] * 4), (2, "H200", ["a", "a", "b", "b"])))
        self.assertIn("not comparable, inconclusive", self.report("--against", a, b, code=3).stdout)

    def test_of_many_collectives_few_samples_do_not_make_a_regression(self):
        def row(size, times):
            return collective(size, sorted(times)[2], samples_us=times)
        old = [row(8 * n, [10, 11, 12, 11, 10]) for n in range(1, 31)]
        new = [row(8 * n, [20, 21, 22, 21, 20] if n == 7 else [10, 11, 12, 11, 10])
               for n in range(1, 31)]
        shown = self.against(old, new, code=3)  # by chance 30 of 252
        self.assertRegex(shown, r"56 B .* slower, too few samples")
        self.assertRegex(self.against(old[:7], new[:7], code=1), r"56 B .* REGRESSION")
        more = [row(8 * n, [10, 11, 12, 11, 10] * 2) for n in range(1, 60)]
        slow = [row(8 * n, [20, 21, 22, 21, 20] * 2) if n == 7 else row(8 * n, [10] * 10)
                for n in range(1, 60)]
        shown = self.against(more, slow, code=1)
        self.assertRegex(shown, r"56 B .* REGRESSION")
        self.assertNotRegex(shown, r"within 3 %$")

    def test_links_and_machines(self):
        old, new = [link(0, 1, 300), link(1, 0, 300)], [link(0, 1, 299), link(1, 0, 100)]
        shown = self.against(old, new, code=1)
        self.assertRegex(shown, r"0 to 1 +300 +299 .* within 3 %\n")
        self.assertRegex(shown, r"1 to 0 +300 +100 .* REGRESSION\n")
        a, b = (self.write(f"{gpu}.jsonl", *records, head=header(gpu=gpu))
                for gpu, records in (("H200", old), ("H100", new)))
        shown = self.report("--against", a, b, code=3).stdout
        self.assertIn("slower, other machine", shown)
        self.assertNotIn("REGRESSION", shown)


class SideBySide(Report):
    def test_machines_in_one_table_without_a_verdict(self):
        sides = [self.write(f"{gpu}.jsonl", step("ddp", rate), step("none", 1000), link(0, 1, gbs),
                            collective(2 ** 20, 100 * 330 / gbs), head=header(gpu=gpu))
                 for gpu, rate, gbs in (("H100", 500, 300), ("H200", 800, 330))]
        extra = self.write("B200.jsonl", step("ddp", 2000), head=header(gpu="B200"))
        shown = self.report("--side-by-side", *sides).stdout
        self.assertRegex(shown, r"H100 +H200 +ratio\n-+\nddp +500 +800 +1\.60\nnone +1,000 +1,000 ")
        self.assertRegex(shown, r"0 to 1.* 300 +330 +1\.10\n")
        self.assertRegex(shown, r"1 MiB.*\n.*\n-+\nall_reduce .* 1\.10\n")
        self.assertNotIn("erdict", shown)
        shown = self.report("--side-by-side", *sides, extra, "--csv", "--output", self.out).stdout
        self.assertRegex(shown, r"500 +800 +1\.60 +2,000 +4\.00")
        self.assertIn("not measured by all: 1 more", shown)
        with (self.out / "side_by_side_steps.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        self.assertEqual(rows[0][2:], ["H100 (images/s)", "H200 (images/s)", "H200 ratio",
                                       "B200 (images/s)", "B200 ratio"])
        self.assertEqual(rows[1][1:], ["ddp", "500", "800", "1.6", "2000", "4.0"])

    def test_folders_of_an_acceptance(self):
        """Its own record, and node_check's, name the host alone: those of what computed name the
        machine, the nodes' folders two of one kind. Its stages are no repetitions: train is
        deterministic and slower than throughput, path includes NCCL's logging."""
        for node, rate in (("n1", 500), ("n2", 800)):
            (self.folder / node).mkdir()
            for program in ("acceptance", "node_check"):
                self.write(f"{node}/{program}.jsonl",
                           head={"kind": "run", "program": program, "host": node, "hosts": [node]})
            for stage, record, options in (
                    ("throughput", step("ddp", rate), {}),
                    ("train", step("ddp", 300), {"options.deterministic": True}),
                    ("path", collective(2 ** 20, 1e6 / rate), {"options.path": True}),
                    ("collectives", collective(2 ** 20, 20), {"options.path": False})):
                self.write(f"{node}/{stage}.jsonl", record,
                           head=header(host=node, hosts=[node] * 4, **options))
        folders = self.folder / "n1", self.folder / "n2"
        shown = self.report("--side-by-side", *folders).stdout
        self.assertRegex(shown, r" n1 +n2 +ratio\n-+\nddp +500 +800 +1\.60\n"
                                r"ddp, --deterministic +300 +300 +1\.00\n")
        self.assertRegex(shown, r"(?m)^all_reduce +78\.64 +78\.64 +1\.00\n")
        shown = self.report("--against", *folders).stdout
        self.assertIn("OLD: NVIDIA H200, 6 runs", shown)
        shown = self.report("--against", *reversed(folders), code=1).stdout
        self.assertRegex(shown, r"ddp +800 +500 +-37\.5 % .* REGRESSION")
        text = self.report(folders[0], "--output", self.out, "--verbose").stdout
        self.assertIn("\nNVIDIA H200, on n1\nmeasured", text)
        self.assertRegex(text, r"ddp, --deterministic +300\n")
        self.assertRegex(text, r"all_reduce, --path +4 +2000\.00 at 1 MiB")
        self.assertRegex(text, r"all_reduce +4 +20\.00 at 1 MiB")

    def test_what_cannot_stand_side_by_side_is_named(self):
        a = self.write("a.jsonl", step("ddp", 500))
        self.assertIn("--side-by-side: needs two RUNs",
                      self.report("--side-by-side", a, code=2).stderr)
        b = self.write("b.jsonl", step("ddp", 500, batch_size=1))
        self.assertIn("in common", self.report("--side-by-side", a, b, code=3).stderr)
        self.assertIn("gone.jsonl: No such file",
                      self.report("--side-by-side", a, self.folder / "gone.jsonl", code=2).stderr)
        (self.folder / "two").mkdir()
        for gpu in ("H100", "H200"):
            self.write(f"two/{gpu}.jsonl", step("ddp", 1), head=header(gpu=gpu))
        self.assertIn("runs of several machines (H100, H200)",
                      self.report("--side-by-side", a, self.folder / "two", code=2).stderr)


class Watch(Report):
    """Nights compared with those before."""

    def nights(self, folder, rates, hosts=("n1",)):
        (self.folder / folder).mkdir()
        for at, rate in enumerate(rates):
            self.write(f"{folder}/{at}.jsonl", step("ddp", rate, 0.01), head=header(hosts=list(hosts) * 4))
        return self.folder / folder

    def judged(self, old, new, code):
        shown = self.report("--against", self.nights("old", old), self.nights("new", new), code=code).stdout
        for folder in ("old", "new"):
            shutil.rmtree(self.folder / folder)
        return shown

    def test_one_bad_night_of_few_hides_no_loss(self):
        for good in ([100, 101], [100, 101, 99, 100, 102], [100] * 7):
            shown = self.judged([*good, 2], [2], 1)
            self.assertIn("REGRESSION", shown)
            self.assertRegex(shown, rf"OLD of ddp: left out 2 images/s, far from the median of {len(good) + 1} runs")
        self.judged([100, 2], [2], 3)  # which of the two is bad is not known
        self.assertNotIn("left out", self.judged([100, 90, 110], [100], 0))

    def test_one_bad_night_of_new_does_not_pass(self):
        self.assertIn("single runs slower", self.judged([100, 101, 99], [100, 101, 2], 3))
        self.judged([100, 101, 99], [100, 101, 400], 0)

    def test_runs_that_are_in_both_are_left_out_of_old(self):
        old = self.nights("old", [100, 101, 2])
        shown = self.report("--against", old, old / "2.jsonl", code=1).stdout
        self.assertIn("left out of OLD: 1 run that NEW has too", shown)
        self.assertIn("the same runs", self.report("--against", old, old, code=2).stderr)

    def test_other_options_are_named(self):
        old, new, slow = (self.write(f"{order}{recompute}.jsonl", step("ddp", 100, 0.01, bucket_cap_mb=25), head=header(
            **{"options.bucket_order": order, "options.recompute": recompute, "options.learning_rate": recompute}))
            for order, recompute in (("small-first", False), ("small-last", False), ("small-first", True)))
        self.assertIn("differ in --bucket-order: small-first; small-last", self.report("--against", old, new).stdout)
        (self.folder / "both").mkdir()
        for path in (old, new):
            shutil.copy(path, self.folder / "both")
        self.assertRegex(self.report("--against", self.folder / "both", new).stdout,
                         r"ddp \(small-last\) +100 .*\n(.*\n)*only in OLD: ddp \(small-first\)")
        shown = self.report("--against", old, slow).stdout
        self.assertIn("differ in --recompute: False; True", shown)
        self.assertNotIn("--learning-rate", shown)
        wide = self.write("wide.jsonl", step("ddp", 100, 0.01, bucket_cap_mb=100))
        self.assertIn("differ in --bucket-cap-mb: 25; 100", self.report("--against", old, wide).stdout)
        self.assertNotIn("differ in", self.report("--against", old, self.write(
            "same.jsonl", step("ddp", 100, 0.01), head=header())).stdout)

    def test_other_nodes_are_named(self):
        old, new = self.nights("old", [100], ("n1",)), self.nights("new", [100], ("n7",))
        shown = self.report("--against", old, new).stdout
        self.assertRegex(shown, r"OLD: .* on n1\b(.|\n)*NEW: .* on n7\b")
        self.assertIn("OLD and NEW are of different nodes", shown)
        shutil.rmtree(new)
        self.assertNotIn(" on n1", self.report("--against", old, self.nights("new", [100])).stdout)
