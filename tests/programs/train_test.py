"""bin/train without a data set: throughput, --layers, --max-batch, --self-test. Run by tests/run."""

import json
import pathlib
import statistics
import unittest

import support
from support import BIN, Folder, read_record, read_safetensors, run

SMALL = ["--model", "tiny", "--image-size", 32, "--classes", 10, "--batch-size", 8]
RESNET18 = ["--model", "resnet18", *SMALL[2:]]
TRAIN = BIN / "train"


class Throughput(Folder):
    def test_two_ranks_measure_and_prove(self):
        result = run(TRAIN, *SMALL, "--iterations", 4, "--warmup", 2, "--warmup-seconds", 0.5,
                     "--record", self.record, ranks=2)
        self.expect(result, 0, "images/s", "fewer than 25 steps: no interval", "certificate  PASS",
                    "2 ranks on 1 node", "16 globally")
        lines = read_record(self.record)
        kinds = [line["kind"] for line in lines]
        self.assertEqual(kinds[:4] + kinds[-1:],
                         ["run", "certificate", "step", "breakdown", "end"])
        self.assertEqual(set(kinds[4:-1]), {"bucket", "metric"})
        start, certificate, step, breakdown, *_, end = lines
        self.assertGreater(step["comm_ms"], 0)
        self.assertNotIn("interference_ms", breakdown)  # nothing to compare with
        self.assertEqual(start["options.batch_size"], 8)
        self.assertEqual(len(start["hosts"]), 2)
        self.assertIs(certificate["pass"], True)
        self.assertLessEqual(certificate["max_abs_diff"], certificate["tolerance"])
        self.assertEqual(certificate["detects_one_rank_in"], 2)
        self.assertIn("one of 2 ranks that is lost, doubled or swapped shows", " ".join(result.stdout.split()))
        self.assertEqual(step["world_size"], 2)
        self.assertEqual(step["iterations"], 4)
        self.assertGreaterEqual(step["warmup_steps"], 2)
        self.assertGreaterEqual(step["warmup_s"], 0.5)
        self.assertEqual(step["images_per_s_interval"], "block_bootstrap_mean")
        self.assertIsNone(step["images_per_s_low"])
        self.assertEqual(len(step["peak_memory_bytes"]), 2)
        self.assertAlmostEqual(step["images_per_s"], 2 * step["images_per_s_per_rank"])
        # The rate is of the mean step, of four: at least 3/4 of the median, and all are in the run's time.
        self.assertLess(step["images_per_s"] * step["step_ms_p50"] / 1e3, 16 * 4 / 3 + 0.1)
        self.assertGreater(step["images_per_s"] * end["elapsed_s"], 4 * 16)
        self.assertLess(step["loss_last"], step["loss_first"])  # one batch, learnt by heart
        self.assertIs(step["graph"], support.GPUS > 0)
        self.assertEqual(end["exit_code"], 0)

    def test_a_trace_opens_in_perfetto(self):
        trace = self.folder / "t.json"
        result = run(TRAIN, *SMALL, "--iterations", 4, "--warmup", 1, "--certificate", "off",
                     "--strategy", "parameter-server-sharded", "--trace", trace, ranks=2)
        self.expect(result, 0)
        events = json.loads(trace.read_text())["traceEvents"]
        names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        self.assertEqual(sorted(n.split(": ")[1].split(" on")[0] for n in names.values()),
                         ["rank 0", "rank 1"])
        slices = [e for e in events if e["ph"] == "X"]
        for rank in names:
            mine = [e for e in slices if e["pid"] == rank]
            steps = [e for e in mine if e["cat"] == "step"]
            self.assertEqual([s["name"] for s in steps], ["step 1", "step 2"])
            parts = [e for e in mine if e["tid"] == 1 and e["cat"] != "step"]
            # what the compute stream did fills the steps without a gap; between them is another
            self.assertAlmostEqual(sum(p["dur"] for p in parts), sum(s["dur"] for s in steps),
                                   delta=1)
            self.assertGreater(steps[1]["ts"], steps[0]["ts"] + steps[0]["dur"])
            for step in steps:
                end = step["ts"]
                for part in parts:
                    if step["ts"] <= part["ts"] + 0.5 < step["ts"] + step["dur"]:
                        self.assertAlmostEqual(part["ts"], end, delta=1)
                        end = part["ts"] + part["dur"]
                self.assertAlmostEqual(step["ts"] + step["dur"], end, delta=1)
            blocks = [p["name"] for p in parts if p["cat"] in ("forward", "backward")][:8]
            self.assertEqual(blocks[0], "forward stem")
            self.assertEqual(blocks[3:5], ["forward head", "backward head"])
            self.assertEqual(blocks[7], "backward stem")
            exchanges = [e for e in mine if e["cat"] == "exchange" and e["tid"] == 2]
            self.assertEqual([e["name"] for e in exchanges], ["push 0", "pull 1"] * 2)
        # one clock: both ranks push at the same time. Its error is less than a round trip, of which a
        # push has several.
        pushes = {e["pid"]: e for e in slices if e["name"] == "push 0" and e["tid"] == 2}
        a, b = pushes.values()
        self.assertLess(max(a["ts"], b["ts"]),
                        min(a["ts"] + a["dur"], b["ts"] + b["dur"]) + max(a["dur"], b["dur"]))

    def test_a_gpu_that_computes_wrong_bits_is_named(self):
        checked = [TRAIN, *SMALL, "--batch-size", 2, "--warmup", 1, "--warmup-seconds", 0, "--deterministic",
                   "--certificate", "off", "--check-neighbour", 2, "--output", self.folder, "--record", self.record]
        self.expect(run(*checked, "--iterations", 3, ranks=2), 0,
                    "PASS job gradients: checked before 2 of 4 updates on 2 ranks")
        result = run(*checked, "--iterations", 1, "--inject-fault", "product:1", ranks=3)
        self.expect(result, 1, "fault injected: product on rank 1", "the update was not applied",
                    "rank 1 computed other gradients than ranks 0, 2", "same wrong bits")
        run_of, check, verdict, end = read_record(self.record)[-4:]
        self.assertEqual(run_of["options.inject_fault"], "product:1")
        self.assertEqual((check["updates_checked"], check["disputes"], end["exit_code"]), (1, 3, 1))
        self.assertEqual((verdict["verdict"], verdict["class"]), ("FAIL", "HARDWARE"))
        capsule = json.loads(pathlib.Path(check["capsule"]).read_text())
        self.assertEqual({d["wrong_rank"] for d in capsule["disputes"]}, {1})
        self.assertNotEqual(*(capsule["disputes"][0]["gradients"][0][k] for k in ("expected", "found")))
        self.assertIn("fc.weight", read_safetensors(self.folder / capsule["weights"]))

    def test_no_exchange_is_waived_and_may_diverge(self):
        result = run(TRAIN, *SMALL, "--batch-size", 2, "--iterations", 30, "--warmup", 1,
                     "--strategy", "none", "--record", self.record, ranks=2)
        self.expect(result, 0, "certificate  waived", "95 % interval")
        step = self.lines("step")[0]
        self.assertLess(step["images_per_s_low"], step["images_per_s"])
        self.assertGreater(step["images_per_s_high"], step["images_per_s"])

    def test_a_slow_rank_is_the_one_whose_own_passes_take_long(self):
        """In a step all wait for it; alone each has its own time."""
        for strategy in ("ddp", "none"):
            self.record.unlink(missing_ok=True)
            result = run(TRAIN, *SMALL, "--batch-size", 2, "--iterations", 5, "--warmup", 1, "--warmup-seconds",
                         0, "--certificate", "off", "--strategy", strategy, "--inject-fault", "slow:1",
                         "--record", self.record, ranks=2)
            self.expect(result, 0, "fault injected: slow on rank 1")
            metrics = self.lines("metric")
            *own, step = metrics
            self.assertEqual([(line["metric"], line["ranks"]) for line in metrics],
                             [("train/compute_ms", [0]), ("train/compute_ms", [1]), ("train/step_ms", [0, 1])])
            first, slow, steps = (statistics.median(line["samples"]) for line in metrics)
            self.assertGreater(slow, 50)  # what the fault adds
            self.assertGreater(steps, 50)
            self.assertLess(first, slow)
            self.assertEqual([len(line["samples"]) for line in metrics], [5, 5, 5])
            self.assertEqual({line["scope"] for line in own}, {"gpu" if support.GPUS else "rank"})
            self.assertEqual(all(line.get("clock_mhz", 0) > 0 for line in own), support.GPUS > 0)
            self.assertEqual((step["scope"], step["name"]), ("node", step["hosts"][0]))
            self.assertEqual((step["condition.strategy"], step["condition.world_size"],
                              step["condition.deterministic"]), (strategy, "2", "false"))
            self.assertNotIn("condition.strategy", own[0])

    def test_without_all_weights_there_are_no_passes_of_its_own(self):
        for strategy, metrics in (("fsdp", ["train/step_ms"]),
                                  ("parameter-server", ["train/compute_ms", "train/step_ms"])):
            self.record.unlink(missing_ok=True)
            self.expect(run(TRAIN, *SMALL, "--iterations", 2, "--warmup", 1, "--certificate", "off", "--strategy",
                            strategy, "--clip-grad-norm", 1, "--record", self.record, ranks=2), 0)
            self.assertEqual([line["metric"] for line in self.lines("metric")], metrics)
            # what costs time is no slow GPU's: it is not compared with references without it
            self.assertEqual(self.lines("metric")[-1]["condition.clip_grad_norm"], "1")
            self.assertNotIn("condition.no_overlap", self.lines("metric")[-1])

