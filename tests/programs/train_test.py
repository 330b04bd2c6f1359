"""bin/train as its users meet it: exit codes, messages, records. Run by tests/run."""

import csv
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import support
from support import BIN, make_image_folder, read_record, read_safetensors, run, run_bare

SMALL = ["--model", "tiny", "--image-size", 32, "--classes", 10, "--batch-size", 8]
RESNET18 = ["--model", "resnet18", *SMALL[2:]]
TRAIN = BIN / "train"


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shakedown_"))
        self.addCleanup(shutil.rmtree, self.folder)

    def expect(self, result, code, *words):
        said = result.stdout + result.stderr
        self.assertEqual(result.returncode, code, said)
        for word in words:  # paragraphs are wrapped
            self.assertIn(" ".join(word.split()), " ".join(said.split()))


class Throughput(Folder):
    def test_two_ranks_measure_and_prove(self):
        record = self.folder / "r.jsonl"
        result = run(TRAIN, *SMALL, "--iterations", 4, "--warmup", 2, "--warmup-seconds", 0.5,
                     "--record", record, ranks=2)
        self.expect(result, 0, "images/s", "fewer than 25 steps: no interval", "certificate  PASS",
                    "2 ranks on 1 node", "16 globally")
        lines = read_record(record)
        kinds = [line["kind"] for line in lines]
        self.assertEqual(kinds[:4] + kinds[-1:],
                         ["run", "certificate", "step", "breakdown", "end"])
        self.assertEqual(set(kinds[4:-1]), {"bucket"})
        start, certificate, step, breakdown, *_, end = lines
        self.assertGreater(step["comm_ms"], 0)
        self.assertNotIn("interference_ms", breakdown)  # nothing to compare with
        self.assertEqual(start["options.batch_size"], 8)
        self.assertEqual(len(start["hosts"]), 2)
        self.assertIs(certificate["pass"], True)
        self.assertLessEqual(certificate["max_abs_diff"], certificate["tolerance"])
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
        record = self.folder / "r.jsonl"
        checked = [TRAIN, *SMALL, "--batch-size", 2, "--warmup", 1, "--deterministic", "--certificate", "off",
                   "--check-neighbour", 2, "--output", self.folder, "--record", record]
        self.expect(run(*checked, "--iterations", 3, ranks=2), 0, "PASS job gradients: checked before 2 of 4 updates on 2 ranks")
        result = run(*checked, "--iterations", 1, "--inject-fault", "product:1", ranks=3)
        self.expect(result, 1, "fault injected: product on rank 1", "the update was not applied",
                    "rank 1 computed other gradients than ranks 0, 2", "same wrong bits")
        run_of, check, verdict, end = read_record(record)[-4:]
        self.assertEqual(run_of["options.inject_fault"], "product:1")
        self.assertEqual((check["updates_checked"], check["disputes"], end["exit_code"]), (1, 3, 1))
        self.assertEqual((verdict["verdict"], verdict["class"]), ("FAIL", "HARDWARE"))
        capsule = json.loads(pathlib.Path(check["capsule"]).read_text())
        self.assertEqual({d["wrong_rank"] for d in capsule["disputes"]}, {1})
        self.assertNotEqual(*(capsule["disputes"][0]["gradients"][0][k] for k in ("expected", "found")))
        self.assertIn("fc.weight", read_safetensors(self.folder / capsule["weights"]))

    def test_no_exchange_is_waived_and_may_diverge(self):
        record = self.folder / "r.jsonl"
        result = run(TRAIN, *SMALL, "--batch-size", 2, "--iterations", 30, "--warmup", 1,
                     "--strategy", "none", "--record", record, ranks=2)
        self.expect(result, 0, "certificate  waived", "95 % interval")
        step = next(line for line in read_record(record) if line["kind"] == "step")
        self.assertLess(step["images_per_s_low"], step["images_per_s"])
        self.assertGreater(step["images_per_s_high"], step["images_per_s"])

    def test_steps_are_graphs_where_they_can_be(self):
        record = self.folder / "r.jsonl"
        for strategy, option, why in (("none", "auto", ""), ("none", "off", "--graph off"),
                                      ("parameter-server-async", "auto",
                                       "parameter-server-async needs the host")):
            result = run(TRAIN, *SMALL, "--iterations", 2, "--warmup", 1, "--strategy", strategy,
                         "--graph", option, "--record", record, ranks=2)
            self.expect(result, 0)
            step = [line for line in read_record(record) if line["kind"] == "step"][-1]
            self.assertIs(step["graph"], support.GPUS > 0 and not why)
            self.assertEqual("steps are not CUDA graphs: " + why in result.stdout,
                             support.GPUS > 0 and bool(why))

    def test_global_batch_is_divided(self):
        self.expect(run(TRAIN, "--model", "tiny", "--image-size", 32, "--global-batch", 12,
                        "--accumulate", 2, "--iterations", 1, "--warmup", 1, "--certificate", "off",
                        ranks=2), 0, "batch 3 per rank x 2 micro-batches, 12 globally")

    def test_a_loss_that_is_not_finite_fails(self):
        record = self.folder / "r.jsonl"
        result = run_bare(TRAIN, *SMALL, "--iterations", 4, "--warmup", 1, "--lr", "1e30",
                          "--precision", "fp32", "--record", record)
        self.expect(result, 1, "loss is not finite")
        lines = read_record(record)
        kinds = [line["kind"] for line in lines]
        self.assertEqual(kinds[:4] + kinds[-1:], ["run", "certificate", "step", "breakdown", "end"])
        self.assertIsNone(lines[2]["loss_last"])
        self.assertEqual(lines[-1]["exit_code"], 1)

    def test_one_value_a_channel_is_refused(self):
        result = run_bare(TRAIN, "--model", "resnet18", "--image-size", 32, "--batch-size", 1)
        self.expect(result, 2, "--batch-size 1", "batch normalisation")


