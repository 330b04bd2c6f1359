"""acceptance/campaign/fleet: jobs on many nodes at the same time, on a clock of the test."""

import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "launch"))
from shakedown_launch import job  # noqa: E402
from shakedown_launch.acceptance.campaign import fleet  # noqa: E402

AT_ONCE = 64  # whatever this machine has


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
        self.assertEqual([each.stopped for each in clock.jobs], [False, True, False])
        self.assertIn("did not end within 10 s", runs[1].note)
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
            for code, dead, note in [(3, [], f"said; {error}"), (1, [], "said"), (3, [(1, "n1", "x")], "said")]:
                result = job.Result(code, code, False, False, dead, [], ["said"])
                task = fleet.Task("soak", ("n1",), 2, (), 10)
                running = fleet.Running(0, task, str(log), "soak/n1",
                                        unittest.mock.Mock(result=result), 10)
                self.assertEqual(running.run().note, note)
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
