"""The command line of launch/acceptance."""

import collections
import glob
import os
import re

from .. import gpus, places
from ..command import Command, Option, UsageError, parse, positive
from . import stages

NOT_PASSIVE = {"--reference", "--limits", "--record-reference", "--inject-fault", "-n"}
TIER_OPTIONS = {f"--{tier}": tier for tier in stages.TIERS if tier != stages.DEFAULT}
COMMAND = Command(
    "[options]",
    """Runs every check and benchmark on one or more nodes, and concludes PASS, FAIL or INCONCLUSIVE
    per node, with class, cause and action; of several nodes it traces a failure to a node or a link.
    Without a tier it is made for 8 minutes, 2 of them soak. On the CPU all is short.""",
    [Option(("--quick",), None, "tier: short run before other jobs, made for 40 s"),
     Option(("--full",), None, "tier: all sizes and types, and a soak of --soak-minutes"),
     Option(("--prolog",), None, "tier for Slurm's Prolog: the job's GPUs here, at most 20 s"),
     Option(("--passive",), None, "tier for HealthCheckProgram: only reads, at most 5 s"),
     Option(("--soak-minutes",), "X", "minutes of soak in a --full run (default: 15)"),
     Option(("--backend",), "WHERE", "gpu, cpu, or auto: gpu where there is one (default: auto)"),
     Option(("-n",), "N", "ranks on each node (default: one per GPU, or two)"),
     Option(("--hosts",), "h1,h2",
            "hosts to accept, by ssh or within Slurm's allocation (default: all of the allocation, "
            "else this one)"),
     Option(("--hostfile",), "FILE", "file of hosts, one per line, in place of --hosts"),
     Option(("--expect-gpus",), "N",
            "GPUs of each node; fewer is FAIL (default: Slurm's grant, else the number most of three "
            "nodes or more have)"),
     Option(("--reference",), "PATH",
            "references or records to compare rates with; all nodes must see it (default: the "
            "built-in results/reference)"),
     Option(("--limits",), "FILE", "limits that replace the built-in ones (docs/judge.md)"),
     Option(("--record-reference",), "FILE", "write a reference, if all nodes pass"),
     Option(("--history",), "FILE", "append failures by serial; name what failed before"),
     Option(("--output",), "DIR",
            "folder of the report, records and logs; all nodes must see it (default: "
            "runs/acceptance-DATE-TIME-PID, or in SHAKEDOWN_RUNS)"),
     Option(("--nagios",), None, "print one line for Nagios, and end with its exit codes"),
     Option(("--prometheus",), "FILE", "write metrics for node_exporter's textfile collector"),
     Option(("--junit",), "FILE", "write JUnit XML: a suite per node, a case per stage"),
     Option(("--accept",), "CHECK,...", "checks whose warnings and unknown facts count for nothing"),
     Option(("--strict",), None, "make a node INCONCLUSIVE by a warning or unknown fact"),
     Option(("--inject-fault",), "KIND:RANK",
            "fault that must be found, on a rank of all nodes: product, memory, copy, collective, hash, "
            "slow or stall; slow:RANK:3sms, slow:RANK:5% slow products alone")],
    """
    Prints the report and the lines that drain failed nodes in Slurm; drains nothing.

    Ends with 0: every node PASS; 1: a node FAIL; 2: wrong usage; 3: a node INCONCLUSIVE; 4: internal
    error; 5: stopped by a signal. With --nagios: 0 OK; 1 WARNING; 2 CRITICAL: a node FAIL; 3 UNKNOWN:
    a node INCONCLUSIVE, or wrong usage.
    """)

Request = collections.namedtuple(
    "Request", "settings ranks expect_gpus fault record_reference history output nagios "
    "strict hosts accept prometheus junit")


def request(arguments):
    """(Request, options by name) of the command line."""
    values, words = parse(COMMAND, arguments)
    if words:
        raise UsageError(f"unknown argument {words[0]}")
    expect = values.get("--expect-gpus")
    if expect is not None and not (expect.isascii() and expect.isdigit()):
        raise UsageError(f"--expect-gpus {expect} is not a number of GPUs")
    hosts = {key: values[key] for key in ("--hosts", "--hostfile") if key in values}
    for option in {"--record-reference", "--history", "--prometheus", "--junit"} & values.keys():
        check_writable(option, values[option])
    return Request(
        settings(values), positive(values, "-n", None, "ranks"),
        None if expect is None else int(expect), fault(values.get("--inject-fault", "")),
        values.get("--record-reference"), values.get("--history"),
        values.get("--output"), "--nagios" in values, "--strict" in values, hosts,
        checks(values.get("--accept", "")), values.get("--prometheus"), values.get("--junit")), values


def checks(text):
    named = [each.strip() for each in text.split(",")] if text else []
    if not all(re.fullmatch(r"[A-Za-z0-9_./-]+", each) for each in named):
        raise UsageError(f"--accept {text}: name checks, separated by commas, as governor,nics")
    return tuple(named)


