"""A simulated fleet: nodes of eight GPUs on leaf switches under a spine, with the spread that
healthy hardware was measured to have, and faults. It answers the tests that ladder.isolate yields,
and has the metrics that bin/judge concludes from."""

import dataclasses
import os
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "launch"))
from shakedown_launch.acceptance import judge  # noqa: E402
from shakedown_launch.acceptance.ladder import isolation, ladder  # noqa: E402
from shakedown_launch.acceptance.model import (  # noqa: E402
    CONFIG, ENVIRONMENT, FAIL, HARDWARE, INCONCLUSIVE, INFRASTRUCTURE, PASS, WARN, Run)

GPUS = 8
LEAF = 16  # nodes on a leaf switch

# Standard deviations, of the value: healthy hardware, measured or published (acceptance.md).
NODE_SPREAD = 0.01  # of a node's network
ALL_REDUCE_NOISE = 0.025  # of one all_reduce over nodes
HEAT_C = 71
FLOOR = 0.92  # of the baseline: below it a group fails

# metric: value, unit, spread between GPUs, noise between samples, samples
CYCLES, CLOCK, HOST = "product/fp16/flop_per_cycle_sm", "product/fp16/clock_mhz", "host_link/to_device/alone"
METRICS = {CYCLES: (4002, "FLOP/cycle/SM", 0.0003, 0.001, 12), CLOCK: (1530, "MHz", 0.015, 0.005, 5),
           "memory/copy": (4270, "GB/s", 0.003, 0.003, 5), HOST: (55.3, "GB/s", 0.002, 0.001, 20)}
THERMAL, POWER_CAP = 0x20, 0x04  # NVML's bits
FACTORS = {"slow GPU: heat": (CLOCK, 0.85), "slow GPU: chip": (CYCLES, 0.85), "power limit": (CLOCK, 0.85),
           "host link at half": (HOST, 0.5)}

# Assumed, in seconds: starting a job on the nodes of a group, its all_reduce, and the time-out of a
# group in which a node does not answer. The tests of a round run at the same time.
TEST_S, TIMEOUT_S = 45, 120
PROBE_S = 30  # whether the nodes of such a group answer


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str
    nodes: tuple = ()  # whom it concerns: one node, or the two of a pair
    leaves: tuple = ()
    gpu: int = 0
    share: float = 1  # of the tests in which it shows


# kind: the class that has to be named; who finds it
KINDS = {"slow GPU: heat": (ENVIRONMENT, judge), "slow GPU: chip": (HARDWARE, judge),
         "power limit": (CONFIG, judge), "host link at half": (INFRASTRUCTURE, judge),
         "corrupt GPU": (HARDWARE, ladder), "dead node": ("", ladder),
         "flaky node": ("", ladder), "bad port": (INFRASTRUCTURE, ladder),
         "port at 93 %": (INFRASTRUCTURE, ladder), "bad pair": (INFRASTRUCTURE, ladder),
         "bad pair of two leaves": (INFRASTRUCTURE, ladder),
         "bad leaf or rail": (INFRASTRUCTURE, ladder),
         "bad uplinks of a leaf": (INFRASTRUCTURE, ladder),
         "1 of 8 uplinks": (INFRASTRUCTURE, ladder),
         "bad path of two leaves": (INFRASTRUCTURE, ladder), "bad spine": (INFRASTRUCTURE, ladder)}
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
        self._draws = random.Random(seed + 1)  # of its own: what is measured leaves the ladder's tests alone
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
        return Fault(kind, (pick.choice(self.nodes),), gpu=pick.randrange(GPUS), share=share)

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

    def isolate(self, with_domains=True):
        lost, outcomes = set(), None
        search = ladder.isolate(self.nodes, self.domains if with_domains else None, lost=lost)
        dead = {node for fault in self.faults if fault.kind == "dead node" for node in fault.nodes}
        try:
            while True:
                groups = search.send(outcomes)
                outcomes = [self.test(group) for group in groups]
                lost |= dead.intersection(node for group in groups for node in group)
                self.seconds += TIMEOUT_S + PROBE_S if INCONCLUSIVE in outcomes else TEST_S
        except StopIteration as end:
            return end.value

    # ---- what bin/judge concludes from ----

    def judged(self):
        """Its findings."""
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/fleet.jsonl", "w", encoding="utf-8") as file:
                for node in self.nodes:
                    for gpu in range(GPUS):
                        faults = [fault for fault in self.faults if fault.nodes == (node,) and fault.gpu == gpu]
                        file.writelines(self.line(metric, node, gpu, faults) for metric in METRICS)
            judged = judge.Program(folder, os.environ).judge(
                {node: [node] for node in self.nodes},
                [Run("compute", tuple(self.nodes), 0, "", 0, "fleet.jsonl", "")])
        assert not judged.failed, judged.failed
        return judged.findings

    def line(self, metric, node, gpu, faults):
        value, unit, spread, noise, count = METRICS[metric]
        draw = self._draws.gauss
        value *= draw(1, spread)
        seen = {"temperature_c": round(draw(HEAT_C, 2)), "power_limit_w": 700, "reasons": POWER_CAP}
        for fault in faults:
            slowed, share = FACTORS.get(fault.kind, ("", 1))
            value *= share if metric == slowed else 1
            if fault.kind == "slow GPU: heat":
                seen.update(temperature_c=84, reasons=POWER_CAP | THERMAL)
            if fault.kind == "power limit":
                seen["power_limit_w"] = 600
        samples = [round(value * draw(1, noise), 4) for _ in range(count)]
        uuid = f"GPU-{node}-{gpu}"
        return judge.text_of({
            "kind": "metric", "metric": metric, "unit": unit, "scope": "gpu", "name": uuid, "ranks": [gpu],
            "hosts": [node], "uuids": [uuid], "backend": "gpu", "board": "NVIDIA H200", "look": 1,
            "samples": samples, "check": "verified", "outcome": "measured", **seen}) + "\n"

    # ---- what came of it ----

    def score(self, result, findings=()):
        """{each of FATES, "wrong nodes", "wrong links": count}."""
        score = dict.fromkeys((*FATES, "wrong nodes", "wrong links"), 0)
        found = isolation.findings(result, "ladder")
        for fault in self.faults:
            class_, by = KINDS[fault.kind]
            score[self.fate(fault, class_, result, found if by is ladder else findings)] += 1
        guilty = {node for fault in self.faults for node in fault.nodes}
        blamed = {each.node for each in (*result.faulty, *result.dead)} | set(result.lost)
        blamed |= {each.nodes[0] for each in findings if each.outcome == FAIL}
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
