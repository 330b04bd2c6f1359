"""acceptance/campaign: which jobs run on which nodes, who is left out, and how many jobs run at the same time."""

import dataclasses
import os
import pathlib
import tempfile
import time
import unittest
import unittest.mock

from tree import TREE
import transcript
from acceptance_fakes import FakeFleet, FakeJudge, concluded, conduct
from shakedown_launch import gpus, job, slurm
from shakedown_launch.acceptance import evidence, stages  # noqa: F401, in campaign.txt
from shakedown_launch.acceptance.campaign import campaign, fleet
from shakedown_launch.acceptance.ladder import isolation
from shakedown_launch.acceptance.model import (
    FAIL, PASS, SOFTWARE, Finding)


def lost(name, stage):
    """The hosts lost in a task."""
    return lambda task: {name} & set(task.nodes) if task.stage == stage else ()


def fails(stage, *names, code=1):
    """The exit code of a task of this stage, on these nodes if any are named."""
    return lambda task: code * (task.stage == stage and (not names or bool({*names} & {*task.nodes})))


def missing(node, cause):
    return {(stages.INVENTORY, (node,)): [Finding(stages.INVENTORY, FAIL, (node,), cause, check="gpu-count")]}


def words_of(one):
    """What ran on which nodes with how many ranks, round by round; who was left out, what was found, and traced to whom."""
    ran = {}
    for task in one.fleet.tasks:
        ran.setdefault((task.stage, task.round, task.ranks), []).append("+".join(task.nodes))
    lines = [f"{stage}{f', round {round_}' if round_ else ''}: {', '.join(groups)}; {ranks} rank{'s' * (ranks > 1)}"
             for (stage, round_, ranks), groups in ran.items()]
    lines += [f"left out: {node}: {why}" for node, why in one.left_out.items()]
    lines += [f"{each.outcome} {','.join(each.nodes)} {each.subject} [{each.check}] {each.cause}" for each in one.findings]
    for stage, isolated in one.isolations.items():
        lines += [f"traced: {each.subject}: {each.outcome} {each.class_}: {each.cause}" for each in isolation.findings(isolated, stage)]
        lines += [f"good in {stage}: {', '.join(isolated.good) or 'none'}"]
    found = concluded(one.fleet.nodes, one.runs, [each for stage, isolated in one.isolations.items()
                                                  for each in isolation.findings(isolated, stage)], one.isolations)
    lines += [f"not good: {', '.join(names)}" for names in [[each.node.name for each in found if each.outcome != PASS]] if names]
    return "\n".join(lines)


def conducted(nodes, tier=stages.QUICK, codes=lambda task: 0, lost_=lambda task: (), gpus_=0, findings=None, leaves="",
              racks="", **more):
    """`leaves`: of each node the switch that Slurm knows; `racks`: its NVLink domain."""
    domains = dict(zip(nodes, leaves)) or None
    with unittest.mock.patch.object(campaign.slurm, "domains", return_value=domains):
        return words_of(conduct(FakeFleet(nodes, codes, lost_), tier, judge=FakeJudge(gpus_, findings, dict(zip(nodes, racks))),
                                **more))


def given(fault):
    """What the programs of compute are given of a fault."""
    tasks = conduct(FakeFleet("abc"), fault=fault).fleet.tasks
    return [f"{task.nodes[0]}: {' '.join(word for word in task.words if word.startswith('slow')) or 'nothing'}"
            for task in tasks if task.stage == "compute"]


def expecting(gpus_, tier, **more):
    """Which programs are given how many GPUs to expect."""
    tasks = conduct(FakeFleet("ab"), tier, expect_gpus=gpus_, **more).fleet.tasks
    return sorted({f"{task.stage}: {' '.join(task.words[-2:])}" for task in tasks
                   if "--expect-gpus" in task.words or task.words[0] == "node_check"})


