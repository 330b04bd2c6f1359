"""launch/slurm without Slurm: health_check, prolog and epilog; tests/slurm has Slurm call them."""

import datetime
import pathlib
import shutil
import subprocess
import tempfile
import unittest

HOOKS = pathlib.Path(__file__).resolve().parents[2] / "launch/slurm"
FAILS = "echo 'FAIL   gpu-count 7 GPUs, 8 expected'; exit 1"


class CommandLine(unittest.TestCase):
    def test_an_option_that_is_mistyped_drains_nothing(self):
        for hook, word, code, said in [("health_check", "--prnt", 2, "unknown option --prnt"),
                                       ("health_check", "--help", 0, "--print"),
                                       ("prolog", "--help", 0, "Tests the job's GPUs"),
                                       ("epilog", "--help", 0, "nothing of the job is left over")]:
            result = subprocess.run([HOOKS / hook, word], stdout=subprocess.PIPE, text=True,
                                    env={"PATH": "/usr/bin:/bin", "SHAKEDOWN_SITE": "/dev/null",
                                         "SLURM_JOB_ID": "7"})
            self.assertEqual((result.returncode, said in result.stdout), (code, True), result.stdout)
            self.assertNotIn("shellcheck", result.stdout)

    def test_a_job_script_is_for_sbatch(self):
        for script in HOOKS.glob("*.sbatch"):
            result = subprocess.run(["bash", script], stderr=subprocess.PIPE, text=True, cwd=HOOKS,
                                    env={"PATH": "/usr/bin:/bin", "SHAKEDOWN": str(HOOKS.parents[1])})
            self.assertEqual((result.returncode, result.stderr),
                             (2, f"{script}: not in a Slurm job (SLURM_JOB_ID): submit it by sbatch\n"))


