"""The job's allocation, from Slurm's variables in its batch script or step; and what mpirun's own
steps must not inherit of them."""

import collections
import re

from .hosts import matched
from .places import UsageError, ask
from .words import duration

# Options of the job that srun applies to each step. mpirun starts its daemons in a step of one task
# per node: by --gpus-per-task the ranks of the other nodes would see one GPU, by --gpus=16 the step
# is refused, and without an option of GPUs (--exclusive alone) they would see none.
GPU_OPTIONS = ("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK")
BINDING = {"SLURM_GPUS_PER_TASK": "--gpus-per-task", "SLURM_GPU_BIND": "--gpu-bind", "SLURM_NTASKS_PER_GPU": "--ntasks-per-gpu"}

Allocation = collections.namedtuple("Allocation", "nodes tasks names_gpus on_node gpus_on_node "
                                    "hosts")


def allocation(environ):
    """None outside of a job. tasks: None if the job did not request a number of tasks;
    on_node: this is one of the job's nodes, not a login node; gpus_on_node: GPUs granted here, None
    where Slurm does not say; hosts: names of its nodes, none where Slurm does not say."""
    if not environ.get("SLURM_JOB_ID"):
        return None
    if environ.get("SLURM_HET_SIZE", "1") != "1":
        raise UsageError(f"SLURM_HET_SIZE={clipped(environ['SLURM_HET_SIZE'])}: of a heterogeneous job only "
                         "the first component would be used: start a job for each component")
    gpus = environ.get("SLURM_GPUS_ON_NODE", "")
    nodes = number(environ, "SLURM_JOB_NUM_NODES") or number(environ, "SLURM_NNODES") or 1
    # older Slurm says no more; "4(x2)": on each of two nodes
    per_node = number(environ, "SLURM_NTASKS_PER_NODE", r"(?:\(x[0-9]+\))?") or 0
    return Allocation(
        nodes=nodes,
        tasks=number(environ, "SLURM_NTASKS") or per_node * nodes or None,
        names_gpus=any(map(environ.get, ("SLURM_JOB_GPUS", "SLURM_GPUS", "SLURM_GPUS_ON_NODE"))),
        on_node=bool(environ.get("SLURMD_NODENAME")),
        gpus_on_node=int(gpus) if gpus.isascii() and gpus.isdigit() else None,
        hosts=node_names(environ))


def number(environ, name, more=""):
    """Of a variable such as SLURM_NTASKS=8, which `more` may follow; None where it is not set."""
    text = environ.get(name)
    if not text:
        return None
    found = re.fullmatch(rf"([0-9]{{1,7}}){more}", text)
    if not found or int(found[1]) == 0:
        raise UsageError(f"{name}={clipped(text)} is not a number (1 or more); Slurm sets it in a job")
    return int(found[1])


def clipped(text, most=80):
    return text if len(text) <= most else f"{text[:most]}..."


def node_names(environ):
    for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environ.get(name):
            try:
                return hosts(environ[name])
            except UsageError as error:
                raise UsageError(f"{name}={clipped(environ[name])}: {error}") from None
    return []


MOST_NODES = 65536  # of a Slurm cluster
# An entry of a node list, and what it is made of. Of n[000x111], a cluster of several dimensions, no
# list is read.
RANGE = r"[0-9]{1,18}(?:-[0-9]{1,18})?"
ENTRY = rf"(?:[\w.-]|\[{RANGE}(?:,{RANGE})*\])+"


def hosts(node_list):
    """The names in a node list such as "gpu[01-03,7],login", as `scontrol show hostnames` gives
    them: a prolog must not call it."""
    if node_list and not re.fullmatch(rf"{ENTRY}(?:,{ENTRY})*", node_list):
        raise UsageError("is not a list of nodes such as gpu[01-03,7],login")
    names = []
    for entry in re.findall(ENTRY, node_list):
        heads = [""]
        for text, numbers in re.findall(r"([^\[]+)|\[([^\]]*)\]", entry):
            tails = [text] if text else list(numbers_in(numbers))
            if len(names) + len(heads) * len(tails) > MOST_NODES:
                raise UsageError(f"lists more than {MOST_NODES:,} nodes")
            heads = [head + tail for head in heads for tail in tails]
        names += heads
    return names


def numbers_in(text):
    """Those of "01-03,7", with their leading zeros."""
    for each in text.split(","):
        first, _, last = each.partition("-")
        low, high = int(first), int(last or first)
        if not low <= high < low + MOST_NODES:
            raise UsageError(f"{each} is not a range of numbers")
        for value in range(low, high + 1):
            yield str(value).zfill(len(first))


def row_of(job, rows):
    """The rest of a job's "%A|...": of an array's last task, whose number is the array's, squeue lists all tasks."""
    return next((rest for number, _, rest in (row.partition("|") for row in rows.splitlines()) if number == job), "")


LAST_S = 150  # before the time limit within which Slurm's signal (--signal=B:USR2@60) may come


