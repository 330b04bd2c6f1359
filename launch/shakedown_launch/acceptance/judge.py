"""What the records of the runs say: findings, figures, and how the figures compare with a reference
and with one another."""

import os

from . import figures, findings, isolation, peers, records, references, stages
from .model import FAIL, INCONCLUSIVE, WARN, worst


class Judge:
    """`output`: the folder of the runs' records. `known`: the references to choose from."""

    def __init__(self, output, known=()):
        self._output, self._known = output, known
        self._lines = {}
        self.reference = None

    def records(self, run):
        if run.record not in self._lines:
            self._lines[run.record] = records.read(os.path.join(self._output, run.record))
        return self._lines[run.record]

    def findings(self, run):
        return findings.findings(run, self.records(run))

    def figures(self, runs):
        """Of the ladder only the screen: a figure each per node and group."""
        return [figure for run in runs if not (run.round and run.stage == stages.LADDER)
                for figure in figures.figures(run, self.records(run))]

    def choose(self, nodes):
        """The reference for nodes like these."""
        for node in nodes:
            self.reference = self.reference or references.match(self._known, node, len(node.gpus))

    def compared(self, measured):
        return references.judge(measured, self.reference) if self.reference else []

    def outcome(self, run):
        """Of a group of nodes, as the ladder asks."""
        found = [*self.findings(run),
                 *self.compared(figures.figures(run, self.records(run)))]
        if run.code != 0 and not found:
            return FAIL if run.code == 1 else INCONCLUSIVE
        return worst(each.outcome for each in found if each.outcome != WARN)

    def all_findings(self, runs, measured, isolated):
        """Of every run, of the ladder, and of the figures."""
        last = {run.stage: run for run in runs if len(run.nodes) > 1}
        found = []
        for run in runs:
            if run.stage == stages.LADDER and isolated:
                continue  # the ladder says what its tests amount to
            of_run = self.findings(run)
            if run.stage in last and run is not last[run.stage]:  # was repeated without who was lost
                of_run = [each for each in of_run
                          if not set(each.nodes) & set(last[run.stage].nodes)]
            found += of_run
        if isolated:
            found += isolation.findings(isolated, stages.LADDER, self._transient(runs))
        return [*found, *self.compared(measured), *peers.judge(measured)]

    def _transient(self, runs):
        """What a failure of the ladder amounts to that did not repeat: wrong data is never noise."""
        failed = any(each.outcome == FAIL for run in runs if run.stage == stages.LADDER
                     for each in self.findings(run))
        return INCONCLUSIVE if failed else WARN

    def described(self):
        """The reference, for the report."""
        return references.described(self.reference) if self.reference else {}

    def statement(self, runs):
        """What the soak proves, in its own words; of several nodes, of each."""
        return next((line["cause"] for run in runs if run.stage == "soak"
                     for line in self.records(run)
                     if line.get("kind") == "verdict" and line.get("scope") == "job"
                     and line.get("verdict") == "PASS"), "")
