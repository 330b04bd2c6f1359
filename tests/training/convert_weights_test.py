"""training/convert_weights.py: files as torch.save writes them, made without PyTorch."""

import array
import io
import json
import pathlib
import pickle
import subprocess
import struct
import sys
import tempfile
import types
import unittest
import zipfile
from unittest import mock

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "training"))
import convert_weights  # noqa: E402


def fake_torch():
    """Modules with the names that torch.save writes."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def _rebuild_tensor_v2():
        pass
    _rebuild_tensor_v2.__module__ = "torch._utils"
    _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    for name in convert_weights.SIZES:
        setattr(torch, name, type(name, (), {"__module__": "torch"}))
    return {"torch": torch, "torch._utils": utils}


class Storage:
    def __init__(self, kind, key, data):
        self.kind, self.key, self.data = kind, key, data


class Saved:
    """A tensor that pickles as torch's."""
    def __init__(self, storage, shape, stride=None, offset=0):
        self.storage, self.shape, self.offset = storage, tuple(shape), offset
        self.stride = stride or tuple(convert_weights.prod(shape[i + 1:]) for i in range(len(shape)))

    def __reduce__(self):
        rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2
        return rebuild, (self.storage, self.offset, self.shape, self.stride, False, {})


def pickled(root, legacy):
    out, storages = io.BytesIO(), []

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            if not isinstance(thing, Storage):
                return None
            if thing not in storages:
                storages.append(thing)
            size = len(thing.data) // convert_weights.SIZES[thing.kind]
            return ("storage", getattr(sys.modules["torch"], thing.kind), thing.key, "cpu", size,
                    *([None] if legacy else []))
    Pickler(out, 2).dump(root)
    return out.getvalue(), storages


def save(path, root, legacy=False):
    with mock.patch.dict(sys.modules, fake_torch()):
        data, storages = pickled(root, legacy)
    if not legacy:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", data)
            for storage in storages:
                archive.writestr(f"archive/data/{storage.key}", storage.data)
        return
    with open(path, "wb") as file:
        for thing in (convert_weights.LEGACY_MAGIC, 1001, {"little_endian": True}):
            pickle.dump(thing, file, 2)
        file.write(data)
        pickle.dump([storage.key for storage in storages], file, 2)
        for storage in storages:
            size = len(storage.data) // convert_weights.SIZES[storage.kind]
            file.write(size.to_bytes(8, "little") + storage.data)


def resnet18(classes=3):
    """All zero but the classifier's bias, 0.5, 1.5, ...; num_batches_tracked is 7."""
    shapes = convert_weights.expected_shapes("resnet18", classes)
    tensors = {}
    for i, (name, shape) in enumerate(shapes.items()):
        zero = bytes(4 * convert_weights.prod(shape))
        tensors[name] = Saved(Storage("FloatStorage", str(i), zero), shape)
    tensors["fc.bias"].storage.data = struct.pack(f"<{classes}f", *(c + 0.5 for c in range(classes)))
    tensors["bn1.num_batches_tracked"] = Saved(Storage("LongStorage", "n", struct.pack("<q", 7)), ())
    return tensors


class Trap:
    """Would create a file if the pickle were executed."""
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


