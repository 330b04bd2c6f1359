"""bin/soak as its users meet it: a clean run, every injected fault found and placed, capsules replayed,
a signal. Run by tests/run."""

import json
import signal
import subprocess
import unittest

from support import BIN, GPUS, TREE, Folder, read_record, run, wait_until

SOAK = BIN / "soak"
# One window per phase, of what is left of a second.
QUICK = ["--minutes", 0.004, "--types", "fp32,int8", "--shape", "steady"]


class Soak(Folder):
    def soak(self, *arguments, ranks=3, code=0):
        out, records = self.measured(SOAK, *arguments, ranks=ranks, code=code)
        for line in records["verdict"]:  # the job's has its findings'
            if line["verdict"] == "FAIL" and line["scope"] != "job":
                self.assertTrue(line.get("class") and line.get("action"), line)
        return out, records

    def fault(self, kind, *arguments):
        """With this fault on rank 1: its mismatches, and the verdict on that rank."""
        out, records = self.soak("--inject-fault", f"{kind}:1", "--output", self.folder, *QUICK,
                                 *arguments, code=1)
        self.assertIn(f"fault injected: {kind} on rank 1", out)
        self.assertEqual({line["rank"] for line in records["mismatch"]}, {1})
        verdicts = {line["scope"]: line for line in records["verdict"]}
        self.assertEqual([line["verdict"] for line in records["verdict"]], ["FAIL", "FAIL"])
        self.assertIn("rank 1 on", verdicts["gpu" if "gpu" in verdicts else "rank"]["cause"])
        return records["mismatch"], records["verdict"][0]

    def test_a_clean_soak_says_what_it_proves(self):
        out, records = self.soak("--minutes", 0.03)
        self.assertRegex(out, r"PASS job soak: 0 wrong in \S+ (GPU|rank)-hours: rate below \S+ per (GPU|rank)-hour at 95 %; "
                         r"power at 95 % on each (GPU|rank): an? (SM|core) wrong for 1 element in \S+, .*in each of \d types; "
                         r"one product in \d+ \(.*\); one probe in \d+; a stuck word in .*; one copied word in \S+; "
                         r"one word over links in \S+; not seen: what all (SM|core)s do alike")
        self.assertIn(records["soak_summary"][0]["would_have_found"], out)
        self.assertRegex(out, r"Soak: 0 wrong in \S+ products, \S+ probes of\s+processors, \S+\s.B of memory, ")
        for key in ("products", "probes", "memory_bytes", "copied_bytes", "link_bytes", "gpu_hours"):
            self.assertGreater(records["soak_summary"][0][key], 0, key)
        phases = [line["phase"] for line in records["soak"]]
        for phase in ("steady products fp32", "steady probes", "steady memory", "steady copies",
                      "steady collectives"):
            self.assertIn(phase, phases)
        self.assertTrue(any(phase.startswith("square products") for phase in phases))
        mixed = [line for line in records["soak"] if line["phase"].startswith("mixed")]
        for load in ("products", "copies", "collectives"):
            self.assertGreater(mixed[0][f"checked_{load}"], 0)
        self.assertEqual(records["mismatch"], [])
        self.assertEqual([line["verdict"] for line in records["verdict"]], ["PASS"])
        self.assertEqual([passes >= 1 for passes in records["soak_summary"][0]["memory_passes"]], [True] * 3)
        self.assertEqual(records["soak_summary"][0]["products_self_compared"], 0)

    def test_a_wrong_product_is_placed_and_its_capsule_replayed(self):
        mismatches, verdict = self.fault("product", "--loads", "products")
        self.assertEqual(verdict["class"], "HARDWARE")
        self.assertEqual({line["window"] for line in mismatches}, {0})  # its time is over, and it has found what fails
        self.assertEqual((mismatches[0]["reproduced"], mismatches[0]["repeats"]), (20, 20))
        self.assertRegex(mismatches[0]["where"], r"tile 1,1( and \d more tiles?)?, element 191,192")
        self.assertIn("; stays at its place of the launch, so at one ", mismatches[0]["cause"])
        self.assertEqual(int(mismatches[0]["expected"], 16) ^ int(mismatches[0]["found"], 16), 1 << 16)
        capsule = mismatches[0]["capsule"]
        self.assertNotIn(":", capsule.removeprefix(str(self.folder)))
        with open(capsule) as file:
            kept = json.load(file)
        self.assertEqual((kept["format"], kept["turn"], kept["tile"]), ("shakedown product capsule 4", 0, 3))
        self.assertEqual(kept["circumstances"]["rank"], 1)
        out, _ = self.soak("--replay", capsule, "--repeats", 5, ranks=2)
        self.assertEqual(out.count("reproduces 0 of 5"), 2)
        self.assertNotIn("rank 0: rank 0", out)
        out, _ = self.soak("--replay", capsule, "--repeats", 5, "--inject-fault", "product:0",
                           ranks=1, code=1)
        self.assertIn("reproduces 5 of 5", out)
        broken = self.folder / "broken.json"
        broken.write_text(json.dumps({**kept, "seed": "0x0000000000000001"}))
        self.expect(run(SOAK, "--backend", "cpu", "--replay", broken), 2, f"--replay {broken}: checksum: is not that of the keys ")
        del kept["seed"]
        broken.write_text(json.dumps(kept))
        self.expect(run(SOAK, "--replay", broken), 2, f"{broken}: seed: must be")

    def test_one_and_two_ranks_are_judged_by_their_turns(self):
        for ranks, why in ((1, "the same product in other turns contradicts it"), (2, "the others contradict it")):
            with self.subTest(ranks=ranks):
                out, records = self.soak("--inject-fault", f"product:{ranks - 1}", "--output",
                                         self.folder, *QUICK, "--types", "fp32", "--loads", "products", ranks=ranks, code=1)
                summary = records["soak_summary"][0]
                self.assertEqual(summary["products_self_compared"], 0)
                self.assertEqual(sum(summary["products.fp32"]), summary["products"])
                # Three seeds of four are of full entropy, in three turns each, in a window or more.
                self.assertEqual({turns % 9 for turns in summary["product_turns.fp32"]}, {0})
                self.assertGreater(min(summary["product_turns.fp32"]), 0)
                self.assertEqual(summary["product_elements"], {"gpu": 8192, "cpu": 256}[summary["backend"]] ** 2)
                self.assertEqual({line["rank"] for line in records["mismatch"]}, {ranks - 1})
                for line in records["mismatch"]:
                    self.assertIn(why, line["cause"])
                    self.assertEqual(line["reproduced"], 20)
                self.assertEqual(records["verdict"][0]["class"], "HARDWARE")

    def test_what_is_wrong_is_found_on_its_rank_and_named(self):
        for kind, load, class_, said in (
                ("hash", "products", "SOFTWARE", {"cause": "the hash disagrees though the data agree"}),
                ("memory", "products", "HARDWARE", {"load": "product int8", "where": "operand B, element 0,1000 in memory"}),
                ("memory", "memory", "HARDWARE", {"load": "memory", "cause": ", 0 of 200 on other GPUs",
                                                  "no_capsule": "bin/soak --loads memory --seed"}),
                ("copy", "copies", "HARDWARE", {"where": "host to device, offset", "reproduced": "100"}),
                ("collective", "collectives", "INFRASTRUCTURE", {"cause": "what all_reduce delivered"})):
            with self.subTest(kind=kind, load=load):
                mismatches, verdict = self.fault(kind, "--loads", load)
                self.assertEqual(verdict["class"], class_)
                self.assertTrue(any(all(words in str(line.get(key)) for key, words in said.items()) for line in mismatches),
                                mismatches)

    def test_a_fault_that_would_not_be_found_is_refused(self):
        for words, said in [(["--inject-fault", "hash:0"], "KIND one of product, memory, copy, slow"),
                            (["--inject-fault", "memory:0", "--loads", "products", "--shape", "mixed"],
                             "--loads products with --shape mixed: no work for 1 rank")]:
            self.expect(run(SOAK, "--minutes", 0.004, *words), 2, said)

    def test_a_slow_rank_is_measured_and_a_gpu_named(self):
        out, records = self.soak(*QUICK, "--loads", "products", "--inject-fault", "slow:1", ranks=2,
                                 code=1 if GPUS else 0)
        self.assertRegex(out, r"FAIL gpu \S+: rank 1 on .* slower than" if GPUS
                         else r"PASS job soak: .*; correctness only")
        self.assertEqual(records["mismatch"], [])
        rates = {line["ranks"][0]: line for line in records["metric"]
                 if line["metric"] == "product/fp32/tflops"}
        self.assertEqual((len(rates[0]["samples"]), rates[0]["condition.manner"]), (12, "sustained"))
        self.assertLess(*(max(rates[rank]["samples"]) for rank in (1, 0)))  # other work makes some slower

    @unittest.skipIf(0 < GPUS < 3, "3 ranks on fewer GPUs")
    def test_a_signal_ends_it_with_what_was_proved(self):
        output = self.folder / "output"
        with output.open("w") as out:
            job = subprocess.Popen([TREE / "launch/mpi", "-n", "3", SOAK, "--minutes", "10", "--loads",
                                    "products", "--record", self.record], stdout=out, stderr=out)
        self.addCleanup(job.kill)
        self.assertTrue(wait_until(lambda: "soak: 3 ranks" in output.read_text()))
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(timeout=60), 5, output.read_text())
        self.assertRegex(output.read_text(),
                         r"INCONCLUSIVE job soak: interrupted after \d+ of 600 s; 0 wrong in ")
        self.assertNotIn("PASS", output.read_text())
        self.assertEqual(read_record(self.record)[-1]["exit_code"], 5)


if __name__ == "__main__":
    unittest.main()
