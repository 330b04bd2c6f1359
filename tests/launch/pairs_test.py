"""acceptance/pairs: two values that differ by far are no pass of either: which is wrong is not known."""

import dataclasses
import json
import pathlib
import sys
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / "launch"), str(TREE / "tests/launch"), str(TREE / "tests/simulation")]
import fleet as simulation  # noqa: E402
from acceptance_fakes import run_of  # noqa: E402
from shakedown_launch.acceptance.judge import judge, pairs, peers, verdicts  # noqa: E402
from shakedown_launch.acceptance.model import INCONCLUSIVE, Figure, Node  # noqa: E402

TRAIN, SOAK = "train/resnet50/fp16/64/images_per_s_per_rank", "soak/fp16/steady"


def of_node(node, value, metric=TRAIN, samples=(), unit="images/s", rank=None, **more):
    more.setdefault("conditions", {"backend": "gpu"})
    explains = {} if rank is None else {"rank": rank}
    return Figure(metric.split("/")[0], (node,), metric, value, unit, samples=samples,
                  explains=explains, higher_is_better=unit != "us", **more)


def on_cpu(node, factor, *metrics, ranks=1):
    made = [of_node(node, 100 * factor, metric, rank=rank, conditions={"backend": "cpu"})
            for metric in metrics for rank in range(ranks)]
    for each in made:
        each.explains["shares"] = f"{ranks} ranks on 2 cores of {node}" if ranks > 2 else None
    return made


class Pairs(unittest.TestCase):
    def nodes(self, figures, judged=()):
        return [each.nodes[0] for each in pairs.judge(figures, judged)]

    def test_two_nodes_that_differ_by_far(self):
        measured = [of_node("n1", 96.3), of_node("n2", 11.41)]
        found = pairs.judge(measured)
        self.assertEqual([(each.nodes, each.outcome, each.stage) for each in found],
                         [((name,), INCONCLUSIVE, "train") for name in ("n1", "n2")])
        self.assertIn("n2 is 8.4 times slower than n1, and with two it is not known which is wrong; "
                      f"{TRAIN}: 11.41 against 96.3 images/s", found[0].cause)
        self.assertIn("a third one, or with --reference", found[0].action)
        runs = [run_of("train", name) for name in ("n1", "n2")]
        every = judge.Judge("").all_findings(runs[:0], measured, {})
        self.assertEqual({each.outcome for each in verdicts.verdicts(
            [Node("n1"), Node("n2")], runs, every)}, {INCONCLUSIVE})

    def test_what_differs_enough(self):
        for slow, fast, samples, apart in [
                (81, 100, ((), ()), False), (79, 100, ((), ()), True), (0, 100, ((), ()), True),
                (70, 100, ((40, 70, 99), (60, 100, 130)), False),  # each varies by as much
                (70, 100, ((69, 70, 71), (99, 100, 101)), True)]:
            figures = [of_node("n1", slow, samples=samples[0]), of_node("n2", fast, samples=samples[1])]
            self.assertEqual(bool(pairs.judge(figures)), apart, (slow, samples))

    def test_what_is_not_compared(self):
        two = [of_node("n1", 50), of_node("n2", 100)]
        self.assertEqual(self.nodes([*two, of_node("n3", 100)]), [])  # peers judge them
        self.assertEqual(self.nodes(two, {("train", "n1"), ("train", "n2")}), [])  # a reference did
        self.assertEqual(self.nodes(two, {("train", "n1")}), ["n2"])
        self.assertEqual(self.nodes([of_node("n1", 9, "link/latency", unit="us"),
                                     of_node("n2", 2, "link/latency", unit="us")]), [])
        self.assertEqual(self.nodes([two[0], of_node("n2", 100, conditions={"backend": "gpu", "size": 1})]), [])

    def test_two_gpus_of_one_node(self):
        found, = pairs.judge([of_node("n1", value, "compute/fp16/burst", gpu=f"GPU-{value:08}")
                              for value in (300, 600)])
        self.assertIn("n1 GPU 00000300 is 2.0 times slower than n1 GPU 00000600", found.cause)

    def test_a_finding_per_stage_and_node(self):
        figures = [of_node(name, value, f"collective/{i}") for i in (1, 2, 3)
                   for name, value in [("n1", 100), ("n2", 10 * i)]]
        found = pairs.judge(figures)
        self.assertEqual([each.nodes[0] for each in found], ["n1", "n2"])
        self.assertIn("n2 is 10.0 times slower than n1", found[0].cause)
        self.assertIn("collective/1: 10 against 100 images/s (the most of 3 figures)", found[0].cause)

    def test_a_slow_node_of_two_on_the_cpu(self):
        """One stage may be what other work left of the cores."""
        for factor, metrics, ranks, found in [(1 / 8, [TRAIN, SOAK], 1, 4), (1 / 3, [TRAIN, SOAK], 2, 4),
                                              (1 / 3, [TRAIN, SOAK], 3, 4),
                                              (0.6, [TRAIN, SOAK], 1, 0), (1 / 8, [TRAIN], 1, 0)]:
            figures = [*on_cpu("n1", 1, *metrics, ranks=ranks), *on_cpu("n2", factor, *metrics, ranks=ranks)]
            self.assertEqual(len(pairs.judge(figures)), found, (factor, metrics))
        either = [*on_cpu("n1", 1, TRAIN), *on_cpu("n2", 0.3, TRAIN),
                  *on_cpu("n1", 0.3, SOAK), *on_cpu("n2", 1, SOAK)]
        self.assertEqual(pairs.judge(either), [])
        self.assertEqual(pairs.judge([*on_cpu("n1", 1, TRAIN, SOAK, ranks=2)]), [])
        links = [f"collective/{i}" for i in range(3)], [f"link/{i}" for i in range(3)]
        for few in links:
            self.assertEqual(pairs.judge([*on_cpu("n1", 1, TRAIN, *few), *on_cpu("n2", 0.1, TRAIN, *few)]), [])

    def test_two_healthy_h100s(self):
        """As measured: results/0.2/h100."""
        figures = []
        for line in (TREE / "results/0.2/h100/acceptance/acceptance.jsonl").read_text().splitlines():
            line = json.loads(line)
            if line["kind"] == "figure":
                conditions = {key: str(value) for key, value in line.items() if key.startswith("conditions.")}
                figures.append(Figure(line["stage"], tuple(line["nodes"]), line["metric"], line["value"], line["unit"],
                                      line.get("gpu", ""), line["higher_is_better"], tuple(line["samples"]), conditions))
        self.assertEqual(sum(len(each) == 2 for each in peers.peers_of(figures)), 43)
        self.assertEqual(pairs.judge(figures), [])
        slow = [dataclasses.replace(each, value=each.value / 2, samples=tuple(value / 2 for value in each.samples))
                if each.gpu == figures[0].gpu else each for each in figures]
        self.assertEqual({each.stage for each in pairs.judge(slow)}, {each.stage for each in figures if each.gpu})

    def test_healthy_nodes_differ_less(self):
        """With the spread that healthy hardware was measured to have."""
        for seed in range(300):
            figures = simulation.Fleet((1, 2)[seed % 2], seed).figures()
            self.assertEqual(pairs.judge(figures), [], seed)


if __name__ == "__main__":
    unittest.main()
