"""acceptance/judge: findings of all runs, and one verdict per node that fails closed."""

import dataclasses
import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock
from types import SimpleNamespace

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "launch"))
sys.path.insert(0, str(TREE / "tests/launch"))
from acceptance_fakes import run_of  # noqa: E402
from shakedown_launch.acceptance import stages  # noqa: E402
from shakedown_launch.acceptance.judge import judge, verdicts  # noqa: E402
from shakedown_launch.acceptance.ladder import isolation  # noqa: E402
from shakedown_launch.acceptance.model import (  # noqa: E402
    CONFIG, FAIL, HARDWARE, INCONCLUSIVE, INFRASTRUCTURE, PASS, UNKNOWN, WARN, Figure, Finding, Gpu, Node, Run)


class Judge(unittest.TestCase):
    def test_what_is_wrong_with_other_gpus_is_no_reason_against_a_prolog_s_job(self):
        """Of the job's GPUs and of the host it is; another's FAIL, and its program's exit code, only warn."""
        def line(scope, name, check, **more):
            return {"kind": "verdict", "run_id": "r", "scope": scope, "name": name, "verdict": "FAIL",
                    "check": check, "cause": check, "host": "a", **more}
        job_gpus = {"0": "GPU-a", "1": ""}
        unknown = line("gpu", "GPU-b", "serial", verdict="INCONCLUSIVE", severity="UNKNOWN")
        of_job, other, lost, host = (line("gpu", "GPU-a", "ecc"), line("gpu", "GPU-b", "ecc"),
                                     line("gpu", "a GPU 3", "lost"), line("node", "a", "tmp"))
        for lines, outcome in [([of_job, other], "FAIL"), ([other, lost, unknown], "PASS"), ([host], "FAIL")]:
            with tempfile.TemporaryDirectory() as folder:
                with open(f"{folder}/r.jsonl", "w") as file:
                    for each in [{"kind": "run", "run_id": "r", "program": "node_check", "hosts": ["a"]}, *lines,
                                 line("job", "node_check", "", run_id="r"),
                                 {"kind": "end", "run_id": "r", "exit_code": 1}]:
                        print(json.dumps(each), file=file)
                run = Run("inventory", ("a",), 1, "", 1.0, "r.jsonl", "r.log")
                made = judge.Judge(folder, job_gpus=job_gpus)
                found = made.findings(run)
                self.assertEqual(made.outcome(run), outcome)
                self.assertEqual(verdicts.verdicts([Node("a")], [run], found)[0].outcome, outcome)
                self.assertEqual(judge.Judge(folder).outcome(run), "FAIL")
                # What is not known of another's GPU stays what is not known.
                self.assertEqual([each.outcome for each in found if each.check == "serial"], ["UNKNOWN"] * (unknown in lines))

    def judge(self, requested="", **references):
        made = judge.Judge("/nonexistent", [SimpleNamespace(
            name=name, devices=(model,), ranks_per_node=(8,), figures=(), file=f"{name}.json")
            for name, model in references.items()], requested)
        nodes = [Node(name, (Gpu(0, f"GPU-{name}", model=model),))
                 for name, model in [("a", "H200"), ("b", "H100")]]
        with unittest.mock.patch.object(judge.references, "match", lambda known, node, *_: next(
                (each for each in known if node.gpus[0].model in each.devices), None)):
            made.choose(nodes, {"a": 8, "b": 8}, [])
        return made

    def test_each_node_has_the_reference_of_its_model(self):
        made = self.judge(one="H200", two="H100")
        measured = [Figure("compute", (name,), "m", 1.0, "GB/s") for name in "ab"]
        asked = []
        with unittest.mock.patch.object(
                judge.references, "judge",
                lambda figures, reference, requested: asked.append(
                    (reference.name, [each.nodes for each in figures], requested)) or ([], set(), set())):
            made.compared(measured)
        self.assertEqual(asked, [("one", [("a",)], False), ("two", [("b",)], False)])
        self.assertEqual(made.described()["name"], "one, two")

    def test_a_reference_that_fits_nobody(self):
        """Only one that the user named is a reason against a node."""
        for requested, others, found in [("", {"x": "V100"}, []), ("", {"x": "V100", "y": "A100"}, []),
                                         ("refs", {"x": "V100", "y": "A100"}, ["a", "b"])]:
            made = self.judge(requested, **others)
            measured = [Figure("compute", (name,), "m", 1.0, "GB/s") for name in "ab"]
            self.assertEqual([(each.nodes[0], each.class_) for each in made.compared(measured)],
                             [(name, CONFIG) for name in found])
            # A node has it as INCONCLUSIVE or as a warning, not as both.
            self.assertEqual(len(made.unjudged(measured)), 0 if found else 2)
        self.assertEqual(self.judge("x.json", x="V100").described()["name"], "x")

    def test_rates_that_the_program_did_not_judge(self):
        """A reference has rates of this stage, or it is a warning, which --strict counts."""
        runs = [run_of("compute", "a", 3), run_of("compute", "b", 3)]
        measured = [Figure("compute", (name,), "m", 1.0, "GB/s") for name in "ab"]
        both = {"one": "H200", "two": "H100"}
        for references, compares, found, strict in [
                (both, "compute", [], [PASS, PASS]),
                (both, "train", ["a", "b"], [INCONCLUSIVE, INCONCLUSIVE]),
                ({"one": "H200"}, "compute", ["b"], [PASS, INCONCLUSIVE])]:
            made = self.judge(**references)
            with unittest.mock.patch.object(made, "findings", lambda run: [
                    Finding("compute", WARN, run.nodes, "not judged", check="not-judged")]), \
                    unittest.mock.patch.object(judge.references, "judge", lambda figures, *_: (
                        [], {(compares, each.nodes[0]) for each in figures}, set())):
                said = made.all_findings(runs, measured, {})
                self.assertEqual([each.nodes[0] for each in said], found)
                for given, expected in [(False, [PASS, PASS]), (True, strict)]:
                    self.assertEqual(list(outcomes(runs, said, strict=given,
                                                   good=made.judged(runs)).values()), expected)

    def test_nodes_without_a_rate_that_was_judged(self):
        """By the reference or, unless it is strict, by peers."""
        def figures(count, metric="m"):
            return [Figure("compute", ("a",), metric, 1.0, "GB/s", gpu=f"GPU-{i}")
                    for i in range(count)]
        one, strict = {"one": "H200"}, {"strict": True}
        for references, warned, measured, given, said in [
                ({}, "", figures(2), {}, "rates not judged: no reference of this model and count; fewer"),
                (one, "", figures(2), {}, "rates not judged: the reference one has none"),
                (one, "a", figures(2), {}, "rates not judged: compared with figures of the reference "
                 "one that only warn; fewer"),
                (one, "a", figures(3), strict, "rates judged by peers alone: compared with figures of the "
                 "reference one that only warn"),
                ({}, "", figures(3), {}, ""), ({}, "", [], {}, ""),
                ({}, "", figures(3), strict, "rates judged by peers alone: no reference"),
                ({}, "", figures(1, "setting/power_limit"), {}, "")]:
            made = self.judge(**references)
            with unittest.mock.patch.object(judge.references, "judge",
                                            lambda *_, warned=warned: ([], set(), set(warned))):
                made.all_findings([], measured, {})
            found = made.unjudged(measured, **given)
            self.assertEqual([each.cause.startswith(said) for each in found], [True] * bool(said), found)

    def test_rates_of_a_node_are_not_judged_by_those_of_its_ranks(self):
        """Of two nodes of eight GPUs each the rates of GPUs have peers, those of nodes do not."""
        measured = [Figure("compute", (name,), "compute/fp16/burst", 1.0, "TFLOP/s", gpu=f"GPU-{name}{i}")
                    for name in "ab" for i in range(8)]
        of_nodes = [Figure(stage, (name,), f"{stage}/x", 1.0, "images/s")
                    for name in "ab" for stage in ("collectives", "train")]
        made = self.judge()
        self.assertEqual(made.unjudged(measured), [])
        self.assertEqual({(each.nodes, each.cause) for each in made.unjudged([*measured, *of_nodes])}, {
            ((name,), "rates of collectives, train not judged: no reference of this model and count; fewer "
             "than 3 peers") for name in "ab"})

    def test_gpus_of_the_reference(self):
        self.assertEqual(self.judge("x.json", x="V100").gpus(), 8)
        self.assertIsNone(self.judge("", x="V100").gpus())

    def test_what_was_repeated_without_a_lost_node_counts_once(self):
        runs = [run_of("nodes", list("abc"), 3), run_of("nodes", list("ac"), 0, round=1)]
        said = {0: [Finding("nodes", INCONCLUSIVE, ("b",), "lost"),
                    Finding("nodes", INCONCLUSIVE, ("a", "c"), "not finished")], 1: []}
        made = self.judge()
        with unittest.mock.patch.object(made, "findings", lambda run: said[run.round]):
            self.assertEqual([each.nodes for each in made.all_findings(runs, [], {})], [("b",)])

    def test_the_ladder_says_what_its_tests_amount_to(self):
        runs = [run_of(stages.LADDER, list("ab"), 1), run_of(stages.LADDER, ["a"], 0, round=1)]
        wrong = [Finding(stages.LADDER, FAIL, ("a", "b"), "wrong data")]
        once = isolation.Isolation(transient=(isolation.Unresolved(("a", "b"), "passed again"),))
        made = self.judge()
        with unittest.mock.patch.object(made, "findings",
                                        lambda run: [] if run.round else wrong):
            found = made.all_findings(runs, [], {stages.LADDER: once})
            self.assertEqual({(each.outcome, each.check) for each in found},
                             {(INCONCLUSIVE, "isolation")})
            self.assertEqual(made.all_findings(runs, [], {}), wrong)

    def test_a_warning_is_given_once(self):
        twice = [Finding(stage, outcome, ("a",), "shm is small", check="shm")
                 for outcome in (WARN, FAIL) for stage in ("inventory", "node_check")]
        self.assertEqual([(each.stage, each.outcome) for each in judge.once(twice)],
                         [("inventory", WARN), ("inventory", FAIL), ("node_check", FAIL)])


