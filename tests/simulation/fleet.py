"""A simulated fleet: nodes of eight GPUs on leaf switches under a spine, with the spread that
healthy hardware was measured to have, and faults. It answers the tests that ladder.isolate yields."""

import dataclasses
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "launch"))
from shakedown_launch.acceptance.ladder import isolation, ladder  # noqa: E402
from shakedown_launch.acceptance.model import (  # noqa: E402
    FAIL, HARDWARE, INCONCLUSIVE, INFRASTRUCTURE, PASS, WARN)

GPUS = 8
LEAF = 16  # nodes on a leaf switch

# Standard deviations, of the value: healthy hardware, measured or published (acceptance.md).
NODE_SPREAD = 0.01  # of a node's network
ALL_REDUCE_NOISE = 0.025  # of one all_reduce over nodes
FLOOR = 0.92  # of the baseline: below it a group fails

# Assumed, in seconds: starting a job on the nodes of a group, its all_reduce, and the time-out of a
# group in which a node does not answer. The tests of a round run at the same time.
TEST_S, TIMEOUT_S = 45, 120
PROBE_S = 30  # whether the nodes of such a group answer


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str
    nodes: tuple = ()  # whom it concerns: one node, or the two of a pair
    leaves: tuple = ()
    share: float = 1  # of the tests in which it shows


# kind: the class that has to be named
KINDS = {"corrupt GPU": HARDWARE, "dead node": "", "flaky node": "", "bad port": INFRASTRUCTURE,
         "port at 93 %": INFRASTRUCTURE, "bad pair": INFRASTRUCTURE,
         "bad pair of two leaves": INFRASTRUCTURE, "bad leaf or rail": INFRASTRUCTURE,
         "bad uplinks of a leaf": INFRASTRUCTURE, "1 of 8 uplinks": INFRASTRUCTURE,
         "bad path of two leaves": INFRASTRUCTURE, "bad spine": INFRASTRUCTURE}
BY_CHANCE = ("flaky node", "port at 93 %", "bad pair of two leaves", "1 of 8 uplinks")
FATES = ("found", "other class", "inconclusive", "warned", "missed")
NEEDS_LEAVES = {"bad uplinks of a leaf": 2, "1 of 8 uplinks": 2, "bad pair of two leaves": 2,
                "bad path of two leaves": 3, "bad spine": 3}
PAIRS = ("bad pair", "bad pair of two leaves")
ON_LEAVES = ("bad leaf or rail", *(kind for kind in NEEDS_LEAVES if kind not in PAIRS))


