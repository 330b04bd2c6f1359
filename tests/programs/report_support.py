"""What the tests of results/report share."""

import contextlib
import io
import json
import pathlib
import shutil
import sys
import tempfile
import unittest
from types import SimpleNamespace
from unittest import mock

from report_records import header
from support import TREE, run_bare

REPORT = TREE / "results/report"
sys.path.insert(0, str(REPORT.parent))
from reporting import command  # noqa: E402
from reporting.reading import read_runs  # noqa: E402
from reporting.summary import Summary  # noqa: E402
from reporting.interpreter import prefer_one_with_matplotlib  # noqa: E402, F401


def called(arguments):
    """The report's main in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = command.main("", list(map(str, arguments)))
        except SystemExit as stop:  # argparse
            code = stop.code
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


class Shown:
    """What text, page and CSV files show: tables of cells, and sentences."""

    def __init__(self, tables, sentences=(), said=()):
        self.tables, self.said = tables, dict(said)  # said: page one's
        self.words = "\n".join([*sentences, *(f"{what}: {text}" for what, text in self.said.items()),
                                *(line for table in tables for line in (table.title, *table.notes))])

    @staticmethod
    def of(content):
        sections = [f"{title}: {sentence}" for title, blocks in content.sections
                    for _, sentences in blocks for sentence in sentences]
        return Shown([*content.front, *content.tables], [*content.machines, *sections], {
            "Verdict": content.outcome, "Reason": content.reason, **dict(content.sentences)})

    def row(self, name, first):
        """{heading: cell} of the row that begins so, in the first table of this name that has it."""
        for table in self.tables:
            for cells in table.rows:
                if table.name == name and cells[0] == first:
                    return dict(zip(table.columns[1:], cells[1:]))
        raise AssertionError(f"{name} has no row {first}: {[(table.name, table.rows) for table in self.tables]}")

    def cells(self, name, first, *heads):
        """None for a column that is not there."""
        return [self.row(name, first).get(head) for head in heads]

    def names(self, name):
        """The first cells of the tables of this name."""
        return [cells[0] for table in self.tables if table.name == name for cells in table.rows]


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

    def expect(self, code, result):
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result

    def report(self, *arguments, code=0):
        """In this process, without plots: they take most of a report's time."""
        with mock.patch.object(command, "draw", return_value=[]):
            return self.expect(code, called(arguments))

    def program(self, *arguments, code=0, env=None):
        """As users start it."""
        return self.expect(code, run_bare(REPORT, *arguments, env=env))

    def text(self):
        return "\n".join((self.out / name).read_text()
                         for name in ("performance_report.txt", "appendix.txt"))

    def content(self, *records, **options):
        """What text and page show of these records."""
        return self.content_of([self.write("r.jsonl", *records, **options)])

    @staticmethod
    def content_of(paths):
        return command.content_of(Summary(read_runs(paths)))

    def shown(self, *records, **options):
        return Shown.of(self.content(*records, **options))

    def shown_of(self, *paths):
        return Shown.of(self.content_of(paths))

    def compared(self, *arguments, code=0):
        """The tables of --against."""
        tables = []
        with mock.patch.object(command, "show", lambda found, *_: tables.extend(found)):
            self.report(*arguments, code=code)
        return Shown(tables)

    def text_of(self, *records, **options):
        """The report on these records."""
        self.report(self.write("r.jsonl", *records, **options), "--output", self.out)
        return self.text()

    def without(self, *modules):
        """An environment in which importing the modules fails."""
        stubs = self.folder / "stubs"
        stubs.mkdir(exist_ok=True)
        for module in modules:
            (stubs / f"{module}.py").write_text("raise ImportError('hidden by the test')\n")
        return {"PYTHONPATH": str(stubs)}

    def with_plots(self, *paths):
        result = self.expect(0, called([*paths, "--output", self.out]))
        if "is missing" in result.stderr:
            self.skipTest(result.stderr.strip())
        return result
