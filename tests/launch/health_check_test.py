"""launch/slurm/health_check without Slurm; tests/slurm has Slurm call it."""

import datetime
import os
import shutil
import subprocess
import time
import unittest

import tree  # noqa: F401 - what is imported below is in its folders
from hook_fakes import HOOKS, PATH, HookCase, verdict

REASON = "shakedown:gpu-count: 7 GPUs, 8 expected"
WAITS = 'an earlier one (pid 7, "cat") has not ended'


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

    def test_tasks_of_the_job_that_submitted_it_are_not_its_own(self):
        for tasks, per_node, seen in [("1", "4(x2)", "none"), ("3", "2,1", "3"), ("9", "4(x2),1", "9"), ("8", "1(x2)", "none")]:
            said = self.submitted(SLURM_NTASKS=tasks, SLURM_TASKS_PER_NODE=per_node)
            self.assertIn(f"tasks={seen}", said)
            self.assertEqual("of the submission is ignored" in said, seen == "none", said)


    def test_a_training_that_is_queued_again_continues_from_the_folder_that_its_arguments_name(self):
        own = self.folder / "own"
        own.mkdir()
        self.assertNotIn("time limit", self.submitted(script="train.sbatch", arguments=["--epochs", "9"]))
        for options in (["--checkpoint-dir", own], [f"--checkpoint-dir={own}"]):
            (own / "checkpoint_latest.safetensors").unlink(missing_ok=True)
            for again in ("", " --resume auto"):
                said = self.submitted(script="train.sbatch", SLURM_RESTART_COUNT="1",
                                      arguments=["--epochs", "9", "--resume", "none", *map(str, options)])
                self.assertTrue(said.endswith(f"own{again}\n"), said)
                (own / "checkpoint_latest.safetensors").touch()


