"""What was found, in a file that only grows: one JSON line per run and GPU, or node. A part that
fails again is named, also where it came back on another node."""

import datetime
import errno
import fcntl
import json
import os
import time

from ...words import clean, count
from ..model import FAIL, WARN, Finding
from .digest import injected

FORMAT = "shakedown-history-1"
WINDOW_DAYS = 30
LOCK_S = 10  # then without: lines of two jobs may be torn, but no job hangs on a file system
NO_SERIAL = {"", "0", "n/a", "[n/a]", "na", "none", "unknown", "not available"}
NODES, CHECKS = 6, 16  # named at most


# ---- what is written -----------------------------------------------------------------------------

def append(path, acceptance):
    """A line for each GPU, and each node, that failed or was slow at first. Raises OSError where it
    cannot be written."""
    lines = [json.dumps(entry, ensure_ascii=True) for entry in entries(acceptance).values()]
    if not lines:
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "ab+", buffering=0) as file:
        lock(file)
        torn = file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"  # its writer died
        data = ("\n" * bool(torn) + "\n".join(lines) + "\n").encode()
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(file.fileno())


def lock(file):
    """Waits for it until the file is closed elsewhere, but not forever: a file system's lock service may be
    down, or it may have none."""
    limit = time.monotonic() + LOCK_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                return None
            time.sleep(0.01)
        except OSError:
            return None


def entries(acceptance):
    """{(node's name, UUID; empty for what names no GPU): line}"""
    found = {}
    for verdict in acceptance.verdicts:
        for finding in verdict.findings:
            if finding.outcome == FAIL or finding.outcome == WARN and finding.slow_looks:
                found.setdefault((verdict.node.name, finding.gpu), []).append(finding)
    gpus = {gpu.uuid: gpu for verdict in acceptance.verdicts for gpu in verdict.node.gpus}
    return {(node, uuid): entry(acceptance, node, uuid, gpus.get(uuid), of) for (node, uuid), of in found.items()}


def entry(acceptance, node, uuid, gpu, findings):
    worst = findings[0]
    checks = dict.fromkeys(clean(each.check or each.stage, 80) for each in findings)
    values = {"node": node, "uuid": uuid, "serial": gpu and gpu.serial, "model": gpu and gpu.model,
              "subject": worst.subject, "class": worst.class_, "cause": worst.cause, "action": worst.action,
              "injected": ", ".join(injected(acceptance)), "outcome": WARN * (worst.outcome == WARN)}
    return {"format": FORMAT, "time": acceptance.started, "tier": acceptance.tier,
            **{key: clean(value) for key, value in values.items() if value}, "checks": list(checks)[:CHECKS]}


# ---- what is read --------------------------------------------------------------------------------

def offenders(path, acceptance):
    """[Finding of WARN] of the GPUs and nodes of this acceptance that failed before. Whether its
    own lines are in the file already does not matter."""
    now = entries(acceptance)
    try:
        earlier, skipped = read(path, acceptance)
    except OSError as error:
        return [warning((), f"{path} cannot be read: {error.strerror}")]
    found = [repeated(verdict.node.name, gpu, earlier, (verdict.node.name, gpu.uuid if gpu else "") in now)
             for verdict in acceptance.verdicts for gpu in (*verdict.node.gpus, None)]
    if skipped:
        found.append(warning((), f"{count(skipped, 'line')} of {path} skipped: not readable as history"))
    return list(filter(None, found))


def warning(nodes, cause, subject="history", **more):
    return Finding("history", WARN, nodes, cause, subject=subject, check="history", **more)


def repeated(node, gpu, earlier, here):
    """The Finding of a GPU or node, or None. `here`: it failed again."""
    uuid, serial = (gpu.uuid, clean(gpu.serial)) if gpu else ("", "")
    before = {id(line): line for key in keys(node, clean(uuid), serial) for line in earlier.get(key, ())}
    before = sorted(before.values(), key=lambda line: line["time"])
    hosts = list(dict.fromkeys([line["node"] for line in before] + [node] * here))
    moved = gpu is not None and set(hosts) - {node}
    if not before or not (here or moved or len(before) > 1):
        return None
    number, last = len(before) + here, before[-1]
    cause = f"{ordinal(number)} finding in {WINDOW_DAYS} days" if here else \
        f"passed now, {count(number, 'finding')} in the last {WINDOW_DAYS} days"
    cause += f", on {', '.join(hosts[-NODES:])}{': the same GPU came back on another node' * bool(moved)}"
    cause += f"; before on {last['time'][:10]}: {last.get('cause', 'cause unknown')}"
    subject = f"GPU {gpu.index}, {f'serial {serial}' if readable(serial) else clean(uuid)}" if gpu else f"node {node}"
    return warning((node,), cause, subject, class_=last.get("class", ""), gpu=uuid)


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
