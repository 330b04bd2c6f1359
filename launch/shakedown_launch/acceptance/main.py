"""launch/acceptance: connects what runs, what judges and what reports."""

import dataclasses
import errno
import functools
import os
import shutil
import sys
import tempfile
import time

from .. import gpus, mpi, places
from ..command import UsageError, name, say
from ..job import RUNNING, Stopped
from . import options, references, stages
from .campaign.campaign import Campaign
from .campaign.fleet import Fleet, host_names
from .campaign.progress import Log, Progress
from .evidence import machines
from .judge import verdicts
from .judge.judge import Judge
from .model import EXIT_CODES, FAIL, INCONCLUSIVE, PASS, STOPPED, Acceptance, Finding
from .report import digest, history, jsonl, junit, nagios, page, prometheus, slurm_lines, text
from .words import clean, count

# Of Slurm's hooks, which may need 20 s and 5 s: seconds until their jobs are ended, then killed.
BUDGET_S = {stages.PROLOG: (14, 3), stages.PASSIVE: (4.3, 0.5)}
LIST_S = 4  # of it, until nvidia-smi counts as hung: node_check then says what hangs


def main(arguments):
    try:
        return run(arguments)
    except (UsageError, OSError) as error:
        if "--nagios" not in arguments:
            raise
        print(f"ACCEPTANCE UNKNOWN - {clean(error)}".replace("|", "/"), flush=True)
        return nagios.UNKNOWN


def run(arguments):
    began = time.monotonic()
    request, values = options.request(arguments)
    listed = lister(request.settings.tier)
    environ = options.environment(request.settings, os.environ, listed)
    hosts = host_names(request.hosts, environ)
    mpi.check_open_mpi(environ, hosts)
    check_programs(request.settings.tier, environ)
    known = known_references(request)
    kept = options.output_folder(request, os.environ)
    output = kept or tempfile.mkdtemp(prefix="shakedown-acceptance-")
    RUNNING.stop_at_all()
    try:
        return accept(request, values, environ, hosts, known, output, kept, began, listed)
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


def check_programs(tier, environ):
    """Before the first runs: what it found would be lost where a later one is missing."""
    for stage in stages.STAGES:
        if tier in stage.tiers:
            places.find_program(stage.program, environ)


def known_references(request):
    """Those of the folder that the user named, or of Shakedown's; a passive check measures nothing
    to compare."""
    folder = request.reference or os.path.join(places.TREE, "results", "reference")
    if request.settings.tier == stages.PASSIVE or not (request.reference or os.path.isdir(folder)):
        return []
    known = references.load(folder)
    if request.reference and not known:
        raise UsageError(f"--reference {folder}: a folder without .json files")
    return known


def accept(request, values, environ, hosts, known, output, kept, began, listed):
    started = time.time()
    log = Log(f"{output}/acceptance_{time.strftime('%Y%m%d_%H%M%S')}.log")
    log.line(f"{name()} {' '.join(sys.argv[1:])}")
    judge = Judge(output, known, request.reference or "")
    limits = {}
    if request.settings.tier in BUDGET_S:
        budget, grace = BUDGET_S[request.settings.tier]
        limits = {"deadline": began + budget, "grace": grace}
    absent = ()
    if request.settings.tier == stages.PROLOG and request.settings.backend != stages.CPU and \
            environ.get("CUDA_VISIBLE_DEVICES"):
        absent = options.absent_of_prolog(environ, listed())
    campaign = Campaign(Fleet(hosts, output, environ, log.line, **limits), request.settings, judge,
                        Progress(log.line, shown=kept and not request.nagios), environ,
                        request.ranks, request.expect_gpus, request.fault, absent=absent,
                        visible=functools.partial(gpus.visible, gpus=listed))
    stopped = ""
    try:
        campaign.run()
    except Stopped:
        stopped = campaign.stopped()
    except OSError as error:  # a full disk: what ran by then is reported all the same
        campaign.end(f"{error.filename or output}: {error.strerror}")
    campaign.progress.end()
    acceptance = conclude(campaign, judge, request, values, started)
    code = write(acceptance, request, output, log, stopped)
    if kept and not request.nagios:
        show(f"results: {output}\n")
    return STOPPED if stopped and not request.nagios else code


