"""Reads .jsonl files (results/schema.json) into runs."""

import functools
import json
import operator
import os
import pathlib
import re

from . import words
from .options import distinguish
from .records import Run, UsageError

USABLE = ("step", "epoch", "certificate", "breakdown", "bucket", "prediction", "collective",
          "link", "split", "health", "verdict")
LARGEST = 1e100  # sums and squares of a record's numbers are finite


def files_of(paths):
    """The .jsonl files that arguments name, each once, in the order given."""
    files = {}
    for path in map(pathlib.Path, paths):
        found = [path]
        if path.is_dir():
            found = sorted(file for file in within(path) if not is_of_judge(file))
            if not found:
                raise UsageError(f"{words.printable(path)}: no .jsonl files in this folder")
            for file in found:
                if file.exists() and not file.is_file():  # to open a pipe would wait for its writer
                    raise UsageError(f"{words.printable(file)}: is no regular file")
        files.update({file.resolve(): file for file in found})
    return list(files.values())


def within(path):
    """The .jsonl files of a folder and its folders. One that cannot be read is refused: it may have what is slow."""
    for folder, _, names in os.walk(path, onerror=functools.partial(refuse, path)):
        yield from (pathlib.Path(folder, name) for name in names if name.endswith(".jsonl"))


def refuse(path, error):
    raise UsageError(f"{words.printable(error.filename or path)}: {error.strerror}")


def killed(paths):
    """The logs of acceptances that did not come to their end, which is when acceptance.jsonl is written."""
    return [log for path in map(pathlib.Path, paths) if path.is_dir() for log in sorted(path.rglob("acceptance_*.log"))
            if not log.with_name("acceptance.jsonl").exists()]


def is_of_judge(file):
    """What launch/acceptance has for bin/judge to read; acceptance.jsonl next to it has all of it."""
    return file.name == "runs.jsonl" and file.with_name("acceptance.jsonl").exists()


def text_of(path, start=0):
    try:
        return path.read_bytes()[start:].decode("utf-8")
    except OSError as error:
        refuse(path, error)
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
    """Whether it is the beginning of a record, which has no objects within it; or NUL, which a power failure leaves."""
    return line.startswith(('{"', "\0")) and not line.rstrip().endswith("}")


def rows_of(record):
    """A table's rows as the lines that they stand for, a visit's three links; any other line is itself."""
    if record["kind"] != "table":
        return [record]
    common = {key: value for key, value in record.items() if key not in ("of", "columns", "rows")}
    rows = [{**common, "kind": record.get("of"), **dict(zip(record.get("columns") or [], row))}
            for row in record.get("rows") or [] if row is not None]
    return rows if record.get("of") != "visit" else [link for row in rows for link in links_of(row)]


def links_of(visit):
    """Of two ranks in a round of sampled pairs, as link lines have those of every pair."""
    common = {**visit, "kind": "link", "concurrency": "concurrent", "wrong_elements": 0}
    back = {"from": visit.get("to"), "to": visit.get("from"), "from_host": visit.get("to_host"), "to_host": visit.get("from_host")}
    return [{**common, "direction": "unidirectional", "bandwidth_gbs": visit.get("forward_gbs")},
            {**common, **back, "direction": "unidirectional", "bandwidth_gbs": visit.get("backward_gbs")},
            {**common, "direction": "bidirectional", "bandwidth_gbs": visit.get("both_gbs"), "latency_us": None}]


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
        fault = fault_of(record) or next(filter(None, map(fault_of, rows_of(record))), None)
        if fault:
            raise UsageError(f"{words.printable(path)}: line {at} is not a record: {fault}")
        for row in rows_of(record):
            runs.add(row)
    return [run for run in runs.found if not is_conclusion(run)]


def is_conclusion(run):
    """What bin/judge --record writes of other runs, without a beginning or an end."""
    return not run.header and any(line.get("scope") == "job" and line.get("name") == "judge" for line in run.of("verdict"))


def without_copies(runs):
    """Of a run that stands several times in the files, as in one that was copied or concatenated, the longest: it was measured
    once."""
    same = {}
    for run in runs:
        same.setdefault(run.header and run.run_id or id(run), []).append(run)
    kept = [max(copies, key=lambda run: (len(run.records), run.end is not None)) for copies in same.values()]
    for run, copies in zip(kept, same.values()):
        run.copies = len(copies) - 1
    return kept


def read_runs(paths):
    runs = without_copies([run for path in files_of(paths) for run in read_file(path)])
    for log in killed(paths):
        hosts = {host for run in runs if log.parent in run.path.parents for host in run.hosts}
        runs.append(Run(log, {"program": "acceptance", "hosts": sorted(hosts)}))
    if not any(run.header or any(record["kind"] in USABLE for record in run.records)
               for run in runs):
        raise UsageError(f"no usable records in {', '.join(map(words.printable, paths))}: "
                         f"expected run, {', '.join(USABLE)}")
    distinguish(runs)
    return runs


# ---- whether a record is as the schema describes it ----------------------------------------------
#
# Keys may be absent, null may stand for any number and for any element of a list, and what the schema does not know is
# not looked at: records of other versions are read too.

DEFINITIONS = json.loads(
    (pathlib.Path(__file__).parents[1] / "schema.json").read_text(encoding="utf-8"))["$defs"]
NAMES = {"number": "a number", "integer": "a number", "string": "text", "boolean": "true or false", "array": "a list",
         "object": "an object"}
LIMITS = (("minimum", operator.ge, "{:g} or more"), ("exclusiveMinimum", operator.gt, "more than {:g}"),
          ("maximum", operator.le, "{:g} or less"))


def type_of(value):
    """Name of the JSON type."""
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", list: "array", dict: "object", type(None): "null"}.get(type(value), "number")


@functools.lru_cache(maxsize=None)
def properties(kind):
    """{key: resolved schema} of a kind of record, or of a definition that kinds share."""
    definition = DEFINITIONS.get(kind, {})
    found = {}
    for part in (definition, definition.get("then", {}), *definition.get("allOf", [])):
        if "$ref" in part:
            found.update(properties(part["$ref"].split("/")[-1]))
    return {**found, **{key: resolved(schema) for key, schema in definition.get("properties", {}).items()}}


def resolved(schema):
    """A schema with what it refers to, and its types as a set; those of a constant are its own."""
    if "$ref" in schema:
        schema = {**DEFINITIONS[schema["$ref"].split("/")[-1]], **schema}
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    named = schema.get("type", list(map(type_of, values)))
    return {**schema, "type": {named} if isinstance(named, str) else set(named),
            "items": resolved(schema["items"]) if "items" in schema else None}


def fault(value, schema):
    """What a value must be and is not, or None."""
    types, kind = schema["type"], type_of(value)
    if value is None and types != {"string"}:
        return None
    if kind not in types and not (kind == "number" and "integer" in types):
        return " or ".join(NAMES[name] for name in sorted(types - {"null"}))
    if kind == "array" and schema["items"]:
        of = next(filter(None, (fault(item, schema["items"]) for item in value if item is not None)), None)
        return of and f"a list of which each is {of}"
    if kind == "number":
        if "number" not in types and value != int(value):
            return "a whole number"
        for key, holds, text in LIMITS:
            if key in schema and not holds(value, schema[key]):
                return text.format(schema[key])
    return None


def fault_of(record):
    """What is wrong with a record, or None."""
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return "it has no kind"
    known = properties(record["kind"])
    for key, value in record.items():
        wanted = fault(value, known[key]) if key in known else None
        if wanted:
            return f"{key} is {json.dumps(value)[:40]} and not {wanted}"
    return None
