"""results/report as its users meet it: figures, sentences, files, exit codes. Run by tests/run.

Most records are made by hand, so that each claim of the report can be turned round; others are the
committed ones, and the last class feeds it what the programs write. What the report claims is in
report_cases.txt and report_records.txt, files and options in report_reading.py.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from report_cases import Cases  # noqa: F401, is run
from report_model import Recorded, StepModel  # noqa: F401, are run
from report_reading import (  # noqa: F401, are run
    Against, Folders, Layers, Paths, Reading, Shown, Training, Usage, Verdicts)
from report_power import Power  # noqa: F401, is run
from report_records import everything, header, training
from report_support import Report, called, prefer_one_with_matplotlib
from support import BIN, TREE, make_image_folder, run, run_bare

sys.path.insert(0, str(TREE / "docs"))
import picture  # noqa: E402

from reporting import colours, text as text_module  # noqa: E402

prefer_one_with_matplotlib()
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


COMMITTED = TREE / "results/0.1/h200"


class Page(Report):
    """Of a full bin/compare: ten strategies."""

    def test_every_table_and_sentence(self):
        """Of records of every kind; what turns a claim round is in the tests of it. After a change that is meant:
        UPDATE_GOLDEN=1, and read the difference."""
        self.text_of(*everything(), head=header(
            versions_by_rank=["nccl 2.28"] * 2 + ["nccl 2.27"] * 2, gpu_uuids=["GPU-1", "GPU-2", "GPU-2", ""],
            **{"versions.onednn": "3.1", "versions.onednn_built": "3.0", "versions.mpi": "MPICH"}))
        text, golden = self.text().replace(f"{self.folder}/", ""), TREE / "tests/programs/report_golden.txt"
        if os.environ.get("UPDATE_GOLDEN"):
            golden.write_text(text)
        self.assertEqual(text, golden.read_text())

    def test_the_picture_of_readme_has_the_figures_of_its_record(self):
        """Not its pixels, nor its words. After a change that is meant: docs/picture.py."""
        self.report(TREE / picture.RECORD, "--output", self.out)
        page = (self.out / "comparison_report.html").read_text(encoding="utf-8")
        try:
            made_with = picture.text_of(picture.PICTURE)
        except ImportError as error:  # comes with matplotlib
            self.skipTest(str(error))
        figures = [re.findall(r"\d[\d,.]*\d|\d", text) for text in (made_with, picture.shown(page))]
        self.assertGreater(len(figures[0]), 60)
        self.assertEqual(*figures)

    def test_a_page_is_short_and_fits_a_terminal(self):
        for name in ("strategies-2gpu", "strategies-4gpu", "settings-2gpu", "large-buckets-4gpu", "collectives-2gpu",
                     "links-2gpu", "fashion-4gpu", "throughput"):
            shown = self.report(COMMITTED / f"{name}.jsonl", "--output", self.out, "--verbose")
            page = (self.out / "performance_report.txt").read_text()
            self.assertTrue(shown.stdout.startswith(page))
            self.assertLessEqual(page.count("\n"), 100, name)
            of_tables = "\n".join(re.findall(r"^-{20,}$", page, re.M))
            self.assertLessEqual(max(map(len, of_tables.splitlines()), default=0), 120, name)
            self.assertRegex(page, r"\nVerdict: (PASS|FAIL|INCONCLUSIVE)\n- ")
            self.assertIn((self.out / "appendix.txt").read_text(), shown.stdout)

    def test_sentences_are_folded_for_a_terminal_only(self):
        content = self.content_of([COMMITTED / "strategies-8gpu.jsonl"])
        for part, as_written, folded in zip(("page", "appendix"), text_module.report_text(content),
                                            text_module.report_text(content, 80)):
            in_lines = [line for line in as_written.splitlines() if line.startswith("- ")]
            self.assertGreater(max(map(len, in_lines)), 120, part)
            self.assertLessEqual(max(len(line) for line in folded.splitlines() if line.startswith("- ")), 80)
            self.assertEqual(as_written.split(), folded.split())
        with mock.patch("sys.stdout.isatty", return_value=True, create=True), \
                mock.patch.dict(os.environ, {"COLUMNS": "90"}):
            self.assertEqual(text_module.terminal_width(), 90)
        self.assertIsNone(text_module.terminal_width())


class Measured(Report):
    def test_the_page_is_that_of_the_records(self):
        """After a change that is meant: docs/measured.py >docs/measured.md."""
        shown = run_bare(TREE / "docs/measured.py").stdout
        self.assertEqual(shown, (TREE / "docs/measured.md").read_text())
        for link in re.findall(r"\]\((\.\./[^)]+)\)", shown):
            self.assertTrue((TREE / "docs" / link).exists(), link)

    def test_a_folder_without_provenance_or_with_a_missing_file_is_named(self):
        def refused(words):
            result = run_bare(TREE / "docs/measured.py", self.folder)
            self.assertEqual((result.returncode, words in result.stderr), (1, True), result.stderr)
        refused("no provenance.json")
        (self.folder / "provenance.json").write_text(json.dumps({"title": "x", "questions": [
            {"title": "y", "table": "links", "files": [{"file": "gone.jsonl"}]}]}))
        refused("gone.jsonl is not there")


class Pictures(Report):
    NAMES = {"throughput_comparison", "training_time_comparison", "loss_curves", "accuracy_curves",
             "communication_overhead", "step_breakdown", "scaling", "bucket_timeline",
             "collective_bandwidth", "link_matrix", "gpu_samples"}

    @classmethod
    def setUpClass(cls):
        """One report of everything, in which the tests look."""
        cls.kept = pathlib.Path(tempfile.mkdtemp(prefix="shakedown_"))
        cls.addClassCleanup(shutil.rmtree, cls.kept)
        path = cls.kept / "r.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in (
            header(), *everything(), {"kind": "end", "exit_code": 0, "elapsed_s": 1})))
        result = called([path, "--output", cls.kept])
        if "is missing" in result.stderr:
            raise unittest.SkipTest(result.stderr.strip())
        assert result.returncode == 0, result.stderr

    def test_a_plot_for_each_kind_of_record_and_no_other(self):
        plots = {path.stem: path.read_bytes() for path in (self.kept / "plots").glob("*.png")}
        self.assertEqual(set(plots), self.NAMES)
        for name, data in plots.items():
            width, height = (int.from_bytes(data[at:at + 4], "big") for at in (16, 20))
            self.assertGreater(min(width, height), 250, name)
            self.assertGreater(len(data), 5_000, name)
        self.assertLess((self.kept / "comparison_report.html").stat().st_size, 500_000)
        before, _, after = plots["step_breakdown"].partition(b"PLTE")
        palette = [after[at:at + 3] for at in range(0, int.from_bytes(before[-4:], "big"), 3)]
        for term in map(bytes.fromhex, (colour[1:] for colour in colours.TERMS)):  # of small bars, too
            self.assertLess(min(sum(abs(a - b) for a, b in zip(term, drawn)) for drawn in palette), 20, term.hex())
        self.with_plots(self.write("r.jsonl", *training("ddp", [0.5, 0.6])))
        self.assertEqual({path.stem for path in (self.out / "plots").glob("*.png")},
                         {"throughput_comparison", "loss_curves", "accuracy_curves"})

    def test_the_page_in_a_browser(self):
        """The page as it is, followed by a script that reports how the browser rendered it: at two
        widths, folded and unfolded."""
        if CHROMIUM is None:
            self.skipTest("no chromium: apt-get install chromium")
        page = (self.kept / "comparison_report.html").read_text()
        self.assertNotRegex(page, r"(src|href)=\"(?!data:)")  # self-contained
        probe = self.folder / "alone" / "probe.html"
        probe.parent.mkdir()
        probe.write_text(page + """<script>addEventListener("load", () => {
            const wide = () => document.documentElement.scrollWidth > innerWidth;
            const folded = wide(), first = document.querySelector("details").offsetTop;
            document.querySelectorAll("details").forEach(one => one.open = true);
            const images = [...document.images].filter(i => i.complete && i.naturalWidth > 250);
            const bars = document.querySelectorAll(".bars rect").length;
            const cells = [...document.querySelector("table").rows].map(
                row => [...row.cells].map(cell => cell.innerText).join("|"));
            document.title = `${images.length} images; ${bars} bars; ${cells.join(";")}; wide ` +
                `${folded} ${wide()}; text ` + Math.min(...[...document.querySelectorAll("span")]
                .map(s => parseFloat(getComputedStyle(s).fontSize))); });</script>""")
        for width in (1280, 400):
            shown = subprocess.run(
                [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                 f"--window-size={width},900", f"--user-data-dir={self.folder}/profile",
                 probe.as_uri()], capture_output=True, text=True, timeout=120,
                env={**os.environ, "HOME": str(self.folder)})
            title = re.search(r"<title>(.*?)</title>", shown.stdout, re.S)
            self.assertIsNotNone(title, shown.stderr)
            self.assertIn(f"{len(self.NAMES)} images", title[1])
            self.assertRegex(title[1], r"; \d\d+ bars; strategy\|images/s\|low-high")
            self.assertRegex(title[1], r";ddp\|[\d,]+\|")
            self.assertIn("wide false false", title[1])
            self.assertGreaterEqual(float(re.search(r"text ([\d.]+)", title[1])[1]), 11)


class RealRecords(Report):
    def test_what_the_programs_write_is_understood(self):
        make_image_folder(self.folder / "train", 16)
        make_image_folder(self.folder / "val", 8)
        small = ["--model", "tiny", "--image-size", 32, "--batch-size", 4, "--record",
                 self.folder / "r.jsonl"]
        for strategy in ("none", "ddp"):
            result = run(BIN / "train", *small, "--classes", 10, "--iterations", 4, "--warmup", 1,
                         "--strategy", strategy, ranks=2)
            self.assertEqual(result.returncode, 0, result.stderr)
        for command in ([BIN / "train", *small, "--epochs", 2, "--train-dir", self.folder / "train",
                         "--val-dir", self.folder / "val"],
                        [BIN / "collective_perf", "-b", 8, "-e", "64K", *small[-2:]],
                        [BIN / "link_matrix", "--bytes", "64K", *small[-2:]]):
            self.assertEqual(run(*command, ranks=2).returncode, 0)
        result = self.program(self.folder / "r.jsonl", "--output", self.out)
        shown = self.shown_of(self.folder / "r.jsonl")
        lines = [json.loads(line) for line in (self.folder / "r.jsonl").read_text().splitlines()]
        rates = {line["strategy"]: line["images_per_s"] for line in lines if line["kind"] == "step"}
        self.assertEqual(shown.cells("strategies", "ddp", "% none", "weights"),
                         [f"{100 * rates['ddp'] / rates['none']:.1f}", "pass"])
        accuracy = max(line["val_top1"] for line in lines if line["kind"] == "epoch")
        self.assertIn(f"{100 * accuracy:.2f} %", str([table.rows for table in shown.tables]))
        self.assertEqual(shown.row("collectives", "all_reduce")["wrong"], "0")
        self.assertIn("unidirectional, concurrent", shown.names("links"))
        self.assertNotIn("crashed", shown.words)
        if "matplotlib is missing" not in result.stderr:
            self.assertTrue((self.out / "plots/link_matrix.png").exists())


if __name__ == "__main__":
    unittest.main()
