"""How results/report takes records, options and folders; run by report_test.py."""

import json
import math
import os
import re
import subprocess
import time
from unittest import mock

from report_records import collective, header, step, training
from report_support import REPORT, Report
from reporting import intervals, reading


class Reading(Report):
    def test_what_a_crash_cut_off_is_named_and_hides_no_later_run(self):
        crashed = self.write("r.jsonl", step("ddp", 1000), ended=False)
        begun = crashed.read_text() + '{"kind":"step","images_per'
        crashed.write_text(begun)
        self.assertIn("crashed", self.report(crashed, "--output", self.out).stderr)
        shown = self.shown_of(crashed)
        self.assert_said(shown.said["Reason"], "job train", "crashed: no end record; its last line, 3, is cut off")
        self.assertEqual(shown.said["Verdict"], "INCONCLUSIVE")
        self.assertEqual(shown.row("strategies", "ddp")["images/s"], "1,000")
        later = self.write("later.jsonl", step("ddp", 1100)).read_text()
        crashed.write_text(begun + "\n" + later)
        shown = self.shown_of(crashed)
        self.assertEqual(shown.row("strategies", "ddp")["images/s"], "1,050")
        self.assertIn("its last line, 3, is cut off", shown.words)
        crashed.write_text(later + '{"kind":"run","pro\n' + later)
        shown = self.shown_of(crashed)
        self.assertEqual(shown.cells("throughput", "ddp", "median", "samples"), ["1,100", "2 runs"])

    def test_lines_are_of_the_run_whose_id_they_carry(self):
        def job(run_id, machine, batch, *more):
            lines = [header(gpu=machine), step("ddp", 10 * batch, batch_size=batch), *more]
            return [{"kind": line["kind"], "run_id": run_id, **line} for line in lines]
        end = {"kind": "end", "exit_code": 0, "elapsed_s": 1}
        ended, crashed = job("a1", "NVIDIA H100", 16, end), job("b2", "NVIDIA A100", 32)
        failed = job("c3", "NVIDIA V100", 64, end | {"exit_code": 1})
        path = self.folder / "r.jsonl"
        mixed = [lines[i] for i in range(3) for lines in (crashed, failed, ended) if i < len(lines)]
        path.write_text("".join(json.dumps(line) + "\n" for line in mixed))

        def rates(shown):
            """{machine: images/s}."""
            return {name[name.index("NVIDIA "):][:11]: rate for table in shown.tables if table.name == "strategies"
                    for name, rate, *_ in table.rows}
        shown = self.shown_of(path)
        self.assertEqual(rates(shown), {"NVIDIA H100": "160", "NVIDIA A100": "320", "NVIDIA V100": "640"})
        for cause in (r"INCONCLUSIVE: job train b2 \(.*\): crashed", r"FAIL: job train c3 .*: ended with exit code 1"):
            self.assertEqual(len(re.findall(cause, shown.words)), 1, shown.words)
        with path.open("a") as file:  # the end of b2, cut off, and a job of 0.1, without ids
            file.write('{"kind":"step","run_id":"a1","bat\n{"kind":"end","run_id":"b2","exit\n' +
                       self.write("old.jsonl", step("ddp", 1280, batch_size=128)).read_text())
        shown = self.shown_of(path)
        self.assertIn("1,280", str([table.rows for table in shown.tables]))
        self.assertRegex(shown.words, r"job train b2 .* last line, 10, is cut off")
        self.assertRegex(shown.words, r"Left out: line 9 of train a1 \(.*\), which is cut off")

    def test_records_may_lack_and_hold_anything_that_the_schema_allows(self):
        """Found by mutating the committed records."""
        odd = [header(hosts=["n1", None, "n2"], gpu_uuids=[None, ""], versions_by_rank=[None, "a $x_{\\bad$"],
                      **{"options.fusion": ["a"], "options.bucket_order": {}}),
               header(**{"options.fusion": "none"})]
        paths = [self.write(f"{at}.jsonl", step("ddp", 1000, bucket_cap_mb=25),
                            {"kind": "link_cost", "colour": [1]}, {"kind": "ready", "bytes": [1], "ready_ms": [None]}, {"kind": "layer", "calls": 1}, {"kind": "loader", "strategy": {}},
                            head=head) for at, head in enumerate(odd)]
        content = self.content_of(paths)
        sizes = [self.write(f"{at}.jsonl", collective(8, 10, samples_us=[10, None, 11])) for at in "ab"]
        self.report("--against", *sizes)
        self.content(training("ddp", [0.5])[0] | {"images_per_s": 0}, training("zero1", [0.5])[0] | {"images_per_s": 0})
        self.content(*(step("parameter-server", 9, world_size=n, ranks_computing=None) for n in (1, 2)))
        self.assertEqual(content.outcome, "PASS")
        self.assertIn("on n1, n2", content.machines[0])

    def test_a_number_may_be_as_large_as_it_comes(self):
        """No key has a bound that depends on the value; what is beyond all measure is as null."""
        for kind in reading.DEFINITIONS:
            for key, wanted in reading.shapes(kind).items():
                if "number" in wanted.types and wanted.maximum > 1e21:
                    self.assertIsNone(reading.fault(1e21, wanted), (kind, key))
        path = self.folder / "r.jsonl"
        for loss, outcome in (("1.5894413656134483e+21", "PASS"), ("1e400", "FAIL"), ("9" * 500, "FAIL"),
                              ("null", "FAIL")):
            self.write("r.jsonl", *training("ddp", [0.5]))
            path.write_text(path.read_text().replace('"train_loss": 2.0', f'"train_loss": {loss}'))
            self.assertEqual(self.content_of([path]).outcome, outcome, loss)
        self.assertEqual(self.content(*training("ddp", [0.5]), training("ddp", [0.5])[0] | {
            "epoch": 2, "val_loss": None}).outcome, "FAIL")

    def test_the_interval_of_a_median_is_exact_and_does_not_take_minutes(self):
        for n in range(6, 80):
            inside = [1 - 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2 ** n for k in range(n // 2)]
            self.assertEqual(intervals.order_of(n), sum(share >= 0.95 for share in inside), n)
        began = time.process_time()
        low, high, _ = intervals.median_interval(range(1_000_000))
        self.assertEqual((low + high, round(high - low, -1)), (999_999, 1960))
        intervals.distinct(*2 * [intervals.rate_of(list(range(100_000)))])
        self.content(*training("ddp", [0.5] * 4_000))
        self.assertLess(time.process_time() - began, 20)


class Usage(Report):
    def refused(self, *arguments):
        return self.report(*arguments, "--output", self.out, code=2).stderr

    def test_input_is_named(self):
        good = self.write("good.jsonl", step("ddp", 1000))
        missing = self.folder / "nowhere.jsonl"
        self.assertIn("nowhere.jsonl: No such file", self.refused(good, missing))
        bad = self.folder / "bad.jsonl"
        bad.write_text(good.read_text() + "oops\n" + good.read_text())
        self.assertIn("bad.jsonl: not JSON at line 4", self.refused(bad))
        bad.write_text('{"kind":"run"}\n{"kind":"step","images_per_s":NaN}\n')
        self.assertIn("bad.jsonl: not JSON at line 2", self.refused(bad))
        bad.write_text(good.read_text().replace('"end"', '"end'))
        self.assertIn("bad.jsonl: not JSON at line 3", self.refused(bad))
        bad.write_text("[1]\n")
        self.assertIn("line 1 is not a record: it has no kind", self.refused(bad))
        for kind, key, word, wanted in (
                ("step", "strategy", "null", "text"), ("step", "model", "7", "text"),
                ("run", "hosts", "[5]", "a list of which each is text"),
                ("step", "images_per_s", '"fast"', "a number"),
                ("step", "images_per_s", "0", "more than 0"),
                ("step", "batch_size", "0", "1 or more"),
                ("epoch", "val_top1", "1.5", "1 or less"),
                ("link", "from", "0.5", "a whole number"),
                ("step", "peak_memory_bytes", "5", "a list"),
                ("epoch", "epoch", "true", "a number"),
                ("certificate", "pass", "1", "true or false"),
                ("verdict", "strategy", "3", "text")):
            bad.write_text(f'{{"kind":"run"}}\n{{"kind":"{kind}","{key}":{word}}}\n')
            self.assertIn(f"bad.jsonl: line 2 is not a record: {key} is {word} and not {wanted}\n",
                          self.refused(bad))
        bad.write_bytes(b"\xff\xfe\x00")
        self.assertIn("bad.jsonl: not text", self.refused(bad))
        bad.write_text('{"kind":"launch"}\n')
        self.assertIn("no usable records in", self.refused(bad))
        bad.write_text('[' * 100_000)
        self.assertIn("bad.jsonl: not JSON at line 1", self.refused(bad))
        (self.folder / "empty").mkdir()
        self.assertIn("empty: no .jsonl files", self.refused(self.folder / "empty"))
        self.assertFalse(self.out.exists())

    def test_options_are_named(self):
        good = self.write("good.jsonl", step("ddp", 1000))
        self.assertIn("RUN", self.report(code=2).stderr)
        self.assertIn("--oops", self.refused(good, "--oops"))
        self.assertIn("--threshold", self.refused("--against", good, good, "--threshold", -1))
        self.assertIn("--threshold 5: has no effect without --against",
                      self.refused(good, "--threshold", 5))
        self.assertIn("good.jsonl", self.program(good, "--output", good, code=2).stderr)

    def test_a_full_disk_is_inconclusive(self):
        self.out.mkdir()
        (self.out / "performance_report.txt").symlink_to("/dev/full")
        good = self.write("good.jsonl", step("ddp", 1000))
        shown = self.report(good, "--output", self.out, code=3)
        self.assertIn(f"--output {self.out}: No space left on device", shown.stderr)

    def test_a_full_standard_output_is_named(self):
        good = self.write("good.jsonl", step("ddp", 1000))
        for words in (["--help"], [good, "--output", self.out]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                ended = subprocess.run([REPORT, *words], stdout=full, text=True,
                                       stderr=subprocess.PIPE, check=False)
            self.assertEqual(ended.stderr,
                             "results/report: standard output: No space left on device\n")
            self.assertEqual(ended.returncode, 3)

    def test_the_default_output_is_where_runs_are_kept(self):
        good = self.write("good.jsonl", step("ddp", 1000))
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        with mock.patch.dict(os.environ):
            os.environ.pop("SHAKEDOWN_RUNS", None)
            self.report(good)
            os.environ["SHAKEDOWN_RUNS"] = str(self.folder / "elsewhere")
            self.report(good)
        for folder in ("runs", "elsewhere"):
            written = self.folder.glob(f"{folder}/report-*/performance_report.txt")
            self.assertEqual(len(list(written)), 1)

    def test_a_step_without_a_rate_is_named(self):
        self.assertRegex(self.shown(step("ddp", 1000), step("none", None)).words,
                         r"Left out: 1 step record of train .* without images_per_s")

    def test_a_folder_is_searched_and_a_file_counted_once(self):
        (self.folder / "deep").mkdir()
        self.write("deep/r.jsonl", step("ddp", 1000))
        self.assertEqual(self.shown_of(self.folder, self.folder / "deep/r.jsonl").cells("throughput", "ddp", "samples"),
                         ["1 run"])

    def test_what_bin_judge_reads_of_an_acceptance_is_no_run(self):
        for name, said in [("other.jsonl", True), ("acceptance.jsonl", False)]:
            path = self.write(name, step("ddp", 1000))
            (self.folder / "runs.jsonl").write_text('{"kind":"node","name":"n1","hosts":["n1"]}\n')
            result = self.report(self.folder, "--output", self.out)
            self.assertEqual("runs.jsonl" in result.stderr, said, result.stderr)
            path.unlink()

    def test_a_home_that_is_not_writable_is_no_news(self):
        result = self.program(self.write("r.jsonl", step("ddp", 1000), step("all-reduce", 900)),
                              "--output", self.out, env={"HOME": "/dev/null"})
        if "is missing" in result.stderr:
            self.skipTest(result.stderr.strip())
        self.assertEqual(result.stderr, "")

    def test_without_matplotlib_the_rest_is_written_and_what_to_install_is_said(self):
        path = self.write("r.jsonl", step("ddp", 1000), step("all-reduce", 900))
        result = self.program(path, "--output", self.out, env=self.without("matplotlib"))
        self.assertIn("apt-get install python3-matplotlib", result.stderr)
        self.assertEqual({path.name for path in self.out.iterdir()},
                         {"performance_report.txt", "appendix.txt", "comparison_report.html",
                          "results_baseline_ddp.json", "results_all_reduce.json"})
