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
        shown = self.shown(link_cost(), prediction("ddp", 10), prediction("ddp", 10), link_cost(alpha_us=20),
                           prediction("ddp", 20, precision="fp32"), step("none", 1), step("none", 1, precision="fp32"))
        self.assertEqual([(table.title[-4:], table.rows[0][1]) for table in shown.tables if table.name == "links_fitted"],
                         [("fp16", "10.0"), ("fp32", "20.0")])

    def test_a_model_that_is_not_trusted_predicts_nothing(self):
        records = [link_cost(), record("advice", "ddp", change="batch 9", gain_percent=5, trusted=False), winner(
            "zero1", 1, 0.1, trusted=False)]
        for more, cause in (({"model_error": 0.2}, "off by up to 20.0 %"), ({}, "no step was measured"),
                            ({"step_ms_measured": 7}, "off by up to 42.9 %")):
            doubted = self.shown(*records, prediction("ddp", 10, trusted=False, **more))
            self.assertIn(cause, doubted.said["What would help most"])
            self.assertIn(cause, doubted.words)
            self.assertNotIn("batch 9", str([table.rows for table in doubted.tables]))
            self.assertEqual(doubted.names("winners"), [])

    def test_a_winner_within_noise(self):
        steps = [step(name, rate, 0.1, step_ms_p50=8) for name, rate in (("ddp", 1000), ("peer", 1010))]
        found = self.shown(*steps, link_cost(), prediction("ddp", 8.1, step_ms_measured=8), winner("zero1", 100, 0.006))
        self.assertEqual(found.row("winners", "100 GB/s (measured)"), {"batch 64": "peer within noise"})

    def test_predictions_without_efficiency_and_of_a_global_batch(self):
        bare = self.shown(prediction("ddp", 10, world_size=64, images_per_s_predicted=8000, efficiency_predicted=None))
        self.assertEqual(bare.row("predicted", "ddp"), {"batch": "64", "images/s on 64": "8,000"})
        of_global = self.shown(prediction("ddp", 10, world_size=8), head=header(**{"options.global_batch": 256}))
        self.assertEqual(of_global.cells("predicted", "ddp", "batch", "8"), ["64", "90.0 %"])  # more ranks have more

    def test_what_another_run_measured_is_compared_with_the_prediction(self):
        small = self.write("2.jsonl", prediction("ddp", 11.0), prediction("ddp", 12, world_size=8),
                           head=header(world_size=2))
        shown = self.shown_of(small, self.write("4.jsonl", step("ddp", 1000, step_ms_p50=10.0)))
        self.assertEqual(shown.cells("model", "ddp", "predicted", "measured", "error"), ["11.00", "10.00", "+10.0 %"])
        self.assertEqual(shown.cells("predicted", "ddp", "8", "4"), ["90.0 %", None])

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
