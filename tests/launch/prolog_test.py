"""launch/slurm/prolog and epilog without Slurm; tests/slurm has Slurm call them."""

import os
import subprocess
import unittest

import tree  # noqa: F401 - what is imported below is in its folders
import transcript
from hook_fakes import HOOKS, HookCase


class Jobs(HookCase):
    def test_cases(self):
        """What each prints."""
        transcript.check(self, HOOKS.parents[1] / "tests/launch/prolog.txt", self.answer)

    def test_a_site_s_options_of_bash_drain_nothing(self):
        self.settings("set -euo pipefail", "ulimit -f 0", f"cgroup_folder={self.folder}/nothing hook_log={self.folder}/log")
        self.replace("launch/acceptance", "echo INCONCLUSIVE; exit 3")
        for hook in ("prolog", "epilog"):
            self.assertIn("INCONCLUSIVE", self.call(hook, 0, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0"))

    def test_processes_in_the_job_s_cgroup(self):
        # A user's process may say that it is of any job: it is not believed.
        with subprocess.Popen(["/bin/sleep", "60"], env={"SLURM_JOB_ID": "7"}) as other:
            self.addCleanup(other.kill)
            self.assertEqual(self.call("epilog", 0, SLURM_JOB_ID="7"), "")
            for place in ("freezer/slurm_n1/uid_0/job_7/step_0", "system.slice/slurmstepd.scope/job_7/step_0/user",
                          "system.slice/n1_slurmstepd.scope/job_7"):
                folder = self.cgroup(place, other.pid)
                said = self.call("epilog", 1, SLURM_JOB_ID="7")
                self.assertRegex(said, f"FAIL: processes of the job still run: {other.pid} sleep S ")
                self.assertRegex((self.state / "epilog").read_text(), "^7 shakedown:epilog: processes of the job")
                (folder / "cgroup.procs").write_text("")
            self.cgroup("user.slice/job_7", other.pid)  # not below Slurm's
            self.cgroup("freezer/slurm_n1/uid_0/job_77", other.pid)
            self.assertEqual(self.call("epilog", 0, SLURM_JOB_ID="7"), "")
            other.kill()

    def test_processes_that_end_are_no_concern(self):
        self.settings("epilog_seconds=60")
        folder = self.cgroup("freezer/slurm/uid_0/job_7", os.getpid())
        self.replace("fakes/sleep", f": >{folder}/cgroup.procs")
        self.assertEqual(self.call("epilog", 0, SLURM_JOB_ID="7"), "")

    @unittest.skipIf(os.geteuid(), "needs root")
    def test_a_user_s_cgroup_is_not_slurm_s(self):
        self.folder.chmod(0o755)
        (self.cgroup("user/slurm/job_7", os.getpid()).parent).chmod(0o755)
        os.chown(self.folder / "cgroup/user/slurm", 65534, -1)
        self.assertEqual(self.call("epilog", 0, SLURM_JOB_ID="7"), "")


if __name__ == "__main__":
    unittest.main()
