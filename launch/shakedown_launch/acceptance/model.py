"""What an acceptance run knows, and each of it as the line of a record (results/schema.json): of
runs.jsonl, which bin/judge reads, and of acceptance.jsonl. Nothing here runs, reads or prints anything."""

import dataclasses
import math
import typing

# From best to worst, as common/verdict. WARN and UNKNOWN are of findings alone and never a reason
# against a node: what somebody should look at, and a fact that the machine, or this user, does not
# show.
PASS, WARN, UNKNOWN, INCONCLUSIVE, FAIL = OUTCOMES = (
    "PASS", "WARN", "UNKNOWN", "INCONCLUSIVE", "FAIL")
VERDICTS = (PASS, INCONCLUSIVE, FAIL)  # of nodes, groups and the job
WORST_FIRST = (FAIL, INCONCLUSIVE, WARN, UNKNOWN)  # findings
MISSING = "missing"  # check of the finding about stages that did not run
NOT_JUDGED = "rates-not-judged"  # check of the finding about a class of rates without a witness
EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}
STOPPED = 5  # by a signal
HARDWARE, CONFIG, SOFTWARE, ENVIRONMENT, INFRASTRUCTURE = CLASSES = (
    "HARDWARE", "CONFIG", "SOFTWARE", "ENVIRONMENT", "INFRASTRUCTURE")


def worst(outcomes):
    """PASS where there are none."""
    return max(outcomes, key=OUTCOMES.index, default=PASS)


def known(values):
    """Those that are not empty, 0, False or nan."""
    return {key: value for key, value in values.items() if value and value == value}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU, or on a node without GPUs nothing: such a node has none."""
    index: int  # NVML's, on its node
    uuid: str
    serial: str = ""
    model: str = ""  # "NVIDIA H200"
    pci_id: str = ""


@dataclasses.dataclass(frozen=True)
class Node:
    name: str
    gpus: tuple = ()  # of Gpu
    identity: dict = dataclasses.field(default_factory=dict)  # driver, versions.*: a run record's


@dataclasses.dataclass(frozen=True)
class Run:
    """One program on one group of nodes."""
    stage: str  # its name in stages.STAGES
    nodes: tuple  # names, in the order of their ranks
    code: int  # exit code by Shakedown's rules; 3 where it did not end
    started: str  # UTC, ISO 8601
    seconds: float
    record: str  # path of its .jsonl file, relative to the output folder
    log: str
    round: int = 0  # of the ladder; 0 screens
    dead: tuple = ()  # (rank, host, "signal 9 (Killed)"), as launch/mpi found
    lost: tuple = ()  # (host; "" where it is not known, "host n17 was lost: ..."), as launch/mpi found
    note: str = ""  # why it did not end in order: "did not end within 60 s and was stopped"
    group: int = 0  # of the round

    def line(self):
        return {"kind": "stage", "name": self.stage, "nodes": self.nodes, "round": self.round,
                "group": self.group, "exit_code": self.code, "started": self.started,
                "elapsed_s": self.seconds, "record": self.record, "log": self.log, "note": self.note,
                "lost_hosts": [host or "unknown" for host, _ in self.lost], "dead_ranks": [rank for rank, _, _ in self.dead],
                "dead_hosts": [host for _, host, _ in self.dead],
                "dead_causes": [cause for _, _, cause in self.dead]}


@dataclasses.dataclass(frozen=True)
class Figure:
    """What a metric of a GPU, link, node or group of nodes amounts to, as bin/judge has it."""
    stage: str
    nodes: tuple  # one name, but for what only several have
    metric: str  # "product/fp16/flop_per_cycle_sm": the same string in a reference
    value: float
    unit: str
    scope: str = "gpu"
    name: str = ""  # UUID of a GPU; rank; "2->5"; node; group
    samples: tuple = ()
    outcome: str = PASS
    witness: str = ""  # "" : it was compared with nothing
    usual: float = math.nan  # by the witness
    limit: float = math.nan  # from which on it fails
    record: str = ""
    more: dict = dataclasses.field(default_factory=dict)  # the line's other keys: condition.bytes

    @property
    def gpu(self):
        """UUID; "" of a whole node, a link or a group."""
        return self.name if self.scope == "gpu" else ""

    @property
    def higher_is_better(self):
        return self.unit not in ("us", "ms", "s", "°C")

    def line(self):
        """As bin/judge has it."""
        others = {"stage": self.stage, "record": self.record, "witness": self.witness,
                  "usual": self.usual, "limit": self.limit}
        return {"kind": "figure", "metric": self.metric, "unit": self.unit, "value": self.value,
                "samples": self.samples, "scope": self.scope, "name": self.name, "nodes": self.nodes,
                "outcome": self.outcome, **known(others), **self.more}


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that was found wrong, or could not be found out."""
    stage: str
    outcome: str  # of OUTCOMES, not PASS
    nodes: tuple  # whom it concerns; two for a link between nodes, none for the job itself
    cause: str  # "7 % slow, all of it clock: 83 °C against 71: cooling"
    class_: str = ""  # "" where it is not known
    action: str = ""  # "RMA", "reset GPU", "reboot", "reconfigure NCCL_ALGO", "inspect link n1-n2"
    gpu: str = ""  # UUID
    subject: str = ""  # what people call it: "GPU 3", "link 0->2", "rank 1", "all-reduce"
    check: str = ""  # machine name: "ecc-volatile"; of a rate its metric
    evidence: str = ""  # file in the output folder
    slow_looks: int = 0  # of a rate: in how many of its looks it was slow
    looks: int = 0
    accepted: bool = False  # a WARN or UNKNOWN that --accept names: usual at this site

    @property
    def blames(self):
        """Whether it is a reason against its nodes."""
        return self.outcome not in (WARN, UNKNOWN)

    @property
    def scope(self):
        kind = self.subject.split(" ")[0]
        if self.gpu or kind in ("rank", "link", "rail"):
            return "gpu" if self.gpu else kind
        if len(self.nodes) == 2 and self.class_ == INFRASTRUCTURE:
            return "link"
        return "node" if len(self.nodes) == 1 else "job"

    @property
    def name(self):
        """As the programs' own verdicts name it: UUID, rank 1, link 0->2, node."""
        if self.scope in ("gpu", "node"):
            return self.gpu or self.nodes[0]
        return self.subject.split(" ", 1)[-1] or ",".join(self.nodes) or self.stage

    def line(self):
        of_rate = {"metric": self.check, "slow_looks": self.slow_looks, "looks": self.looks} if self.looks else {}
        others = {"class": self.class_, "action": self.action, "gpu": self.gpu, "subject": self.subject,
                  "check": self.check, "evidence": self.evidence, "accepted": self.accepted}
        return {"kind": "verdict", "stage": self.stage, "scope": self.scope, "name": self.name,
                "verdict": self.outcome, "nodes": self.nodes, "cause": self.cause, **of_rate, **known(others)}