def seconds_left(environ, ask=ask):
    """Until the job's time limit; None outside of a job, without a limit, and where Slurm does not say."""
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return None
    said = ask(["squeue", "--noheader", "--format=%A|%L", "--jobs", job], environ=environ)
    return seconds_of(row_of(job, said.output).strip())


def seconds_of(text):
    """Of what sbatch --time takes and squeue prints: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S. None of others, as UNLIMITED."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        return None
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part]
    if not days and len(numbers) < 3:
        numbers.insert(0, 0)
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return 86400 * int(days or 0) + 3600 * hours + 60 * minutes + seconds


def check_time(needed, left, what, spare=0):
    """`needed`: seconds of work; `left`: of time, None: no limit; `spare`: of these, not to be used. `what` has them: "the job"."""
    if left is not None and needed > left - spare:
        hours, minutes = divmod(5 * -(-int(needed + LAST_S) // 300), 60)
        raise UsageError(f"the stages need about {duration(round(needed))}, and {what} has {duration(round(left))} until its time "
                         f"limit: request --time={hours:02d}:{minutes:02d}:00, or run a shorter tier")


def binding(environ):
    """The job's options that bind each task to some of its node's GPUs, as "--gpus-per-task=1"."""
    return [f"{option}={environ[name]}" for name, option in BINDING.items() if environ.get(name)]


def alike(nodes, ask=ask):
    """Whether they have as many GPUs each."""
    said = ask(["sinfo", "--noheader", "--nodes", ",".join(nodes), "--format=%G"], 5)
    return said.code == 0 and len(set(said.output.split())) == 1


def for_steps(environ, of_ranks=False):
    """The environment in which the steps of mpirun and srun have all GPUs that the job has on each node. A step `of_ranks`
    has the CPUs of --cpus-per-task, which it does not inherit since Slurm 22.05: the loader would have one core. mpirun's daemon is
    one task with all ranks of its node: it must not get the CPUs of one."""
    job = allocation(environ)
    if job is None:
        return dict(environ)
    kept = {name: value for name, value in environ.items() if name not in GPU_OPTIONS}
    if not job.on_node:  # of a login node, whose GPUs are others
        kept.pop("CUDA_VISIBLE_DEVICES", None)
    total = environ.get("SLURM_GPUS", "").rpartition(":")[2]
    if job.gpus_on_node:  # --exclusive grants more than --gpus-per-node, and a job that submits this one has its own
        given = kept.pop("SLURM_GPUS_PER_NODE", None)
        if given and not total and job.nodes > 1 and given.rpartition(":")[2] != str(job.gpus_on_node) and not alike(job.hosts):
            kept["SLURM_GPUS_PER_NODE"] = given
        elif total in ("", str(job.nodes * job.gpus_on_node)):
            kept["SLURM_GPUS_PER_NODE"] = str(job.gpus_on_node)
    if not of_ranks:
        kept.pop("SRUN_CPUS_PER_TASK", None)
    elif environ.get("SLURM_CPUS_PER_TASK"):
        kept.setdefault("SRUN_CPUS_PER_TASK", environ["SLURM_CPUS_PER_TASK"])
    return kept


# Of a tree only the leaves: switches of higher levels list the same nodes again.
LEAF = re.compile(r"^(?:SwitchName=(?P<leaf>\S+) Level=0|BlockName=(?P<block>\S+))\s.*?"
                  r"\bNodes=(?P<nodes>\S+)", re.M)


def domains(nodes, environ, ask=ask):
    """{node: its leaf switch or NVLink block}; None outside Slurm and where it does not know all nodes."""
    if "SLURM_JOB_ID" not in environ:
        return None
    found = {}
    for leaf in LEAF.finditer(ask(["scontrol", "show", "topology"]).output):
        try:
            found.update(dict.fromkeys(hosts(leaf["nodes"]), leaf["leaf"] or leaf["block"]))
        except UsageError:  # a list of another form
            return None
    known = matched(nodes, found)
    return {node: found[known[node]] for node in nodes} if len(known) == len(nodes) else None


# ---- why a job did not start, or was lost ----------------------------------------------------------

RUNS = ("RUNNING", "COMPLETING", "CONFIGURING")


def trouble(environ, ask=ask):
    """What Slurm knows that is wrong with the job's nodes, and else with the job: mpirun does not show
    what its srun says. "" where that is nothing."""
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    states = ask(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %t"], 5).output
    down = dict.fromkeys(f"node {name} is {state}" for name, state in
                         re.findall(r"^(\S+) (\S+)$", states, re.M)
                         if re.match("down|fail|unk", state) or state.endswith("*"))
    if nodes and down:
        return f"Slurm: {', '.join(down)}"
    job = environ.get("SLURM_JOB_ID", "")
    said = ask(["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%A|%T"], 5)
    state = row_of(job, said.output).strip()
    over = "Invalid job id" in said.error or state and state not in RUNS
    return f"Slurm: job {job} (SLURM_JOB_ID) is over: unset it, or start another" if over else ""
