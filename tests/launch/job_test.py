"""job.Job: start, waiting, stop, kill, output, signals, with commands of a shell; and what several jobs of mpirun share."""

import os
import pathlib
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from unittest import mock

import tree  # noqa: F401 - what is imported below is in its folders
from support import gone
from shakedown_launch import job, launchers
from shakedown_launch.acceptance.campaign import fleet
from shakedown_launch.messages import Messages


def setUpModule():
    for number in [*job.STOP_SIGNALS, *job.PASSED_ON_SIGNALS, signal.SIGCHLD]:
        unittest.addModuleCleanup(signal.signal, number, signal.getsignal(number))
    job.RUNNING.install()


class Jobs(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shakedown_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.addCleanup(setattr, job.RUNNING, "stopped", 0)
        self.log = self.folder / "log"
        patch = mock.patch.object(job, "KILL_AFTER", 0.3)
        patch.start()
        self.addCleanup(patch.stop)

    def job(self, text, shown=False, log=True, **options):
        return job.Job(["bash", "-c", text], output=job.Output(self.log if log else None, shown),
                       **{"limit": 60, **options})

    def ended(self, text, **options):
        started = self.job(text, **options)
        started.start()
        started.wait()
        return started.result

    def up(self, text, **options):
        """A job that has said so, and its words."""
        started, limit = self.job(text, **options), time.monotonic() + 60
        started.start()
        while not self.log.read_text() and time.monotonic() < limit:
            self.serve(0.01)
        return started, self.log.read_text().split()

    @staticmethod
    def serve(seconds):
        job.RUNNING.serve(time.monotonic() + seconds)


class End(Jobs):

    def test_limit_and_stop(self):
        trap = "trap 'echo once >&2; exit 0' TERM; echo up; while :; do sleep 0.01; done"
        started, _ = self.up(trap)
        self.assertIsNone(started.result)
        started.stop()
        started.stop()
        started.wait()
        self.assertEqual((started.result.code, started.result.stopped), (0, True))
        self.assertEqual(self.log.read_text(), "up\nonce\n")
        result = self.ended("sleep 60", limit=0.3)
        self.assertEqual((result.code, result.late, result.said), (3, True, ["did not end within 0 s and was stopped"]))
        self.assertLess(result.seconds, 30)
        ended = self.job("sleep 60")
        ended.start()
        ended.stop()
        ended.wait()
        self.assertEqual(ended.result.code, 5)

    def test_one_that_does_not_end_is_killed_with_its_children(self):
        """On other hosts ranks may still run."""
        for elsewhere, more in [(False, ""), (True, ": a host or its link is lost; ranks may still run there")]:
            said = []
            started, pids = self.up("trap '' TERM; sleep 60 & echo $$ $!; wait; wait; sleep 60", grace=0.1,
                                    say=said.append, elsewhere=elsewhere)
            started.stop()
            started.wait()
            self.assertEqual((started.result.killed, said), (True, [f"bash did not end within 0.1 s and was killed{more}"]))
            self.assertTrue(gone(*pids))

    def test_once_a_rank_has_failed_it_must_end(self):
        for descriptor in ["$OPAL_OUTPUT_STDERR_FD", "2"]:  # Open MPI 4; 5
            said = []
            say = f"printf '%s\\n' ---------- 'MPI_ABORT was invoked on rank 0' ---------- >&{descriptor}"
            result = self.ended(f"trap '' TERM; {say}; sleep 60 & wait; wait", grace=0.1, say=said.append,
                                messages=Messages(said.append, said.append))
            self.assertEqual((result.code, said), (3, ["bash did not end within 0.1 s and was killed"]))

    def test_processes_that_wait_in_the_kernel_are_named(self):
        for pid, text in [(7, "7 (train) D 1 7"), (8, "8 (a) b) S 1 8"), (9, "9 (a (b) D 1 9")]:
            (self.folder / str(pid)).mkdir()
            (self.folder / str(pid) / "stat").write_text(text)
        self.assertEqual(job.uninterruptible([7, 8, 9, 10], self.folder),
                         ["train (pid 7)", "a (b (pid 9)"])

    def test_a_command_that_is_not_there(self):
        with self.assertRaises(FileNotFoundError):
            job.Job(["/nonexistent/mpirun"]).start()
        self.assertEqual(job.RUNNING.jobs, [])

    def test_jobs_next_to_each_other(self):
        other = job.Job(["bash", "-c", "exit 3"])
        other.start()
        one, _ = self.up("echo one; sleep 60")
        other.wait()  # served while the first was waited for, or now
        self.assertEqual((other.result.code, one.result), (3, None))
        one.kill()
        self.assertEqual(job.RUNNING.jobs, [])


class Output(Jobs):
    def own(self, text, read):
        """A job whose output is this process's; `read` gets the other end of its standard output."""
        ours, theirs = os.pipe()
        kept = os.dup(1)
        sys.stdout.flush()
        os.dup2(theirs, 1)
        os.close(theirs)
        try:
            reader = threading.Thread(target=read, args=(ours,))
            reader.start()
            result = self.ended(text, shown=True, log=False)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        reader.join()
        return result

    def test_log_has_both_streams_without_progress(self):
        self.ended(r"echo out; printf '\r1/9\033[K' >&2; printf '\r2/9\033[K' >&2; printf '\r\033[K' >&2; echo err >&2")
        self.assertEqual(sorted(self.log.read_text().split()), ["err", "out"])

    def test_a_full_disk_under_standard_output_is_named(self):
        kept = os.dup(1)
        sys.stdout.flush()
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), 1)
        try:
            with self.assertRaises(OSError) as raised:
                job.Output().write(1, b"x")
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        self.assertEqual(raised.exception.filename, "standard output")

    def test_half_a_line_arrives_at_once(self):
        got = []

        def read(descriptor):
            got.append(os.read(descriptor, 100))
            os.kill(int(got[0].split()[0]), signal.SIGTERM)
            got.append(os.read(descriptor, 100))
            os.close(descriptor)
        self.own("printf '%d half' $$; exec sleep 60", read)
        self.assertRegex(got[0], rb"^\d+ half$")

    def test_a_log_on_a_full_disk_is_this_process_s_trouble(self):
        self.log = pathlib.Path("/dev/full")
        started = self.job("echo $$; sleep 60")
        started.start()
        with self.assertRaisesRegex(OSError, "No space left on device: '/dev/full'"):
            started.wait()
        self.assertEqual(job.RUNNING.jobs, [])


