"""acceptance/evidence: what a run's record and end are found to be, and which machine answered for each node. Fails closed."""

import json
import pathlib
import tempfile
import unittest

import tree  # noqa: F401 - what is imported below is in its folders
from acceptance_fakes import FakeFleet, FakeJudge, conduct, run_of as fake_run
from shakedown_launch import records
from shakedown_launch.acceptance import stages
from shakedown_launch.acceptance.evidence import findings, inventory
from shakedown_launch.acceptance.model import (
    CONFIG, FAIL, INCONCLUSIVE, INFRASTRUCTURE, PASS, UNKNOWN, WARN, Run)

HOSTS, GPUS = ["n1", "n1", "n2", "n2"], ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
HEAD = {"kind": "run", "run_id": "r", "program": "soak", "hosts": HOSTS, "gpu_uuids": GPUS}
END = {"kind": "end", "run_id": "r", "exit_code": 0}
OK = {"kind": "verdict", "scope": "job", "name": "soak", "verdict": PASS, "cause": "0 wrong"}


def run_of(code=0, nodes=("n1", "n2"), **other):
    return Run("soak", nodes, code, "2026-11-23T08:00:00Z", 1, "soak.jsonl", "soak.log", **other)


def ended(code):
    return {**END, "exit_code": code}


def verdict(scope, name, outcome, **other):
    return {"kind": "verdict", "scope": scope, "name": name, "verdict": outcome, "cause": "why",
            **other}


def of(*lines, run=None, head=HEAD):
    return findings.findings(run or run_of(), [head, *lines])


class Case(unittest.TestCase):
    def one(self, found, outcome, nodes, check=None, **fields):
        self.assertEqual(len(found), 1, found)
        self.assertEqual((found[0].outcome, found[0].nodes), (outcome, nodes), found[0])
        if check:
            self.assertEqual(found[0].check, check)
        for name, value in fields.items():
            self.assertEqual(getattr(found[0], name), value)
        return found[0]


