"""bin/gpu_monitor as its users meet it, with a library in NVML's place. Run by tests/run."""

import json
import os
import signal
import subprocess
import unittest

from support import BIN, BUILD, TREE, Folder, read_record, run, run_bare

MONITOR = BIN / "gpu_monitor"
STALLED = "nvmlDeviceGetPersistenceMode"


class GpuMonitor(Folder):
    def environment(self, sick, **host):
        """Two of the fixture's GPUs, the second with this "fake"."""
        fixture = json.loads((TREE / "tests/node/fixtures/h200.json").read_text())
        fixture["gpus"] = fixture["gpus"][:2]
        fixture["gpus"][0]["fake"] = {"grows": {"volatile_corrected": 3, "nvlink_sent_bytes": 2 ** 30}}
        fixture["gpus"][1]["fake"] = sick
        file = self.folder / "fake.json"
        file.write_text(json.dumps({**fixture, **host}))
        return {**os.environ, "SHAKEDOWN_NVML_LIBRARY": str(BUILD / "fake_nvml.so"),
                "SHAKEDOWN_FAKE_NVML": str(file)}

    def test_a_call_that_stalls_is_reported_and_the_other_gpus_are_read(self):
        record, saved = self.folder / "r.jsonl", self.folder / "readings.json"
        result = run(MONITOR, "--interval", 0.2, "--count", 3, "--call-deadline", 0.5, "--record", record,
                     "--save-readings", saved, "--pretend-nodes", 2, ranks=3,
                     env=self.environment({"stall_s": {STALLED: 60}}))
        self.assertEqual(result.returncode, 3, result.stdout + result.stderr)
        lines = read_record(record)
        self.assertEqual([line["kind"] for line in lines], ["run", *["health"] * 12, *["verdict"] * 2, "end"])
        self.assertEqual(lines[0]["driver"], "570.133.20")
        self.assertEqual([(line["host"], line["index"]) for line in lines[1:13]],  # one rank of each host reads
                         [("node0", 0), ("node0", 1), ("node1", 0), ("node1", 1)] * 3)
        well, sick = lines[3:13:4], lines[4:13:4]
        self.assertEqual([line["volatile_corrected"] for line in well], [0, 3, 6])
        self.assertNotIn("nvlink_sent_gbs", well[0])  # there is no reading before
        self.assertGreater(well[1]["nvlink_sent_gbs"], 0)
        self.assertEqual((well[1]["nvlinks_active"], well[1]["reasons"]), (18, ""))
        for line in sick:
            self.assertEqual(line["stalled"], [STALLED])
            self.assertNotIn("power_w", line)
        self.assertEqual((lines[-2]["scope"], lines[-2]["name"]), ("gpu", sick[0]["uuid"]))
        self.assertIn(f"node1 GPU 1: {STALLED} did not return within 0.5 s", result.stdout)
        self.assertIn(f"INCONCLUSIVE gpu {sick[0]['uuid']}: GPU 1 of node1", result.stdout)
        self.assertRegex(result.stdout, r"(?m)^node1 +0 +0 +0 +0\.0 +27 +31 +76 +345 +3201 +3/0 ")
        self.assertRegex(result.stdout, r"(?m)^node0 +1 +- +- .* stalled$")
        self.assertRegex(result.stdout, r"cost +a reading takes \d.* CPU seconds per second")
        end = lines[-1]
        self.assertIn(f"cost      a reading takes {end['reading_ms_p50']:.1f} ms (median); "
                      f"{end['cpu_share']:.4f} CPU seconds per second", result.stdout)
        table = result.stdout.split("cost")[0].splitlines()
        self.assertLessEqual(max(map(len, table)), 110)
        readings = json.loads(saved.read_text())
        self.assertIn("on node0", readings["source"])
        self.assertEqual(len(readings["gpus"][0]["nvlinks"]), 18)

    def test_it_runs_until_a_signal_and_ends_with_its_summary(self):
        job = subprocess.Popen([MONITOR, "--interval", "0.1"], env=self.environment({}), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(job.kill)
        while "none" not in job.stdout.readline():  # the first GPU's line
            self.assertIsNone(job.poll())
        job.send_signal(signal.SIGTERM)
        out, err = job.communicate(timeout=60)
        self.assertEqual((job.returncode, err), (0, ""), out)
        self.assertIn("cost ", out)

    def test_without_gpus_it_says_what_it_could_not_see(self):
        for library, why in [("libnothing.so", "libnothing.so"), (str(BUILD / "fake_nvml.so"), "has no GPU")]:
            with self.subTest(library=library):
                env = {**self.environment({}, gpus=[]), "SHAKEDOWN_NVML_LIBRARY": library}
                result = run_bare(MONITOR, env=env)
                self.assertEqual(result.returncode, 3, result.stdout + result.stderr)
                self.assertIn("no GPU can be read", result.stdout)
                self.assertIn(why, result.stdout)
                self.assertIn("INCONCLUSIVE node", result.stdout)


if __name__ == "__main__":
    unittest.main()
