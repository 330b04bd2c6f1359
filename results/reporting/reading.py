"""Reads .jsonl files (results/schema.json) into runs."""

import json
import pathlib
import re

from . import words
from .options import distinguish
from .records import Run, UsageError
from .shape import fault_of

USABLE = ("step", "epoch", "certificate", "breakdown", "bucket", "prediction", "collective",
          "link", "split", "health", "verdict")
LARGEST = 1e100  # sums and squares of a record's numbers are finite


def files_of(paths):
    """The .jsonl files that arguments name, each once, in the order given."""
    files = {}
    for path in map(pathlib.Path, paths):
        found = [path]
        if path.is_dir():
            found = sorted(file for file in path.rglob("*.jsonl") if not is_of_judge(file))
            if not found:
                raise UsageError(f"{words.printable(path)}: no .jsonl files in this folder")
        files.update({file.resolve(): file for file in found})
    return list(files.values())


def is_of_judge(file):
    """What launch/acceptance has for bin/judge to read; acceptance.jsonl next to it has all of it."""
    return file.name == "runs.jsonl" and file.with_name("acceptance.jsonl").exists()


def text_of(path, start=0):
    try:
        return path.read_bytes()[start:].decode("utf-8")
    except OSError as error:
        raise UsageError(f"{words.printable(path)}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{words.printable(path)}: not text") from None


def not_json(word):
    raise ValueError(f"{word} is not JSON")  # Python's json would take NaN


def measured(word):
    """A number of a record. What is beyond all that can be measured, as 1e400, is null, as records
    write what is not finite."""
    value = float(word)
    if abs(value) > LARGEST:
        return None
    return value if "." in word or "e" in word.lower() else int(word)


def decoded(line):
    """The JSON of a line; halves of characters, which JSON allows and no file takes, are replaced."""
    found = json.loads(line, parse_constant=not_json, parse_int=measured, parse_float=measured)
    if "\\ud" in line.lower():
        found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
    return found


def is_cut(line):
    """Whether it is the beginning of a record, which has no objects within it."""
    return line.startswith('{"') and not line.rstrip().endswith("}")


class Runs:
    """The runs in a file. Lines with the same run_id are of one run, also where those of several
    jobs are interleaved; lines without, as in 0.1, are of the last such run that has not ended."""

    def __init__(self, path):
        self.path = path
        self.found = []
        self.latest = {}  # {run_id: Run}

    def of(self, kind, run_id, header=None):
        run = self.latest.get(run_id)
        if kind == "run" or run is None or run.end is not None and not run_id:
            run = self.latest[run_id] = Run(self.path, header or {}, run_id)
            self.found.append(run)
        return run

    def add(self, record):
        kind = record["kind"]
        run = self.of(kind, str(record.get("run_id", "")), record if kind == "run" else None)
        if kind == "end":
            run.end = record
        elif kind != "run":
            run.records.append(record)

    def add_cut(self, line, at):
        run_id = re.search(r'"run_id": ?"([^"]*)"', line)
        self.of("", run_id[1] if run_id else "").cut_at = at


def read_file(path, start=0):
    """The runs that a file has from this byte on. A line may be cut off, by a crash or a full disk: the next writer begins
    a new one."""
    runs = Runs(path)
    lines = text_of(path, start).split("\n")  # splitlines would also split at characters that JSON allows
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = decoded(line)
        except (ValueError, RecursionError):
            if not is_cut(line):
                raise UsageError(f"{words.printable(path)}: not JSON at line {at}") from None
            runs.add_cut(line, at)
            continue
        fault = fault_of(record)
        if fault:
            raise UsageError(f"{words.printable(path)}: line {at} is not a record: {fault}")
        runs.add(record)
    return runs.found


def read_runs(paths):
    runs = [run for path in files_of(paths) for run in read_file(path)]
    if not any(run.header or any(record["kind"] in USABLE for record in run.records)
               for run in runs):
        raise UsageError(f"no usable records in {', '.join(map(words.printable, paths))}: "
                         f"expected run, {', '.join(USABLE)}")
    distinguish(runs)
    return runs
