"""What results/report claims of its figures, each claim turned round; run by report_test.py."""

from report_records import breakdown, header, record, step, training
from report_support import Report, row, table


class Sentences(Report):
    def test_the_faster_is_called_faster_whichever_it_is(self):
        for fast, slow in (("ddp", "all-reduce"), ("all-reduce", "ddp")):
            with self.subTest(fast=fast):
                text = self.text_of(
                    step(slow, 900, 0.01), step(fast, 1000, 0.01),
                    breakdown(fast, compute_ms=30.0, exposed_comm_ms=1.0, residual_ms=0.5),
                    breakdown(slow, compute_ms=30.25, exposed_comm_ms=4.0, residual_ms=0.25))
                self.assert_line(text, f"- Fastest: {fast}", "1,000 images/s", "11.1 % faster", slow)
                self.assert_line(text, f"- Where the time goes: {fast}", "compute 95 %", "exposed", "3 %",
                                 "residual 2 %", "31.50 ms")
                self.assert_line(text, "- What would help most:", "exposed communication", "3 %", fast)
                more = row(table(text, "throughput:"), slow)
                self.assertEqual((more["slower by"], more["distinct"]), ("10.0 %", "yes"))
                self.assert_line(text, slow, "3.00 ms more", fast, "34.50 ms", "31.50 ms",
                                 "exposed communication adds most", "4.00 ms", "1.00 ms")
                # Where nothing else is to be said, page one has it.
                self.assertEqual(f"For throughput {fast} (1,000 images/s)" in text, fast == "ddp")
                self.assertNotIn(f"or {slow}", text)
                self.assertNotIn("ranks compute", text)  # all do

    def test_a_negative_residual_is_as_large_as_a_positive_one(self):
        for residual, shown in ((-4.0, ("compute 111 %", "residual -15 %", "exposed", "4 %", "27.00 ms")),
                                (4.0, ("compute 86 %", "residual 11 %", "exposed", "3 %", "35.00 ms"))):
            text = self.text_of(step("ddp", 1000), breakdown(
                "ddp", compute_ms=30.0, exposed_comm_ms=1.0, residual_ms=residual))
            self.assert_line(text, "Where the time goes", *shown)
        text = self.text_of(step("ddp", 1000), breakdown("ddp", compute_ms=30.0, residual_ms=-4.0))
        self.assertNotIn("What would help", text)

    def test_parts_that_are_far_from_the_step_say_nothing_of_it(self):
        text = self.text_of(step("ddp", 1000), breakdown(
            "ddp", compute_ms=300.0, exposed_comm_ms=5.0, residual_ms=-290.0))
        self.assert_line(text, "Where the time goes", "unknown", "15.00 ms", "305 ms")
        self.assertNotIn("What would help", text)

    def test_what_noise_hides_is_not_claimed(self):
        text = self.text_of(step("ddp", 1000, 0.03), step("all-reduce", 990, 0.03))
        more = row(table(text, "throughput:"), "all-reduce")
        self.assertEqual((more["slower by"], more["distinct"]), ("1.0 %", "no"))
        self.assert_line(text, "Fastest: no single one", "ddp", "not distinguishable", "all-reduce")
        self.assert_line(text, "Noise", "not distinguishable", "all-reduce", "ddp")
        self.assert_line(text, "For throughput ddp", "or all-reduce")
        few = self.text_of(*(step("ddp", rate) for rate in (1000, 1001)),
                           *(step("all-reduce", rate) for rate in (980, 981)))
        self.assertEqual(row(table(few, "throughput:"), "all-reduce")["distinct"], "too few")
        self.assert_line(few, "Noise", "too few runs", "1 pair")
        self.assert_line(few, "2.0 % faster than all-reduce", "too few runs")
        enough = self.text_of(*(step("ddp", 1000 + i) for i in range(4)),
                              *(step("all-reduce", 980 + i) for i in range(4)))
        self.assertEqual(row(table(enough, "throughput:"), "all-reduce")["distinct"], "yes")

    def test_why_needs_a_longer_step(self):
        text = self.text_of(step("ddp", 1000), step("all-reduce", 900),
                            breakdown("ddp", compute_ms=30.0, exposed_comm_ms=4.0),
                            breakdown("all-reduce", compute_ms=30.0, exposed_comm_ms=1.0))
        self.assertNotIn("adds most", text)

    def test_nothing_is_said_of_what_was_not_measured(self):
        text = self.text_of(step("ddp", 1000))
        for word in ("Why", "Convergence", "ommunication", "over ranks", "When to choose",
                     "exchange", "faster", "Where the time goes", "What would help"):
            self.assertNotIn(word, text)
        self.assertIn("ddp 1,000 images/s", text)
        self.assertFalse((self.out / "plots").exists())

    def test_none_is_a_bound_and_no_choice(self):
        text = self.text_of(step("none", 1000, 0.001, step_ms_p50=10.0),
                            step("ddp", 950, 0.001, step_ms_p50=11.0),
                            step("all-reduce", 1100, 0.001, step_ms_p50=9.0))
        self.assertEqual(row(text, "ddp")["% none"], "95.0")
        self.assert_line(text, "all-reduce", "110.0 % of none", "do not show what the exchange costs")
        known = table(text, "communication per step")
        self.assertEqual((row(known, "ddp")["over none"], row(known, "ddp")["over none %"]),
                         ("1.00", "10.0 %"))
        self.assertEqual(row(known, "all-reduce")["over none"], "-1.00")
        self.assertNotIn("For throughput", text)
        self.assertRegex(text, "Fastest: all-reduce")
        noisy = self.text_of(step("none", 1000, 0.05), step("ddp", 990, 0.05))
        self.assert_line(noisy, "ddp", "none's overlap", "not distinguishable")

    def test_convergence(self):
        alike = self.text_of(*training("ddp", [0.5, 0.902]), *training("all-reduce", [0.6, 0.9]))
        self.assertIn("They converge alike", alike)
        differ = self.text_of(*training("ddp", [0.5, 0.87]), *training("all-reduce", [0.6, 0.9]))
        self.assert_line(differ, "ddp", "3.00 points below all-reduce", "0.88 points", "10,000")
        self.assertNotIn("They converge alike", differ)
        few = self.text_of(*training("ddp", [0.5, 0.87], images=100),
                           *training("all-reduce", [0.6, 0.9], images=100))
        self.assertIn("They converge alike", few)
        shorter = self.text_of(*training("ddp", [0.5]), *training("all-reduce", [0.6, 0.9]))
        self.assertIn("their accuracies are not compared", shorter)

    def test_accuracy_and_memory_are_reasons_of_their_own(self):
        text = self.text_of(*training("ddp", [0.8], 2000), *training("all-reduce", [0.9], 1000))
        self.assertIn("For throughput ddp", text)
        self.assert_line(text, "For accuracy all-reduce", "90.00 %", "80.00 %", "50.0 %")
        text = self.text_of(step("ddp", 1000, peak_memory_bytes=[2 ** 33, 2 ** 33]),
                            step("zero1", 800, peak_memory_bytes=[2 ** 32, 2 ** 31]))
        self.assert_line(text, "Where memory is short zero1", "4 GiB", "8 GiB", "80.0 %")
        self.assertEqual(row(text, "zero1")["GiB"], "4.00")

    def test_what_trains_wrongly_is_not_chosen(self):
        failed = record("certificate", "ddp", reference="all-reduce", max_abs_diff=0.5,
                        tolerance=0.001, **{"pass": False})
        diverged = record("certificate", "zero1", reference="all-reduce", max_abs_diff=None,
                          tolerance=None, cause="all-reduce, the reference, diverged",
                          **{"pass": False})
        self.assertRegex(self.text_of(step("zero1", 1000), diverged),
                         "FAIL: strategy zero1.*: certificate failed: all-reduce, the reference, "
                         "diverged")
        passed = record("certificate", "all-reduce", reference="", max_abs_diff=0, tolerance=0,
                        **{"pass": True})
        text = self.text_of(step("ddp", 1000), step("all-reduce", 900), failed, passed)
        self.assertRegex(text, "FAIL: strategy ddp.*: certificate failed: its weights are not those "
                         "of all-reduce after a step, they differ by 0.5 where 0.001 is allowed")
        self.assertIn("Verdict: FAIL\n", text)
        self.assertEqual([row(text, name)["weights"] for name in ("ddp", "all-reduce")],
                         ["FAIL", "pass"])
        self.assertIn("Not ddp, whose certificate failed", text)
        self.assertIn("For throughput all-reduce (900", text)
        epochs = training("ddp", [0.1, 0.1])
        epochs[1]["train_loss"] = None
        text = self.text_of(*epochs, *training("all-reduce", [0.6, 0.9], 500))
        self.assertRegex(text, "FAIL: strategy ddp.*: diverged: its loss is not finite in epoch 2")
        self.assertEqual(row(text, "ddp")["weights"], "diverged")
        self.assertIn("For throughput all-reduce", text)

    def test_the_parameter_server(self):
        for last, change, share in ((1400, "-60.0 %", "35.0 %"), (4200, "+20.0 %", "105.0 %")):
            with self.subTest(last=last):
                text = self.text_of(
                    step("parameter-server", 500, world_size=2, ranks_computing=1),
                    step("parameter-server", last, world_size=8, ranks_computing=7,
                         push_ms=6.0, pull_ms=4.0, comm_ms=10.0),
                    step("all-reduce", 4000, world_size=8, comm_ms=5.0))
                self.assertIn("\nparameter-server: 7 of 8 ranks compute\n", text)
                scaled = row(table(text, "images/s over ranks"), "parameter-server")
                self.assertEqual(scaled, {"2 ranks": "500", "8 ranks": f"{last:,}",
                                          "per computing rank": change})
                more = row(table(text, "throughput:"), "parameter-server")
                self.assertEqual(more["of all-reduce"], share)
                known = row(table(text, "communication per step"), "parameter-server")
                self.assertEqual([known[key] for key in ("push", "pull", "total", "x all-reduce")],
                                 ["6.00", "4.00", "10.00", "2.00"])
                self.assertIn("7 of parameter-server's ranks compute, 8 of all-reduce's" if
                              last < 4000 else "5.0 % faster than all-reduce", text)

    def test_other_machines_and_settings_are_not_ranked_together(self):
        a = self.write("a.jsonl", step("ddp", 1000))
        b = self.write("b.jsonl", step("all-reduce", 900), head=header(gpu="NVIDIA A100"))
        self.report(a, b, "--output", self.out)
        self.assertNotIn("slower by", self.text())
        text = self.text_of(step("ddp", 1000), step("all-reduce", 900, batch_size=32))
        self.assertNotIn("slower by", text)
        text = self.text_of(step("ddp", 1000), step("all-reduce", 900, throttle_gbs=5))
        self.assertNotIn("slower by", text)
        self.assertIn("nothing to compare", text)
        self.assertIn("exchange throttled to 5 GB/s", text)
        a = self.write("a.jsonl", step("ddp", 1000), head=header(**{"options.bucket_cap_mb": 25}))
        b = self.write("b.jsonl", step("ddp", 900), head=header(**{"options.bucket_cap_mb": 5}))
        self.report(a, b, "--output", self.out)
        self.assertIn("its runs differ in --bucket-cap-mb (25, 5)",
                      self.text())

    def test_a_verdict_is_shown_though_nothing_was_measured(self):
        text = self.text_of({"kind": "verdict", "scope": "job", "name": "train",
                             "verdict": "INCONCLUSIVE", "cause": "rank 3 timed out",
                             "class": "SOFTWARE", "action": "run again"})
        self.assertRegex(text, r"INCONCLUSIVE: job train: rank 3 timed out \(SOFTWARE\), in train.*; run again")
        self.assertIn("Verdict: INCONCLUSIVE\n", text)
        unknown = {"kind": "verdict", "scope": "job", "name": "a", "verdict": "MAYBE", "cause": "b"}
        self.assertIn("Verdict: INCONCLUSIVE\n", self.text_of(unknown))
        warning = {**unknown, "verdict": "INCONCLUSIVE", "severity": "WARN"}
        self.assertIn("Verdict: PASS\n", self.text_of(warning))
        part = {**unknown, "scope": "node", "verdict": "INCONCLUSIVE", "severity": "UNKNOWN"}
        self.assertIn("Verdict: PASS\n", self.text_of(part, {**unknown, "verdict": "PASS"}))
        self.assertIn("Verdict: INCONCLUSIVE\n", self.text_of(part))
        for outcome in ("WARN", "UNKNOWN"):
            self.assertIn("Verdict: PASS\n", self.text_of({**unknown, "verdict": outcome}))
        self.assertIn("Verdict: PASS\n", self.text_of({**part, "stage": "inventory"}))  # launch/acceptance's

    def test_rates_of_gpus_and_what_would_have_been_found(self):
        def metric(name, unit, gpu, *samples, **more):
            return {"kind": "metric", "metric": name, "unit": unit, "scope": "gpu", "name": gpu, "hosts": ["n1"],
                    "board": "NVIDIA H100", "samples": list(samples), **more}
        lines = [metric("product/fp16/flop_per_cycle_sm", "FLOP/cycle/SM", gpu, value, value, None)
                 for gpu, value in (("GPU-a", 4001), ("GPU-b", 4003))]
        lines += [metric("product/fp16/clock_mhz", "MHz", "GPU-a", 1400),
                  metric("memory/copy", "GB/s", "GPU-a", 2900), metric("memory/copy", "GB/s", "GPU-b", 1000),
                  metric("memory/copy", "GB/s", "GPU-b", 2800, look=2), metric("train/compute_ms", "ms", "GPU-a", 26),
                  metric("train/compute_ms", "ms", "GPU-b", 27), metric("memory/read", "GB/s", "GPU-a", None)]
        warning = {"kind": "verdict", "scope": "gpu", "name": "GPU-b", "verdict": "WARN", "cause": "slow in 1 of 2 looks"}
        text = self.text_of(*lines, warning, {"kind": "found", "rates": "host_link", "metric": "m", "slow_down": 0.0381})
        fp16 = row(table(text, "products, NVIDIA H100"), "fp16")
        self.assertEqual([fp16[key] for key in ("FLOP/cycle/SM", "least", "SM MHz")], ["4002", "4001", "1400"])
        rates = table(text, "rates, NVIDIA H100")
        self.assertEqual([row(rates, name)[key] for name in ("memory/copy", "train/compute_ms")
                          for key in ("slowest", "of")], ["2800", "n1 GPU-b", "27", "n1 GPU-b"])
        self.assertNotIn("memory/read", text)
        self.assertIn("Verdict: PASS\n", text)
        self.assertIn("would have found at 99 %: host link 3.9 %", text)
        self.assertIn("WARN: gpu GPU-b: slow in 1 of 2 looks", (self.out / "appendix.txt").read_text())

    def test_what_reduced_the_clocks_may_be_unknown(self):
        for reasons, shown in ((["", ""], "nothing"), ([None, None], "unknown"),
                               (["", None], "unknown"), (["hw_slowdown sw_power_cap", None],
                                                         "hw_slowdown, sw_power_cap, unknown")):
            text = self.text_of(step("ddp", 1000, power_w=[700, 700], throttle_reasons=reasons))
            windows = row(table(text, "GPUs in the timed windows"), "ddp")
            self.assertEqual((windows["W"], windows["clocks reduced by"]), ("700", shown))
        text = self.text_of(step("ddp", 1000, power_w=[700]))
        self.assertRegex(text, r"700 +unknown")

    def test_versions_are_those_that_ran(self):
        text = self.text_of(step("ddp", 1000), head=header(**{
            "versions.onednn": "3.1", "versions.onednn_built": "3.0", "versions.mpi": "MPICH"}))
        self.assertIn("revision abc1234, driver 580, onednn 3.1, mpi MPICH\n", text)
        text = self.text_of(step("ddp", 1000), head=header(versions_by_rank=["nccl 2.28"] * 2 +
                                                           ["nccl 2.27"] * 2))
        self.assertRegex(text, r"Versions differ between the ranks of train .*: nccl 2.28; nccl 2.27")

    def test_failures_and_verdicts_are_reported(self):
        path = self.write("r.jsonl", step("ddp", 1000), {
            "kind": "verdict", "scope": "link", "name": "2->5", "verdict": "FAIL",
            "cause": "12 GB/s"}, {
            "kind": "split", "scope": "rail", "name": "3", "world_size": 2, "bytes": 2 ** 20,
            "busbw_gbs": 48.5, "wrong_elements": 2}, ended=False)
        with path.open("a") as file:
            file.write('{"kind":"end","exit_code":1,"elapsed_s":1}\n')
        self.report(path, "--output", self.out)
        text = self.text()
        self.assertIn("Verdict: FAIL\n", text)
        self.assertIn("ended with exit code 1", text)
        self.assertIn("FAIL: link 2->5: 12 GB/s", text)
        self.assertRegex(text, r"rail 3, NVIDIA H200 +2 +1 MiB +48.5")
        self.assertRegex(text, r"wrong data: 2 wrong elements in 1 split record")
