"""As many jobs at the same time as a fleet of thousands of nodes needs, and when a host that does not
answer is lost."""

import os
import pathlib
import resource
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "launch"))
from shakedown_launch import job, mpi  # noqa: E402
from shakedown_launch.acceptance.campaign import fleet  # noqa: E402


class TimeOuts(unittest.TestCase):
    def test_ssh_has_them_unless_the_site_has_its_own_agent_or_arguments(self):
        with tempfile.TemporaryDirectory() as home, \
                unittest.mock.patch.dict(os.environ, {"HOME": home}):
            name = "OMPI_MCA_plm_rsh_args"
            self.assertIn("ConnectTimeout=15", mpi.time_outs({"PATH": home}).get(name, ""))
            self.assertNotIn(name, mpi.time_outs({"PATH": home, "OMPI_MCA_plm_rsh_agent": "rsh"}))
            path = pathlib.Path(home, ".openmpi/mca-params.conf")
            path.parent.mkdir()
            path.write_text("btl = tcp,self\nplm_rsh_args = -p 2222\n")
            self.assertEqual(mpi.time_outs({"PATH": home}), mpi.KEEPALIVE)


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
            one = job.Job(["sh", "-c", "echo said; exit 3"],
                          output=job.Output(f"{folder}/log", shown=False))
            one.start()
            self.assertTrue(one.wait(20))
            self.assertEqual(one.result.code, 3)
            self.assertEqual(pathlib.Path(f"{folder}/log").read_text(), "said\n")

    def test_open_mpi_s_folder_stays_while_jobs_start_and_end(self):
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder, f"ompi.{os.uname().nodename.partition('.')[0]}.{os.geteuid()}")
            with mpi.session_folder({"TMPDIR": folder}):
                self.assertRaises(OSError, top.rmdir)  # as the last of several jobs tries
                self.assertEqual(top.stat().st_mode & 0o777, 0o700)
            self.assertFalse(top.exists())
            with mpi.session_folder({"TMPDIR": folder}):
                (top / "pid.7").mkdir()  # of a job that somebody else runs
            self.assertTrue((top / "pid.7").exists())
        with mpi.session_folder({"TMPDIR": "/proc/none"}):  # mpirun says why
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
                        mpi.session_folder({"TMPDIR": folder}):
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
