"""What the tests of results/report share."""

import json
import pathlib
import re
import shutil
import tempfile
import unittest

from report_records import header
from support import TREE, run_bare

REPORT = TREE / "results/report"


class Report(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shakedown_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.out = self.folder / "out"

    def write(self, name, *records, head=None, ended=True):
        lines = [head or header(), *records] + [{"kind": "end", "exit_code": 0,
                                                 "elapsed_s": 1}] * ended
        path = self.folder / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def report(self, *arguments, code=0, env=None):
        result = run_bare(REPORT, *arguments, env=env)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def text_of(self, *records, **options):
        """The report on these records; quick, for it is made without matplotlib."""
        self.report(self.write("r.jsonl", *records, **options), "--output", self.out,
                    env=self.without("matplotlib"))
        return unfolded((self.out / "performance_report.txt").read_text())

    def without(self, *modules):
        """An environment in which importing the modules fails."""
        stubs = self.folder / "stubs"
        stubs.mkdir(exist_ok=True)
        for module in modules:
            (stubs / f"{module}.py").write_text("raise ImportError('hidden by the test')\n")
        return {"PYTHONPATH": str(stubs)}

    def with_plots(self, *paths):
        result = self.report(*paths, "--output", self.out)
        if "is missing" in result.stderr:
            self.skipTest(result.stderr.strip())
        return result


def unfolded(text):
    """Sentences on one line each."""
    return re.sub(r"\n  (?=\S)", " ", text)


def row(text, method):
    """The cells of a method's row in the first table."""
    line = re.search(rf"^{re.escape(method)} +(\S.*)$", text, re.M)
    return re.split(r"  +", line[1])
