"""bin/compute_perf as its users meet it: exit codes, messages, records. Run by tests/run."""

import json
import unittest

from support import BIN, GPUS, Folder, run_bare

COMPUTE_PERF = BIN / "compute_perf"
SIZE = 4096 if GPUS else 128  # less is far below a GPU's peak, which fails it
QUICK = ["--size", SIZE, "--bytes", "256M" if GPUS else "256K", "--seconds", 0.01]
HOST = {f"host_link/{way}/{when}" for way in ("to_device", "from_device", "both") for when in ("alone", "all_at_once")}
MEMORY = {f"memory/{access}" for access in ("read", "write", "copy", "triad")}


class ComputePerf(Folder):
    def measure(self, *arguments, ranks=1, code=0):
        return self.measured(COMPUTE_PERF, *QUICK, *arguments, ranks=ranks, code=code)

    def failures(self, records):
        return {(line["scope"], line["name"]) for line in records["verdict"] if line["verdict"] == "FAIL"}

    def name_of(self, records, rank):
        line = next(line for line in records["metric"] if line["ranks"] == [rank])
        return line["scope"], line["name"]

    @unittest.skipIf(GPUS, "what a CPU measures")
    def test_every_metric_of_every_rank(self):
        out, records = self.measure(ranks=2)
        metrics = {line["metric"] for line in records["metric"]}
        self.assertLessEqual(HOST | MEMORY | {"product/fp32/tflops"}, metrics)
        self.assertEqual(len(records["metric"]), 2 * len(metrics))
        for line in records["metric"]:
            least = 12 if line["metric"].startswith("product") else 20 if "host" in line["metric"] else 10
            self.assertGreaterEqual(len(line["samples"]), least, line)
            self.assertGreater(min(line["samples"]), 0)
            self.assertEqual((line["check"], line["outcome"], line["look"]), ("verified", "measured", 1))
            self.assertEqual("condition.shape" in line, line["unit"] == "TFLOP/s")
            self.assertEqual("version.onednn" in line, line["unit"] == "TFLOP/s")
            self.assertEqual(line.get("condition.bytes", "262144"), "262144")
        self.assertEqual({line["condition.shape"] for line in records["metric"] if "condition.shape" in line},
                         {"128x128x128"})
        for line in records["metric"]:  # rounds were written as they came, with every sample
            rounds = [each["samples"][line["ranks"][0]] for each in records["compute_round"]
                      if each["metric"] == line["metric"]]
            self.assertEqual(sum(rounds, []), line["samples"])
            self.assertEqual(len(rounds), 1 if line["metric"].startswith("product") else 5)
        self.assertIn("PASS job compute_perf: correctness only", out)

    def test_a_wrong_bit_of_a_product_and_of_a_copy_is_found_and_placed(self):
        out, records = self.measure("--tests", "products", "--types", "fp32", "--inject-fault", "product:1",
                                    ranks=2, code=1)
        self.assertIn("fault injected: product on rank 1", out)
        self.assertEqual(records["run"][0]["options.inject_fault"], "product:1")
        self.assertEqual(self.failures(records), {self.name_of(records, 1), ("job", "compute_perf")})
        row, column = divmod(SIZE * SIZE // 3, SIZE)
        self.assertEqual(out.count(f"element ({row}, {column}) of {SIZE} x {SIZE} differs by"), 1)
        _, records = self.measure("--rounds", 1, "--tests", "memory,host", "--inject-fault", "copy:0", ranks=2, code=1)
        self.assertEqual(self.failures(records), {self.name_of(records, 0), ("job", "compute_perf")})
        self.assertEqual({line["metric"] for line in records["metric"] if line["check"] == "wrong"},
                         {"memory/copy"} | {metric for metric in HOST if "from_device" not in metric})
        wrong = [line for line in records["verdict"] if line.get("check") == "wrong-data"]
        self.assertEqual({(line["scope"], line["name"], line.get("metric")) for line in wrong},
                         {(*self.name_of(records, 0), None)})

    @unittest.skipIf(GPUS, "a GPU has other types")
    def test_a_type_that_is_named_and_left_out_is_reported(self):
        out, _ = self.measure("--tests", "products", "--rounds", 1, "--types", "all")
        self.assertIn("types left out, as not every device has them: fp64 (rank 0), ", out)
        self.assertIn(", mxfp8 (rank 0), nvfp4 (rank 0)\n", out)

    @unittest.skipIf(GPUS, "a GPU has other types")
    def test_what_the_device_does_not_have_is_named_with_the_option(self):
        for lacking in ("fp16", "mxfp8", "nvfp4"):
            result = run_bare(COMPUTE_PERF, "--types", lacking)
            self.assertRegex(result.stderr, lacking + r": the device of rank 0 has only fp32, (bf16, )?int8\n")  # by the processor
            self.assertEqual(result.returncode, 2)

    @unittest.skipIf(GPUS, "tests/gpu/compute injects amounts")
    def test_a_slow_device_is_measured_again_and_named(self):
        """With samples as unsteady as other work makes them the verdict is WARN, else FAIL."""
        limits = self.folder / "limits.json"
        limits.write_text('[{"metric": "memory/*", "floor": 0.9}]')  # that no unsteady sample stretches too far
        memory = ["--tests", "memory", "--rounds", 3, "--limits", limits]
        _, records = self.measure(*memory)
        good = self.folder / "good.jsonl"

        def reference(factor):
            """Of a machine that is this much faster: no load changes as much."""
            good.write_text("".join(
                json.dumps({**line, "samples": [sample * factor for sample in line["samples"]]}) + "\n"
                for line in records["metric"]))

        reference(0.001)
        out, records = self.measure(*memory, "--reference", good)
        self.assertNotIn("measured again", out)
        self.assertEqual([line["scope"] for line in records["verdict"]], ["job"])
        reference(1e6)
        out, records = self.measure(*memory, "--reference", good, "--inject-fault", "slow:0:50%", code=(0, 1))
        self.assertIn("fault injected: slow on rank 0, idle for 50 %", out)
        self.assertIn("slow: memory/copy, memory/read, memory/triad, memory/write: measured again", out)
        self.assertEqual({line["look"] for line in records["metric"]}, {1, 2, 3, 4})
        finding = records["verdict"][0]
        self.assertEqual((finding["scope"], finding["name"]), ("rank", "0"))
        self.assertIn(finding["verdict"], ("WARN", "FAIL"))
        self.assertEqual((finding["witness"], finding["slow_looks"], finding["looks"]), ("reference", 4, 4))


if __name__ == "__main__":
    unittest.main()
