"""What runs in which tier: a table of programs with their options and the time each needs. Nothing
is started here."""

import dataclasses

QUICK, DEFAULT, FULL, PROLOG, PASSIVE = TIERS = ("quick", "default", "full", "prolog", "passive")
GPU, CPU = "gpu", "cpu"
NODE, GROUP = "node", "group"
INVENTORY = "inventory"  # always the first: its records name the GPUs of each node
LADDER = "all_reduce"  # the stage whose failure over several nodes is traced to a node or link
PROLOG_SECONDS = 18  # of the 20 that a prolog may need
LEAST_LIMIT = 180  # seconds: no other stage is ended before
INVENTORY_LIMIT = 30  # it reads for 5 s at most: what takes longer is a host whose login hangs
PASSIVE_DEADLINE = 3.5  # seconds of node_check's, of the 5 that a passive check may need
JUDGES = ("compute_perf", "link_matrix", "collective_perf", "soak")  # programs with --reference and --limits
HANG, PROLOG_HANG = 120, 8  # seconds after which a program names the rank that does not answer
SOAK_MINUTES = 15  # of --full
OPERATIONS = "--operation all_reduce,all_gather,reduce_scatter,broadcast,all_to_all"


@dataclasses.dataclass(frozen=True)
class Stage:
    """A program on every node alone, on all of them at the same time (NODE), or on several nodes
    together (GROUP)."""
    name: str
    program: str
    scope: str
    tiers: dict  # tier: (options, seconds on GPUs); it is not part of the other tiers
    on_cpu: tuple = None  # (options, seconds) without GPUs, in any tier; None: it needs GPUs
    common: str = ""  # options of every tier and backend
    one_rank: bool = False  # per node, instead of one per GPU
    least_ranks: int = 1
    where_two: str = ""  # options where there are two ranks or more
    faults: tuple = ()  # kinds of --inject-fault that the program finds
    faults_of_two: tuple = ()  # those that it finds on two ranks or more
    not_in_quick: tuple = ()  # of these, what its short run on GPUs leaves out
    rates: tuple = ()  # classes of rates that it measures: without a metric it measured nothing
    not_in_prolog: tuple = ()  # of these
    capsules: int = 0  # ranks from which on it has --output DIR; 0: never


@dataclasses.dataclass(frozen=True)
class Settings:
    tier: str
    backend: str
    soak_minutes: float = SOAK_MINUTES
    judging: tuple = ()  # options of bin/judge and of the programs that judge: --reference, --limits


def soak(minutes, short="", start=10):
    """`short`: what a short one is confined to. All types of products are, as a fault may be in one alone."""
    return f"--minutes {minutes:g} {short}".rstrip(), 60 * minutes + start


STAGES = (
    Stage(INVENTORY, "node_check", NODE, one_rank=True, common="--passive",
          tiers={tier: ("", 3) for tier in TIERS}, on_cpu=("", 1)),
    Stage("node_check", "node_check", NODE, faults=("stall",), faults_of_two=("collective",),
          tiers={QUICK: ("", 4), DEFAULT: ("", 5), FULL: ("", 5)}, on_cpu=("", 2)),
    Stage("self_test", "train", NODE, least_ranks=2, common="--self-test",
          tiers={DEFAULT: ("", 20), FULL: ("", 20)}, on_cpu=("", 8)),
    Stage("compute", "compute_perf", NODE, rates=("products", "memory", "host_link"),
          not_in_prolog=("host_link",), faults=("product", "copy", "slow"),
          tiers={QUICK: ("--types tf32,fp16 --seconds 0.2", 6), DEFAULT: ("--seconds 1", 17),
                 FULL: ("", 20),
                 PROLOG: ("--types fp16 --tests products,memory --rounds 3 --seconds 0.3", 5)},
          on_cpu=("--types fp32 --size 256 --bytes 1M --seconds 0.02", 3)),
    Stage("links", "link_matrix", NODE, least_ranks=2, rates=("links",),
          tiers={QUICK: ("--alone off", 3), DEFAULT: ("", 10), FULL: ("", 10)},
          on_cpu=("--bytes 256K --iterations 5 --latency-iterations 20", 1)),
    # The path is proved first, and apart, because to log it adds to the latency. It depends on
    # operation and size, so these are those whose bandwidth is judged.
    Stage("path", "collective_perf", NODE, least_ranks=2,
          common="--path on --iterations 2 --warmup 1 --repeats 1",
          tiers={QUICK: ("-b 2M -e 128M -f 64", 3),
                 DEFAULT: (f"{OPERATIONS} -b 1M -e 1G -f 32", 8),
                 FULL: ("--operation all -b 2M -e 1G -f 8", 15)}),
    Stage("collectives", "collective_perf", NODE, least_ranks=2, rates=("collectives",),
          tiers={QUICK: ("-b 2M -e 128M -f 64", 3),
                 DEFAULT: (f"{OPERATIONS} -b 32K -e 1G -f 32", 12),
                 FULL: ("--operation all -b 8 -e 1G -f 8", 40),
                 PROLOG: ("-b 128M -e 128M --iterations 5", 4)},
          on_cpu=(f"{OPERATIONS} -b 4K -e 256K -f 8 --iterations 5 --warmup 1", 1)),
    Stage("train", "train", NODE, rates=("training",), faults=("slow",),
          faults_of_two=("product", "hash"), capsules=2, common="--deterministic --certificate off",
          where_two="--check-neighbour 4",
          tiers={QUICK: ("--model resnet50 --precision fp16 --batch-size 64 --warmup 5 "
                         "--warmup-seconds 1 --iterations 30", 7),
                 DEFAULT: ("--model resnet50 --precision fp16 --batch-size 256 --iterations 200",
                           30),
                 FULL: ("--model resnet50 --precision fp16 --batch-size 256 --iterations 1000",
                        70)},
          on_cpu=("--model tiny --image-size 32 --classes 10 --batch-size 4 --warmup 1 --iterations 4", 1)),
    # As fast as it can, which a reference has.
    Stage("throughput", "train", NODE, rates=("training",), faults=("slow",),
          tiers={tier: ("--model resnet50 --precision fp16 --batch-size 256 --certificate off", 45)
                 for tier in (DEFAULT, FULL)}),
    Stage("soak", "soak", NODE, capsules=1, rates=("products",),
          faults=("product", "memory", "copy", "hash", "slow"), faults_of_two=("collective",),
          not_in_quick=("memory", "collective"),
          # Memory would not be covered by all patterns in that time, and one rank has no collectives.
          tiers={QUICK: soak(0.08, "--shape sweep,steady --loads products,probes,copies", start=4),
                 DEFAULT: soak(2), FULL: soak(SOAK_MINUTES)},
          on_cpu=soak(0.05, "--types fp32 --shape sweep,steady", start=2)),
    # Of every SM and every type of products as few as find what is always wrong.
    Stage("sweep", "soak", NODE, capsules=1, faults=("product", "hash"),
          tiers={PROLOG: soak(0.01, "--shape sweep --loads products,probes", start=4)}),
    Stage("nodes", "node_check", GROUP,
          tiers={DEFAULT: ("", 8), FULL: ("", 8)}, on_cpu=("", 2)),
    Stage(LADDER, "collective_perf", GROUP, rates=("collectives",),  # also of nodes with one rank each
          tiers={QUICK: ("-b 2M -e 128M -f 64", 7),
                 DEFAULT: ("-b 32K -e 1G -f 32", 20), FULL: ("-b 32K -e 1G -f 32", 20)},
          on_cpu=("-b 4K -e 256K -f 8 --iterations 5 --warmup 1", 2)),
    Stage("node_links", "link_matrix", GROUP, least_ranks=2, rates=("links",), common="--alone off",
          tiers={DEFAULT: ("", 30), FULL: ("", 30)},
          on_cpu=("--bytes 256K --iterations 5 --latency-iterations 20", 2)),
)