class SelfTest(Folder):
    def test_a_sound_machine_passes(self):
        record = self.folder / "r.jsonl"
        result = run(TRAIN, "--self-test", "--record", record, ranks=2)
        self.expect(result, 0)
        verdicts = [line for line in read_record(record) if line["kind"] == "verdict"]
        self.assertEqual([line["name"] for line in verdicts],
                         [*(f"{name} float32" for name in
                            ("all_reduce", "broadcast", "all_gather", "reduce_scatter")),
                          "training", "gradient synchronisation", "stability"])
        self.assertEqual({line["verdict"] for line in verdicts}, {"PASS"})
        self.assertEqual(result.stdout.count("PASS "), len(verdicts))


class Layers(Folder):
    """--layers and --kernels: the calls of a step, and what they add up to."""

    def measure(self, *arguments, ranks=1):
        record = self.folder / "r.jsonl"
        result = run(TRAIN, *RESNET18, "--iterations", 5, "--warmup", 2, "--warmup-seconds", 0, *arguments,
                     "--record", record, ranks=ranks)
        self.expect(result, 0, "roofs", "TFLOP/s", "GB/s")
        return result.stdout, read_record(record)

    def test_every_layer_is_named_and_their_sum_is_the_step(self):
        text, lines = self.measure("--layers", "--strategy", "none")
        layers = [line for line in lines if line["kind"] == "layer"]
        self.assertEqual({line["kind"] for line in lines}, {"run", "layer", "end"})
        names = [line["layer"] for line in layers]
        blocks = [f"layer{stage}.{block}.conv{i}" for stage in range(1, 5) for block in range(2)
                  for i in (1, 2)]
        self.assertEqual(sorted(set(names) - {"input", "optimizer"}), sorted(
            ["conv1", "fc", *blocks, *(f"layer{stage}.0.downsample.0" for stage in (2, 3, 4))]))
        for name in names:
            self.assertRegex(text, rf"(?m)^{re.escape(name)} ")
        self.assertTrue(all(len(line) <= 110 for line in text.splitlines()[2:]), text)
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
        text, lines = self.measure("--layers", "--kernels", ranks=2)
        self.assertIn("waiting for the exchange (ddp, 2 ranks)", text)
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
        self.assertEqual(sum(line["calls"] for line in by_name["conv_backward_data"]), 19)
        self.assertEqual(sum(line["calls"] for line in by_name["sgd"]), 1)
        heads = [line.split() for line in text.splitlines()]
        convolutions = by_name["conv_backward_weights"]
        row = next(words for words in heads if words[:1] == ["conv_backward_weights"])
        self.assertEqual(int(row[1]), 20)
        self.assertAlmostEqual(float(row[2]), sum(line["time_ms"] for line in convolutions),
                               delta=0.001)

    def test_what_they_do_not_go_with_is_refused(self):
        self.expect(run(TRAIN, *SMALL, "--layers", "--strategy", "parameter-server", ranks=2), 2,
                    "--layers", "parameter-server", "rank 0")


