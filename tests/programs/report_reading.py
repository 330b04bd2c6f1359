"""How results/report takes records, options and folders, and what it makes of records beyond what report_cases.txt and
report_records.txt show; run by report_test.py."""

import csv
import json
import math
import os
import subprocess
import time
from unittest import mock

from report_cases import benchmark, timed
from report_records import breakdown, collective, exchange, header, step, training
from report_support import REPORT, Report, read_runs
from support import TREE
from reporting import intervals, layers, page, reading, records
from reporting.headline import text_of
from reporting.summary import Summary


class Reading(Report):
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
            for key, wanted in reading.properties(kind).items():
                if {"number", "integer"} & wanted["type"] and wanted.get("maximum", math.inf) > 1e21:
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
        """What else is refused: report_records.txt."""
        good = self.write("good.jsonl", step("ddp", 1000))
        self.assertIn("nowhere.jsonl: No such file", self.refused(good, self.folder / "nowhere.jsonl"))
        (self.folder / "empty").mkdir()
        self.assertIn("empty: no .jsonl files", self.refused(self.folder / "empty"))
        os.mkfifo(self.folder / "empty/a.jsonl")
        self.assertIn("empty/a.jsonl: is no regular file", self.refused(self.folder / "empty"))
        self.assertFalse(self.out.exists())
        with mock.patch("os.scandir", side_effect=PermissionError(13, "Permission denied", "n2")), \
                self.assertRaisesRegex(records.UsageError, "^n2: Permission denied"):  # of whose node nothing would be known
            reading.files_of([self.folder])

    def test_a_record_cannot_write_to_the_terminal(self):
        """Names in it are those of folders and hosts elsewhere."""
        shown = self.report(self.write("odd.jsonl", step("ddp", 1000, data="images\x1b[31m")), "--output", self.out).stdout
        self.assertIn("images [31m", shown)
        self.assertNotIn("\x1b", shown + (self.out / "performance_report.txt").read_text())

    def test_figures_of_an_earlier_report_are_named(self):
        self.report(self.write("old.jsonl", step("zero1", 1000)), "--output", self.out, "--csv")
        shown = self.report(self.write("new.jsonl", step("ddp", 1000)), "--output", self.out).stderr
        self.assertIn("out: not written by this report: results_zero1.json, strategies.csv and throughput.csv", shown)

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

    def test_an_acceptance_that_was_killed_is_no_pass(self):
        (self.folder / "run").mkdir()
        self.write("run/r.jsonl", step("ddp", 1000))
        (self.folder / "run/acceptance_20261129_070127.log").touch()
        for outcome in ("INCONCLUSIVE", "PASS"):
            self.assertIn(f"Verdict: {outcome}", self.report(self.folder / "run", "--output", self.out).stdout)
            self.write("run/acceptance.jsonl", step("ddp", 1000))

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


