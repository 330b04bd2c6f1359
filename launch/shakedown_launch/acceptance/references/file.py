"""Files of results/reference: what figures good nodes of one kind have, and where each is from.
Read strictly: a wrong key, unit or missing source is a UsageError that names file and figure."""

import dataclasses
import json
import math
import os

from ...places import UsageError
from ..words import valid

MEASURED, PUBLISHED, STATED = KINDS = ("measured", "published", "stated")
UNITS = {"TFLOP/s": True, "GB/s": True, "images/s": True, "us": False, "ms": False}  # higher wins
UNKNOWN_SPREAD = 0.92  # of a validated baseline whose spread is not known
SIGMAS = 5
LEAST_SPREAD = 0.005  # of the value: what a few runs of one machine do not show
UNITS_OF_SPREAD = 3  # GPUs or nodes from which on a spread may narrow the floor
TEXT, NUMBER, TRUTH, TABLE = str, (int, float), bool, dict


@dataclasses.dataclass(frozen=True)
class ReferenceFigure:
    metric: str
    value: float
    unit: str
    kind: str
    source: str  # file and revision, or the document
    date: str  # measured or read, YYYY-MM-DD or YYYY-MM; "" not known
    value_to: float = None  # of a range, the value being its lower end
    is_limit: bool = False  # the value is itself the least that is accepted
    validated: bool = False  # good nodes, results verified: may fail a node
    versions: dict = dataclasses.field(default_factory=dict)
    data: str = ""  # as ALLOWED has them; "" not known or of no effect
    sm_clock_mhz: float = None
    temperature_c: float = None
    power_limit_w: float = None
    spread: float = None  # standard deviation between GPUs, nodes and runs, in `unit`
    samples: int = None  # values that the median and the spread are of
    units: int = None  # GPUs, or nodes, that they are of
    conditions: dict = dataclasses.field(default_factory=dict)  # must agree to be comparable
    path: dict = dataclasses.field(default_factory=dict)  # must agree, or the setting is wrong
    note: str = ""

    @property
    def higher_is_better(self):
        return UNITS[self.unit]

    @property
    def may_fail(self):
        return self.kind == MEASURED and self.validated

    @property
    def floor(self):
        """The least that is accepted; of times the most. None: its spread is too wide to judge."""
        if self.is_limit:
            return self.value
        sign = -1 if self.higher_is_better else 1
        usual = self.value * UNKNOWN_SPREAD ** -sign
        if self.spread is None:
            return usual
        own = self.value + sign * SIGMAS * max(self.spread, LEAST_SPREAD * self.value)
        wider = min if self.higher_is_better else max
        floor = own if (self.units or 0) >= UNITS_OF_SPREAD else wider(own, usual)
        return floor if floor > 0 else None


@dataclasses.dataclass(frozen=True)
class Reference:
    name: str
    devices: tuple  # models as NVML or the processor names them
    figures: tuple
    ranks_per_node: tuple = ()  # GPUs; (): any
    link: str = ""  # "nvlink", "pcie"; "": any
    nvls: str = ""  # "on", "off"; "": any
    power_limit_w: float = None
    note: str = ""
    file: str = ""


FIGURE_KEYS = {"metric": TEXT, "value": NUMBER, "unit": TEXT, "kind": TEXT, "source": TEXT,
               "date": TEXT, "value_to": NUMBER, "is_limit": TRUTH, "validated": TRUTH,
               "versions": TABLE, "data": TEXT, "sm_clock_mhz": NUMBER, "temperature_c": NUMBER,
               "power_limit_w": NUMBER, "spread": NUMBER, "samples": NUMBER, "units": NUMBER,
               "conditions": TABLE, "path": TABLE, "note": TEXT}
FIGURE_REQUIRED = ("metric", "value", "unit", "kind", "source", "date")
KEYS = {"name": TEXT, "devices": list, "figures": list, "ranks_per_node": list, "link": TEXT,
        "nvls": TEXT, "power_limit_w": NUMBER, "note": TEXT, "defaults": TABLE}
REQUIRED = ("name", "devices", "figures")
ALLOWED = {"kind": KINDS, "unit": tuple(UNITS), "data": ("", "random", "zeros", "synthetic"),
           "link": ("", "nvlink", "pcie"), "nvls": ("", "on", "off")}


def load(place):
    """[Reference] of a file, or of all .json files of a folder."""
    if not os.path.isdir(place):
        return [read(place)]
    return [read(os.path.join(place, name)) for name in sorted(os.listdir(place))
            if name.endswith(".json")]


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            table = json.load(file)
    except OSError as error:
        raise UsageError(f"reference {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"reference {path}: no JSON: {error}") from None
    where = f"reference {path}"
    check(where, table, KEYS, REQUIRED)
    defaults = table.pop("defaults", {})
    figures = []
    for number, line in enumerate(table.pop("figures"), 1):
        name = line.get("metric", "no metric") if isinstance(line, dict) else "no object"
        figures.append(figure(f"{where}: figure {number} ({name})", line, defaults))
    table["devices"] = tuple(table["devices"])
    table["ranks_per_node"] = tuple(table.get("ranks_per_node", ()))
    return Reference(figures=tuple(figures), file=path, **table)


def figure(where, line, defaults):
    if isinstance(line, dict):
        line = {**defaults, **line}
    check(where, line, FIGURE_KEYS, FIGURE_REQUIRED)
    if not line["source"].strip():
        raise UsageError(f"{where}: source is empty")
    if not 0 < line["value"] < math.inf:
        raise UsageError(f"{where}: value {line['value']}: above 0 is allowed")
    if not 0 <= line.get("spread", 0) < math.inf:
        raise UsageError(f"{where}: spread {line['spread']}: 0 and above is allowed")
    return ReferenceFigure(**line)


def check(where, table, keys, required):
    if not isinstance(table, dict):
        raise UsageError(f"{where}: not an object")
    for key, value in table.items():
        if key not in keys:
            raise UsageError(f"{where}: unknown key '{key}'; allowed: {', '.join(keys)}")
        if not isinstance(value, keys[key]) or (isinstance(value, bool) and keys[key] is NUMBER):
            raise UsageError(f"{where}: {key}: {value!r} has the wrong type")
        if key in ALLOWED and value not in ALLOWED[key]:
            raise UsageError(f"{where}: {key} '{value}'; allowed: {', '.join(ALLOWED[key])}")
    for key in required:
        if key not in table:
            raise UsageError(f"{where}: {key} is missing")


def write(path, reference):
    """As read() reads it; the file is whole or not there."""
    table = {key: value for key, value in dataclasses.asdict(reference).items()
             if key not in ("figures", "file") and value not in ("", None, ())}
    lines = [{key: value for key, value in dataclasses.asdict(each).items()
              if value not in ("", None, False, {}) or key in FIGURE_REQUIRED}
             for each in reference.figures]
    head = json.dumps(valid(table), indent=1)[:-2]
    body = ",\n  ".join(json.dumps(valid(line)) for line in lines)
    text = f'{head},\n "figures": [\n  {body}\n ]\n}}\n'
    path = os.path.realpath(path)  # a link to a shared reference stays one
    try:
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{path}.new", path)
    except OSError as error:
        if os.path.exists(f"{path}.new"):
            os.remove(f"{path}.new")
        raise UsageError(f"reference {path}: cannot be written: {error.strerror}") from None
