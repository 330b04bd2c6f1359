"""What was found, in a file that only grows: one JSON line per GPU or node and run. A part that
fails again and again is named, also where it came back on another node."""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import pathlib
import time

from .model import FAIL, HARDWARE, INFRASTRUCTURE, WARN, Finding
from .words import clean

WINDOW_DAYS = 30
LOCK_S = 10  # where another job holds the lock for longer, its line may be next to ours, never in it
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
NO_SERIAL = {"", "0", "n/a", "[n/a]", "na", "none", "unknown", "not available"}
NAMED_NODES = 6
FORMAT = "shakedown-history-1"


# ---- what is written -----------------------------------------------------------------------------

def append(path, acceptance):
    """A line for each GPU and each node that a finding of FAIL names; without one, nothing. Raises
    OSError where it cannot be written."""
    lines = [json.dumps(entry, ensure_ascii=True) for entry in entries(acceptance)]
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
            time.sleep(0.02)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def is_torn(file):
    """Whether the last line has no end: a writer died, or its disk was full."""
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def entries(acceptance):
    """One per GPU, and one per node for what names none of its GPUs."""
    found = []
    for verdict in acceptance.verdicts:
        gpus = {gpu.uuid: gpu for gpu in verdict.node.gpus}
        parts = {}
        for finding in verdict.findings:
            if finding.outcome == FAIL:
                parts.setdefault(finding.gpu, []).append(finding)
        found += [entry(acceptance, verdict.node.name, uuid, gpus.get(uuid), findings)
                  for uuid, findings in parts.items()]
    return found


def entry(acceptance, node, uuid, gpu, findings):
    worst = findings[0]
    values = {"format": FORMAT, "time": acceptance.started, "tier": acceptance.tier,
              "node": clean(node), "uuid": clean(uuid),
              "serial": clean(gpu.serial) if gpu else "", "model": clean(gpu.model) if gpu else "",
              "subject": clean(worst.subject), "class": worst.class_, "cause": clean(worst.cause),
              "action": clean(worst.action),
              "checks": list(dict.fromkeys(clean(each.check or each.stage, 80)
                                           for each in findings))[:16]}
    return {key: value for key, value in values.items() if value}


# ---- what is read --------------------------------------------------------------------------------

def offenders(path, acceptance):
    """[Finding of WARN]: what was found before, in the last days, of the GPUs and nodes of this
    acceptance. Whether `append` came before does not matter."""
    now = when(acceptance.started)
    earlier, skipped = read(path, now)
    current = {}
    for each in entries(acceptance):
        for key in keys(each):
            current[key] = each
    found = []
    for verdict in acceptance.verdicts:
        node = verdict.node
        for gpu in node.gpus:
            own = {"serial": gpu.serial, "uuid": gpu.uuid, "node": node.name}
            found += repeated(own, keys(own), earlier, current, acceptance, gpu)
        own = {"node": node.name}
        found += repeated(own, keys(own), earlier, current, acceptance, None)
    if skipped:
        found.append(Finding("history", WARN, (), f"{skipped} lines of {path} are not of a history "
                             "and were skipped", check="history", subject="history"))
    return found


def repeated(own, names, earlier, current, acceptance, gpu):
    """Findings of one GPU or node: an iterable of none or one."""
    before = {id(each): each for name in names for each in earlier.get(name, ())
              if each["time"] != acceptance.started or each["node"] != own["node"]}.values()
    here = next((current[name] for name in names if name in current), None)
    hosts = list(dict.fromkeys([each["node"] for each in before]))
    moved = gpu and set(hosts) - {own["node"]}
    times = len({each["time"] for each in before} | ({acceptance.started} if here else set()))
    if not before or (times < 2 and not moved):
        return
    if here and own["node"] not in hosts:
        hosts.append(own["node"])
    on = ", ".join(hosts[-NAMED_NODES:])
    cause = (f"{ordinal(times)} finding in {WINDOW_DAYS} days, on {on}" if here else
             f"{times} finding{'s' * (times > 1)} in the last {WINDOW_DAYS} days, on {on}; none now")
    if moved:
        cause += ": the same GPU came back on another node"
    classes = {each.get("class") for each in (*before, *([here] if here else []))}
    yield Finding("history", WARN, (own["node"],), cause,
                  class_=classes.pop() if len(classes) == 1 and None not in classes else "",
                  gpu=gpu.uuid if gpu else "", subject=f"GPU {gpu.index}" if gpu else "node",
                  check="history", evidence="")


def read(path, now):
    """({key: [entry]} of the window, lines that were skipped)."""
    found, skipped = {}, 0
    try:
        file = open(path, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return found, 0
    with file:
        for line in file:
            each = entry_of(line)
            if each is None:
                skipped += bool(line.strip())
            elif now - when(each["time"]) <= datetime.timedelta(days=WINDOW_DAYS):
                for key in keys(each):
                    found.setdefault(key, []).append(each)
    return found, skipped


def entry_of(line):
    """None for a line that is torn or of something else."""
    try:
        each = json.loads(line)
        if each["format"] == FORMAT and each["node"] and when(each["time"]):
            return {key: clean(value) if isinstance(value, str) else value
                    for key, value in each.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return None


def keys(each):
    """What names the part: its serial and UUID, or else its node."""
    found = []
    if str(each.get("serial") or "").lower() not in NO_SERIAL:
        found.append(f"serial {each['serial']}")
    if each.get("uuid"):
        found.append(f"uuid {each['uuid']}")
    return found or [f"node {each['node']}"]


def when(time_):
    return datetime.datetime.strptime(time_, "%Y-%m-%dT%H:%M:%SZ")


def ordinal(number):
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