class Fleet:
    def __init__(self, count, seed, kinds=(), leaf=LEAF):
        self.random = random.Random(seed)
        self.nodes = [f"n{i:04}" for i in range(count)]
        self.domains = {node: f"leaf{i // leaf:03}" for i, node in enumerate(self.nodes)}
        self.leaves = list(dict.fromkeys(self.domains.values()))
        self.faults = [self.fault(kind) for kind in kinds]
        self._network = {node: self.random.gauss(1, NODE_SPREAD) for node in self.nodes}
        self.seconds = self.tests = 0

    def fault(self, kind):
        """At a random place; several never share a leaf with one of the switches'."""
        pick = self.random
        if kind in ON_LEAVES:
            count = {"bad path of two leaves": 2, "bad spine": 0}.get(kind, 1)
            return Fault(kind, leaves=tuple(pick.sample(self.leaves, count)))
        if kind in PAIRS:
            node = pick.choice(self.nodes)
            others = [each for each in self.nodes if each != node and (kind == "bad pair") == (
                self.domains[each] == self.domains[node])]
            return Fault(kind, (node, pick.choice(others)))
        share = pick.uniform(0.2, 0.8) if kind == "flaky node" else 1
        return Fault(kind, (pick.choice(self.nodes),), share=share)

    # ---- what the ladder tests ----

    def test(self, group):
        outcomes = [self.shows(fault, set(group)) for fault in self.faults]
        if INCONCLUSIVE in outcomes:
            return INCONCLUSIVE
        if FAIL in outcomes:
            return FAIL
        if len(group) == 1:
            return PASS
        slowed = {node for fault in self.faults if fault.kind == "port at 93 %"
                  for node in fault.nodes}
        bandwidth = min(self._network[node] * (0.93 if node in slowed else 1) for node in group)
        return PASS if bandwidth * self.random.gauss(1, ALL_REDUCE_NOISE) >= FLOOR else FAIL

    def shows(self, fault, group):
        """The outcome that a fault causes, or None."""
        there = [node in group for node in fault.nodes]
        if fault.kind == "dead node" and any(there):
            return INCONCLUSIVE
        if fault.kind in ("corrupt GPU", "flaky node") and any(there):
            return FAIL if self.random.random() < fault.share else None
        if len(group) == 1:
            return None
        leaves = {self.domains[node] for node in group}
        # Each of a node's eight rails chooses an uplink by its hash, anew in each test.
        flows = GPUS * sum(self.domains[node] in fault.leaves for node in group)
        bad = {"bad port": any(there), "bad pair": all(there), "bad pair of two leaves": all(there),
               "bad leaf or rail": leaves & set(fault.leaves),
               "bad uplinks of a leaf": len(leaves) > 1 and leaves & set(fault.leaves),
               "1 of 8 uplinks": fault.kind == "1 of 8 uplinks" and len(leaves) > 1 and
               self.random.random() > (7 / 8) ** flows,
               "bad path of two leaves": leaves >= set(fault.leaves),
               "bad spine": len(leaves) > 1}
        return FAIL if bad.get(fault.kind) else None

    def isolate(self, with_domains=True, **options):
        lost, outcomes = set(), None
        search = ladder.isolate(self.nodes, self.domains if with_domains else None, lost=lost, **options)
        dead = {node for fault in self.faults if fault.kind == "dead node" for node in fault.nodes}
        try:
            while True:
                groups = search.send(outcomes)
                outcomes = [self.test(group) for group in groups]
                lost |= dead.intersection(node for group in groups for node in group)
                self.seconds += TIMEOUT_S + PROBE_S if INCONCLUSIVE in outcomes else TEST_S
        except StopIteration as end:
            return end.value

    # ---- what came of it ----

    def score(self, result):
        """{each of FATES, "wrong nodes", "wrong links": count}."""
        score = dict.fromkeys((*FATES, "wrong nodes", "wrong links"), 0)
        found = isolation.findings(result, "ladder")
        for fault in self.faults:
            score[self.fate(fault, KINDS[fault.kind], result, found)] += 1
        guilty = {node for fault in self.faults for node in fault.nodes}
        blamed = {each.node for each in (*result.faulty, *result.dead)} | set(result.lost)
        score["wrong nodes"] = len(blamed - guilty)
        score["wrong links"] = sum(
            not any(self.matches(fault, link) or fault.nodes in link.sides
                    for fault in self.faults) for link in result.links)
        return score

    def fate(self, fault, class_, result, findings):
        if fault.kind in (*ON_LEAVES, *PAIRS):
            if any(self.matches(fault, link) for link in result.links):
                return "found"
            concerned = {node for node in self.nodes
                         if self.domains[node] in fault.leaves} | set(fault.nodes)
            open_ = {node for each in result.unresolved for node in each.nodes}
            return "inconclusive" if open_ & concerned or not concerned and open_ else "missed"
        if any(fault.nodes in link.sides for link in result.links):
            return "other class"  # named, but as a path
        about = [each for each in findings if each.nodes == fault.nodes]
        if about and all(each.outcome == WARN for each in about):
            return "warned"
        if any(each.outcome == FAIL or fault.kind == "dead node" for each in about):
            return "found" if not class_ or any(each.class_ == class_ for each in about) else \
                "other class"
        return "inconclusive" if about else "missed"

    def matches(self, fault, link):
        """Whether a link says what the fault is: nothing that it does not touch is named alone."""
        sides = [{self.domains[node] for node in side} for side in link.sides]
        if fault.kind in PAIRS:
            return set(fault.nodes) <= {node for side in link.sides for node in side}
        if fault.kind == "bad spine":
            return len(set().union(*sides)) > 1
        if fault.kind in ON_LEAVES:
            return set(fault.leaves) <= set().union(*sides) and (
                sides[0] <= set(fault.leaves) or sides[-1] <= set(fault.leaves))
        return False
