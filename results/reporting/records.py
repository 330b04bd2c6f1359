"""Reads .jsonl files (results/schema.json) into runs, tolerant of keys that are absent."""

import json
import pathlib
from typing import NamedTuple

WORDS = ("kind", "program", "started", "strategy", "setting", "model", "precision", "optimizer",
         "data", "backend", "transport", "operation", "dtype")
USABLE = ("step", "epoch", "certificate", "breakdown", "bucket", "prediction", "collective",
          "link", "split", "health")


class UsageError(Exception):
    """Something the user must change: names the option or file."""


class Run:
    """What one start of a program wrote: from its `run` record to its `end`."""

    def __init__(self, path, header):
        self.path = path
        self.header = header
        self.records = []
        self.end = None
        self.cut_at = None  # the line that a crash left unfinished
        self.several_caps = set()  # strategies of which the runs read with it have several

    def of(self, kind):
        return [record for record in self.records if record.get("kind") == kind]

    @property
    def machine(self):
        header = self.header
        return next((header[key] for key in ("gpu", "processor", "host") if header.get(key)),
                    "machine unknown")

    @property
    def name(self):
        """As sentences call it: program, start and file."""
        words = [self.header.get("program", "a run without a run record"),
                 self.header.get("started", ""), f"({self.path})"]
        return " ".join(word for word in words if word)


def number(record, key):
    """A key's value where it is a number, else None: absent and null both mean not measured."""
    value = record.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


class Conditions(NamedTuple):
    """What two configurations must share for their strategies to be compared."""
    machine: str
    nodes: int
    transport: str
    backend: str
    model: str
    image_size: int
    classes: int
    precision: str
    batch: int  # images an update
    batch_of: str  # "a rank", or "globally" where --global-batch divided it
    accumulate: int
    world_size: int
    optimizer: str
    data: str
    throttle_gbs: float = 0  # 0: the exchange was not slowed down
    setting: str = ""  # of bin/compare --settings, else empty


class Configuration(NamedTuple):
    conditions: Conditions
    strategy: str  # as strategy_of


def strategy_of(run, record):
    """With the cap of its buckets where the runs have several, as if each were a strategy."""
    strategy, cap = record.get("strategy", ""), number(record, "bucket_cap_mb")
    several = cap is not None and strategy in run.several_caps
    return f"{strategy} ({cap:g} MiB)" if several else strategy


def plain(strategy):
    """Without the cap."""
    return strategy.split(" (")[0]


def configuration_of(run, record):
    header = run.header
    global_batch = number(header, "options.global_batch")
    return Configuration(
        Conditions(
            machine=run.machine,
            nodes=len(set(header.get("hosts") or [])) or 1,
            transport=header.get("transport", ""),
            backend=record.get("backend", header.get("backend", "")),
            model=record.get("model", ""),
            image_size=number(record, "image_size") or 0,
            classes=number(record, "classes") or 0,
            precision=record.get("precision", ""),
            batch=global_batch or number(record, "batch_size") or 0,
            batch_of="globally" if global_batch else "a rank",
            accumulate=number(record, "accumulate") or 1,
            world_size=number(record, "world_size") or number(header, "world_size") or 0,
            optimizer=record.get("optimizer", ""),
            data=record.get("data", ""),
            throttle_gbs=number(record, "throttle_gbs") or 0,
            setting=record.get("setting", "")),
        strategy_of(run, record))


def files_of(paths):
    """The .jsonl files that arguments name, each once, in the order given."""
    files = {}
    for path in map(pathlib.Path, paths):
        found = [path]
        if path.is_dir():
            found = sorted(path.rglob("*.jsonl"))
            if not found:
                raise UsageError(f"{path}: no .jsonl files in this folder")
        files.update({file.resolve(): file for file in found})
    return list(files.values())


def not_json(word):
    raise ValueError(f"{word} is not JSON")  # Python's json would take NaN


def begins_run(line):
    try:
        return json.loads(line).get("kind") == "run"
    except (ValueError, AttributeError):
        return False


def check_shape(record, place):
    """What is used as text must be text: nothing but such lines comes from the programs."""
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise UsageError(f"{place} is not a record: it has no kind")
    for key in WORDS:
        if not isinstance(record.get(key, ""), str):
            raise UsageError(f"{place}: {key} is not text")
    hosts = record.get("hosts") or []
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise UsageError(f"{place}: hosts is not a list of names")


def read_file(path):
    """The runs in a file. The last line of each may be cut off, by a crash; no other."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not text") from None
    runs = []
    lines = text.split("\n")  # splitlines would also split at characters that JSON allows
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, parse_constant=not_json)
        except ValueError:
            last = at == len(lines)
            if not line.startswith('{"') or not (last or begins_run(lines[at])):
                raise UsageError(f"{path}: not JSON at line {at}") from None
            if not runs or runs[-1].end is not None:
                runs.append(Run(path, {}))
            runs[-1].cut_at = at
            continue
        check_shape(record, f"{path}: line {at}")
        if record["kind"] == "run":
            runs.append(Run(path, record))
            continue
        if not runs or runs[-1].end is not None:
            runs.append(Run(path, {}))
        if record["kind"] == "end":
            runs[-1].end = record
        else:
            runs[-1].records.append(record)
    return runs


def read_runs(paths):
    runs = [run for path in files_of(paths) for run in read_file(path)]
    if not any(record["kind"] in USABLE for run in runs for record in run.records):
        raise UsageError(f"no usable records in {', '.join(map(str, paths))}: "
                         f"wanted {', '.join(USABLE)}")
    caps = {}
    for record in (record for run in runs for record in run.records):
        caps.setdefault(record.get("strategy"), set()).add(number(record, "bucket_cap_mb"))
    several = {strategy for strategy, found in caps.items() if len(found - {None}) > 1}
    for run in runs:
        run.several_caps = several
    return runs
