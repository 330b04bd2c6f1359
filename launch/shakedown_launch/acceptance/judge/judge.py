"""What the records of the runs say: findings, and by bin/judge what their rates amount to; then one
verdict per node. It fails closed: a stage without a result, and what nodes did not pass together and is
traced to none of them, are INCONCLUSIVE."""

import dataclasses
import os

from ... import records
from .. import stages
from ..evidence import findings, inventory
from ..ladder import isolation
from ..model import (FAIL, INCONCLUSIVE, INFRASTRUCTURE, MISSING, NOT_JUDGED, PASS, SOFTWARE, VERDICTS, WARN,
                     WORST_FIRST, Finding, NodeVerdict, worst)
from . import program

UNFINISHED = ("not-finished", "record")  # checks


class Judge:
    """`output`: the folder of the runs' records. `judging`: a program.Program. `job_gpus`: a prolog's,
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
        found = findings.findings(run, self.records(run))
        stage = next((each for each in stages.STAGES if each.name == run.stage), None)
        if stage and stage.rates and run.code == 0 and not any(
                line["kind"] == "metric" for line in self.records(run)):
            found.append(findings.about_run(run, INCONCLUSIVE, "passed, and its record has no metric", "record"))
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
            found += [Finding(stages.LADDER, INCONCLUSIVE, (name,), facts.rounds.failed, SOFTWARE, check=program.CHECK)
                      for name in dict.fromkeys(name for run in facts.runs if run.stage == stages.LADDER
                                                for name in run.nodes)]
        return once(found)

    def conclude(self, facts, accepted=lambda each: each, limit=program.LIMIT_S):
        """([NodeVerdict], findings that concern no single node, Judged) of a model.Facts.
        `accepted(finding)`: the finding, marked where the site accepts it."""
        ran = {}
        for run in facts.runs:
            for name in run.nodes:
                ran.setdefault(name, {})[run.stage] = None
        found = list(map(accepted, [*facts.findings, *inventory.wrong_machines(facts.runs, self.records),
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
            outcome, more = program.verdict_of(judged, node.name, mine)
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

    def record_reference(self, path):
        """Why it was not written; "" where it was. Of the runs that were judged last."""
        return self._judging.run(["--record-reference", os.path.abspath(path)])

    def statement(self, runs):
        """What the soak proves, in the report's words; in the program's where launch/ was copied without results/."""
        try:
            from reporting.soak import statement
        except ImportError:
            def statement(_):
                return ""
        found = {}
        for run in runs:
            if run.stage == "soak":
                lines = self.records(run)
                passed = [line["cause"] for line in lines if line.get("kind") == "verdict"
                          and line.get("scope") == "job" and line.get("verdict") == PASS]
                proved = [statement(line) for line in lines if line.get("kind") == "soak_summary"]
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
