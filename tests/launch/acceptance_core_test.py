"""launch/acceptance without ranks: tiers and options, which jobs run on which nodes, who is left out,
and one verdict per node that fails closed."""

import contextlib
import dataclasses
import errno
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from types import SimpleNamespace

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "launch"))
from shakedown_launch import gpus, job, places  # noqa: E402
from shakedown_launch.acceptance import main, options, stages  # noqa: E402
from shakedown_launch.acceptance.campaign import campaign, fleet, progress  # noqa: E402
from shakedown_launch.acceptance.evidence import inventory  # noqa: E402
from shakedown_launch.acceptance.judge import judge, verdicts  # noqa: E402
from shakedown_launch.acceptance.ladder import isolation  # noqa: E402
from shakedown_launch.acceptance.model import (FAIL, HARDWARE, INCONCLUSIVE,  # noqa: E402
                                               INFRASTRUCTURE, PASS, WARN, Figure, Finding, Gpu,
                                               Node, Run)


def names(chosen):
    return [stage.name for stage in chosen]


class Stages(unittest.TestCase):
    def test_tiers_fit_their_time(self):
        """The sum of the estimates, and what 8 GPUs need for the start of each program."""
        for tier, most in [(stages.QUICK, 60), (stages.DEFAULT, 480), (stages.PROLOG, 20)]:
            settings = stages.Settings(tier, stages.GPU)
            chosen = stages.chosen(settings, stages.NODE)
            total = sum(stages.seconds(stage, settings) for stage in chosen)
            self.assertLess(total, most, tier)
        self.assertEqual(names(stages.chosen(stages.Settings(stages.PASSIVE, stages.GPU),
                                             stages.NODE)), [stages.INVENTORY])
        full = stages.Settings(stages.FULL, stages.GPU, soak_minutes=90)
        self.assertEqual(stages.seconds(stages.named("soak"), full), 90 * 60 + 10)
        self.assertIn("90", stages.words(stages.named("soak"), full, 8))

    def test_a_stage_runs_where_it_can(self):
        gpu, cpu = (stages.Settings(stages.DEFAULT, each) for each in (stages.GPU, stages.CPU))
        self.assertIn("links", names(stages.chosen(gpu, stages.NODE, ranks=2)))
        alone = names(stages.chosen(gpu, stages.NODE, ranks=1))
        self.assertFalse({"self_test", "links", "path", "collectives"} & set(alone))
        self.assertIn("path", names(stages.chosen(gpu, stages.NODE)))
        self.assertNotIn("path", names(stages.chosen(cpu, stages.NODE)))
        train = stages.named("train")
        self.assertIn("--check-neighbour", stages.words(train, gpu, 2))
        self.assertNotIn("--check-neighbour", stages.words(train, gpu, 1))
        for ranks in (1, 2):  # bin/train has --output only with it
            self.assertEqual("--output" in stages.words(train, gpu, ranks, capsules="x"), ranks == 2)

    def test_a_fault_is_for_the_programs_that_find_it(self):
        settings = stages.Settings(stages.QUICK, stages.CPU)
        for name, fault, ranks_, given in [
                ("soak", "memory:1", 2, True), ("compute", "memory:1", 2, False),
                ("train", "product:0", 1, False), ("train", "product:0", 2, True),
                ("soak", "collective:0", 1, False), ("links", "slow:1", 2, False)]:
            words = stages.words(stages.named(name), settings, ranks_, fault)
            self.assertEqual("--inject-fault" in words, given, (name, fault))