class Signals(Jobs):
    def test_one_is_handed_over_once(self):
        started, _ = self.up("trap 'echo once; sleep 0.2; exit 7' TERM; echo up; while :; do sleep 0.01; done")
        for number in job.STOP_SIGNALS:
            os.kill(os.getpid(), number)
        started.wait()
        self.assertEqual((started.result.code, self.log.read_text()), (5, "up\nonce\n"))
        self.assertIn(job.RUNNING.stopped, job.STOP_SIGNALS)
        with self.assertRaises(job.Stopped):  # no further job is started
            self.job("true").start()

    def test_one_that_is_passed_on_is_sent_again_at_the_start(self):
        started, _ = self.up("trap '((n++)) && exit 7' USR2; echo up; while :; do sleep 0.01; done", stop_signal=signal.SIGUSR2)
        started.stop()
        started.wait()
        self.assertEqual((started.result.status, started.result.killed), (7, False))

    def test_a_second_one_kills(self):
        said = []
        started, pids = self.up("trap '' TERM; sleep 60 & echo $$ $!; wait; sleep 60", say=said.append)
        os.kill(os.getpid(), signal.SIGTERM)
        self.serve(0.1)
        self.assertIsNone(started.result)
        with mock.patch.object(job, "SAME_STOP", 0):
            os.kill(os.getpid(), signal.SIGTERM)
        started.wait()
        self.assertEqual((started.result.code, started.result.killed), (5, True))
        self.assertLess(started.result.seconds, 8)  # within its grace of 10
        self.assertEqual(said, ["a second signal: bash was killed, with all that it started on this host"])
        self.assertTrue(gone(*pids))

    def test_without_a_job_it_ends_this_process(self):
        with self.assertRaises(job.Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)

    def test_usr1_is_passed_on(self):
        started, _ = self.up("trap 'exit 9' USR1; echo up; while :; do sleep 0.01; done")
        os.kill(os.getpid(), signal.SIGUSR1)
        started.wait()
        self.assertEqual(started.result.code, 9)

    def test_what_an_inconclusive_job_leaves_is_ended(self):
        """A command that ends by itself, with 3, while what it started goes on."""
        for code, runs in [(3, False), (0, True)]:
            self.ended(f"sleep 300 >/dev/null 2>&1 & echo $!; exit {code}")
            pid = int(self.log.read_text())
            self.addCleanup(job.signal_all, [pid], signal.SIGKILL)
            self.assertTrue(pathlib.Path(f"/proc/{pid}").exists() if runs else gone(pid))

    def test_the_job_has_a_group_of_its_own(self):
        self.ended("cut -d' ' -f5 /proc/$$/stat; echo $$")
        group, pid = self.log.read_text().split()
        self.assertEqual(group, pid)


