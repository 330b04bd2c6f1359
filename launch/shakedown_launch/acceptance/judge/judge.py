"""What the records of the runs say: findings, figures, and how the figures compare with a reference
and with one another."""

import dataclasses
import os

from .. import references, stages
from ..evidence import figures, findings, records
from ..ladder import isolation
from ..model import CONFIG, FAIL, INCONCLUSIVE, PASS, RATES_NOT_JUDGED, WARN, Finding, worst
from . import pairs, peers
from .peer_groups import Groups

NOT_COMPARED = ("not-comparable", "not-compared")  # says nothing about how a group of nodes did


class Judge:
    """`output`: the folder of the runs' records. `known`: the references to choose from;
    `requested`: the path that the user named, "" for those that come with Shakedown. `job_gpus`: a
    prolog's, {number: UUID}: what is wrong with another GPU is no reason against its job."""

    def __init__(self, output, known=(), requested="", job_gpus=None):
        self._output, self._known, self._requested = output, known, requested
        self._job_gpus = None if job_gpus is None else set(job_gpus.values())
        self._lines, self._figures = {}, {}  # of each record, of each run
        self._references = {}  # node: Reference or None
        self._judged = set()  # (stage, node) of the rates that a reference judged
        self._only_warned = set()  # nodes whose rates were compared with a reference that only warns
        self._not_comparable = set()  # nodes that are INCONCLUSIVE as their rates cannot be compared
        self._groups = Groups()

    def records(self, run):
        if run.record not in self._lines:
            self._lines[run.record] = records.read(os.path.join(self._output, run.record))
        return self._lines[run.record]

    def findings(self, run):
        found = findings.findings(run, self.records(run)) + self._measured(run)[1]
        if self._job_gpus is None:
            return found
        return [dataclasses.replace(each, outcome=WARN if each.blames else each.outcome,
                                    cause=f"not of this job: {each.cause}")
                if each.gpu and each.gpu not in self._job_gpus else each for each in found]

    def _measured(self, run):
        """(figures, findings): a line that no program writes takes the figures of its run."""
        if run not in self._figures:
            try:
                self._figures[run] = figures.figures(run, self.records(run)), []
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                self._figures[run] = [], [findings.about_run(
                    run, INCONCLUSIVE, f"its figures cannot be read: {error!r}", "record")]
            found, wrong = self._figures[run]
            kind = next((each.measures for each in stages.STAGES if each.name == run.stage), "")
            if kind and run.code == 0 and not wrong and not any(
                    each.metric.startswith(kind) for each in found):
                wrong.append(findings.about_run(
                    run, INCONCLUSIVE, "passed, and its record has no figure", "record"))
        return self._figures[run]

    def figures(self, runs):
        """Of the ladder only the screen: a figure each per node and group."""
        return [figure for run in runs if not (run.round and run.stage == stages.LADDER)
                for figure in self._measured(run)[0]]

    def choose(self, nodes, ranks, runs):
        """The reference of each node. `ranks`: {node: number of its GPUs, or ranks}."""
        self._judged, self._only_warned, self._not_comparable = set(), set(), set()
        measured = {}
        for figure in self.figures(runs):
            for name in figure.nodes if len(figure.nodes) == 1 else ():
                measured.setdefault(name, []).append(figure)
        for node in nodes:
            found = references.match(self._known, node, ranks.get(node.name, 0),
                                     measured.get(node.name, ()))
            if found is None and self._requested and len(self._known) == 1:
                found, = self._known  # whose judgement says why it is of other nodes
            self._references[node.name] = found

    def gpus(self):
        """GPUs of a node, as the reference says that the user named; None: it does not."""
        counts = {each.ranks_per_node for each in self._known} if self._requested else ()
        found = next(iter(counts)) if len(counts) == 1 else ()
        return found[0] if len(found) == 1 else None

    def compared(self, measured):
        """Figures, each with the reference of its nodes."""
        found = []
        for reference in distinct(self._references.values()):
            own = [each for each in measured if all(
                self._references.get(name) is reference for name in each.nodes)]
            of_reference, judged, warned = references.judge(own, reference, bool(self._requested))
            found += of_reference
            self._judged |= judged
            self._only_warned |= warned
        if self._requested:
            found += [Finding("reference", INCONCLUSIVE, (name,), "no reference in "
                              f"{self._requested} is of this model and count", CONFIG,
                              action="use one of these nodes: --record-reference",
                              check="not-comparable")
                      for name, reference in self._references.items() if reference is None]
        self._not_comparable.update(
            name for each in found if each.check == "not-comparable" for name in each.nodes)
        return found

    def outcomes(self, runs):
        """Of a round of the ladder: groups of nodes that were tested at the same time."""
        slow = self._groups.slow([self._measured(run)[0] for run in runs])
        return [worst([self.outcome(run), FAIL if each else PASS])
                for run, each in zip(runs, slow)]

    def outcome(self, run):
        """Of a group of nodes, by itself and the reference."""
        found = [*self.findings(run), *self.compared(self._measured(run)[0])]
        return worst(each.outcome for each in found
                     if each.blames and each.check not in NOT_COMPARED)

    def all_findings(self, runs, measured, isolations):
        """Of every run, of the ladder, and of the figures. `isolations`: {stage: Isolation}, which
        say what the tests of those stages amount to."""
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
        compared = [each for each in self.compared(measured)
                    if not (each.stage in isolations and is_of_a_group(each))]
        found = [each for each in found if not self._judged_since(each)]
        return once([*found, *compared, *peers.judge(measured),
                     *pairs.judge(measured, self._judged)])

    def _judged_since(self, finding):
        """Whether a program left rates to a judgement that a reference has made since."""
        return finding.check == "not-judged" and all(
            (finding.stage, name) in self._judged for name in finding.nodes)

    def judged(self, runs):
        """{stage: nodes} whose rates the program did not judge, but a reference did."""
        nodes = {}
        for run in runs:
            for found in filter(self._judged_since, self.findings(run)):
                nodes.setdefault(found.stage, []).extend(found.nodes)
        return nodes

    def unjudged(self, measured, strict=False):
        """A warning about each node with a stage whose rates nothing judged: neither a reference any
        rate of the node, nor peers one of the stage; if `strict`, peers are not enough. One that is
        INCONCLUSIVE for that needs none."""
        rates = [each for each in measured if not each.metric.startswith(references.SETTINGS)]
        by_reference = {name for _, name in self._judged} | self._not_comparable
        by_peers = peers.compared(rates)
        stages_of = {}
        for each in rates:
            for name in each.nodes if len(each.nodes) == 1 else ():
                stages_of.setdefault(name, {})[each.stage] = None
        found = []
        for name, own in stages_of.items():
            left = [stage for stage in own if (stage, name) not in by_peers]
            if name in by_reference or not left and not strict:
                continue
            which = f" of {', '.join(left)}" if len(left) < len(own) else ""
            why = self._why_not_judged(name)
            cause = f"rates{which} not judged: {why}; fewer than {peers.FEWEST} peers" if left else \
                f"rates judged by peers alone: {why}"
            found.append(Finding("reference", WARN, (name,), cause, check=RATES_NOT_JUDGED,
                                 action="--record-reference on nodes known to be good"))
        return found

    def _why_not_judged(self, node):
        """Why no reference judged its rates."""
        of = self._references.get(node)
        if of is None:
            return "no reference of this model and count"
        if node in self._only_warned:
            return f"compared with figures of the reference {of.name} that only warn"
        return f"the reference {of.name} has none of its rates under the same conditions"

    def _transient(self, runs, stage):
        """What a failure amounts to that did not repeat: wrong data is never noise."""
        failed = any(each.outcome == FAIL for run in runs if run.stage == stage
                     for each in self.findings(run))
        return INCONCLUSIVE if failed else WARN

    def described(self):
        """The references of the nodes, for the report: of each metric what may fail first."""
        used = distinct(self._references.values())
        entries = {}
        for reference in used:
            devices = [{"device": each} for each in reference.devices] if len(used) > 1 else [{}]
            for each in sorted(reference.figures, key=lambda each: not each.may_fail):
                entries.setdefault(each.metric, []).extend(
                    {"value": each.value, "floor": each.floor, "may_fail": each.may_fail,
                     "kind": each.kind, "source": each.source,
                     "conditions": {**each.conditions, **device}} for device in devices)
        return {"name": ", ".join(each.name for each in used),
                "source": ", ".join(each.file for each in used),
                "figures": entries} if used else {}

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


def is_of_a_group(finding):
    """Of a rate that a group of the ladder missed: it was judged with the group's other tests."""
    return finding.stage == stages.LADDER and finding.outcome == FAIL and \
        len(finding.nodes) > 1 and finding.check != "path"


def distinct(references_):
    return list({id(each): each for each in references_ if each is not None}.values())


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
