"""results/report --against; run by report_test.py."""

import csv
import re
import shutil

from report_records import collective, header, link, step, training
from report_support import Report


class Comparison(Report):
    def against(self, old, new, *arguments, code):
        """Of records."""
        return self.compared("--against", self.write("old.jsonl", *old), self.write("new.jsonl", *new), *arguments,
                             code=code)

    def verdict(self, old, new, code, first="ddp", kind="steps"):
        """Verdict of a row."""
        return self.against(old, new, code=code).row(f"against_{kind}", first)["verdict"]


class Against(Comparison):
    def test_a_regression_fails_and_its_reverse_passes(self):
        fast, slow = [step("ddp", 1000, 0.005)], [step("ddp", 900, 0.005)]
        shown = self.against(fast, slow, code=1)
        self.assertEqual(shown.cells("against_steps", "ddp", "OLD", "low-high", "NEW", "change", "its interval", "verdict"),
                         ["1,000", "995-1,005", "900", "-10.0 %", "-10.9 to -9.1 %", "REGRESSION"])
        self.assertIn("Verdict: FAIL", shown.words)
        self.assertIn("faster", self.verdict(slow, fast, 0))
        self.assertIn("within 12 %", self.against(fast, slow, "--threshold", 12, code=0).row(
            "against_steps", "ddp")["verdict"])
        self.report("--against", self.folder / "old.jsonl", self.folder / "new.jsonl", "--csv", "--output", self.out, code=1)
        with (self.out / "against_steps.csv").open(newline="") as file:
            found, = csv.DictReader(file)
        self.assertEqual({key: round(float(found[key]), 4) for key in found if "(" in key}, {
            "OLD (images/s)": 1000, "OLD low (images/s)": 995, "OLD high (images/s)": 1005, "NEW (images/s)": 900,
            "NEW low (images/s)": 895.5, "NEW high (images/s)": 904.5, "change (fraction)": -0.1,
            "change low (fraction)": -0.109, "change high (fraction)": -0.091})

    def test_what_may_be_noise_is_neither_a_regression_nor_a_pass(self):
        fast, slow = [step("ddp", 1000, 0.1)], [step("ddp", 900, 0.1)]
        self.assertEqual(self.verdict(fast, slow, 3), "slower, intervals overlap")
        self.assertEqual(self.verdict(slow, fast, 0), "faster, intervals overlap")
        self.assertEqual(self.verdict([step("ddp", 1000)], [step("ddp", 900)], 3), "slower, spread unknown")
        self.assertEqual(self.verdict([step("ddp", 900)], [step("ddp", 1000)], 0), "faster")

    def test_a_regression_that_spares_the_median_step_is_one(self):
        def steady(rate, low, high):  # 0.1's interval, of the median step
            return step("ddp", rate, images_per_s_low=low, images_per_s_high=high)
        old, new = steady(10000, 9980, 10020), steady(9200, 9975, 10015)
        shown = self.against([old], [new], code=3)
        self.assertEqual(shown.cells("against_steps", "ddp", "change", "its interval", "verdict"),
                         ["-8.0 %", "no interval", "slower, spread unknown"])
        self.against([step("ddp", 10000, 0.002)], [new], code=1)
        shown = self.against([old] * 3, [new, steady(9300, 9975, 10015)], code=1)
        self.assertEqual(shown.cells("against_steps", "ddp", "low-high ", "change", "its interval"),
                         ["9,200-9,300", "-7.5 %", "-8.0 to -7.0 %"])

    def against_machines(self, old, new, code):
        """Each {(machine, nodes): images/s}."""
        for name, side in (("old", old), ("new", new)):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir()
            for i, ((gpu, nodes), rate) in enumerate(side.items()):
                self.write(f"{name}/{i}.jsonl", step("ddp", rate, 0.001), head=header(
                    gpu=gpu, hosts=[f"n{rank * nodes // 4}" for rank in range(4)]))
        return self.compared("--against", self.folder / "old", self.folder / "new", code=code)

    def test_machines_of_a_folder_are_not_mixed_up(self):
        both, one = {("H200", 1): 10000, ("H100", 1): 6000}, {("H200", 1): 10010}
        shown = self.against_machines(both, one, code=0)
        self.assertEqual(shown.cells("against_steps", "ddp, H200", "change", "verdict"), ["+0.1 %", "within 3 %"])
        self.assertIn("only in OLD: ddp, H100", shown.words)
        shown = self.against_machines(one, both, code=3)
        self.assertEqual(shown.cells("against_steps", "ddp, H200", "verdict"), ["within 3 %"])
        self.assertIn("not comparable, inconclusive: ddp: OLD on 1 node of H200, NEW on 1 node of H100", shown.words)
        shown = self.against_machines(one, {("H200", 1): 9000, ("H100", 1): 6000}, code=1)
        self.assertEqual(shown.cells("against_steps", "ddp, H200", "verdict"), ["REGRESSION"])

    def test_two_machines_are_compared_numbers_of_nodes_are_not(self):
        shown = self.against_machines({("H200", 2): 7000}, {("H200", 1): 10000}, code=3)
        self.assert_said(shown.words, "not comparable, inconclusive", "OLD on 2 nodes of H200", "NEW on 1 node of H200")
        self.assertEqual(shown.names("against_steps"), [])
        shown = self.against_machines({("H200", 1): 10000}, {("H100", 1): 6000}, code=3)
        self.assertIn("two machines", shown.words)
        self.assertEqual(shown.cells("against_steps", "ddp", "change", "verdict"), ["-40.0 %", "slower, other machine"])
        shown = self.against_machines({("H100", 1): 6000}, {("H200", 1): 10000}, code=0)
        self.assertIn("faster", shown.row("against_steps", "ddp")["verdict"])

    def test_efficiency_is_in_points_and_one_regression_is_enough(self):
        old = [step("none", 1000), step("ddp", 950, 0.01), step("all-reduce", 900)]
        shown = self.against(old, [step("none", 1000), step("ddp", 900, 0.01), step("all-reduce", 905)], code=1)
        self.assertEqual([shown.cells("against_steps", name, "efficiency", "verdict") for name in ("ddp", "all-reduce")],
                         [["-5.0 points", "REGRESSION"], ["+0.5 points", "within 3 %"]])
        shown = self.against(training("ddp", [0.9]), training("ddp", [0.85]), code=0)
        self.assertEqual(shown.cells("against_steps", "ddp", "accuracy"), ["-5.0 points"])

    def test_a_run_of_new_that_failed_or_crashed_is_named_and_no_pass(self):
        old, new = self.write("old.jsonl", step("ddp", 1000)), self.folder / "new.jsonl"
        for code in (1, 5):
            new.write_text(old.read_text().replace('"exit_code": 0', f'"exit_code": {code}'))
            self.assertIn("1 run, 1 failed", self.compared("--against", old, new, code=3).words)
        for code, both in ((3, 0), (5, 3)):  # what judges nothing does so in both; what was stopped lacks rows
            for path in (old, new):
                path.write_text(re.sub(r'"exit_code": \d', f'"exit_code": {code}', path.read_text()))
            self.report("--against", old, new, code=both)
        old, new = self.write("old.jsonl", step("ddp", 1000)), self.write("new.jsonl", step("ddp", 1000), ended=False)
        shown = self.compared("--against", old, new, code=3)
        self.assertIn("1 run, 1 crashed (no end record)", shown.words)
        self.assertIn("Verdict: INCONCLUSIVE", shown.words)
        self.report("--against", new, old, code=0)
        old, slower = (self.write(f"{rate}.jsonl", step("ddp", rate, 0.01), ended=rate > 500) for rate in (1000, 500))
        self.report("--against", old, slower, code=1)

    def test_what_only_one_has_is_named(self):
        old = [step("ddp", 1000), step("zero1", 900)]
        self.assertIn("only in OLD: zero1", self.against(old, old[:1], code=0).words)
        other = self.write("other.jsonl", step("ddp", 1000, batch_size=1))
        result = self.report("--against", other, self.write("r.jsonl", *old), code=3)
        self.assertIn("no configuration, collective or link in common", result.stderr)

    def test_collectives(self):
        old = [collective(2 ** n, 10.0) for n in (10, 20)] + [collective(0, 5.0)]
        shown = self.against(old, [collective(2 ** n, 10.1) for n in (10, 20)], code=0)
        self.assertIn("GB/s, threshold 3 %: float32, back to back", shown.words)
        self.assertEqual(shown.cells("against_collectives", "all_reduce, 1 KiB", "OLD", "change", "verdict"),
                         ["0.1536", "-1.0 %", "within 3 %"])
        for spread, code, verdict in ((0.005, 1, "REGRESSION"), (0.5, 3, "slower, intervals overlap")):
            slow = [collective(2 ** 10, 10.1), collective(2 ** 20, 12.0, spread=spread)]
            self.assertEqual(self.verdict(old, slow, code, "all_reduce, 1 MiB", "collectives"), verdict)
        other = self.write("b.jsonl", collective(2 ** 20, 12.0, launch_mode="graph"))
        self.assertIn("in common", self.report("--against", self.write("a.jsonl", *old), other, code=3).stderr)
        sides = [self.write(f"{n}.jsonl", *old, head=header(hosts=hosts))
                 for n, hosts in enumerate((["a"] * 4, ["a", "a", "b", "b"]))]
        self.assertIn("not comparable, inconclusive", self.compared("--against", *sides, code=3).words)

    def test_of_many_collectives_few_samples_do_not_make_a_regression(self):
        def night(rows, slow=None, more=1):
            times = {False: [10, 11, 12, 11, 10] * more, True: [20, 21, 22, 21, 20] * more}
            return [collective(8 * n, sorted(times[n == slow])[2], samples_us=times[n == slow]) for n in range(1, rows + 1)]
        for rows, more, code, verdict in ((30, 1, 3, "slower, too few samples"),  # by chance 30 of 252
                                          (7, 1, 1, "REGRESSION"), (59, 2, 1, "REGRESSION")):
            shown = self.against(night(rows, more=more), night(rows, 7, more), code=code)
            self.assertEqual(shown.cells("against_collectives", "all_reduce, 56 B", "verdict"), [verdict])
        self.assertEqual(shown.names("against_collectives"), ["all_reduce, 56 B"])  # of many, not those within 3 %

    def test_links_and_machines(self):
        old, new = ([link(*ends, gbs, time_us_cv=0.01) for ends, gbs in (((0, 1), forth), ((1, 0), back))]
                    for forth, back in ((300, 300), (299, 255)))
        shown = self.against(old, new, code=1)
        self.assertEqual([shown.cells("against_links", name, "NEW", "verdict") for name in ("0 to 1", "1 to 0")],
                         [["299", "within 3 %"], ["255", "REGRESSION"]])
        self.assertIn("off by two standard deviations", shown.words)
        sides = [self.write(f"{gpu}.jsonl", *records, head=header(gpu=gpu))
                 for gpu, records in (("H200", old), ("H100", new))]
        self.assertEqual(self.compared("--against", *sides, code=3).cells("against_links", "1 to 0", "verdict"),
                         ["slower, other machine"])


    def test_single_measurements_are_no_regression_where_the_spread_is_not_known(self):
        """Of GPUs' links the spread of messages stands for it. On CPUs messages, samples and steps of a run may all be slow."""
        for records, backend, code in ((step, "gpu", 1), (step, "cpu", 3), (collective, "gpu", 1), (collective, "cpu", 3)):
            self.against(*([records("ddp", rate, 0.01, backend=backend) if records is step else
                            records(2 ** 20, 1e4 / rate, backend=backend)] for rate in (1000, 850)), code=code)
        nights = [[step("ddp", rate + i, 0.01, backend="cpu") for i in range(3)] for rate in (1000, 850)]
        self.against(*nights, code=1)
        self.against(nights[0], nights[1][:1], code=1)
        rail = {"kind": "split", "scope": "rail", "name": "3", "world_size": 2, "bytes": 2 ** 20}
        for old, new, backend, code in ((0.01, 0.01, "gpu", 1), (0.5, 0.5, "gpu", 3), (0.01, 0.5, "gpu", 3), (0.01, 0.01, "cpu", 3),
                                        (None, None, "gpu", 3), (None, 0.01, "gpu", 1)):
            self.against(*([link(0, 1, gbs, backend=backend, **({} if cv is None else {"time_us_cv": cv}))]
                           for gbs, cv in ((100, old), (80, new))), code=code)
        self.assertEqual(self.verdict([{**rail, "busbw_gbs": 48}], [{**rail, "busbw_gbs": 30}], 3, "rail 3", "splits"),
                         "slower, spread unknown")

    def test_a_single_night_is_compared_with_how_far_those_before_it_differ(self):
        """Whatever its own interval: a loss of 15 % is found, and noise is no loss."""
        for nights, loss, code in (([100, 101, 99], 15, 1), ([100, 101, 99, 100, 102, 98, 100], 15, 1), ([100, 102], 15, 3),
                                   ([100, 115, 88, 106, 95], 15, 3), ([100, 120], 15, 3), ([100, 101, 99], 2, 0)):
            records = [link(0, 1, gbs) for gbs in nights]
            shown = self.against(records, [link(0, 1, sorted(nights)[len(nights) // 2] * (1 - loss / 100))], code=code)
            self.assertNotEqual(shown.row("against_links", "0 to 1")["its interval"], "no interval")
        for rate, code in ((85, 1), (96, 3), (99, 0)):
            self.against([step("ddp", night, 0.001) for night in (100, 101, 99, 100, 102, 98, 100)], [step("ddp", rate, 0.001)],
                         code=code)

    def test_few_ranges_of_links_may_be_disjoint_by_chance(self):
        pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
        old = [link(*pair, gbs) for pair in pairs for gbs in (100, 101)]
        new = [link(*pair, gbs * (0.8 if pair == (1, 2) else 1)) for pair in pairs for gbs in (100, 101)]
        self.assertEqual(self.verdict(old, new, 3, "1 to 2", "links"), "slower, too few samples")


class Folders(Report):
    def test_folders_of_an_acceptance(self):
        """Its own record, and node_check's, name the host alone: those of what computed name the machine, the nodes'
        folders two of one kind. Its stages are no repetitions: train is deterministic and slower than throughput, path
        includes NCCL's logging."""
        for node, rate in (("n1", 500), ("n2", 800)):
            (self.folder / node).mkdir()
            for program in ("acceptance", "node_check"):
                self.write(f"{node}/{program}.jsonl",
                           head={"kind": "run", "program": program, "host": node, "hosts": [node]})
            for stage, record, options in (
                    ("throughput", step("ddp", rate, 0.001), {}),
                    ("train", step("ddp", 300), {"options.deterministic": True}),
                    ("path", collective(2 ** 20, 1e6 / rate), {"options.path": True}),
                    ("collectives", collective(2 ** 20, 20), {"options.path": False})):
                self.write(f"{node}/{stage}.jsonl", record, head=header(host=node, hosts=[node] * 4, **options))
        folders = self.folder / "n1", self.folder / "n2"
        self.assertIn("OLD: NVIDIA H200, 6 runs", self.compared("--against", *folders).words)
        shown = self.compared("--against", *reversed(folders), code=1)
        self.assertEqual(shown.cells("against_steps", "ddp", "change", "verdict"), ["-37.5 %", "REGRESSION"])
        shown = self.shown_of(folders[0])
        self.assertEqual(shown.words.splitlines()[0], "NVIDIA H200, on n1")
        self.assertEqual(shown.row("strategies", "ddp, --deterministic")["images/s"], "300")
        latencies = [shown.row("collectives", name) for name in ("all_reduce, --path", "all_reduce")]
        self.assertEqual([next(cell for cell in row.values() if " at " in cell) for row in latencies],
                         ["2000.00 at 1 MiB", "20.00 at 1 MiB"])


class Watch(Report):
    """Nights compared with those before."""

    def nights(self, folder, rates, host="n1"):
        shutil.rmtree(self.folder / folder, ignore_errors=True)
        (self.folder / folder).mkdir()
        for at, rate in enumerate(rates):
            self.write(f"{folder}/{at}.jsonl", step("ddp", rate, 0.01), head=header(hosts=[host] * 4))
        return self.folder / folder

    def judged(self, old, new, code):
        return self.compared("--against", self.nights("old", old), self.nights("new", new), code=code)

    def test_one_bad_night_of_few_hides_no_loss(self):
        for good in ([100, 101], [100, 101, 99, 100, 102], [100] * 7):
            shown = self.judged([*good, 2], [2], 1)
            self.assertEqual(shown.cells("against_steps", "ddp", "verdict"), ["REGRESSION"])
            self.assertIn(f"OLD of ddp: left out 2 images/s, far from the median of {len(good) + 1} runs", shown.words)
        self.judged([100, 2], [2], 3)  # which of the two is bad is not known
        self.assertNotIn("left out", self.judged([100, 90, 110], [100], 0).words)

    def test_one_bad_night_of_new_does_not_pass(self):
        self.assertIn("single runs slower", self.judged([100, 101, 99], [100, 101, 2], 3).words)
        self.judged([100, 101, 99], [100, 101, 400], 0)

    def test_runs_that_are_in_both_are_left_out_of_old(self):
        old = self.nights("old", [100, 101, 2])
        self.assertIn("left out of OLD: 1 run that NEW has too", self.compared("--against", old, old / "2.jsonl", code=1).words)
        self.assertIn("the same runs", self.report("--against", old, old, code=2).stderr)

    def test_other_options_are_named(self):
        old, new, slow = (self.write(f"{order}{recompute}.jsonl", step("ddp", 100, 0.01, bucket_cap_mb=25), head=header(
            **{"options.bucket_order": order, "options.recompute": recompute, "options.learning_rate": recompute}))
            for order, recompute in (("small-first", False), ("small-last", False), ("small-first", True)))
        wide = self.write("wide.jsonl", step("ddp", 100, 0.01, bucket_cap_mb=100))
        same = self.write("same.jsonl", step("ddp", 100, 0.01), head=header())
        for other, words in ((new, "--bucket-order: small-first; small-last"), (slow, "--recompute: False; True"),
                             (wide, "--bucket-cap-mb: 25; 100"), (same, None)):
            shown = self.compared("--against", old, other).words
            self.assertIn(f"differ in {words}" if words else "", shown)
            self.assertEqual("differ in" in shown, words is not None)
            self.assertNotIn("--learning-rate", shown)
        (self.folder / "both").mkdir()
        for path in (old, new):
            shutil.copy(path, self.folder / "both")
        shown = self.compared("--against", self.folder / "both", new)
        self.assertEqual(shown.names("against_steps"), ["ddp (small-last)"])
        self.assertIn("only in OLD: ddp (small-first)", shown.words)

    def test_other_nodes_are_named(self):
        old = self.nights("old", [100])
        words = self.compared("--against", old, self.nights("new", [100], "n7")).words
        self.assertRegex(words, r"OLD: .* on n1\b(.|\n)*NEW: .* on n7\b")
        self.assertIn("OLD and NEW are of different nodes", words)
        self.assertNotIn(" on n1", self.compared("--against", old, self.nights("new", [100])).words)
