"""results/report on bin/compare's records; run by report_test.py."""

import json

from report_records import (breakdown, exchange, header, link_cost, prediction, record, step,
                            training, winner)
from report_support import Report, row, table


class Exchanges(Report):
    """`bucket` records."""

    @staticmethod
    def found(text, strategy):
        return {**row(table(text, "communication per step"), strategy),
                **row(table(text, "exchanges per step"), strategy)}

    def exchanged(self, *records):
        return self.found(self.text_of(*records), records[-1]["strategy"])

    def test_rounds_are_kept_apart_and_their_medians_taken(self):
        rounds = [exchange("zero1", i, hidden, exposed, repeat=n, exchange=operation)
                  for n, more in ((1, 0), (2, 0.5), (3, 7))
                  for i, (hidden, exposed, operation) in enumerate(
                      [(1 + more, 0.0, "reduce_scatter"), (0.25 + more, 0.25, "all_gather")])]
        found = self.exchanged(step("zero1", 1000), *rounds)
        self.assertEqual([found[key] for key in (
            "operations", "ms", "hidden %", "exposed", "most exposed")], [
            "1 reduce_scatter, 1 all_gather", "2.50", "90.0 %", "0.25", "1 (1 MiB)"])

    def test_of_rounds_with_other_exchanges_the_last_counts(self):
        rounds = [exchange("ddp", i, 1.0, 1.0, repeat=n, bytes=n << 20)
                  for n, count in ((1, 2), (2, 3)) for i in range(count)]
        found = self.exchanged(step("ddp", 1000), *rounds)
        self.assertEqual([found[key] for key in ("operations", "ms", "hidden %")],
                         ["3 all_reduce", "6.00", "50.0 %"])

    def test_runs_are_rounds_too(self):
        a = self.write("a.jsonl", *(exchange("ddp", i, 1.0, 1.0) for i in range(2)))
        b = self.write("b.jsonl", *(exchange("ddp", i, 3.0, 3.0) for i in range(2)))
        self.report(a, b, "--output", self.out)
        found = self.found(self.text(), "ddp")
        self.assertEqual([found[key] for key in ("operations", "ms", "hidden %")],
                         ["2 all_reduce", "8.00", "50.0 %"])

    def test_the_last_rank_and_the_wait_for_it(self):
        def found(wait, ranks=(3, 3, 0)):
            return self.exchanged(step("ddp", 1000), *(
                exchange("ddp", i, 1.0, wait_ms=wait, straggler_rank=rank, straggler_share=0.75)
                for i, rank in enumerate(ranks)))
        self.assertEqual((found(0.06)["wait"], found(0.06)["last rank"]),
                         ("0.18", "3 (2x, 75 %)"))
        self.assertNotIn("last rank", found(0))
        self.assertEqual((found(0.5, [2])["wait"], found(0.5, [2])["last rank"]),
                         ("0.50", "2 (1x, 75 %)"))

    def test_who_counted_the_bytes(self):
        def found(**figures):
            text = self.text_of(step("ddp", 1000, bytes_per_step_predicted=[100, 100],
                                     bytes_per_step_measured=[101, 110], **figures))
            return row(table(text, "sent per step"), "ddp")
        self.assertEqual(found(bytes_source="nvlink"), {
            "rank": "1", "sent": "110 B", "counted by": "NVLink counters", "theory": "100 B",
            "sent - theory": "+10.0 %"})
        more = found(bytes_source="nvlink", bytes_per_step_counted=[105, 105])
        self.assertEqual((more["sent"], more["by communicator"]), ("110 B", "105 B"))
        self.assertNotIn("counted by", found())
        own = found(bytes_source="communicator", bytes_per_step_counted=[101, 110])
        self.assertEqual((own["sent"], own["counted by"]), ("110 B", "communicator"))

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
        text = self.text_of(step("ddp", 1000, comm_ms=9.0), self.ladder())
        known = row(table(text, "communication per step"), "ddp")
        self.assertIn("total, hidden, exposed and alone: of the round of the step breakdown, where it has them; "
                      "all else: of medians over the rounds", text)
        self.assertEqual([known[key] for key in ("total", "hidden", "hidden %", "exposed")],
                         ["4.00", "3.00", "75.0 %", "1.00"])
        gain = row(table(text, "overlap, ms"), "ddp")
        self.assertEqual([gain[key] for key in ("serial - none", "overlap saves",
                                                "compute slower by")],
                         ["4.00", "2.50 (62 %)", "12.5 %"])
        self.assertIn("75 % of its communication is hidden (traced step 10.00 ms)", text)
        text = self.text_of(step("ddp", 1000), self.ladder(
            serial_step_ms=9.0, hidden_comm_ms=0, interference_ms=0, interference_slowdown=0))
        known = row(table(text, "communication per step"), "ddp")
        self.assertEqual((known["total"], known["hidden"]), ("4.00", "0.00"))
        gain = row(table(text, "overlap, ms"), "ddp")
        self.assertEqual((gain["serial - none"], gain["overlap saves"]), ("0.50", "-1.00"))

    def test_gains_are_within_a_round(self):
        # Between rounds the step drifts by more than overlap gains.
        drifting = [self.ladder(step_ms=step_ms, serial_step_ms=step_ms + 0.5, repeat=n)
                    for n, step_ms in enumerate((10.0, 14.0, 12.0), 1)]

        def saved():
            text = self.text_of(step("ddp", 1000), *drifting)
            return row(table(text, "overlap, ms"), "ddp")["overlap saves"]
        self.assertRegex(saved(), r"^0\.50 ")
        drifting[0]["serial_step_ms"] = 9.0
        self.assertEqual(saved(), "unclear (-1.00 to 0.50 ms)")

    def test_terms_are_of_one_round_and_so_add_up(self):
        rounds = [self.ladder(compute_ms=compute, exposed_comm_ms=exposed,
                              step_ms=1 + compute + exposed)
                  for compute, exposed in ((8, 1), (5, 9), (9, 2))]
        partly = breakdown("ddp", compute_ms=50, exposed_comm_ms=50)  # of a run without none
        text = self.text_of(step("ddp", 1000), *rounds, partly)
        found = row(table(text, "step breakdown"), "ddp")
        self.assertEqual([found[key] for key in ("compute", "exposed", "interference", "optimizer",
                                                 "traced step")], ["9.00", "2.00", "0.50", "0.50", "12.00"])
        self.assertEqual(row(table(text, "overlap, ms"), "ddp")["compute slower by"], "12.5 %")

    def test_terms_are_not_of_a_round_whose_none_was_disturbed(self):
        rounds = [self.ladder(compute_ms=none_ms - 0.5, residual_ms=8.5 - none_ms, none_step_ms=none_ms, step_ms=step_ms)
                  for none_ms, step_ms in ((13.5, 10.0), (8.5, 9.875), (8.5, 10.125))]
        found = row(table(self.text_of(step("ddp", 1000), *rounds), "step breakdown"), "ddp")
        self.assertEqual(found["compute"], "8.00")

    def test_a_strategy_that_does_not_overlap_gains_nothing_by_it(self):
        plain = self.ladder()
        del plain["serial_step_ms"]
        self.assertNotIn("overlap", self.text_of(step("ddp", 1000), plain))

    def test_a_breakdown_that_does_not_add_up(self):
        self.assertIn("ddp: 0.30 ms (3.0 %) of its step are in none of the terms",
                      self.text_of(step("ddp", 1000), self.ladder(residual_ms=0.3)))
        self.assertIn("ddp: the terms of the breakdown add up to 0.30 ms (3.0 %) more than its step",
                      self.text_of(step("ddp", 1000), self.ladder(residual_ms=-0.3)))
        wrong = "terms of the breakdown"
        self.assertNotIn(wrong, self.text_of(step("ddp", 1000), self.ladder(residual_ms=0.1)))
        self.assertNotIn(wrong, self.text_of(step("ddp", 1000, backend="cpu"), self.ladder(
            residual_ms=0.3, backend="cpu")))

    def test_the_table(self):
        none = breakdown("none", compute_ms=8.0, input_stall_ms=0.0, optimizer_ms=0.5,
                         residual_ms=-0.001) | {"none_step_ms": 8.5, "comm_alone_ms": 0.01}
        text = self.text_of(none, self.ladder(residual_ms=0.1, residual=0.01, input_stall_ms=0.0))
        steps = table(text, "step breakdown")
        self.assertEqual(row(steps, "ddp"), {  # no column for the input's stall
            "compute": "8.00", "exposed": "1.00", "interference": "0.50", "optimizer": "0.50",
            "residual": "0.10", "traced step": "10.00", "hidden": "3.00"})
        self.assertEqual(row(steps, "none"), {
            "compute": "8.00", "exposed": "-", "interference": "-", "optimizer": "0.50",
            "residual": "0.00", "traced step": "8.50", "hidden": "-"})
        gain = row(table(text, "overlap, ms"), "ddp")
        self.assertEqual([gain[key] for key in ("none's step", "serial step", "residual")],
                         ["8.50", "12.50", "1.0 %"])
        self.assertEqual(row(table(text, "communication per step"), "ddp")["alone"], "3.00")

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