class Options(unittest.TestCase):
    def test_tiers(self):
        for words, tier in [([], "default"), (["--quick"], "quick"), (["--full"], "full"),
                            (["--prolog"], "prolog"), (["--passive"], "passive")]:
            self.assertEqual(options.request(words)[0].settings.tier, tier)
        self.assertEqual(options.request(["--full", "--soak-minutes", "0.5"])[0]
                         .settings.soak_minutes, 0.5)

    def test_refused(self):
        for words, named in [
                (["--quick", "--full"], "--quick and --full"), (["train"], "train"),
                (["--soak-minutes", "3"], "only with --full"),
                (["--full", "--soak-minutes", "0"], "--soak-minutes 0"),
                (["--full", "--soak-minutes", "x"], "--soak-minutes x"),
                (["--backend", "tpu"], "--backend tpu: choose from auto, gpu, cpu"),
                (["--expect-gpus", "-1"], "--expect-gpus -1"), (["-n", "0"], "-n 0"),
                (["--prolog", "--hosts", "a"], "--prolog is for this machine alone"),
                (["--inject-fault", "wat:1"], "--inject-fault wat:1: must be KIND:RANK"),
                (["--history", "/nonexistent/h"], "--history /nonexistent/h: its folder"),
                (["--history", "/tmp"], "--history /tmp is a folder"),
                (["--record-reference", "/tmp"], "--record-reference /tmp is a folder"),
                (["--passive", "-n", "2", "--reference", "x"], "leave out --reference and -n"),
                (["--inject-fault", "slow"], "--inject-fault slow: must be")]:
            with self.assertRaisesRegex(places.UsageError, re.escape(named)):
                options.request(words)

    def test_a_user_who_may_not_write_everywhere(self):
        with unittest.mock.patch("os.access", return_value=False):
            options.request(["--passive"])  # the parent of the current folder is of no concern
            with tempfile.TemporaryDirectory() as folder, \
                    self.assertRaisesRegex(places.UsageError, "--output .* cannot be written"):
                options.output_folder(options.request(["--output", folder])[0], {})

    def test_a_daemon_without_standard_output(self):
        command = [sys.executable, TREE / "launch/acceptance", "--quik"]
        result = subprocess.run(["sh", "-c", 'exec "$0" "$@" <&- >&-', *command],
                                stderr=subprocess.PIPE, text=True)
        self.assertEqual((result.returncode, "--quik" in result.stderr), (2, True), result.stderr)

    def test_a_prolog_names_the_gpus_of_its_job(self):
        found = [["GPU-a"], ["GPU-b", "MIG-b1"], ["GPU-c"]]
        job_ = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]", "PATH": "/bin"}
        for gpus, visible in [("0,2", "GPU-a,GPU-c"), ("1-2", "GPU-b,GPU-c"), ("1,7", "GPU-b,7"),
                              ("", "")]:
            kept = options.environment("prolog", {**job_, "SLURM_JOB_GPUS": gpus}, lambda: found)
            self.assertEqual(kept, {"PATH": "/bin", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                                    "CUDA_VISIBLE_DEVICES": visible})
        self.assertEqual(options.environment("default", job_), job_)
        with self.assertRaisesRegex(places.UsageError, "SLURM_JOB_GPUS=0:1 is not a list"):
            options.environment("prolog", {**job_, "SLURM_JOB_GPUS": "0:1"}, lambda: found)

    def test_output(self):
        with tempfile.TemporaryDirectory() as folder:
            new = f"{folder}/a/b"
            request, _ = options.request(["--output", new])
            self.assertEqual(options.output_folder(request, {}), new)
            pathlib.Path(new, "acceptance.jsonl").touch()
            with self.assertRaisesRegex(places.UsageError, "results of another acceptance"):
                options.output_folder(request, {})
        for tier in ("--prolog", "--passive"):
            self.assertIsNone(options.output_folder(options.request([tier])[0], {}))


class Hosts(unittest.TestCase):
    def test_hosts(self):
        allocated = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "3",
                     "SLURM_JOB_NODELIST": "n[1-3]"}
        self.assertEqual(fleet.host_names({}, {}), [])
        self.assertEqual(fleet.host_names({}, allocated), ["n1", "n2", "n3"])
        self.assertEqual(fleet.host_names({"--hosts": "b,a,b"}, allocated), ["b", "a"])
        self.assertEqual(fleet.host_names({}, {"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n1"}), [])
        with self.assertRaisesRegex(places.UsageError, "does not name the nodes"):
            fleet.host_names({}, {**allocated, "SLURM_JOB_NODELIST": "n1"})
        with self.assertRaisesRegex(places.UsageError, "cannot be combined"):
            fleet.host_names({"--hosts": "a", "--hostfile": "b"}, {})


