"""results/report on bin/compare's records; run by report_test.py."""

import json

from report_records import (breakdown, exchange, header, link_cost, prediction, record, step, training, winner)
from report_support import Report


class Exchanges(Report):
    """`bucket` records."""

    def exchanged(self, *records, strategy="ddp"):
        return self.shown(step(strategy, 1000), *records).row("exchanges", strategy)

    def test_rounds_and_runs_are_kept_apart_and_their_medians_taken(self):
        rounds = [exchange("zero1", i, hidden, exposed, repeat=n, exchange=operation)
                  for n, more in ((1, 0), (2, 0.5), (3, 7)) for i, (hidden, exposed, operation) in enumerate(
                      [(1 + more, 0.0, "reduce_scatter"), (0.25 + more, 0.25, "all_gather")])]
        shown = self.shown(step("zero1", 1000), *rounds)
        self.assertEqual(shown.cells("exchanges", "zero1", "operations", "ms", "exposed", "most exposed"),
                         ["1 reduce_scatter, 1 all_gather", "2.50", "0.25", "1 (1 MiB)"])
        self.assertEqual(shown.cells("communication", "zero1", "hidden %"), ["90.0 %"])
        other = [exchange("ddp", i, 1.0, 1.0, repeat=n, bytes=n << 20) for n, count in ((1, 2), (2, 3))
                 for i in range(count)]  # rounds with other exchanges: the last counts
        self.assertEqual(self.exchanged(*other)["operations"], "3 all_reduce")
        runs = [self.write(f"{ms}.jsonl", *(exchange("ddp", i, ms, ms) for i in range(2))) for ms in (1.0, 3.0)]
        shown = self.shown_of(*runs)
        self.assertEqual(shown.cells("exchanges", "ddp", "operations", "ms"), ["2 all_reduce", "8.00"])
        self.assertEqual(shown.cells("communication", "ddp", "hidden %"), ["50.0 %"])

    def test_the_last_rank_and_the_wait_for_it(self):
        def found(wait, ranks=(3, 3, 0)):
            return self.exchanged(*(exchange("ddp", i, 1.0, wait_ms=wait, straggler_rank=rank, straggler_share=0.75)
                                    for i, rank in enumerate(ranks)))
        self.assertEqual((found(0.06)["wait"], found(0.06)["last rank"]), ("0.18", "3 (2x, 75 %)"))
        self.assertNotIn("last rank", found(0))
        self.assertEqual(found(0.5, [2])["last rank"], "2 (1x, 75 %)")

    def test_who_counted_the_bytes(self):
        def found(**figures):
            return self.shown(step("ddp", 1000, bytes_per_step_predicted=[100, 100], **{
                "bytes_per_step_measured": [101, 110], **figures})).row("bytes", "ddp")
        self.assertEqual(found(bytes_source="nvlink"), {
            "rank": "1", "sent": "110 B", "counted by": "NVLink counters", "theory": "100 B", "sent - theory": "+10.0 %"})
        more = found(bytes_source="nvlink", bytes_per_step_counted=[105, 105])
        self.assertEqual((more["sent"], more["by communicator"]), ("110 B", "105 B"))
        self.assertNotIn("counted by", found())
        for measured, counted, sent in (([101, 110], [101, 110], "110 B"), ([None, None], [102, 120], "120 B")):
            own = found(bytes_source="communicator", bytes_per_step_measured=measured, bytes_per_step_counted=counted)
            self.assertEqual((own["sent"], own["counted by"]), (sent, "communicator"))

    def test_the_time_line_shows_what_overlaps_and_names_what_it_leaves_out(self):
        records = []
        for batch, ranks in ((batch, ranks) for batch in (16, 64, 128, 256) for ranks in (2, 4)):
            more = {"batch_size": batch, "world_size": ranks}
            for name, count in (("ddp", 5), ("fsdp", 54), ("zero1", 10), ("zero2", 10)):
                records += [exchange(name, i, 1.0, **more) for i in range(count)]
            records += [exchange("all-reduce", 0, 0.0, 1.0, **more)]
        self.with_plots(self.write("r.jsonl", *records))
        self.assertIn("left out: all-reduce, where nothing is hidden; fewer ranks; 7 more panels",
                      (self.out / "comparison_report.html").read_text())
        data = (self.out / "plots/bucket_timeline.png").read_bytes()
        width, height = (int.from_bytes(data[at:at + 4], "big") for at in (16, 20))
        self.assertTrue(height < 2400 and width < 2000, (width, height))