class MaxBatch(Folder):
    SHAPE = ["--model", "tiny", "--image-size", 32, "--classes", 10]

    def test_the_largest_batch_is_measured_and_recorded(self):
        record = self.folder / "r.jsonl"
        result = run(TRAIN, *self.SHAPE, "--iterations", 2, "--warmup", 1, "--max-batch",
                     "--max-batch-limit", 12, "--record", record, ranks=2)
        self.expect(result, 0, "largest batch by the plan: 12 per rank", "no larger one was tried",
                    "batch 12 per rank, 24 globally", "images/s", "max batch 12 per rank")
        step = next(line for line in read_record(record) if line["kind"] == "step")
        self.assertEqual(step["batch_size"], 12)
        self.assertIs(step["max_batch"], True)
        self.assertEqual(len(step["device_memory_bytes"]), 2)
        share = 100 * max(a / b for a, b in zip(step["peak_memory_bytes"],
                                                step["device_memory_bytes"]))
        self.assertIn(f"{share:.1f} % of a device's", result.stdout)

    def test_the_memory_bounds_it(self):
        # more than a gigabyte an image; only planned. What other tests use changes meanwhile by far less
        # than the bounds.
        arguments = ["--model", "resnet50", "--image-size", 1024, "--describe", "--max-batch"]
        found = r"largest batch by the plan: (\d+) per rank"
        result = run(TRAIN, *arguments)
        self.expect(result, 0, "memory per rank, batch")
        batch = int(re.search(found, result.stdout)[1])
        self.assertIn(f"memory per rank, batch {batch},", result.stdout)
        if "80 % of its free memory" in " ".join(result.stdout.split()):  # the cpu backend, whose ranks share it
            meminfo = pathlib.Path("/proc/meminfo").read_text()
            free = int(re.search(r"MemAvailable: +(\d+)", meminfo)[1]) * 1024
            plan = re.search(r"activations and their gradients +([\d.]+) GiB", result.stdout)
            self.assertLess(float(plan[1]) * 2 ** 30, free)
            self.assertGreater(float(plan[1]) * 2 ** 30, 0.4 * free)
            half = int(re.search(found, run(TRAIN, *arguments, ranks=2).stdout)[1])
            self.assertAlmostEqual(half, batch / 2, delta=1 + batch / 8)


