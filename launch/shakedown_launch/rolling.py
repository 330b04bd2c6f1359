"""launch/slurm/rolling: accepts the nodes of a partition in use, each in a job of its own, as they get free."""

import collections
import errno
import fcntl
import glob
import os
import re
import shlex
import sys
import time

from . import places, records, slurm
from .acceptance import options as acceptance, stages
from .acceptance.model import FAIL, PASS, STOPPED
from .command import Command, InconclusiveError, Option, UsageError, parse, positive, refuse, say
from .words import count, in_columns, nodes as listed

COMMAND = Command(
    "--output DIR [--partition NAME | --nodes LIST] [options] [-- ACCEPTANCE OPTION...]",
    """Accepts the nodes of a partition in use: a job of launch/slurm/acceptance.sbatch per node, by name, with the lowest
    priority, for a few nodes at a time, idle ones first. What is done is kept in DIR: a later call goes on, and a job that
    is preempted or lost is submitted again.""",
    [Option(("--output",), "DIR", "folder of the campaign, on a file system that all nodes see"),
     Option(("--partition",), "NAME", "its nodes are accepted, and the jobs run in it"),
     Option(("--nodes",), "LIST", "nodes such as n[001-128], in place of all of the partition"),
     Option(("--most",), "N", "jobs at a time, running or waiting (default: 4)"),
     Option(("--days",), "N", "a result older than this is measured again (default: never)"),
     Option(("--sbatch",), "WORDS", "more options of sbatch, such as '--qos=preempt --time=01:00:00'"),
     Option(("--once",), None, "submit what may run now and end, as in a scrontab; else until each node has a result"),
     Option(("--status",), None, "print the table and end"),
     Option(("--against",), "N",
            "compare each node's last result with those of the N before, as a nightly watch (results/report --against)"),
     Option(("--every",), "S", "seconds between two looks at the queue (default: 30)")],
    """
    DIR/NODE has a folder per job with the report; DIR/rolling.tsv the jobs that were submitted. ACCEPTANCE OPTION: of
    launch/acceptance, such as --full or --expect-gpus 8.

    Ends with 0: each node is PASS; 1: a node is FAIL, or slower (--against); 2: wrong usage; 3: a node is INCONCLUSIVE, waits,
    or cannot be reached, or slurmctld does not answer; 4: internal error; 5: stopped by a signal; jobs that wait stay in
    the queue.
    """)
JOB = "rolling"  # its name
SUBMITTED = "rolling.tsv"  # node, job, time
NICE = 2147483645  # the largest: lowest priority
FREE = re.compile(r"idle[^*]*$")  # of sinfo; "*": does not answer
AWAY = re.compile(r"down|drain|fail|inval|maint|power|reboot|unknown|no_respond|\*")
RUNNING, WAITING, ABSENT, OPEN, LOST = "running", "waiting", "not available", "not yet", "no result"
THRESHOLD = 3.0  # percent, as of results/report
ATTEMPTS = 3  # jobs of a node that leave no result, after which it has none
OF_SBATCH = dict.fromkeys(("--job-name", "-J", "--nodes", "-N", "--nodelist", "-w", "--array", "-a"),
                          f"each node has one job, of the name {JOB}")
OF_ACCEPTANCE = dict.fromkeys(("--output", "--hosts", "--hostfile"), "each job accepts its own node, in a folder of DIR")

Node = collections.namedtuple("Node", "name state reason")  # as Slurm has it
Queued = collections.namedtuple("Queued", "state job reason")
Result = collections.namedtuple("Result", "verdict cause when folder")
NO_ANSWER = re.compile(r"Unable to contact slurm controller|[Tt]imed out|did not end within|Connection refused|Zero Bytes|Transport")
HELD = re.compile("launch.failed.requeued.held")  # since the node's prolog failed
REFUSED = "Requested node configuration is not available"  # of this node, such as one with fewer GPUs