class Training(Report):
    """What else is made of trainings' records: report_records.txt."""

    def test_files_of_a_history_and_a_log(self):
        path = self.write("r.jsonl", *benchmark(0, 0, timed(0.5, None))[1:-1], head=benchmark(0, 0, [])[0])
        self.report("--mllog", self.write("log.jsonl", *benchmark(0, 0, timed(0.5))[1:-1], head=header()), "--output", self.out)
        self.assertRegex((self.out / "mllog.txt").read_text(), r"(?s)\A(:::MLLOG \{[^\n]*\}\n){20,}\Z")
        self.with_plots("--history", path)
        self.assertEqual(json.loads((self.out / "training_history.json").read_text())["val_acc"], [50, None])
        with (self.out / "training_history.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([(row["epoch"], row["train_loss"], row["val_acc"]) for row in rows], [("1", "2.0", "50.0"), ("2", "1.0", "")])
        self.assertGreater((self.out / "curves.png").stat().st_size, 5_000)


class Layers(Report):
    def test_the_tables_add_up_to_the_same_step(self):
        summary = Summary(read_runs([TREE / "results/0.2/h200/layers-64.jsonl"]))
        of_layers, kernels, sizes = layers.tables(summary)
        self.assertEqual([of_layers.values[0][0], of_layers.values[-1][0]], ["conv1", "sum"])
        total = of_layers.values[-1][1]
        self.assertAlmostEqual(total, sum(row[1] for row in of_layers.values[:-1]))
        self.assertAlmostEqual(total, sum(row[2] for row in kernels.values), 6)
        self.assertEqual(len({row[0] for row in kernels.values}), len(kernels.values))
        without_bytes = layers.tables(Summary(read_runs([TREE / "results/0.1/h200/layers.jsonl"])))  # of statistics_of_sums
        self.assertAlmostEqual(without_bytes[0].values[-1][1], sum(row[2] for row in without_bytes[1].values), 6)
        for table in (kernels, sizes):
            times = [row[table.columns.index("ms")] for row in table.values]
            self.assertEqual(times, sorted(times, reverse=True))
        self.assertEqual(sizes.notes[-3:], [
            "step: 7.296 ms without the log, 8.107 ms with it: events between 418 calls cost 0.811 ms (11.1 %)",
            "calls: 8.046 ms, 110.3 % of the step without the log; the rest of the step with it, 0.061 ms",
            "roof: 4.752 ms, 59.1 % of the calls' time"])


class Against(Report):
    """What it says of records: report_cases.txt."""

    def test_csv_has_the_figures_unrounded_with_their_units(self):
        sides = [self.write(f"{rate}.jsonl", step("ddp", rate, 0.005)) for rate in (1000, 900)]
        self.report("--against", *sides, "--csv", "--output", self.out, code=1)
        with (self.out / "against_steps.csv").open(newline="") as file:
            found, = csv.DictReader(file)
        self.assertEqual({key: round(float(found[key]), 4) for key in found if "(" in key}, {
            "OLD (images/s)": 1000, "OLD low (images/s)": 995, "OLD high (images/s)": 1005, "NEW (images/s)": 900,
            "NEW low (images/s)": 895.5, "NEW high (images/s)": 904.5, "change (fraction)": -0.1,
            "change low (fraction)": -0.109, "change high (fraction)": -0.091})

    def test_runs_that_are_in_both_are_left_out_of_old(self):
        for rate in (100, 101, 2):
            self.write(f"{rate}.jsonl", step("ddp", rate, 0.01))
        self.assertIn("left out of OLD: 1 run that NEW has too", self.compared(
            "--against", self.folder, self.folder / "2.jsonl", code=1).words)
        self.assertIn("the same runs", self.report("--against", self.folder, self.folder, code=2).stderr)


class Folders(Report):
    def test_folders_of_an_acceptance(self):
        """Its own record, and node_check's, name the host alone: those of what computed name the machine, the nodes'
        folders two of one kind. Its stages are no repetitions: train is deterministic and slower than throughput, path
        includes NCCL's logging."""
        for node, rate in (("n1", 500), ("n2", 800)):
            (self.folder / node).mkdir()
            for program in ("acceptance", "node_check"):
                self.write(f"{node}/{program}.jsonl",
                           head={"kind": "run", "program": program, "host": node, "hosts": [node]})
            for stage, record, options in (
                    ("throughput", step("ddp", rate, 0.001), {}),
                    ("train", step("ddp", 300), {"options.deterministic": True}),
                    ("path", collective(2 ** 20, 1e6 / rate), {"options.path": True}),
                    ("collectives", collective(2 ** 20, 20), {"options.path": False})):
                self.write(f"{node}/{stage}.jsonl", record, head=header(host=node, hosts=[node] * 4, **options))
        folders = self.folder / "n1", self.folder / "n2"
        self.assertIn("OLD: NVIDIA H200, 6 runs", self.compared("--against", *folders).words)
        shown = self.compared("--against", *reversed(folders), code=1)
        self.assertEqual(shown.cells("against_steps", "ddp", "change", "verdict"), ["-37.5 %", "REGRESSION"])
        shown = self.shown_of(folders[0])
        self.assertEqual(shown.words.splitlines()[0], "NVIDIA H200, on n1")
        self.assertEqual(shown.row("strategies", "ddp, --deterministic")["images/s"], "300")
        latencies = [shown.row("collectives", name) for name in ("all_reduce, --path", "all_reduce")]
        self.assertEqual([next(cell for cell in row.values() if " at " in cell) for row in latencies],
                         ["2000.00 at 1 MiB", "20.00 at 1 MiB"])


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
