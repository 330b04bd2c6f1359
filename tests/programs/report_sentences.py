"""What results/report claims of its figures, each claim turned round; run by report_test.py."""

from report_records import breakdown, header, record, step, training
from report_support import Report


class Sentences(Report):
    def test_the_faster_is_called_faster_whichever_it_is(self):
        for fast, slow in (("ddp", "all-reduce"), ("all-reduce", "ddp")):
            shown = self.shown(
                step(slow, 900, 0.01), step(fast, 1000, 0.01),
                breakdown(fast, compute_ms=30.0, exposed_comm_ms=1.0, residual_ms=0.5),
                breakdown(slow, compute_ms=30.25, exposed_comm_ms=4.0, residual_ms=0.25))
            for what, pieces in (("Fastest", (fast, "1,000 images/s", "11.1 % faster", slow)),
                                 ("Where the time goes", (fast, "compute 95 %", "exposed", "3 %", "residual 2 %", "31.50 ms")),
                                 ("What would help most", ("exposed communication", "3 %", fast))):
                self.assert_said(shown.said[what], *pieces)
            self.assertEqual(shown.cells("throughput", slow, "slower by", "distinct"), ["10.0 %", "yes"])
            self.assert_said(shown.words, slow, "3.00 ms more", fast, "34.50 ms", "31.50 ms",
                             "exposed communication adds most", "4.00 ms", "1.00 ms")
            # Where nothing else is to be said, page one has it.
            self.assertEqual(f"For throughput {fast} (1,000 images/s)" in shown.words, fast == "ddp")
            for wrong in (f"or {slow}", "ranks compute"):  # all do
                self.assertNotIn(wrong, shown.words)

    def test_a_residual_of_any_size_and_sign(self):
        def shown(residual, compute=30.0, exposed=1.0):
            return self.shown(step("ddp", 1000), breakdown(
                "ddp", compute_ms=compute, exposed_comm_ms=exposed, residual_ms=residual)).said
        for residual, pieces in ((-4.0, ("compute 111 %", "residual -15 %", "exposed", "4 %", "27.00 ms")),
                                 (4.0, ("compute 86 %", "residual 11 %", "exposed", "3 %", "35.00 ms"))):
            self.assert_said(shown(residual)["Where the time goes"], *pieces)
        self.assertNotIn("What would help most", shown(-4.0, exposed=0))
        far = shown(-290.0, compute=300.0, exposed=5.0)  # the parts say nothing of such a step
        self.assert_said(far["Where the time goes"], "unknown", "15.00 ms", "305 ms")
        self.assertNotIn("What would help most", far)

    def test_what_noise_hides_is_not_claimed(self):
        shown = self.shown(step("ddp", 1000, 0.03), step("all-reduce", 990, 0.03))
        self.assertEqual(shown.cells("throughput", "all-reduce", "slower by", "distinct"), ["1.0 %", "no"])
        self.assert_said(shown.said["Fastest"], "no single one", "ddp", "not distinguishable", "all-reduce")
        self.assert_said(shown.said["Noise"], "not distinguishable", "all-reduce", "ddp")
        self.assert_said(shown.words, "For throughput ddp", "or all-reduce")
        for runs, distinct in ((2, "too few"), (4, "yes")):
            shown = self.shown(*(step(name, rate + i) for name, rate in (("ddp", 1000), ("all-reduce", 980))
                                 for i in range(runs)))
            self.assertEqual(shown.cells("throughput", "all-reduce", "distinct"), [distinct])
            self.assertEqual("too few runs" in shown.said["Noise"] + shown.said["Fastest"], runs == 2)

    def test_why_needs_a_longer_step(self):
        self.assertNotIn("adds most", self.shown(
            step("ddp", 1000), step("all-reduce", 900), breakdown("ddp", compute_ms=30.0, exposed_comm_ms=4.0),
            breakdown("all-reduce", compute_ms=30.0, exposed_comm_ms=1.0)).words)

    def test_what_a_soak_proves(self):
        def soaked(**numbers):
            verdict = {"kind": "verdict", "scope": "job", "name": "soak", "verdict": "PASS", "cause": "its own words"}
            return self.shown({"kind": "soak_summary", "backend": "gpu", "world_size": 2, "energy_j": None, "products": 2.1e6,
                               "products_self_compared": 0, **numbers}, verdict)
        proved = {"gpu_hours": 0.25, "wrong": 0, "probes": 700, "memory_bytes": 9.8e15, "copied_bytes": 0, "link_bytes": 1.2e15}
        said = "0 wrong in 2.1e6 products, 700 probes of processors, 9.8 PB of memory, 1.2 PB over links"
        self.assertEqual(soaked(**proved).said["Soak"], f"{said}: rate below 12 per GPU-hour at 95 %.")
        self.assertEqual(soaked(**{**proved, "wrong": 3}).said["Soak"], said.replace("0 wrong", "3 wrong", 1) + ".")
        for more, words in (({"backend": "cpu"}, "12 per rank-hour"),
                            ({"products_self_compared": 64304}, ", of which 64304 were compared only with themselves,")):
            self.assert_said(soaked(**proved, **more).said["Soak"], words)
        self.assertEqual(soaked(gpu_hours=0, wrong=0, products=0).said["Soak"], "nothing was checked.")
        self.assertEqual(soaked().said["Soak"], "its own words.")  # 0.2
        text = soaked(**proved, memory_share=[0.97, 0.96], memory_passes=[3, 1], memory_patterns_done=[2, 5],
                      processors=[132, 132], processors_reached=[132, 131], slowest_processor=[7, None],
                      slowest_processor_ratio=[1.25, None], copied_to_device_bytes=[1e12, 5e11],
                      checked_over_unchecked=0.976, **{"checked_over_unchecked.bf16": 0.975}).words
        for words in ("96.0 % of a GPU's memory, 1 complete pass and 2 patterns of the next", "1.5 TB host to device",
                      "263 of 264 SMs; the slowest, SM 7 of rank 0, takes 1.250 of the median",
                      "run at 97.6 % of the rate of unchecked ones (bf16 97.5)"):
            self.assertIn(words, text)

    def test_nothing_is_said_of_what_was_not_measured(self):
        text = self.text_of(step("ddp", 1000))
        for word in ("Why", "Convergence", "ommunication", "over ranks", "When to choose", "exchange", "faster",
                     "Where the time goes", "What would help"):
            self.assertNotIn(word, text)
        self.assertIn("ddp 1,000 images/s", text)
        self.assertFalse((self.out / "plots").exists())

    def test_none_is_a_bound_and_no_choice(self):
        shown = self.shown(step("none", 1000, 0.001, step_ms_p50=10.0), step("ddp", 950, 0.001, step_ms_p50=11.0),
                           step("all-reduce", 1100, 0.001, step_ms_p50=9.0))
        self.assertEqual(shown.row("strategies", "ddp")["% none"], "95.0")
        self.assert_said(shown.words, "all-reduce", "110.0 % of none", "do not show what the exchange costs")
        self.assertEqual(shown.cells("communication", "ddp", "over none", "over none %"), ["1.00", "10.0 %"])
        self.assertEqual(shown.cells("communication", "all-reduce", "over none"), ["-1.00"])
        self.assertNotIn("For throughput", shown.words)
        self.assertTrue(shown.said["Fastest"].startswith("all-reduce"))
        self.assert_said(self.shown(step("none", 1000, 0.05), step("ddp", 990, 0.05)).words, "ddp", "none's overlap",
                         "not distinguishable")

    def test_convergence(self):
        for accuracies, images, pieces in (
                ([0.5, 0.902], 10000, ["They converge alike"]), ([0.5, 0.87], 100, ["They converge alike"]),
                ([0.5, 0.87], 10000, ["ddp", "3.00 points below all-reduce", "0.88 points", "10,000"]),
                ([0.5], 10000, ["different numbers of epochs", "not compared"])):
            words = self.shown(*training("ddp", accuracies, images=images),
                               *training("all-reduce", [0.6, 0.9], images=images)).words
            self.assert_said(words, *pieces)
            self.assertEqual("They converge alike" in words, "They" in pieces[0])

    def test_accuracy_and_memory_are_reasons_of_their_own(self):
        shown = self.shown(*training("ddp", [0.8], 2000), *training("all-reduce", [0.9], 1000))
        self.assertIn("For throughput ddp", shown.words)
        self.assert_said(shown.words, "For accuracy all-reduce", "90.00 %", "80.00 %", "50.0 %")
        shown = self.shown(step("ddp", 1000, peak_memory_bytes=[2 ** 33, 2 ** 33]),
                           step("zero1", 800, peak_memory_bytes=[2 ** 32, 2 ** 31]))
        self.assert_said(shown.words, "Where memory is short zero1", "4 GiB", "8 GiB", "80.0 %")
        self.assertEqual(shown.row("strategies", "zero1")["GiB"], "4.00")

    def test_what_trains_wrongly_is_not_chosen(self):
        def certificate(strategy, passes, difference=0.0, tolerance=0.001, **more):
            return record("certificate", strategy, **{"reference": "all-reduce", "max_abs_diff": difference,
                                                      "tolerance": tolerance, "pass": passes, **more})
        cause = "all-reduce, the reference, diverged"
        shown = self.shown(step("zero1", 1000), certificate("zero1", False, None, None, cause=cause))
        self.assert_said(shown.said["Reason"], "strategy zero1", "certificate failed", cause)
        shown = self.shown(step("ddp", 1000), step("all-reduce", 900), certificate("ddp", False, 0.5),
                           certificate("all-reduce", True))
        self.assert_said(shown.said["Reason"], "strategy ddp", "all-reduce", "0.5 where 0.001 is allowed")
        self.assertEqual(shown.said["Verdict"], "FAIL")
        self.assertEqual([shown.row("strategies", name)["weights"] for name in ("ddp", "all-reduce")], ["FAIL", "pass"])
        self.assert_said(shown.words, "Not ddp, whose certificate failed")
        self.assertIn("For throughput all-reduce (900", shown.words)
        epochs = training("ddp", [0.1, 0.1])
        epochs[1]["train_loss"] = None
        shown = self.shown(*epochs, *training("all-reduce", [0.6, 0.9], 500))
        self.assert_said(shown.said["Reason"], "strategy ddp", "diverged", "epoch 2")
        self.assertEqual(shown.row("strategies", "ddp")["weights"], "diverged")
        self.assertIn("For throughput all-reduce", shown.words)

    def test_the_parameter_server(self):
        for last, change, share in ((1400, "-60.0 %", "35.0 %"), (4200, "+20.0 %", "105.0 %")):
            shown = self.shown(
                step("parameter-server", 500, world_size=2, ranks_computing=1),
                step("parameter-server", last, world_size=8, ranks_computing=7, push_ms=6.0, pull_ms=4.0, comm_ms=10.0),
                step("all-reduce", 4000, world_size=8, comm_ms=5.0))
            self.assertIn("parameter-server: 7 of 8 ranks compute", shown.words)
            self.assertEqual(shown.row("scaling", "parameter-server"), {
                "2 ranks": "500", "8 ranks": f"{last:,}", "per computing rank": change})
            self.assertEqual(shown.cells("throughput", "parameter-server", "of all-reduce"), [share])
            self.assertEqual(shown.cells("communication", "parameter-server", "push", "pull", "total", "x all-reduce"),
                             ["6.00", "4.00", "10.00", "2.00"])
            self.assertIn("7 of parameter-server's ranks compute, 8 of all-reduce's" if last < 4000 else
                          "5.0 % faster than all-reduce", shown.words)

    def test_other_machines_and_settings_are_not_ranked_together(self):
        machines = [self.write("a.jsonl", step("ddp", 1000)),
                    self.write("b.jsonl", step("all-reduce", 900), head=header(gpu="NVIDIA A100"))]
        throttled = self.shown(step("ddp", 1000), step("all-reduce", 900, throttle_gbs=5))
        for shown in (self.shown_of(*machines), throttled,
                      self.shown(step("ddp", 1000), step("all-reduce", 900, batch_size=32))):
            self.assertNotIn("slower by", [head for table in shown.tables for head in table.columns])
            self.assertIn("nothing to compare", shown.said["Fastest"])
        self.assertIn("exchange throttled to 5 GB/s", throttled.words)
        caps = [self.write(f"{cap}.jsonl", step("ddp", 1000), head=header(**{"options.bucket_cap_mb": cap}))
                for cap in (25, 5)]
        self.assertIn("its runs differ in --bucket-cap-mb (25, 5)", self.shown_of(*caps).words)

    def test_a_verdict_is_shown_though_nothing_was_measured(self):
        shown = self.shown({"kind": "verdict", "scope": "job", "name": "train", "verdict": "INCONCLUSIVE",
                            "cause": "rank 3 timed out", "class": "SOFTWARE", "action": "run again"})
        self.assert_said(shown.words, "INCONCLUSIVE: job train: rank 3 timed out (SOFTWARE), in train", "; run again")
        verdict = {"kind": "verdict", "scope": "job", "name": "a", "verdict": "MAYBE", "cause": "b"}
        part = {**verdict, "scope": "node", "verdict": "INCONCLUSIVE", "severity": "UNKNOWN"}
        for lines, outcome in (([verdict], "INCONCLUSIVE"), ([{**verdict, "verdict": "INCONCLUSIVE", "severity": "WARN"}], "PASS"),
                               ([part, {**verdict, "verdict": "PASS"}], "PASS"), ([part], "INCONCLUSIVE"),
                               ([{**verdict, "verdict": "WARN"}], "PASS"), ([{**verdict, "verdict": "UNKNOWN"}], "PASS"),
                               ([{**part, "stage": "inventory"}], "PASS")):  # launch/acceptance's
            self.assertEqual(self.shown(*lines).said["Verdict"], outcome, lines)

    def test_what_reduced_the_clocks_may_be_unknown(self):
        for reasons, said in ((["", ""], "nothing"), ([None, None], "unknown"), (["", None], "unknown"), (None, "unknown"),
                              (["hw_slowdown sw_power_cap", None], "hw_slowdown, sw_power_cap, unknown")):
            figures = {"power_w": [700, 700], **({"throttle_reasons": reasons} if reasons else {})}
            self.assertEqual(self.shown(step("ddp", 1000, **figures)).cells(
                "timed_windows", "ddp", "W", "clocks reduced by"), ["700", said])

    def test_what_went_wrong_is_counted_by_class(self):
        shown = self.shown({"kind": "collective", "wrong_elements": 7, "wrong_stale": 3, "wrong_bit_flip": 1,
                            "wrong_unknown": 0})
        self.assertIn("wrong data: 7 wrong elements in 1 collective record: stale in 3 and bit flip in 1 of 4 regions "
                      "that were decoded", shown.said["Reason"])

    def test_failures_and_verdicts_are_reported(self):
        shown = self.shown(step("ddp", 1000), {
            "kind": "verdict", "scope": "link", "name": "2->5", "verdict": "FAIL", "cause": "12 GB/s"}, {
            "kind": "split", "scope": "rail", "name": "3", "world_size": 2, "bytes": 2 ** 20, "busbw_gbs": 48.5,
            "wrong_elements": 2}, {"kind": "end", "exit_code": 1, "elapsed_s": 1}, ended=False)
        self.assertEqual(shown.said["Verdict"], "FAIL")
        for part in ("ended with exit code 1", "link 2->5: 12 GB/s", "wrong data: 2 wrong elements in 1 split record"):
            self.assertIn(part, shown.said["Reason"])
        self.assertEqual(list(shown.row("splits", "rail 3, NVIDIA H200").values())[:3], ["2", "1 MiB", "48.5"])