class HowItEnded(Case):
    BOTH = ("n1", "n2")

    def test_a_run_in_which_all_is_well_has_no_finding(self):
        self.assertEqual(of(OK, END), [])

    def test_no_file_an_empty_one_and_a_line_that_is_no_record(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "record.jsonl")
            for text, why in ((None, "No such file"), ("", "empty"), ("\n", "empty"),
                              ('{"kind": "run"', "line 1: no JSON"), ("[3]", "line 1: no record"),
                              ("{}", "line 1: no record"),
                              ('{"kind": "end"}', "line 1: end without exit_code")):
                if text is not None:
                    path.write_text(text)
                found = findings.findings(run_of(), records.read(path))
                self.assertIn(why, self.one(found, INCONCLUSIVE, self.BOTH, "record").cause)
            path.write_text("\n".join(map(json.dumps, (HEAD, OK))) + "\ngarb\n" + json.dumps(END))
            self.assertIn("line 3", self.one(findings.findings(run_of(), records.read(path)),
                                             INCONCLUSIVE, self.BOTH, "record").cause)

    def test_a_record_that_was_not_begun(self):
        """What ended the program is the cause, not the missing file."""
        for run, said in [(run_of(5), "stopped by a signal, exit code 5"),
                          (run_of(3, note="the job could not be started"),
                           "inconclusive, exit code 3: the job could not be started"),
                          (run_of(3, ("n1",), lost=(("n1", "host n1 could not be reached"),),
                                  note="host n1 could not be reached"),
                           "host n1 could not be reached")]:
            found = findings.findings(run, records.read("/nonexistent"))
            self.assertEqual([(each.outcome, each.cause) for each in found],
                             [(INCONCLUSIVE, said)])

    def test_ends_that_only_one_finding_explains(self):
        hosts = run_of(3, ("n2",), lost=(("n2", "host n2 was lost"),))
        for lines, run, outcome, check, class_, said in [
                ([], run_of(), INCONCLUSIVE, "not-finished", "", "wrote no record"),
                ([HEAD], run_of(3, note="did not end within 60 s and was stopped"), INCONCLUSIVE, "not-finished", "",
                 "within 60 s"),
                ([HEAD], hosts, INCONCLUSIVE, "node-lost", "INFRASTRUCTURE", "host n2 was lost"),
                ([HEAD, OK, END, {**HEAD, "run_id": "s"}], run_of(), INCONCLUSIVE, "not-finished", "", "soak"),  # two jobs
                ([ended(2)], run_of(2), INCONCLUSIVE, "exit-code", "CONFIG", "usage error"),  # before the run record
                # autopilot#68: the wrapper reported a healthy node while the diagnosis that it ran had failed.
                ([HEAD, OK, ended(1)], run_of(1), FAIL, "exit-code", "", "failed"),
                ([HEAD, OK, ended(0)], run_of(1), FAIL, "exit-code", "", "failed"),
                ([HEAD, OK, ended(1)], run_of(0), FAIL, "exit-code", "", "failed"),  # which the launcher has lost
                ([HEAD, ended(1)], run_of(), FAIL, "exit-code", "", "failed"),
                ([HEAD, END], run_of(4), INCONCLUSIVE, "exit-code", "SOFTWARE", "internal error"),
                *(([HEAD, ended(code)], run_of(code), outcome, check, class_, f"exit code {code}")
                  for code, outcome, check, class_ in [
                      (1, FAIL, "exit-code", ""), (2, INCONCLUSIVE, "exit-code", "CONFIG"),
                      (3, INCONCLUSIVE, "exit-code", ""), (4, INCONCLUSIVE, "exit-code", "SOFTWARE"),
                      (5, INCONCLUSIVE, "missing", ""), (137, INCONCLUSIVE, "exit-code", "")])]:
            found = self.one(findings.findings(run, lines), outcome, run.nodes, check, class_=class_)
            self.assertIn(said, found.cause)

    def test_a_record_without_an_end_whatever_the_exit_code(self):
        for code in (0, 3, 137, -9):
            found = of(OK, run=run_of(code))
            self.assertIn("no end line", found[0].cause)
            self.assertTrue(all(each.outcome == INCONCLUSIVE for each in found))

    def test_a_dead_rank_is_named_and_the_other_node_has_no_result(self):
        found = of(run=run_of(1, dead=((2, "n2.site", "signal 9 (Killed)"),)))
        self.assertEqual([(each.outcome, each.nodes, each.check) for each in found],
                         [(INCONCLUSIVE, ("n2",), "rank-died"),
                          (INCONCLUSIVE, ("n1",), "not-finished")])
        self.assertIn("rank 2 on n2 died: signal 9 (Killed)", found[0].cause)
        one_host = {**HEAD, "hosts": ["n1"] * 4}  # which answered for both
        found = of(run=run_of(1, dead=((3, "n1", "signal 9 (Killed)"),)), head=one_host)
        self.assertEqual([each.nodes for each in found], [("n1",), ("n2",)])
        for how, class_ in [("signal 9 (Killed)", "ENVIRONMENT"), ("signal 7 (Bus error)", "ENVIRONMENT"),
                            ("signal 11 (Segmentation fault)", "SOFTWARE")]:
            found, _ = of(run=run_of(1, dead=((2, "n2.site", how),)))
            self.assertEqual((found.class_, bool(found.action)), (class_, True))

    def test_a_rank_that_does_not_answer_is_the_subject(self):
        waits = "rank 0 on n1: an all_reduce did not finish within 120 s (--timeout); no answer from rank 3 on n2"
        for ranks, note in [([3], waits), ([2, 3], waits), ([3], "")]:
            line = {"kind": "failure", "run_id": "another's", "check": "no-answer", "ranks": ranks,
                    "hosts": ["n2.site"] * len(ranks), "waited_s": 120}
            for lines in ([line], [line, line]):  # two ranks may name it
                *found, rest = of(*lines, run=run_of(3, note=note))
                self.assertEqual([(each.outcome, each.nodes, each.subject, each.check, each.class_)
                                  for each in found],
                                 [(INCONCLUSIVE, ("n2",), f"rank {rank}", "no-answer", "INFRASTRUCTURE")
                                  for rank in ranks])
                self.assertIn(note or "no answer from rank 3 on n2", found[0].cause)
                self.assertTrue(found[0].action)
                self.assertEqual((rest.nodes, rest.check), (("n1",), "not-finished"))
        found = self.one(of(run=run_of(3, note=waits)), INCONCLUSIVE, self.BOTH, "not-finished")
        self.assertEqual((found.cause, found.action), (f"soak did not end in order: {waits}", "see the log"))


