"""bin/node_check as its users meet it: exit codes, table, records. Run by tests/run."""

import copy
import json
import os
import pathlib
import subprocess
import time
import unittest
import unittest.mock

from support import BIN, BUILD, TREE, Folder, read_record, run, run_bare

NODE_CHECK = BIN / "node_check"
HEALTHY = json.loads((TREE / "tests/node/fixtures/h200.json").read_text())
# As Slurm starts HealthCheckProgram: root, without HOME.
BARE = {"PATH": "/usr/bin:/bin"}
NO_DRIVER = {"SHAKEDOWN_NVML_LIBRARY": "libnothing.so"}


def faked(gpus, **fake):
    """What makes the fake driver do this at the calls of these GPUs; of none: at its own."""
    def change(host):
        for of in [host["gpus"][gpu] for gpu in gpus] or [host]:
            of["fake"] = fake
    return change


class NodeCheck(Folder):
    """Of a host and GPUs that are made up, whatever the health of this machine, but where it says so."""

    def setUp(self):
        super().setUp()
        self.root = self.folder / "root"
        self.root.mkdir()

    def readings(self, change=faked([])):
        """A file of the fixture's GPUs, changed."""
        host = copy.deepcopy(HEALTHY)
        host["cuda_driver_version"] = "99.0"  # newer than the CUDA of whatever build this tests
        change(host)
        path = self.folder / "readings.json"
        path.write_text(json.dumps(host))
        return path

    def fake(self, change):
        """The environment in which they are the driver's."""
        return {"SHAKEDOWN_NVML_LIBRARY": BUILD / "fake_nvml.so", "SHAKEDOWN_FAKE_NVML": self.readings(change)}

    def check(self, *arguments, code, ranks=0, made_up=True, **environment):
        """Runs the program; what it printed, and its records by kind. code None: by the verdict."""
        self.record.unlink(missing_ok=True)
        line = [NODE_CHECK, "--record", self.record, *(["--root", self.root] if made_up else []), *arguments]
        if ranks:
            with unittest.mock.patch.dict(os.environ, environment):
                result = run(*line, ranks=ranks)
        else:
            result = run_bare("env", "-i", *[f"{k}={v}" for k, v in {**BARE, **environment}.items()], *line)
        lines = read_record(self.record)
        self.assertEqual((lines[0]["kind"], lines[-1]["kind"]), ("run", "end"))
        records = {kind: [line for line in lines if line["kind"] == kind] for kind in ("run", "health", "verdict")}
        job = records["verdict"][-1]
        self.assertEqual((job["scope"], job["name"]), ("job", "node_check"))
        of_verdict = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}[job["verdict"]]
        self.assertEqual({result.returncode, lines[-1]["exit_code"], of_verdict}, {of_verdict if code is None else code},
                         result.stdout + result.stderr)
        return result.stdout, records

    def test_a_bare_passive_check_of_this_machine_ends_within_its_deadline(self):
        out, records = self.check("--passive", code=None, made_up=False)
        self.assertRegex(out, r"(PASS|UNKNOWN|N/A|FAIL) +gpu-count ")
        self.assertRegex(out, r"PASS +host-stall ")
        self.assertNotEqual(records["verdict"][-1]["verdict"], "INCONCLUSIVE", out)  # as after 5 s

    def test_healthy_readings_pass_and_sick_ones_fail(self):
        """gpu-burn#12: the exit code was 0 whatever was found."""
        out, records = self.check("--passive", "--readings", self.readings(), code=0)
        self.assertEqual(len(records["health"]), 8)
        self.assertFalse([line for line in records["verdict"] if line["scope"] == "gpu"], out)

        def sick(host):
            host["gpus"][3].update(volatile_uncorrected=2, recovery_action="reset")
            host["gpus"][4]["power_w"] = 0
        out, records = self.check("--passive", "--readings", self.readings(sick), code=1)
        found = {(line["name"], line["check"]): line for line in records["verdict"] if line["scope"] == "gpu"}
        uuids = [gpu["uuid"] for gpu in HEALTHY["gpus"]]
        self.assertEqual(set(found), {(uuids[3], "ecc-volatile"), (uuids[3], "recovery-action"),
                                      (uuids[4], "sane-readings")})
        advice = found[uuids[3], "recovery-action"]
        self.assertEqual((advice["class"], advice["action"]), ("HARDWARE", "reset GPU"))
        self.assertRegex(out, r"FAIL +recovery-action +GPU 3: .* -> reset GPU")

    def test_mig_is_as_expected_or_not(self):
        def divided(host):
            for gpu in host["gpus"][:4]:
                gpu.update(mig_enabled=True, mig_devices=["1g.18gb", "1g.18gb", "3g.71gb"])
        out, records = self.check("--passive", "--readings", self.readings(divided), "--expect-mig", "any", code=1)
        self.assertRegex(out, r"FAIL +mig +GPU 4: MIG is off, --expect-mig any")
        self.assertEqual(records["health"][0]["mig_layout"], "1g.18gb 1g.18gb 3g.71gb")

    def test_a_check_that_hangs_ends_with_3_and_says_so(self):
        """CHS: a check that timed out counted as passed."""
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)  # opening it waits for a writer
        result = run_bare(NODE_CHECK, "--passive", "--readings", pipe, "--deadline", 6,
                          "--record", self.record, timeout=60)
        self.expect(result, 3, "PASS host-stall", "UNKNOWN deadline", "did not end within 6 s (--deadline)")
        self.assertEqual([line["kind"] for line in read_record(self.record)], ["run", "verdict"])

    def test_a_driver_that_hangs_is_named_within_the_deadline(self):
        for gpus, call, seconds, code, lines in [
                # Persistence mode is unknown here: the start may just be slow.
                ([], "nvmlInit_v2", 60, 3,
                 [r"UNKNOWN +management +.*nvmlInit_v2 did not return within \d[\d.]* s.* -> enable persistence mode",
                  "INCONCLUSIVE job node_check.*management: nvmlInit_v2 did not return"]),
                ([], "nvmlSystemGetDriverVersion", 60, 1, [r"FAIL +management +.*{} did not return.* -> drain the node"]),
                # What was not read for that cause is one line, and no pass.
                ([2], "nvmlDeviceGetPersistenceMode", 60, 1,
                 [r"FAIL +management-stall +GPU 2: .*{} did not return.* -> drain the node",
                  r"UNKNOWN +\d+ checks +GPU 2: not read: .* \(.*pcie-replays\)"]),
                (range(8), "nvmlDeviceGetFieldValues", 0.5, 1,
                 [r"FAIL +management-stall +.*{} did not return.* -> drain the node"])]:
            with self.subTest(call):
                start = time.monotonic()
                out, _ = self.check("--passive", "--deadline", 4, code=code,  # a fifth of it is for what follows the calls
                                    **self.fake(faked(gpus, stall_s={call: seconds})))
                self.assertLess(time.monotonic() - start, 30)  # of stalls of 60 s
                for line in lines:
                    self.assertRegex(out, line.replace("{}", call))

    def test_a_driver_that_cannot_start_fails_in_a_pod_too(self):
        """soperator#2684, open-gpu-kernel-modules#626. One that works fails nowhere, whatever version /proc has."""
        (self.root / "proc/driver/nvidia").mkdir(parents=True)
        (self.root / "proc/driver/nvidia/version").write_text(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Sun\n")
        empty = self.folder / "libnvidia-ml.so.1"
        empty.touch()

        for change, library, code, line in [
                (faked([]), {"SHAKEDOWN_NVML_LIBRARY": empty}, 1, r"FAIL +management +.*file too short"),
                (faked([], error={"nvmlInit_v2": 18}), {}, 1, r"FAIL +management +.*version mismatch -> reboot"),
                (faked([]), {}, 0, r"WARN +driver +driver 580.159.04 is loaded, NVML works and reports 570.133.20")]:
            with self.subTest(line):
                out, records = self.check("--passive", "--deadline", 20, code=code, KUBERNETES_SERVICE_HOST="10.0.0.1",
                                          **{**self.fake(change), **library})
                self.assertRegex(out, line)
                self.assertEqual([each["class"] for each in records["verdict"] if each.get("check") in ("management", "driver")
                                  and each["verdict"] != "UNKNOWN"], ["SOFTWARE"])

    def test_a_check_that_hangs_in_the_kernel_is_reported_and_none_is_started(self):
        """Two calls, one process: with a timer of health checks there were 288 a day."""
        if os.getuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
            self.skipTest("needs to mount in a namespace of its own")
        stat = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        note = f"{os.getpid()} {stat[19]}"  # this process, in the place of one that cannot be killed
        for age, code, line in [(100, 1, "FAIL     hung-check         "), (0, 3, "INCONCLUSIVE job node_check")]:
            script = f"mount -t tmpfs -o mode=755 none /run && echo '{note} {time.monotonic() - age:.0f}' >/run/shakedown-node_check " \
                     f"&& exec '{NODE_CHECK}' --passive"
            result = run_bare("unshare", "-m", "bash", "-c", script)
            self.expect(result, code, line, f"an earlier one (pid {os.getpid()}) was killed")
            self.assertNotIn("host-stall", result.stdout)

    def test_a_node_that_should_have_no_gpu_passes(self):
        out, _ = self.check("--passive", "--expect-gpus", 0, code=0, **NO_DRIVER)
        self.assertRegex(out, r"PASS +gpu-count +no GPU, none expected")
        self.assertRegex(out, r"N/A +management +no GPU, none expected")

    def test_a_script_in_a_step_of_slurm_checks(self):
        """A variable that was inherited says nothing of who started this process."""
        out, _ = self.check("--passive", code=0, SLURM_LOCALID="1", SLURM_TASK_PID="1", **NO_DRIVER)
        self.assertRegex(out, r"PASS +host-stall ")
        task = run_bare("bash", "-c", f"SLURM_LOCALID=1 SLURM_TASK_PID=$$ exec {NODE_CHECK} --passive")
        self.assertEqual((task.returncode, task.stdout), (0, ""))
        self.assertIn("not the first process of its host", task.stderr)

    def test_an_injected_stall_is_named(self):
        """Not the library that a node without a driver lacks."""
        out, _ = self.check("--passive", "--inject-fault", "stall:0", code=1, **NO_DRIVER)
        self.assertIn("the management path hangs: a call that was injected did not return", out)

    def test_two_ranks_check_one_node_and_sum_over_both(self):
        out, _ = self.check(code=0, ranks=2, **NO_DRIVER)
        self.assertRegex(out, r"PASS +all-reduce +the sum over 2 ranks is right")
        self.assertEqual(out.count("host-stall"), 1)
        out, records = self.check("--inject-fault", "collective:1", code=1, ranks=2, **NO_DRIVER)
        self.assertIn("fault injected: collective on rank 1", out)
        self.assertEqual([(line["scope"], line["name"]) for line in records["verdict"]
                          if line.get("check") == "all-reduce"], [("rank", "1")])


if __name__ == "__main__":
    unittest.main()