def conclude(campaign, judge, request, values, started):
    """The Acceptance: a verdict per node, and what concerns none of them."""
    runs = campaign.runs
    nodes = campaign.nodes()
    judge.choose(nodes, campaign.ranks, runs)
    figures = judge.figures(runs)
    found = [*campaign.findings, *machines.findings(runs, judge.records),
             *judge.all_findings(runs, figures, campaign.isolations)]
    found += judge.unjudged(figures, request.strict)
    found += not_injected(request.fault, campaign, found) if request.fault else []
    found = [dataclasses.replace(each, accepted=not each.blames and each.check in request.accept)
             for each in found]
    good = {stage: each.good for stage, each in campaign.isolations.items()}
    good.update(judge.judged(runs))
    concluded = verdicts.verdicts(nodes, runs, found, campaign.expected(), campaign.left_out,
                                  request.strict, good)
    single = {(node.name,) for node in nodes}
    return Acceptance(
        request.settings.tier, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        time.time() - started, tuple(concluded),
        tuple(each for each in found if each.nodes not in single), tuple(figures), tuple(runs),
        judge.described(), {key.lstrip("-").replace("-", "_"): value
                            for key, value in values.items()},
        sum(each.tests for each in campaign.isolations.values()),
        sum(each.rounds for each in campaign.isolations.values()),
        judge.statement(runs))


def not_injected(fault, campaign, found):
    """A test of the acceptance itself that showed nothing."""
    if any((each.stage, name) in campaign.injected for each in found if each.blames
           for name in each.nodes):
        return []
    cause = "was injected and not found" if campaign.injected else \
        f"was given to no program: {why_not_given(fault, campaign)}"
    return [Finding("inject-fault", INCONCLUSIVE, (), f"{fault} {cause}", check="inject-fault",
                    action="choose another rank, kind or tier; slow also needs --reference")]


def why_not_given(fault, campaign):
    kind, rank = fault.split(":")
    ranks, kinds = campaign.ranks.values(), campaign.kinds_of_faults()
    if int(rank) >= sum(ranks):
        return f"there are {sum(ranks)} ranks, the first is 0"
    if kind not in kinds:
        return f"no stage of this tier finds {kind} on {count(max(ranks), 'rank')} per node; " \
               f"kinds found here: {', '.join(kinds) or 'none'}"
    return "no stage that finds it ran on the rank's node"


def write(acceptance, request, output, log, stopped):
    """Terminal and files; the exit code. The terminal first: a disk may be full. `stopped`: by what,
    "" where it was not."""
    sections = []
    if stopped:
        sections.append(("Stopped", [f"{stopped}: what had not run by then is missing"]))
    if request.history:
        sections.append(("Repeat offenders", remembered(request.history, acceptance)))
    sections.append(("Slurm", slurm_lines.drain_lines(acceptance)))
    shown = text.text(acceptance, sections)
    line, nagios_code = nagios.line(acceptance)
    on_node = request.settings.tier in BUDGET_S
    show(f"{line}\n" if request.nagios else brief(acceptance) if on_node else shown)
    try:
        log.line(f"{acceptance.outcome}\n{shown}")
        jsonl.write(f"{output}/acceptance.jsonl", acceptance, bool(stopped))
        for file, content in [("acceptance.txt", shown),
                              ("acceptance.html", page.html(acceptance, sections=sections))]:
            with open(f"{output}/{file}", "w", encoding="utf-8", errors="replace") as opened:
                opened.write(content)
        for path, report in [(request.prometheus, prometheus), (request.junit, junit)]:
            if path:
                report.write(path, acceptance)
    except OSError as error:  # a full disk is no reason to let a bad node pass
        if acceptance.outcome != FAIL:
            raise
        say(f"{output}: the report is not complete: {error.strerror}")
    if request.record_reference and not record_reference(acceptance, request.record_reference):
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
    return "\n".join(lines) + "\n"


def record_reference(acceptance, path):
    """Whether all that is to be written was; of nodes that do not pass, nothing is."""
    if acceptance.outcome != PASS:
        say(f"--record-reference {path}: not written, {acceptance.outcome}: a reference is of "
            "nodes that pass")
        return True
    try:
        references.record([acceptance], path)
        say(f"reference written: {path}")
        return True
    except UsageError as error:
        say(error)
        return False