class Campaign(unittest.TestCase):
    def test_campaigns(self):
        transcript.expressions(self, TREE / "tests/launch/campaign.txt", globals())

    def test_a_node_on_which_no_rank_can_run_lacks_all_stages(self):
        """As much as another one, whose variables name GPUs that are not there."""
        one = conduct(FakeFleet(["a", "b"]), backend="gpu")
        one.ranks = {"a": 2, "b": 0}
        self.assertIn("links", one.facts().rates)
        self.assertEqual(one.expected()["b"], one.expected()["a"])
        self.assertIn("node_check", one.expected()["b"])

    def test_what_is_expected_is_what_runs(self):
        for ranks, backend, gpus_ in ((None, "auto", 0), (1, "cpu", 0), (None, "auto", 8)):
            one = conduct(FakeFleet("ab"), stages.DEFAULT, backend, FakeJudge(gpus_), ranks=ranks)
            self.assertEqual(one.expected()["a"], list(dict.fromkeys(task.stage for task in one.fleet.tasks)))

    def test_a_gpu_that_cuda_refuses_twice_fails(self):
        """Where NVML lists it, and nothing was measured at once."""
        made = FakeFleet("a", codes=lambda task: 3 * (task.stage == "compute"))
        job_ = {"0": "GPU-a-0", "1": "GPU-a-1"}
        for refused, outcomes in [({"GPU-a-1": "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)"}, [FAIL]), ({}, [])]:
            with unittest.mock.patch.object(campaign.gpus, "refused", return_value=refused) as tried:
                one = conduct(made, stages.PROLOG, stages.GPU, FakeJudge(2), job_gpus=job_, ranks=2)
            self.assertEqual([(each.outcome, each.gpu, each.class_) for each in one.findings],
                             [(FAIL, "GPU-a-1", SOFTWARE)][:len(outcomes)])
            self.assertEqual(list(tried.call_args[0][0]), ["GPU-a-0", "GPU-a-1"])

    def test_a_hang_leaves_the_node_out(self):
        class Hangs(FakeFleet):
            def run(self, tasks, tick):
                return [dataclasses.replace(run, code=3, seconds=1e4) if run.stage == "compute"
                        and run.nodes == ("b",) else run for run in super().run(tasks, tick)]
        one = conduct(Hangs("ab"))
        self.assertIn("b", one.left_out)
        self.assertEqual(one.left_out["a"], "no other node was left")

    def test_the_ladder_ends_in_time(self):
        made = FakeFleet("abcd", lambda task: int(task.stage == stages.LADDER))
        with unittest.mock.patch.dict(campaign.ISOLATION_S, dict.fromkeys(campaign.ISOLATION_S, -1)):
            one = conduct(made)
        found = one.isolations[stages.LADDER]
        self.assertEqual((found.rounds, found.good), (1, ()))
        self.assertEqual({node for each in found.unresolved for node in each.nodes}, set("abcd"))

    def test_a_signal_keeps_what_has_run(self):
        made = FakeFleet("ab")
        with unittest.mock.patch.object(campaign, "RUNNING") as running:
            running.stopped = True
            with self.assertRaises(job.Stopped):
                conduct(made)
        self.assertEqual({task.stage for task in made.tasks}, {stages.INVENTORY})


class TimeLimit(unittest.TestCase):
    def conduct(self, left, tier=stages.QUICK, stop=False):
        """(Campaign, what stopped it, seconds_left)"""
        shown = campaign.Progress(lambda text: None, write=lambda text: None, terminal=False)
        with unittest.mock.patch.object(campaign.slurm, "seconds_left", return_value=left) as asked:
            one = campaign.Campaign(FakeFleet(["a"]), stages.Settings(tier, stages.CPU), FakeJudge(), shown, {})
            one.run()
            said = one.stopped() if stop else ""
        return one, said, asked

    def test_too_short_is_refused_before_the_stages_start(self):
        with self.assertRaisesRegex(campaign.slurm.UsageError, "the stages need about 13 s, and the job has 3.0 s until its time limit: "
                                                                "request --time=00:05:00"):
            self.conduct(3)
        for left in (None, 3600):
            self.assertTrue(self.conduct(left)[-1].called)
        self.assertFalse(self.conduct(3, stages.PROLOG)[-1].called)  # hooks call no command of Slurm

    def test_what_stopped_it(self):
        for left, by in [(50, "by the job's time limit (--time)"), (900, "by a signal"), (None, "by a signal")]:
            one, said, _ = self.conduct(left, stop=True)
            self.assertEqual((said, one.left_out), (by, {}))  # all had run
            one.runs = one.runs[:2]
            with unittest.mock.patch.object(campaign.slurm, "seconds_left", return_value=left):
                one.stopped()
            self.assertEqual(one.left_out, {"a": f"stopped {by}"})
            made, = concluded("a", one.runs, [], expected=one.expected(), left_out=one.left_out)
            self.assertRegex(made.findings[0].cause, rf"^not run: .*soak: stopped {by[:10]}")


class Settling(unittest.TestCase):
    def test_until_the_gpus_are_idle(self):
        readings, logged = [90, 40, 2, None, 0], []
        with unittest.mock.patch.object(campaign.gpus, "busiest", lambda: readings.pop(0)), \
                unittest.mock.patch.object(campaign.time, "sleep"):
            one = campaign.Campaign(FakeFleet("a"), stages.Settings("full", stages.GPU), FakeJudge(),
                                    campaign.Progress(logged.append), {})
            one._settle()
            self.assertEqual((readings, logged), ([None, 0], []))
            one._settle()
        self.assertEqual(readings, [0])
        self.assertIn("nvidia-smi cannot be read", logged[0])


