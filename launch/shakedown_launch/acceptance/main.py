"""launch/acceptance: connects what runs, what judges and what reports."""

import dataclasses
import errno
import functools
import os
import shutil
import sys
import tempfile
import time

from .. import gpus, launchers, places
from ..command import UsageError, name, say
from ..job import RUNNING, Stopped
from ..words import clean, count
from . import options, stages
from .campaign.campaign import CPU_RANKS, Campaign, Log, Progress
from .campaign.fleet import Fleet, host_names
from .judge import LIMIT_S, Judge, Program, write_runs
from .model import EXIT_CODES, FAIL, INCONCLUSIVE, STOPPED, Acceptance, Finding
from .report import digest, exports, history, page, text

# Of Slurm's hooks, which may need 20 s and 5 s: seconds until their jobs are ended, then killed.
BUDGET_S = {stages.PROLOG: (14, 3), stages.PASSIVE: (4.3, 0.5)}
JUDGE_S = {stages.PROLOG: 2, stages.PASSIVE: 0.6}  # after that, for bin/judge
LIST_S = 4  # of it, until nvidia-smi counts as hung: node_check then says what hangs


def main(arguments):
    try:
        return run(arguments)
    except (UsageError, OSError) as error:
        if "--nagios" not in arguments:
            raise
        print(f"ACCEPTANCE UNKNOWN - {clean(error)}".replace("|", "/"), flush=True)
        return exports.UNKNOWN


def run(arguments):
    began = time.monotonic()
    request, values = options.request(arguments)
    listed = lister(request.settings.tier)
    job_gpus = options.gpus_of_job(request.settings, os.environ, listed)
    environ = options.environment(request.settings, os.environ, job_gpus)
    hosts = host_names(request.hosts, environ)
    if request.settings.tier not in BUDGET_S:  # of one rank, which needs no mpirun
        launchers.find(None, environ).check(hosts)
    check_fault(request, hosts, environ, listed)
    check_programs(request.settings.tier, environ)
    check_readable(request.settings.judging, environ)
    kept = options.output_folder(request, os.environ)
    output = kept or tempfile.mkdtemp(prefix="shakedown-")
    if not kept:  # a hook's, as root: MPI and CUDA use no folder that another user could make before
        environ.update(TMPDIR=output, OMPI_MCA_btl_vader_backing_directory=output,
                       OMPI_MCA_btl_sm_backing_directory=output)
        environ.setdefault("CUDA_MPS_PIPE_DIRECTORY", output)
    RUNNING.stop_at_all()
    try:
        return accept(request, values, environ, hosts, output, kept, began, listed, job_gpus)
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.filename = f"--output {output}" if request.output else output
        raise
    finally:
        if not kept:
            shutil.rmtree(output, ignore_errors=True)


def lister(tier):
    """What lists this host's GPUs, once. A passive check starts nothing on them."""
    if tier == stages.PASSIVE:
        return list
    limit = (LIST_S,) if tier == stages.PROLOG else ()
    return functools.lru_cache(maxsize=None)(functools.partial(gpus.listed, *limit))


def check_fault(request, hosts, environ, listed):
    """Where the number of ranks is known before a node is asked."""
    if not request.fault:
        return
    backend = request.settings.backend
    on_cpu = backend == stages.CPU or not gpus.built(environ)
    here = 0 if hosts or on_cpu else gpus.visible(environ, gpus=listed)
    per_node = request.ranks or here or (CPU_RANKS if on_cpu else 0)
    ranks = per_node * max(len(hosts), 1)
    rank = int(request.fault.split(":")[1])
    if 0 < ranks <= rank:
        raise UsageError(f"--inject-fault {request.fault}: there is no rank {rank} of {ranks}, the first is 0")


def check_programs(tier, environ):
    """Before the first runs: what it found would be lost where a later one is missing."""
    for name_ in ["judge", *(stage.program for stage in stages.STAGES if tier in stage.tiers)]:
        places.find_program(name_, environ)


