"""acceptance/judge: findings of all runs and one verdict per node that fails closed; with a played bin/judge, and with
the real one on nodes of two simulated H100 whose programs write what they measure."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import tempfile
import unittest
import unittest.mock

from tree import TREE
import transcript
from support import write_script
from acceptance_fakes import FakeFleet, FakeProgram, conduct, run_of
from shakedown_launch.acceptance import judge, stages
from shakedown_launch.acceptance.campaign import fleet
from shakedown_launch.acceptance.ladder import isolation
from shakedown_launch.acceptance.model import (  # noqa: F401, in judge_verdicts.txt
    FAIL, HARDWARE, INCONCLUSIVE, INFRASTRUCTURE, PASS, UNKNOWN, WARN, Facts, Finding, Node, Rounds,
    Run)


class Judge(unittest.TestCase):
    def test_what_is_wrong_with_other_gpus_is_no_reason_against_a_prolog_s_job(self):
        """Of the job's GPUs and of the host it is; another's FAIL, and its program's exit code, only warn."""
        def line(scope, name, check, **more):
            return {"kind": "verdict", "run_id": "r", "scope": scope, "name": name, "verdict": "FAIL",
                    "check": check, "cause": check, "host": "a", **more}
        job_gpus = {"0": "GPU-a", "1": ""}
        unknown = line("gpu", "GPU-b", "serial", verdict="UNKNOWN")
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
                made._judging = FakeProgram(folder)
                self.assertEqual(made.conclude(Facts([Node("a")], [run]))[0][0].outcome, outcome)
                self.assertEqual(judge.Judge(folder).outcome(run), "FAIL")
                # What is not known of another's GPU stays what is not known.
                self.assertEqual([each.outcome for each in found if each.check == "serial"], ["UNKNOWN"] * (unknown in lines))

    def test_what_was_repeated_without_a_lost_node_counts_once(self):
        runs = [run_of("nodes", list("abc"), 3), run_of("nodes", list("ac"), 0, round=1)]
        said = {0: [Finding("nodes", INCONCLUSIVE, ("b",), "lost"),
                    Finding("nodes", INCONCLUSIVE, ("a", "c"), "not finished")], 1: []}
        made = judge.Judge("/nonexistent")
        with unittest.mock.patch.object(made, "findings", lambda run: said[run.round]):
            self.assertEqual([each.nodes for each in made.all_findings(Facts([], runs))], [("b",)])

    def test_the_ladder_says_what_its_tests_amount_to(self):
        runs = [run_of(stages.LADDER, list("ab"), 1), run_of(stages.LADDER, ["a"], 0, round=1)]
        wrong = [Finding(stages.LADDER, FAIL, ("a", "b"), "wrong data")]
        once = isolation.Isolation(transient=(isolation.Unresolved(("a", "b"), "passed again"),))
        made = judge.Judge("/nonexistent")
        with unittest.mock.patch.object(made, "findings",
                                        lambda run: [] if run.round else wrong):
            found = made.all_findings(Facts([], runs, isolations={stages.LADDER: once}))
            self.assertEqual({(each.outcome, each.check) for each in found},
                             {(INCONCLUSIVE, "isolation")})
            self.assertEqual(made.all_findings(Facts([], runs)), wrong)

    def test_a_warning_is_given_once(self):
        twice = [Finding(stage, outcome, ("a",), "shm is small", check="shm")
                 for outcome in (WARN, FAIL) for stage in ("inventory", "node_check")]
        self.assertEqual([(each.stage, each.outcome) for each in judge.once(twice)],
                         [("inventory", WARN), ("inventory", FAIL), ("node_check", FAIL)])


NODES = [Node("a"), Node("b")]
GROUPS = [run_of(stages.LADDER, [f"n{i}", f"n{i + 1}"], record=f"all_reduce/{i}.jsonl") for i in (0, 2, 4)]


def figure(outcome, nodes):
    return {"kind": "figure", "metric": "collective/all_reduce/busbw", "unit": "GB/s", "value": 300.0,
            "samples": [300.0], "scope": "group", "name": "g", "nodes": nodes, "stage": stages.LADDER,
            "outcome": outcome}


