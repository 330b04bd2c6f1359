"""What was found, in a file that only grows: one JSON line per run and GPU, or node. A part that
fails again is named, also where it came back on another node."""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import pathlib
import time

from ..model import FAIL, WARN, Finding
from ...words import clean, count
from .digest import injected

FORMAT = "shakedown-history-1"
WINDOW_DAYS = 30
LOCK_S = 10  # then without: lines of two jobs may be torn, but no job hangs on a file system
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
NO_SERIAL = {"", "0", "n/a", "[n/a]", "na", "none", "unknown", "not available"}
NODES, CHECKS = 6, 16  # named at most


# ---- what is written -----------------------------------------------------------------------------

def append(path, acceptance):
    """A line for each GPU, and each node, that failed or was slow at first. Raises OSError where it
    cannot be written."""
    lines = [json.dumps(entry, ensure_ascii=True) for entry in entries(acceptance).values()]
    if not lines:
        return
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o664)
    try:
        with locked(file):
            data = ("\n" * is_torn(file) + "\n".join(lines) + "\n").encode()
            if os.write(file, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(file)
    finally:
        os.close(file)


@contextlib.contextmanager
def locked(file):
    """Waits for the lock, but not forever: a file system's lock service may be down."""
    limit = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno in NO_LOCKS or time.monotonic() > limit:
                break
            time.sleep(0.01)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def is_torn(file):
    """Whether the last line has no end: its writer died, or its disk was full."""
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def entries(acceptance):
    """{(node's name, UUID; empty for what names no GPU): line}"""
    found = {}
    for verdict in acceptance.verdicts:
        gpus = {gpu.uuid: gpu for gpu in verdict.node.gpus}
        for finding in verdict.findings:
            if finding.outcome == FAIL or finding.outcome == WARN and finding.slow_looks:
                found.setdefault((verdict.node.name, finding.gpu),
                                 (gpus.get(finding.gpu), []))[1].append(finding)
    return {key: entry(acceptance, *key, *value) for key, value in found.items()}


def entry(acceptance, node, uuid, gpu, findings):
    worst = findings[0]
    checks = dict.fromkeys(clean(each.check or each.stage, 80) for each in findings)
    values = {"node": node, "uuid": uuid, "serial": gpu.serial if gpu else "",
              "model": gpu.model if gpu else "", "subject": worst.subject, "class": worst.class_,
              "cause": worst.cause, "action": worst.action,
              "injected": ", ".join(injected(acceptance)),
              "outcome": WARN if worst.outcome == WARN else ""}
    return {"format": FORMAT, "time": acceptance.started, "tier": acceptance.tier,
            **{key: clean(value) for key, value in values.items() if value},
            "checks": list(checks)[:CHECKS]}


# ---- what is read --------------------------------------------------------------------------------

def offenders(path, acceptance):
    """[Finding of WARN] of the GPUs and nodes of this acceptance that failed before. Whether its
    own lines are in the file already does not matter."""
    now = entries(acceptance)
    try:
        earlier, skipped = read(path, acceptance)
    except OSError as error:
        return [Finding("history", WARN, (), f"{path} cannot be read: {error.strerror}",
                        subject="history", check="history")]
    found = []
    for verdict in acceptance.verdicts:
        node = verdict.node.name
        for gpu in (*verdict.node.gpus, None):
            uuid, serial = (gpu.uuid, gpu.serial) if gpu else ("", "")
            before = {id(line): line for key in keys(node, clean(uuid), clean(serial))
                      for line in earlier.get(key, ())}
            found.append(repeated(node, gpu, sorted(before.values(), key=lambda line: line["time"]),
                                  (node, uuid) in now))
    if skipped:
        found.append(Finding("history", WARN, (), f"{count(skipped, 'line')} of {path} skipped: "
                             "not readable as history", subject="history",
                             check="history"))
    return [finding for finding in found if finding]


def repeated(node, gpu, before, here):
    """The Finding of a GPU or node with these earlier lines, or None. `here`: it failed again."""
    hosts = list(dict.fromkeys([line["node"] for line in before] + [node] * here))
    moved = gpu is not None and set(hosts) - {node}
    if not before or not (here or moved or len(before) > 1):
        return None
    number, last = len(before) + here, before[-1]
    cause = f"{ordinal(number)} finding in {WINDOW_DAYS} days" if here else \
        f"passed now, {count(number, 'finding')} in the last {WINDOW_DAYS} days"
    cause += f", on {', '.join(hosts[-NODES:])}"
    if moved:
        cause += ": the same GPU came back on another node"
    cause += f"; before on {last['time'][:10]}: {last.get('cause', 'cause unknown')}"
    return Finding("history", WARN, (node,), cause, class_=last.get("class", ""),
                   gpu=gpu.uuid if gpu else "", subject=subject(node, gpu), check="history")


def subject(node, gpu):
    if gpu is None:
        return f"node {node}"
    return f"GPU {gpu.index}, serial {clean(gpu.serial)}" if readable(gpu.serial) else \
        f"GPU {gpu.index}, {clean(gpu.uuid)}"


def readable(serial):
    return serial.lower() not in NO_SERIAL


def read(path, acceptance):
    """({key: lines of the window}, number of lines skipped), without this acceptance's
    own lines and those of injected faults."""
    found, skipped, now = {}, 0, when(acceptance.started)
    try:
        file = open(path, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return found, 0
    with file:
        for text in file:
            line = line_of(text)
            if line is None:
                skipped += bool(text.strip())
            elif line["time"] != acceptance.started and "injected" not in line and \
                    now - when(line["time"]) <= datetime.timedelta(days=WINDOW_DAYS):
                for key in keys(line["node"], line.get("uuid", ""), line.get("serial", "")):
                    found.setdefault(key, []).append(line)
    return found, skipped


def line_of(text):
    """None for a line that is torn or of something else."""
    try:
        line = json.loads(text)
        if line["format"] != FORMAT or not line["node"] or not when(line["time"]):
            return None
        return {key: clean(value) for key, value in line.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def keys(node, uuid, serial):
    """What names a part: serial and UUID; of a node its name."""
    found = [("serial", serial)] if readable(serial) else []
    found += [("uuid", uuid)] if uuid else []
    return found or [("node", node)]


def when(text):
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")


def ordinal(number):
    ending = "th" if 10 <= number % 100 <= 20 else \
        {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
