"""acceptance/campaign: which jobs run on which nodes, who is left out, and how many jobs run at the same time."""

import dataclasses
import os
import pathlib
import tempfile
import time
import unittest
import unittest.mock

import tree  # noqa: F401 - what is imported below is in its folders
from acceptance_fakes import FakeFleet, FakeJudge, concluded, conduct
from shakedown_launch import gpus, job, places, slurm
from shakedown_launch.acceptance import evidence, stages
from shakedown_launch.acceptance.campaign import campaign, fleet
from shakedown_launch.acceptance.ladder import isolation
from shakedown_launch.acceptance.model import (
    FAIL, HARDWARE, INCONCLUSIVE, INFRASTRUCTURE, PASS, SOFTWARE, Finding, Gpu)


def names(chosen):
    return [stage.name for stage in chosen]


def names_of(made):
    return [task.stage for task in made.tasks]


class Campaign(unittest.TestCase):
    def test_every_node_alone_then_together(self):
        one = conduct(FakeFleet(["a", "b"]), stages.DEFAULT)
        alone = [task for task in one.fleet.tasks if len(task.nodes) == 1]
        for name in ("a", "b"):
            self.assertEqual([task.stage for task in alone if task.nodes == (name,)],
                             names(stages.chosen(one.settings, stages.NODE)))
        self.assertEqual([task.stage for task in one.fleet.tasks if len(task.nodes) == 2],
                         ["nodes", "all_reduce", "node_links"])
        self.assertEqual(one.settings.backend, stages.CPU)
        self.assertEqual(one.isolations[stages.LADDER].good, ("a", "b"))
        self.assertEqual(one.expected()["a"], list(dict.fromkeys(task.stage for task in one.fleet.tasks)))
        one = conduct(FakeFleet(["a", "b"]), stages.DEFAULT, ranks=1)  # which need no two on a node
        self.assertEqual([task.stage for task in one.fleet.tasks if len(task.nodes) == 2], ["nodes", "all_reduce"])
        self.assertNotIn("links", one.expected()["a"])

    def test_expected_gpus_reach_every_node_check(self):
        """Else an acceptance on the CPU of nodes with GPUs fails in the stage after the evidence."""
        made = FakeFleet(["a", "b"])
        conduct(made, stages.DEFAULT, backend="cpu", expect_gpus=0)
        self.assertEqual({task.stage for task in made.tasks if "--expect-gpus" in task.words},
                         {"inventory", "node_check", "nodes"})
        self.assertEqual({task.words[-2:] for task in made.tasks if task.words[0] == "node_check"},
                         {("--expect-gpus", "0")})

    def test_a_node_on_which_no_rank_can_run_lacks_all_stages(self):
        """As much as another one, whose variables name GPUs that are not there."""
        one = conduct(FakeFleet(["a", "b"]), backend="gpu")
        one.ranks = {"a": 2, "b": 0}
        self.assertIn("links", one.facts().rates)
        expected = one.expected()
        self.assertEqual(expected["b"], expected["a"])
        self.assertIn("node_check", expected["b"])

    def test_the_kinds_of_faults_that_a_tier_finds(self):
        for ranks, has, has_not in [(1, "product", "collective"), (2, "collective", "-")]:
            kinds = conduct(FakeFleet(["a"]), ranks=ranks, backend="cpu").kinds_of_faults()
            self.assertIn(has, kinds)
            self.assertNotIn(has_not, kinds)

    def test_a_rank_per_gpu(self):
        one = conduct(FakeFleet(["a", "b"]), judge=FakeJudge(gpus=8))
        self.assertEqual(one.settings.backend, stages.GPU)
        for task in one.fleet.tasks:
            per_node = 1 if task.stage == stages.INVENTORY else 8
            self.assertEqual(task.ranks, per_node * len(task.nodes), task.stage)
        self.assertEqual((one.ranks, one.facts().rates), ({"a": 8, "b": 8}, [
            "products", "memory", "host_link", "links", "collectives", "training"]))

    def test_too_few_gpus_make_no_communicator(self):
        """CRE#82: a node with fewer GPUs was grouped anyway, and the job hung. aicr#1858: 7 of 8, and no cause."""
        missing = Finding(stages.INVENTORY, FAIL, ("b",), "7 GPUs, 8 expected", check="gpu-count")
        one = conduct(FakeFleet("abc", codes=lambda task: int(task.nodes == ("b",))),
                      judge=FakeJudge(8, {(stages.INVENTORY, ("b",)): [missing]}), expect_gpus=8)
        self.assertEqual([task.stage for task in one.fleet.tasks if "b" in task.nodes],
                         [stages.INVENTORY])
        self.assertIn("--expect-gpus", one.fleet.tasks[0].words)
        self.assertEqual(one.left_out, {"b": "7 GPUs, 8 expected"})
        self.assertIn("soak", one.expected()["b"])
        self.assertIn(("a", "c"), {task.nodes for task in one.fleet.tasks})

    def test_what_is_meant_for_gpus_is_not_accepted_on_the_cpu(self):
        """However many ranks are requested; not called as what node_check does not know."""
        for environ, has, backend, ranks, why in [
                ({"CUDA_VISIBLE_DEVICES": "3"}, 0, "auto", None, "CUDA_VISIBLE_DEVICES=3 requests GPUs"),
                ({"SLURM_GPUS_PER_NODE": "h100:8"}, 0, "auto", None, "SLURM_GPUS_PER_NODE=h100:8 requests GPUs"),
                ({}, 8, "auto", None, "the node has 8"), ({"CUDA_VISIBLE_DEVICES": ""}, 8, "auto", None, "the node has 8"),
                ({}, 0, stages.GPU, None, "--backend gpu requests GPUs"), ({}, 0, stages.GPU, 2, "--backend gpu requests GPUs"),
                ({"CUDA_VISIBLE_DEVICES": "-1"}, 0, "auto", None, ""), ({"SLURM_GPUS_ON_NODE": "0"}, 0, "auto", None, "")]:
            one = conduct(FakeFleet("a"), backend=backend, judge=FakeJudge(has), environ=environ, ranks=ranks)
            cause = f"no GPU can be used, though {why}"
            self.assertEqual([(each.outcome, each.nodes, each.check, each.cause) for each in one.findings],
                             [(INCONCLUSIVE, ("a",), "gpu-unusable", cause)] if why else [], environ)
            self.assertEqual(one.left_out, {"a": cause} if why else {})
            self.assertEqual(names_of(one.fleet) == [stages.INVENTORY], bool(why))
        missing = Finding(stages.INVENTORY, FAIL, ("a",), "0 GPUs, 1 expected", check="gpu-count")
        one = conduct(FakeFleet("a"), judge=FakeJudge(0, {(stages.INVENTORY, ("a",)): [missing]}),
                      environ={"CUDA_VISIBLE_DEVICES": "3"})  # says it once
        self.assertEqual((one.findings, one.left_out), ([], {"a": "0 GPUs, 1 expected"}))

    def test_a_prolog(self):
        """A GPU of the job that is not there is a FAIL, one that is not known is not tested, nor another in its place;
        on a node where no GPU answers the inventory says why. A job without GPUs has its node read."""
        for gpus_, job_, said in [
                (7, {"7": None, "1": "GPU-a-1"}, [(FAIL, "GPU 7")]), (2, {"0": "GPU-a-0"}, []),
                (2, {"0": "", "1": "GPU-a-1"}, [(INCONCLUSIVE, "node a")]), (2, {"0": "GPU-x"}, [(FAIL, "GPU 0")]),
                (0, {"0": "GPU-x"}, []), (0, {"0": ""}, [(INCONCLUSIVE, "node a")]), (0, {"0": None}, []), (2, {}, [])]:
            for backend in (stages.GPU, "auto"):
                one = conduct(FakeFleet("a"), stages.PROLOG, backend, FakeJudge(gpus_), job_gpus=job_)
                unusable = any(each.check == "gpu-unusable" for each in one.findings)
                self.assertEqual([(each.outcome, each.subject) for each in one.findings if each.check != "gpu-unusable"],
                                 said)
                self.assertEqual("a" in one.left_out, bool(said) or unusable or not gpus_ and backend == stages.GPU)
                if said:
                    self.assertEqual(names_of(one.fleet), [stages.INVENTORY])
        for backend, more in [("auto", []), (stages.CPU, ["compute", "collectives"])]:
            one = conduct(FakeFleet("a"), stages.PROLOG, backend)
            self.assertEqual((names_of(one.fleet), one.expected()["a"]), ([stages.INVENTORY, *more],) * 2)

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

    def test_a_node_that_is_lost_holds_nobody_up(self):
        one = conduct(FakeFleet("abc", lost=lambda task: {"b"} & set(task.nodes) if task.stage == "train" else ()))
        self.assertEqual([task.stage for task in one.fleet.tasks if "b" in task.nodes][-1], "train")
        self.assertIn("lost in train", one.left_out["b"])
        self.assertEqual(one.isolations[stages.LADDER].good, ("a", "c"))
        # Nodes together go on without those that are lost.
        one = conduct(FakeFleet("abc", lost=lambda task: {"b"} & set(task.nodes) if task.stage == "nodes" else ()),
                      stages.DEFAULT)
        self.assertEqual([(task.nodes, task.round) for task in one.fleet.tasks if task.stage == "nodes"],
                         [(("a", "b", "c"), 0), (("a", "c"), 1)])

    def test_a_hang_leaves_the_node_out(self):
        class Hangs(FakeFleet):
            def run(self, tasks, tick):
                return [dataclasses.replace(run, code=3, seconds=1e4) if run.stage == "compute"
                        and run.nodes == ("b",) else run for run in super().run(tasks, tick)]
        one = conduct(Hangs("ab"))
        self.assertIn("b", one.left_out)
        self.assertEqual(one.left_out["a"], "no other node was left")

    def test_the_ladder_traces_a_failure(self):
        def codes(task):
            return int(task.stage == stages.LADDER and "n5" in task.nodes)
        one = conduct(FakeFleet([f"n{i}" for i in range(9)], codes))
        self.assertEqual([each.node for each in one.isolations[stages.LADDER].faulty], ["n5"])
        rounds = {task.round for task in one.fleet.tasks if task.stage == stages.LADDER}
        self.assertEqual(rounds, set(range(one.isolations[stages.LADDER].rounds)))

    def test_a_group_without_a_result_is_traced(self):
        def codes(task):
            return 3 if task.stage == "nodes" and "n2" in task.nodes else 0
        one = conduct(FakeFleet([f"n{i}" for i in range(6)], codes), stages.DEFAULT)
        self.assertEqual([each.node for each in one.isolations["nodes"].dead], ["n2"])
        found = concluded(one.fleet.nodes, one.runs, isolation.findings(one.isolations["nodes"], "nodes"),
                          one.isolations)
        self.assertEqual([each.node.name for each in found if each.outcome != PASS], ["n2"])
        files = [fleet.place_of(task) for task in one.fleet.tasks]
        self.assertEqual(len(files), len(set(files)))

    def test_a_link_is_no_nodes_fault(self):
        sides = [{f"n{i}" for i in range(4)}, {f"n{i}" for i in range(4, 8)}]
        made = FakeFleet([f"n{i}" for i in range(8)], lambda task: int(
            task.stage == stages.LADDER and all(side & set(task.nodes) for side in sides)))
        domains = {name: f"leaf{side}" for side, names_ in enumerate(sides) for name in names_}
        with unittest.mock.patch.object(campaign.slurm, "domains", return_value=domains):
            one = conduct(made)
        found = isolation.findings(one.isolations[stages.LADDER], stages.LADDER)
        self.assertEqual([each.class_ for each in found], [INFRASTRUCTURE])
        self.assertEqual({each.outcome for each in concluded(made.nodes, one.runs, found, one.isolations)}, {PASS})

    def test_the_ladder_ends_in_time(self):
        made = FakeFleet("abcd", lambda task: int(task.stage == stages.LADDER))
        with unittest.mock.patch.dict(campaign.ISOLATION_S, dict.fromkeys(campaign.ISOLATION_S, -1)):
            one = conduct(made)
        found = one.isolations[stages.LADDER]
        self.assertEqual((found.rounds, found.good), (1, ()))
        self.assertEqual({node for each in found.unresolved for node in each.nodes}, set("abcd"))

    def test_a_fault_is_of_one_rank_of_all(self):
        for fault, node, given in [("slow:3", "b", "slow:1"), ("slow:0", "a", "slow:0"),
                                   ("slow:3:5%", "b", "slow:1:5%"), ("slow:9", "-", None)]:
            for task in conduct(FakeFleet("abc"), fault=fault).fleet.tasks:
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