@contextlib.contextmanager
def played(*lines, failed=""):
    """A judge whose bin/judge adds these lines to its record, or has no result; of runs without findings and records."""
    with tempfile.TemporaryDirectory() as folder:
        made = judge.Judge(folder, FakeProgram(folder, lines, failed))
        made.findings = made.records = lambda run: []
        yield made


def round_of(*rates, said=()):
    """The outcomes of three groups, the last of which has these rates; `said`: what its run says."""
    with played(*(figure(each, GROUPS[2].nodes) for each in rates)) as made:
        made.findings = lambda run: said if run is GROUPS[2] else []
        return made.round(GROUPS, GROUPS, Rounds())[0]


SOAK_A, SOAK_B = run_of("soak", "a"), run_of("soak", "b")


def of_node(verdict, cause="", **more):
    """A verdict of bin/judge on a."""
    return {"kind": "verdict", "scope": "node", "name": "a", "verdict": verdict, "cause": cause, **more}


def together(outcome, nodes, class_=""):
    return Finding("all_reduce", outcome, nodes, "wrong elements", class_)


def concluded(runs, *findings, lines=(), failed="", **more):
    """Of nodes a and b: outcome, stages, what is missing, and causes; then what blames neither."""
    with played(*lines, failed=failed) as made:
        verdicts, others, _ = made.conclude(Facts(NODES, runs, findings, **more))
    return "\n".join([*("; ".join(filter(None, [
        f"{each.node.name} {each.outcome}", ", ".join(f"{stage} {outcome}" for stage, outcome in each.stages.items()),
        f"missing {', '.join(each.missing)}" * bool(each.missing), *(f"{found.cause or 'no cause'} [{found.check}]" for found in each.findings)]))
        for each in verdicts), *(f"{','.join(each.nodes)}: {each.outcome} {each.subject}: {each.cause}" for each in others)])


class Case(unittest.TestCase):
    def judge(self, *lines, **more):
        context = played(*lines, **more)
        self.addCleanup(context.__exit__, None, None, None)
        return context.__enter__()


class OfGroups(Case):
    """The outcomes that the ladder gets."""

    def test_groups_that_passed_so_far_are_peers(self):
        """Those that were slow are no measure, nor is a group one of itself."""
        made = self.judge(figure(FAIL, GROUPS[0].nodes))
        made.records = lambda run: [{"kind": "run", "hosts": ["n0.site"]}]
        other = run_of("soak", "n0", record="soak")
        again = run_of(stages.LADDER, GROUPS[1].nodes, round=1, record="all_reduce/again.jsonl")
        _, rounds = made.round(GROUPS, [other, *GROUPS], Rounds())
        made.round([again], [other, *GROUPS, again], rounds)
        for (options, runs), listed in zip(made._judging.asked, [GROUPS, [GROUPS[2], again]]):
            self.assertEqual(options, {"--stage": stages.LADDER})
            self.assertEqual(runs[0], {"kind": "node", "name": "n0", "hosts": ["n0.site"]})
            self.assertEqual([line["record"] for line in runs if line["kind"] == "stage"],
                             [run.record for run in listed])

    def test_what_measures_no_rates_is_not_judged(self):
        made = self.judge()
        self.assertEqual(made.round([run_of("nodes", ["a", "b"])], [run_of("nodes", ["a", "b"])], Rounds())[0], [PASS])
        self.assertEqual(made._judging.asked, [])

    def test_a_round_without_a_record_has_no_rates_to_judge(self):
        """As where a node was lost; bin/judge would refuse it, and no node would pass."""
        made = self.judge(failed="has no stage of that name")
        made.records = lambda run: [{"kind": "unreadable", "line": 0, "cause": "no such file"}]
        _, rounds = made.round(GROUPS, GROUPS, Rounds())
        self.assertEqual((made._judging.asked, rounds.failed), ([], ""))

    def test_without_a_result_of_bin_judge_its_nodes_are_inconclusive(self):
        made = self.judge(failed="bin/judge ended with signal 11")
        outcomes, rounds = made.round(GROUPS, GROUPS, Rounds())
        self.assertEqual(outcomes, [PASS] * 3)
        found = made.all_findings(Facts([], GROUPS, (), {stages.LADDER: isolation.Isolation()}, rounds))
        self.assertEqual({(each.nodes, each.outcome) for each in found},
                         {((f"n{i}",), INCONCLUSIVE) for i in range(6)})

    def test_groups_of_the_screen_that_passed_are_judged_and_the_others_shown(self):
        """What the ladder made of these is its conclusion."""
        made = self.judge(figure(FAIL, GROUPS[2].nodes), figure(PASS, GROUPS[0].nodes))
        again = run_of(stages.LADDER, GROUPS[2].nodes, round=1, record="all_reduce/again.jsonl")
        _, rounds = made.round(GROUPS, GROUPS, Rounds())
        _, rounds = made.round([again], [*GROUPS, again], rounds)
        made._judging.lines = [figure(PASS, GROUPS[0].nodes)]
        _, _, judged = made.conclude(Facts([], [*GROUPS, again], (), {stages.LADDER: isolation.Isolation()}, rounds))
        runs = made._judging.asked[-1][-1]
        self.assertEqual([line["record"] for line in runs if line["kind"] == "stage"],
                         [run.record for run in GROUPS[:2]])
        self.assertEqual([each.nodes for each in judged.figures], [GROUPS[0].nodes, GROUPS[2].nodes])