def check_readable(judging, environ):
    """Before anything runs: the reference and the limits that the user named."""
    if judging:
        with tempfile.TemporaryDirectory() as folder:
            write_runs(folder, {}, [])
            wrong = Program(folder, environ, judging).run([])
        if wrong:
            raise UsageError(wrong)


def accept(request, values, environ, hosts, output, kept, began, listed, job_gpus):
    started = time.time()
    log = Log(f"{output}/acceptance_{time.strftime('%Y%m%d_%H%M%S')}.log")
    log.line(f"{name()} {' '.join(sys.argv[1:])}")
    judge = Judge(output, Program(output, environ, request.settings.judging, request.strict),
                  job_gpus)
    limits = {}
    if request.settings.tier in BUDGET_S:
        budget, grace = BUDGET_S[request.settings.tier]
        limits = {"deadline": began + budget, "grace": grace, "mpirun_for_one": False}
    campaign = Campaign(Fleet(hosts, output, environ, log.line, **limits), request.settings, judge,
                        Progress(log.line, shown=kept and not request.nagios), environ,
                        request.ranks, request.expect_gpus, request.fault, job_gpus=job_gpus,
                        visible=functools.partial(gpus.visible, gpus=listed))
    stopped = ""
    try:
        campaign.run()
    except Stopped:
        stopped = campaign.stopped()
    except OSError as error:  # a full disk: what ran by then is reported all the same
        campaign.end(f"{error.filename or output}: {error.strerror}")
    campaign.progress.end()
    acceptance = conclude(campaign, judge, request, values, started, began)
    code = write(acceptance, judge, request, output, log, stopped)
    if kept and not request.nagios:
        show(f"results: {output}\n")
    return STOPPED if stopped and not request.nagios else code


def conclude(campaign, judge, request, values, started, began):
    """The Acceptance: a verdict per node, and what concerns none of them."""
    runs, tier = campaign.runs, request.settings.tier
    limit = LIMIT_S if tier not in BUDGET_S else \
        max(0, began + BUDGET_S[tier][0] - time.monotonic()) + JUDGE_S[tier]
    concluded, others, judged = judge.conclude(
        campaign.facts(), functools.partial(accepted, request.accept), limit)
    if request.fault:
        missed = not_injected(request.fault, campaign, [
            *others, *(each for verdict in concluded for each in verdict.findings)])
        judge.state(missed)
        others += missed
    return Acceptance(
        tier, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)), time.monotonic() - began,
        tuple(concluded), tuple(others), tuple(judged.figures), tuple(runs), tuple(judged.found),
        campaign.settings.backend if campaign.settings.backend != "auto" else "",
        {key.lstrip("-").replace("-", "_"): value for key, value in values.items()},
        sum(each.tests for each in campaign.isolations.values()),
        sum(each.rounds for each in campaign.isolations.values()),
        judge.statement(runs))


def accepted(checks, finding):
    """The finding, marked where the site accepts it."""
    return dataclasses.replace(finding, accepted=not finding.blames and finding.check in checks)


def not_injected(fault, campaign, found):
    """A test of the acceptance itself that showed nothing."""
    if any((each.stage, name) in campaign.injected for each in found if each.blames
           for name in each.nodes):
        return []
    cause = "was injected and not found" if campaign.injected else \
        f"was given to no program: {why_not_given(fault, campaign)}"
    action = "see what would have been found, and choose a larger amount" if fault.startswith("slow") \
        and campaign.injected else "choose another rank, kind or tier"
    return [Finding("inject-fault", INCONCLUSIVE, (), f"{fault} {cause}", check="inject-fault", action=action)]