class Forecast(Report):
    """The step model's records."""

    def test_the_links(self):
        text = self.text_of(link_cost(), link_cost("star", alpha_us=3.5, bandwidth_gbs=None,
                                                   worst_error=0), prediction("ddp", 10))
        links = table(text, "link costs")
        self.assertEqual(row(links, "ring messages"), {
            "latency us": "10.0", "GB/s": "100", "half bandwidth at": "976.6 KiB",
            "worst error": "5.0 %"})
        self.assertEqual(row(links, "sends of all ranks to one"), {
            "latency us": "3.5", "GB/s": "-", "half bandwidth at": "-", "worst error": "0.1 %"})

    def test_links_are_of_the_records_that_follow(self):
        text = self.text_of(link_cost(alpha_us=10), prediction("ddp", 10), prediction("ddp", 10),
                            link_cost(alpha_us=20), prediction("ddp", 20, precision="fp32"),
                            step("none", 1), step("none", 1, precision="fp32"))
        half, full = table(text, "link costs")[1:].split("link costs")
        self.assertRegex(half, r"fp16\n.*\n.*\nring messages +10\.0")
        self.assertRegex(full, r"fp32\n.*\n.*\nring messages +20\.0")

    def test_the_models_error(self):
        def held(*errors):
            return self.text_of(*(
                prediction("ddp", 10 * (1 + error), batch_size=2 ** i, step_ms_measured=10.0,
                           error=error) for i, error in enumerate(errors)))
        text = held(0.01, -0.02, -0.05)
        self.assertIn("model error where steps were measured: 2.0 % in the median, 5.0 % at most",
                      text)
        self.assertRegex(table(text, "step model"), r"ddp +4 +4 +9\.50 +10\.00 +-5\.0 %")
        self.assertNotIn("rate without exchange", text)  # no prediction of what was measured
        text = self.text_of(prediction("ddp", 10, model_error=0.2, trusted=False), record(
            "advice", "ddp", change="batch 9", gain_percent=5))
        self.assertNotIn("batch 9", text)  # as recorded, though no step is
        self.assertIn("unknown: the step model is off by up to 20.0 %", text)

    def test_what_another_run_measured_is_compared_with_the_prediction(self):
        small = self.write("2.jsonl", prediction("ddp", 11.0), prediction("ddp", 12, world_size=8),
                           head=header(world_size=2))
        large = self.write("4.jsonl", step("ddp", 1000, step_ms_p50=10.0))
        self.report(small, large, "--output", self.out)
        text = self.text()
        self.assertRegex(table(text, "step model"), r"ddp +64 +4 +11\.00 +10\.00 +\+10\.0 %")
        more = table(text, "predicted share")
        self.assertRegex(more, r"strategy +batch +8 +images/s on 8\n-+\nddp +64 +90\.0 % ")

    def test_more_ranks_in_a_row_for_each_strategy_and_batch(self):
        ranks = {8: 0.9, 16: 0.85, 64: 0.7}
        text = self.text_of(*(
            prediction("ddp", 10, batch_size=batch, world_size=n, efficiency_predicted=kept,
                       images_per_s_predicted=100 * n, extrapolated=batch == 512)
            for batch in (64, 512) for n, kept in ranks.items()))
        more = table(text, "predicted share of the rate without exchange")
        self.assertRegex(more, r"ddp +64 +90\.0 % +85\.0 % +70\.0 % +6,400 +-\n")
        self.assertRegex(more, r"ddp +512 +90\.0 % +85\.0 % +70\.0 % +6,400 +yes\n")
        self.assertIn("assumes that all links are like the measured ones", text)
        bare = self.text_of(prediction("ddp", 10, world_size=64, images_per_s_predicted=8000,
                                       efficiency_predicted=None))
        self.assertRegex(table(bare, "predicted share"), r"images/s on 64\n-+\nddp +64 +8,000\n")

    def test_advice_by_gain(self):
        gains = [1.25, 30, 5, 0.5, 2, 4, 3]
        text = self.text_of(step("ddp", 1000), *(
            record("advice", "ddp", change=f"change {i}", gain_percent=gain,
                   extrapolated=gain == 5) for i, gain in enumerate(gains)))
        self.assertRegex(text, r"What would help most: change 1 for ddp at batch 64 \(\+30\.0 % ")
        found = table(text, "what would help")
        self.assertRegex(found, r"(?s)change 1 +\+30\.0 % +-\n.*change 2 +\+5\.0 % +yes\n.*"
                                r"change 5 +\+4\.0 % .*change 6 +\+3\.0 % .*change 4 +\+2\.0 %")
        self.assertNotIn("change 0", text)

    def test_the_map_of_winners(self):
        def said(measured, **trust):
            return self.text_of(link_cost(), prediction("ddp", 9, step_ms_measured=measured), *(
                winner(name, gbs, margin, batch_size=batch, **trust) for batch, gbs, name, margin in (
                    (64, 1, "zero1", 0.0004), (64, 100, "ddp", 0.137), (256, 100, "ddp", 0.0005))))
        text = said(measured=8)
        found = table(text, "fastest strategy predicted by the step model")
        self.assertRegex(found, r"bandwidth +batch 64 +batch 256\n")
        self.assertEqual(row(found, "1 GB/s"), {"batch 64": "zero1 within model error", "batch 256": "-"})
        self.assertEqual(row(found, "100 GB/s (measured)"),
                         {"batch 64": "ddp +13.7 %", "batch 256": "ddp within model error"})
        self.assertIn("model error where steps were measured: 12.5 % in the median", found)
        wrong = said(measured=7, trusted=False)
        self.assertIn("left out: the model is off by up to 28.6 % for a step that was measured",
                      wrong)
        self.assertNotIn("fastest strategy predicted by the step model", wrong)

    def test_the_map_shows_what_was_measured_and_what_the_model_leaves_out(self):
        steps = [step("ddp", 1000, 0.001, step_ms_p50=8), step("zero1", 980, 0.001), step("peer", 1010, 0.001)]
        model = [link_cost(), prediction("ddp", 8.1, step_ms_measured=8), prediction("zero1", 8.2),
                 winner("zero1", 100, 0.006), winner("ddp", 10, 0.05)]
        found = table(self.text_of(*steps, *model), "fastest strategy predicted by the step model")
        self.assertEqual(row(found, "100 GB/s (measured)"), {"batch 64": "peer +1.0 % measured"})
        self.assertEqual(row(found, "10 GB/s"), {"batch 64": "ddp +5.0 %"})
        self.assertIn("measured here, but not in the model: peer\n", found)
        alike = table(self.text_of(*(one | {"images_per_s_low": 900, "images_per_s_high": 1100} for one in steps),
                                   *model), "fastest strategy predicted")
        self.assertEqual(row(alike, "100 GB/s (measured)"), {"batch 64": "peer within noise"})

    def test_a_global_batch_is_not_kept_on_more_ranks(self):
        text = self.text_of(prediction("ddp", 10, world_size=8),
                            head=header(**{"options.global_batch": 256}))
        self.assertRegex(table(text, "predicted share"), r"ddp +64 +90")
        self.assertNotIn("global", text)


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
        plain, slow = text[text.index("\nlink costs"):].split(
            "link costs, fitted as latency + bytes / bandwidth: exchange throttled to 3 GB/s", 1)
        for part, gbs, kept, error in ((plain, 300, 50, "-11.1 %"), (slow, 3, 20, "+11.1 %")):
            self.assertRegex(part, rf"ring messages +10\.0 +{gbs} ")
            self.assertRegex(part, rf"ddp +64 +{kept}\.0 %")
            self.assertIn(error, part)
            self.assertIn(f"{gbs} GB/s (measured)", part)
        self.assertNotIn("300 GB/s", slow)
        found = table(text, "exchanges per step")
        self.assertEqual([one["ms"] for one in (row(found, "ddp"), row(
            found, "ddp, exchange throttled to 3 GB/s"))], ["4.00", "10.00"])


class BucketCaps(Report):
    def test_caps_are_methods_of_their_own(self):
        text = self.text_of(step("ddp", 1000, bucket_cap_mb=25.0), step("ddp", 900, bucket_cap_mb=4),
                            step("all-reduce", 800), exchange("ddp", 0, 1.0, bucket_cap_mb=4))
        self.assertEqual([row(text, f"ddp ({cap} MiB)")["images/s"] for cap in (25, 4)],
                         ["1,000", "900"])
        self.assertEqual(row(table(text, "throughput:"), "ddp (4 MiB)")["slower by"], "10.0 %")
        ddp = json.loads((self.out / "results_baseline_ddp.json").read_text())
        self.assertEqual((ddp["strategy"], ddp["bucket_cap_mb"]), ("ddp", 25))
        self.assertEqual(ddp["other_configurations"][0]["bucket_cap_mb"], 4)
        one = self.text_of(step("ddp", 1000, bucket_cap_mb=25.0), step("ddp", 900, bucket_cap_mb=25))
        self.assertEqual(row(table(one, "throughput:"), "ddp")["samples"], "2 runs")

    def test_differing_options_are_reported_once(self):
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
