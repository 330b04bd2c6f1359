"""acceptance/evidence/machines: which machine answered for each node."""

import unittest

from acceptance_fakes import conduct, FakeFleet, FakeJudge, run_of
from shakedown_launch.acceptance import stages
from shakedown_launch.acceptance.evidence import inventory
from shakedown_launch.acceptance.model import CONFIG, INCONCLUSIVE, INFRASTRUCTURE

A, B = ("w.1.foo", "boot-a"), ("w.2.foo", "boot-b")


def findings(*answered):
    """Of runs (stage, node or nodes, the machines that answered)."""
    runs = {run_of(stage, nodes): [{"kind": "run", "hosts": [host for host, _ in of_run],
                                    "boot_ids": [boot for _, boot in of_run]}]
            for stage, nodes, of_run in answered}
    return inventory.wrong_machines(list(runs), runs.__getitem__)


class Machines(unittest.TestCase):
    def test_each_node_by_its_own(self):
        self.assertEqual(findings(("inventory", "n1", [A]), ("inventory", "n2", [B]), ("soak", "n1", [A, A]),
                                  ("soak", ("n1", "n2"), [A, A, B, B])), [])
        # Containers of one machine, and records without boot ids: by their names.
        self.assertEqual(findings(("inventory", "n1", [("p1", "b")]), ("inventory", "n2", [("p2", "b")])), [])
        self.assertEqual(findings(("inventory", "n1", [("p1", "")]), ("inventory", "n2", [("p2", "")])), [])
        self.assertEqual(findings(("inventory", "n1", []), ("inventory", "n2", [])), [])  # nobody answered

    def test_one_that_answers_for_two(self):
        found = findings(("inventory", "n1", [A]), ("inventory", "n2", [A]), ("inventory", "n3", [B]))
        self.assertEqual([(each.nodes, each.outcome, each.class_) for each in found],
                         [(("n1",), INCONCLUSIVE, CONFIG), (("n2",), INCONCLUSIVE, CONFIG)])
        self.assertEqual(found[0].cause, "one machine, w.1.foo, answered for n[1-2]")

    def test_two_machines_with_one_name_are_two(self):
        self.assertEqual(findings(("inventory", "n1", [("localhost", "a")]),
                                  ("inventory", "n2", [("localhost", "b")])), [])

    def test_one_that_was_restarted_or_replaced(self):
        for later in ((A[0], "boot-c"), B, ("w.1.foo", "")):
            found, = findings(("inventory", "n1", [A]), ("soak", "n1", [later]))
            self.assertEqual((found.stage, found.nodes, found.outcome, found.class_),
                             ("soak", ("n1",), INCONCLUSIVE, INFRASTRUCTURE))
            self.assertIn(f"{later[0]} (boot {later[1] or 'unknown'}) answered, and before it w.1.foo (boot boot-a)",
                          found.cause)
        self.assertEqual(len(findings(("inventory", "n1", [A, B]))), 1)  # of a node that is one machine

    def test_one_that_is_missing_among_several(self):
        alone = [("inventory", "n1", [A]), ("inventory", "n2", [B])]
        found, = findings(*alone, ("all_reduce", ("n1", "n2"), [A, A]))
        self.assertEqual((found.nodes, found.stage, found.outcome), (("n2",), "all_reduce", INCONCLUSIVE))

    def test_no_further_stage_runs_on_them(self):
        class OneAnswers(FakeJudge):
            def records(self, run):
                return [{"kind": "run", "hosts": ["n1"], "boot_ids": ["a"]}]
        made = FakeFleet(["n1", "n2"])
        one = conduct(made, judge=OneAnswers(), backend=stages.CPU)
        self.assertEqual({task.stage for task in made.tasks}, {"inventory"})
        self.assertEqual(set(one.left_out), {"n1", "n2"})


if __name__ == "__main__":
    unittest.main()
