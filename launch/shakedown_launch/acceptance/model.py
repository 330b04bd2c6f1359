"""What an acceptance run knows. Nothing here runs, reads or prints anything."""

import dataclasses

PASS, INCONCLUSIVE, FAIL = "PASS", "INCONCLUSIVE", "FAIL"  # from best to worst, as common/verdict
OUTCOMES = (PASS, INCONCLUSIVE, FAIL)
# Of a Finding, never a reason against a node: what somebody should look at, and a fact that the
# machine, or this user, does not show.
WARN, UNKNOWN = "WARN", "UNKNOWN"
WORST_FIRST = (FAIL, INCONCLUSIVE, WARN, UNKNOWN)  # findings
MISSING = "missing"  # check of the finding about stages that did not run
RATES_NOT_JUDGED = "rates-not-judged"  # check of the WARN about a node that may pass without
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


@dataclasses.dataclass(frozen=True)
class Figure:
    """A measured quantity of one node, GPU or group of nodes."""
    stage: str
    nodes: tuple  # one name, but for what only a group has: a collective over nodes
    metric: str  # "compute/fp16/sustained": the same string in a reference
    value: float
    unit: str  # "TFLOP/s"
    gpu: str = ""  # UUID; "" for a whole node or group
    higher_is_better: bool = True
    samples: tuple = ()  # one per round; the value is their median
    conditions: dict = dataclasses.field(default_factory=dict)  # what must agree to be comparable
    explains: dict = dataclasses.field(default_factory=dict)  # sm_clock_mhz, temperature_c, ...


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that was found wrong, or could not be found out."""
    stage: str
    outcome: str  # FAIL, INCONCLUSIVE, WARN or UNKNOWN
    nodes: tuple  # whom it concerns; two for a link between nodes, none for the job itself
    cause: str  # "7 % slow, all of it clock: 83 °C against 71: cooling"
    class_: str = ""  # "" where it is not known
    action: str = ""  # "RMA", "reset GPU", "reboot", "reconfigure NCCL_ALGO", "inspect link n1-n2"
    gpu: str = ""  # UUID
    subject: str = ""  # what people call it: "GPU 3", "link 0->2", "rank 1", "all-reduce"
    check: str = ""  # machine name: "ecc-volatile", "compute/fp16/sustained"
    evidence: str = ""  # file in the output folder
    off: float = 0.0  # share by which a figure is worse than what it is compared with
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
    # name, source, figures: {metric: [{"value", "floor", "conditions", "may_fail", "kind",
    # "source"}]}, the first with a figure's conditions counts; {} where none matched
    reference: dict = dataclasses.field(default_factory=dict)
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