def check_writable(option, path):
    """Before anything runs: later the figures would be lost."""
    appended = option == "--history" and os.path.exists(path)
    if os.path.isdir(path):
        raise UsageError(f"{option} {path} is a folder: name a file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{option} {path} is not a regular file")
    if not appended and not os.access(os.path.dirname(os.path.realpath(path)), os.W_OK):
        raise UsageError(f"{option} {path}: its folder cannot be written")
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise UsageError(f"{option} {path} cannot be written")


def settings(values):
    tiers = [option for option in TIER_OPTIONS if option in values]
    if len(tiers) > 1:
        raise UsageError(f"{' and '.join(tiers)} cannot be combined")
    tier = TIER_OPTIONS[tiers[0]] if tiers else stages.DEFAULT
    if "--soak-minutes" in values and tier != stages.FULL:
        raise UsageError("--soak-minutes: only with --full")
    if tier in (stages.PROLOG, stages.PASSIVE) and {"--hosts", "--hostfile"} & values.keys():
        raise UsageError(f"--{tier} is for this machine alone: leave out --hosts and --hostfile")
    idle = sorted(NOT_PASSIVE & values.keys())
    if tier == stages.PASSIVE and idle:
        raise UsageError(f"--passive measures nothing: leave out {' and '.join(idle)}")
    backend = values.get("--backend", "auto")
    if backend not in ("auto", stages.GPU, stages.CPU):
        raise UsageError(f"--backend {backend}: choose from auto, gpu, cpu")
    judging = [word for option in ("--reference", "--limits") if option in values
               for word in (option, os.path.abspath(values[option]))]
    return stages.Settings(tier, backend, minutes(values.get("--soak-minutes")), tuple(judging))


def minutes(text):
    if text is None:
        return stages.SOAK_MINUTES
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or float(text) == 0:
        raise UsageError(f"--soak-minutes {text} is not a number of minutes above 0")
    return float(text)


def fault(text):
    kinds = sorted({kind for stage in stages.STAGES
                    for kind in stage.faults + stage.faults_of_two})
    amount = r"slow:[0-9]+:([0-9]+sms|[0-9]+(\.[0-9]+)?%)"
    if text and not re.fullmatch(rf"({'|'.join(kinds)}):[0-9]+|{amount}", text):
        raise UsageError(f"--inject-fault {text}: must be KIND:RANK with KIND one of "
                         f"{', '.join(kinds)}, or slow:RANK:AMOUNT as slow:1:3sms and slow:1:5%")
    return text


def environment(settings_, environ, job_gpus=None):
    """What the programs are given. In a prolog CUDA_VISIBLE_DEVICES is not yet the job's, and an
    index may be another GPU's than within the job: its GPUs are named by UUID. Its Slurm variables
    are those of the whole job, of which this is one node, but for SLURM_JOB_GPUS. `job_gpus`: as
    below."""
    if settings_.tier not in (stages.PROLOG, stages.PASSIVE):
        return dict(environ)
    kept = {key: value for key, value in environ.items() if not key.startswith("SLURM")}
    if settings_.tier == stages.PROLOG:
        kept["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if job_gpus is not None:
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(filter(None, job_gpus.values()))
        kept["SLURM_JOB_GPUS"] = environ.get("SLURM_JOB_GPUS", "")
    return kept


def gpus_of_job(settings_, environ, listed=gpus.listed, by_minor=gpus.by_minor):
    """{Slurm's number: UUID} of the GPUs of a prolog's job; the UUID is None where the driver has no
    such GPU, "" where it is not known which one it is. None where there is no job, and on the CPU."""
    if settings_.tier != stages.PROLOG or settings_.backend == stages.CPU or not (
            environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOB_GPUS")):
        return None
    numbers = environ.get("SLURM_JOB_GPUS", "")
    if not re.fullmatch(r"(\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*)?", numbers, re.A):
        raise UsageError(f"SLURM_JOB_GPUS={numbers} is not a list of GPUs such as 0,2-3")
    if not numbers:
        return {}
    known = by_minor()
    if known and "" in known.values():  # until the GPU has been opened once
        listed()
        known = by_minor()
    from ..slurm import numbers_in
    return {number: known.get(int(number)) if known else "" for number in numbers_in(numbers)}


def output_folder(request_, environ):
    """The folder, or None: nobody reads the files of a prolog."""
    path = request_.output
    if path is None:
        if request_.settings.tier in (stages.PROLOG, stages.PASSIVE):
            return None
        return places.new_folder("acceptance", environ)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise UsageError(f"--output {path} is not a folder: name a new or an empty one")
    # The log is the first file of a run: one that was killed has left records as well.
    if os.path.exists(f"{path}/acceptance.jsonl") or glob.glob(f"{glob.escape(path)}/acceptance_*.log"):
        raise UsageError(f"--output {path} has the results of another acceptance")
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {path} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise UsageError(f"--output {path} cannot be written")
    return os.path.abspath(path)