class WhatItRecorded(Case):
    def test_scopes_are_nodes_and_gpus(self):
        cases = (("gpu", "GPU-c", ("n2",), "GPU-c", "GPU of rank 2"),
                 ("rank", "1", ("n1",), "GPU-b", "rank 1"),
                 ("link", "1->2", ("n1", "n2"), "", "link 1->2"),
                 ("link", "0<->1", ("n1",), "", "link 0<->1"),
                 ("node", "n2", ("n2",), "", "node n2"),
                 ("rail", "1", ("n1", "n2"), "", "rail 1"),
                 ("operation", "all_reduce float32", ("n1", "n2"), "", "all_reduce float32"))
        for scope, name, nodes, gpu, subject in cases:
            line = verdict(scope, name, FAIL, **{"class": "HARDWARE", "action": "RMA"})
            found = of(line, verdict("job", "soak", FAIL), ended(1), run=run_of(1))
            self.one(found, FAIL, nodes, gpu=gpu, subject=subject, class_="HARDWARE", action="RMA",
                     check=f"soak-{scope}", evidence="soak.jsonl")

    def test_ranks_of_hosts_by_other_names_and_without_gpus(self):
        for head, nodes, node, gpu in [({**HEAD, "gpu_uuids": None}, ("n1", "n2"), "n2", ""),
                                       ({**HEAD, "hosts": ["vm"] * 4}, ("n7",), "n7", "GPU-d"),
                                       ({**HEAD, "hosts": [f"{host}.site" for host in HOSTS]}, ("n1", "n2"), "n2", "GPU-d")]:
            self.one(of(verdict("rank", "3", FAIL), ended(1), run=run_of(1, nodes), head=head), FAIL, (node,), gpu=gpu,
                     subject="rank 3")

    def test_a_program_s_own_verdict_where_no_part_is_named(self):
        self.one(of(verdict("job", "gradients", FAIL), ended(1), run=run_of(1)), FAIL,
                 ("n1", "n2"), "soak-job")
        worse = of(verdict("gpu", "GPU-a", INCONCLUSIVE), verdict("job", "soak", FAIL), ended(1),
                   run=run_of(1))
        self.assertEqual([each.outcome for each in worse], [INCONCLUSIVE, FAIL])

    def test_an_unknown_kind_of_verdict_is_inconclusive(self):
        for line in (verdict("gpu", "GPU-a", "MAYBE"), verdict("galaxy", "x", FAIL),
                     verdict("rank", "9", FAIL), verdict("link", "0-1", FAIL),
                     verdict("job", "soak", "MAYBE")):
            found = of(line, END)
            self.one(found, INCONCLUSIVE, ("n1", "n2"), "unknown-verdict", class_="SOFTWARE")

    def test_the_five_outcomes(self):
        for outcome in (WARN, UNKNOWN, INCONCLUSIVE, FAIL):
            code = {FAIL: 1, INCONCLUSIVE: 3}.get(outcome, 0)
            found = of(verdict("gpu", "GPU-a", outcome, check="persistence"), verdict("job", "node_check", outcome),
                       ended(code), run=run_of(code))
            self.one(found, outcome, ("n1",), "persistence", gpu="GPU-a")
        self.assertEqual(of(verdict("operation", "all_reduce", PASS), OK, END), [])

    def test_what_is_unknown_of_a_node_is_not_worse_for_the_failure_of_another(self):
        lines = [verdict("node", "n1", FAIL), verdict("node", "n2", UNKNOWN), verdict("job", "node_check", FAIL)]
        self.assertEqual([(each.nodes, each.outcome) for each in of(*lines, ended(1), run=run_of(1))],
                         [(("n1",), FAIL), (("n2",), UNKNOWN)])

    def test_a_rate_is_no_finding_and_accounts_for_the_exit_code(self):
        """bin/judge concludes anew, of the metrics."""
        rate = {"metric": "memory/copy", "witness": "peers", "slow_looks": 3, "looks": 3}
        for outcome, code in [(FAIL, 1), (INCONCLUSIVE, 3), (WARN, 0)]:
            lines = [verdict("gpu", "GPU-a", outcome, **rate), verdict("job", "soak", outcome)]
            self.assertEqual(of(*lines, ended(code), run=run_of(code)), [])
        unjudged = verdict("job", "soak", INCONCLUSIVE, check="rates")
        self.assertEqual(of(unjudged, ended(3), run=run_of(3)), [])
        # Another code, and another reason, are no rate's.
        self.one(of(unjudged, ended(1), run=run_of(1)), FAIL, ("n1", "n2"), "exit-code")
        self.one(of(verdict("job", "soak", INCONCLUSIVE), ended(3), run=run_of(3)), INCONCLUSIVE, ("n1", "n2"),
                 "soak-job")
        found = of(verdict("gpu", "GPU-a", INCONCLUSIVE, **rate), verdict("node", "n2", FAIL),
                   verdict("job", "soak", FAIL), ended(1), run=run_of(1))
        self.one(found, FAIL, ("n2",))

    def test_wrong_data_that_no_verdict_names(self):
        mismatch = {"kind": "mismatch", "rank": 2, "host": "n2", "load": "product bf16",
                    "where": "tile 3,4", "cause": "the others contradict it",
                    "capsule": "capsule.json"}
        found = of(mismatch, run=run_of(3))
        self.assertEqual((found[0].outcome, found[0].nodes, found[0].gpu, found[0].evidence),
                         (FAIL, ("n2",), "GPU-c", "capsule.json"))
        self.one(of(mismatch, verdict("gpu", "GPU-c", FAIL), ended(1), run=run_of(1)), FAIL,
                 ("n2",), "soak-gpu")
        row = {"kind": "collective", "operation": "all_reduce", "wrong_elements": 3.0}
        self.one(of(row, END), FAIL, ("n1", "n2"), "wrong-data")
        certificate = {"kind": "certificate", "strategy": "ddp", "reference": "none",
                       "tensor": "fc.weight", "pass": False}
        self.one(of(certificate, ended(1), run=run_of(1)), FAIL, ("n1", "n2"), "wrong-data",
                 class_="SOFTWARE")

    def test_the_neighbour_check(self):
        check = {"kind": "neighbour_check", "updates_checked": 5, "disputes": 0}
        self.assertEqual(of(check, OK, END), [])
        self.one(of({**check, "disputes": 1}, ended(1), run=run_of(1)), FAIL, ("n1", "n2"))
        self.one(of({**check, "disputes": 1}, verdict("gpu", "GPU-d", FAIL), ended(1),
                    run=run_of(1)), FAIL, ("n2",))
        self.one(of({**check, "updates_checked": 0}, END), INCONCLUSIVE, ("n1", "n2"),
                 "neighbour-check")