class Main(unittest.TestCase):
    def test_a_disk_that_is_full_loses_no_report(self):
        full = OSError(errno.ENOSPC, "No space left on device", "train/n1.log")
        out = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out), \
                unittest.mock.patch.object(campaign.Campaign, "run", side_effect=full), \
                unittest.mock.patch.object(main.mpi, "check_open_mpi"), \
                unittest.mock.patch.object(main, "check_programs"):
            code = main.main(["--quick", "--output", folder])
            self.assertTrue(os.path.exists(f"{folder}/acceptance.jsonl"))
        self.assertEqual(code, 3)
        self.assertIn("train/n1.log: No space left on device", out.getvalue())

    def test_every_program_is_there_before_the_first_runs(self):
        there = places.find_program
        with unittest.mock.patch.object(main.mpi, "check_open_mpi"), \
                unittest.mock.patch.object(places, "find_program") as find, \
                tempfile.TemporaryDirectory() as folder:
            find.side_effect = lambda word, environ: there(
                "no-such-program" if word == "soak" else "sh", environ)
            with self.assertRaisesRegex(places.UsageError, "no-such-program: not found"):
                main.main(["--quick", "--output", f"{folder}/out"])
            self.assertFalse(os.path.exists(f"{folder}/out"))

    def test_standard_output_that_cannot_be_written_changes_nothing(self):
        said = io.StringIO()
        with open("/dev/full", "w") as file, contextlib.redirect_stdout(file), \
                contextlib.redirect_stderr(said):
            main.show("FAIL n1\n")
        self.assertIn("standard output: No space left on device", said.getvalue())


class FakeJob:
    """Ends at the given time of the fake clock; `dies`: as mpirun would report it."""

    def __init__(self, clock, ends, code):
        self.clock, self.ends, self.code, self.result, self.stopped = clock, ends, code, None, False

    def start(self):
        self.started = self.clock.now

    def stop(self):
        self.stopped = True
        self.result = job.Result(5, -15, True, False, [], [], ["stopped"])

    def advance(self):
        if self.result is None and self.clock.now >= self.started + self.ends:
            self.result = job.Result(self.code, self.code, False, False, [], [], [])


class Clock:
    def __init__(self):
        self.now, self.jobs, self.most = 0.0, [], 0
        self.stopped = False

    def monotonic(self):
        return self.now

    def serve(self, limit):
        self.most = max(self.most, sum(each.result is None for each in self.jobs))
        self.now += 1
        for each in self.jobs:
            each.advance()