class Verdicts(Case):
    def test_what_bin_judge_is_told(self):
        runs = [SOAK_A, SOAK_B, run_of("nodes", ["a", "b"], round=0, record="first"),
                run_of("nodes", ["a", "b"], round=1, record="last")]
        warm = Finding("soak", WARN, ("a",), "warm", gpu="GPU-1", check="heat")
        link = Finding("all_reduce", FAIL, ("a", "b"), "each side passes", INFRASTRUCTURE)  # the job's
        made = self.judge()
        made.conclude(Facts(NODES, runs, (warm, link), rates=["products"]), lambda each: dataclasses.replace(each, accepted=True))
        (options, lines), = made._judging.asked
        self.assertEqual(options, {"--rates": "products"})
        self.assertEqual([line["nodes"] for line in lines if line["kind"] == "verdict"], [["a"], []])
        self.assertEqual([(line["name"], line["hosts"]) for line in lines if line["kind"] == "node"],
                         [("a", ["a"]), ("b", ["b"])])
        self.assertEqual([line["record"] for line in lines if line["kind"] == "stage"],
                         ["soak/r.jsonl", "soak/r.jsonl", "last"])  # again without lost nodes
        verdict, _ = [line for line in lines if line["kind"] == "verdict"]
        self.assertEqual(verdict, {
            "kind": "verdict", "stage": "soak", "scope": "gpu", "name": "GPU-1", "gpu": "GPU-1", "verdict": "WARN",
            "nodes": ["a"], "cause": "warm", "check": "heat", "accepted": True})

    def test_a_record_with_a_line_that_is_none_is_not_judged(self):
        """bin/judge would have no result of any node."""
        made = self.judge()
        made.records = lambda run: [{"kind": "unreadable", "line": 3, "cause": "no JSON"}] \
            if run.nodes == ("a",) else [{"kind": "run", "hosts": ["b.site", "b.site"]}]
        made.conclude(Facts(NODES, [run_of("soak", name, record=name) for name in "ab"]))
        lines = made._judging.asked[0][-1]
        self.assertEqual([line["record"] for line in lines if line["kind"] == "stage"], ["b"])
        self.assertEqual([line["hosts"] for line in lines if line["kind"] == "node"], [["a"], ["b.site"]])


