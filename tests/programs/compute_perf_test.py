"""bin/compute_perf as its users meet it: exit codes, messages, records. Run by tests/run."""

import csv
import json
import unittest

from support import BIN, GPUS, Folder, read_record, run, run_bare

COMPUTE_PERF = BIN / "compute_perf"
QUICK = ["--size", 128, "--bytes", "256K", "--seconds", 0.01]


class ComputePerf(Folder):
    def measure(self, *arguments, ranks=1, code=0):
        """Runs the program; what it printed, and its records by kind."""
        record = self.folder / "r.jsonl"
        record.unlink(missing_ok=True)
        result = run(COMPUTE_PERF, *QUICK, "--record", record, *arguments, ranks=ranks)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        lines = read_record(record)
        self.assertEqual((lines[0]["kind"], lines[-1]["kind"]), ("run", "end"))
        self.assertEqual(lines[-1]["exit_code"], code)
        kinds = {kind: [line for line in lines if line["kind"] == kind] for kind in ("compute", "compute_round", "verdict")}
        return result.stdout, {"run": lines[0], **kinds}

    def failures(self, records):
        return {(line["scope"], line["name"]) for line in records["verdict"] if line["verdict"] == "FAIL"}

    def name_of(self, records, rank):
        line = next(line for line in records["compute"] if line["rank"] == rank)
        return ("gpu", line["gpu"]) if "gpu" in line else ("rank", str(rank))

    def test_every_rate_of_every_rank_and_none_judged(self):
        table = self.folder / "rates.csv"
        _, records = self.measure("--rounds", 1, "--csv", table, ranks=2, code=3)
        tests = {line["test"] for line in records["compute"]}
        self.assertLessEqual({"fp32 burst", "fp32 sustained", "memory triad", "device to host, alone",
                              "both directions, all at once"}, tests)
        self.assertEqual(len(records["compute"]), 2 * len(tests))
        for line in records["compute"]:
            self.assertTrue(line["correct"], line)
            self.assertEqual(line["samples"], [line["rate"]])
            self.assertGreater(line["rate"], 0)
            self.assertEqual("size" in line, line["unit"] == "TFLOP/s")
        rounds = {line["test"]: line for line in records["compute_round"]}  # written as they came
        self.assertEqual((set(rounds), len(rounds)), (tests, len(records["compute_round"])))
        for line in records["compute"]:
            self.assertEqual(line["samples"], [rounds[line["test"]]["rates"][line["rank"]]])
        self.assertIsNotNone(rounds["fp32 sustained"]["last_over_first"][0])
        for test in tests:  # the same bits on both
            self.assertEqual(len({line.get("algorithm") for line in records["compute"] if line["test"] == test}), 1)
        with open(table, newline="") as file:
            self.assertEqual([(row["rank"], row["test"]) for row in csv.DictReader(file)],
                             [(str(line["rank"]), line["test"]) for line in records["compute"]])
        self.assertIn("--rounds 1: rates are compared over 5 or more", records["verdict"][-1]["cause"])
        self.assertEqual(records["verdict"][-1]["verdict"], "INCONCLUSIVE")

    def test_a_wrong_bit_of_a_product_and_of_a_copy_is_found_and_placed(self):
        out, records = self.measure("--rounds", 1, "--tests", "products", "--types", "fp32", "--inject-fault",
                                    "product:1", ranks=2, code=1)
        self.assertIn("fault injected: product on rank 1", out)
        self.assertEqual(records["run"]["options.inject_fault"], "product:1")
        self.assertEqual(self.failures(records), {self.name_of(records, 1), ("job", "compute_perf")})
        row, column = divmod(128 * 128 // 3, 128)
        self.assertIn(f"element ({row}, {column}) of 128 x 128 differs by", out)
        _, records = self.measure("--rounds", 1, "--tests", "memory,host", "--inject-fault", "copy:0", ranks=2, code=1)
        self.assertEqual(self.failures(records), {self.name_of(records, 0), ("job", "compute_perf")})
        self.assertEqual({line["test"] for line in records["compute"] if not line["correct"]},
                         {"memory copy", "host to device, alone", "both directions, alone",
                          "host to device, all at once", "both directions, all at once"})

    @unittest.skipIf(GPUS, "a GPU has other types")
    def test_what_the_device_does_not_have_is_named_with_the_option(self):
        for option, value, said in [("--types", "fp16", r"the device of rank 0 has only fp32, (bf16, )?int8\n"),  # by the processor
                                    ("--bytes", "999T", "out of memory: 999 TiB more needed")]:
            result = run_bare(COMPUTE_PERF, option, value)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertRegex(result.stderr, f"{option} {value}: {said}")

    def test_a_slow_device_is_named_by_the_reference_after_a_second_measurement(self):
        products = ["--tests", "products", "--types", "fp32", "--seconds", 0.02]
        _, records = self.measure(*products, code=3)
        good = self.folder / "good.jsonl"

        def reference(rate):
            """The same in each sample: of what was measured here samples may differ by so much that nothing
            is slow next to them."""
            lines = [{**line, "rate": rate, "samples": [rate] * 5} for line in records["compute"]]
            good.write_text("".join(json.dumps(line) + "\n" for line in lines))

        reference(1e-9)  # TFLOP/s, or GB/s: no load makes this machine as slow
        self.measure(*products, "--reference", good, code=0)
        reference(1e9)
        out, records = self.measure(*products, "--reference", good, "--inject-fault", "slow:0", code=1)
        self.assertIn("fault injected: slow on rank 0", out)
        self.assertIn(self.name_of(records, 0), self.failures(records))
        self.assertIn("compared with the reference in two measurements", out)
        self.assertEqual({line["pass"] for line in records["compute"]}, {1, 2})


if __name__ == "__main__":
    unittest.main()