class Fleet(unittest.TestCase):
    def run_tasks(self, count, ends=lambda i: 2, code=lambda i: 0, limit=10, before=None, **more):
        clock = Clock()

        def make(what, *_, **__):
            number = len(clock.jobs)
            clock.jobs.append(FakeJob(clock, ends(number), code(number)))
            return clock.jobs[-1]
        hosts = [f"n{i}" for i in range(count)]
        with tempfile.TemporaryDirectory() as folder, \
                unittest.mock.patch.object(fleet, "RUNNING", clock), \
                unittest.mock.patch.object(fleet.time, "monotonic", clock.monotonic), \
                unittest.mock.patch.object(fleet.mpi, "job", make):
            made = fleet.Fleet(hosts, folder, {"PATH": os.environ["PATH"]}, **more)
            tasks = [fleet.Task("soak", (host,), 2, ("true",), limit) for host in hosts]
            return made.run(tasks, lambda: before and before(clock)), clock

    def test_many_at_a_time_in_their_order(self):
        runs, clock = self.run_tasks(150, ends=lambda i: 1 + i % 7, code=lambda i: i % 4)
        self.assertEqual([run.nodes for run in runs], [(f"n{i}",) for i in range(150)])
        self.assertEqual([run.code for run in runs], [i % 4 for i in range(150)])
        self.assertEqual(clock.most, fleet.AT_ONCE)

    def test_one_that_hangs_ends_alone(self):
        runs, clock = self.run_tasks(3, ends=lambda i: 1000 if i == 1 else 4)
        self.assertEqual([run.code for run in runs], [0, 3, 0])
        self.assertEqual([each.stopped for each in clock.jobs], [False, True, False])
        self.assertIn("did not end within 10 s", runs[1].note)
        self.assertLess(clock.now, 20)

    def test_after_a_signal_nothing_is_started(self):
        def at(clock):
            clock.stopped = clock.now >= 3
        runs, _ = self.run_tasks(200, before=at)
        self.assertLess(len(runs), 200)
        self.assertGreaterEqual(len(runs), fleet.AT_ONCE)

    def test_a_deadline_ends_all(self):
        runs, clock = self.run_tasks(100, ends=lambda i: 50, limit=60, deadline=5)
        self.assertEqual({run.code for run in runs}, {3})
        self.assertEqual(len(runs), fleet.AT_ONCE)
        self.assertLess(clock.now, 10)

    def test_files_of_a_job(self):
        for task, place in [(fleet.Task("soak", ("n1",), 1, (), 1), "soak/n1"),
                            (fleet.Task("all_reduce", ("n1", "n2"), 2, (), 1, 3, 7),
                             "all_reduce/round-3-group-7"),
                            (fleet.Task("all_reduce", ("n1",), 2, (), 1, 2, 1),
                             "all_reduce/round-2-group-1")]:
            self.assertEqual(fleet.place_of(task), place)


def run_of(stage, nodes, code=0, **more):
    nodes = (nodes,) if isinstance(nodes, str) else tuple(nodes)
    return Run(stage, nodes, code, "2026-11-23T00:00:00Z", 1.0, f"{stage}/r.jsonl",
               f"{stage}/r.log", **more)


class FakeFleet:
    """`codes(task)`: how a job ends; `lost(task)`: the hosts lost in it."""

    def __init__(self, nodes, codes=lambda task: 0, lost=lambda task: ()):
        self.nodes, self.tasks, self._codes, self._lost = list(nodes), [], codes, lost

    def is_here(self, name):
        return False

    def folder(self, name):
        return f"out/{name}"

    def run(self, tasks, tick):
        self.tasks += tasks
        return [run_of(task.stage, task.nodes, self._codes(task), round=task.round,
                       lost=tuple(f"host {name}" for name in self._lost(task)))
                for task in tasks]


class FakeJudge:
    def __init__(self, gpus=0, findings=None):
        self._gpus, self._findings = gpus, findings or {}
        self.chosen = None

    def records(self, run):
        return [{"kind": "health", "uuid": f"GPU-{run.nodes[0]}-{i}", "index": i}
                for i in range(self._gpus)]

    def findings(self, run):
        return self._findings.get((run.stage, run.nodes), [])

    def gpus(self):
        return None

    def outcome(self, run):
        return {0: PASS, 1: FAIL}.get(run.code, INCONCLUSIVE)

    def outcomes(self, runs):
        return [self.outcome(run) for run in runs]

    def choose(self, nodes, ranks_):
        self.chosen = ranks_


def conduct(made, tier=stages.QUICK, backend="auto", judge=None, environ=None, **more):
    quiet = progress.Progress(lambda text: None, shown=False)
    with unittest.mock.patch.object(campaign, "SETTLE_S", (0, 0)):
        one = campaign.Campaign(made, stages.Settings(tier, backend), judge or FakeJudge(), quiet,
                                environ or {}, visible=lambda environ: 0, **more)
        one.run()
    return one