def named(name):
    return next(stage for stage in STAGES if stage.name == name)


def chosen(settings, scope, ranks=None):
    """The stages of a tier, in their order; with `ranks` those for which that many are enough."""
    return [stage for stage in STAGES
            if stage.scope == scope and settings.tier in stage.tiers
            and (settings.backend == GPU or stage.on_cpu)
            and (ranks is None or ranks >= stage.least_ranks)]


def only_on_gpus(tier):
    """The names of its stages that are left out on the CPU."""
    return [stage.name for stage in STAGES if tier in stage.tiers and not stage.on_cpu]


def options_and_seconds(stage, settings):
    if stage.name == "soak" and settings.tier == FULL:
        return soak(settings.soak_minutes)
    return stage.tiers[settings.tier] if settings.backend == GPU else stage.on_cpu


def words(stage, settings, ranks, fault="", capsules=""):
    """The program's line. `fault`: KIND:RANK or slow:RANK:AMOUNT, which only a program that knows it is
    given."""
    options, _ = options_and_seconds(stage, settings)
    hang = PROLOG_HANG if settings.tier == PROLOG else HANG
    line = [stage.program, "--backend", settings.backend, "--timeout", str(hang),
            *stage.common.split(), *options.split()]
    if settings.tier == PASSIVE:
        line += ["--deadline", str(PASSIVE_DEADLINE)]
    if ranks >= 2:
        line += stage.where_two.split()
    if capsules and 0 < stage.capsules <= ranks:
        line += ["--output", capsules]
    if stage.rates and stage.program in JUDGES:
        line += settings.judging
    kind, _, *amount = fault.split(":") if fault else ("", "")
    if kind in faults(stage, settings, ranks) and (not amount or stage.program == "compute_perf"):
        line += ["--inject-fault", fault]
    return line


def rates(settings, ranks):
    """The classes of rates that are measured on each node of this many ranks. On the CPU none has to be
    judged."""
    if settings.backend != GPU:
        return []
    return list(dict.fromkeys(each for stage in chosen(settings, NODE, ranks) for each in stage.rates
                              if settings.tier != PROLOG or each not in stage.not_in_prolog))


def faults(stage, settings, ranks):
    found = stage.faults + (stage.faults_of_two if ranks >= 2 else ())
    short = settings.tier == QUICK and settings.backend == GPU
    return tuple(each for each in found if not (short and each in stage.not_in_quick))


def seconds(stage, settings):
    return options_and_seconds(stage, settings)[1]


def seconds_of_node(settings):
    """Of all stages of a node alone; on GPUs, where the backend is not chosen yet."""
    settings = dataclasses.replace(settings, backend=CPU if settings.backend == CPU else GPU)
    return sum(seconds(stage, settings) for stage in chosen(settings, NODE))


def limit(stage, settings):
    """Seconds after which a job of it counts as hung."""
    if settings.tier == PROLOG:
        return PROLOG_SECONDS
    if stage.name == INVENTORY:
        return INVENTORY_LIMIT
    return max(LEAST_LIMIT, 3 * seconds(stage, settings))
