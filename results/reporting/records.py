"""Runs and their records (results/schema.json); what names a configuration. Keys may be absent."""

from functools import cached_property
from typing import NamedTuple

from . import words


class UsageError(Exception):
    """Something the user must change: names the option or file."""


class NotComparable(Exception):
    """Two runs have nothing in common that could be judged: inconclusive."""


class Run:
    """What one start of a program wrote: from its `run` record to its `end`."""

    def __init__(self, path, header, run_id=""):
        self.path = path
        self.header = header
        self.run_id = run_id  # empty in records of 0.1
        self.records = []
        self.end = None
        self.cut_at = None  # the line that was left unfinished
        self.copies = 0  # that were read next to it, and left out
        self.several_caps = set()  # strategies of which the runs read with it have several
        self.distinguished = {}  # {configuration: the same, with the options in which others differ}

    def of(self, kind):
        return [record for record in self.records if record.get("kind") == kind]

    @property
    def device(self):
        """The GPU, else the processor; empty where the program computed on neither, as node_check."""
        return self.header.get("gpu") or self.header.get("processor") or ""

    @property
    def machine(self):
        return self.device or self.header.get("host") or "machine unknown"

    @cached_property
    def hosts(self):
        return sorted(set(texts(self.header, "hosts"))) or [text(self.header, "host") or "host unknown"]

    @property
    def logs_path(self):
        """collective_perf --path: the times include NCCL's logging."""
        return bool(self.header.get("options.path"))

    @property
    def title(self):
        """Name on the page: program and file."""
        return f"{self.header.get('program', 'a run without a run record')} ({words.printable(self.path)})"

    @property
    def name(self):
        """Name in the appendix: program, id (0.1: start) and file."""
        known = self.run_id or self.header.get("started", "")
        return self.title.replace(" (", f" {known} (", 1) if known else self.title

    @property
    def identity(self):
        """What is the same for the same run, wherever it was read."""
        return self.run_id or (self.path.resolve(), self.header.get("started"))


def machines_of(runs):
    """Names of the machines that computed; of those that ran where none did."""
    return sorted({run.device for run in runs if run.device} or {run.machine for run in runs})


def number(record, key):
    """A key's value where it is a number, else None: absent and null both mean not measured."""
    value = record.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def text(record, key):
    """A key's value where it is text, else empty."""
    value = record.get(key)
    return value if isinstance(value, str) else ""


def texts(record, key):
    """The texts of a list; null is one that is not known."""
    values = record.get(key)
    return [value for value in values if value and isinstance(value, str)] if isinstance(values, list) else []


def numbers_in(record, key):
    """The numbers of a list, as one value per rank; null is one that is not known."""
    values = record.get(key)
    return [value for value in values if number({key: value}, key) is not None] if isinstance(values, list) else []


def numbers(records, key):
    """The numbers among a key's values."""
    return [value for record in records if (value := number(record, key)) is not None]


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
    batch: int  # images per micro-batch and rank; of all ranks where --global-batch divided it
    batch_is_global: bool
    accumulate: int
    world_size: int
    optimizer: str
    data: str
    throttle_gbs: float = 0  # 0: the exchange was not slowed down
    setting: str = ""  # of bin/compare --settings, else empty
    deterministic: bool = False
    options: str = ""  # in which other runs of the configuration differ (options.py)


class Configuration(NamedTuple):
    conditions: Conditions
    strategy: str  # as strategy_of


def strategy_of(run, record):
    """Name of the strategy, with the cap of its buckets if the runs have several caps."""
    strategy, cap = text(record, "strategy"), number(record, "bucket_cap_mb")
    several = cap is not None and strategy in run.several_caps
    return f"{strategy} ({cap:g} MiB)" if several else strategy


def plain(strategy):
    """Without the cap."""
    return strategy.split(" (")[0]


def configuration_of(run, record):
    plain_ = described(run, record)
    return run.distinguished.get(plain_, plain_)


def described(run, record):
    """The configuration, without options that distinguish it from those of other runs."""
    header = run.header
    global_batch = number(header, "options.global_batch")
    return Configuration(
        Conditions(
            machine=run.machine,
            nodes=len(run.hosts),
            transport=text(header, "transport"),
            backend=text(record, "backend") or text(header, "backend"),
            model=text(record, "model"),
            image_size=number(record, "image_size") or 0,
            classes=number(record, "classes") or 0,
            precision=text(record, "precision"),
            batch=global_batch or number(record, "batch_size") or 0,
            batch_is_global=bool(global_batch),
            accumulate=number(record, "accumulate") or 1,
            world_size=number(record, "world_size") or number(header, "world_size") or 0,
            optimizer=text(record, "optimizer"),
            data=text(record, "data"),
            throttle_gbs=number(record, "throttle_gbs") or 0,
            setting=text(record, "setting"),
            deterministic=bool(header.get("options.deterministic"))),
        strategy_of(run, record))
