"""What the records of the runs say: findings, and by bin/judge, which is given runs.jsonl and the records that it names,
what their rates amount to; then one verdict per node. It fails closed: a stage without a result, and what nodes did not pass together and is
traced to none of them, are INCONCLUSIVE."""

import collections
import contextlib
import dataclasses
import json
import math
import os
import re

from reporting import soak

from .. import places, records
from ..words import valid
from . import evidence, stages
from .ladder import isolation
from .model import (CLASSES, FAIL, INCONCLUSIVE, INFRASTRUCTURE, MISSING, NOT_JUDGED, OUTCOMES, PASS, SOFTWARE, VERDICTS,
                    WARN, WORST_FIRST, Figure, Finding, NodeVerdict, worst)

# ---- bin/judge: limits, references and peers are its own -----------------------------------------

RUNS, RECORD = "runs.jsonl", "judged.jsonl"
LIMIT_S = 300  # 8,000 GPUs take 2 s
CHECK = "judge"  # of what it could not conclude, and its stage
# What it concluded. `findings`: of rates, worst first. `nodes`: {name: its verdict line}. `failed`: why
# there is none of it all.
Judged = collections.namedtuple("Judged", "figures findings nodes found failed")
ORDER = {stage.name: number for number, stage in enumerate(stages.STAGES)}
NOTHING = Judged((), (), {}, (), "")
FIGURE_KEYS = {"kind", "run_id", "metric", "unit", "value", "samples", "scope", "name", "nodes", "outcome",
               "stage", "record", "witness", "usual", "limit"}


def write_runs(folder, nodes, runs, findings=()):
    """`nodes`: {name: the hosts that its ranks report}. What several nodes did together is the job's: a
    finding of each says what it means for the node."""
    lines = [*({"kind": "node", "name": name, "hosts": hosts} for name, hosts in nodes.items()),
             *(each.line() for each in (*runs, *findings))]
    with open(os.path.join(folder, RUNS), "w", encoding="utf-8") as file:
        for line in lines:
            if line["kind"] == "verdict" and len(line["nodes"]) > 1:
                line["nodes"] = ()
            file.write(text_of(line) + "\n")


def text_of(line):
    """Without blanks: bin/judge looks at the first bytes of a line."""
    return json.dumps(valid(line), allow_nan=False, separators=(",", ":"))


class Program:
    """`options`: --reference and --limits of the user."""

    def __init__(self, folder, environ, options=(), strict=False):
        self._folder, self._environ, self._options = folder, environ, options
        self._strict = ["--strict"] if strict else []

    def judge(self, nodes, runs, findings=(), rates=(), stage="", limit=LIMIT_S):
        """Judged. `nodes`, `runs`, `findings`: of runs.jsonl."""
        record = os.path.join(self._folder, RECORD)
        words = ["--record", record, *self._strict]
        words += ["--rates", ",".join(rates)] if rates else []
        words += ["--stage", stage] if stage else []
        try:
            write_runs(self._folder, nodes, runs, findings)
        except OSError as error:  # a full disk
            return NOTHING._replace(failed=f"{RUNS}: {error.strerror}")
        failed = self.run(words, limit)
        judged = NOTHING._replace(failed=failed) if failed else read(record)
        for file in [record] + [os.path.join(self._folder, RUNS)] * bool(stage):
            with contextlib.suppress(OSError):
                os.unlink(file)  # acceptance.jsonl has what is in it; runs of one stage are not the acceptance
        return judged

    def run(self, words, limit=LIMIT_S):
        """Why there is no result; "" where there is, whatever it is."""
        line = [places.find_program("judge", self._environ), self._folder, *self._options, *words]
        said = places.ask(line, limit, self._environ)
        errors = re.findall(r"(?m)^error: (.*)", said.error)  # with 3: of a full disk, too
        if said.code in (0, 1, 3) and not errors:
            return ""
        if said.code is None:
            return f"bin/judge {said.error}"
        how = f"signal {-said.code}" if said.code < 0 else f"exit code {said.code}"
        return "; ".join(errors) or said.error.strip() or f"bin/judge ended with {how}"


