"""What results/report makes of bin/compare's records; run by report_test.py."""

import json
import re

from report_records import breakdown, exchange, header, step, training
from report_support import Report, row


class Exchanges(Report):
    """`bucket` records."""

    def test_rounds_are_kept_apart_and_their_medians_taken(self):
        rounds = [exchange("zero1", i, hidden, exposed, repeat=n, operation=operation)
                  for n, more in ((1, 0), (2, 0.5), (3, 7))
                  for i, (hidden, exposed, operation) in enumerate(
                      [(1 + more, 0.0, "reduce_scatter"), (0.25 + more, 0.25, "all_gather")])]
        text = self.text_of(step("zero1", 1000), *rounds)
        self.assertIn("zero1: 2 exchanges a step (1 reduce_scatter, 1 all_gather), 90.0 % of their "
                      "2.50 ms hidden behind computing; exchange 1 (1 MiB) has the largest part of "
                      "the 0.25 ms exposed, 0.25 ms", text)
        self.assertNotIn("backward", text)
        self.assertNotIn("6 exchanges", text)

    def test_of_rounds_with_other_exchanges_the_last_counts(self):
        rounds = [exchange("ddp", i, 1.0, 1.0, repeat=n, bytes=n << 20)
                  for n, count in ((1, 2), (2, 3)) for i in range(count)]
        text = self.text_of(step("ddp", 1000), *rounds)
        self.assertIn("ddp: 3 exchanges a step (all_reduce), 50.0 % of their 6.00 ms", text)

    def test_runs_are_rounds_too(self):
        a = self.write("a.jsonl", *(exchange("ddp", i, 1.0, 1.0) for i in range(2)))
        b = self.write("b.jsonl", *(exchange("ddp", i, 3.0, 3.0) for i in range(2)))
        self.report(a, b, "--output", self.out, env=self.without("matplotlib"))
        self.assertIn("2 exchanges a step (all_reduce), 50.0 % of their 8.00 ms",
                      (self.out / "performance_report.txt").read_text())

    def test_a_straggler_is_told_where_it_costs(self):
        def text(wait, ranks=(3, 3, 0)):
            return self.text_of(step("ddp", 1000), *(
                exchange("ddp", i, 1.0, wait_ms=wait, straggler_rank=rank, straggler_share=0.75)
                for i, rank in enumerate(ranks)))
        self.assertIn("ddp: waiting for the last rank is 0.18 ms of the 3.00 ms of its exchanges "
                      "(6.0 %, mean over the ranks); rank 3 is last for 2 of 3, in 75 % of the "
                      "steps", text(0.06))
        self.assertNotIn("last rank", text(0.04))
        self.assertIn("of the 1.00 ms of its exchange (50.0 %, mean over the ranks); rank 2 is "
                      "last, in 75 %", text(0.5, [2]))

    def test_who_counted_the_bytes(self):
        def text(**figures):
            return self.text_of(step("ddp", 1000, bytes_per_step_predicted=[100, 100],
                                     bytes_per_step_measured=[101, 110], **figures))
        self.assertIn("ddp: rank 1 sends most, 110 B a step by the GPUs' NVLink counters; 100 B are "
                      "predicted (+10.0 %)", text(bytes_source="nvlink"))
        self.assertIn("110 B a step by the GPUs' NVLink counters, 105 B by the communicator's; 100 "
                      "B are", text(bytes_source="nvlink", bytes_per_step_counted=[105, 105]))
        self.assertIn("110 B a step by the communicator's count; 100 B are",
                      text(bytes_source="communicator", bytes_per_step_counted=[101, 110]))

    def test_the_time_line_shows_what_overlaps_and_says_what_it_leaves_out(self):
        records = []
        for batch in (16, 64, 128, 256):
            for ranks in (2, 4):
                for name, count in (("ddp", 5), ("fsdp", 54), ("zero1", 10), ("zero2", 10)):
                    records += [exchange(name, i, 1.0, batch_size=batch, world_size=ranks)
                                for i in range(count)]
                records += [exchange("all-reduce", 0, 0.0, 1.0, batch_size=batch, world_size=ranks)]
        self.with_plots(self.write("r.jsonl", *records))
        page = (self.out / "comparison_report.html").read_text()
        self.assertIn("<figcaption>Exchanges of a step (left out: all-reduce, where nothing is "
                      "hidden; fewer ranks; 7 more panels)</figcaption>", page)
        data = (self.out / "plots/bucket_timeline.png").read_bytes()
        width, height = (int.from_bytes(data[at:at + 4], "big") for at in (16, 20))
        self.assertLess(height, 2400)
        self.assertLess(width, 2000)


