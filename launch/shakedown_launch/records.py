"""The lines of a run's record, and which of its ranks is which GPU of which node."""

import json

from .hosts import matched

UNREADABLE = "unreadable"  # kind of a line that stands for what could not be read
NEEDED = {  # by findings, of what results/schema.json requires
    "run": ("program", "hosts"),
    "end": ("exit_code",),
    "verdict": ("scope", "name", "verdict", "cause"),
    "failure": ("ranks", "hosts"),
    "metric": ("metric", "unit", "scope", "name", "samples"),
    "table": ("of", "columns", "rows"),
    "health": ("host",)}


def read(path):
    """The lines as dicts. A line that is no record becomes {"kind": "unreadable", "line": its
    number or 0, "cause": ...}, as does a file that is missing or has no line."""
    try:
        return lines(path) or [unreadable(0, "record file: empty")]
    except OSError as error:
        return [unreadable(0, f"record file: {error.strerror}: it was not written, or not where "
                              "this host sees it (--output must be shared)")]


def lines(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return [one for number, line in enumerate(file, 1) if line.strip() for one in rows(number, parsed(number, line))]


def rows(number, line):
    """A table's rows as the lines that they stand for; any other line is itself."""
    if line["kind"] != "table":
        return [line]
    common = {key: value for key, value in line.items() if key not in ("of", "columns", "rows")}
    return [checked(number, {**common, "kind": line["of"], **{
        key: value for key, value in zip(line["columns"], row) if value is not None}}) for row in line["rows"]]


def parsed(number, text):
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return unreadable(number, "no JSON")
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        return unreadable(number, "no record")
    return checked(number, line)


def checked(number, line):
    missing = [key for key in NEEDED.get(line["kind"], ()) if line.get(key) is None]
    if missing:
        return unreadable(number, f"{line['kind']} without {', '.join(missing)}")
    return line


def unreadable(number, cause):
    return {"kind": UNREADABLE, "line": number, "cause": cause}


def jobs(records):
    """[(its `run` record, its other lines)]: a file may hold several jobs. The record is {} where a
    job ended before it wrote one, as at a usage error."""
    found = []
    for line in records:
        new = line.get("kind") == "run" or not found or (
            "run_id" in line and line["run_id"] != found[-1][0] and line["kind"] != "failure")
        if new:
            found.append((line.get("run_id"), {}, []))
        if line.get("kind") == "run":
            found[-1][1].update(line)
        elif line.get("kind") != UNREADABLE:
            found[-1][2].append(line)
    return [(head, lines) for _, head, lines in found if head or lines]


class Ranks:
    """`nodes`: the run's names, `head`: its `run` record."""

    def __init__(self, nodes, head):
        self.hosts = [str(host) for host in head.get("hosts") or []]
        self._gpus = head.get("gpu_uuids") or []
        self._nodes = tuple(nodes)
        distinct = list(dict.fromkeys(self.hosts))
        self._name = matched(distinct, self._nodes)
        if len(distinct) == len(self._nodes):  # in the order of the ranks
            for host, known in zip(distinct, self._nodes):
                self._name.setdefault(host, known)

    def __len__(self):
        return len(self.hosts)

    def host(self, name):
        """The node's name, of a host's."""
        if len(self._nodes) == 1:
            return self._nodes[0]
        return self._name.get(name, name)

    def node(self, rank):
        return self.host(self.hosts[rank])

    def gpu(self, rank):
        """UUID; "" without GPUs."""
        return self._gpus[rank] if rank < len(self._gpus) else ""

    def rank_of(self, uuid):
        return self._gpus.index(uuid) if uuid in self._gpus else None