def read(path):
    """Judged; a record that is cut, or of another form, has no result."""
    figures, findings, nodes, found = [], [], {}, []
    try:
        with open(path, encoding="utf-8") as file:
            for line in map(json.loads, file):
                kind = line["kind"]
                if kind == "figure":
                    figures.append(figure_of(line))
                elif kind == "found":
                    found.append((line["rates"], line["metric"], line["witness"], line["slow_down"],
                                  line.get("warns_from", 0)))
                elif kind == "verdict" and "metric" in line:
                    findings.append(line)
                elif kind == "verdict" and line["scope"] == "node":
                    nodes[line["name"]] = line
        measured = {}  # in the first of the stages that has it
        for each in sorted(figures, key=lambda each: ORDER.get(each.stage, 0)):
            measured.setdefault((each.metric, each.outcome), each.stage)
            measured.setdefault((each.metric, each.outcome, each.name), each.stage)
        return Judged(figures, [finding_of(line, measured) for line in findings], nodes, found, "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return NOTHING._replace(failed=f"the record of bin/judge cannot be read: {error!r}")


def figure_of(line):
    def number(key):
        value = line.get(key)
        return math.nan if value is None else float(value)
    return Figure(line.get("stage", ""), tuple(line["nodes"]), line["metric"], number("value"), line["unit"],
                  line["scope"], line["name"],
                  tuple(math.nan if each is None else float(each) for each in line["samples"]),
                  line["outcome"], line.get("witness", ""), number("usual"), number("limit"),
                  line.get("record", ""),
                  {key: value for key, value in line.items() if key not in FIGURE_KEYS})


def finding_of(line, measured):
    """Of a rate, or of a class of them ("products") that nothing judged. An outcome of another name is
    no pass. `measured`: where."""
    scope, name, metric = line["scope"], line["name"], line["metric"]
    outcome = line["verdict"] if line["verdict"] in OUTCOMES else INCONCLUSIVE
    known = metric, line["verdict"]
    stage = line.get("stage") or measured.get((*known, name)) or measured.get(known) or CHECK
    return Finding(stage, outcome, tuple(line["nodes"]), line["cause"],
                   line["class"] if line.get("class") in CLASSES else "", line.get("action", ""),
                   name if scope == "gpu" else "", "" if scope == "gpu" else f"{scope} {name}",
                   metric if "/" in metric else NOT_JUDGED, slow_looks=line.get("slow_looks", 0),
                   looks=line.get("looks", 0))


def verdict_of(judged, node, own):
    """(outcome of a node, [Finding that says why where none of `own` does])."""
    line = judged.nodes.get(node)
    if judged.failed or line is None:
        more = Finding(CHECK, INCONCLUSIVE, (node,), judged.failed or "bin/judge has no verdict of it",
                       SOFTWARE, f"see {RUNS}", subject=f"node {node}", check=CHECK)
        return worst(each.outcome for each in [*own, more] if each.blames), [more]
    outcome = line["verdict"]
    if outcome not in VERDICTS:
        outcome = PASS if outcome in OUTCOMES else INCONCLUSIVE
    if outcome == PASS or any(each.blames for each in own):
        return outcome, []
    return outcome, [Finding(CHECK, outcome, (node,), line["cause"], line.get("class", ""),
                             line.get("action", ""), subject=f"node {node}", check=CHECK)]


# ---- one verdict per node ------------------------------------------------------------------------

UNFINISHED = ("not-finished", "record")  # checks


class Judge:
    """`output`: the folder of the runs' records. `judging`: a Program. `job_gpus`: a prolog's,
    {number: UUID}: what is wrong with another GPU is no reason against its job."""

    def __init__(self, output, judging=None, job_gpus=None):
        self._output, self._judging = output, judging
        self._job_gpus = None if job_gpus is None else set(job_gpus.values())
        self._lines = {}  # of each record, read once

    def records(self, run):
        if run.record not in self._lines:
            self._lines[run.record] = records.read(os.path.join(self._output, run.record))
        return self._lines[run.record]

    def findings(self, run):
        """What is no rate."""
        found = evidence.findings(run, self.records(run))
        stage = next((each for each in stages.STAGES if each.name == run.stage), None)
        if stage and stage.rates and run.code == 0 and not any(
                line["kind"] == "metric" for line in self.records(run)):
            found.append(evidence.about_run(run, INCONCLUSIVE, "passed, and its record has no metric", "record"))
        if self._job_gpus is None:
            return found
        return [dataclasses.replace(each, outcome=WARN if each.blames else each.outcome,
                                    cause=f"not of this job: {each.cause}")
                if each.gpu and each.gpu not in self._job_gpus else each for each in found]

    def outcome(self, run):
        """By what is no rate."""
        return worst(each.outcome for each in self.findings(run) if each.blames)

    def round(self, runs, so_far, rounds):
        """(outcomes, model.Rounds with this one) of groups of nodes that were tested at the same time.
        `so_far`: all runs, of which the groups that passed are peers: those that were slow are no measure
        for those to come. A group that is tested again is not one of its own peers."""
        of_rates, groups, now = {}, {frozenset(run.nodes) for run in runs}, set(map(id, runs))
        judged = [run for run in so_far if self._is_readable(run) and (
            id(run) in now or run.record in rounds.passed and frozenset(run.nodes) not in groups)]
        if any(run.stage == stages.LADDER and id(run) in now for run in judged):  # of what is lost nothing is judged
            judged = self._judging.judge(self._hosts(so_far), judged, stage=stages.LADDER)
            for each in judged.figures:
                of_rates.setdefault(frozenset(each.nodes), []).append(each)
            rounds = rounds._replace(screen=rounds.screen or judged.figures, failed=rounds.failed or judged.failed)
        found = [worst([self.outcome(run), *(each.outcome for each in of_rates.get(frozenset(run.nodes), ())
                                             if each.outcome in VERDICTS)]) for run in runs]
        passed = {run.record for run, outcome in zip(runs, found) if outcome == PASS}
        return found, rounds._replace(passed=rounds.passed | passed)

    def all_findings(self, facts):
        """Of every run, and of the ladder, which says what the tests of its stages amount to."""
        last = {run.stage: run for run in facts.runs if len(run.nodes) > 1}
        found = []
        for run in facts.runs:
            if run.stage not in facts.isolations:
                # What was repeated without the nodes that were lost counts once.
                again = set(last[run.stage].nodes) if run is not last.get(run.stage, run) else set()
                found += [each for each in self.findings(run) if not again & set(each.nodes)]
        for stage, isolated in facts.isolations.items():
            found += isolation.findings(isolated, stage, self._transient(facts.runs, stage))
        if facts.rounds.failed:
            found += [Finding(stages.LADDER, INCONCLUSIVE, (name,), facts.rounds.failed, SOFTWARE, check=CHECK)
                      for name in dict.fromkeys(name for run in facts.runs if run.stage == stages.LADDER
                                                for name in run.nodes)]
        return once(found)

    def conclude(self, facts, accepted=lambda each: each, limit=LIMIT_S):
        """([NodeVerdict], findings that concern no single node, Judged) of a model.Facts.
        `accepted(finding)`: the finding, marked where the site accepts it."""
        ran = {}
        for run in facts.runs:
            for name in run.nodes:
                ran.setdefault(name, {})[run.stage] = None
        found = list(map(accepted, [*facts.findings, *evidence.wrong_machines(facts.runs, self.records),
                                    *self.all_findings(facts)]))
        found += closed(facts, ran, found)
        judged = self._judging.judge(
            {**{node.name: [node.name] for node in facts.nodes}, **self._hosts(facts.runs)},
            self._counted(facts), found, facts.rates, limit=limit)
        found += map(accepted, judged.findings)
        own = {node.name: [] for node in facts.nodes}
        others = []
        for each in found:
            (own.get(each.nodes[0], others) if len(each.nodes) == 1 else others).append(each)
        made = []
        for node in sorted(facts.nodes, key=lambda node: node.name):
            lacks = missing(facts, node.name, ran)
            mine = [each for each in own[node.name]
                    if not lacks or each.check != NOT_JUDGED]  # what did not run was not judged either
            outcome, more = verdict_of(judged, node.name, mine)
            mine = tuple(sorted([*mine, *more], key=rank))
            made.append(NodeVerdict(node, outcome, mine, {stage: worst(
                each.outcome for each in mine if each.stage == stage and each.blames)
                for stage in ran.get(node.name, ())}, lacks))
        again = {each.nodes for each in judged.figures if each.stage == stages.LADDER}
        screen = [each for each in facts.rounds.screen if each.nodes not in again]  # groups that did not pass it
        return made, others, judged._replace(figures=[*judged.figures, *screen])

    def _counted(self, facts):
        """Those whose metrics are judged: of the ladder the groups of its screen that passed, as it says
        what the others amount to; of what was repeated without lost nodes the last; none of which the
        record cannot be read."""
        last = {run.stage: run for run in facts.runs if len(run.nodes) > 1}
        return [run for run in facts.runs if (
            not run.round and run.record in facts.rounds.passed if run.stage in facts.isolations
            else run is last.get(run.stage, run) or len(run.nodes) == 1)
            and self._is_readable(run)]

    def _is_readable(self, run):
        return not any(line["kind"] == records.UNREADABLE for line in self.records(run))

    def _hosts(self, runs):
        """{node: the hosts that its ranks report}"""
        found = {}
        for run in runs:
            for line in self.records(run) if len(run.nodes) == 1 else ():
                if line["kind"] == "run":
                    found.setdefault(run.nodes[0], {}).update(dict.fromkeys(map(str, line["hosts"])))
        return {name: list(hosts) for name, hosts in found.items()}

    def _transient(self, runs, stage):
        """What a failure amounts to that did not repeat: wrong data is never noise."""
        failed = any(each.outcome == FAIL for run in runs if run.stage == stage
                     for each in self.findings(run))
        return INCONCLUSIVE if failed else WARN

    def state(self, findings):
        """What the acceptance found of itself since: bin/judge of its folder knows it too."""
        with contextlib.suppress(OSError), open(os.path.join(self._output, RUNS), "a", encoding="utf-8") as file:
            file.writelines(text_of(each.line()) + "\n" for each in findings)

    def record_reference(self, path):
        """Why it was not written; "" where it was. Of the runs that were judged last."""
        return self._judging.run(["--record-reference", os.path.abspath(path)])

    def statement(self, runs):
        """What the soak proves, in the report's words."""
        found = {}
        for run in runs:
            if run.stage == "soak":
                lines = self.records(run)
                passed = [line["cause"] for line in lines if line.get("kind") == "verdict"
                          and line.get("scope") == "job" and line.get("verdict") == PASS]
                proved = [soak.statement(line) for line in lines if line.get("kind") == "soak_summary"]
                if passed:
                    found[run.nodes[0]] = next(filter(None, proved), passed[-1])
        if not found:
            return ""
        node, text = next(iter(found.items()))
        return text if len(found) == 1 else f"{len(found)} nodes passed; {node}: {text}"


def once(findings_):
    """Without remarks that an earlier stage gave already: the environment is looked at again and
    again."""
    seen, found = set(), []
    for each in findings_:
        key = each.nodes, each.gpu, each.check, each.cause
        if each.blames or key not in seen:
            found.append(each)
        seen.add(key)
    return found


def closed(facts, ran, found):
    """[Finding], each about one node, of what it lacks. `ran`: {node: stages}."""
    blamed = {each.nodes[0] for each in found if len(each.nodes) == 1 and each.blames}
    made = [of_one(name, each) for each, names in untraced(found) for name in sorted(names)]
    blamed.update(each.nodes[0] for each in made)
    for node in facts.nodes:
        own, why = list(ran.get(node.name, ())), facts.left_out.get(node.name, "")
        why = f": {why}" if why else ""
        lacks = missing(facts, node.name, ran)
        if lacks:
            made.append(Finding(lacks[0], INCONCLUSIVE, (node.name,), f"not run: {', '.join(lacks)}{why}",
                                check=MISSING))
        elif not own or why and node.name not in blamed:
            stage, what = (own[-1], "left out") if own else (MISSING, "nothing ran")
            made.append(Finding(stage, INCONCLUSIVE, (node.name,), what + why, check=MISSING))
    return made


def missing(facts, name, ran):
    """The stages that did not run on the node."""
    return tuple(stage for stage in facts.expected.get(name, ()) if stage not in ran.get(name, ()))


def untraced(findings):
    """(Finding, nodes) of nodes that did not pass together, where none of them nor a link between
    them is the one to blame, or where the program did not come to its end for any of them."""
    to_blame = {}
    for each in findings:
        if each.outcome == FAIL and len(each.nodes) == 1 or \
                each.blames and each.class_ == INFRASTRUCTURE:
            to_blame.setdefault(each.stage, set()).add(frozenset(each.nodes))
    for each in findings:
        names = frozenset(each.nodes)
        if len(names) > 1 and each.blames and (each.check in UNFINISHED or not any(
                blamed <= names for blamed in to_blame.get(each.stage, ()))):
            yield each, names


def of_one(name, finding):
    """None of them has proved to be good."""
    return dataclasses.replace(
        finding, outcome=INCONCLUSIVE, nodes=(name,), gpu="",
        cause=f"{finding.cause} ({len(finding.nodes)} nodes together: not traced to one of them)")


def rank(finding):
    """Worst first; among equals what has a class, a GPU or rank, and an action."""
    return (WORST_FIRST.index(finding.outcome), not finding.class_,
            not (finding.gpu or finding.subject), not finding.action)
