"""launch/slurm/health_check without Slurm; tests/slurm has Slurm call it."""

import datetime
import os
import shutil
import subprocess
import time
import unittest

import tree  # noqa: F401 - what is imported below is in its folders
import transcript
from hook_fakes import HOOKS, PATH, HookCase

REASON = "shakedown:gpu-count: 7 GPUs, 8 expected"


class CommandLine(unittest.TestCase):
    def test_an_option_that_is_mistyped_drains_nothing(self):
        for hook, word, code, said in [("health_check", "--prnt", 2, "unknown option --prnt"),
                                       ("health_check", "--help", 0, "--print"),
                                       ("prolog", "--help", 0, "Tests the job's GPUs"),
                                       ("epilog", "--help", 0, "nothing of the job is left over")]:
            result = subprocess.run([HOOKS / hook, word], stdout=subprocess.PIPE, text=True,
                                    env={"PATH": PATH, "SLURM_JOB_ID": "7"})
            self.assertEqual((result.returncode, said in result.stdout), (code, True), result.stdout)
            self.assertNotRegex(result.stdout, "shellcheck|PATH=")

    def test_a_job_script_is_for_sbatch(self):
        for script in HOOKS.glob("*.sbatch"):
            result = subprocess.run(["bash", script], stderr=subprocess.PIPE, text=True, cwd=HOOKS,
                                    env={"PATH": PATH, "SHAKEDOWN": str(HOOKS.parents[1])})
            self.assertEqual((result.returncode, result.stderr),
                             (2, f"{script}: not in a Slurm job (SLURM_JOB_ID): submit it by sbatch\n"))


class JobScript(HookCase):
    def submitted(self, code=0, site="", script="collectives.sbatch", arguments=(), **environ):
        """What a script prints in job 7 of two nodes, with a script in launch/mpi's place; slurmctld does not answer."""
        (self.folder / "site.sh").write_text(site)
        (self.folder / "launch/slurm" / script).chmod(0o755)
        self.replace("launch/mpi", 'echo "tasks=${SLURM_NTASKS-none} $SITE $*"')
        self.replace("fakes/scontrol", "exit 1")
        (self.folder / "fakes/python3").unlink(missing_ok=True)
        return self.call(script, code, arguments=arguments, PATH=f"{self.folder}/fakes:{PATH}", SHAKEDOWN=str(self.folder),
                         SLURM_JOB_ID="7", SLURM_JOB_NAME="x", SLURM_JOB_NODELIST="n[1-2]", SHAKEDOWN_RUNS=str(self.folder), **environ)

    def test_settings_of_the_site_whose_last_command_fails(self):
        self.assertIn("tasks=none seen", self.submitted(site="export SITE=seen\n[[ -d /nothing ]] && module load cuda\n"))
        self.assertIn("tasks=none  train", self.submitted(script="train.sbatch", arguments=["--epochs", "9"], site="set -euo pipefail\n"))
        for site, environ in [("", {"SHAKEDOWN_SITE": str(self.folder)}), ("x=(1\n", {})]:
            self.assertIn("the site's settings cannot be read", self.submitted(2, site=site, **environ))
        for site in ("exit 1", "set -u; PATH=$MY_MPI/bin:$PATH"):  # 1 is wrong data
            self.assertIn("settings of the site that end the job script", self.submitted(2, site=site))

    def test_tasks_of_the_job_that_submitted_it_are_not_its_own(self):
        for tasks, per_node, seen in [("1", "4(x2)", "none"), ("3", "2,1", "3"), ("9", "4(x2),1", "9"), ("8", "1(x2)", "none")]:
            said = self.submitted(SLURM_NTASKS=tasks, SLURM_TASKS_PER_NODE=per_node)
            self.assertIn(f"tasks={seen}", said)
            self.assertEqual("of the submission is ignored" in said, seen == "none", said)


    def test_a_training_that_is_queued_again_continues_from_the_folder_that_its_arguments_name(self):
        own = self.folder / "own [1]"
        own.mkdir()
        self.assertNotIn("time limit", self.submitted(script="train.sbatch", arguments=["--epochs", "9"]))
        for options in (["--checkpoint-dir", own], [f"--checkpoint-dir={own}"]):
            (own / "checkpoint_latest.safetensors").unlink(missing_ok=True)
            for again in ("", " --resume auto"):
                said = self.submitted(script="train.sbatch", SLURM_RESTART_COUNT="1",
                                      arguments=["--epochs", "9", "--resume", "none", *map(str, options)])
                self.assertTrue(said.endswith(f"own [1]{again}\n"), said)
                (own / "checkpoint_latest.safetensors").touch()
        link, above = self.folder / "link", self.folder / "above"  # a folder below is of others
        link.symlink_to(own)
        (above / "old").mkdir(parents=True)
        (above / "old" / "checkpoint_latest.safetensors").touch()
        for folder, again in (link, " --resume auto"), (above, ""):
            said = self.submitted(script="train.sbatch", SLURM_RESTART_COUNT="1", arguments=["--epochs", "9", f"--checkpoint-dir={folder}"])
            self.assertTrue(said.endswith(f"{folder.name}{again}\n"), said)


