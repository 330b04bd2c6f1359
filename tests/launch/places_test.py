"""Where the commands find programs, and put what they write."""

import os
import pathlib
import shutil
import sys
import tempfile
import unittest
import unittest.mock

import tree  # noqa: F401 - what is imported below is in its folders
from shakedown_launch import command, places


class Places(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shakedown_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.environ = {"PATH": f"{self.folder}/path"}
        self.addCleanup(setattr, places, "TREE", places.TREE)
        self.addCleanup(setattr, sys, "argv", sys.argv)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        places.TREE = str(self.folder / "home")

    def program(self, path):
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
        return str(path)

    def test_programs_are_found_in_this_order(self):
        for makefile, remedy in [(False, "shakedown --help lists the programs"), (True, "run make first")]:
            if makefile:
                self.program("home/Makefile")
            with self.assertRaisesRegex(command.UsageError, rf"train: not found in PATH or .*/home/bin \({remedy}\)"):
                places.find_program("train", self.environ)
        (self.folder / "home/Makefile").unlink()
        self.program("path/train")
        self.assertEqual(places.find_program("train", self.environ), "train")
        path = self.program("home/bin/train")
        for word in ("train", "bin/train"):
            self.assertEqual(places.find_program(word, self.environ), path)
        folder = os.path.dirname(path)
        os.chmod(self.program("other/train"), 0o644)
        for path, why in [(f"{self.folder}/other/train", "not executable"), (folder, "a folder")]:
            with self.assertRaisesRegex(command.UsageError, f"{path}: {why}"):
                places.find_program(path, self.environ)
        path = self.program("own/train")
        environ = {**self.environ, "SHAKEDOWN_BIN": f"{self.folder}/own"}
        self.assertEqual(places.find_program("train", environ), path)
        path = self.program("home/bin/other")
        self.assertEqual(places.find_program(path, environ), path)

    def test_new_folder(self):
        environ = {"SHAKEDOWN_RUNS": f"{self.folder}/runs"}
        with unittest.mock.patch("time.strftime", return_value="20260101-000000"):
            with unittest.mock.patch("os.getpid", side_effect=[1, 2, 2]):  # runs of the same second
                self.assertEqual([places.new_folder("bench", environ) for _ in range(2)],
                                 [f"{self.folder}/runs/bench-20260101-000000-{pid}"
                                  for pid in (1, 2)])
                with self.assertRaisesRegex(command.UsageError, "cannot make .*: File exists"):
                    places.new_folder("bench", environ)
        with self.assertRaisesRegex(command.UsageError, "SHAKEDOWN_RUNS"):
            places.new_folder("bench", {"SHAKEDOWN_RUNS": "/proc/runs"})
        self.assertEqual(places.runs_folder({}), f"{os.getcwd()}/runs")


if __name__ == "__main__":
    unittest.main()