class Terms(Report):
    """`breakdown` records."""

    def ladder(self, **changes):
        return breakdown("ddp", **{"compute_ms": 8.0, "exposed_comm_ms": 1.0, "optimizer_ms": 0.5,
                                   "interference_ms": 0.5, "residual_ms": 0.0}) | {
            "none_step_ms": 8.5, "comm_alone_ms": 3.0, "serial_step_ms": 12.5, "comm_ms": 4.0,
            "hidden_comm_ms": 3.0, "interference_slowdown": 0.125, "residual": 0.0, **changes}

    def test_what_overlap_hides_gains_and_costs(self):
        shown = self.shown(step("ddp", 1000, comm_ms=9.0), self.ladder())
        self.assertEqual(shown.cells("communication", "ddp", "total", "hidden", "hidden %", "exposed", "alone"),
                         ["4.00", "3.00", "75.0 %", "1.00", "3.00"])
        self.assertEqual(shown.cells("overlap", "ddp", "serial - none", "overlap saves", "compute slower by"),
                         ["4.00", "2.50 (62 %)", "12.5 %"])
        self.assert_said(shown.said["Where the time goes"], "75 %", "hidden", "10.00 ms")
        shown = self.shown(step("ddp", 1000), self.ladder(
            serial_step_ms=9.0, hidden_comm_ms=0, interference_ms=0, interference_slowdown=0))
        self.assertEqual(shown.cells("communication", "ddp", "total", "hidden"), ["4.00", "0.00"])
        self.assertEqual(shown.cells("overlap", "ddp", "serial - none", "overlap saves"), ["0.50", "-1.00"])
        plain = self.ladder()
        del plain["serial_step_ms"]  # of a strategy that does not overlap
        self.assertEqual(self.shown(step("ddp", 1000), plain).names("overlap"), [])

    def test_gains_are_within_a_round(self):
        # Between rounds the step drifts by more than overlap gains.
        drifting = [self.ladder(step_ms=step_ms, serial_step_ms=step_ms + 0.5, repeat=n)
                    for n, step_ms in enumerate((10.0, 14.0, 12.0), 1)]

        def saved():
            return self.shown(step("ddp", 1000), *drifting).row("overlap", "ddp")["overlap saves"]
        self.assertRegex(saved(), r"^0\.50 ")
        drifting[0]["serial_step_ms"] = 9.0
        self.assertEqual(saved(), "unclear (-1.00 to 0.50 ms)")

    def test_terms_are_of_one_undisturbed_round_and_so_add_up(self):
        rounds = [self.ladder(compute_ms=compute, exposed_comm_ms=exposed, step_ms=1 + compute + exposed)
                  for compute, exposed in ((8, 1), (5, 9), (9, 2))]
        partly = breakdown("ddp", compute_ms=50, exposed_comm_ms=50)  # of a run without none
        shown = self.shown(step("ddp", 1000), *rounds, partly)
        self.assertEqual(shown.cells("breakdown", "ddp", "compute", "exposed", "interference", "optimizer",
                                     "traced step"), ["9.00", "2.00", "0.50", "0.50", "12.00"])
        rounds = [self.ladder(compute_ms=none_ms - 0.5, residual_ms=8.5 - none_ms, none_step_ms=none_ms, step_ms=step_ms)
                  for none_ms, step_ms in ((13.5, 10.0), (8.5, 9.875), (8.5, 10.125))]  # the first one's none was disturbed
        self.assertEqual(self.shown(step("ddp", 1000), *rounds).cells("breakdown", "ddp", "compute"), ["8.00"])

    def test_a_breakdown_that_does_not_add_up(self):
        for residual, backend, words in ((0.3, "gpu", "0.30 ms (3.0 %) of its step are in none"),
                                         (-0.3, "gpu", "add up to 0.30 ms (3.0 %) more than its step"),
                                         (0.1, "gpu", None), (0.3, "cpu", None)):
            said = self.shown(step("ddp", 1000, backend=backend),
                              self.ladder(residual_ms=residual, backend=backend)).words
            self.assertIn(words or "", said)
            self.assertEqual("of the breakdown" in said.replace("of the step breakdown", ""), words is not None)

    def test_the_table(self):
        none = breakdown("none", compute_ms=8.0, input_stall_ms=0.0, optimizer_ms=0.5,
                         residual_ms=-0.001) | {"none_step_ms": 8.5, "comm_alone_ms": 0.01}
        shown = self.shown(none, self.ladder(residual_ms=0.1, residual=0.01, input_stall_ms=0.0))
        self.assertEqual(shown.row("breakdown", "ddp"), {  # no column for the input's stall
            "compute": "8.00", "exposed": "1.00", "interference": "0.50", "optimizer": "0.50",
            "residual": "0.10", "traced step": "10.00", "hidden": "3.00"})
        self.assertEqual(shown.row("breakdown", "none"), {
            "compute": "8.00", "exposed": "-", "interference": "-", "optimizer": "0.50",
            "residual": "0.00", "traced step": "8.50", "hidden": "-"})
        self.assertEqual(shown.cells("overlap", "ddp", "none's step", "serial step", "residual"),
                         ["8.50", "12.50", "1.0 %"])

    def test_scripts_find_the_terms(self):
        self.text_of(step("ddp", 1000), self.ladder(), step("all-reduce", 900))
        ddp, other = (json.loads((self.out / f"results_{name}.json").read_text())
                      for name in ("baseline_ddp", "all_reduce"))
        self.assertEqual([ddp[key] for key in (
            "hidden_communication_ms", "hidden_share", "breakdown.compute_ms", "breakdown.interference_slowdown",
            "breakdown.serial_step_ms")], [3.0, 0.75, 8.0, 0.125, 12.5])
        self.assertEqual((other["hidden_share"], other["breakdown.compute_ms"]), (None, None))


