#!/usr/bin/env python3
"""launch/bench, experiments and variants, with a training that is a script. Run by tests/run."""

import json
import os
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

from launch_support import TREE, Scratch, environment, run, write_script
from support import gone, wait_until
from shakedown_launch import bench, command, fashion_mnist  # support says where it is


class Jobs(Scratch):
    """launch/bench, experiments and variants, with a training that is a script."""

    def setUp(self):
        super().setUp()
        self.tree = self.launch.parent
        (self.tree / "Makefile").touch()
        shutil.copytree(TREE / "launch/shakedown_launch", self.launch / "shakedown_launch")
        shutil.copytree(TREE / "results/reporting", self.tree / "results/reporting")
        (self.tree / "data").mkdir()
        write_script(self.tree / "results/report", "echo a report\n")
        for program in ["train", "compare"]:
            self.program(program, "echo hello\n")
        self.commands = {"bench": [], "experiments": ["--data-dir", self.tree / "data"],
                         "variants": ["-n", "2", "--variants", "default,ring", "train"]}
        self.make_images(self.tree / "runs")

    def make_images(self, runs, source=fashion_mnist.SOURCE):
        """What launch/bench would make on two CPU ranks."""
        if not fashion_mnist.available():
            source = None
        folder = runs / "data" / ("fashion-mnist-6000" if source else "generated-images-6000")
        folder.mkdir(parents=True, exist_ok=True)
        settings = {"source": str(Path(source).resolve()) if source else "generated",
                    "train": 6000, "val": 2000}
        (folder / fashion_mnist.MARKER).write_text(json.dumps(settings))

    def program(self, name, text):
        write_script(self.tree / "bin" / name, f"echo {name} >>{self.tree}/ran\n" + text)

    def ran(self):
        """The programs' ranks that were started since this was last called."""
        path = self.tree / "ran"
        names = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return names

    def run_script(self, script, *arguments):
        return run(self.launch / script, *self.commands[script], *arguments, CUDA_VISIBLE_DEVICES="",
                   PATH=self.path, cwd=self.tree)

    def test_a_tree_that_is_read_only(self):
        """Each script's results go to the current folder, or where SHAKEDOWN_RUNS says."""
        shutil.rmtree(self.tree / "runs")
        own = self.scratch / "own"
        for runs in ["runs", "elsewhere"]:
            self.make_images(own / runs)
        (self.tree / "bin/train").write_text("#!/bin/bash\n")
        (self.tree / "bin/compare").write_text("#!/bin/bash\n")
        user = []
        if os.geteuid() == 0:  # root may write everywhere
            user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            subprocess.run(["chown", "-R", "65534:65534", own], check=True)
        self.scratch.chmod(0o755)
        subprocess.run(["chmod", "-R", "a-w,a+rX", self.tree], check=True)
        self.addCleanup(subprocess.run, ["chmod", "-R", "u+w", self.tree], check=True)
        plain = {"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": own}
        for line in [["bench"], ["experiments", "--data-dir", "data", "--strategies", "ddp"],
                     ["variants", "-n", "1", "--variants", "default", "true"]]:
            words = [*user, self.launch / line[0], *line[1:]]
            result = run(*words, cwd=self.tree, **plain)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("SHAKEDOWN_RUNS", result.stderr)
            words = [word if word != "data" else self.tree / "data" for word in words]
            run(*words, cwd=own, **plain)
            run(*words, cwd=self.tree, SHAKEDOWN_RUNS=own / "elsewhere", **plain)
            for runs in ["runs", "elsewhere"]:
                self.assertTrue(list((own / runs).glob(f"{line[0]}-*/*")), (line, runs))

    def test_bench(self):
        self.program("train", "echo of rank >&2; while [[ $1 != --save ]]; do shift; done; touch \"$2\"\n")
        result = self.run_script("bench")
        self.assertEqual((result.returncode, self.ran()), (0, 2 * ["train"] + 2 * ["compare"]), result.stderr)
        self.assertIn("resnet18.safetensors", result.stdout)
        log = next((self.tree / "runs").glob("bench-*/train.log"))
        self.assertEqual(log.read_text(), 2 * "of rank\n")
        self.assertEqual(result.stderr.count("of rank"), 2)
        self.program("train", "exit 4\n")
        result = self.run_script("bench")
        self.assertEqual((result.returncode, "compare" in self.ran()), (4, True))
        self.assertNotIn("resnet18.safetensors", result.stdout)
        self.assertIn("a report", result.stdout)
        self.assertIn("launch/bench: train ended with 4: ", result.stderr)

    def test_experiments_that_leave_no_record_have_no_report(self):
        self.program("train", "[[ $* == *--describe* ]]\n")
        result = self.run_script("experiments", "--strategies", "ddp")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("launch/experiments: ddp ended with 1", result.stderr)
        self.assertNotIn("a report", result.stdout)

    def test_bench_without_fashion_mnist(self):
        """It generates images, and says so in the headline and by the folder that is trained on."""
        module = self.launch / "shakedown_launch/fashion_mnist.py"
        text = module.read_text()
        self.assertIn('"/usr/share/datasets/fashion-mnist"', text)
        module.write_text(text.replace('"/usr/share/datasets/fashion-mnist"', '"/nonexistent"'))
        self.make_images(self.tree / "runs", source=None)
        self.program("train", f"echo \"$@\" >>{self.tree}/trained\n")
        result = self.run_script("bench")
        self.assertIn("training on generated images", result.stdout)
        self.assertRegex((self.tree / "trained").read_text(),
                         "--train-dir [^ ]*/data/generated-images-6000/train")
        result = self.run_script("bench", "--source", "own")
        self.assertNotIn("generated", result.stdout)
        self.assertIn("own/train-images", result.stderr)

    def test_bench_refuses_at_once(self):
        self.program("train", "echo no option --wat; exit 2\n")
        result = self.run_script("bench", "--wat")
        self.assertEqual((result.returncode, set(self.ran())), (2, {"train"}))
        self.assertIn("no option --wat", result.stdout)
        for words in [["--source"], ["--source", ""], ["--source="]]:
            with self.assertRaisesRegex(command.UsageError, "option --source requires an argument"):
                bench.main(words)
        self.program("train", "")
        for words in [["--backend", "gpu"], ["--backend=gpu"]]:
            result = self.run_script("bench", *words)
            self.assertEqual((result.returncode, self.ran()), (3, []), result.stderr)
            self.assertIn("launch/bench: --backend gpu: no GPU is visible on this host", result.stderr)
        self.assertEqual(len(list((self.tree / "runs").glob("bench-*"))), 1)  # of --wat
        result = self.run_script("bench", "--help")
        self.assertEqual((result.returncode, self.ran()), (0, []))
        self.assertIn("usage: launch/bench", result.stdout)

    def test_a_source_that_is_not_there_leaves_no_folder(self):
        result = self.run_script("bench", "--source", "/nonexistent")
        self.assertEqual((result.returncode, self.ran()), (2, []))
        self.assertIn("/nonexistent/train-images", result.stderr)
        self.assertEqual([path.name for path in (self.tree / "runs").iterdir()], ["data"])

    def test_a_signal_stops_everything(self):
        self.program("train", "echo $$ >>pids\nexec sleep 300\n")

        def start(script, words, folder):
            self.make_images(folder / "runs")
            job = subprocess.Popen(
                [self.launch / script, *words], start_new_session=True, cwd=folder,
                env=environment(CUDA_VISIBLE_DEVICES="", PATH=self.path), stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
            self.addCleanup(job.kill)
            return job
        jobs = [(start(script, words, folder), folder / "pids", stop, send)
                for script, words in self.commands.items()
                for stop, send in [(signal.SIGTERM, os.kill), (signal.SIGINT, os.killpg)]  # a Ctrl-C
                for folder in [self.scratch / f"{script}-{stop.name}"]]
        for job, pids_path, stop, send in jobs:
            wait_until(lambda: pids_path.exists() and len(pids_path.read_text().split()) == 2)
            send(job.pid, stop)
        for job, pids_path, *_ in jobs:
            self.assertEqual(job.wait(timeout=60), 5, pids_path)
            pids = pids_path.read_text().split()
            self.assertEqual(len(pids), 2, pids_path)
            self.assertTrue(gone(*pids), "still running")
        self.assertEqual(self.ran(), ["train"] * 2 * len(jobs))

    def test_through_a_link(self):
        for script in ["mpi", "variants", "bench", "experiments"]:
            link = self.scratch / f"shakedown-{script}"
            link.symlink_to(self.launch / script)
            result = run(link, "--help", PATH=self.path)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn(f"usage: shakedown-{script}", result.stdout)

    def test_an_older_python(self):
        package = self.tree / "results/reporting/__init__.py"
        package.write_text(package.read_text().replace("(3, 9)", "(9, 9)"))
        for command in (self.launch / "mpi", shutil.copy(TREE / "results/report", self.tree / "results/report")):
            result = run(command, "true", PATH=self.path)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn("Python 3.9 or newer is required; python3 is 3.", result.stderr)


if __name__ == "__main__":
    unittest.main()
