"""What results/report judges, and the reason that it gives; run by report_test.py."""

import json
import subprocess

from report_records import breakdown, header, record, step, training
from report_support import REPORT, Report, read_runs
from reporting import page
from reporting.headline import text_of
from reporting.summary import Summary


def part(code, minute, epochs, **options):
    """A run of a training with a checkpoint folder, of 50 s, that ended with this exit code."""
    head = header(started=f"2026-11-21T16:{minute:02}:00Z",
                  **{"options.resume": "auto", "options.checkpoint_dir": "ck", **options})
    return [head, *epochs, {"kind": "end", "exit_code": code, "elapsed_s": 50}]


class Verdicts(Report):
    def judged(self, *runs):
        """(outcome, reason) of runs of a file each."""
        paths = []
        for at, lines in enumerate(runs):
            paths.append(self.folder / f"{at}.jsonl")
            paths[-1].write_text("".join(json.dumps({"run_id": f"2026-id{at}", **line}) + "\n" for line in lines))
        self.content_ = page_of = self.content_of(paths)
        return page_of.outcome, page_of.reason

    def test_a_training_that_goes_on_after_each_stop_is_complete(self):
        epochs = training("ddp", [0.1, 0.2, 0.3, 0.4, 0.5])
        one, two, last = part(5, 0, epochs[:2]), part(5, 1, epochs[1:4]), part(0, 3, epochs[4:])
        outcome, reason = self.judged(one, two, last)
        self.assertEqual(outcome, "PASS")
        # 10 s and 70 s between the runs, and epoch 2, of 50 s, twice.
        self.assertRegex(reason, r"train \(.*2\.jsonl\) is complete after 2 restarts, 130 s lost")
        self.assertEqual(self.judged(part(5, 0, []), part(0, 1, epochs))[0], "PASS")
        for runs in ((one, two), (one, part(0, 1, epochs[2:], **{"options.checkpoint_dir": "x"})),
                     (one, part(0, 1, epochs)), (one, part(0, 1, epochs[2:], **{"options.resume": "none"}))):
            outcome, reason = self.judged(*runs)
            self.assertEqual(outcome, "INCONCLUSIVE", reason)
            self.assertEqual(reason.count("stopped by a signal after 50 s, not complete"), 1)
        self.assertEqual(self.judged(part(1, 0, epochs[:2]), part(0, 1, epochs[2:]))[0], "FAIL")

    def test_what_a_cause_names_is_named_once(self):
        for scope, name, cause, words in [("rank", "1", "rank 1 on n2: wrong", "rank 1 on n2: wrong"),
                                          ("rank", "1", "1 word is wrong", "rank 1: 1 word is wrong"),
                                          ("link", "0->1", "0->1 on n2: slow", "link 0->1 on n2: slow"),
                                          ("rank", "1", "rank 10 is missing", "rank 1: rank 10 is missing")]:
            found = {"kind": "verdict", "scope": scope, "name": name, "verdict": "FAIL", "cause": cause}
            _, reason = self.judged([header(), found, {"kind": "end", "exit_code": 1}])
            self.assertTrue(reason.startswith(f"{words}, in"), reason)

    def test_a_soak_that_was_stopped_does_not_pass(self):
        said = {"kind": "verdict", "scope": "job", "name": "soak", "verdict": "PASS", "cause": "0 wrong"}
        head = header(program="soak", **{"options.minutes": 0.4})
        self.assertEqual(self.judged([head, said, {"kind": "end", "exit_code": 0, "elapsed_s": 24}])[0], "PASS")
        outcome, reason = self.judged([head, said, {"kind": "end", "exit_code": 5, "elapsed_s": 7}])
        self.assertEqual(outcome, "INCONCLUSIVE")
        self.assertIn("stopped by a signal after 7 of 24 s", reason)

    def test_a_warning_and_a_fact_that_is_not_known_are_no_reasons(self):
        head = header(program="node_check")
        for outcome, judged in [("WARN", "PASS"), ("UNKNOWN", "PASS"), ("FAIL", "FAIL")]:
            found = {"kind": "verdict", "scope": "node", "name": "n1", "verdict": outcome, "cause": "ECC", "check": "ecc"}
            job = {**found, "scope": "job", "name": "node_check", "verdict": judged, "check": ""}
            code = {"FAIL": 1}.get(judged, 0)
            self.assertEqual(self.judged([head, found, job, {"kind": "end", "exit_code": code, "elapsed_s": 1}])[0],
                             judged)

    def test_a_run_that_measured_nothing_is_inconclusive(self):
        empty = [header(), {"kind": "end", "exit_code": 0, "elapsed_s": 1}]
        outcome, reason = self.judged(empty)
        self.assertEqual((outcome, reason), ("INCONCLUSIVE", "job: nothing was measured."))
        self.assertEqual(self.judged(empty, [header(), step("ddp", 1000),
                                             {"kind": "end", "exit_code": 0}])[0], "PASS")
        self.assertIn("crashed", self.judged(empty[:1])[1])

    def test_noise_leaves_no_winner_and_no_pass(self):
        def compared(*spreads):
            return self.sentences(*(step(name, rate, spread) for name, rate, spread in zip(
                ("ddp", "zero1", "fsdp"), (1000, 990, 600), spreads)))
        said = compared(0.5, 0.3, 0.01)
        self.assertEqual(said["Verdict"], "INCONCLUSIVE")
        self.assertRegex(said["Reason"], "ddp \u00b150 % and zero1 \u00b130 % of the median")
        self.assertTrue(said["Fastest"].startswith("no single one"), said)
        alike = compared(0.01, 0.01, 0.01)
        self.assertEqual(alike["Verdict"], "PASS")
        self.assertTrue(alike["Fastest"].startswith("no single one"))  # they are, within 1 %
        self.assertEqual(compared(0.001, 0.001, 0.5)["Verdict"], "PASS")  # the fastest is known
        self.assertEqual(self.sentences(step("ddp", 1000, 0.5))["Verdict"], "INCONCLUSIVE")
        self.assertEqual(self.sentences(step("none", 1000, 0.5), step("ddp", 900, 0.01))["Verdict"],
                         "INCONCLUSIVE")

    def test_the_reason_stands_at_the_verdict_and_names_no_ids(self):
        crashed = [header(), step("ddp", 1000)]
        failed = [header(), step("ddp", 1000), {"kind": "end", "exit_code": 1}]
        outcome, reason = self.judged(crashed, failed, crashed[:1])
        self.assertEqual(outcome, "FAIL")
        self.assertLess(reason.index("ended with exit code 1"), reason.index("INCONCLUSIVE: job train"))
        self.assertNotIn("2026-", reason)
        appendix = dict(self.content_.sections)["Runs"]
        self.assertIn("train 2026-id1", str(appendix))
        self.report(self.folder, "--output", self.out)
        html = (self.out / "comparison_report.html").read_text()
        self.assertRegex(html, r'<p class="outcome"><span class="verdict FAIL">FAIL</span> job train')

    def test_the_headline_of_what_a_job_appended(self):
        """As launch/mpi prints it."""
        path = self.write("r.jsonl", step("ddp", 1000), {"kind": "end", "exit_code": 1, "elapsed_s": 1}, ended=False)
        before = path.stat().st_size
        self.assertIn("Verdict: FAIL\n- Reason: ", text_of(path))
        self.assertEqual(text_of(path, before), "")
        with path.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in (header(), step("zero1", 900))))
        self.assertRegex(text_of(path, before), r"^Verdict: INCONCLUSIVE\n- Reason: .*crashed.*\n- Fastest: zero1 900")

    def test_a_pass_tells_what_it_is_made_of(self):
        passed = record("certificate", "ddp", reference="all-reduce", **{"pass": True})
        said = self.sentences(step("ddp", 1000), passed)["Reason"]
        for part_ in ("1 run ended with exit code 0", "1 certificate passed", "not compared with a reference"):
            self.assertIn(part_, said)