def why_not_given(fault, campaign):
    kind, rank = fault.split(":")[:2]
    ranks, kinds = campaign.ranks.values(), campaign.kinds_of_faults()
    if int(rank) >= sum(ranks):
        return f"there are {sum(ranks)} ranks, the first is 0"
    if kind not in kinds:
        return f"no stage of this tier finds {kind} on {count(max(ranks), 'rank')} per node; " \
               f"kinds found here: {', '.join(kinds) or 'none'}"
    return "no stage that finds it ran on the rank's node"


def write(acceptance, judge, request, output, log, stopped):
    """Terminal and files; the exit code. The terminal first: a disk may be full. `stopped`: by what,
    "" where it was not."""
    sections = []
    if stopped:
        sections.append(("Stopped", [f"{stopped}: what had not run by then is missing"]))
    if request.history:
        sections.append(("Repeat offenders", remembered(request.history, acceptance)))
    found = {each.check for each in acceptance.all_findings() if each.accepted}
    idle = [f"--accept {name}: no warning or unknown fact of this run has this check" for name in request.accept if name not in found]
    sections += [("Without effect", idle), ("Slurm", text.drain_lines(acceptance))]
    shown = text.text(acceptance, sections)
    line, nagios_code = exports.nagios(acceptance)
    on_node = request.settings.tier in BUDGET_S
    show(f"{line}\n" if request.nagios else brief(acceptance) if on_node else shown)
    try:
        log.line(f"{acceptance.outcome}\n{shown}")
        exports.write_records(f"{output}/acceptance.jsonl", acceptance, bool(stopped))
        for file, content in [("acceptance.txt", shown), ("acceptance.html", page.html(acceptance, sections))]:
            with open(f"{output}/{file}", "w", encoding="utf-8", errors="replace") as opened:
                opened.write(content)
        for path, report in [(request.prometheus, exports.prometheus), (request.junit, exports.junit)]:
            if path:
                exports.write(path, report(acceptance))
    except OSError as error:  # a full disk is no reason to let a bad node pass
        if acceptance.outcome != FAIL:
            raise
        say(f"{output}: the report is not complete: {error.strerror}")
    if request.record_reference and not record_reference(acceptance, judge, request.record_reference):
        return EXIT_CODES[INCONCLUSIVE]
    if request.nagios:
        return nagios_code
    if request.settings.tier == stages.PROLOG and acceptance.outcome != FAIL:
        return 0
    return EXIT_CODES[acceptance.outcome]


def show(what):
    """A reader that has left, such as a pager, and a full disk change no verdict."""
    try:
        print(what, end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say(f"standard output: {error.strerror}")


def remembered(path, acceptance):
    """Appends what failed; lines that name repeat offenders. Without the file the report is written
    all the same."""
    lines = [f"{' '.join(each.nodes)} {each.subject}: {each.cause}".strip()
             for each in history.offenders(path, acceptance)]
    try:
        history.append(path, acceptance)
    except OSError as error:
        lines.append(f"what failed now could not be appended to {path}: {error.strerror}")
    return lines


def brief(acceptance):
    """A line per finding that the site has not accepted, for the log of a daemon."""
    nodes = " ".join(each.node.name for each in acceptance.verdicts)
    lines = [f"{acceptance.outcome} {nodes}{digest.reservation(acceptance)}"]
    gpus_ = digest.gpus_of(acceptance)
    lines += [f"{each.outcome} {digest.part(each, gpus_) or each.stage}: {each.cause}"
              f"{each.action and f'; {each.action}'}" for each in acceptance.all_findings()
              if not each.accepted]
    lines += filter(None, [digest.would_have_found(acceptance)])
    return "\n".join(lines) + "\n"


def record_reference(acceptance, judge, path):
    """Whether all that is to be written was; of a node that fails, nothing is. That nothing judges its
    rates yet keeps none from being written: bin/judge knows."""
    if acceptance.outcome == FAIL:
        say(f"--record-reference {path}: not written, FAIL: a reference is of nodes that pass")
        return True
    wrong = judge.record_reference(path)
    say(f"--record-reference {path}: not written: {wrong}" if wrong else f"reference written: {path}")
    return not wrong
