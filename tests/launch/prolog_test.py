"""launch/slurm/prolog and epilog without Slurm; tests/slurm has Slurm call them."""

import os
import subprocess
import time
import unittest

import tree  # noqa: F401 - what is imported below is in its folders
from hook_fakes import HookCase

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"}
PASSES = "echo 'PASS n1 (rates not judged)'; echo 'WARN inventory: eth0 at unknown speed'"
FAILS = """echo noise >&2; printf '%s\\n' 'FAIL n1' 'FAIL GPU 1, serial 1650: 7 % slow; RMA' \\
    'INCONCLUSIVE links: not run' 'WARN inventory: eth0' 'UNKNOWN inventory: x'; exit 1"""


class Jobs(HookCase):
    """Each with a GPU that is idle, and Slurm's cgroups without a process of the job."""

    def setUp(self):
        super().setUp()
        self.replace("launch/acceptance", f"echo ran >>{self.folder}/ran; {PASSES}")
        self.cgroup("freezer/slurm_n1/uid_0/job_8/step_0", os.getpid())
        self.gpus({"0000:18:00.0": 0})
        self.smi("echo '00000000:18:00.0, 4'")

    def smi(self, script):
        self.replace("fakes/nvidia-smi", script)

    def runs(self):
        """How often the GPUs were tested."""
        path = self.folder / "ran"
        return len(path.read_text().split()) if path.exists() else 0

    # ---- the GPUs' test ----

    def test_a_job_that_passes_leaves_no_word(self):
        for hook in ("prolog", "epilog"):
            self.assertEqual(self.call(hook, 0, **JOB), "")
            self.assertEqual(self.call(hook, 0, SLURM_JOB_ID="7"), "")
        self.assertEqual(self.runs(), 2)

    def test_a_failure_is_one_line_and_a_note(self):
        self.replace("launch/acceptance", FAILS)
        for hook in ("prolog", "epilog"):
            said = self.call(hook, 1, **{**JOB, "SLURM_JOB_ID": hook})
            cause = "GPU 1, serial 1650: 7 % slow; RMA"
            self.assertEqual(said, f"{hook} on n1, job {hook}: FAIL: {cause}\n" if hook == "prolog" else
                             f"epilog on n1, job epilog: INCONCLUSIVE: whether a process of the job still runs "
                             f"is not known: SLURM_JOB_ID=epilog\nepilog on n1, job epilog: FAIL: {cause}\n")
            self.assertEqual((self.state / hook).read_text(), f"{hook} shakedown:{hook}: {cause}\n")
        self.assertIn("FAIL: GPU 1, serial 1650", self.syslog())

    def test_what_is_not_a_pass_is_logged(self):
        """And drains nothing: a launcher that breaks, such as python3, does not end with "FAIL" first."""
        for script, said in [
                ("echo 'INCONCLUSIVE n1'; echo 'INCONCLUSIVE compute: no GPU is visible'; echo 'WARN x: y'; echo 'UNKNOWN x: y'",
                 "INCONCLUSIVE n1; INCONCLUSIVE compute: no GPU is visible"),
                ("exit 1", "INCONCLUSIVE: launch/acceptance --prolog ended with 1: no output"),
                ("echo 'Traceback'; exit 1", "ended with 1: Traceback"), ("", "ended with 0: no output"),
                ("echo 'FAIL n1'", "ended with 0: FAIL n1"), ("echo 'PASS n1'; exit 1", "ended with 1: PASS n1"),
                ("echo 'PASS n1'; exit 4", "ended with 4: PASS n1"), ("head -c 99 /dev/zero", "INCONCLUSIVE"),
                ("echo 'FAILURE of python'; exit 1", "ended with 1: FAILURE of python")]:
            self.replace("launch/acceptance", script)
            self.assertIn(said, self.call("prolog", 0, **JOB))
        self.assertIn(said, self.call("epilog", 0, **JOB))
        self.assertEqual(list(self.state.glob("p*")), [])

    def test_one_that_does_not_end_is_logged(self):
        self.settings("prolog_seconds=2")
        self.replace("launch/acceptance", "echo 'PASS n1'; exec /bin/sleep 60")
        self.assertIn("INCONCLUSIVE: launch/acceptance --prolog did not end within 2 s: PASS n1",
                      self.call("prolog", 0, **JOB))

    def test_a_gpu_that_has_just_passed_is_not_tested_again(self):
        both = {**JOB, "SLURM_JOB_GPUS": "0-1"}
        self.settings("prolog_interval=10")
        for job, runs in [(JOB, 1), (JOB, 1), (both, 2), (both, 2)]:
            self.call("prolog", 0, **job)
            self.assertEqual(self.runs(), runs)
        for age in (-60, 601, 1e9):  # a clock that was wrong, the interval, before the node was booted
            os.utime(self.state / "passed-0", (time.time() - age,) * 2)
            self.call("prolog", 0, **JOB)
            runs += 1
            self.assertEqual(self.runs(), runs)
        for interval in ("0", "1h", ""):
            self.settings(f"prolog_interval={interval}")
            self.call("prolog", 0, **JOB)
            runs += 1
            self.assertEqual(self.runs(), runs)
        self.settings("prolog_interval=10", "gpu_minors=(0)")
        for numbers in ("NoDevFiles", "1", "0,"):  # of no GPU it is known that it has passed
            self.call("prolog", 0, SLURM_JOB_ID="7", SLURM_JOB_GPUS=numbers)
            runs += 1
            self.assertEqual(self.runs(), runs)
        self.replace("launch/acceptance", FAILS)
        self.settings()
        self.call("prolog", 1, **JOB)
        self.assertEqual([path.name for path in self.state.glob("passed-*")], ["passed-1"])

    def test_after_a_prolog_that_failed_the_epilog_tests_nothing_again(self):
        self.replace("launch/acceptance", FAILS)
        self.call("prolog", 1, **JOB)
        self.assertEqual(self.call("epilog", 0, **JOB), "")
        self.call("epilog", 1, **{**JOB, "SLURM_JOB_ID": "6"})  # another job's
        self.state.chmod(0o777)  # where anybody can write such a note
        self.call("epilog", 1, **JOB)

    def test_a_site_s_options_of_bash_drain_nothing(self):
        self.settings("set -euo pipefail", f"cgroup_folder={self.folder}/nothing")
        self.replace("launch/acceptance", "echo INCONCLUSIVE; exit 3")
        self.assertIn("INCONCLUSIVE", self.call("prolog", 0, **JOB))
        self.assertIn("INCONCLUSIVE", self.call("epilog", 0, **JOB))

    def test_settings_that_cannot_be_read_are_reported(self):
        """Nothing else is read in their place, and nothing is drained."""
        self.replace("launch/acceptance", FAILS)
        for hook, code, site in [("health_check", 3, f"{self.folder}/gone"), ("prolog", 0, self.folder),
                                 ("epilog", 0, self.folder)]:
            said = self.call(hook, code, SHAKEDOWN_SITE=str(site), **JOB)
            self.assertRegex(said, f"^{hook} on .*: INCONCLUSIVE: SHAKEDOWN_SITE={site}: the site's "
                             "settings cannot be read: nothing is checked\n$")

    def test_no_folder_of_its_own(self):
        """As where /run and /tmp are full."""
        self.replace("fakes/mktemp", "echo 'mktemp: No space left on device' >&2; exit 1")
        for hook, code in [("health_check", 3), ("prolog", 0), ("epilog", 0)]:
            self.assertIn("INCONCLUSIVE: a folder in /run or /tmp cannot be made: nothing is checked",
                          self.call(hook, code, **JOB))
        self.assertEqual(self.runs(), 0)

    def test_the_gpus_of_the_job_are_those_of_slurm_s_numbers(self):
        self.replace("launch/acceptance", "printf '%s\\n' 'FAIL n1' \"FAIL $1 $SLURM_JOB_ID $SLURM_JOB_GPUS\"; exit 1")
        for settings, numbers in [("", "1,3"), ("gpu_minors=(9 8 7 6)", "8,6")]:
            self.settings(settings)
            self.assertRegex(self.call("prolog", 1, SLURM_JOB_ID="7", SLURM_JOB_GPUS="1,3"),
                             f"^prolog on n1, job 7: FAIL: --prolog 7 {numbers}\n$")

    # ---- what is left over ----

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

    def test_processes_that_cannot_be_read_drain_nothing(self):
        """An epilog then tests the GPUs all the same."""
        self.replace("launch/acceptance", FAILS)
        for script, why in [("exit 0", "Slurm has no cgroup in "), ("echo 'find: x: Input/output error'; exit 1",
                                                                    "Slurm has no cgroup in "),
                            (f"[[ $1 != */freezer/slurm_n1 ]] || {{ echo cat: 7: No such device; exit 1; }}; "
                             'exec /usr/bin/find "$@"', "cat: 7: No such device")]:
            self.replace("fakes/find", script)
            said = self.call("epilog", 0, SLURM_JOB_ID="7")
            self.assertIn("INCONCLUSIVE: whether a process of the job still runs is not known: " + why, said)
            self.assertNotIn("FAIL", said)
            self.assertIn("FAIL: GPU 1, serial 1650", self.call("epilog", 1, **JOB))

    def test_memory_of_the_job_s_own_gpus(self):
        """Slurm's number 0 is /dev/nvidia0, here the second on the bus; the first is another job's."""
        self.gpus({"0000:18:00.0": 1, "0000:3b:00.0": 0})
        self.smi("""[[ $1 == --id=0000:3b:00.0 && $2 == *memory.used* ]] && echo '00000000:3B:00.0, 4' ||
            echo '00000000:18:00.0, 61234'""")
        self.assertEqual(self.call("epilog", 0, **JOB), "")
        self.assertIn("FAIL: in use after the job: GPU 00000000:18:00.0: 61234 MiB",
                      self.call("epilog", 1, SLURM_JOB_ID="7", SLURM_JOB_GPUS="1"))

        self.settings("gpu_minors=(5 0)")  # in the order of gres.conf
        self.assertEqual(self.call("epilog", 0, SLURM_JOB_ID="7", SLURM_JOB_GPUS="1"), "")
        for number, said in [("0", "SLURM_JOB_GPUS=5"), ("1-2", "SLURM_JOB_GPUS=0,unknown")]:
            self.assertIn(f"which GPUs are {said} is not known",
                          self.call("epilog", 0, SLURM_JOB_ID="7", SLURM_JOB_GPUS=number))

    def test_coherent_memory_is_no_sign_of_a_process(self):
        used = "echo '00000000:18:00.0, 61234'"
        for numa, apps, code, said in [
                (" -1", "", 1, "61234 MiB"), (" 1", "", 0, ""), (" 1", "echo '00000000:18:00.0, 4711, python'",
                                                                1, "in use after the job: 00000000:18:00.0, 4711"),
                (" 1", "exit 1", 0, "INCONCLUSIVE: whether the job's GPUs are still in use")]:
            self.gpus({"0000:18:00.0": 0}, numa)
            self.smi(f"[[ $2 == *compute-apps* ]] || {{ {used}; exit; }}; "
                     f"echo 'gpu_bus_id, pid, process_name'; {apps}")
            answer = self.call("epilog", code, **JOB)
            self.assertIn(said, answer)
            self.assertEqual(bool(said), bool(answer))

    def test_gpus_that_cannot_be_read_drain_nothing(self):
        for script in ("exit 1", "", "echo 'No devices were found'; exit 6", "echo '00000000:18:00.0, [N/A]'",
                       "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
                       "echo 'NVML library version: 535.161, 4096'", "echo '00000000:18:00.0, 9999'; exit 15"):
            self.smi(script)
            self.assertIn("INCONCLUSIVE: whether the job's GPUs are still in use is not known",
                          self.call("epilog", 0, **JOB))
        self.smi("echo '00000000:18:00.0, 9999'")
        for minors, mig, number in [({}, False, "0"), ({"0000:18:00.0": 1}, False, "0"),
                                    ({"0000:18:00.0": 0, "0000:3b:00.0": 0}, False, "0"),
                                    ({"0000:18:00.0": 0}, True, "0"), ({"0000:18:00.0": 0}, False, "NoDevFiles")]:
            self.gpus(minors, mig=mig)
            self.assertIn(f"which GPUs are SLURM_JOB_GPUS={number} is not known",
                          self.call("epilog", 0, SLURM_JOB_ID="7", SLURM_JOB_GPUS=number))


if __name__ == "__main__":
    unittest.main()
