"""acceptance/ladder: which node or path a failure of several nodes belongs to, without noise by exact cases and with
noise by small simulated fleets; and what happens to a node that is lost meanwhile."""

import random
import unittest

from tree import TREE
import transcript
import fleet as simulation
from acceptance_fakes import FakeFleet, conduct
from shakedown_launch.acceptance import stages
from shakedown_launch.acceptance.ladder import isolation, ladder
from shakedown_launch.acceptance.model import FAIL, INCONCLUSIVE, PASS


def names(count):
    return [f"n{i:03}" for i in range(count)]


def leaves(nodes, size):
    return {node: f"leaf{i // size}" for i, node in enumerate(nodes)}


def drive(search, test):
    """(its Isolation, [(group, outcome)])."""
    seen, outcomes = [], None
    try:
        while True:
            groups = search.send(outcomes)
            busy = [node for group in groups for node in group]
            assert groups and len(busy) == len(set(busy)), groups
            outcomes = [test(group) for group in groups]
            seen += zip(groups, outcomes)
    except StopIteration as end:
        return end.value, seen


def isolated(count, *faults, size=16, domains=True, **options):
    """`faults`: functions of a group, true or an outcome where it does not pass."""
    nodes = names(count)

    def test(group):
        found = [fault(group) for fault in faults]
        return INCONCLUSIVE if INCONCLUSIVE in found else FAIL if any(found) else PASS
    return drive(ladder.isolate(nodes, leaves(nodes, size) if domains else None, **options),
                 test)[0]


def broken(*nodes):
    return lambda group: not set(nodes).isdisjoint(group)


def port(node):
    return lambda group: node in group and len(group) > 1


def dead(node):
    return lambda group: INCONCLUSIVE if node in group else None


def path(a, b):
    return lambda group: {a, b} <= set(group)


def leaf_of(node, size=16):
    return int(node[1:]) // size


def crossing(*leaf):
    return lambda group: len(set(map(leaf_of, group))) > 1 and \
        any(leaf_of(node) in leaf for node in group)


def together(*leaves_, size=16):
    """Nodes of these leaves do not pass with one another."""
    return lambda group: set(leaves_) <= {leaf_of(node, size) for node in group}


def blamed(result):
    return [each.node for each in result.faulty]


def words_of(result):
    """What is reported of it; how many nodes are good, and what it took."""
    return "\n".join([*(f"{each.outcome} {each.class_ or 'class unknown'} {each.subject if len(each.nodes) != 1 else each.nodes[0]}: {each.cause}"
                        for each in isolation.findings(result, "ladder")),
                      f"{len(result.good)} good, {result.tests} tests in {result.rounds} rounds"])


def port_of_leaf(number):
    """Nodes of this leaf pass alone."""
    return lambda group: len(group) > 1 and number in map(leaf_of, group)


def fails_at(*numbers, count=64):
    """Tests of these numbers fail, whatever their nodes."""
    calls = iter(range(10 ** 6))
    return isolated(count, lambda group: next(calls) in numbers)


def now_and_then(node, share=0.6):
    chance = random.Random(1)
    return lambda group: node in group and chance.random() < share


class Bounds(unittest.TestCase):
    def test_cases(self):
        names_ = globals()
        transcript.check(self, TREE / "tests/launch/ladder.txt", lambda given: words_of(eval(f"isolated({given})", dict(names_)))
                         if given[0].isdigit() else str(eval(given, dict(names_))))

    def test_any_answers(self):
        """Outcomes by chance: it ends, groups are disjoint, and no node is left without a word."""
        for seed in range(150):
            chance = random.Random(seed)
            nodes = names(chance.randrange(1, 40))
            domains = leaves(nodes, chance.randrange(1, 12)) if seed % 3 else None
            weights = [chance.random() for _ in range(3)]
            result, seen = drive(
                ladder.isolate(nodes, domains),
                lambda group: chance.choices((PASS, FAIL, INCONCLUSIVE), weights)[0])
            self.assertLessEqual(result.rounds, ladder.ROUNDS)
            self.assertEqual(result.tests, len(seen))
            self.accounts_for(nodes, result)
            for suspect in result.faulty:
                self.confirmed(suspect, seen)

    def test_any_faults(self):
        for seed in range(60):
            chance = random.Random(seed)
            nodes = names(chance.randrange(2, 48))
            bad = chance.sample(nodes, min(len(nodes), chance.randrange(0, 4)))
            result = isolated(len(nodes), *map(port, bad), size=8)
            self.assertLessEqual(set(blamed(result)), set(bad), seed)
            if len(nodes) > 2 * len(bad) + 8:
                self.assertEqual(set(blamed(result)), set(bad), seed)

    def accounts_for(self, nodes, result):
        named = {each.node for each in (*result.faulty, *result.dead)}
        named.update(node for each in result.unresolved for node in each.nodes)
        self.assertFalse(named.intersection(result.good))
        named.update(node for link in result.links for side in link.sides for node in side)
        self.assertLessEqual(set(nodes), named.union(result.good))

    def confirmed(self, suspect, seen):
        own = [group for group, outcome in seen
               if suspect.node in group and len(group) <= 2 and outcome != PASS]
        self.assertGreaterEqual(len(own), 3, suspect)

    def test_ended_early(self):
        nodes = names(64)
        search = ladder.isolate(nodes, leaves(nodes, 16))
        groups = next(search)
        search.send([FAIL] + [PASS] * (len(groups) - 1))
        with self.assertRaises(StopIteration) as end:
            search.send(None)
        result = end.exception.value
        self.assertEqual(result.faulty, ())
        unresolved = {node for each in result.unresolved for node in each.nodes}
        self.assertLessEqual(set(groups[0]), unresolved)


