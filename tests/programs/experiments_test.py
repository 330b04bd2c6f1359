"""launch/experiments on a tiny folder of images: three trainings and their report. Run by tests/run."""

import json
import os
import pathlib
import shlex
import shutil
import tempfile
import unittest

from support import TREE, make_image_folder, read_record, run_bare
import transcript  # support says where it is
from shakedown_launch import command, experiments  # support says where it is

EXPERIMENTS = TREE / "launch/experiments"
SMALL = ["--model", "tiny", "--image-size", 32, "--batch-size", 4, "--workers", 1, "--lr", 0.01,
         "--backend", "cpu"]
CPU = "cpu" in (TREE / "build/machine.mk").read_text().split("BACKENDS", 1)[1].splitlines()[0]


class Experiments(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shakedown_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.output = self.folder / "results"

    def experiments(self, code, *arguments):
        result = run_bare(EXPERIMENTS, *arguments, "--output", self.output)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result.stdout + result.stderr

    @unittest.skipUnless(CPU, "two ranks on the cpu backend are wanted")
    def test_three_trainings_and_their_report(self):
        make_image_folder(self.folder / "data/train", 16)
        make_image_folder(self.folder / "data/val", 6)
        self.experiments(0, f"--data-dir={self.folder / 'data'}", "--epochs=2", "-n", 2,
                               *SMALL)
        best = {}
        for name in ["ddp", "all-reduce", "parameter-server"]:
            start, *lines, end = read_record(self.output / f"{name}.jsonl")
            epochs = [line for line in lines if line["kind"] == "epoch"]
            self.assertEqual([e["epoch"] for e in epochs], [1, 2])
            self.assertEqual((start["options.strategy"], start["options.seed"], end["exit_code"]),
                             (name, 0, 0))
            best[name] = max(e["val_top1"] for e in epochs)
        for name, file in [("ddp", "results_baseline_ddp.json"),
                           ("all-reduce", "results_all_reduce.json"),
                           ("parameter-server", "results_ps.json")]:
            found = json.loads((self.output / "report" / file).read_text())
            self.assertEqual(found["strategy"], name)
            self.assertAlmostEqual(found["best_accuracy"], best[name])
        report = (self.output / "report/performance_report.txt").read_text()
        for word in ["ddp", "all-reduce", "parameter-server"]:
            self.assertIn(word, report)
        self.assertFalse((self.output / "describe.log").exists())

    @unittest.skipUnless(CPU, "the cpu backend is wanted")
    def test_one_that_cannot_run_does_not_keep_the_cause(self):
        make_image_folder(self.folder / "data/train", 8)
        out = self.experiments(2, "--data-dir", self.folder / "data", "-n", 1, "--quick", *SMALL,
                               "--strategies", "ddp,parameter-server")
        self.assertIn("--strategy parameter-server: at least 2 ranks", out)
        self.assertNotIn("images/s", out)  # none has trained

    def test_usage(self):
        def answer(given):
            words = [word.replace("FOLDER", str(self.folder)) for word in shlex.split(given)]
            try:
                return experiments.main([*words[1:], "--output", str(self.output)])
            except command.UsageError as error:
                return f"refused: {error}".replace(str(self.folder), "FOLDER")
        transcript.check(self, TREE / "tests/programs/experiments.txt", answer)
        self.assertFalse(self.output.exists())
        self.output.mkdir()
        with self.assertRaisesRegex(command.UsageError, "exists already"):
            experiments.main(["--data-dir", str(self.folder), "--output", str(self.output)])
        self.assertIn("--data-dir is required", self.experiments(2))
        self.assertIn("--quick", run_bare(EXPERIMENTS, "--help").stdout)


if __name__ == "__main__":
    os.chdir(TREE)
    unittest.main()
