"""What the records of the runs say: findings, and by bin/judge what their rates amount to."""

import dataclasses
import os

from .. import stages
from ..evidence import findings, records
from ..ladder import isolation
from ..model import (FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, SOFTWARE, VERDICTS, WARN, Finding, NodeVerdict,
                     worst)
from . import program, verdicts


class Judge:
    """`output`: the folder of the runs' records. `judging`: a program.Program. `job_gpus`: a prolog's,
    {number: UUID}: what is wrong with another GPU is no reason against its job."""

    def __init__(self, output, judging=None, job_gpus=None):
        self._output, self._judging = output, judging
        self._job_gpus = None if job_gpus is None else set(job_gpus.values())
        self._lines = {}  # of each record
        self._passed = set()  # records of groups that passed
        self._screen = ()  # figures of the ladder's first round
        self._failed = ""  # why there is no result of a round's rates

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

    def outcomes(self, runs, so_far):
        """Of a round of the ladder: groups of nodes that were tested at the same time. `so_far`: all
        runs, of which the groups that passed are peers: those that were slow are no measure for
        those to come. A group that is tested again is not one of its own peers."""
        of_rates = {}
        if any(run.stage == stages.LADDER for run in runs):
            groups, now = {frozenset(run.nodes) for run in runs}, set(map(id, runs))
            judged = self._judging.judge(self._hosts(so_far), [
                run for run in so_far if self._is_readable(run) and (
                    id(run) in now or run.record in self._passed and frozenset(run.nodes) not in groups)],
                stage=stages.LADDER)
            for each in judged.figures:
                of_rates.setdefault(frozenset(each.nodes), []).append(each)
            self._screen = self._screen or judged.figures
            self._failed = self._failed or judged.failed
        found = [worst([self.outcome(run), *(each.outcome for each in of_rates.get(frozenset(run.nodes), ())
                                             if each.outcome in VERDICTS)]) for run in runs]
        self._passed.update(run.record for run, outcome in zip(runs, found) if outcome == PASS)
        return found

    def all_findings(self, runs, isolations):
        """Of every run, and of the ladder. `isolations`: {stage: Isolation}, which say what the tests of
        those stages amount to."""
        last = {run.stage: run for run in runs if len(run.nodes) > 1}
        found = []
        for run in runs:
            if run.stage in isolations:
                continue
            of_run = self.findings(run)
            if run.stage in last and run is not last[run.stage]:
                # It was repeated without the nodes that were lost.
                again = set(last[run.stage].nodes)
                of_run = [each for each in of_run if not again & set(each.nodes)]
            found += of_run
        for stage, isolated in isolations.items():
            found += isolation.findings(isolated, stage, self._transient(runs, stage))
        if self._failed:
            found += [Finding(stages.LADDER, INCONCLUSIVE, (name,), self._failed, SOFTWARE, check=program.CHECK)
                      for name in dict.fromkeys(name for run in runs if run.stage == stages.LADDER
                                                for name in run.nodes)]
        return once(found)

    def conclude(self, nodes, runs, found, isolations, accepted=lambda each: each, rates=(),
                 limit=program.LIMIT_S, expected=None, left_out=None):
        """([NodeVerdict], findings that concern no single node, Judged). `found`: the findings that are
        no rates. `accepted(finding)`: the finding, marked where the site accepts it. `expected`,
        `left_out`: of verdicts.closed."""
        ran = {}
        for run in runs:
            for name in run.nodes:
                ran.setdefault(name, {})[run.stage] = None
        found = list(map(accepted, found))
        found += verdicts.closed(nodes, ran, found, expected, left_out)
        judged = self._judging.judge(
            {**{node.name: [node.name] for node in nodes}, **self._hosts(runs)},
            self._counted(runs, isolations), found, rates, limit=limit)
        found += map(accepted, judged.findings)
        own = {node.name: [] for node in nodes}
        others = []
        for each in found:
            (own.get(each.nodes[0], others) if len(each.nodes) == 1 else others).append(each)
        made = []
        for node in sorted(nodes, key=lambda node: node.name):
            lacks = verdicts.missing(node.name, ran, expected)
            mine = [each for each in own[node.name]
                    if not lacks or each.check != NOT_JUDGED]  # what did not run was not judged either
            outcome, more = program.verdict_of(judged, node.name, mine)
            mine = tuple(sorted([*mine, *more], key=verdicts.rank))
            made.append(NodeVerdict(node, outcome, mine, {stage: worst(
                each.outcome for each in mine if each.stage == stage and each.blames)
                for stage in ran.get(node.name, ())}, lacks))
        again = {each.nodes for each in judged.figures if each.stage == stages.LADDER}
        screen = [each for each in self._screen if each.nodes not in again]  # groups that did not pass it
        return made, others, judged._replace(figures=[*judged.figures, *screen])

    def _counted(self, runs, isolations):
        """Those whose metrics are judged: of the ladder the groups of its screen that passed, as it says
        what the others amount to; of what was repeated without lost nodes the last; none of which the
        record cannot be read."""
        last = {run.stage: run for run in runs if len(run.nodes) > 1}
        return [run for run in runs if (
            not run.round and run.record in self._passed if run.stage in isolations
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
        """What the soak proves, in its own words."""
        found = {run.nodes[0]: line["cause"] for run in runs if run.stage == "soak"
                 for line in self.records(run)
                 if line.get("kind") == "verdict" and line.get("scope") == "job"
                 and line.get("verdict") == PASS}
        if not found:
            return ""
        node, cause = next(iter(found.items()))
        return cause if len(found) == 1 else f"{len(found)} nodes passed; {node}: {cause}"


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