def ask(words, environ):
    said = places.ask(words, 60, environ)
    if said.code != 0:
        why = said.error.strip() or said.output.strip() or f"exit code {said.code}"
        raise (InconclusiveError if NO_ANSWER.search(why) else UsageError)(f"{shlex.join(words)}: {why}")
    return said.output


# ---- what Slurm says ----

def nodes_of(partition, names, environ):
    """{name: Node} of the partition, or of the nodes named."""
    words = ["sinfo", "--noheader", "--Node", "--format=%N|%T|%E", *(["--partition", partition] if partition else ["--all"]),
             *(["--nodes", ",".join(names)] if names else [])]
    found = {}
    for line in ask(words, environ).splitlines():
        name, state, reason = (*line.split("|", 2), "", "")[:3]
        found[name] = Node(name, state, "" if reason == "none" else reason)
    missing = [name for name in names if name not in found]
    if missing or not found:
        raise UsageError(f"--nodes: Slurm does not know {listed(missing)}" if missing else f"--partition {partition}: has no nodes")
    return found


def jobs_of(folder, known, environ):
    """{node: Queued} of the folder's jobs, also of those whose number a slurmctld that was busy did not return, so that it is
    not among those `known`: what else was submitted has ended, or was cancelled."""
    lines = ask(["squeue", "--noheader", "--me", "--name", JOB, "--format=%n|%T|%i|%r"], environ).splitlines()
    rows = [row for row in (line.split("|") for line in lines) if len(row) == 4]
    return {node: Queued(state, job, reason) for node, state, job, reason in rows if job in known or is_of(folder, job, environ)}


def is_of(folder, job, environ):
    """Whether the job writes into this folder: this user may have another campaign of the same nodes."""
    try:
        return f" StdOut={folder}/" in ask(["scontrol", "show", "job", "-o", job], environ)
    except UsageError:  # it has ended meanwhile
        return False


# ---- what was done ----