NODES = [Node("a"), Node("b")]


def outcomes(runs, findings=(), **more):
    return {each.node.name: each.outcome
            for each in verdicts.verdicts(NODES, runs, list(findings), **more)}


class Verdicts(unittest.TestCase):
    BOTH = [run_of("soak", "a"), run_of("soak", "b")]

    def test_pass(self):
        self.assertEqual(outcomes(self.BOTH), {"a": PASS, "b": PASS})
        warned = [Finding("soak", WARN, ("a",), "warm")]
        self.assertEqual(outcomes(self.BOTH, warned), {"a": PASS, "b": PASS})
        self.assertEqual(outcomes(self.BOTH, warned, strict=True), {"a": INCONCLUSIVE, "b": PASS})

    def test_strict_spares_what_the_site_accepts(self):
        for outcome in (WARN, UNKNOWN):
            found = Finding("soak", outcome, ("a",), "usual here", check="governor")
            for accepted, strict in [(False, INCONCLUSIVE), (True, PASS)]:
                said = [dataclasses.replace(found, accepted=accepted)]
                self.assertEqual(outcomes(self.BOTH, said)["a"], PASS)
                self.assertEqual(outcomes(self.BOTH, said, strict=True)["a"], strict)

    def test_worst_first(self):
        found = [Finding("soak", WARN, ("a",), "warm"),
                 Finding("soak", INCONCLUSIVE, ("a",), "unknown"),
                 Finding("soak", FAIL, ("a",), "no class"),
                 Finding("soak", FAIL, ("a",), "wrong", HARDWARE, gpu="GPU-1")]
        verdict, _ = verdicts.verdicts(NODES, self.BOTH, found)
        self.assertEqual([each.cause for each in verdict.findings],
                         ["wrong", "no class", "unknown", "warm"])
        self.assertEqual((verdict.outcome, verdict.stages), (FAIL, {"soak": FAIL}))

    def test_a_stage_without_a_result(self):
        """No job was started, or none ended."""
        verdict, _ = verdicts.verdicts(NODES, self.BOTH, [], {"a": ["soak", "train", "links"]},
                                       {"a": "lost in soak"})
        self.assertEqual((verdict.outcome, verdict.missing), (INCONCLUSIVE, ("train", "links")))
        self.assertEqual(verdict.findings[0].cause, "not run: train, links: lost in soak")
        self.assertEqual(outcomes([run_of("soak", "b")], expected={"a": []}),
                         {"a": INCONCLUSIVE, "b": PASS})

    def test_a_code_that_nothing_explains(self):
        """A crash, a time-out, a record that says nothing."""
        for code, outcome in [(1, FAIL), (2, INCONCLUSIVE), (3, INCONCLUSIVE), (4, INCONCLUSIVE),
                              (5, INCONCLUSIVE), (137, INCONCLUSIVE)]:
            runs = [run_of("soak", "a", code, note="did not end within 5 s"), self.BOTH[1]]
            self.assertEqual(outcomes(runs), {"a": outcome, "b": PASS}, code)
            other = [Finding("train", FAIL, ("b",), "another stage's, another node's")]
            self.assertEqual(outcomes(runs, other)["a"], outcome)
        judged = [Finding("soak", WARN, ("a",), "rates not judged", check="not-judged")]
        self.assertEqual(outcomes([run_of("soak", "a", 3), self.BOTH[1]], judged)["a"], PASS)

    def test_an_unknown_outcome_is_no_pass(self):
        self.assertEqual(outcomes(self.BOTH, [Finding("soak", "FINE", ("a",), "")])["a"],
                         INCONCLUSIVE)

    def test_nodes_that_fail_together(self):
        together = [run_of("all_reduce", ("a", "b"), 1)]
        untraced = [Finding("all_reduce", FAIL, ("a", "b"), "wrong elements")]
        self.assertEqual(outcomes(together, untraced), {"a": INCONCLUSIVE, "b": INCONCLUSIVE})
        self.assertEqual(outcomes(together), {"a": INCONCLUSIVE, "b": INCONCLUSIVE})
        traced = [*untraced, Finding("all_reduce", FAIL, ("b",), "fails with known-good nodes")]
        self.assertEqual(outcomes(together, traced), {"a": PASS, "b": FAIL})
        link = [*untraced, Finding("all_reduce", FAIL, ("a", "b"), "link", INFRASTRUCTURE)]
        self.assertEqual(outcomes(together, link), {"a": PASS, "b": PASS})
        found = isolation.findings(isolation.Isolation(unresolved=(
            isolation.Unresolved(("a", "b"), "no test of any of them passed"),)), "all_reduce")
        self.assertEqual(outcomes(together, found), {"a": INCONCLUSIVE, "b": INCONCLUSIVE})


if __name__ == "__main__":
    unittest.main()
