"""acceptance.jsonl: fits results/schema.json, and has all that an acceptance says."""

import dataclasses
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import acceptance_samples as samples  # noqa: E402
from support import Folder, read_record  # noqa: E402
from shakedown_launch.acceptance import lines  # noqa: E402
from shakedown_launch.acceptance.report import jsonl  # noqa: E402


class Jsonl(Folder):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "acceptance.jsonl"

    def write(self, acceptance):
        jsonl.write(self.path, acceptance)
        return read_record(self.path)

    def test_records(self):
        lines = self.write(samples.few())
        kinds = [line["kind"] for line in lines]
        self.assertEqual((kinds[0], kinds[-1]), ("run", "end"))
        self.assertEqual(set(kinds), {"run", "stage", "figure", "found", "verdict", "end"})
        self.assertEqual(len({line["run_id"] for line in lines}), 1)
        self.assertFalse([key for line in lines for key, value in line.items()
                          if isinstance(value, dict)])
        self.assertEqual(lines[-1]["exit_code"], 1)
        *_, end = jsonl.records(samples.few(), stopped=True)
        self.assertEqual(end["exit_code"], 5)

    def test_one_verdict_per_node_and_one_of_the_job(self):
        verdicts = [line for line in self.write(samples.few()) if line["kind"] == "verdict"]
        whole = [line for line in verdicts if "stage" not in line]
        self.assertEqual([(line["scope"], line["name"], line["verdict"]) for line in whole],
                         [("node", "n001", "PASS"), ("node", "n002", "FAIL"),
                          ("node", "n003", "INCONCLUSIVE"), ("node", "n004", "PASS"),
                          ("job", "acceptance", "FAIL")])
        self.assertEqual((whole[1]["class"], whole[1]["action"]), ("HARDWARE", "RMA"))
        self.assertEqual([line["cause"] for line in whole[::3]], ["", ""])
        self.assertEqual(whole[2]["missing_stages"], ["collectives"])
        found = [line for line in verdicts if "stage" in line]
        gpus = [samples.node(name).gpus[i].uuid for name, i in
                [("n002", 5), ("n002", 3), ("n004", 0)]]
        self.assertEqual([(line["scope"], line["name"], line["verdict"]) for line in found],
                         [("gpu", gpus[0], "FAIL"), ("gpu", gpus[1], "FAIL"),
                          ("node", "n003", "INCONCLUSIVE"), ("gpu", gpus[2], "WARN"),
                          ("link", "n001-n003", "FAIL")])

    def test_names_of_findings(self):
        for subject, nodes, scope, name in [
                ("rank 1", ("n1",), "rank", "1"), ("link 0->2", ("n1",), "link", "0->2"),
                ("", ("n1", "n2"), "link", "n1,n2"), ("all-reduce", ("n1",), "node", "n1"),
                ("", (), "job", "train"), ("rail 3", (), "rail", "3")]:
            line = lines.finding_line(samples.Finding(
                "train", "FAIL", nodes, "x", samples.INFRASTRUCTURE, subject=subject))
            self.assertEqual((line["scope"], line["name"]), (scope, name))

    def test_figures_and_findings_of_rates_are_as_bin_judge_has_them(self):
        records = self.write(samples.few())
        figure = next(line for line in records if line.get("metric") == samples.ALL_REDUCE)
        self.assertEqual((figure["usual"], figure["limit"], figure["witness"], figure["condition.in_place"],
                          figure["scope"], figure["outcome"]), (478, 0.92 * 478, "reference", "true", "node", "PASS"))
        self.assertEqual(len(figure["samples"]), 5)
        rate, = [line for line in records if line["kind"] == "verdict" and "metric" in line]
        self.assertEqual((rate["metric"], rate["slow_looks"], rate["looks"]), (samples.FP16, 2, 2))
        self.assertEqual([(line["rates"], line["slow_down"]) for line in records if line["kind"] == "found"],
                         [("products", 0.014), ("memory", 0.0382)])

    def test_all_that_a_run_says_of_itself(self):
        run = samples.Run("soak", ("n001", "n002"), 3, samples.STARTED, 7.5, "r", "l", 2,
                          ((1, "n002", "signal 9 (Killed)"),), ("n001",), "killed")
        line = [line for line in self.write(dataclasses.replace(samples.clean(), runs=(run,)))
                if line["kind"] == "stage"]
        self.assertEqual([{key: value for key, value in each.items() if key != "run_id"}
                          for each in line],
                         [{"kind": "stage", "name": "soak", "nodes": ["n001", "n002"],
                           "exit_code": 3, "started": samples.STARTED, "elapsed_s": 7.5,
                           "record": "r", "log": "l", "round": 2, "group": 0, "dead_ranks": [1],
                           "dead_hosts": ["n002"], "dead_causes": ["signal 9 (Killed)"],
                           "lost_hosts": ["n001"], "note": "killed"}])

    def test_all_that_an_acceptance_says_of_itself(self):
        acceptance = samples.few()
        head = self.write(acceptance)[0]
        self.assertEqual((head["tier"], head["started"], head["elapsed_s"], head["tests"],
                          head["rounds"], head["statement"]),
                         (acceptance.tier, acceptance.started, acceptance.seconds,
                          acceptance.tests, acceptance.rounds, acceptance.statement))
        self.assertEqual({key: head[f"settings.{key}"] for key in acceptance.settings},
                         acceptance.settings)
        self.assertEqual(head["backend"], "gpu")

    def test_what_is_not_finite_is_null(self):
        first, *others = samples.clean().figures
        first = dataclasses.replace(first, value=math.nan, samples=(math.inf, 1.0))
        line = next(line for line in self.write(dataclasses.replace(
            samples.clean(), figures=(first, *others))) if line["kind"] == "figure")
        self.assertEqual((line["value"], line["samples"]), (None, [None, 1.0]))

    def test_names_from_hosts(self):
        of = samples.node("n1\n\x1b[2J\udc80")
        names = [line["name"] for line in self.write(
            samples.acceptance([samples.verdict(of, samples.slow(of))]))
            if line.get("scope") == "node" and "stage" not in line]
        self.assertEqual(names, [of.name.replace("\udc80", "?")])  # a byte that is no UTF-8

    def test_a_failed_write_leaves_what_there_was(self):
        self.path.write_text("before")
        bad = dataclasses.replace(samples.clean(), settings={"x": [object()]})
        with self.assertRaises(TypeError):
            jsonl.write(self.path, bad)
        self.assertEqual(self.path.read_text(), "before")
        self.assertEqual(list(self.folder.iterdir()), [self.path])


if __name__ == "__main__":
    import unittest
    unittest.main()