class SelfTest(Folder):
    def test_a_sound_machine_passes(self):
        result = run(TRAIN, "--self-test", "--record", self.record, ranks=2)
        self.expect(result, 0)
        verdicts = self.lines("verdict")
        self.assertEqual([line["name"] for line in verdicts],
                         ["training", "gradient synchronisation", "stability"])
        self.assertEqual({line["verdict"] for line in verdicts}, {"PASS"})
        self.assertEqual(result.stdout.count("PASS "), len(verdicts))


class Layers(Folder):
    """--layers: the calls of a step, and what they add up to."""

    def measure(self, model, *arguments, ranks=1):
        result = run(TRAIN, *model, "--iterations", 5, "--warmup", 2, "--warmup-seconds", 0, *arguments,
                     "--record", self.record, ranks=ranks)
        self.expect(result, 0, "layers ", "ms per step", "of the calls' time")
        return result.stdout, read_record(self.record)

    def test_every_layer_is_named_and_their_sum_is_the_step(self):
        text, lines = self.measure(RESNET18, "--layers", "--strategy", "none")
        layers = [line for line in lines if line["kind"] == "layer"]
        self.assertEqual({line["kind"] for line in lines}, {"run", "layer", "kernel", "end"})
        names = [line["layer"] for line in layers]
        blocks = [f"layer{stage}.{block}.conv{i}" for stage in range(1, 5) for block in range(2)
                  for i in (1, 2)]
        self.assertEqual(sorted(set(names) - {"input", "optimizer"}), sorted(
            ["conv1", "fc", *blocks, *(f"layer{stage}.0.downsample.0" for stage in (2, 3, 4))]))
        first = layers[0]
        # all of a step but the scalars' kernels is some layer's
        self.assertLessEqual(first["calls_ms"], 1.05 * first["logged_step_ms"])
        self.assertGreater(first["calls_ms"], 0.7 * first["logged_step_ms"])
        self.assertEqual(first["logged_steps"], 5)
        for line in layers:
            self.assertAlmostEqual(line["roof_share"], line["roof_ms"] / line["time_ms"], places=9)
            self.assertAlmostEqual(line["gbs"] * line["time_ms"] * 1e6, line["bytes"],
                                   delta=1e-6 * line["bytes"])
            if line["layer"] not in ("input", "optimizer"):
                self.assertAlmostEqual(line["forward_ms"] + line["backward_ms"], line["time_ms"])
        # 2 x 7 x 7 x 3 x 64 x 16 x 16 an image forward, and as much for the weights' gradient
        if first["backend"] == "cpu":
            conv1 = layers[names.index("conv1")]
            self.assertEqual(conv1["flop"], 2 * 8 * 2 * 7 * 7 * 3 * 64 * 16 * 16)
        optimizer = layers[names.index("optimizer")]
        self.assertGreater(optimizer["bytes"], 11e6 * 4 * 5)
        self.assertEqual(optimizer["roof"], "memory")

    def test_kernels_and_layers_share_the_steps(self):
        _, lines = self.measure(SMALL, "--layers", ranks=2)
        self.assertIn("waiting for the exchange (ddp, 2 ranks)", lines[1]["rest"])
        layers = [line for line in lines if line["kind"] == "layer"]
        kernels = [line for line in lines if line["kind"] == "kernel"]
        for key in ("time_ms", "flop", "bytes", "calls", "roof_ms"):
            total = sum(line[key] for line in layers)
            self.assertAlmostEqual(total, sum(line[key] for line in kernels), delta=1e-6 * total)
        times = [line["time_ms"] for line in kernels]
        self.assertEqual(times, sorted(times, reverse=True))
        by_name = {}
        for line in kernels:
            self.assertAlmostEqual(line["bytes"], line["calls"] * line["bytes_per_call"])
            by_name.setdefault(line["kernel"], []).append(line)
        self.assertEqual(sum(line["calls"] for line in by_name["conv_backward_data"]), 5)
        self.assertEqual(sum(line["calls"] for line in by_name["sgd"]), 1)
        self.assertEqual(sum(line["calls"] for line in by_name["conv_backward_weights"]), 6)

    def test_what_they_do_not_go_with_is_refused(self):
        self.expect(run(TRAIN, *SMALL, "--layers", "--strategy", "parameter-server", ranks=2), 2,
                    "--layers", "parameter-server", "rank 0")


class MaxBatch(Folder):
    SHAPE = ["--model", "tiny", "--image-size", 32, "--classes", 10]

    def test_the_largest_batch_is_measured_and_recorded(self):
        result = run(TRAIN, *self.SHAPE, "--iterations", 2, "--warmup", 1, "--max-batch", 12,
                     "--record", self.record, ranks=2)
        self.expect(result, 0, "largest batch by the plan: 12 per rank", "no larger one was tried",
                    "batch 12 per rank, 24 globally", "images/s", "max batch 12 per rank")
        step = self.lines("step")[0]
        self.assertEqual(step["batch_size"], 12)
        self.assertIs(step["max_batch"], True)
        self.assertEqual(len(step["device_memory_bytes"]), 2)
        share = 100 * max(a / b for a, b in zip(step["peak_memory_bytes"],
                                                step["device_memory_bytes"]))
        self.assertIn(f"{share:.1f} % of a device's", result.stdout)

if __name__ == "__main__":
    unittest.main()