A, B = ("w.1.foo", "boot-a"), ("w.2.foo", "boot-b")


def machines(*answered):
    """Of runs (stage, node or nodes, the machines that answered)."""
    runs = {fake_run(stage, nodes): [{"kind": "run", "hosts": [host for host, _ in of_run],
                                    "boot_ids": [boot for _, boot in of_run]}]
            for stage, nodes, of_run in answered}
    return inventory.wrong_machines(list(runs), runs.__getitem__)


class Machines(unittest.TestCase):
    def test_the_machine_that_answers_is_the_one_that_was_meant(self):
        alone = [("inventory", "n1", [A]), ("inventory", "n2", [B])]
        changed = "{} (boot {}) answered, and before it w.1.foo (boot boot-a)"
        for answered, found, cause in [
                ([*alone, ("soak", "n1", [A, A]), ("soak", ("n1", "n2"), [A, A, B, B])], [], ""),
                # Containers of one machine, and records without boot ids: by their names. Or nobody answered.
                ([("inventory", "n1", [("p1", "b")]), ("inventory", "n2", [("p2", "b")])], [], ""),
                ([("inventory", "n1", [("p1", "")]), ("inventory", "n2", [("p2", "")])], [], ""),
                ([("inventory", "n1", []), ("inventory", "n2", [])], [], ""),
                ([("inventory", "n1", [("localhost", "a")]), ("inventory", "n2", [("localhost", "b")])], [], ""),
                ([("inventory", "n1", [A]), ("inventory", "n2", [A]), ("inventory", "n3", [B])],
                 [("inventory", "n1", CONFIG), ("inventory", "n2", CONFIG)], "one machine, w.1.foo, answered for n[1-2]"),
                # Restarted, replaced, or of another kernel; of a node that is one machine; missing among several.
                *(([("inventory", "n1", [A]), ("soak", "n1", [later])], [("soak", "n1", INFRASTRUCTURE)],
                   changed.format(later[0], later[1] or "unknown")) for later in ((A[0], "boot-c"), B, (A[0], ""))),
                ([("inventory", "n1", [A, B])], [("inventory", "n1", INFRASTRUCTURE)], "w.1.foo"),
                ([*alone, ("all_reduce", ("n1", "n2"), [A, A])], [("all_reduce", "n2", INFRASTRUCTURE)], "w.1.foo")]:
            made = machines(*answered)
            self.assertEqual([(each.stage, *each.nodes, each.class_) for each in made], found)
            for each in made:
                self.assertEqual(each.outcome, INCONCLUSIVE)
                self.assertIn(cause, each.cause)

    def test_no_further_stage_runs_on_them(self):
        class OneAnswers(FakeJudge):
            def records(self, run):
                return [{"kind": "run", "hosts": ["n1"], "boot_ids": ["a"]}]
        one = conduct(FakeFleet(["n1", "n2"]), judge=OneAnswers(), backend=stages.CPU)
        self.assertEqual({task.stage for task in one.fleet.tasks}, {"inventory"})
        self.assertEqual(set(one.left_out), {"n1", "n2"})


if __name__ == "__main__":
    unittest.main()
