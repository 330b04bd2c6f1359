#!/usr/bin/env python3
"""Prints docs/measured.md: the committed records as one table for each question. Each folder of records
has a provenance.json: the questions, the command of each file, what its records do not say, and
other files, of which no question has a table. usage: docs/measured.py [FOLDER] >docs/measured.md"""

import json
import pathlib
import sys
import textwrap

TREE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TREE / "results"))
import measured_tables  # noqa: E402
from reporting.reading import read_runs  # noqa: E402
from reporting.records import UsageError  # noqa: E402

WIDTH = 120
HEAD = """# Measured results

Generated from the committed records by `docs/measured.py >docs/measured.md`; do
not edit. Each question has a table of figures and a table of the files that it is made from, with
machine, command and revision; files without a question come last in each part. Absolute figures
drift on shared machines: compare them with the peer that was measured interleaved with them.
`results/report FILE` shows everything in a record.
"""


def page(folder):
    """The text of docs/measured.md."""
    found = sorted(pathlib.Path(folder).rglob("provenance.json"), reverse=True)
    if not found:
        raise UsageError(f"{folder}: no provenance.json in this folder")
    sections = [section(path, folder) for path in found]
    return "\n".join([HEAD, extent(found), *sections])


def extent(found):
    """How many runs there are, and on how many hosts: a figure of one host says nothing of a network."""
    runs = read_runs(sorted(file for path in found for file in path.parent.rglob("*.jsonl")))
    hosts = max(len(run.hosts) for run in runs)
    largest = f"the largest is on {hosts} hosts" if hosts > 1 else "none is on more than one host"
    return f"Of the {len(runs)} runs, {largest}.\n"


def section(path, root):
    """The newest version comes first."""
    known = json.loads(path.read_text(encoding="utf-8"))
    parts = [f"## {known['title']}", *map(folded, known.get("notes", []))]
    for question in known.get("questions", []):
        sources = [Source(path.parent, root, file) for file in question["files"]]
        table = getattr(measured_tables, question["table"])
        parts += [f"### {question['title']}", markdown(*table(sources, **question.get("with", {}))),
                  "\n".join(folded(f"- {note}", "  ") for note in question.get("notes", [])),
                  markdown(["file", "machine", "command", "revision", "note"],
                           [source.row for source in sources])]
    if "other" in known:
        parts += ["### Files without a question",
                  "\n".join(folded(f"- {note}", "  ") for note in known["other"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def folded(note, indent=""):
    return textwrap.fill(note, WIDTH, subsequent_indent=indent, break_on_hyphens=False,
                         break_long_words=False)


class Source:
    """A file of records, and its entry in provenance.json."""

    def __init__(self, folder, root, known):
        self.path = folder / known["file"]
        if not self.path.exists():
            raise UsageError(f"{folder / 'provenance.json'}: {known['file']} is not there")
        self.name = known["file"].rsplit(".", 1)[0]
        self.link = f"[{known['file']}](../{pathlib.Path(root).name}/{self.path.relative_to(root)})"
        self.known = known
        self.runs = read_runs([self.path]) if self.path.suffix == ".jsonl" else []

    def revision(self, run):
        """provenance.json knows better where a machine had the files without their history."""
        recorded = run.header.get("git_revision", "")
        return self.known.get("revision", {}).get(recorded, recorded)

    @property
    def row(self):
        machines = {f"{run.header['world_size']} x {run.machine}" for run in self.runs}
        revisions = dict.fromkeys(self.revision(run) for run in self.runs)
        return [self.link, ", ".join(sorted(machines)) or self.known.get("machine"),
                f"`{self.known['command']}`" if "command" in self.known else None,
                ", ".join(revisions), self.known.get("note")]


def markdown(heads, rows):
    """Columns without any figure are left out."""
    used = [at for at in range(len(heads)) if at == 0 or any(row[at] not in (None, "")
                                                            for row in rows)]
    lines = [[heads[at] for at in used], ["---"] * len(used)]
    lines += [[str("" if row[at] is None else row[at]).replace("|", "\\|") for at in used]
              for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    try:
        print(page(sys.argv[1] if sys.argv[1:] else TREE / "results"), end="")
    except UsageError as error:
        sys.exit(f"docs/measured.py: {error}")