def stamp(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def submitted(folder):
    """{node: [(job, its stamp), ...]}."""
    try:
        with open(os.path.join(folder, SUBMITTED), encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
    except OSError:
        return {}
    found = collections.defaultdict(list)
    for node, job, *when in (row for row in rows if len(row) > 1):  # a full disk cuts a line
        found[node].append((job, "".join(when)))
    return found


def results(folder, name):
    """Of the node's acceptances that came to an end by themselves, the oldest first."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(os.path.join(folder, name)), "*", "acceptance.jsonl")):
        lines = records.read(path)
        verdicts = [line for line in lines if line["kind"] == "verdict" and line["scope"] == "node" and "stages" in line]
        if verdicts and lines[-1]["kind"] == "end" and lines[-1]["exit_code"] != STOPPED:
            found.append(Result(verdicts[-1]["verdict"], verdicts[-1]["cause"], os.path.getmtime(path),
                                os.path.dirname(path)))
    return sorted(found, key=lambda each: each.when)


class Campaign:
    def __init__(self, folder, partition, names, most, days, environ, now=time.time):
        self.folder, self.partition, self.names, self.most, self.days = folder, partition, names, most, days
        self.environ, self.now, self.refused = environ, now, set()
        self.look()

    def look(self):
        self.nodes = nodes_of(self.partition, self.names, self.environ)
        self.submitted = submitted(self.folder)
        self.jobs = jobs_of(self.folder, {job for jobs in self.submitted.values() for job, _ in jobs}, self.environ)
        found = {name: results(self.folder, name) for name in self.nodes}
        self.ended = found
        self.results = {name: each[-1] for name, each in found.items() if each and not self.is_old(each[-1])}

    def is_old(self, each):
        return self.days is not None and self.now() - each.when > 86400 * self.days

    def lost(self, name):
        """How many jobs have left no result since the last one."""
        since = max((stamp(each.when) for each in self.ended[name]), default="")
        return sum(not since or when > since for _, when in self.submitted.get(name, ()))

    def state(self, name):
        away = AWAY.search(self.nodes[name].state)
        if self.is_held(name) and self.lost(name) >= ATTEMPTS:
            return LOST
        if name in self.jobs:
            waits = self.jobs[name].state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")
            return RUNNING if not waits else ABSENT if away else WAITING
        if name in self.results:
            return self.results[name].verdict
        if away or name in self.refused:
            return ABSENT
        return LOST if self.lost(name) >= ATTEMPTS else OPEN

    def next(self):
        """Names of the nodes that a job is submitted for now: idle ones, else those that are in use."""
        states = {name: self.state(name) for name in self.nodes}
        room = self.most - sum(state in (RUNNING, WAITING) for state in states.values())
        todo = [name for name, state in states.items() if state == OPEN]
        free = [name for name in todo if FREE.match(self.nodes[name].state)]
        return (free or todo)[:max(room, 0)]

    def is_held(self, name):
        return name in self.jobs and bool(HELD.search(self.jobs[name].reason))

    def release(self, log):
        """Jobs that Slurm holds, once their node is back: each time is one of its attempts."""
        for name in filter(self.is_held, self.nodes):
            if not AWAY.search(self.nodes[name].state) and self.lost(name) < ATTEMPTS:
                note(log, name, self.jobs[name].job)
                try:
                    ask(["scontrol", "release", self.jobs[name].job], self.environ)
                    say(f"{name}: job {self.jobs[name].job} released")
                except UsageError as error:  # it has ended meanwhile
                    say(error)

    def is_over(self):
        return all(self.state(name) not in (OPEN, WAITING, RUNNING) for name in self.nodes)

    def table(self):
        rows = [("node", "result", "when", "cause")]
        for name, node in self.nodes.items():
            each, state = self.results.get(name), self.state(name)
            done = each and state == each.verdict
            why = f"{self.lost(name)} jobs ended without one: {os.path.join(self.folder, name)}" if state == LOST else ""
            rows.append((name, state, time.strftime("%Y-%m-%d %H:%M", time.localtime(each.when)) if done else "",
                         each.cause if done else why or node.state + (f": {node.reason}" if node.reason else "") +
                         (f": sbatch: {REFUSED}" if name in self.refused else "")))
        return in_columns(rows)

    def summary(self):
        counts = collections.Counter(map(self.state, self.nodes))
        return f"{count(len(self.nodes), 'node')}: " + ", ".join(f"{number} {state}" for state, number in counts.items())

    def code(self):
        states = set(map(self.state, self.nodes))
        return 1 if FAIL in states else 0 if states == {PASS} else 3


def compare(campaign, most):
    """Prints of each node how its last result is compared with those before; the exit codes."""
    from reporting import against, options, reading, records, text, verdict
    from reporting.summary import Summary
    for name, ended in campaign.ended.items():
        *before, last = (each.folder for each in ended[-most - 1:] or [None])
        if not before:
            print(f"{name}: {'one result' if last else 'no result'}: nothing to compare with")
            continue
        try:
            sides = reading.read_runs(before), reading.read_runs([last])
            options.distinguish(*sides)
            tables, code = against.compared(*map(Summary, sides), THRESHOLD)
        except (records.NotComparable, records.UsageError) as error:
            tables, code = [], verdict.EXIT_CODES[verdict.INCONCLUSIVE]
            print(f"{name}: {error}")
        print(f"{name}: {os.path.basename(last)} compared with {count(len(before), 'result')} before: exit code {code}")
        print(*(text.table_text(table, None) for table in tables if code), sep="\n\n", end="\n" * bool(tables and code))
        yield code


def check_time(more, words, here):
    """Before the first job: its stages against the time limit of `more`, options of sbatch, or of the script."""
    settings = acceptance.request(words)[0].settings
    with open(os.path.join(here, "slurm", "acceptance.sbatch"), encoding="utf-8") as file:
        given = re.findall(r"^#SBATCH (--time=\S+)", file.read(), re.M) + more
    limits = [found[1] for found in re.finditer(r"(?:^| )(?:--time[= ]|-t ?)(\S+)", " ".join(given))]
    slurm.check_time(stages.seconds_of_node(settings), slurm.seconds_of((limits or [""])[-1]), "each job", slurm.LAST_S)


def lock(folder):
    """The list of the folder's jobs, open to this process alone: two would submit a node's job twice."""
    try:
        os.makedirs(folder, exist_ok=True)
        log = open(os.path.join(folder, SUBMITTED), "a", encoding="utf-8")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UsageError(f"--output {folder}: {error.strerror}") from None
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InconclusiveError(f"--output {folder}: another rolling submits its jobs; --status prints its table") from None
    except OSError as error:
        say(f"--output {folder}: cannot be locked ({error.strerror}): no other rolling may submit its jobs")
    return log


def note(log, name, job):
    print(name, job, stamp(time.time()), sep="\t", file=log, flush=True)


def submit(campaign, name, log, more, words, here):
    """Submits the node's job, and records it in `log`; false where Slurm refuses this node."""
    folder = os.path.join(campaign.folder, name)
    os.makedirs(folder, exist_ok=True)
    partition = ["--partition", campaign.partition] if campaign.partition else []
    line = ["sbatch", "--parsable", "--job-name", JOB, "--nodes=1", "--nodelist", name, f"--nice={NICE}", "--requeue", *partition,
            "--export=ALL", "--output", os.path.join(folder.replace("%", "%%"), "%x-%j.out"), *more, os.path.join(here, "slurm", "acceptance.sbatch"), *words]
    try:
        job = ask(line, {"SHAKEDOWN": os.path.dirname(here), **campaign.environ, "SHAKEDOWN_RUNS": folder}).split(";")[0].strip()
    except UsageError as error:
        if REFUSED not in str(error):
            raise
        campaign.refused.add(name)
        return False
    note(log, name, job)
    say(f"{name}: job {job}")
    return True


def main(arguments):
    ours = arguments[:arguments.index("--")] if "--" in arguments else arguments
    values, rest = parse(COMMAND, ours)
    words = arguments[len(ours) + 1:]
    if rest:
        raise UsageError(f"{rest[0]}: options of launch/acceptance follow --")
    if "--output" not in values:
        raise UsageError("--output DIR is needed")
    if "--partition" not in values and "--nodes" not in values:
        raise UsageError("--partition NAME or --nodes LIST is needed")
    more = shlex.split(values.get("--sbatch", ""))
    refuse(more, OF_SBATCH)
    if exported := re.search(r"(?:^| )--exp\w*[= ](?!ALL\b)\S+", " ".join(more)):
        raise UsageError(f"{exported[0].strip()} cannot be used: the jobs have the environment of {JOB} (--export=ALL,...)")
    refuse(words, OF_ACCEPTANCE)
    try:
        names = slurm.hosts(values.get("--nodes", ""))
    except UsageError as error:
        raise UsageError(f"--nodes {values['--nodes']}: {error}") from None
    folder = os.path.realpath(values["--output"])
    environ = dict(os.environ)
    most, every = positive(values, "--most", 4, "jobs"), positive(values, "--every", 30, "seconds")
    days, nights = positive(values, "--days", None, "days"), positive(values, "--against", None, "results")
    campaign = Campaign(folder, values.get("--partition"), names, most, days, environ)
    here = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    check_time(more, words, here)
    log = None if "--status" in values else lock(folder)
    while log:
        try:
            campaign.look()
            campaign.refused.clear()
            campaign.release(log)
            while not all([submit(campaign, name, log, more, words, here) for name in campaign.next()]):
                campaign.look()
            campaign.look()
        except InconclusiveError as error:
            if "--once" in values:
                raise
            say(error)
        else:
            if "--once" in values or campaign.is_over():
                break
        time.sleep(every)
    print(*campaign.table(), campaign.summary(), sep="\n", file=sys.stdout, flush=True)
    codes = {campaign.code(), *(compare(campaign, nights) if nights else ())}
    return next(code for code in (1, 3, 0) if code in codes)