class Progress(unittest.TestCase):
    def test_lines_and_a_terminal(self):
        for terminal in (False, True):
            written, logged = [], []
            shown = campaign.Progress(logged.append, write=written.append, terminal=terminal)
            shown.begin("inventory", "n1")
            shown.expect([("train", 90), ("soak", 130)])
            shown.begin("train", "2 nodes")
            shown.tick()
            shown.end()
            self.assertEqual(logged, ["inventory on n1", "2/3 train on 2 nodes, about 3 min 40 s left"])
            text = "".join(written)
            self.assertIn("2/3 train on 2 nodes, about 3 min 40 s left", text)
            self.assertEqual("\x1b[K" in text, terminal)
            self.assertEqual(text.count("\n"), 0 if terminal else 2)

AT_ONCE = 64  # whatever this machine has


class FakeJob:
    """Ends at the given time of the fake clock, and at its limit."""

    def __init__(self, clock, ends, code, limit):
        self.clock, self.ends, self.code, self.limit, self.result = clock, ends, code, limit, None

    def start(self):
        self.started = self.clock.now

    def advance(self):
        late = self.clock.now > self.started + self.limit
        if self.result is None and (late or self.clock.now >= self.started + self.ends):
            self.result = job.Result(3 if late else self.code, 0, late, False, [], [], [], late)


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

        def make(what, *_, limit, **__):
            number = len(clock.jobs)
            clock.jobs.append(FakeJob(clock, ends(number), code(number), limit))
            return clock.jobs[-1]
        hosts = [f"n{i}" for i in range(count)]
        with tempfile.TemporaryDirectory() as folder, \
                unittest.mock.patch.object(fleet, "RUNNING", clock), \
                unittest.mock.patch.object(fleet, "AT_ONCE", AT_ONCE), \
                unittest.mock.patch.object(fleet.time, "monotonic", clock.monotonic), \
                unittest.mock.patch.object(fleet.mpi, "job", make):
            made = fleet.Fleet(hosts, folder, {"PATH": os.environ["PATH"]}, **more)
            tasks = [fleet.Task("soak", (host,), 2, ("true",), limit) for host in hosts]
            return made.run(tasks, lambda: before and before(clock)), clock

    def test_the_name_that_slurm_has_for_this_host(self):
        with unittest.mock.patch.object(fleet.os, "uname", return_value=unittest.mock.Mock(nodename="n1.x.org")):
            for name, nodes in [("n1", ["n1"]), ("n1.x.org", ["n1.x.org"]), ("n2", ["n1.x.org"]), ("", ["n1.x.org"])]:
                self.assertEqual(fleet.Fleet([], "", {"SLURMD_NODENAME": name}).nodes, nodes)

    def test_many_at_a_time_in_their_order(self):
        runs, clock = self.run_tasks(150, ends=lambda i: 1 + i % 7, code=lambda i: i % 4)
        self.assertEqual([run.nodes for run in runs], [(f"n{i}",) for i in range(150)])
        self.assertEqual([run.code for run in runs], [i % 4 for i in range(150)])
        self.assertEqual(clock.most, AT_ONCE)

    def test_one_that_hangs_ends_alone(self):
        runs, clock = self.run_tasks(3, ends=lambda i: 1000 if i == 1 else 4)
        self.assertEqual([run.code for run in runs], [0, 3, 0])
        self.assertEqual([each.result.late for each in clock.jobs], [False, True, False])
        self.assertLess(clock.now, 20)

    def test_after_a_signal_nothing_is_started(self):
        def at(clock):
            clock.stopped = clock.now >= 3
        runs, _ = self.run_tasks(200, before=at)
        self.assertLess(len(runs), 200)
        self.assertGreaterEqual(len(runs), AT_ONCE)

    def test_a_deadline_ends_all(self):
        runs, clock = self.run_tasks(100, ends=lambda i: 50, limit=60, deadline=5)
        self.assertEqual({run.code for run in runs}, {3})
        self.assertEqual(len(runs), AT_ONCE)
        self.assertLess(clock.now, 10)

    def test_the_last_error_of_a_rank_is_noted(self):
        """Of a job without a result of its own."""
        error = "rank 0 on n1: MPI_Barrier did not finish within 120 s; no answer from rank 1 on n1"
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "soak.log")
            log.write_text(f"cpu\nerror: rank 1 on n1: an earlier one\nerror: {error}\nno error: rank\n")
            for code, dead, late, note in [(3, [], False, f"said; {error}"), (1, [], False, "said"),
                                           (3, [(1, "n1", "x")], False, "said"), (3, [], True, "said")]:
                result = job.Result(code, code, late, False, dead, [], ["said"], late)
                task = fleet.Task("soak", ("n1",), 2, (), 10)
                self.assertEqual(fleet.run_of(task, result, time.gmtime(0), str(log)).note, note)
            self.assertEqual(fleet.last_error(f"{folder}/none"), [])


if __name__ == "__main__":
    unittest.main()