class TimeLimit(unittest.TestCase):
    def conduct(self, left, tier=stages.QUICK, stop=False):
        """(Campaign, what was written)"""
        written = []
        shown = campaign.Progress(lambda text: None, write=written.append, terminal=False)
        with unittest.mock.patch.object(campaign.slurm, "seconds_left", return_value=left) as asked:
            one = campaign.Campaign(FakeFleet(["a"]), stages.Settings(tier, stages.CPU), FakeJudge(), shown, {})
            one.run()
            said = one.stopped() if stop else ""
        return one, "".join(written), said, asked

    def test_too_short_is_said_before_the_stages_start(self):
        for left, tier, said in [(3, stages.QUICK, True), (None, stages.QUICK, False), (3600, stages.QUICK, False)]:
            _, written, _, _ = self.conduct(left, tier)
            self.assertEqual("the job has 3.0 s left: what does not run by then is INCONCLUSIVE; request "
                             "--time=00:05:00\n" in written, said, written)
        self.assertFalse(self.conduct(3, stages.PROLOG)[-1].called)  # hooks call no command of Slurm

    def test_what_stopped_it(self):
        for left, by in [(50, "by the job's time limit (--time)"), (900, "by a signal"), (None, "by a signal")]:
            one, _, said, _ = self.conduct(left, stop=True)
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


