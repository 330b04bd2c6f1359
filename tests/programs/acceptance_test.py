"""launch/acceptance as its users meet it, on the CPU backend: a clean machine passes, and each fault has
its verdict, class and node. Run by tests/run."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import unittest

from support import BIN, BUILD, TREE, Folder, needs_cpu_backend, read_record, run_bare, wait_until, write_script
from shakedown_launch import job
from shakedown_launch.acceptance import stages
from shakedown_launch.acceptance.model import (CONFIG, ENVIRONMENT, FAIL, HARDWARE, INCONCLUSIVE,
                                               PASS, SOFTWARE, UNKNOWN, WARN)

HOST = os.uname().nodename
LINE = [TREE / "launch/acceptance", "--backend", "cpu"]


def program_of(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(os.readlink(f"/proc/{pid}/exe")).name


@needs_cpu_backend
class Acceptance(Folder):
    def accept(self, *arguments, code, folder="out"):
        """What it printed, and its records."""
        result = run_bare(*LINE, "--output", self.folder / folder, *arguments)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result.stdout, read_record(self.folder / folder / "acceptance.jsonl")

    def start(self, **options):
        process = subprocess.Popen([*LINE, "--quick", "-n", "2", "--output", self.folder / "out"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        self.addCleanup(process.kill)
        return process

    def verdict(self, records, node=HOST):
        found, = [line for line in records if line["kind"] == "verdict" and "stage" not in line
                  and (line["scope"], line["name"]) == ("node", node)]
        return found

    def findings(self, records, *outcomes):
        return [line for line in records if line["kind"] == "verdict" and "stage" in line
                and line["verdict"] in (outcomes or (FAIL,))]

    def test_a_clean_machine(self):
        """And what bin/judge says of it again; then a fault, and the reference of another board."""
        history = self.folder / "history.jsonl"
        out, records = self.accept("--quick", "-n", "2", "--history", history, code=0)
        self.assertEqual(self.verdict(records)["verdict"], PASS)
        self.assertEqual(self.findings(records, FAIL, INCONCLUSIVE), [])
        settings = stages.Settings(stages.QUICK, stages.CPU)
        expected = [stage.name for stage in stages.chosen(settings, stages.NODE)]
        self.assertEqual(self.verdict(records)["stages"], expected)
        self.assertIn("Shakedown acceptance: PASS\n", out)
        self.assertIn(f"node {HOST}: PASS, correctness only\n", out)
        if history.exists():  # of rates that were slow at first: this machine is not quiet
            self.assertEqual({json.loads(line).get("outcome") for line in history.read_text().splitlines()}, {WARN})
        folder = self.folder / "out"
        for name in expected:
            self.assertTrue(read_record(folder / name / f"{HOST}.jsonl"))
        for line in map(json.loads, (folder / "runs.jsonl").read_text().splitlines()):
            self.assertIn(line["kind"], ("node", "stage", "verdict"))
        metrics = {line["metric"].split("/")[0] for line in records if line["kind"] == "figure"}
        self.assertLessEqual({"memory", "product", "collective", "train"}, metrics)
        self.assertEqual((folder / "acceptance.txt").read_text().splitlines()[0], out.splitlines()[0])
        self.assertIn("<html", (folder / "acceptance.html").read_text())
        log, = folder.glob("acceptance_*_*.log")
        self.assertRegex(log.read_text(), rf"soak/{HOST}.log: 0 after")
        self.expect(run_bare(BIN / "judge", folder), 0, "PASS job judge: correctness only")

        out, records = self.accept("--quick", "-n", "2", "--inject-fault", "product:1", "--history", history, code=1,
                                   folder="wrong")
        found = {(line.get("class"), line["subject"]) for line in self.findings(records)}
        self.assertEqual(found, {(HARDWARE, "rank 1"), (None, "gradients")})  # two ranks' differ
        self.assertFalse([line["action"] for line in self.findings(records) if "GPU" in line.get("action", "")])
        self.assertEqual(self.verdict(records)["verdict"], FAIL)
        self.assertIn(f'scontrol update nodename="{HOST}" state=drain', out)
        self.assertIn("rank 1", history.read_text())
        self.assertEqual(run_bare(BIN / "judge", self.folder / "wrong").returncode, 1)

        # A prolog, which is short, and lets a job start where nothing FAILs.
        out, records = self.accept("--prolog", "-n", "2", "--reference", TREE / "results/reference/nvidia-h100.json",
                                   code=0, folder="other")
        self.assertEqual(self.verdict(records)["verdict"], INCONCLUSIVE)
        self.assertEqual(self.verdict(records)["class"], CONFIG)
        self.assertIn("--reference compares none of its rates", self.verdict(records)["cause"])

    def test_a_slow_rank_of_a_cpu_fails_nobody(self):
        """Of two ranks that differ which is right is not known; where they share a core nothing is."""
        result = run_bare(*LINE, "--prolog", "-n", "2", "--inject-fault", "slow:1")
        self.expect(result, 0, f"INCONCLUSIVE {HOST}")
        self.assertRegex(result.stdout, "times slower than .* which of them is right is not known|injected and not found")
        self.assertNotIn("FAIL", result.stdout)

    def test_a_rank_that_dies(self):
        write_script(self.folder / "train", f'exec {BIN}/train "$@" --iterations 1000000')
        process = self.start(env={**os.environ, "SHAKEDOWN_BIN": str(self.folder)})
        record = self.folder / f"out/train/{HOST}.jsonl"
        self.assertTrue(wait_until(lambda: record.exists() and record.stat().st_size, 60))
        ranks = [pid for pid in job.family(process.pid) if program_of(pid) == "train"]
        os.kill(ranks[-1], signal.SIGKILL)
        out, error = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 3, out + error)
        records = read_record(self.folder / "out/acceptance.jsonl")
        self.assertEqual(self.verdict(records)["verdict"], INCONCLUSIVE)
        self.assertRegex(self.verdict(records)["cause"], rf"rank . on {HOST} died: signal 9")
        self.assertEqual(self.verdict(records)["class"], ENVIRONMENT)
        outcomes = dict(zip(self.verdict(records)["stages"], self.verdict(records)["stage_verdicts"]))
        self.assertEqual((outcomes["train"], outcomes["soak"]), (INCONCLUSIVE, PASS))

    def test_a_signal_keeps_what_was_found(self):
        process = self.start()
        self.assertTrue(wait_until(lambda: any(program_of(pid) == "compute_perf"
                                               for pid in job.family(process.pid)), 60))
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 5, out + error)
        records = read_record(self.folder / "out/acceptance.jsonl")
        self.assertEqual(self.verdict(records)["verdict"], INCONCLUSIVE)
        self.assertIn("soak", self.verdict(records)["missing_stages"])
        self.assertEqual(records[-1]["exit_code"], 5)

    def test_missing_gpus(self):
        """Before any communicator is made."""
        out, records = self.accept("--quick", "--expect-gpus", "8", code=1)
        self.assertIn("8 expected", self.verdict(records)["cause"])
        self.assertEqual(self.verdict(records)["class"], SOFTWARE)
        self.assertNotIn("RMA", out)
        self.assertEqual(self.verdict(records)["stages"], [stages.INVENTORY])
        self.assertEqual(self.verdict(records)["verdict"], FAIL)
        result = run_bare(*LINE, "--passive", "--expect-gpus", "8", "--nagios")
        self.expect(result, 2, "ACCEPTANCE CRITICAL - 1 of 1 node FAIL")

    @unittest.skipIf(os.geteuid(), "needs root, and another user")
    def test_a_prolog_uses_no_folder_that_others_made(self):
        """Open MPI's has a name that anybody can guess; what is there must not switch the checks off."""
        place = self.folder / "tmp"
        place.mkdir(mode=0o777)
        place.chmod(0o1777)
        for parent in (place, *place.parents)[1:-1]:
            if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
                self.addCleanup(parent.chmod, parent.stat().st_mode & 0o777)
                parent.chmod(0o711)
        name = place / f"ompi.{HOST.partition('.')[0]}.0"
        subprocess.run(["su", "nobody", "-s", "/bin/sh", "-c", f"touch {name}"], check=True)
        for arguments, code, said in [(["-n", "2", "--expect-gpus", "4"], 1, "FAIL inventory: 0 GPUs, 4 expected"),
                                      (["-n", "2"], 0, "PASS "), (["-n", "1"], 0, "PASS ")]:
            result = run_bare(*LINE, "--prolog", *arguments, env={"TMPDIR": str(place)})
            self.assertEqual((result.returncode, said in result.stdout), (code, True),
                             result.stdout + result.stderr)
        self.assertEqual([path.name for path in place.iterdir()], [name.name])
        self.assertEqual((name.stat().st_uid, name.read_text()), (65534, ""))

    def test_what_the_site_accepts_is_no_reason_for_strict(self):
        _, records = self.accept("--passive", code=0)
        usual = {line["check"] for line in self.findings(records, WARN, UNKNOWN)}
        out, records = self.accept("--passive", "--strict", "--accept", ",".join(usual) or "none", "--prometheus",
                                   self.folder / "shakedown.prom", "--junit", self.folder / "junit.xml", code=0,
                                   folder="strict")
        self.assertIn(f'shakedown_node_verdict{{node="{HOST}",verdict="PASS"}} 1.0',
                      (self.folder / "shakedown.prom").read_text())
        self.assertIn(f'<testsuite name="{HOST}"', (self.folder / "junit.xml").read_text())
        self.assertEqual(self.verdict(records)["verdict"], PASS)
        self.assertEqual({line["check"] for line in self.findings(records, WARN, UNKNOWN) if line["accepted"]}, usual)
        self.assertEqual(out.splitlines()[:-1], [f"PASS {HOST}"])
        self.accept("--passive", "--accept", "governer", code=0, folder="idle")
        self.assertIn("--accept governer: no warning or unknown fact of this run has this check",
                      (self.folder / "idle/acceptance.txt").read_text())
        if usual:
            self.accept("--passive", "--strict", code=3, folder="none")

    def test_a_healthy_machine_of_which_not_all_is_known_is_ok_to_nagios(self):
        """Else it is WARNING for ever. Warnings about this very machine are left out by --accept."""
        def state(*words, code, said, environ=(), **options):
            result = subprocess.run([*LINE[:1], "--passive", "--nagios", *words], capture_output=True, text=True,
                                    stdin=subprocess.DEVNULL, timeout=60, env={**os.environ, **dict(environ)}, **options)
            self.assertEqual((result.returncode, result.stdout.split(" - ")[0]), (code, f"ACCEPTANCE {said}"),
                             result.stdout + result.stderr)
            return result.stdout
        _, records = self.accept("--passive", code=0)
        usual = ["--accept", ",".join({line["check"] for line in self.findings(records, WARN)}) or "none"]
        state(*usual, "--backend", "cpu", "--expect-gpus", "0", code=0, said="OK")
        if os.geteuid() == 0 and not subprocess.run(["cat", LINE[0]], user=65534, capture_output=True).returncode:
            self.assertIn("not known", state(*usual, code=0, said="OK", cwd="/", user=65534, group=65534,
                                             extra_groups=[]))
        host = json.loads((TREE / "tests/node/fixtures/h200.json").read_text())
        host.update(cuda_driver_version="99.0", gpus=host["gpus"][:1])
        gpu, = host["gpus"]
        for key in [key for key in gpu if key.startswith("nvlink")]:  # as in a virtual machine
            del gpu[key]
        fake = {"SHAKEDOWN_NVML_LIBRARY": str(BUILD / "fake_nvml.so"), "SHAKEDOWN_FAKE_NVML": str(self.folder / "gpu.json")}
        for corrected, code, said in [(0, 0, "OK"), (10 ** 8, 1, "WARNING")]:
            gpu["volatile_corrected"] = corrected
            (self.folder / "gpu.json").write_text(json.dumps(host))
            self.assertIn("not known", state(*usual, code=code, said=said, environ=fake))

    def test_each_program_knows_its_options(self):
        """Of every tier, also those of GPUs: the first error is the word that no program knows."""
        for tier in stages.TIERS:
            for backend in (stages.GPU, stages.CPU):
                settings = stages.Settings(tier, backend)
                for stage in stages.STAGES:
                    if tier in stage.tiers and (backend == stages.GPU or stage.on_cpu):
                        fault = f"{[*stages.faults(stage, settings, 2), 'slow'][0]}:0"
                        words = stages.words(stage, settings, 2, fault, self.folder)
                        result = run_bare(BIN / words[0], *words[1:], "--no-such-option")
                        self.expect(result, 2, "unknown option --no-such-option")


if __name__ == "__main__":
    unittest.main()
