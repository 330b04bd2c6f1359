"""launch/experiments on a tiny folder of images: three trainings and their report. Run by tests/run."""

import json
import os
import pathlib
import shutil
import tempfile
import unittest

from support import TREE, make_image_folder, read_record, run_bare
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
        def refused(text, *words):
            with self.assertRaisesRegex(command.UsageError, text):
                experiments.main([*map(str, words), "--output", str(self.output)])
        data = ["--data-dir", self.folder]
        refused("--data-dir is required")
        refused("/nowhere is not a folder", "--data-dir", self.folder / "nowhere")
        refused("--epochs 0", *data, "--epochs", 0)
        refused("--epochs requires an argument", "--epochs", "")
        refused("--quick and --epochs cannot be combined", *data, "--epochs", 2, "--quick")
        for option, why in [("--record", "each experiment writes its own record"),
                            ("--strategy", "use --strategies"), ("--train-dir", "use --data-dir"),
                            ("--iterations", "use --epochs"),
                            ("--checkpoint-dir", "the second experiment would continue"), ("--save", "each experiment")]:
            refused(f"{option} cannot be used: {why}", *data, option, "x")
            refused(f"{option} cannot be used: {why}", *data, f"{option.replace('r-d', 'r_d')}=x")
        for words in [["--strategies", ""], ["--strategies="]]:
            refused("--strategies requires an argument", *data, *words)
        self.assertFalse(self.output.exists())
        self.output.mkdir()
        refused("exists already", *data)
        self.assertIn("--data-dir is required", self.experiments(2))
        self.assertIn("--quick", run_bare(EXPERIMENTS, "--help").stdout)


if __name__ == "__main__":
    os.chdir(TREE)
    unittest.main()