class Shown(Report):
    """Figures that contradicted one another."""

    def test_the_terms_of_a_bar_end_at_its_step(self):
        account = [breakdown(name, compute_ms=30.0, exposed_comm_ms=exposed, residual_ms=residual)
                   for name, exposed, residual in (("ddp", 5.0, 2.0), ("zero1", 10.0, -15.0),
                                                   ("fsdp", 0.0, -20.0))]
        summary = Summary(read_runs([self.write("r.jsonl", *account)]))
        bars = page.steps(list(summary.measured.values()))
        ends = {name: (end, float(text)) for name, _, end, text in bars}
        self.assertEqual(len({round(end / text, 6) for end, text in ends.values() if text > 0}), 1)
        for name, parts, end, _ in bars:
            net = sum(-length if colour == page.BACK else length for _, length, colour, _ in parts)
            self.assertAlmostEqual(net, end, msg=name)
            self.assertTrue(all(start + length <= 100.001 for start, length, _, _ in parts))
        self.assertEqual({name for name, parts, _, _ in bars if any(part_[2] == page.BACK for part_ in parts)},
                         {"zero1", "fsdp"})

    def notes(self, name, *records):
        return " ".join(note for table_ in self.content(*records).front if table_.name == name
                        for note in table_.notes)

    def test_a_ratio_that_is_not_of_its_columns_is_explained(self):
        def of(ratio):
            return self.notes("strategies", step("none", 1000), step("ddp", 900, efficiency_vs_none=ratio))
        self.assertIn("% none: median of the ratios within each round", of(0.95))
        self.assertNotIn("% none", of(0.9))

    def test_clocks_power_and_their_limit_are_in_the_first_table(self):
        def shown(**figures):
            return self.shown(step("ddp", 1000, **figures)).row("strategies", "ddp")
        found = shown(sm_clock_mhz=[1980, 1750], power_w=[650, 700], throttle_reasons=["", "sw_power_cap"])
        self.assertEqual((found["MHz"], found["W"], found["limit"]), ("1750", "700", "power"))
        self.assertEqual(shown(power_w=[650], throttle_reasons=[""])["limit"], "-")
        self.assertEqual(shown(power_w=[650])["limit"], "unknown")
        self.assertNotIn("limit", shown())

    def test_configurations_with_long_names_have_letters(self):
        several = [step(name, 1000, batch_size=batch, model=model, world_size=ranks)
                   for batch, model, ranks in ((64, "resnet50", 2), (256, "resnet50", 4), (64, "resnet18", 8))
                   for name in ("ddp", "zero1")]
        head = header(transport="nccl over InfiniBand")
        records = [*several, step("none", 1, model="resnet18", precision="fp32", data="a/photographs/train")]
        content = self.content(*records, head=head)
        letters = dict(content.configurations)
        self.assertEqual(sorted(letters), ["A", "B", "C", "D"])
        titles = [table_.title for table_ in content.front]
        for letter in "ABC":
            self.assertIn(f"{letter}: {letters[letter]}", titles)
        self.assertIn("none, D", str(content.front[-1].rows))
        for sentence in dict(content.sentences).values():
            self.assertNotIn("resnet", sentence)
        self.assertEqual(self.content(step("ddp", 1, batch_size=1), step("ddp", 1)).configurations, [])

    def test_runs_with_other_options_are_not_merged(self):
        def strategies(option, *values, **figures):
            paths = [self.write(f"{at}.jsonl", step("ddp", 1000 + at, bucket_cap_mb=25, **figures),
                                step("none", 2000, **figures), head=header(**{f"options.{option}": value}))
                     for at, value in enumerate(values)]
            return {(measured.strategy, measured.conditions.options): len(measured.steps)
                    for measured in Summary(read_runs(paths)).measured.values()}
        self.assertEqual(strategies("bucket_order", "small-first", "small-last"), {
            ("ddp (small-first)", ""): 1, ("ddp (small-last)", ""): 1, ("none", ""): 2})
        self.assertEqual(strategies("bucket_order", "ddp", "small-first"), {("ddp", ""): 2, ("none", ""): 2})
        self.assertEqual(set(strategies("comm_ctas", 0, 32)), {
            ("ddp (--comm-ctas 0)", ""), ("ddp (--comm-ctas 32)", ""), ("none", "")})
        self.assertEqual(strategies("recompute", True, False), {
            (name, option): 1 for name in ("ddp", "none") for option in ("--recompute", "")})
        self.assertEqual(strategies("workers", 4, 8), {("ddp", ""): 2, ("none", ""): 2})
        self.assertEqual(len(strategies("workers", 4, 8, data="photos")), 4)

    def test_a_training_that_goes_on_with_other_options_is_one(self):
        epochs = training("ddp", [0.1, 0.2, 0.3, 0.4])
        paths = []
        for at, (workers, several) in enumerate(((4, epochs[:2]), (8, epochs[2:]), (8, epochs[:1]))):
            lines = part(5 if at == 0 else 0, at, several, **{"options.workers": workers})
            lines[0]["options.checkpoint_dir"] = "other" if at == 2 else "ck"
            paths.append(self.write(f"{at}.jsonl", *lines[1:], head=lines[0], ended=False))
        found = {m.conditions.options: [len(history) for history in m.histories]
                 for m in Summary(read_runs(paths)).measured.values()}
        self.assertEqual(found, {"--workers 4": [4], "--workers 8": [1]})


class Paths(Report):
    def test_a_folder_whose_name_is_not_text(self):
        folder = bytes(self.folder) + b"/pr\xfcf"
        subprocess.run(["mkdir", folder], check=True)
        path = self.write("r.jsonl", step("ddp", 1000), ended=False)
        path.rename(folder.decode("utf-8", "surrogateescape") + "/r.jsonl")
        found = {"kind": "verdict", "scope": "node", "name": "n\udcfc", "verdict": "FAIL", "cause": "\ud800"}
        other = self.write("other.jsonl", step("ddp", 1000), found)
        for words in ([folder, other], ["--against", other, folder]):
            ended = subprocess.run([REPORT, *words, "--csv", "--output", folder + b"/out"], timeout=120,
                                   capture_output=True, check=False)
            self.assertIn(ended.returncode, (0, 3), ended.stderr)
            self.assertNotIn(b"Traceback", ended.stderr)
        self.assertIn(b"pr\\xfcf/r.jsonl", subprocess.run(["cat", folder + b"/out/performance_report.txt"],
                                                         capture_output=True, check=True).stdout)