class Hooks(unittest.TestCase):
    """A copy of them, with what they call replaced."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        shutil.copytree(HOOKS, self.folder / "launch/slurm")
        (self.folder / "site.sh").write_text(
            f"source {HOOKS}/site.sh; state_folder={self.folder}/state; PATH={self.folder}/fakes:$PATH")

    def replace(self, path, script):
        file = self.folder / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/bash\n{script}\n")
        file.chmod(0o755)

    def call(self, hook, code, *, arguments=(), **environ):
        result = subprocess.run(
            [self.folder / "launch/slurm" / hook, *arguments], stdout=subprocess.PIPE, text=True, timeout=60,
            env={"PATH": "/usr/bin:/bin", "SHAKEDOWN_SITE": str(self.folder / "site.sh"), **environ})
        self.assertEqual(result.returncode, code, result.stdout)
        return result.stdout

    def test_of_many_nodes_that_fail_only_the_first_are_drained(self):
        now = datetime.datetime.now()
        lines = "\n".join(f"n{i}|{now - datetime.timedelta(minutes=ago):%Y-%m-%dT%H:%M:%S}|{reason}"
                          for i, (ago, reason) in enumerate([
                              (90, "shakedown:ecc: x"), (20, "by hand"), (30, "shakedown:ecc: y")]))
        self.replace("bin/node_check", FAILS)
        self.replace("fakes/scontrol", f"echo called >>{self.folder}/scontrol")
        calls = self.folder / "scontrol"
        for more, drained in [("n2|3000-01-01T00:00:00|shakedown:of another partition", True),
                              ("n7|3000-01-01T00:00:00|shakedown:gpu-count: z", False)]:
            calls.unlink(missing_ok=True)
            self.replace("fakes/sinfo",
                         f"[[ $* == *--nodes* ]] && echo 'idle|none' || echo '{lines}\n{more}'")
            said = self.call("health_check", 1) + self.call("health_check", 1)
            self.assertEqual(calls.exists(), drained, said)
            shutil.rmtree(self.folder / "state")
        self.assertIn("not drained: 2 nodes were within an hour", said)
        self.assertIn("would run: scontrol update nodename=", said)

    def test_of_nodes_that_drain_at_the_same_time_only_the_first_stay_drained(self):
        """They do not see one another before."""
        now = f"{datetime.datetime.now():%Y-%m-%dT%H:%M:%S}"
        self.replace("bin/node_check", FAILS)
        self.replace("fakes/sleep", "")
        calls = self.folder / "scontrol"
        self.replace("fakes/scontrol", f"echo $3 >>{calls}")
        self.replace("fakes/sinfo", f"""[[ $* != *--nodes* ]] || {{ echo 'idle|none'; exit; }}
            echo 'n2|{now}|shakedown:ecc: x'
            [[ ! -e {calls} ]] || printf '%s|{now}|shakedown:gpu-count: y\\n' n1 n3""")
        for node, done in [("n1", ["state=drain"]), ("n3", ["state=drain", "state=resume"])]:
            calls.unlink(missing_ok=True)
            said = [self.call("health_check", 1, SLURMD_NODENAME=node) for _ in range(2)]
            self.assertEqual(calls.read_text().split(), done, said)
            self.assertEqual((self.folder / "state/drained").exists(), len(done) == 1)
            shutil.rmtree(self.folder / "state")

    def test_settings_that_cannot_be_read_are_reported(self):
        """Nothing else is read in their place, and nothing is drained."""
        self.replace("bin/node_check", FAILS)
        self.replace("launch/acceptance", "echo FAIL; exit 1")
        for hook, code, site in [("health_check", 3, f"{self.folder}/gone"), ("prolog", 0, self.folder),
                                 ("epilog", 0, self.folder)]:
            said = self.call(hook, code, SHAKEDOWN_SITE=str(site), SLURM_JOB_ID="7", SLURM_JOB_GPUS="0")
            self.assertRegex(said, f"^{hook} on .*: INCONCLUSIVE: SHAKEDOWN_SITE={site}: the site's "
                             "settings cannot be read: nothing is checked\n$")

    def test_a_prolog_that_does_not_end_says_so(self):
        """Its time is over at once."""
        self.replace("fakes/timeout", "exit 137")
        said = self.call("prolog", 0, SLURM_JOB_GPUS="0")
        self.assertIn("INCONCLUSIVE: launch/acceptance --prolog did not end within 20 s", said)

    def test_the_gpus_of_the_job_are_tested_before_and_after_it(self):
        """By the environment that launch/acceptance makes of the hook's."""
        self.replace("fakes/nvidia-smi", "printf 'GPU %d: H200 (UUID: GPU-%s)\\n' 0 a 1 b")
        self.replace("launch/acceptance", f"""PYTHONPATH={HOOKS.parent} exec python3 - "$@" <<'END'
import os, sys
from shakedown_launch.acceptance import options
made = options.environment(options.request(sys.argv[1:])[0].settings, os.environ)
sys.exit("FAIL " + made.get("CUDA_VISIBLE_DEVICES", "all"))
END""")
        for hook in ("prolog", "epilog"):
            said = self.call(hook, 1, SLURM_JOB_ID="7", SLURM_JOB_GPUS="1,3")
            self.assertRegex(said, f"^{hook} on .*, job 7: .* ended with 1: FAIL GPU-b,3\n$")

    def test_processes_that_cannot_be_read_drain_nothing(self):
        """An epilog then tests the GPUs all the same."""
        self.replace("fakes/timeout", "[[ $3 == grep ]] && exit 137; shift 2; exec \"$@\"")
        self.replace("launch/acceptance", "echo FAIL GPU 0; exit 1")
        said = self.call("epilog", 0, SLURM_JOB_ID="7")
        self.assertIn("INCONCLUSIVE: the node's processes could not be read", said)
        self.assertNotIn("FAIL", said)
        said = self.call("epilog", 1, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0")
        self.assertIn("launch/acceptance --prolog ended with 1: FAIL GPU 0", said)

    def test_print_changes_nothing(self):
        """Neither the node nor what the next call goes by; nor does health_action=print forget a drain."""
        reason = "shakedown:ecc: x"
        self.replace("fakes/scontrol", f"echo $3 >>{self.folder}/scontrol")
        self.replace("bin/node_check", "[[ ! -e $0.fails ]] || { echo 'FAIL   ecc x'; exit 1; }")
        fails, site = self.folder / "bin/node_check.fails", self.folder / "site.sh"
        state, calls = self.folder / "state", self.folder / "scontrol"
        self.call("health_check", 0, arguments=["--print"])
        self.assertFalse(state.exists())
        state.mkdir()

        def notes():
            return {path.name: path.read_text() for path in state.iterdir()}
        for code, before, answer, action in [
                (0, {"drained": f"{reason}\n", "streak": "PASS 1\n"}, f"drained|{reason}", "resume"),
                (0, {"drained": f"{reason}\n", "streak": "PASS 1\n"}, "idle|none", None),
                (1, {"streak": "FAIL 1\n"}, "idle|none", "drain")]:
            for name, text in before.items():
                (state / name).write_text(text)
            fails.touch() if code else fails.unlink(missing_ok=True)
            self.replace("fakes/sinfo", f"[[ $* != *--nodes* ]] || echo '{answer}'")
            said = self.call("health_check", code, arguments=["--print"])
            self.assertEqual((notes(), calls.exists()), (before, False), said)
            self.assertEqual("would run: scontrol" in said, action is not None, said)
            if action:
                real = site.read_text()
                site.write_text(f"{real}\nhealth_action=print")
                said = self.call("health_check", code)
                self.assertEqual(notes(), {**before, "streak": before["streak"].replace("1", "2")})
                self.assertIn(f"state={action}", said)
                site.write_text(real)
                self.call("health_check", code)
                self.assertEqual(calls.read_text(), f"state={action}\n")
                calls.unlink()
            for path in state.iterdir():
                path.unlink()


if __name__ == "__main__":
    unittest.main()