class TimeOuts(unittest.TestCase):
    def test_ssh_has_them_unless_the_site_has_its_own_agent_or_arguments(self):
        with tempfile.TemporaryDirectory() as home, \
                unittest.mock.patch.dict(os.environ, {"HOME": home}):
            path = pathlib.Path(home, ".openmpi/mca-params.conf")
            path.parent.mkdir()
            for launcher, args, agent, keepalive in [
                    ("openmpi4", "OMPI_MCA_plm_rsh_args", "OMPI_MCA_plm_rsh_agent", "OMPI_MCA_oob_tcp_keepalive_"),
                    ("openmpi5", "PRTE_MCA_plm_ssh_args", "PRTE_MCA_plm_ssh_agent", "PRTE_MCA_oob_tcp_keepalive_"),
                    ("hydra", "HYDRA_LAUNCHER_EXTRA_ARGS", "HYDRA_LAUNCHER_EXEC", ""),
                    ("hydra", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP", "")]:
                path.write_text("btl = tcp,self\n")
                settings = launchers.LAUNCHERS[launcher].environment
                self.assertIn("ConnectTimeout=15", settings({"PATH": home}).get(args, ""))
                self.assertNotIn(args, settings({"PATH": home, agent: "rsh"}))
                if keepalive:
                    path.write_text("btl = tcp,self\nplm_rsh_args = -p 2222\n")
                    self.assertEqual(settings({"PATH": home}),
                                     {f"{keepalive}time": "8", f"{keepalive}intvl": "4", f"{keepalive}probes": "3"})


class ManyJobs(unittest.TestCase):
    def test_descriptors_above_1023(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < 1200:
            self.skipTest(f"at most {hard} open files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        taken = [os.open(os.devnull, os.O_RDONLY)]
        while taken[-1] < 1024:
            taken.append(os.dup(taken[0]))
        self.addCleanup(lambda: [os.close(descriptor) for descriptor in taken])
        with tempfile.TemporaryDirectory() as folder:
            one = job.Job(["sh", "-c", "echo said; exit 3"], output=job.Output(f"{folder}/log", shown=False), limit=20)
            one.start()
            one.wait()
            self.assertEqual(one.result.code, 3)
            self.assertEqual(pathlib.Path(f"{folder}/log").read_text(), "said\n")

    def test_open_mpi_s_folder_stays_while_jobs_start_and_end(self):
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder, f"ompi.{os.uname().nodename.partition('.')[0]}.{os.geteuid()}")
            with launchers.OpenMpi4().session_folder({"TMPDIR": folder}):
                self.assertRaises(OSError, top.rmdir)  # as the last of several jobs tries
                self.assertEqual(top.stat().st_mode & 0o777, 0o700)
            self.assertFalse(top.exists())
            with launchers.OpenMpi4().session_folder({"TMPDIR": folder}):
                (top / "pid.7").mkdir()  # of a job that somebody else runs
            self.assertTrue((top / "pid.7").exists())
        with launchers.OpenMpi4().session_folder({"TMPDIR": "/proc/none"}):  # mpirun says why
            pass

    def test_open_mpi_s_folder_is_not_one_that_others_can_change(self):
        name = f"ompi.{os.uname().nodename.partition('.')[0]}.{os.geteuid()}"
        with tempfile.TemporaryDirectory() as folder:
            top, elsewhere = pathlib.Path(folder, name), pathlib.Path(folder, "elsewhere")
            elsewhere.mkdir(mode=0o700)
            made = [top.touch, lambda: top.symlink_to(elsewhere), top.mkdir]
            if os.geteuid() == 0:
                made.append(lambda: (top.mkdir(mode=0o700), os.chown(top, 65534, -1)))
            for make in made:
                make()
                if top.is_dir() and not top.is_symlink() and top.stat().st_uid == os.geteuid():
                    top.chmod(0o777)
                with self.assertRaisesRegex(PermissionError, "only this user can use"), \
                        launchers.OpenMpi4().session_folder({"TMPDIR": folder}):
                    self.fail("in use")
                self.assertEqual(list(elsewhere.iterdir()), [])
                top.rmdir() if top.is_dir() and not top.is_symlink() else top.unlink()

    def test_how_many(self):
        unlimited = resource.RLIM_INFINITY
        for cores, files, processes, most in [(2, 20000, unlimited, 64), (64, 20000, unlimited, 1024),
                                              (64, 1024, unlimited, 204), (64, 20000, 4096, 256),
                                              (64, unlimited, unlimited, 1024), (1, 64, 64, 16)]:
            limits = {resource.RLIMIT_NOFILE: files, resource.RLIMIT_NPROC: processes}
            with unittest.mock.patch.object(fleet.os, "sched_getaffinity", lambda pid: range(cores)), \
                    unittest.mock.patch.object(fleet.resource, "getrlimit", lambda which: (limits[which], 0)):
                self.assertEqual(fleet.at_once(), most)


if __name__ == "__main__":
    unittest.main()