class Epochs(Folder):
    def setUp(self):
        super().setUp()
        make_image_folder(self.folder / "train", 32)
        make_image_folder(self.folder / "val", 11)

    def train(self, *arguments, ranks=1):
        return run(TRAIN, "--model", "tiny", "--image-size", 32, "--batch-size", 8,
                   "--lr", 0.02, "--train-dir", self.folder / "train", "--val-dir",
                   self.folder / "val", *arguments, ranks=ranks)

    def test_learns_saves_and_evaluates_alike(self):
        record = self.folder / "r.jsonl"
        weights = self.folder / "w.safetensors"
        history, mllog = self.folder / "history", self.folder / "mllog.txt"
        result = self.train("--epochs", 8, "--record", record, "--save", weights, "--history", history,
                            "--mllog", mllog, "--schedule", "cosine", "--lr-warmup-steps", 2, "--ema", 0.5,
                            "--norm-stats", "average", "--clip-grad-norm", 5, ranks=2)
        self.expect(result, 0, "96 images of 3 classes", "33 to validate")
        epochs = [line for line in read_record(record) if line["kind"] == "epoch"]
        self.assertEqual([line["epoch"] for line in epochs], list(range(1, 9)))
        self.assertTrue(all(line["validated_images"] == 33 for line in epochs))
        self.assertLess(epochs[-1]["train_loss"], epochs[0]["train_loss"])
        self.assertGreater(epochs[-1]["val_top1"], 0.8)
        self.assertEqual(epochs[-1]["val_top5"], 1)
        self.assertLess(epochs[-1]["learning_rate"], epochs[0]["learning_rate"])
        self.assertTrue(all(line["grad_norm"] > 0 for line in epochs))
        self.assertNotEqual(epochs[-1]["val_loss_ema"], epochs[-1]["val_loss"])
        self.check_history(history, epochs, result)
        self.check_mllog(mllog, epochs)

        again = self.folder / "again.jsonl"
        logits = self.folder / "logits.safetensors"
        evaluate = ["--batch-size", 8, "--precision", "fp32", "--evaluate", "--weights", weights, "--val-dir"]
        found = []
        for ranks in (1, min(3, support.GPUS or 3)):  # parts of 33 and 11 images, in padded batches of 8
            result = run(TRAIN, *evaluate, self.folder / "val", "--record", again, "--logits", logits,
                         ranks=ranks)
            self.expect(result, 0, "tiny, fp32", "32x32 pixels", "33 images of 3 classes",
                        "to evaluate", f"top-1 {100 * epochs[-1]['val_top1_ema']:.2f} %", "of 33 images")
            found.append(read_safetensors(logits))
        rows, labels = found[0]["logits"], found[0]["labels"]
        self.assertEqual(labels, [i for i in range(3) for _ in range(11)])  # sorted classes
        self.assertEqual(found[1]["labels"], labels)
        for one, three in zip(rows, found[1]["logits"], strict=True):
            for a, b in zip(one, three, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-4)
        evaluated = [line for line in read_record(again) if line["kind"] == "epoch"]
        self.assertEqual(len(evaluated), 2)
        for line in evaluated:  # with an average of the weights, that is what was saved
            self.assertEqual(line["epoch"], 0)
            self.assertEqual(line["val_top1"], epochs[-1]["val_top1_ema"])
            self.assertEqual(line["validated_images"], 33)
            self.assertAlmostEqual(line["val_loss"], epochs[-1]["val_loss_ema"], places=3 if support.GPUS else 4)
        right = sum(row.index(max(row)) == label for row, label in zip(rows, labels))
        self.assertAlmostEqual(right / 33, evaluated[0]["val_top1"])
        (self.folder / "val/dots").rename(self.folder / "val/spots")
        self.expect(run_bare(TRAIN, *evaluate, self.folder / "val"), 2, str(weights),
                    "not in " + str(self.folder / "val") + ": dots",
                    "not in " + str(weights) + ": spots")
        (self.folder / "val/spots").rename(self.folder / "val/dots")
        self.set_first_value(weights, "bn1.running_var", -1)
        self.expect(self.train("--evaluate", "--weights", weights, "--ignore-idle"), 2, str(weights),
                    "bn1.running_var")
        self.set_first_value(weights, "layer1.0.conv1.weight", float("nan"))
        self.expect(self.train("--epochs", 1, "--weights", weights, "--save", weights, ranks=2), 2,
                    str(weights), "layer1.0.conv1.weight")

    def check_history(self, folder, epochs, result):
        lists = json.loads((folder / "training_history.json").read_text())
        keys = {"train_loss": "train_loss", "val_loss": "val_loss", "learning_rate": "learning_rate",
                "images_per_s": "images_per_s", "input_stall_ms": "input_stall_ms"}
        for key, recorded in keys.items():
            self.assertEqual(lists[key], [epoch[recorded] for epoch in epochs])
        for key, recorded in (("train_acc", "train_top1"), ("val_acc", "val_top1"),
                              ("val_acc_top5", "val_top5")):
            self.assertEqual(lists[key], [100 * epoch[recorded] for epoch in epochs])
        self.assertEqual(lists["peak_memory_bytes"],
                         [max(epoch["peak_memory_bytes"]) for epoch in epochs])
        for whole, training in zip(lists["epoch_time"], epochs):
            self.assertGreater(whole, training["epoch_s"])
        with open(folder / "training_history.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([float(row["val_loss"]) for row in rows], lists["val_loss"])
        self.assertEqual([int(row["epoch"]) for row in rows], lists["epoch"])
        if "matplotlib is missing" not in result.stderr:
            self.assertEqual((folder / "curves.png").read_bytes()[1:4], b"PNG")

    def check_mllog(self, path, epochs):
        lines = path.read_text().splitlines()
        self.assertTrue(all(line.startswith(":::MLLOG {") for line in lines))
        lines = [json.loads(line[len(":::MLLOG "):]) for line in lines]
        self.assertEqual([line["value"] for line in lines if line["key"] == "train_samples"], [96])
        accuracies = [line for line in lines if line["key"] == "eval_accuracy"]
        target = next((e["epoch"] for e in epochs if e["val_top1"] >= 0.759), None)
        self.assertEqual([line["metadata"]["epoch_num"] for line in accuracies],
                         list(range(1, (target or 8) + 1)))
        self.assertEqual(accuracies[0]["value"], epochs[0]["val_top1"])
        end = lines[-1]
        self.assertEqual((end["key"], end["metadata"]["status"]),
                         ("run_stop", "success" if target else "aborted"))
        times = [line["time_ms"] for line in lines]
        self.assertEqual(times, sorted(times))

    def set_first_value(self, path, tensor, value):
        """Of a tensor of float32 in a safetensors file."""
        data = bytearray(path.read_bytes())
        length = int.from_bytes(data[:8], "little")
        begin = 8 + length + json.loads(data[8:8 + length])[tensor]["data_offsets"][0]
        data[begin:begin + 4] = struct.pack("<f", value)
        path.write_bytes(data)

    def test_the_result_does_not_depend_on_the_loader(self):
        """Nor on where the images lie; a bad one keeps its slot."""
        (self.folder / "train/dots/007.png").write_text("not an image")
        epochs = []
        record = self.folder / "r.jsonl"

        def train(*data):
            self.expect(run(TRAIN, "--model", "tiny", "--image-size", 32, "--batch-size", 8, *data,
                            "--epochs", 1, "--seed", 5, "--deterministic", "--max-bad-images", 1,
                            "--record", record, ranks=2), 0,
                        "007.png: its content is neither JPEG nor PNG; another image replaces it",
                        "bad images, replaced by the next ones: 1 of 96: ")
            epochs.append([line for line in read_record(record) if line["kind"] == "epoch"][-1])

        train("--train-dir", self.folder / "train", "--val-dir", self.folder / "val", "--workers", 1)
        pack = self.folder / "train.pack"
        self.expect(run(TRAIN, "--data-dir", self.folder, "--pack", pack, ranks=2), 0,
                    f"{pack}: 96 images of 3 classes, 0.00 GB in")
        shutil.rmtree(self.folder / "train")
        train("--data-dir", self.folder, "--workers", 3, "--cache")
        for key in ("train_loss", "val_loss", "bad_images"):
            self.assertEqual(epochs[0][key], epochs[1][key])
        self.assertEqual(epochs[0]["bad_images"], 1)

    def test_the_loader_alone(self):
        record = self.folder / "r.jsonl"
        result = run(TRAIN, "--loader-only", "--train-dir", self.folder / "train", "--image-size", 160,
                     "--batch-size", 8, "--iterations", 13, "--warmup", 1, "--workers", 2, "--prefetch", 3,
                     "--decoder", "cpu", "--record", record, ranks=2)
        self.expect(result, 0, "96 images of 3 classes", "input: 2 workers per rank", "start over", "us to open")
        _, rate, end = read_record(record)
        self.assertEqual([rate["kind"], end["kind"]], ["loader", "end"])
        self.assertEqual([rate[key] for key in ("workers", "decoder", "warmup", "world_size")], [2, "cpu", 5, 2])
        self.assertAlmostEqual(rate["images_per_s"], sum(rate["images_per_s_per_rank"]))
        self.assertGreater(rate["stage_augment_ms"], 0)

    @support.needs_cpu_backend
    def test_no_device_decoder_without_a_gpu(self):
        result = run_bare(TRAIN, "--loader-only", "--train-dir", self.folder / "train", "--decoder", "nvjpeg",
                          "--backend", "cpu", "--batch-size", 8)
        self.expect(result, 2, "--decoder nvjpeg: the cpu backend has no device decoder")

    def test_bad_data_is_named(self):
        (self.folder / "train/dots/007.png").write_text("not an image")
        self.expect(self.train("--epochs", 1), 2, "train/dots/007.png")
        shutil.rmtree(self.folder / "val/dots")
        self.expect(self.train("--epochs", 1), 2, "dots")
        self.expect(run_bare(TRAIN, "--epochs", 1, "--train-dir", self.folder / "nowhere"), 2,
                    "nowhere")

    def test_ranks_that_see_other_images_are_told(self):
        other = self.folder / "other"
        shutil.copytree(self.folder / "train", other / "train")
        (other / "train/dots/007.png").unlink()
        command = f'cd $(if ((OMPI_COMM_WORLD_RANK)); then echo {other}; else echo {self.folder}; fi);' \
                  f' {shlex.quote(str(TRAIN))} --model tiny --image-size 32 --batch-size 8 ' \
                  '--train-dir train --epochs 1'
        self.expect(support.run("bash", "-c", command, ranks=2), 2, "rank 1 on", "other images")

    def test_a_shard_smaller_than_a_batch_is_told(self):
        self.expect(self.train("--epochs", 1, "--batch-size", 64, ranks=2), 2, "--batch-size")


class Hangs(Folder):
    def test_a_rank_stopped_in_validation_ends_the_job(self):
        make_image_folder(self.folder / "train", 6)
        make_image_folder(self.folder / "val", 128)
        record = self.folder / "stopped.jsonl"
        job = self.start(record, "--model", "resnet18", "--image-size", 32, "--batch-size", 8,
                         "--strategy", "fsdp", "--train-dir", self.folder / "train", "--val-dir",
                         self.folder / "val", "--epochs", 1000)
        self.wait_for("epoch", job, record)
        self.stop(job, record, after=0.2)  # validation takes most of an epoch

    def start(self, record, *arguments):
        if 0 < support.GPUS < 2:
            self.skipTest("two ranks need two GPUs")
        return subprocess.Popen(
            [support.TREE / "launch/mpi", "-n", "2", TRAIN, *map(str, arguments), "--timeout", "2",
             "--record", record],
            cwd=support.TREE, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wait_for(self, kind, job, record):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and job.poll() is None:
            if record.exists() and f'"kind":"{kind}"' in record.read_text():
                return
            time.sleep(0.1)
        self.fail("the job did not start: " + job.communicate()[1])

    def stop(self, job, record, after):
        """Stops rank 1 after `after` seconds: the job ends, and prints which rank waited for it."""
        victim = self.rank_of(record, rank=1)
        support.let_work(victim, after)
        os.kill(victim, signal.SIGSTOP)
        started = time.monotonic()
        out, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 3, out + err)
        self.assertIn("rank 0 on", err)
        self.assertIn("within 2 s", err)
        self.assertIn("no answer from rank 1", err)
        self.assertLess(time.monotonic() - started, 45)  # 3 s where the cores are free
        self.assertEqual(read_record(record)[0]["kind"], "run")  # what was written is whole
        self.assertTrue(support.gone(victim))

    def rank_of(self, record, rank):
        """The pid of a rank of the job that writes this record."""
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
                environment = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] == bytes(TRAIN) and bytes(record) in words and \
                    f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment:
                return int(path.name)
        self.fail(f"rank {rank} is not here")