class Forecast(Report):
    """What the step model predicts, shown: as 0.2 recorded it; report_model.py has the model."""

    def test_the_links_are_of_the_records_that_follow(self):
        shown = self.shown(link_cost(), link_cost("star", alpha_us=3.5, bandwidth_gbs=None, worst_error=0),
                           prediction("ddp", 10), prediction("ddp", 10), link_cost(alpha_us=20),
                           prediction("ddp", 20, precision="fp32"), step("none", 1), step("none", 1, precision="fp32"))
        self.assertEqual(shown.row("links_fitted", "ring messages"), {
            "latency us": "10.0", "GB/s": "100", "half bandwidth at": "976.6 KiB", "worst error": "5.0 %"})
        self.assertEqual(shown.row("links_fitted", "sends of all ranks to one"), {
            "latency us": "3.5", "GB/s": "-", "half bandwidth at": "-", "worst error": "0.1 %"})
        self.assertEqual([(table.title[-4:], table.rows[0][1]) for table in shown.tables if table.name == "links_fitted"],
                         [("fp16", "10.0"), ("fp32", "20.0")])

    def test_the_models_error(self):
        shown = self.shown(*(prediction("ddp", 10 * (1 + error), batch_size=2 ** i, step_ms_measured=10.0, error=error)
                             for i, error in enumerate((0.01, -0.02, -0.05))))
        self.assert_said(shown.words, "2.0 % in the median", "5.0 % at most")
        model, = [table for table in shown.tables if table.name == "model"]
        self.assertEqual(model.rows[2], ["ddp", "4", "4", "9.50", "10.00", "-5.0 %"])
        self.assertEqual(shown.names("predicted"), [])  # no prediction of what was measured
        advice = record("advice", "ddp", change="batch 9", gain_percent=5, trusted=False)
        for trust, cause in (({"model_error": 0.2}, "off by up to 20.0 %"), ({}, "no step was measured")):
            doubted = self.shown(link_cost(), prediction("ddp", 10, trusted=False, **trust), advice)
            self.assertIn(cause, doubted.said["What would help most"])
            self.assertNotIn("batch 9", str([table.rows for table in doubted.tables]))

    def test_what_another_run_measured_is_compared_with_the_prediction(self):
        small = self.write("2.jsonl", prediction("ddp", 11.0), prediction("ddp", 12, world_size=8),
                           head=header(world_size=2))
        shown = self.shown_of(small, self.write("4.jsonl", step("ddp", 1000, step_ms_p50=10.0)))
        self.assertEqual(shown.cells("model", "ddp", "predicted", "measured", "error"), ["11.00", "10.00", "+10.0 %"])
        self.assertEqual(shown.cells("predicted", "ddp", "8", "4"), ["90.0 %", None])

    def test_more_ranks_in_a_row_for_each_strategy_and_batch(self):
        shown = self.shown(*(prediction("ddp", 10, batch_size=batch, world_size=n, efficiency_predicted=kept,
                                        images_per_s_predicted=100 * n, extrapolated=batch == 512)
                             for batch in (64, 512) for n, kept in {8: 0.9, 16: 0.85, 64: 0.7}.items()))
        found, = [table for table in shown.tables if table.name == "predicted"]
        self.assertEqual(found.rows, [["ddp", batch, "90.0 %", "85.0 %", "70.0 %", "6,400", outside]
                                      for batch, outside in (("64", "-"), ("512", "yes"))])
        bare = self.shown(prediction("ddp", 10, world_size=64, images_per_s_predicted=8000, efficiency_predicted=None))
        self.assertEqual(bare.row("predicted", "ddp"), {"batch": "64", "images/s on 64": "8,000"})
        of_global = self.shown(prediction("ddp", 10, world_size=8), head=header(**{"options.global_batch": 256}))
        self.assertEqual(of_global.cells("predicted", "ddp", "batch", "8"), ["64", "90.0 %"])  # more ranks have more

    def test_advice_by_gain(self):
        shown = self.shown(step("ddp", 1000), *(
            record("advice", "ddp", change=f"change {i}", gain_percent=gain, extrapolated=gain == 5)
            for i, gain in enumerate((1.25, 30, 5, 0.5, 2, 4, 3))))
        self.assert_said(shown.said["What would help most"], "change 1 for ddp at batch 64", "+30.0 %")
        found, = [table for table in shown.tables if table.name == "advice"]
        self.assertEqual([row[2:] for row in found.rows], [
            [f"change {i}", gain, "yes" if i == 2 else "-"] for i, gain in (
                (1, "+30.0 %"), (2, "+5.0 %"), (5, "+4.0 %"), (6, "+3.0 %"), (4, "+2.0 %"))])

    def test_the_map_of_winners(self):
        def shown(measured, **trust):
            return self.shown(link_cost(), prediction("ddp", 9, step_ms_measured=measured), *(
                winner(name, gbs, margin, batch_size=batch, **trust) for batch, gbs, name, margin in (
                    (64, 1, "zero1", 0.0004), (64, 100, "ddp", 0.137), (256, 100, "ddp", 0.0005))))
        found = shown(measured=8)
        self.assertEqual(found.row("winners", "1 GB/s"), {"batch 64": "zero1 within model error", "batch 256": "-"})
        self.assertEqual(found.row("winners", "100 GB/s (measured)"),
                         {"batch 64": "ddp +13.7 %", "batch 256": "ddp within model error"})
        wrong = shown(measured=7, trusted=False)
        self.assertIn("off by up to 28.6 % for a step that was measured", wrong.words)
        self.assertEqual(wrong.names("winners"), [])

    def test_the_map_shows_what_was_measured_and_what_the_model_leaves_out(self):
        steps = [step("ddp", 1000, 0.001, step_ms_p50=8), step("zero1", 980, 0.001), step("peer", 1010, 0.001)]
        model = [link_cost(), prediction("ddp", 8.1, step_ms_measured=8), prediction("zero1", 8.2),
                 winner("zero1", 100, 0.006), winner("ddp", 10, 0.05)]
        found = self.shown(*steps, *model)
        self.assertEqual(found.row("winners", "100 GB/s (measured)"), {"batch 64": "peer +1.0 % measured"})
        self.assertEqual(found.row("winners", "10 GB/s"), {"batch 64": "ddp +5.0 %"})
        self.assertIn("not in the model: peer\n", found.words)
        alike = self.shown(*(one | {"images_per_s_low": 900, "images_per_s_high": 1100} for one in steps), *model)
        self.assertEqual(alike.row("winners", "100 GB/s (measured)"), {"batch 64": "peer within noise"})

    def test_a_throttled_run_of_the_same_file_is_a_condition_of_its_own(self):
        def run(step_ms, measured, gbs, **throttle):
            return [step("ddp", 1000 / step_ms, step_ms_p50=measured, **throttle),
                    breakdown("ddp", compute_ms=step_ms) | throttle,
                    *(exchange("ddp", i, step_ms, **throttle) for i in range(2)), link_cost(bandwidth_gbs=gbs),
                    prediction("ddp", step_ms, step_ms_measured=measured, **throttle),
                    prediction("ddp", step_ms, world_size=8, efficiency_predicted=1 / step_ms, **throttle),
                    winner("ddp", gbs, 0.01, **throttle)]
        end = {"kind": "end", "exit_code": 0, "elapsed_s": 1}
        shown = self.shown(*run(2.0, 2.25, 300), end, header(), *run(5.0, 4.5, 3, throttle_gbs=3))
        slow, plain = ([table for table in shown.tables if ("throttled to 3 GB/s" in table.title) == throttled]
                       for throttled in (True, False))
        for found, gbs, kept, error in ((plain, "300", "50.0 %", "-11.1 %"), (slow, "3", "20.0 %", "+11.1 %")):
            rows = {table.name: table.rows[0] for table in found}
            self.assertEqual((rows["links_fitted"][2], rows["predicted"][2], rows["model"][-1], rows["winners"][0]),
                             (gbs, kept, error, f"{gbs} GB/s (measured)"))
        self.assertEqual([shown.row("exchanges", name)["ms"] for name in (
            "ddp", "ddp, exchange throttled to 3 GB/s")], ["4.00", "10.00"])


