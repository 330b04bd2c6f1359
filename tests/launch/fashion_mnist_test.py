"""launch/fashion_mnist: image folders of made-up files, of generated images and of the real ones."""

import contextlib
import errno
import gzip
import hashlib
import io
import shutil
import struct
import subprocess
import tempfile
import unittest
import zlib
from pathlib import Path
from unittest import mock

from tree import TREE
from shakedown_launch import command, fashion_mnist


def idx(magic, shape, data):
    return gzip.compress(struct.pack(f">I{len(shape)}I", magic, *shape) + data, 1)


def png_pixels(data):
    """The pixels of an 8-bit gray PNG without filters, every checksum checked."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        size, kind = struct.unpack(">I4s", data[place:place + 8])
        body = data[place + 8:place + 8 + size]
        place += 12 + size
        assert data[place - 4:place] == struct.pack(">I", zlib.crc32(kind + body))
        chunks[kind] = body
    width, height, *form = struct.unpack(">2I5B", chunks[b"IHDR"])
    assert form == [8, 0, 0, 0, 0] and b"IEND" in chunks
    rows = zlib.decompress(chunks[b"IDAT"])
    lines = [rows[y * (width + 1):(y + 1) * (width + 1)] for y in range(height)]
    assert all(line[0] == 0 for line in lines)
    return width, height, b"".join(line[1:] for line in lines)


class FashionMnist(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="fashion_mnist_test."))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.output = self.folder / "images"
        self.labels = bytes(i * 7 % 10 for i in range(40))
        self.pixels = [bytes((i * 31 + p * 5) % 256 for p in range(784)) for i in range(40)]
        splits = []
        for folder, stem, count in [("train", "train", 40), ("val", "t10k", 20)]:
            splits.append([folder, stem, count])
            for name, data in [("images-idx3", idx(0x803, (count, 28, 28), b"".join(self.pixels[:count]))),
                               ("labels-idx1", idx(0x801, (count,), self.labels[:count]))]:
                (self.folder / f"{stem}-{name}-ubyte.gz").write_bytes(data)
                splits[-1].append(hashlib.md5(data).hexdigest())
        patch = mock.patch.object(fashion_mnist, "SPLITS", splits)  # as if these were the published files
        patch.start()
        self.addCleanup(patch.stop)

    def convert(self, *arguments):
        """What it printed."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(fashion_mnist.main(
                [str(self.output), "--source", str(self.folder), *map(str, arguments)]), 0)
        return out.getvalue()

    def assert_refused(self, *texts, arguments=()):
        with self.assertRaises(command.UsageError) as raised:
            self.convert(*arguments)
        for text in texts:
            self.assertIn(text, str(raised.exception))
        self.assertFalse(self.output.exists())
        self.assertFalse((self.folder / "images.partial").exists())

    def test_images(self):
        self.convert()
        paths = sorted(self.output.glob("train/*/*.png"))
        self.assertEqual(len(paths), 40)
        self.assertEqual(len(list(self.output.glob("val/*/*.png"))), 20)
        self.assertEqual(sorted(p.name for p in (self.output / "val").iterdir())[9], "9_ankle-boot")
        for path in paths:
            index = int(path.stem)
            self.assertEqual(int(path.parent.name[0]), self.labels[index])
            self.assertEqual(png_pixels(path.read_bytes()), (28, 28, self.pixels[index]))

    def test_a_part_the_same_of_each_class(self):
        self.convert("--train", 20, "--validation", 10)
        for folder in (self.output / "train").iterdir():
            label = int(folder.name[0])
            first = [f"{i:05}.png" for i in range(40) if self.labels[i] == label][:2]
            self.assertEqual(sorted(path.name for path in folder.iterdir()), first)
        shutil.rmtree(self.output)
        self.assert_refused("--train 25", arguments=["--train", 25])
        self.assert_refused("train-labels", arguments=["--train", 50])

    def test_done_once(self):
        self.convert()
        stamp = self.output.stat().st_ino
        self.assertIn("already", self.convert())
        self.assertEqual(self.output.stat().st_ino, stamp)
        self.convert("--train", 10)
        self.assertEqual(len(list(self.output.glob("train/*/*.png"))), 10)
        (self.output / fashion_mnist.MARKER).write_text("")  # after a power failure
        self.assertNotIn("already", self.convert("--train", 10))

    def test_a_full_disk(self):
        """The command ends with 3, as of any OSError, and names the folder."""
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch.object(Path, "write_bytes", side_effect=full), self.assertRaises(OSError) as raised:
            self.convert()
        self.assertEqual(raised.exception.filename, str(self.output))

    def test_a_folder_of_somebody_else_is_left_alone(self):
        self.output.mkdir()
        (self.output / "precious").touch()
        with self.assertRaisesRegex(command.UsageError, str(self.output)):
            self.convert()
        self.assertTrue((self.output / "precious").exists())

    def test_a_file_that_is_damaged_missing_or_another(self):
        path = self.folder / "t10k-labels-idx1-ubyte.gz"
        md5 = hashlib.md5

        def refusing(data, usedforsecurity=True):  # as on a FIPS machine
            if usedforsecurity:
                raise ValueError("unsupported hash type md5")
            return md5(data)
        with mock.patch.object(hashlib, "md5", refusing):
            path.write_bytes(path.read_bytes()[:-1])
            self.assert_refused(f"{path}: damaged, or another file: the md5 sum is not the published")
        path.unlink()
        self.assert_refused(f"{path}: cannot be read: No such file")

    def test_generated(self):
        """The same layout without the files; the same images each time."""
        for name in ["a", "b"]:
            with contextlib.redirect_stdout(io.StringIO()):
                fashion_mnist.main([str(self.folder / name), "--generate", "--train", "20",
                                    "--validation", "10"])
        images = {path.relative_to(self.folder / "a"): path.read_bytes()
                  for path in (self.folder / "a").rglob("*.png")}
        self.assertEqual(len(set(images.values())), 30)
        for path, data in images.items():
            self.assertEqual(data, (self.folder / "b" / path).read_bytes())
            width, height, pixels = png_pixels(data)
            self.assertEqual((width, height), (28, 28))
            self.assertGreater(max(pixels), 100)
        self.assertEqual(len(list((self.folder / "a/train/0_t-shirt-top").iterdir())), 2)
        self.assert_refused("cannot be combined", arguments=["--generate"])

    @unittest.skipUnless(fashion_mnist.available(), "no Fashion-MNIST")
    def test_the_real_one(self):
        result = subprocess.run([TREE / "launch/fashion_mnist", self.output, "--train", "100", "--validation", "100"],
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(list(self.output.glob("*/*/*.png"))), 200)


if __name__ == "__main__":
    unittest.main()