class Usage(Folder):
    def test_options_are_read_before_mpi_starts(self):
        no_mpi = {"OMPI_MCA_pml": "none"}
        self.assertNotEqual(run_bare(TRAIN, "--describe", env=no_mpi).returncode, 0)
        for program in ("train", "compare", "collective_perf", "all_reduce_perf", "link_matrix"):
            self.expect(run_bare(BIN / program, "--help", env=no_mpi), 0, f"Usage: {program} ",
                        "--timeout SECONDS")
            self.expect(run_bare(BIN / program, "--version", env=no_mpi), 0,
                        f"{program} (Shakedown) ", "revision ", "backends ", "mpi ")
            self.expect(run_bare(BIN / program, "--bogus", env=no_mpi), 2, "--bogus")
        other = run_bare(TRAIN, "--bogus", env={"OMPI_COMM_WORLD_RANK": "1", **no_mpi})
        self.assertEqual((other.returncode, other.stdout + other.stderr), (2, ""))

    def test_a_usage_error_is_printed_once(self):
        result = run(TRAIN, "--bach-size", 3, ranks=3)
        self.assertEqual((result.returncode, result.stdout, result.stderr),
                         (2, "", "train: unknown option --bach-size; did you mean --batch-size?; "
                                 "see --help\n"))
        result = run(TRAIN, "--version", ranks=3)
        self.assertEqual((result.returncode, result.stdout.count("revision"), result.stderr),
                         (0, 1, ""))

    def test_a_batch_that_does_not_fit_is_told_before_the_first_step(self):
        result = run_bare(TRAIN, "--model", "resnet50", "--batch-size", 200000)
        self.expect(result, 2, "--batch-size 200000", "needs", "are free", "largest batch that fits")
        self.assertGreater(int(re.search(r"fits is about (\d+)", result.stderr)[1]), 10)

    def test_describe_names_layers_memory_and_buckets(self):
        result = run_bare(TRAIN, "--model", "resnet50", "--describe", "--batch-size", 8)
        self.assertRegex(result.stdout, r"optimizer state +97\.(49|5) MiB")
        self.expect(result, 0, "161 tensors, 25557032 parameters", "layer4.2.conv3",
                    "8196000 bytes", "activations and their gradients")

    def test_a_file_missing_on_one_rank_is_named(self):
        (self.folder / "w.safetensors").write_text("")
        command = f'cd $(if ((OMPI_COMM_WORLD_RANK)); then echo /; else echo {self.folder}; fi);' \
                  f' exec {shlex.quote(str(TRAIN))} --weights w.safetensors --timeout 600'
        result = support.run("bash", "-c", command, ranks=2)  # ends before the 600 s, within which it waits
        self.expect(result, 2, "rank 1 on", "--weights w.safetensors: No such file or directory",
                    "torchvision's resnet50-0676ba61.pth", "training/convert_weights.py")

    def test_weights_are_checked(self):
        pickle = self.folder / "resnet50-0676ba61.pth"
        pickle.write_bytes(b"PK\x03\x04....")
        self.expect(run_bare(TRAIN, *SMALL, "--weights", pickle), 2, "Convert it",
                    "training/convert_weights.py", "resnet50-0676ba61.pth")
        header = json.dumps({"conv1.weight": {"dtype": "F32", "shape": [1],
                                              "data_offsets": [0, 4]}}).encode()
        wrong = self.folder / "wrong.safetensors"
        wrong.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
        self.expect(run_bare(TRAIN, *SMALL, "--weights", wrong), 2, "wrong.safetensors",
                    "conv1.weight")

    def test_outputs_that_cannot_be_written_are_told_at_once(self):
        for option, path in (("--record", "/proc/no/r.jsonl"), ("--trace", "/proc/no/t.json"),
                             ("--save", "/proc/no/w.safetensors")):
            result = run_bare(TRAIN, *SMALL, option, path)
            self.expect(result, 2, f"{option} {path}: cannot be written: No such file")
            self.assertNotIn("images/s", result.stdout)
        self.expect(run_bare(TRAIN, *SMALL, "--record", "/dev/full"), 3, "/dev/full")
        self.expect(run_bare(TRAIN, "--data-dir", "/tmp", "--pack", "/proc/no/t.pack"), 2,
                    "--pack /proc/no/t.pack: cannot be written: No such file")

    @support.needs_cpu_backend
    def test_what_a_backend_cannot_exchange_is_refused(self):
        self.expect(run_bare(TRAIN, *SMALL, "--backend", "cpu", "--comm-ctas", 4), 2,
                    "--comm-ctas 4", "cpu backend")

    def test_weights_that_cannot_be_saved_cost_no_result(self):
        self.expect(run_bare(TRAIN, *SMALL, "--save", self.folder), 2, str(self.folder))
        full = self.folder / "full"
        full.symlink_to("/dev/full")
        result = run_bare(TRAIN, *SMALL, "--iterations", 2, "--warmup", 1, "--certificate", "off",
                          "--save", full, "--record", self.folder / "r.jsonl")
        self.expect(result, 3, "images/s", f"--save {full}: cannot be written: No space left")
        self.assertEqual([r["kind"] for r in read_record(self.folder / "r.jsonl")][1], "step")

    def test_a_foreign_launcher_is_noticed(self):
        self.expect(run_bare(TRAIN, *SMALL, env={"PMI_SIZE": "4"}), 2, "PMI_SIZE=4", "launch/mpi")

    @unittest.skipIf(support.GPUS, "a GPU is here")
    def test_requested_gpus_that_are_missing_are_no_reason_for_the_cpu(self):
        request = {"SLURM_JOB_GPUS": "0,1"}
        result = run_bare(TRAIN, *SMALL, env=request)
        built = "built without gpu" not in result.stderr
        self.expect(result, 3 if built else 2, "SLURM_JOB_GPUS=0,1", "--backend cpu")
        arguments = [*SMALL, "--precision", "fp16", "--describe"]
        result = run_bare(TRAIN, *arguments, "--backend", "cpu", env=request)
        self.expect(result, 2, "--precision fp16", "fp32 only")
        self.assertNotIn("no GPU is visible", result.stderr)
        self.expect(run_bare(TRAIN, *arguments), 2, "fp32 only", "as no GPU is visible (")

    def test_outputs_in_one_file_are_refused(self):
        both = self.folder / "both"
        both.write_text("{}")
        self.expect(run_bare(TRAIN, *SMALL, "--record", both, "--trace", both), 2, "--trace",
                    "the file of --record")
        self.expect(run_bare(TRAIN, *SMALL, "--record", both), 2, "is not a record")
        self.assertEqual(both.read_text(), "{}")

    def test_a_missing_gpu_is_told(self):
        self.expect(run_bare(TRAIN, *SMALL, "--backend", "gpu",
                             env={"CUDA_VISIBLE_DEVICES": ""}), 2, "--backend gpu")