class Campaign(unittest.TestCase):
    def test_every_node_alone_then_together(self):
        made = FakeFleet(["a", "b"])
        one = conduct(made)
        alone = [task for task in made.tasks if len(task.nodes) == 1]
        for name in ("a", "b"):
            self.assertEqual([task.stage for task in alone if task.nodes == (name,)],
                             names(stages.chosen(one.settings, stages.NODE)))
        self.assertEqual([task.stage for task in made.tasks if len(task.nodes) == 2],
                         ["nodes", "all_reduce"])
        self.assertEqual(one.settings.backend, stages.CPU)
        self.assertEqual(one.isolations[stages.LADDER].good, ("a", "b"))
        self.assertEqual(one.expected()["a"], list(dict.fromkeys(task.stage for task in made.tasks)))

    def test_nodes_with_one_rank_each_are_also_tested_together(self):
        made = FakeFleet(["a", "b"])
        one = conduct(made, ranks=1)
        self.assertEqual([task.stage for task in made.tasks if len(task.nodes) == 2],
                         ["nodes", "all_reduce"])
        self.assertNotIn("links", one.expected()["a"])

    def test_a_rank_per_gpu(self):
        made = FakeFleet(["a", "b"])
        one = conduct(made, judge=FakeJudge(gpus=8))
        self.assertEqual(one.settings.backend, stages.GPU)
        for task in made.tasks:
            per_node = 1 if task.stage == stages.INVENTORY else 8
            self.assertEqual(task.ranks, per_node * len(task.nodes), task.stage)
        self.assertEqual(one.judge.chosen, {"a": 8, "b": 8})

    def test_too_few_gpus_make_no_communicator(self):
        missing = Finding(stages.INVENTORY, FAIL, ("b",), "7 GPUs, 8 expected", check="gpu-count")
        made = FakeFleet("abc", codes=lambda task: int(task.nodes == ("b",)))
        one = conduct(made, judge=FakeJudge(8, {(stages.INVENTORY, ("b",)): [missing]}),
                      expect_gpus=8)
        self.assertEqual([task.stage for task in made.tasks if "b" in task.nodes],
                         [stages.INVENTORY])
        self.assertIn("--expect-gpus", made.tasks[0].words)
        self.assertEqual(one.left_out, {"b": "7 GPUs, 8 expected"})
        self.assertIn("soak", one.expected()["b"])
        self.assertIn(("a", "c"), {task.nodes for task in made.tasks})

    def test_what_is_meant_for_gpus_is_not_accepted_on_the_cpu(self):
        for environ, has, why in [
                ({"CUDA_VISIBLE_DEVICES": "3"}, 0, "CUDA_VISIBLE_DEVICES=3 requests GPUs"),
                ({"SLURM_GPUS_PER_NODE": "h100:8"}, 0, "SLURM_GPUS_PER_NODE=h100:8 requests GPUs"),
                ({}, 8, "the node has 8"), ({"CUDA_VISIBLE_DEVICES": ""}, 8, "the node has 8")]:
            made = FakeFleet("a")
            one = conduct(made, judge=FakeJudge(has), environ=environ)
            self.assertEqual([task.stage for task in made.tasks], [stages.INVENTORY])
            self.assertEqual([(each.outcome, each.nodes) for each in one.findings],
                             [(INCONCLUSIVE, ("a",))])
            self.assertIn(why, one.left_out["a"])
        for environ in ({"CUDA_VISIBLE_DEVICES": "-1"}, {"SLURM_GPUS_ON_NODE": "0"}):
            one = conduct(FakeFleet("a"), environ=environ)
            self.assertEqual((one.findings, one.left_out), ([], {}))

    def test_a_prolog(self):
        """A GPU of the job that is not there is a FAIL; a job without GPUs has its node read."""
        made = FakeFleet("a")
        one = conduct(made, stages.PROLOG, stages.GPU, FakeJudge(7), absent=["7"])
        self.assertEqual([(each.outcome, each.subject) for each in one.findings], [(FAIL, "GPU 7")])
        self.assertEqual([task.stage for task in made.tasks], [stages.INVENTORY])
        self.assertIn("not found", one.left_out["a"])
        for backend, more in [("auto", []), (stages.CPU, ["compute", "collectives"])]:
            made = FakeFleet("a")
            one = conduct(made, stages.PROLOG, backend)
            self.assertEqual([task.stage for task in made.tasks], [stages.INVENTORY, *more])
            self.assertEqual(one.expected()["a"], [stages.INVENTORY, *more])
        for visible, found, said in [("GPU-a,7", [["GPU-a"]], (2, ["7"])), ("0,1", [], (2, [])),
                                     ("GPU-a", [["GPU-a"]], (1, [])), ("", [], (0, []))]:
            self.assertEqual(options.gpus_of_prolog({"CUDA_VISIBLE_DEVICES": visible}, found), said)

    def test_a_node_that_is_lost_holds_nobody_up(self):
        def dies(task):
            return {"b"} & set(task.nodes) if task.stage in ("train", "nodes") else ()
        made = FakeFleet("abc", codes=lambda task: 3 if dies(task) else 0, lost=dies)
        one = conduct(made)
        last = [task.stage for task in made.tasks if "b" in task.nodes][-1]
        self.assertEqual(last, "train")
        self.assertIn("lost in train", one.left_out["b"])
        self.assertEqual(one.isolations[stages.LADDER].good, ("a", "c"))

    def test_nodes_together_go_on_without_those_that_are_lost(self):
        def dies(task):
            return {"b"} & set(task.nodes) if task.stage == "nodes" else ()
        made = FakeFleet("abc", codes=lambda task: 3 if dies(task) else 0, lost=dies)
        conduct(made)
        self.assertEqual([(task.nodes, task.round) for task in made.tasks if task.stage == "nodes"],
                         [(("a", "b", "c"), 0), (("a", "c"), 1)])

    def test_a_hang_leaves_the_node_out(self):
        class Hangs(FakeFleet):
            def run(self, tasks, tick):
                return [dataclasses.replace(run, code=3, seconds=1e4) if run.stage == "compute"
                        and run.nodes == ("b",) else run for run in super().run(tasks, tick)]
        made = Hangs("ab")
        one = conduct(made)
        self.assertIn("b", one.left_out)
        self.assertEqual(one.left_out["a"], "no other node was left")

    def test_the_ladder_traces_a_failure(self):
        def codes(task):
            return int(task.stage == stages.LADDER and "n5" in task.nodes)
        made = FakeFleet([f"n{i}" for i in range(9)], codes)
        one = conduct(made)
        self.assertEqual([each.node for each in one.isolations[stages.LADDER].faulty], ["n5"])
        rounds = {task.round for task in made.tasks if task.stage == stages.LADDER}
        self.assertEqual(rounds, set(range(one.isolations[stages.LADDER].rounds)))

    def test_a_group_without_a_result_is_traced(self):
        def codes(task):
            return 3 if task.stage == "nodes" and "n2" in task.nodes else 0
        made = FakeFleet([f"n{i}" for i in range(6)], codes)
        one = conduct(made)
        self.assertEqual([each.node for each in one.isolations["nodes"].dead], ["n2"])
        found = verdicts.verdicts([Node(name) for name in made.nodes], one.runs, isolation.findings(
            one.isolations["nodes"], "nodes"), good={
                stage: each.good for stage, each in one.isolations.items()})
        self.assertEqual([each.node.name for each in found if each.outcome != PASS], ["n2"])
        files = [fleet.place_of(task) for task in made.tasks]
        self.assertEqual(len(files), len(set(files)))

    def test_a_link_is_no_nodes_fault(self):
        sides = [{f"n{i}" for i in range(4)}, {f"n{i}" for i in range(4, 8)}]
        made = FakeFleet([f"n{i}" for i in range(8)], lambda task: int(
            task.stage == stages.LADDER and all(side & set(task.nodes) for side in sides)))
        domains = {name: f"leaf{side}" for side, names_ in enumerate(sides) for name in names_}
        one = conduct(made, domains=domains)
        found = isolation.findings(one.isolations[stages.LADDER], stages.LADDER)
        self.assertEqual([each.class_ for each in found], [INFRASTRUCTURE])
        nodes = [Node(name) for name in made.nodes]
        good = {stages.LADDER: one.isolations[stages.LADDER].good}
        self.assertEqual({each.outcome for each in verdicts.verdicts(nodes, one.runs, found,
                                                                     good=good)}, {PASS})

    def test_the_ladder_ends_in_time(self):
        made = FakeFleet("abcd", lambda task: int(task.stage == stages.LADDER))
        with unittest.mock.patch.dict(campaign.ISOLATION_S, dict.fromkeys(campaign.ISOLATION_S, -1)):
            one = conduct(made)
        found = one.isolations[stages.LADDER]
        self.assertEqual((found.rounds, found.good), (1, ()))
        self.assertEqual({node for each in found.unresolved for node in each.nodes}, set("abcd"))

    def test_a_fault_is_of_one_rank_of_all(self):
        for fault, node, given in [("slow:3", "b", "slow:1"), ("slow:0", "a", "slow:0"),
                                   ("slow:9", "-", None)]:
            made = FakeFleet("abc")
            conduct(made, fault=fault)
            for task in made.tasks:
                if task.stage == "compute":
                    expected = given if task.nodes == (node,) else None
                    found = [word for word in task.words if word.startswith("slow")]
                    self.assertEqual(found, [expected] if expected else [])

    def test_a_signal_keeps_what_has_run(self):
        made = FakeFleet("ab")
        with unittest.mock.patch.object(campaign, "RUNNING") as running:
            running.stopped = True
            with self.assertRaises(job.Stopped):
                conduct(made)
        self.assertEqual({task.stage for task in made.tasks}, {stages.INVENTORY})