class BucketCaps(Report):
    def test_caps_are_methods_of_their_own(self):
        records = [step("ddp", 1000, bucket_cap_mb=25.0), step("ddp", 900, bucket_cap_mb=4), step("all-reduce", 800),
                   exchange("ddp", 0, 1.0, bucket_cap_mb=4)]
        shown = self.shown(*records)
        self.assertEqual([shown.row("strategies", f"ddp ({cap} MiB)")["images/s"] for cap in (25, 4)], ["1,000", "900"])
        self.assertEqual(shown.row("throughput", "ddp (4 MiB)")["slower by"], "10.0 %")
        self.text_of(*records)
        ddp = json.loads((self.out / "results_baseline_ddp.json").read_text())
        self.assertEqual((ddp["strategy"], ddp["bucket_cap_mb"]), ("ddp", 25))
        self.assertEqual(ddp["other_configurations"][0]["bucket_cap_mb"], 4)
        one = self.shown(step("ddp", 1000, bucket_cap_mb=25.0), step("ddp", 900, bucket_cap_mb=25))
        self.assertEqual(one.row("throughput", "ddp")["samples"], "2 runs")

    def test_differing_options_are_reported_once(self):
        names = ("none", "ddp", "zero1")
        words = self.shown_of(*(self.write(
            f"{rate}.jsonl", *(step(name, 1000) for name in names), *training("ddp", [0.5]),
            head=header(**{"options.learning_rate": rate, "options.repeats": rate,
                           "options.strategies": list(names)[:rate]})) for rate in (1, 2))).words
        self.assertEqual(words.count("--learning-rate (1, 2)"), 1)
        self.assertIn("and 3 more configurations", words)
        for option in ("--repeats", "--strategies"):
            self.assertNotIn(option, words)