class Terms(Report):
    """`breakdown` records."""

    def ladder(self, **changes):
        return breakdown("ddp", **{"compute_ms": 8.0, "exposed_comm_ms": 1.0, "optimizer_ms": 0.5,
                                   "interference_ms": 0.5, "residual_ms": 0.0}) | {
            "none_step_ms": 8.5, "comm_alone_ms": 3.0, "serial_step_ms": 12.5, "comm_ms": 4.0,
            "hidden_comm_ms": 3.0, "interference_slowdown": 0.125, "residual": 0.0, **changes}

    def test_what_overlap_hides_gains_and_costs(self):
        text = self.text_of(step("ddp", 1000), self.ladder())
        self.assertIn("ddp: communication takes 4.00 ms a step, 3.00 ms (75.0 %) of it hidden behind "
                      "computing; the step waits 1.00 ms for it", text)
        self.assertIn("ddp: with the same exchanges in turn with computing its step takes 4.00 ms "
                      "more than none's; overlap saves 2.50 ms of that (62 %), and computing is "
                      "12.5 % slower while an exchange goes on (0.50 ms a step)", text)
        text = self.text_of(step("ddp", 1000), self.ladder(
            serial_step_ms=9.0, hidden_comm_ms=0, interference_ms=0, interference_slowdown=0))
        self.assertIn("communication takes 4.00 ms a step, none of it hidden", text)
        self.assertIn("0.50 ms more than none's; overlap saves nothing, it takes 1.00 ms more.",
                      text)

    def test_gains_are_within_a_round(self):
        # Between rounds the step drifts by more than overlap gains.
        drifting = [self.ladder(step_ms=step_ms, serial_step_ms=step_ms + 0.5, repeat=n)
                    for n, step_ms in enumerate((10.0, 14.0, 12.0), 1)]
        self.assertIn("overlap saves 0.50 ms of that", self.text_of(step("ddp", 1000), *drifting))
        drifting[0]["serial_step_ms"] = 9.0
        self.assertIn("the rounds do not tell whether overlap saves anything (-1.00 ms to 0.50 ms)",
                      self.text_of(step("ddp", 1000), *drifting))

    def test_a_strategy_that_does_not_overlap_gains_nothing_by_it(self):
        plain = self.ladder()
        del plain["serial_step_ms"]
        self.assertNotIn("overlap", self.text_of(step("ddp", 1000), plain))

    def test_an_account_that_does_not_add_up(self):
        wrong = "the account of its step does not add up"
        self.assertIn(f"ddp: {wrong}: 0.30 ms (3.0 %) are in none of its terms",
                      self.text_of(step("ddp", 1000), self.ladder(residual_ms=0.3)))
        self.assertIn(f"ddp: {wrong}: 0.30 ms (3.0 %) too much are in its terms",
                      self.text_of(step("ddp", 1000), self.ladder(residual_ms=-0.3)))
        self.assertNotIn(wrong, self.text_of(step("ddp", 1000), self.ladder(residual_ms=0.1)))
        self.assertNotIn(wrong, self.text_of(step("ddp", 1000, backend="cpu"), self.ladder(
            residual_ms=0.3, backend="cpu")))

    def test_the_table(self):
        none = breakdown("none", compute_ms=8.0, input_stall_ms=0.0, optimizer_ms=0.5,
                         residual_ms=-0.001) | {"none_step_ms": 8.5, "comm_alone_ms": 0.01}
        text = self.text_of(none, self.ladder(residual_ms=0.1, residual=0.01, input_stall_ms=0.0))
        table = text[text.index("where a step's time goes, ms"):]
        head = table.splitlines()[1]
        self.assertLessEqual(len(head), 142)
        self.assertEqual(re.split("  +", head), [
            "method", "compute", "exposed", "interference", "optimizer", "residual", "step",
            "hidden", "none's step", "exchange alone", "serial"])  # no column for the input's stall
        self.assertEqual(row(table, "ddp"), ["8.00", "1.00", "0.50 (12.5 %)", "0.50",
                                             "0.10 (1.0 %)", "10.00", "3.00", "8.50", "3.00",
                                             "12.50"])
        self.assertEqual(row(table, "none"), ["8.00", "-", "-", "0.50", "0.00", "8.50", "-", "-",
                                              "-", "-"])

    def test_scripts_find_the_terms(self):
        self.text_of(step("ddp", 1000), self.ladder(), step("all-reduce", 900))
        ddp = json.loads((self.out / "results_baseline_ddp.json").read_text())
        self.assertEqual([ddp[key] for key in (
            "hidden_communication_ms", "hidden_share", "breakdown.compute_ms",
            "breakdown.interference_slowdown", "breakdown.serial_step_ms")],
            [3.0, 0.75, 8.0, 0.125, 12.5])
        other = json.loads((self.out / "results_all_reduce.json").read_text())
        self.assertIsNone(other["hidden_share"])
        self.assertIsNone(other["breakdown.compute_ms"])


class BucketCaps(Report):
    def test_caps_are_methods_of_their_own(self):
        text = self.text_of(step("ddp", 1000, bucket_cap_mb=25.0), step("ddp", 900, bucket_cap_mb=4),
                            step("all-reduce", 800), exchange("ddp", 0, 1.0, bucket_cap_mb=4))
        self.assertIn("ddp (25 MiB) 1,000 images/s, ddp (4 MiB) 900 (10.0 % less", text)
        ddp = json.loads((self.out / "results_baseline_ddp.json").read_text())
        self.assertEqual((ddp["strategy"], ddp["bucket_cap_mb"]), ("ddp", 25))
        self.assertEqual(ddp["other_configurations"][0]["bucket_cap_mb"], 4)
        one = self.text_of(step("ddp", 1000, bucket_cap_mb=25.0), step("ddp", 900, bucket_cap_mb=25))
        self.assertEqual(row(one, "ddp")[5], "2 runs")

    def test_differing_options_are_told_once(self):
        names = ("none", "ddp", "zero1")
        files = [self.write(f"{rate}.jsonl", *(step(name, 1000) for name in names), *training(
            "ddp", [0.5]), head=header(**{"options.learning_rate": rate, "options.repeats": rate,
                                          "options.strategies": list(names)[:rate]}))
                 for rate in (1, 2)]
        self.report(*files, "--output", self.out, env=self.without("matplotlib"))
        text = (self.out / "performance_report.txt").read_text()
        self.assertEqual(text.count("--learning-rate (1, 2)"), 1)
        self.assertIn("and 3 more configurations", text)
        self.assertNotIn("--repeats", text)
        self.assertNotIn("--strategies", text)