class Simulated(unittest.TestCase):
    """With noise, of fixed seeds: regressions of the table in docs/engineering/isolation.md."""

    def test_faults_are_found_and_no_other_node_is_blamed(self):
        of_ladder = [kind for kind, (_, by) in simulation.KINDS.items() if by is ladder]
        for count, kinds, seeds, least in [
                *((64, [kind], 5, 5) for kind in of_ladder if kind not in simulation.BY_CHANCE),
                *((64, [kind], 10, 6 if kind == "1 of 8 uplinks" else 0) for kind in simulation.BY_CHANCE), (256, [], 20, 0),
                (512, ["bad port", "corrupt GPU", "dead node", "bad pair", "bad uplinks of a leaf"], 5, 24)]:
            scores = []
            for seed in range(seeds):
                fleet = simulation.Fleet(count, seed, kinds)
                scores.append(fleet.score(fleet.isolate()))
            total = {key: sum(score[key] for score in scores) for key in scores[0]}
            self.assertGreaterEqual(total["found"], least, kinds)
            self.assertEqual(total["wrong nodes"], 0, kinds)
            self.assertEqual(sum(total[fate] for fate in simulation.FATES), seeds * len(kinds))
            if not set(kinds) & set(simulation.BY_CHANCE):
                self.assertEqual(total["wrong links"], 0, kinds)

    def test_a_dead_node_costs_one_time_out(self):
        for seed in range(5):
            fleet = simulation.Fleet(232, seed, ["dead node"])
            result = fleet.isolate()
            score = fleet.score(result)
            self.assertEqual((score["found"], score["wrong nodes"]), (1, 0))
            self.assertLessEqual(fleet.seconds, simulation.TIMEOUT_S + simulation.PROBE_S
                                 + simulation.TEST_S * (result.rounds - 1))


def losing(nodes, domains, dies, fails=lambda group: False):
    """(Isolation, groups tested): `dies`: {node: the round from which on it does not answer}."""
    lost, tested, outcomes, number = set(), [], None, 0
    search = ladder.isolate(nodes, domains, lost=lost)
    try:
        while True:
            groups = search.send(outcomes)
            dead = {node for node, first in dies.items() if first <= number}
            outcomes = [INCONCLUSIVE if dead.intersection(group) else
                        FAIL if fails(group) else PASS for group in groups]
            lost |= dead.intersection(node for group in groups for node in group)
            tested += groups
            number += 1
    except StopIteration as end:
        return end.value, tested


def lost(count, dies, *, domains=True, fails=lambda group: False):
    """What is reported where nodes do not answer, and in how many tests each of them was."""
    nodes = names(count)
    found, tested = losing(nodes, leaves(nodes, 16) if domains else None, dies, fails)
    return words_of(found) + "".join(f"\n{node} in {sum(node in group for group in tested)} tests" for node in dies)


class Lost(unittest.TestCase):
    def test_others_are_blamed_as_without_it(self):
        chance = random.Random(1)
        for _ in range(100):
            nodes = names(chance.choice((16, 48, 64)))
            bad, *dead = chance.sample(nodes, 4)
            dies = {node: chance.randrange(6) for node in dead}
            result, tested = losing(nodes, leaves(nodes, 16), dies, lambda group: bad in group)
            self.assertEqual({each.node for each in result.faulty}, {bad}, dies)
            self.assertEqual(set(result.good) | set(result.lost) | {bad}, set(nodes))
            self.assertLessEqual(set(result.lost), set(dead))
            self.assertFalse(result.dead or result.links or result.unresolved)


class LostInACampaign(unittest.TestCase):
    def test_the_rounds_go_on_without_a_node_that_does_not_answer(self):
        """Named by mpirun or not: every later round would wait for its time-out."""
        for names_it in (True, False):
            def dies(task):
                return {"c"} & set(task.nodes) if task.stage.startswith(stages.LADDER) else ()
            one = conduct(FakeFleet("abcdefgh", codes=lambda task: 3 if dies(task) else 0,
                             lost=lambda task: dies(task) if names_it else ()))
            together = [task.nodes for task in one.fleet.tasks if task.stage == stages.LADDER]
            self.assertEqual(sum("c" in nodes for nodes in together), 1)
            asked = [task.nodes for task in one.fleet.tasks if task.stage == f"{stages.LADDER}/answer"]
            self.assertIn(("c",), asked)
            self.assertEqual(len(asked) == 1, names_it)
            self.assertEqual(one.isolations[stages.LADDER].lost, ("c",))
            self.assertEqual(one.isolations[stages.LADDER].good, tuple("abdefgh"))
            self.assertIn("lost in all_reduce", one.left_out["c"])

    def test_a_node_that_answers_stays(self):
        """Its job was lost once; the node was not."""
        one = conduct(FakeFleet("abcd", codes=lambda task: 3 if task.stage == stages.LADDER and
                         task.round == 0 and "c" in task.nodes else 0,
                         lost=lambda task: ["c"] if task.stage == stages.LADDER and task.round == 0 else ()))
        self.assertEqual(one.isolations[stages.LADDER].lost, ())
        self.assertIn("c", one.isolations[stages.LADDER].good)


if __name__ == "__main__":
    unittest.main()