class Rounds(typing.NamedTuple):
    """What the ladder's rounds so far leave for those to come and for the conclusion."""
    passed: frozenset = frozenset()  # records of groups that passed
    screen: tuple = ()  # figures of the first round
    failed: str = ""  # why bin/judge had no result of a round


class Facts(typing.NamedTuple):
    """What a campaign found out: all that the judge concludes from."""
    nodes: list  # of Node
    runs: list
    findings: tuple = ()  # of the inventory over all nodes
    isolations: dict = {}  # stage: the ladder's Isolation
    rounds: Rounds = Rounds()
    rates: tuple = ()  # classes that every node must have a judgement of
    expected: dict = {}  # node: names of the stages that it has to pass
    left_out: dict = {}  # node: why no further stage ran on it


@dataclasses.dataclass(frozen=True)
class NodeVerdict:
    node: Node
    outcome: str
    findings: tuple = ()  # worst first
    stages: dict = dataclasses.field(default_factory=dict)  # name: outcome, of those that ran on it
    missing: tuple = ()  # stages without a result: a reason for INCONCLUSIVE, each has a Finding


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """All that the report is made of."""
    tier: str  # "quick", "default", "full", "prolog", "passive"
    started: str  # UTC, ISO 8601
    seconds: float
    verdicts: tuple  # of NodeVerdict, by name
    findings: tuple  # of Finding that concern no single node: links, the job
    figures: tuple
    runs: tuple
    found: tuple = ()  # (rates, metric, witness, share, share from which on it warns): the least slow-down that would be found
    backend: str = ""  # "gpu", "cpu"; "" where none was chosen
    settings: dict = dataclasses.field(default_factory=dict)  # options, injected fault, versions
    tests: int = 0  # jobs that the ladder ran, and its rounds
    rounds: int = 0
    statement: str = ""  # what the soak proves: "0 wrong in 2.1e6 products: below 1.5 per GPU-hour"

    def all_findings(self):
        return [*(each for verdict in self.verdicts for each in verdict.findings), *self.findings]

    @property
    def outcome(self):
        """INCONCLUSIVE where there is no node."""
        if not self.verdicts:
            return INCONCLUSIVE
        return worst([*(each.outcome for each in self.verdicts),
                      *(each.outcome for each in self.findings if each.blames)])
