"""What an acceptance run knows. Nothing here runs, reads or prints anything."""

import dataclasses
import math

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
    lost: tuple = ()  # hosts
    note: str = ""  # why it did not end in order: "did not end within 60 s and was stopped"
    group: int = 0  # of the round


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