class HealthCheck(HookCase):
    def checks(self, times, code):
        return [self.call("health_check", code) for _ in range(times)]

    def test_cases(self):
        """What each prints, and what it calls of Slurm."""
        transcript.check(self, HOOKS.parents[1] / "tests/launch/health_check.txt", self.answer)

    def test_of_nodes_that_drain_at_the_same_time_only_the_first_stay_drained(self):
        """They do not see one another before."""
        now = f"{datetime.datetime.now():%Y-%m-%dT%H:%M:%S}"
        self.node_check_fails()
        self.replace("fakes/sinfo", f"""[[ $* != *--nodes* ]] || {{ echo 'idle|none'; exit; }}
            echo 'n2|drained|{now}|shakedown:ecc: x'
            if [[ -e {self.scontrol} ]]; then printf '%s|drained|{now}|shakedown:gpu-count: y\\n' n1 n3
            else printf '%s|idle|Unknown|none\\n' n1 n3; fi""")
        for node, done in [("n1", 1), ("n3", 2)]:
            self.scontrol.unlink(missing_ok=True)
            said = [self.call("health_check", 1, SLURMD_NODENAME=node) for _ in range(2)]
            self.assertEqual([call.split()[0] for call in self.scontrol_calls()],
                             ["state=drain", "state=resume"][:done], said)
            for note in ("drained", "drains"):
                self.assertEqual((self.state / note).exists(), done == 1)
            shutil.rmtree(self.state)

    def test_a_gpu_that_fails_again_and_again_is_not_resumed(self):
        self.node_check_fails("ecc-volatile", "7 uncorrected ECC errors", "1650", subject="GPU 1")
        fails = (self.folder / "bin/node_check").read_text()
        old = "1 1650\n" * 9 + f"{int(time.time())} other\n" * 9  # 1970; another part
        self.state.mkdir()
        (self.state / "drains").write_text(old)
        for times, text in enumerate(["serial 1650: GPU 1: 7", "serial 1650: GPU 1: 7",
                                      "3 times in 30 days: RMA, serial 1650: GPU 1: 7"], 1):
            self.slurm_says("idle|none")
            (self.folder / "bin/node_check").write_text(fails)
            self.checks(2, 1)
            reason = f"shakedown:ecc-volatile: {text} uncorrected ECC errors"
            self.assertEqual(self.scontrol_calls()[-1], f"state=drain reason={reason}")
            self.slurm_says(f"drained|{reason}")
            self.node_check_passes()
            self.checks(3, 0)
            self.assertEqual(self.scontrol_calls()[-1] == "state=resume", times < 3)
        self.assertEqual(len(self.scontrol_calls()), 5)

    def test_two_checks_do_not_overlap(self):
        self.node_check_passes(before=f"touch {self.folder}/began; while [[ ! -e {self.folder}/over ]]; do "
                                      "/bin/sleep 0.05; done")
        with subprocess.Popen([self.folder / "launch/slurm/health_check"], stdout=subprocess.DEVNULL, env={
                "PATH": PATH, "SHAKEDOWN_SITE": str(self.folder / "site.sh")}) as first:
            while not (self.folder / "began").exists():
                time.sleep(0.05)
            self.assertIn("the check before still runs", self.call("health_check", 3))
            (self.folder / "over").touch()
            self.assertEqual(first.wait(60), 0)
        # A process that hangs does not hold the lock of the check that started it.
        self.node_check_passes(before="setsid /bin/sleep 9 &")
        self.assertEqual(self.checks(2, 0), ["", ""])

    def test_a_reason_is_one_that_slurm_keeps(self):
        """Others are in health_check.txt: by the C library this character is one, or two."""
        self.slurm_says("idle|none")
        self.node_check_fails("ecc", "`GPU 1` at 91 °C | 'x' " + 99 * "y" + '"')
        self.checks(2, 1)
        call, = self.scontrol_calls()
        self.assertRegex(call, r"^state=drain reason=shakedown:ecc: GPU 1 at 91 {1,2}C {2}x y{70,}$")
        self.assertLessEqual(len(call), len("state=drain reason=") + 120)

    def test_what_others_can_change_is_not_used(self):
        self.slurm_says("idle|none")
        self.state.mkdir()
        log = self.folder / "log"
        self.settings(f"hook_log={log}")
        self.call("health_check", 0)
        for path, mode, said in [(self.state, 0o777, "others can change it: nothing is checked"),
                                 (self.folder / "site.sh", 0o666, "by others than root"),
                                 (self.folder / "site.sh", 0o664, "by others than root")]:
            before = path.stat().st_mode
            path.chmod(mode)
            self.assertIn(said, self.call("health_check", 3))
            path.chmod(before)
        log.unlink()
        self.node_check_fails()
        log.symlink_to(self.folder / "elsewhere")
        self.call("health_check", 1)
        self.assertEqual((self.folder / "elsewhere").exists(), False)
        log.unlink()
        os.mkfifo(log)  # nothing reads it
        self.assertIn("is not written: others can replace it", self.call("health_check", 1))
        log.unlink()
        self.node_check_fails(cause="no GPU")
        self.call("health_check", 1)
        self.assertIn("no GPU", log.read_text())

    def test_settings_of_which_bash_reads_a_part_are_not_used(self):
        self.node_check_fails()
        self.slurm_says("idle|none")
        self.settings("x=(", "health_action=print")
        for _ in range(2):
            self.assertRegex(self.call("health_check", 3), "INCONCLUSIVE: .*: line 6: .*: nothing is checked")
        self.settings("set -euo pipefail")
        self.checks(2, 1)
        self.assertEqual(self.scontrol_calls(), [f"state=drain reason={REASON}"])

    @unittest.skipIf(os.geteuid(), "needs root")
    def test_as_root_files_of_others_are_not_used(self):
        self.folder.chmod(0o755)
        self.state.mkdir()
        for path, said in [(self.state, "nothing is checked"), (self.folder / "site.sh", "by others than root"),
                           (self.folder, "by others than root")]:  # who owns the folder can replace what is in it
            os.chown(path, 65534, -1)
            self.assertIn(said, self.call("health_check", 3))
            os.chown(path, 0, -1)

    def test_the_caller_s_environment_is_not_used(self):
        self.replace("bin/node_check", "env | grep -E '^(SHAKEDOWN|PYTHON|LD_|BASH_ENV|TMPDIR)'; exit 3")
        evil = self.folder / "evil"
        evil.write_text(f"touch {self.folder}/ran\n")
        said = self.call("health_check", 3, BASH_ENV=str(evil), SHAKEDOWN_BIN="/tmp", PYTHONPATH="/tmp",
                         SHAKEDOWN_NVML_LIBRARY="/tmp/x.so", TMPDIR="/nowhere",
                         **{"BASH_FUNC_timeout%%": f"() {{ touch {self.folder}/ran; }}"})
        self.assertRegex(said, r"ended with 3: (SHAKEDOWN_SITE=\S*site.sh|TMPDIR=/(run|tmp)/\S+)$")
        self.assertFalse((self.folder / "ran").exists())
        self.replace("bin/node_check", "echo $TMPDIR; stat -c %a-%u $TMPDIR >$TMPDIR/record; cat $TMPDIR/record; exit 3")
        self.assertIn(f"700-{os.geteuid()}", self.call("health_check", 3))
        self.replace("bin/node_check", "echo $TMPDIR; exit 3")
        self.assertFalse(os.path.exists(self.call("health_check", 3).split()[-1]))


if __name__ == "__main__":
    unittest.main()