class Inventory(unittest.TestCase):
    def test_a_node(self):
        node = evidence.node("n1", [
            {"kind": "run", "versions.nccl": "2.27", "options.backend": "gpu", "driver": ""},
            {"kind": "health", "uuid": "GPU-b", "index": 1, "serial": "2", "model": "NVIDIA H200"},
            {"kind": "health", "uuid": "GPU-a", "index": 0, "serial": "1", "pci_id": "0000:1b"},
            {"kind": "run", "driver": "580.1", "versions.nccl": "2.28"}])
        self.assertEqual([(gpu.uuid, gpu.serial) for gpu in node.gpus],
                         [("GPU-a", "1"), ("GPU-b", "2")])
        self.assertEqual(node.identity, {"versions.nccl": "2.27", "driver": "580.1"})


    def test_fewer_gpus_than_most(self):
        for counts, wrong in [
                ({"a": 8, "b": 7, "c": 8}, ["b"]), ({"a": 8, "b": 7}, ["b"]), ({}, []), ({"a": 7}, []),
                ({"a": 8, "b": 7, "c": 6, "d": 8}, ["b", "c"]), ({"a": 4, "b": 4, "c": 8}, [])]:
            found = evidence.too_few(counts)
            self.assertEqual([each.nodes for each in found], [(name,) for name in wrong], counts)
        for count, class_, rma in [(7, HARDWARE, True), (0, SOFTWARE, False)]:
            found, = evidence.too_few({"a": count, "b": 8, "c": 8})
            self.assertEqual((found.cause, found.class_, "RMA" in found.action),
                             (f"{count} GPUs, 8 on 2 of 3 nodes", class_, rma))
        lost, = evidence.of_job("a", {"7": None}, [Gpu(0, "GPU-a")])
        self.assertEqual(lost.class_, HARDWARE)


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

    def test_files_of_a_job(self):
        for task, place in [(fleet.Task("soak", ("n1",), 1, (), 1), "soak/n1"),
                            (fleet.Task("all_reduce", ("n1", "n2"), 2, (), 1, 3, 7),
                             "all_reduce/round-3-group-7"),
                            (fleet.Task("all_reduce", ("n1",), 2, (), 1, 2, 1),
                             "all_reduce/round-2-group-1")]:
            self.assertEqual(fleet.place_of(task), place)


if __name__ == "__main__":
    unittest.main()