class Convert(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shakedown_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "out.safetensors"

    def convert(self, root, *arguments, legacy=False):
        """(exit code, output)"""
        file = self.folder / "in.pth"
        save(file, root, legacy)
        return self.convert_file(file, *arguments)

    def convert_file(self, file, *arguments):
        printed = io.StringIO()
        line = ["convert_weights", str(file), str(self.out), *arguments]
        with mock.patch.multiple(sys, argv=line, stdout=printed, stderr=printed):
            return convert_weights.main(), printed.getvalue()

    def read(self, name):
        data = self.out.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + length])
        begin, end = header[name]["data_offsets"]
        return header[name], data[8 + length + begin:8 + length + end], header["__metadata__"]

    def test_where_the_state_dict_lies(self):
        bare = resnet18()
        prefixed = {"module." + name: tensor for name, tensor in bare.items()}
        for root, legacy, arguments in (
                (bare, False, []), (bare, True, []),
                ({"epoch": 3, "model_state_dict": prefixed}, False, []),
                ({"state_dict": prefixed, "args": types.SimpleNamespace(lr=1)}, False, []),
                ({"model": {}, "ema": bare}, False, ["--key", "ema"])):
            with self.subTest(keys=list(root)[:2], legacy=legacy):
                self.out.unlink(missing_ok=True)
                self.assertEqual(self.convert(root, *arguments, legacy=legacy),
                                 (0, f"{self.out}: resnet18, 3 classes, 103 tensors\n"))
                entry, data, about = self.read("fc.bias")
                self.assertEqual((entry["dtype"], entry["shape"]), ("F32", [3]))
                self.assertEqual(struct.unpack("<3f", data), (0.5, 1.5, 2.5))
                self.assertEqual(self.read("bn1.num_batches_tracked")[:2],
                                 ({"dtype": "I64", "shape": [], "data_offsets": mock.ANY},
                                  struct.pack("<q", 7)))
                self.assertEqual(json.loads(about["shakedown"])["model"], "resnet18")

    def test_types_and_strides(self):
        tensors = resnet18()
        wide = array.array("d", [-1.5, 2, 1 / 3])
        tensors["fc.bias"] = Saved(Storage("DoubleStorage", "d", wide.tobytes()), [3])
        tensors["bn1.weight"] = Saved(Storage("HalfStorage", "h", struct.pack("<64e", *range(64))), [64])
        tensors["bn1.bias"] = Saved(Storage("BFloat16Storage", "b", b"\x80\x3f" * 64), [64])
        count = 64 * 3 * 7 * 7
        tensors["conv1.weight"] = Saved(  # channels_last, the second half of a storage
            Storage("FloatStorage", "c", struct.pack(f"<{2 * count}f", *range(2 * count))),
            [64, 3, 7, 7], (147, 1, 21, 3), count)
        self.assertEqual(self.convert(tensors)[0], 0)
        self.assertEqual(struct.unpack("<3f", self.read("fc.bias")[1])[:2], (-1.5, 2))
        self.assertEqual(struct.unpack("<64f", self.read("bn1.weight")[1]), tuple(range(64)))
        self.assertEqual(struct.unpack("<64f", self.read("bn1.bias")[1]), (1,) * 64)
        conv1 = struct.unpack(f"<{count}f", self.read("conv1.weight")[1])
        k, c, y, x = 5, 2, 3, 4
        self.assertEqual(conv1[((k * 3 + c) * 7 + y) * 7 + x], count + k * 147 + y * 21 + x * 3 + c)

    def test_nothing_in_the_file_is_executed(self):
        trap = self.folder / "executed"
        code, _ = self.convert({"hook": Trap(str(trap)), "state_dict": resnet18()})
        self.assertEqual((code, trap.exists()), (0, False))
        trapped = {"fc.bias": Trap(str(trap))}
        self.assertEqual(self.convert(trapped)[0], 2)
        self.assertFalse(trap.exists())

    def test_what_cannot_be_converted_is_named(self):
        def refused(root, *words):
            code, text = self.convert(root)
            self.assertEqual(code, 2)
            for word in (str(self.folder / "in.pth"), *words):
                self.assertIn(word, text)
            self.assertEqual(list(self.folder.glob("out*")), [])
        missing = resnet18()
        del missing["layer2.1.bn2.running_var"]
        refused(missing, "resnet18", "layer2.1.bn2.running_var is missing")
        refused({**resnet18(), "se.weight": Saved(Storage("FloatStorage", "se", bytes(4)), [1])}, "se.weight is not expected")
        wrong = resnet18()
        wrong["layer1.0.conv1.weight"].shape = (128, 64, 3, 3)
        refused(wrong, "layer1.0.conv1.weight is [128, 64, 3, 3], not [64, 64, 3, 3]")
        short = resnet18()
        short["fc.bias"].storage.data = bytes(8)
        refused(short, "truncated")
        refused({"epoch": 1, "optimizer": {}}, "no state_dict; its keys: epoch, optimizer")
        refused(Trap("x"), "save model.state_dict()")
        for content in (b"", b"PK\x03\x04", b"\x80\x02.", b"hello", b"\x80\x02N."):
            file = self.folder / "in.pth"
            file.write_bytes(content)
            code, text = self.convert_file(file)
            self.assertEqual(code, 2, content)
            if content[:1] != b"\x80":  # else it holds something
                self.assertIn(f"{file}: no checkpoint of PyTorch", text)

    def test_what_cannot_be_written_is_named_and_removed(self):
        self.out.mkdir()
        code, text = self.convert(resnet18())
        self.assertEqual((code, text), (2, f"{self.out}: Is a directory\n"))
        self.assertEqual(list(self.folder.glob("*.partial")), [])
        self.out = self.folder / "gone/out.safetensors"
        self.assertEqual(self.convert(resnet18()), (2, f"{self.out}: No such file or directory\n"))
        full = OSError(convert_weights.errno.ENOSPC, "No space left on device")
        self.out = self.folder / "full.safetensors"
        with mock.patch.object(convert_weights.os, "replace", side_effect=full):
            self.assertEqual(self.convert(resnet18()), (3, f"{self.out}: No space left on device\n"))
        self.assertEqual([path.name for path in self.folder.glob("full*")], [])

    def test_the_file_to_convert_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "b.pth")
            path.write_bytes(b"weights")
            done = subprocess.run([sys.executable, TREE / "training/convert_weights.py", path, path],
                                  stderr=subprocess.PIPE, text=True)
            self.assertEqual((done.returncode, path.read_bytes()), (2, b"weights"), done.stderr)
            self.assertIn("name another", done.stderr)

    def test_help_names_torchvisions_files(self):
        text = subprocess.run([TREE / "training/convert_weights.py", "--help"], capture_output=True,
                              text=True).stdout
        self.assertIn("resnet50-0676ba61.pth", text)


if __name__ == "__main__":
    unittest.main()
