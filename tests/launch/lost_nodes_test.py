"""What happens to a node that is lost while nodes are tested together: it is in one test, and named; the
others' results are those of a fleet without it."""

import pathlib
import random
import sys
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "launch"), str(TREE / "tests" / "simulation"), str(TREE / "tests" / "launch")]
import fleet as simulation  # noqa: E402
from acceptance_fakes import FakeFleet, conduct  # noqa: E402
from ladder_test import leaves, names  # noqa: E402
from shakedown_launch.acceptance import stages  # noqa: E402
from shakedown_launch.acceptance.ladder import isolation, ladder  # noqa: E402
from shakedown_launch.acceptance.model import FAIL, INCONCLUSIVE, PASS  # noqa: E402


def drive(nodes, domains, dies, broken=()):
    """(Isolation, groups tested): `dies`: {node: the round from which on it does not answer}."""
    lost, tested, outcomes, number = set(), [], None, 0
    search = ladder.isolate(nodes, domains, lost=lost)
    try:
        while True:
            groups = search.send(outcomes)
            dead = {node for node, first in dies.items() if first <= number}
            outcomes = [INCONCLUSIVE if dead.intersection(group) else
                        FAIL if set(broken).intersection(group) else PASS for group in groups]
            lost |= dead.intersection(node for group in groups for node in group)
            tested += groups
            number += 1
    except StopIteration as end:
        return end.value, tested


class Ladder(unittest.TestCase):
    def test_a_lost_node_is_in_one_test(self):
        nodes = names(64)
        for domains in (leaves(nodes, 16), None):
            for dies in ({"n005": 0}, {"n000": 1}, {"n005": 0, "n006": 0, "n040": 0}):
                result, tested = drive(nodes, domains, dies)
                self.assertEqual(set(result.lost), set(dies))
                self.assertEqual(set(result.good), set(nodes) - set(dies))
                self.assertEqual((result.faulty, result.dead, result.links, result.unresolved), ((),) * 4)
                self.assertLessEqual(result.rounds, 4)
                for node, first in dies.items():
                    self.assertEqual(sum(node in group for group in tested), 1 + first)
        found, = isolation.findings(drive(nodes, None, {"n005": 0})[0], "all_reduce")
        self.assertEqual((found.outcome, found.nodes, found.check), (INCONCLUSIVE, ("n005",), "node-lost"))

    def test_whole_domains_and_small_fleets(self):
        nodes = names(32)
        result, _ = drive(nodes, leaves(nodes, 16), dict.fromkeys(nodes[:16], 0))
        self.assertEqual((set(result.lost), set(result.good)), (set(nodes[:16]), set(nodes[16:])))
        for count in (2, 3):
            result, _ = drive(names(count), None, {"n000": 0})
            self.assertEqual((result.lost, result.good), (("n000",), tuple(names(count)[1:])))
        result, _ = drive(nodes, None, dict.fromkeys(nodes, 0))
        self.assertEqual((set(result.lost), result.good), (set(nodes), ()))

    def test_others_are_blamed_as_without_it(self):
        chance = random.Random(1)
        for _ in range(100):
            nodes = names(chance.choice((16, 48, 64)))
            broken, *dead = chance.sample(nodes, 4)
            dies = {node: chance.randrange(6) for node in dead}
            result, tested = drive(nodes, leaves(nodes, 16), dies, [broken])
            self.assertEqual({each.node for each in result.faulty}, {broken}, dies)
            self.assertEqual(set(result.good) | set(result.lost) | {broken}, set(nodes))
            self.assertLessEqual(set(result.lost), set(dead))
            self.assertFalse(result.dead or result.links or result.unresolved)


class Campaign(unittest.TestCase):
    def test_the_rounds_go_on_without_a_node_that_does_not_answer(self):
        """Named by mpirun or not: every later round would wait for its time-out."""
        for names_it in (True, False):
            def dies(task):
                return {"c"} & set(task.nodes) if task.stage.startswith(stages.LADDER) else ()
            made = FakeFleet("abcdefgh", codes=lambda task: 3 if dies(task) else 0,
                             lost=lambda task: dies(task) if names_it else ())
            one = conduct(made)
            together = [task.nodes for task in made.tasks if task.stage == stages.LADDER]
            self.assertEqual(sum("c" in nodes for nodes in together), 1)
            asked = [task.nodes for task in made.tasks if task.stage == f"{stages.LADDER}/answer"]
            self.assertIn(("c",), asked)
            self.assertEqual(len(asked) == 1, names_it)
            self.assertEqual(one.isolations[stages.LADDER].lost, ("c",))
            self.assertEqual(one.isolations[stages.LADDER].good, tuple("abdefgh"))
            self.assertIn("lost in all_reduce", one.left_out["c"])

    def test_a_node_that_answers_stays(self):
        """Its job was lost once; the node was not."""
        made = FakeFleet("abcd", codes=lambda task: 3 if task.stage == stages.LADDER and
                         task.round == 0 and "c" in task.nodes else 0,
                         lost=lambda task: ["c"] if task.stage == stages.LADDER and task.round == 0 else ())
        one = conduct(made)
        self.assertEqual(one.isolations[stages.LADDER].lost, ())
        self.assertIn("c", one.isolations[stages.LADDER].good)


class Simulated(unittest.TestCase):
    def test_a_dead_node_costs_one_time_out(self):
        for seed in range(5):
            fleet = simulation.Fleet(232, seed, ["dead node"])
            result = fleet.isolate()
            score = fleet.score(result)
            self.assertEqual((score["found"], score["wrong nodes"]), (1, 0))
            self.assertLessEqual(fleet.seconds, simulation.TIMEOUT_S + simulation.PROBE_S
                                 + simulation.TEST_S * (result.rounds - 1))


if __name__ == "__main__":
    unittest.main()
