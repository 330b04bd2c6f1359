"""bin/train interrupted and continued: bit for bit, with the state on the disk. Run by tests/run."""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import support
from support import BIN, make_image_folder, read_record

sys.path.insert(0, str(support.TREE / "results"))
from reporting import training_logs  # noqa: E402
from reporting.reading import read_runs  # noqa: E402

TRAIN = BIN / "train"
IMAGES = 96  # an epoch: 4 updates
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # where files are on the disk at once


def header(path):
    """The state of the training in a checkpoint, None while there is none."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8:8 + length])["__metadata__"]
    return json.loads(metadata["training_state"])


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = pathlib.Path(tempfile.mkdtemp(prefix="shakedown_"))
        cls.addClassCleanup(shutil.rmtree, cls.data)
        make_image_folder(cls.data / "train", 32)
        make_image_folder(cls.data / "val", 3)
        cls.folder_of_images, cls.pack = cls.data / "train", cls.data / "images.pack"
        packed = support.run_bare(TRAIN, "--train-dir", cls.folder_of_images, "--pack", cls.pack)
        assert packed.returncode == 0, packed.stdout + packed.stderr

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shakedown_", dir=MEMORY))
        self.addCleanup(shutil.rmtree, self.folder)
        self.dir = self.folder / "checkpoints"
        self.latest = self.dir / "checkpoint_latest.safetensors"

    def line(self, *arguments, ranks=1, epochs=2):
        if 0 < support.GPUS < ranks:
            self.skipTest(f"{ranks} ranks on {support.GPUS} GPUs")
        return [str(support.TREE / "launch/mpi"), "-n", str(ranks), *map(str, [
            TRAIN, "--model", "tiny", "--image-size", 32, "--global-batch", 24, "--lr", 0.02,
            "--deterministic", "--train-dir", self.data / "train", "--epochs", epochs,
            *arguments])]

    def train(self, *arguments, code=0, **options):
        line = self.line(*arguments, **options)
        result = support.run_bare(*(line[3:] if line[2] == "1" else line))
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result.stdout + result.stderr

    def interrupt(self, *arguments, how, ranks=1):
        """Starts a training, or continues it, and calls how(job, pids of its ranks) once it has come
        further, in the middle of an epoch that is not the first; its exit code and output."""
        state = self.newest()
        before = state["position"]["images"] if state else 0
        job = subprocess.Popen(
            self.line("--checkpoint-dir", self.dir, "--checkpoint-minutes", 1e-6, *arguments,
                      ranks=ranks, epochs=100000),
            cwd=support.TREE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.kill)

        def in_an_epoch():
            state = header(self.latest)
            return job.poll() is not None or \
                state and state["position"]["epoch"] > 1 and state["position"]["update"] > 0 and \
                state["position"]["images"] > before
        self.assertTrue(support.wait_until(in_an_epoch, 60))
        ranks_pids = support.pids_of_ranks(TRAIN, self.dir)
        self.assertEqual(len(ranks_pids), ranks)
        how(job, ranks_pids)
        out, err = job.communicate(timeout=60)
        self.assertTrue(support.gone(*ranks_pids), "ranks are still running")
        return job.returncode, out + err

    def newest(self):
        """The state to continue from; one that is killed between two renames leaves the one before."""
        return header(self.latest) or header(self.dir / "checkpoint_latest.previous.safetensors")

    def continues_alike(self, interruptions, *arguments, ranks, images):
        """Interrupted by each (how, exit code, words) and continued, with another number of workers
        and on images of (where they lay before, then), weights and record are those of a training
        that was not."""
        before, then = (("--train-dir", each) for each in images)
        more = [*before, "--workers", 1]
        for how, code, words in interruptions:
            interrupted_code, said = self.interrupt(*arguments, *more, how=how, ranks=ranks)
            self.assertEqual(interrupted_code, code, said)
            for each in words:
                self.assertIn(each, said)
            more = [*then, "--workers", 8]
        epochs = self.newest()["position"]["epoch"] + 1
        records, weights = [self.folder / "a.jsonl", self.folder / "b.jsonl"], []
        for record, more in zip(records, [("--checkpoint-dir", self.dir, *more), before]):
            weights.append(self.folder / f"{record.stem}.safetensors")
            said = self.train(*arguments, *more, "--save", weights[-1], "--record", record,
                              ranks=ranks, epochs=epochs)
            self.assertEqual("continues" in said, "--checkpoint-dir" in more)
        self.assertEqual(*(path.read_bytes() for path in weights))
        continued, whole = ([{key: line[key] for key in ("epoch", "train_loss", "train_top1")}
                             for line in read_record(record) if line["kind"] == "epoch"]
                            for record in records)
        self.assertEqual(continued, whole[-len(continued):])
        self.assertEqual(len(continued), 2)
        written = [line for line in read_record(records[0]) if line["kind"] == "checkpoint"]
        self.assertEqual([line["images"] for line in written], [IMAGES * (epochs - 1), IMAGES * epochs])

    def killed(self, rank):
        return lambda job, ranks: os.kill(ranks[rank], signal.SIGKILL), 3, ()

    def test_killed(self):
        self.continues_alike([self.killed(1)], "--strategy", "zero1", ranks=2,
                             images=(self.folder_of_images, self.pack))

    def test_killed_and_a_signal_to_one_rank_of_three(self):
        signalled = (lambda job, ranks: os.kill(ranks[2], signal.SIGHUP), 5,
                     ["stops: SIGHUP to rank 2", "checkpoints: "])
        self.continues_alike([self.killed(0), signalled], "--strategy", "fsdp", "--optimizer", "adamw",
                             ranks=3, images=(self.pack, self.pack))

    def test_killed_and_a_signal_to_launch_mpi(self):
        signalled = (lambda job, ranks: job.send_signal(signal.SIGTERM), 5,
                     ["stops: SIGUSR2 to rank 0", "from a signal to the end"])
        self.continues_alike([self.killed(0), signalled], "--strategy", "none", ranks=1,
                             images=(self.pack, self.folder_of_images))

    def test_a_full_disk_leaves_the_checkpoint_before(self):
        record = self.folder / "r.jsonl"
        job = subprocess.Popen(
            self.line("--checkpoint-dir", self.dir, "--record", record, epochs=100000)[3:],
            cwd=support.TREE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            restore_signals=False)  # Python ignores SIGXFSZ
        self.addCleanup(job.kill)

        self.assertTrue(support.wait_until(lambda: header(self.latest)))
        resource.prlimit(job.pid, resource.RLIMIT_FSIZE, (1000000, 1000000))
        said = "".join(job.communicate(timeout=60))
        self.assertEqual(job.returncode, 3, said)
        self.assertIn("stops: 5 checkpoints in a row could not be written", said)
        self.assertIn("cannot be written: File too large; the one before is kept", said)
        self.assertIn(str(self.latest), said)
        self.assertFalse(list(self.dir.glob("*.partial")))
        lines = read_record(record)
        self.assertEqual(lines[-1]["exit_code"], 3)
        written = [line for line in lines if line["kind"] == "checkpoint"]
        last = [line for line in written if "error" not in line][-1]
        self.assertLess(last["epoch"], written[-1]["epoch"])
        self.assertGreaterEqual(len([line for line in written if "error" in line]), 5)
        epochs = [line["epoch"] for line in lines if line["kind"] == "epoch"]
        self.assertGreater(epochs[-1], last["epoch"])  # it went on after the first
        said = self.train("--checkpoint-dir", self.dir, epochs=last["epoch"])
        self.assertIn(f"continues {self.latest}: epoch {last['epoch']} after 0 updates", said)

    def test_a_disk_without_room_for_checkpoint_and_save_is_refused_at_the_start(self):
        if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
            self.skipTest("needs to mount in a namespace of its own")
        self.dir.mkdir()
        for save, code in ((self.dir / "w.safetensors", 3), (self.folder / "w.safetensors", 0)):
            line = self.line("--checkpoint-dir", self.dir, "--save", save, epochs=1)[3:]
            said = support.run_bare("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=3m none {self.dir} && exec "$@"', "sh", *line)
            self.assertEqual((said.returncode, "a checkpoint next to the file of --save needs 3.60" in said.stderr),
                             (code, code == 3), said.stdout + said.stderr)

    def test_other_ranks_continue_bit_for_bit(self):
        """--invariant: stopped on one rank and continued on two = four that never stopped."""
        self.dir.mkdir()
        (self.dir / "STOP").touch()
        options = ["--invariant", 4, "--optimizer", "adamw", "--clip-grad-norm", 1, "--ema", 0.9]
        validates, first = ["--val-dir", self.data / "val"], self.folder / "1.jsonl"
        self.train("--checkpoint-dir", self.dir, *options, *validates, "--record", first, epochs=1000, code=5)
        epochs = header(self.latest)["position"]["epoch"]
        said = self.train("--checkpoint-dir", self.dir, *options[2:], code=2)
        self.assertIn("--invariant 0 (was 4)", said)
        weights, epoch_lines = [], []
        for ranks, more in (2, ["--checkpoint-dir", self.dir]), (4, []):
            weights.append(self.folder / f"{ranks}.safetensors")
            record = self.folder / f"{ranks}.jsonl"
            said = self.train(*options, *more, "--save", weights[-1], "--record", record, *validates,
                              ranks=ranks, epochs=epochs)
            self.assertEqual("ranks: 2 (was 1): the same images in the same order, bit for bit by "
                             "--invariant 4" in said, bool(more))
            epoch_lines.append([line for line in read_record(record) if line["kind"] == "epoch"][-1])
        self.assertEqual(*(path.read_bytes() for path in weights))
        for key in "train_loss", "train_top1", "val_loss", "val_top1", "grad_norm":
            self.assertEqual(*(line[key] for line in epoch_lines), key)
        lines = "".join(training_logs.lines_of(read_runs([first, self.folder / "2.jsonl"])))  # of one training
        keys = re.findall(r'"key": "(\w+)"', lines)
        self.assertEqual([keys.count(key) for key in ("run_start", "eval_accuracy", "run_stop")],
                         [1, epochs, 1])

    def test_what_continues_and_what_does_not(self):
        (self.dir).mkdir()
        (self.dir / "STOP").touch()
        said = self.train("--checkpoint-dir", self.dir, epochs=1000, code=5)
        self.assertIn(f"stops: the file {self.dir}/STOP", said)
        self.assertFalse((self.dir / "STOP").exists())
        stopped = header(self.latest)["position"]
        self.assertEqual(stopped["images"], 24 * stopped["update"])

        self.latest.rename(self.dir / "checkpoint_latest.previous.safetensors")
        self.latest.write_bytes(b"damaged")
        (self.dir / "checkpoint_latest.safetensors.killed.partial").touch()
        older = shutil.copy(self.dir / "checkpoint_latest.previous.safetensors", self.folder)
        said = self.train("--checkpoint-dir", self.dir, "--strategy", "fsdp", ranks=2, epochs=1)
        self.assertIn(f"warning: {self.latest}: too short", said)
        refused = self.dir / "checkpoint_latest.refused.safetensors"
        self.assertEqual(refused.read_bytes(), b"damaged")
        self.assertFalse(list(self.dir.glob("*.partial")))
        self.assertFalse((self.dir / "checkpoint.lock").exists())
        self.assertIn("ranks: 2 (was 1): the same images", said)
        self.assertIn("--batch-size 12 (was 24)", said)
        self.assertEqual(header(self.latest)["position"]["images"], IMAGES)
        (self.dir / "STOP").touch()
        self.train("--checkpoint-dir", self.dir, "--resume", older, code=5)

        said = self.train("--checkpoint-dir", self.dir, "--seed", 3, "--optimizer", "adam", code=2)
        self.assertIn("--seed 3 (was 0)", said)
        self.assertIn("--optimizer adam (was sgd)", said)
        (self.data / "train/dots/000.png").rename(self.data / "train/dots/100.png")
        said = self.train("--resume", self.latest, code=2)
        (self.data / "train/dots/100.png").rename(self.data / "train/dots/000.png")
        self.assertIn("images 96, listing", said)
        said = self.train("--checkpoint-dir", "/sys/no", code=2)
        self.assertIn("--checkpoint-dir /sys/no/checkpoint_latest.safetensors: cannot be written: ", said)
        self.assertNotIn("No such file", said)  # there is no file as the folder could not be made

    def test_one_training_at_a_time(self):
        def second(job, ranks):
            run_id = json.loads((self.dir / "checkpoint.lock").read_text())["run_id"]
            self.assertEqual(run_id, read_record(record)[0]["run_id"])
            self.assertEqual(header(self.latest)["run_id"], run_id)
            for arguments in ["--checkpoint-dir", self.dir], ["--resume", self.latest]:
                said = self.train(*arguments, "--seed", 9, code=2)
                self.assertIn(f"run {run_id} (", said)
                self.assertIn(f"pid {ranks[0]}): its process runs", said)
            job.send_signal(signal.SIGUSR2)

        record = self.folder / "r.jsonl"
        code, said = self.interrupt("--record", record, how=second, ranks=2)
        self.assertEqual(code, 5, said)
        code, said = self.interrupt(how=self.killed(0)[0])
        self.assertIn("pid", (self.dir / "checkpoint.lock").read_text())
        said = self.train("--checkpoint-dir", self.dir, epochs=header(self.latest)["position"]["epoch"])
        self.assertRegex(said, r"takes \S+/checkpoint.lock over from run .*: its process has ended")
        self.assertFalse((self.dir / "checkpoint.lock").exists())


if __name__ == "__main__":
    unittest.main()
