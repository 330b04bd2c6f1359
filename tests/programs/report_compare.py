"""What results/report makes of bin/compare's records; run by report_test.py."""

import json
import re

from report_records import (breakdown, exchange, header, link_cost, prediction, record, step,
                            training, winner)
from report_support import Report, row, unfolded


class Exchanges(Report):
    """`bucket` records."""

    def test_rounds_are_kept_apart_and_their_medians_taken(self):
        rounds = [exchange("zero1", i, hidden, exposed, repeat=n, exchange=operation)
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
        self.report(a, b, "--output", self.out)
        self.assertIn("2 exchanges a step (all_reduce), 50.0 % of their 8.00 ms",
                      self.text())

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

    def test_terms_are_of_one_round_and_so_add_up(self):
        rounds = [self.ladder(compute_ms=compute, exposed_comm_ms=exposed,
                              step_ms=1 + compute + exposed)
                  for compute, exposed in ((8, 1), (5, 9), (9, 2))]
        partly = breakdown("ddp", compute_ms=50, exposed_comm_ms=50)  # of a run without none
        text = self.text_of(step("ddp", 1000), *rounds, partly)
        # compute, exposed, interference, optimizer, step
        self.assertRegex(text, r"\(gpu, nccl\) +9\.00 +2\.00 +0\.50 \(12\.5 %\) +0\.50 +12\.00 ")

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


class WhatIf(Report):
    def test_the_links(self):
        text = self.text_of(link_cost(), link_cost("star", alpha_us=3.5, bandwidth_gbs=None,
                                                   worst_error=0), prediction("ddp", 10))
        self.assertIn("ring messages 10.0 us and 100 GB/s, half of it at 976.6 KiB (within 5.0 %); "
                      "sends of all ranks to one 3.5 us whatever their size (within 0.1 %)", text)

    def test_links_are_of_the_records_that_follow(self):
        text = self.text_of(link_cost(alpha_us=10), prediction("ddp", 10), prediction("ddp", 10),
                            link_cost(alpha_us=20), prediction("ddp", 20, precision="fp32"),
                            step("none", 1), step("none", 1, precision="fp32"))
        half, full = text[text.index("What if"):].split("fp32:")
        self.assertIn("ring messages 10.0 us", half)
        self.assertIn("ring messages 20.0 us", full)

    def test_the_models_error(self):
        def held(*errors):
            return self.text_of(*(
                prediction("ddp", 10 * (1 + error), batch_size=2 ** i, step_ms_measured=10.0,
                           error=error) for i, error in enumerate(errors)))
        text = held(0.01, -0.02, -0.05)
        self.assertIn("held against 3 measured steps, is off by 2.0 % in the median, most for ddp "
                      "at batch 4 a rank on 4 ranks: 9.50 ms predicted, 10.00 ms measured (-5.0 %); "
                      "2 of 3 are predicted too short", text)
        self.assertNotIn("rate without exchange", text)  # what was measured is not predicted besides
        self.assertIn("all are predicted too long", held(0.01, 0.02))
        self.assertIn("The step model, held against ddp at batch 1 a rank on 4 ranks: 9.00 ms "
                      "predicted, 10.00 ms measured (-10.0 %).", held(-0.1))

    def test_what_another_run_measured_is_held_against_the_prediction(self):
        small = self.write("2.jsonl", prediction("ddp", 11.0), prediction("ddp", 12, world_size=8),
                           head=header(world_size=2))
        large = self.write("4.jsonl", step("ddp", 1000, step_ms_p50=10.0))
        self.report(small, large, "--output", self.out)
        text = self.text()
        self.assertIn("11.00 ms predicted, 10.00 ms measured (+10.0 %)", text)
        self.assertIn("keep 90.0 % of the rate without exchange on 8 ranks", text)
        self.assertNotIn("on 4 ranks, ", text)

    def test_more_ranks_in_a_sentence_a_strategy_and_batch(self):
        ranks = {8: 0.9, 16: 0.85, 64: 0.7}
        text = self.text_of(*(
            prediction("ddp", 10, batch_size=batch, world_size=n, efficiency_predicted=kept,
                       images_per_s_predicted=100 * n, extrapolated=batch == 512)
            for batch in (64, 512) for n, kept in ranks.items()))
        self.assertIn("ddp at batch 64 a rank is predicted to keep 90.0 % of the rate without "
                      "exchange on 8 ranks, "
                      "85.0 % on 16 and 70.0 % on 64 (6,400 images/s), were their links as these.",
                      text)
        self.assertIn("ddp at batch 512 a rank is predicted to keep 90.0 % of the rate without "
                      "exchange on 8 "
                      "ranks, 85.0 % on 16 and 70.0 % on 64 (6,400 images/s), a batch outside the "
                      "measured ones.", text)
        self.assertEqual(text.count("the rate without exchange"), 2)
        bare = self.text_of(prediction("ddp", 10, world_size=64, images_per_s_predicted=8000,
                                       efficiency_predicted=None))
        self.assertIn("is predicted to reach 8,000 images/s on 64 ranks", bare)

    def test_bucket_plans(self):
        def plan(batch, best, sizes):
            return record("bucket_plan", "none", batch_size=batch, rule_buckets=5,
                          rule_exposed_ms=1.0, best_exposed_ms=best, best_buckets_mib=sizes)
        told = [prediction("ddp", 10.0, batch_size=64), prediction("ddp", 20.0, batch_size=256)]
        text = self.text_of(plan(64, 0.8, [8, 17]), plan(256, 0.8, [8, 17]), *told)
        self.assertIn("ddp's buckets at batch 64 and 256, by the model: the rule's 5 leave 1.000 ms "
                      "exposed, the best plan's 2 leave 0.800 ms: at most 2.0 % of the step to "
                      "gain, with 8, 17 MiB (float32).", text)
        text = self.text_of(plan(64, 0.99, [8, 17]), told[0])
        self.assertIn("the best plan's 2 leave 0.990 ms: 0.1 % of the step to gain.", text)

    def test_advice_by_gain(self):
        gains = [1.25, 30, 5, 0.5, 2, 4, 3]
        text = self.text_of(step("ddp", 1000), *(record("advice", "ddp", change=f"change {i}", gain_percent=gain,
                                     extrapolated=gain == 5) for i, gain in enumerate(gains)))
        self.assertIn("Advice for ddp at batch 64 a rank, images/s by the model: change 1 +30.0 %; "
                      "change 2 +5.0 % (extrapolated); change 5 +4.0 %; change 6 +3.0 %; change 4 "
                      "+2.0 %.", text)

    def test_the_map_of_winners(self):
        def said(measured):
            return self.text_of(link_cost(), prediction("ddp", 9, step_ms_measured=measured), *(
                winner(name, gbs, margin, batch_size=batch) for batch, gbs, name, margin in (
                    (64, 1, "zero1", 0.0004), (64, 100, "ddp", 0.137), (256, 100, "ddp", 0.0005))))
        text = said(measured=8)
        table = text[text.index("fastest strategy by the step model"):]
        self.assertRegex(table, r"batch +1 GB/s +100 GB/s \(measured\)\n")
        self.assertEqual(row(table, "64"), ["zero1 or another", "ddp +13.7 %"])
        self.assertEqual(row(table, "256"), ["-", "ddp +0.1 %"])
        self.assertIn("where steps were measured the model is off by 12.5 % in the median", table)
        wrong = said(measured=7)
        self.assertIn("left out, as it is off by more than 15.0 % for a step that was measured", wrong)
        self.assertNotIn("fastest strategy by the step model", wrong)

    def test_a_global_batch_is_not_kept_on_more_ranks(self):
        text = self.text_of(prediction("ddp", 10, world_size=8),
                            head=header(**{"options.global_batch": 256}))
        self.assertIn("ddp at batch 64 a rank is predicted to keep", text)
        self.assertNotIn("globally", text)


class Throttled(Report):
    def test_a_throttled_run_of_the_same_file_is_a_condition_of_its_own(self):
        def said(step_ms, measured, gbs, **throttle):
            return [step("ddp", 1000 / step_ms, step_ms_p50=measured, **throttle),
                    breakdown("ddp", compute_ms=step_ms) | throttle,
                    *(exchange("ddp", i, step_ms, **throttle) for i in range(2)),
                    link_cost(bandwidth_gbs=gbs),
                    prediction("ddp", step_ms, step_ms_measured=measured, **throttle),
                    prediction("ddp", step_ms, world_size=8, efficiency_predicted=1 / step_ms,
                               **throttle),
                    winner("ddp", gbs, 0.01, **throttle)]
        end = {"kind": "end", "exit_code": 0, "elapsed_s": 1}
        text = self.text_of(*said(2.0, 2.25, 300), end, header(), *said(5.0, 4.5, 3, throttle_gbs=3))
        what_if = text[text.index("What if"):]
        plain, slow = what_if.split("exchange throttled to 3 GB/s:", 1)
        for part, gbs, kept, error in ((plain, 300, 50, "-11.1 %"), (slow, 3, 20, "+11.1 %")):
            self.assertIn(f"10.0 us and {gbs} GB/s", part)
            self.assertIn(f"keep {kept}.0 % of the rate without exchange", part)
            self.assertIn(f"measured ({error})", part)
        self.assertNotIn("3 measured steps", text)
        self.assertIn("2 exchanges a step (all_reduce), 100.0 % of their 4.00 ms", text)
        self.assertIn("2 exchanges a step (all_reduce), 100.0 % of their 10.00 ms", text)
        self.assertNotIn("300 GB/s", slow[:slow.index("fastest strategy")])
        self.assertRegex(slow, r"links?: exchange throttled to 3 GB/s\nbatch +3 GB/s \(measured\)")


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
        self.report(*files, "--output", self.out)
        text = self.text()
        self.assertEqual(text.count("--learning-rate (1, 2)"), 1)
        self.assertIn("and 3 more configurations", text)
        self.assertNotIn("--repeats", text)
        self.assertNotIn("--strategies", text)