class Settling(unittest.TestCase):
    def test_until_the_gpus_are_idle(self):
        for printed, busiest in [(b"3\n97\n0\n", 97), (b"[N/A]\n", 0), (b"", 0)]:
            with unittest.mock.patch.object(gpus.subprocess, "run",
                                            return_value=SimpleNamespace(stdout=printed)):
                self.assertEqual(gpus.busiest(), busiest)
        readings = [90, 40, 2, 0]
        with unittest.mock.patch.object(campaign.gpus, "busiest", lambda: readings.pop(0)), \
                unittest.mock.patch.object(campaign.time, "sleep"):
            one = campaign.Campaign(FakeFleet("a"), stages.Settings("full", stages.GPU), FakeJudge(),
                                    None, {})
            one._settle()
        self.assertEqual(readings, [0])


class Judge(unittest.TestCase):
    def judge(self, requested="", **references):
        made = judge.Judge("/nonexistent", [SimpleNamespace(
            name=name, devices=(model,), ranks_per_node=(8,), figures=(), file=f"{name}.json")
            for name, model in references.items()], requested)
        nodes = [Node(name, (Gpu(0, f"GPU-{name}", model=model),))
                 for name, model in [("a", "H200"), ("b", "H100")]]
        with unittest.mock.patch.object(judge.references, "match", lambda known, node, count: next(
                (each for each in known if node.gpus[0].model in each.devices), None)):
            made.choose(nodes, {"a": 8, "b": 8})
        return made

    def test_each_node_has_the_reference_of_its_model(self):
        made = self.judge(one="H200", two="H100")
        measured = [Figure("compute", (name,), "m", 1.0, "GB/s") for name in "ab"]
        asked = []
        with unittest.mock.patch.object(
                judge.references, "judge",
                lambda figures, reference, requested: asked.append(
                    (reference.name, [each.nodes for each in figures], requested)) or []):
            made.compared(measured)
        self.assertEqual(asked, [("one", [("a",)], False), ("two", [("b",)], False)])
        self.assertEqual(made.described()["name"], "one, two")

    def test_a_reference_that_fits_nobody(self):
        """Only one that the user named is a reason against a node."""
        for requested, others, found in [("", {"x": "V100"}, []), ("", {"x": "V100", "y": "A100"}, []),
                                         ("refs", {"x": "V100", "y": "A100"}, ["a", "b"])]:
            made = self.judge(requested, **others)
            self.assertEqual([each.nodes[0] for each in made.compared([])], found)
        self.assertEqual(self.judge("x.json", x="V100").described()["name"], "x")

    def test_rates_that_the_program_did_not_judge(self):
        """A reference has, or it is a warning, which --strict counts."""
        runs = [run_of("compute", "a", 3), run_of("compute", "b", 3)]
        for references, found, strict in [({"one": "H200", "two": "H100"}, [], [PASS, PASS]),
                                          ({"one": "H200"}, ["b"], [PASS, INCONCLUSIVE])]:
            made = self.judge(**references)
            with unittest.mock.patch.object(made, "findings", lambda run: [
                    Finding("compute", WARN, run.nodes, "not judged", check="not-judged")]), \
                    unittest.mock.patch.object(judge.references, "judge", lambda *_: []):
                said = made.all_findings(runs, [], {})
                self.assertEqual([each.nodes[0] for each in said], found)
                self.assertEqual([each.nodes[0] for each in made.unjudged()], found)
                for given, expected in [(False, [PASS, PASS]), (True, strict)]:
                    self.assertEqual(list(outcomes(runs, said, strict=given,
                                                   good=made.judged(runs)).values()), expected)

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