class Program(unittest.TestCase):
    """bin/judge as a process."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def script(self, text):
        write_script(f"{self.folder}/judge", text)
        return judge.Program(self.folder, {**os.environ, "SHAKEDOWN_BIN": self.folder},
                               ("--reference", "/r.json"), True)

    def test_its_line(self):
        made = self.script('echo "$@" > "$1/said"; echo "{}" > "$1/judged.jsonl"')
        made.judge({}, [], (), ["products", "memory"], "all_reduce")
        with open(os.path.join(self.folder, "said")) as file:
            self.assertEqual(file.read().split(), [
                self.folder, "--reference", "/r.json", "--record", f"{self.folder}/judged.jsonl", "--strict", "--rates",
                "products,memory", "--stage", "all_reduce"])

    def test_a_full_disk(self):
        with unittest.mock.patch.object(judge, "write_runs", side_effect=OSError(28, "No space left on device")):
            self.assertEqual(self.script("").judge({}, []).failed, "runs.jsonl: No space left on device")

    def test_how_it_ends(self):
        line = json.dumps({"kind": "verdict", "scope": "node", "name": "a", "verdict": "PASS", "cause": ""})
        for text, why in [
                (f"echo '{line}' > $1/judged.jsonl", ""), (f"echo '{line}' > $1/judged.jsonl; exit 1", ""),
                (f"echo '{line}' > $1/judged.jsonl; exit 3", ""),
                ("echo error: limits.json: no JSON >&2; exit 2", "limits.json: no JSON"),
                (f"echo '{line}' > $1/judged.jsonl; echo error: judged.jsonl: No space left >&2; exit 3", "No space left"),
                ("exit 4", "bin/judge ended with exit code 4"), ("kill -SEGV $$", "bin/judge ended with signal 11"),
                ("sleep 9", "bin/judge did not end within 0 s"), ("", "cannot be read: FileNotFoundError"),
                ("echo '{' > $1/judged.jsonl", "cannot be read: JSONDecodeError"),
                ('echo "{\\"kind\\": \\"figure\\"}" > $1/judged.jsonl', "cannot be read: KeyError")]:
            judged = self.script(text).judge({}, [], limit=0.4 if "sleep" in text else 60)
            self.assertIn(why, judged.failed, text)
            self.assertEqual((bool(judged.failed), bool(judged.nodes)), (bool(why), not why), text)

H100 = "NVIDIA H100 80GB HBM3"
# class: metric, unit, value, what the device's wires can do (0: unknown), samples
OF_GPUS = {"products": ("product/fp16/flop_per_cycle_sm", "FLOP/cycle/SM", 4002, 0, 12),
           "memory": ("memory/copy", "GB/s", 3021, 3352, 5),
           "host_link": ("host_link/to_device/alone", "GB/s", 55.3, 63, 20)}
OF_NODES = {"links": ("link/copy_engine/one_way", "GB/s", 397, 450, 5),
            "collectives": ("collective/all_reduce/busbw", "GB/s", 478, 0, 5),
            "training": ("train/step_ms", "ms", 25.8, 0, 30)}


ACROSS = "groups"  # collectives over several nodes


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
        (self.path / record).write_text("".join(judge.text_of({"run_id": "r", **line}) + "\n" for line in lines))
        return run_of(task.stage, task.nodes, code, record, round=task.round, group=task.group)

    def metrics(self, task, rates, hosts, uuids):
        def lines(gpu, **about):
            name = ACROSS if len(task.nodes) > 1 else rates
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


def accepted(count, slower=(), like_good=False):
    """What is concluded of simulated nodes. `like_good`: with the folder of an acceptance of a good node as the reference."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as good:
        if like_good:
            conduct(Nodes(good, 1, {}), stages.QUICK, "gpu", judge.Judge(good), ranks=2)
        made = judge.Judge(folder, judge.Program(folder, os.environ, ["--reference", good] if like_good else []))
        one = conduct(Nodes(folder, count, dict(slower)), stages.QUICK, "gpu", made, ranks=2)
        verdicts, others, judged = made.conclude(one.facts())
    found = [f"{each.outcome} {','.join(each.nodes)} {each.gpu or each.subject}, stage {each.stage}, {each.class_ or 'no class'}: "
             f"{each.cause}: {each.action}" for each in [*(each for of in verdicts for each in of.findings), *others]]
    return "\n".join([
        ", ".join(f"{each.node.name} {each.outcome}" for each in verdicts),
        *(re.sub(r", \d{4}-\d\d-\d\d|: accumulate [^:]*", "", each) for each in found),
        f"judged in {', '.join(sorted({each.stage for each in judged.figures}))}; "
        f"what would have been found: {', '.join(dict.fromkeys(rates for rates, *_ in judged.found))}"])


class Judged(unittest.TestCase):
    def test_judged(self):
        transcript.check(self, TREE / "tests/launch/judge.txt", lambda given: eval(f"accepted({given})", dict(globals())))

    def test_concluded(self):
        transcript.expressions(self, TREE / "tests/launch/judge_verdicts.txt", globals())


if __name__ == "__main__":
    unittest.main()