class HealthCheck(HookCase):
    def checks(self, times, code):
        return [self.call("health_check", code) for _ in range(times)]

    def goes(self, *steps):
        """What the last of these checks print. A step: what node_check does, what Slurm says of the node, how often."""
        old = verdict("n1", "WARN", check="gpu-count", cause="XID 79, 25 h ago")
        does = {"passes": (self.node_check_passes, 0), "fails": (self.node_check_fails, 1),
                "warns": (lambda: self.node_check(0, old, verdict("node_check", "PASS", scope="job")), 0),
                "hangs": (self.node_check_hangs, 3),
                # in the kernel, where nothing ends it; and as the next one says, without findings
                "sleeps": (lambda: self.replace("bin/node_check", "exec /bin/sleep 60"), 3),
                "waits": (lambda: self.node_check_hangs(1, "FAIL", WAITS), 1)}
        for what, state, times in steps:
            self.slurm_says(state)
            does[what][0]()
            said = self.checks(times, does[what][1])
        return said

    def test_a_node_is_drained_and_resumed(self):
        idle, ours, drain = "idle|none", f"drained|{REASON}", f"state=drain reason={REASON}"
        hang = "state=drain reason=shakedown:management: the driver did not return in 3 checks in a row"
        of_hang = "INCONCLUSIVE: node_check ended with 3: it did not end within 5 s"
        for settings, steps, calls, said in [
                # That fails twice, until it passes twice; others have drained it since, by the same reason.
                ("", [("fails", idle, 2), ("passes", ours, 2), ("passes", ours, 3)], [drain, "state=resume"], ""),
                # What failed only became old.
                ("", [("fails", idle, 2), ("warns", ours, 3)], [drain], "not resumed: gpu-count is WARN: XID 79, 25 h ago"),
                ("", [("fails", idle, 2), ("warns", ours, 3), ("passes", ours, 1)], [drain, "state=resume"], ""),
                ("health_action=drain", [("fails", idle, 2), ("passes", ours, 3)], [drain],
                 "would run: scontrol update nodename=n1 state=resume"),
                ("", [("hangs", idle, 2), ("passes", idle, 1), ("hangs", idle, 2)], [], of_hang),
                ("node_check_seconds=1", [("hangs", idle, 2), ("sleeps", idle, 1)], [hang],
                 "INCONCLUSIVE: node_check ended with 3: it did not end within 1 s"),
                ("hangs_until_drained=0", [("hangs", idle, 5)], [], of_hang),
                ("", [("hangs", idle, 1), ("waits", idle, 1)], [f"state=drain reason=shakedown:hung-check: {WAITS.replace(chr(34), '')}"], "")]:
            self.settings(settings)
            self.assertIn(said, "".join(self.goes(*steps)))
            self.assertEqual(self.scontrol_calls(), calls, (settings, steps))
            self.scontrol.unlink(missing_ok=True)
            shutil.rmtree(self.state)
        self.settings("hangs_until_drained=often")
        self.assertIn("hangs_until_drained=often is not a number", self.call("health_check", 2))

    def test_an_answer_that_is_none_changes_nothing(self):
        """A node that the administrator drained keeps its reason, though Slurm's answer was lost: full /tmp."""
        self.node_check_fails()
        for answer in ("", "echo", "printf '\\0'", "echo '|shakedown:x'", "echo 'idle|none'; exit 1",
                       "[[ $* == *--nodes* ]] && echo 'idle|none' || echo", "[[ $* != *--nodes* ]] || "
                       "echo 'idle|none'", "[[ $* == *--nodes* ]] && echo 'idle|none' || echo 'n2|idle||'"):
            self.replace("fakes/sinfo", answer)
            said = "".join(self.checks(2, 1))
            self.assertIn("not known", said, answer)
            self.assertEqual(self.scontrol_calls(), [], answer)
        self.slurm_says("idle|none")
        job = {outcome: verdict("node_check", outcome, scope="job") for outcome in ("PASS", "FAIL", "INCONCLUSIVE")}
        dead = verdict("n1", "INCONCLUSIVE", check="dead-check", cause="it died of signal 11, did not return")
        for found in ("", "exit 1", "echo FAIL; exit 1", "echo Killed; exit 137", "printf 'a\\0b\\n\\0c'", "printf '\\377\\0\\n'",
                      (0,), (0, job["FAIL"]), (1, job["FAIL"]), (1, job["PASS"]), (3, dead, job["INCONCLUSIVE"]),
                      (0, verdict("n1", "FAIL", check="ecc", cause="x")),
                      (3, verdict("n1", "PASS", check="hung-check", cause='"verdict":"INCONCLUSIVE"'))):
            self.replace("bin/node_check", found) if isinstance(found, str) else self.node_check(*found)
            for said in self.checks(2, 3):
                self.assertRegex(said, "INCONCLUSIVE: node_check ended with (0|1|3|137):")
            self.assertEqual(self.scontrol_calls(), [], found)

    def test_of_many_nodes_that_fail_only_the_first_are_drained(self):
        now = datetime.datetime.now()
        lines = [f"n{i}|drained|{now - datetime.timedelta(minutes=ago):%Y-%m-%dT%H:%M:%S}|{reason}"
                 for i, (ago, reason) in enumerate([
                     (90, "shakedown:ecc: x"), (20, "by hand"), (30, "shakedown:ecc: y")], 5)]
        self.node_check_fails()
        for more, drained in [("n7|drained|3000-01-01T00:00:00|shakedown:of another partition", True),
                              ("n8|draining|3000-01-01T00:00:00|shakedown:gpu-count: z", False)]:
            self.scontrol.unlink(missing_ok=True)
            self.slurm_says("idle|none", *lines, more, "n9|idle|3000-01-01T00:00:00|shakedown:was")
            said = "".join(self.checks(2, 1))
            self.assertEqual(bool(self.scontrol_calls()), drained, said)
            shutil.rmtree(self.state)
        self.assertIn("not drained: 2 nodes were within an hour", said)
        self.assertIn("would run: scontrol update nodename=", said)

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

    def test_the_cause_of_a_prolog_error_is_told(self):
        note = self.state / "prolog"
        cause = "shakedown:prolog: GPU 1, serial 1650: wrong data"
        self.state.mkdir()
        for action, state, calls in [
                ("print", "drained|Prolog error", []), ("drain", "drained|by hand", []),
                ("drain", "drained|Prolog error", [f"state=drain reason={cause}"])]:
            note.write_text(f"7 {cause}\n")
            self.slurm_says(state)
            self.settings(f"health_action={action}")
            said = self.call("health_check", 0)
            self.assertEqual("would run" in said, action == "print", said)
            # What has become the reason goes; the job stays, whose epilog may come later.
            self.assertEqual((self.scontrol_calls(), note.read_text()), (calls, "7\n" if calls else f"7 {cause}\n"))
        note.write_text(f"7 {cause}\n")  # a node that is resumed: another error later has another cause
        os.utime(note, (1, 1))
        self.slurm_says("drained|Prolog error")  # not a note of the hook's
        note.write_text("7 `x`\n\n")
        self.call("health_check", 0)
        self.assertEqual(len(self.scontrol_calls()), 1)
        os.utime(note, (1, 1))
        self.slurm_says("idle|none")
        self.call("health_check", 0)
        self.assertFalse(note.exists())

    def test_what_is_logged_is_logged_once(self):
        self.slurm_says("drained|by hand")
        self.node_check_fails()
        for said in self.checks(3, 1):
            self.assertIn("FAIL gpu-count: 7 GPUs", said)
        self.assertEqual(self.syslog().count("gpu-count"), 1, self.syslog())
        self.node_check_fails(cause="6 GPUs, 8 expected")
        self.checks(2, 1)
        self.assertEqual(self.syslog().splitlines()[1:], [
            "health_check on n1: FAIL gpu-count: 6 GPUs, 8 expected -> reboot"])

    def test_a_reason_is_one_that_slurm_keeps(self):
        self.slurm_says("idle|none")
        self.node_check_fails("ecc", "`GPU 1` at 91 °C | 'x' " + 99 * "y" + '"')
        self.checks(2, 1)
        call, = self.scontrol_calls()
        self.assertRegex(call, r"^state=drain reason=shakedown:ecc: GPU 1 at 91  C  x y{79,}$|"
                         r"^state=drain reason=shakedown:ecc: GPU 1 at 91 C  x y{70,}$")
        self.assertLessEqual(len(call), len("state=drain reason=") + 120)
        self.slurm_says(f"drained|{call.partition('reason=')[2]}")
        self.node_check_passes()
        self.checks(2, 0)
        self.assertEqual(self.scontrol_calls()[1:], ["state=resume"])

    def test_print_changes_nothing(self):
        """Neither the node nor what the next call goes by; nor does health_action=print forget a drain."""
        reason = "shakedown:ecc: x"
        state, calls = self.state, self.scontrol
        self.slurm_says("idle|none")
        self.call("health_check", 0, arguments=["--print"])
        self.assertFalse(state.exists())
        state.mkdir()

        def notes():
            return {path.name: path.read_text() for path in state.iterdir()
                    if path.name not in ("logged", "lock")}
        for code, before, answer, action in [
                (0, {"drained": f"{reason}\n", "streak": "PASS 1\n"}, f"drained|{reason}", "resume"),
                (0, {"drained": f"{reason}\n", "streak": "PASS 1\n"}, "idle|none", None),
                (1, {"streak": "FAIL 1\n"}, "idle|none", "drain")]:
            for name, text in before.items():
                (state / name).write_text(text)
            self.node_check_fails("ecc", "x") if code else \
                self.node_check_passes()
            self.slurm_says(answer)
            said = self.call("health_check", code, arguments=["--print"])
            self.assertEqual((notes(), calls.exists()), (before, False), said)
            self.assertEqual("would run: scontrol" in said, action is not None, said)
            if action:
                self.settings("health_action=print")
                said = self.call("health_check", code)
                self.assertEqual(notes(), {**before, "streak": before["streak"].replace("1", "2")})
                self.assertIn(f"state={action}", said)
                self.settings()
                self.call("health_check", code)
                self.assertEqual(calls.read_text().split()[0], f"state={action}")
                calls.unlink()
            for path in state.iterdir():
                path.unlink()

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