@unittest.skipIf(support.GPUS == 0, "no GPU here")
class Placement(Folder):
    """How ranks and GPUs may be matched, for real; the decisions are tested without (placement)."""

    def rank_sees(self, devices, ranks):
        """Runs bin/train with CUDA_VISIBLE_DEVICES set by a shell expression on every rank."""
        script = self.folder / "rank"
        script.write_text(f'#!/bin/sh\nexport CUDA_VISIBLE_DEVICES={devices}\nexec "$@"\n')
        script.chmod(0o755)
        return run(script, TRAIN, *SMALL, "--iterations", 1, "--warmup", 1, ranks=ranks,
                   env={"SHAKEDOWN_TEST": "1"})

    def test_two_ranks_on_one_gpu_are_told(self):
        self.expect(self.rank_sees("0", 2), 2, "2 ranks and 1 visible GPU", "is held by rank 0")

    def test_a_gpu_missing_on_one_rank_is_told(self):
        result = self.rank_sees('"$([ $OMPI_COMM_WORLD_RANK = 1 ] || echo 0)"', 2)
        self.expect(result, 2, "no GPU is visible to rank 1 on", "while others see some")

    @unittest.skipIf(support.GPUS < 2, "needs two GPUs")
    def test_a_gpu_of_its_own_for_each_rank(self):
        result = self.rank_sees("$OMPI_COMM_WORLD_LOCAL_RANK", 2)
        self.expect(result, 0, "images/s", "2 ranks", "gpu")


class CommittedRecords(unittest.TestCase):
    def test_committed_records_fit_the_schema(self):
        for path in sorted((support.TREE / "results").glob("**/*.jsonl")):
            with self.subTest(path=path):
                read_record(path, with_run_id=False)


if __name__ == "__main__":
    unittest.main()
