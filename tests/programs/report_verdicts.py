"""What results/report makes of records, beyond what report_cases.txt shows; run by report_test.py."""

import json
import subprocess

from report_cases import part, terms
from report_records import breakdown, exchange, header, step, training
from report_support import REPORT, Report, read_runs
from reporting import page
from reporting.headline import text_of
from reporting.summary import Summary


class Verdicts(Report):
    def test_the_headline_of_what_a_job_appended(self):
        """As launch/mpi prints it."""
        path = self.write("r.jsonl", step("ddp", 1000), {"kind": "end", "exit_code": 1, "elapsed_s": 1}, ended=False)
        before = path.stat().st_size
        self.assertIn("Verdict: FAIL\n- Reason: ", text_of(path))
        self.assertEqual(text_of(path, before), "")
        self.report(path, "--output", self.out)
        self.assertRegex((self.out / "comparison_report.html").read_text(),
                         r'<p class="outcome"><span class="verdict FAIL">FAIL</span> job train')
        with path.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in (header(), step("zero1", 900))))
        self.assertRegex(text_of(path, before), r"^Verdict: INCONCLUSIVE\n- Reason: .*crashed.*\n- Fastest: zero1 900")


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
            lines = part(5 if at == 0 else 0, at, several, workers=workers, checkpoint_dir="other" if at == 2 else "ck")
            paths.append(self.write(f"{at}.jsonl", *lines[1:], head=lines[0], ended=False))
        found = {m.conditions.options: [len(history) for history in m.histories]
                 for m in Summary(read_runs(paths)).measured.values()}
        self.assertEqual(found, {"--workers 4": [4], "--workers 8": [1]})

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

    def test_scripts_find_the_terms(self):
        self.text_of(step("ddp", 1000, 0.01), terms(), step("all-reduce", 900))
        ddp, other = (json.loads((self.out / f"results_{name}.json").read_text())
                      for name in ("baseline_ddp", "all_reduce"))
        self.assertEqual([ddp[key] for key in (
            "hidden_communication_ms", "hidden_share", "breakdown.compute_ms", "breakdown.interference_slowdown",
            "breakdown.serial_step_ms")], [3.0, 0.75, 8.0, 0.125, 12.5])
        self.assertEqual(ddp["throughput_interval"], "95 % interval of the mean")
        self.assertEqual((other["hidden_share"], other["breakdown.compute_ms"]), (None, None))


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
