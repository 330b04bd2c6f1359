"""launch/acceptance with the real bin/judge, on nodes of two simulated H100 whose programs write what they
measure: no GPU passes unjudged, and a slow one is named."""

import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from acceptance_fakes import FakeFleet, conduct, run_of  # noqa: E402
from shakedown_launch.acceptance import stages  # noqa: E402
from shakedown_launch.acceptance.campaign import fleet  # noqa: E402
from shakedown_launch.acceptance.judge import judge, program  # noqa: E402
from shakedown_launch.acceptance.model import (  # noqa: E402
    FAIL, HARDWARE, INCONCLUSIVE, INFRASTRUCTURE, NOT_JUDGED, PASS, WARN)

H100 = "NVIDIA H100 80GB HBM3"
# class: metric, unit, value, what the device's wires can do (0: unknown), samples
OF_GPUS = {"products": ("product/fp16/flop_per_cycle_sm", "FLOP/cycle/SM", 4002, 0, 12),
           "memory": ("memory/copy", "GB/s", 3021, 3352, 5),
           "host_link": ("host_link/to_device/alone", "GB/s", 55.3, 63, 20)}
OF_NODES = {"links": ("link/copy_engine/one_way", "GB/s", 397, 450, 5),
            "collectives": ("collective/all_reduce/busbw", "GB/s", 478, 0, 5),
            "training": ("train/step_ms", "ms", 25.8, 0, 30)}


GROUPS = "groups"  # collectives over several nodes


class Nodes(FakeFleet):
    """`slower`: {(node, GPU or None, class of rates): factors of time, one per look}."""

    def __init__(self, folder, count, slower):
        super().__init__([f"n{i + 1}" for i in range(count)])
        self.path, self.slower = pathlib.Path(folder), slower

    def run(self, tasks, tick):
        self.tasks += tasks
        return list(map(self.run_one, tasks))

    def run_one(self, task):
        hosts = [f"{node}.site" for node in task.nodes for _ in range(2 if task.ranks > 1 else 1)]
        uuids = [f"GPU-{node}-{i}" for node in task.nodes for i in range(2)]
        lines = [{"kind": "run", "program": task.words[0], "hosts": hosts, "gpu_uuids": uuids[:len(hosts)]}]
        if task.stage == stages.INVENTORY:
            lines += [{"kind": "health", "host": hosts[0], "uuid": uuid, "index": i, "model": H100}
                      for i, uuid in enumerate(uuids)]
        measures = stages.named(task.stage).rates
        for rates in measures:
            lines += self.metrics(task, rates, hosts, uuids)
        code, more = (3, {"verdict": INCONCLUSIVE, "check": "rates"}) if measures else (0, {"verdict": PASS})
        lines += [{"kind": "verdict", "scope": "job", "name": task.words[0], "cause": "", **more},
                  {"kind": "end", "exit_code": code, "elapsed_s": 1}]
        record = f"{fleet.place_of(task)}.jsonl"
        (self.path / record).parent.mkdir(parents=True, exist_ok=True)
        (self.path / record).write_text("".join(program.text_of({"run_id": "r", **line}) + "\n" for line in lines))
        return run_of(task.stage, task.nodes, code, record, round=task.round, group=task.group)

    def metrics(self, task, rates, hosts, uuids):
        def lines(gpu, **about):
            name = GROUPS if len(task.nodes) > 1 else rates
            factors = [factors for (node, of_gpu, of_rates), factors in self.slower.items()
                       if (of_gpu, of_rates) == (gpu, name) and node in task.nodes]
            for look, factor in enumerate(factors[0] if factors else [1], 1):
                yield metric_line(rates, factor, look, about)
        if rates in OF_GPUS:
            for rank, uuid in enumerate(uuids):
                yield from lines(rank, scope="gpu", name=uuid, ranks=[rank], hosts=[hosts[rank]], uuids=[uuid],
                                 **{"condition.manner": task.stage})
        elif rates == "links":
            yield from lines(None, scope="link", name="0->1", ranks=[0, 1], hosts=hosts, uuids=uuids,
                             path_class="nvswitch")
        else:
            yield from lines(None, scope="group" if len(task.nodes) > 1 else "node", name=",".join(task.nodes),
                             ranks=list(range(len(hosts))), hosts=hosts, **{"condition.world_size": str(len(hosts))})


