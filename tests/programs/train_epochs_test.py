"""bin/train on image folders: epochs, evaluation, the loader, a rank that hangs. Run by tests/run."""

import json
import shlex
import shutil
import struct
import sys
import unittest

import support
from support import BIN, TREE, Folder, make_image_folder, read_record, read_safetensors, run, run_bare

sys.path.insert(0, str(TREE / "results"))
from reporting import training_logs  # noqa: E402
from reporting.reading import read_runs  # noqa: E402

TRAIN = BIN / "train"


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
        weights = self.folder / "w.safetensors"
        result = self.train("--epochs", 8, "--record", self.record, "--save", weights, "--schedule", "cosine",
                            "--lr-warmup-steps", 2, "--ema", 0.5, "--norm-stats", "average", "--clip-grad-norm", 5,
                            ranks=2)
        self.expect(result, 0, "96 images of 3 classes", "33 to validate")
        epochs = self.lines("epoch")
        self.assertEqual([line["epoch"] for line in epochs], list(range(1, 9)))
        self.assertTrue(all(line["validated_images"] == 33 for line in epochs))
        self.assertLess(epochs[-1]["train_loss"], epochs[0]["train_loss"])
        self.assertGreater(epochs[-1]["val_top1"], 0.8)
        self.assertEqual(epochs[-1]["val_top5"], 1)
        self.assertLess(epochs[-1]["learning_rate"], epochs[0]["learning_rate"])
        self.assertTrue(all(line["grad_norm"] > 0 for line in epochs))
        self.assertNotEqual(epochs[-1]["val_loss_ema"], epochs[-1]["val_loss"])
        self.check_report(self.record, epochs)

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

    def check_report(self, record, epochs):
        """What results/report makes of the record."""
        runs = read_runs([record])
        training, = runs[0].of("training")
        self.assertEqual((training["train_images"], training["val_images"], training["updates_per_epoch"]), (96, 33, 6))
        self.assertLess(training["init_start_ms"], training["init_stop_ms"])
        lists = training_logs.history_of(runs)
        for whole, trained in zip(lists["epoch_time"], epochs):
            self.assertGreater(whole, trained["epoch_s"])
        self.assertEqual(lists["val_acc"], [100 * epoch["val_top1"] for epoch in epochs])
        lines = [json.loads(line[len(":::MLLOG "):]) for line in training_logs.lines_of(runs)]
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
        begin, stop = (next(line["time_ms"] for line in lines if line["key"] == key)
                       for key in ("init_start", "init_stop"))
        self.assertGreater(stop, begin)  # ranks start and list the images

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

        def train(*data):
            self.expect(run(TRAIN, "--model", "tiny", "--image-size", 32, "--batch-size", 8, *data,
                            "--epochs", 1, "--seed", 5, "--deterministic", "--max-bad-images", 1,
                            "--record", self.record, ranks=2), 0,
                        "007.png: its content is neither JPEG nor PNG; another image replaces it",
                        "bad images, replaced by the next ones: 1 of 96: ")
            epochs.append(self.lines("epoch")[-1])

        train("--train-dir", self.folder / "train", "--val-dir", self.folder / "val", "--workers", 1)
        pack = self.folder / "train.pack"
        self.expect(run(TRAIN, "--data-dir", self.folder, "--pack", pack, ranks=2), 0,
                    f"{pack}: 96 images of 3 classes, ", "KiB in ")
        shutil.rmtree(self.folder / "train")
        train("--data-dir", self.folder, "--workers", 3)
        for key in ("train_loss", "val_loss", "bad_images"):
            self.assertEqual(epochs[0][key], epochs[1][key])
        self.assertEqual(epochs[0]["bad_images"], 1)

    def test_the_loader_alone(self):
        result = run(TRAIN, "--loader-only", "--train-dir", self.folder / "train", "--image-size", 160,
                     "--batch-size", 8, "--iterations", 13, "--warmup", 1, "--workers", 2, "--prefetch", 3,
                     "--decoder", "cpu", "--record", self.record, ranks=2)
        self.expect(result, 0, "96 images of 3 classes", "input: 2 workers per rank", "start over", "us to open")
        _, rate, end = read_record(self.record)
        self.assertEqual([rate["kind"], end["kind"]], ["loader", "end"])
        self.assertEqual([rate[key] for key in ("workers", "decoder", "warmup", "world_size")], [2, "cpu", 5, 2])
        self.assertAlmostEqual(rate["images_per_s"], sum(rate["images_per_s_per_rank"]))
        self.assertGreater(rate["stage_augment_ms"], 0)

    def test_ranks_that_see_other_images_are_told(self):
        other = self.folder / "other"
        shutil.copytree(self.folder / "train", other / "train")
        (other / "train/dots/007.png").unlink()
        command = f'cd $(if ((OMPI_COMM_WORLD_RANK)); then echo {other}; else echo {self.folder}; fi);' \
                  f' {shlex.quote(str(TRAIN))} --model tiny --image-size 32 --batch-size 8 ' \
                  '--train-dir train --epochs 1'
        self.expect(support.run("bash", "-c", command, ranks=2), 2, "rank 1 on", "other images")

    def test_images_that_fill_no_update_are_counted(self):
        result = self.train("--epochs", 2, "--batch-size", 3, "--accumulate", 5, "--record", self.record)
        self.expect(result, 0, "each epoch trains 90 of 96 images, in updates of 15: 6 that fill none are left out")
        self.assertEqual([line["images_dropped"] for line in self.lines("epoch")], [6, 6])
        result = self.train("--epochs", 1, "--record", self.record)
        self.expect(result, 0)
        self.assertNotIn("left out", result.stdout)
        self.assertEqual(self.lines("epoch")[-1]["images_dropped"], 0)

    def test_what_is_longer_than_the_training_is_refused(self):
        for name in "stripes", "plain":
            for folder in "train", "val":
                shutil.rmtree(self.folder / folder / name)
        self.expect(self.train("--epochs", 2, "--lr-warmup-steps", 9), 2,
                    "--lr-warmup 9steps: must be at most 8, the training's updates (4 per epoch)",
                    "32 images of 1 class in")
        self.expect(self.train("--epochs", 2, "--batch-size", 20, "--accumulate", 2), 2,
                    "an epoch has only 1 batch per rank")

class Hangs(Folder):
    def test_a_rank_stopped_in_validation_ends_the_job(self):
        make_image_folder(self.folder / "train", 6)
        make_image_folder(self.folder / "val", 128)  # validation takes most of an epoch
        said = self.stop_rank(1, TRAIN, "--model", "resnet18", "--image-size", 32, "--batch-size", 8, "--strategy", "fsdp",
                              "--train-dir", self.folder / "train", "--val-dir", self.folder / "val", "--epochs", 1000,
                              "--timeout", 2, ranks=2, after="^ +1 ")
        for words in ("rank 0 on", "within 2 s", "no answer from rank 1"):
            self.assertIn(words, said)
        silent, = self.lines("failure")
        self.assertEqual((silent["ranks"], silent["waited_s"], len(silent["hosts"])), ([1], 2, 1))
        self.assertEqual(read_record(self.record)[0]["kind"], "run")  # what was written is whole


if __name__ == "__main__":
    unittest.main()