class Inventory(unittest.TestCase):
    def test_a_node(self):
        node = inventory.node("n1", [
            {"kind": "run", "versions.nccl": "2.27", "options.backend": "gpu", "driver": ""},
            {"kind": "health", "uuid": "GPU-b", "index": 1, "serial": "2", "model": "NVIDIA H200"},
            {"kind": "health", "uuid": "GPU-a", "index": 0, "serial": "1", "pci_id": "0000:1b"},
            {"kind": "run", "driver": "580.1", "versions.nccl": "2.28"}])
        self.assertEqual([(gpu.uuid, gpu.serial) for gpu in node.gpus],
                         [("GPU-a", "1"), ("GPU-b", "2")])
        self.assertEqual(node.identity, {"versions.nccl": "2.27", "driver": "580.1"})


    def test_fewer_gpus_than_most(self):
        for counts, reference, wrong in [
                ({"a": 8, "b": 7, "c": 8}, None, ["b"]), ({"a": 8, "b": 7}, None, ["b"]), ({}, None, []),
                ({"a": 8, "b": 7}, 8, ["b"]), ({"a": 7}, 8, ["a"]), ({"a": 8}, 4, []),
                ({"a": 8, "b": 7, "c": 6, "d": 8}, None, ["b", "c"]),
                ({"a": 4, "b": 4, "c": 8}, None, [])]:
            found = inventory.too_few(counts, reference)
            self.assertEqual([each.nodes for each in found], [(name,) for name in wrong], counts)
        self.assertEqual(inventory.too_few({"a": 7, "b": 8, "c": 8})[0].cause,
                         "7 GPUs, 8 on 2 of 3 nodes")


class Progress(unittest.TestCase):
    def test_lines_and_a_terminal(self):
        for terminal in (False, True):
            written, logged = [], []
            shown = progress.Progress(logged.append, write=written.append, terminal=terminal)
            shown.begin("inventory", "n1")
            shown.expect([("train", 90), ("soak", 130)])
            shown.begin("train", "2 nodes")
            shown.tick()
            shown.end()
            self.assertEqual(logged, ["inventory on n1", "2/3 train on 2 nodes, about 3:40 min left"])
            text = "".join(written)
            self.assertIn("2/3 train on 2 nodes, about 3:40 min left", text)
            self.assertEqual("\x1b[K" in text, terminal)
            self.assertEqual(text.count("\n"), 0 if terminal else 2)


if __name__ == "__main__":
    unittest.main()