def metric_line(rates, factor, look, about):
    metric, unit, value, peak, count = {**OF_GPUS, **OF_NODES}[rates]
    value *= factor if unit == "ms" else 1 / factor
    return {"kind": "metric", "metric": metric, "unit": unit, "backend": "gpu", "board": H100,
            "pci_device_id": "10de:2330", "compute_capability": "9.0", "look": look, "check": "verified",
            "outcome": "measured", "samples": [value * (1 + 0.0002 * (i % 3 - 1)) for i in range(count)],
            **({"peak": peak} if peak else {}), **about}


class Judged(unittest.TestCase):
    def accept(self, count, slower=(), reference=""):
        """{node: outcome}; then self.verdicts, self.others, self.judged."""
        with tempfile.TemporaryDirectory() as folder:
            made = judge.Judge(folder, program.Program(
                folder, os.environ, ["--reference", reference] if reference else []))
            one = conduct(Nodes(folder, count, dict(slower)), stages.QUICK, "gpu", made, ranks=2)
            self.verdicts, self.others, self.judged = made.conclude(one.facts())
        self.isolations = one.isolations
        return {each.node.name: each.outcome for each in self.verdicts}

    def findings(self, outcome):
        return [each for verdict in self.verdicts for each in verdict.findings if each.outcome == outcome]

    def test_healthy_nodes(self):
        self.assertEqual(self.accept(3), dict.fromkeys(("n1", "n2", "n3"), PASS), self.verdicts)
        self.assertEqual((self.others, self.findings(WARN)), ([], []))
        self.assertLessEqual({"products", "memory", "host_link"}, {rates for rates, *_ in self.judged.found})
        self.assertEqual({each.stage for each in self.judged.figures},
                         {"compute", "links", "collectives", "train", "soak", stages.LADDER})

    def test_one_gpu_of_two_at_a_quarter_of_its_speed(self):
        """It passed, as two devices had no peers."""
        for rates in OF_GPUS:
            self.assertEqual(self.accept(1, {("n1", 1, rates): [4] * 4}), {"n1": FAIL})
            found = self.findings(FAIL)
            self.assertEqual({each.gpu for each in found}, {"GPU-n1-1"}, rates)
            self.assertEqual({each.class_ for each in found}, {INFRASTRUCTURE if rates == "host_link" else HARDWARE})
            self.assertTrue(all(each.action and each.check == OF_GPUS[rates][0] for each in found))
            self.assertEqual(self.verdicts[0].stages["compute"], FAIL)

    def test_a_class_of_rates_without_a_witness(self):
        """Of one node, where no reference has its conditions; the folder of an acceptance is one."""
        self.assertEqual(self.accept(1), {"n1": INCONCLUSIVE})
        self.assertEqual({each.check for each in self.findings(INCONCLUSIVE)}, {NOT_JUDGED})
        self.assertTrue(all("--record-reference" in each.action for each in self.findings(INCONCLUSIVE)))
        with tempfile.TemporaryDirectory() as good:
            made = Nodes(good, 1, {})
            conduct(made, stages.QUICK, "gpu", judge.Judge(good), ranks=2)
            self.assertEqual(self.accept(1, reference=good), {"n1": PASS}, self.verdicts)
            self.assertIn("training", {rates for rates, *_ in self.judged.found})
            self.assertEqual(self.accept(1, {("n1", None, "training"): [1.2, 1.2]}, good), {"n1": FAIL})

    def test_slow_in_one_of_two_looks(self):
        self.assertEqual(self.accept(3, {("n2", 1, "products"): [1.1, 1]})["n2"], PASS)
        found, = self.findings(WARN)
        self.assertEqual((found.gpu, found.slow_looks, found.looks), ("GPU-n2-1", 1, 2))

    def test_two_nodes_of_which_one_trains_eight_times_slower(self):
        """Which of them is wrong is not known."""
        self.assertEqual(self.accept(2, {("n2", None, "training"): [8, 8]}), {"n1": INCONCLUSIVE, "n2": INCONCLUSIVE})
        self.assertEqual({each.nodes[0] for each in self.findings(INCONCLUSIVE) if "train/step_ms" in each.cause},
                         {"n1", "n2"})

    def test_a_port_at_half_its_rate_is_traced(self):
        """Within its node all is well; by groups of other nodes it is found."""
        found = self.accept(12, {("n5", None, GROUPS): [2, 2]})
        self.assertEqual([name for name, outcome in found.items() if outcome != PASS], ["n5"], self.isolations)
        self.assertEqual([(each.stage, each.class_) for each in self.findings(FAIL)], [(stages.LADDER, INFRASTRUCTURE)])


if __name__ == "__main__":
    unittest.main()
