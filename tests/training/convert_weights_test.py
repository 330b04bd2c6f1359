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
    for name in (*convert_weights.TYPES, "FutureStorage"):
        setattr(torch, name, type(name, (), {"__module__": "torch"}))
    return {"torch": torch, "torch._utils": utils}


class Storage:
    """`stated`: the number of elements in the pickle, if another than that of the data."""
    def __init__(self, kind, key, data, stated=None):
        self.kind, self.key, self.data, self.stated = kind, key, data, stated


def elements(storage):
    return len(storage.data) // convert_weights.TYPES.get(storage.kind, (1,))[0]


class Saved:
    """A tensor that pickles as torch's."""
    def __init__(self, storage, shape, stride=None, offset=0):
        self.storage, self.shape, self.offset = storage, tuple(shape), offset
        self.stride = stride or tuple(convert_weights.prod(shape[i + 1:]) for i in range(len(shape)))

    def __reduce__(self):
        rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2
        return rebuild, (self.storage, self.offset, self.shape, self.stride, False, {})


def pickled(root, legacy, protocol=2):
    out, storages = io.BytesIO(), []

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            if not isinstance(thing, Storage):
                return None
            if thing not in storages:
                storages.append(thing)
            size = thing.stated if thing.stated is not None else elements(thing)
            return ("storage", getattr(sys.modules["torch"], thing.kind), thing.key, "cpu", size,
                    *([None] if legacy else []))
    Pickler(out, protocol).dump(root)
    return out.getvalue(), storages


def save(path, root, legacy=False, protocol=2, little_endian=True):
    with mock.patch.dict(sys.modules, fake_torch()):
        data, storages = pickled(root, legacy, protocol)
    if not legacy:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", data)
            for storage in storages:
                archive.writestr(f"archive/data/{storage.key}", storage.data)
            archive.writestr("archive/byteorder", "little" if little_endian else "big")
        return
    with open(path, "wb") as file:
        for thing in (convert_weights.LEGACY_MAGIC, 1001, {"little_endian": little_endian}):
            pickle.dump(thing, file, protocol)
        file.write(data)
        pickle.dump([storage.key for storage in storages], file, protocol)
        for storage in storages:
            size = elements(storage)
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

    def convert(self, root, *arguments, legacy=False, **how):
        """(exit code, output)"""
        file = self.folder / "in.pth"
        save(file, root, legacy, **how)
        return self.convert_file(file, *arguments)

    def refused(self, *words, file=None):
        """What is converted is refused in these words, and nothing is written."""
        file = file or self.folder / "in.pth"
        code, text = self.convert_file(file)
        self.assertEqual(code, 2, text)
        for word in (str(file), *words):
            self.assertIn(word, text)
        self.assertEqual(list(self.folder.glob("out*")), [])

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
                ({"model": {}, "ema": bare}, False, ["--key", "ema"]),
                ({"state": {"model": prefixed, "step": 3}}, True, ["--key", "state.model"])):
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

    def test_storages_of_every_type_are_passed_over(self):
        """The old format has one storage after another: the size of each must be known, or all after it are wrong."""
        others = {kind: Saved(Storage(kind, f"other{i}", bytes(range(16)) * (i + 1)), [1])
                  for i, kind in enumerate(convert_weights.TYPES)}
        for legacy in (True, False):
            for root in ({**others, "state_dict": resnet18()}, {"state_dict": resnet18(), **others}):
                with self.subTest(legacy=legacy, first=next(iter(root))):
                    self.assertEqual(self.convert(root, legacy=legacy)[0], 0)
                    self.assertEqual(struct.unpack("<3f", self.read("fc.bias")[1]), (0.5, 1.5, 2.5))
                    self.assertEqual(self.read("bn1.num_batches_tracked")[1], struct.pack("<q", 7))

    def test_sizes_that_disagree_are_refused(self):
        file = self.folder / "in.pth"
        future = {"rng": Saved(Storage("FutureStorage", "f", bytes(16)), [1]), "state_dict": resnet18()}
        save(file, future, legacy=True)
        self.refused("storage f is a FutureStorage, whose element size is not known")
        for stated in (2, 4):
            for legacy in (True, False):
                wrong = resnet18()
                wrong["fc.bias"].storage.stated = stated
                save(file, wrong, legacy)
                self.refused("has 3 elements, not" if legacy else "bytes, not" if stated == 4 else "storage of 2 elements")
        save(file, resnet18(), legacy=True)
        whole = file.read_bytes()
        for content, words in ((whole + b"x", "bytes follow"), (whole[:-1], "truncated"), (whole[:-9], "truncated")):
            file.write_bytes(content)
            self.refused(words)
        for legacy in (True, False):
            save(file, resnet18(), legacy, little_endian=False)
            self.refused("little-endian")

    def test_views_that_leave_their_storage_are_refused(self):
        for shape, stride, offset in (([3], (1,), 1), ([3], (2,), 0), ([3], (1,), -1), ([3], (-1,), 2), ([3], (0, 1), 0),
                                      ([10 ** 12], (0,), 0)):
            with self.subTest(shape=shape, stride=stride, offset=offset):
                wrong = resnet18()
                wrong["fc.bias"] = Saved(Storage("FloatStorage", "v", bytes(12)), shape, stride, offset)
                wrong["fc.weight"] = Saved(Storage("FloatStorage", "w", bytes(4 * 3 * 512)), [shape[0], 512])
                save(self.folder / "in.pth", wrong)
                self.refused("a tensor of shape")

    def test_the_count_of_batches_is_any_number(self):
        """As load_state_dict takes it: floats of halved and averaged networks, the shape [1] of older ones."""
        for kind, data, count in (("HalfStorage", struct.pack("<e", 7), 7), ("FloatStorage", struct.pack("<f", 7.9), 7),
                                  ("DoubleStorage", struct.pack("<d", 2**24 + 1), 2**24 + 1),
                                  ("BFloat16Storage", b"\xe0\x40", 7), ("IntStorage", struct.pack("<i", 7), 7),
                                  ("LongStorage", struct.pack("<q", 2**24 + 1), 2**24 + 1),
                                  ("HalfStorage", struct.pack("<e", float("inf")), 0),
                                  ("FloatStorage", struct.pack("<f", float("nan")), 0)):
            for shape in ([], [1]):
                with self.subTest(kind=kind, count=count, shape=shape):
                    tensors = resnet18()
                    tensors["bn1.num_batches_tracked"] = Saved(Storage(kind, "n", data), shape)
                    self.assertEqual(self.convert(tensors)[0], 0)
                    entry, written, _ = self.read("bn1.num_batches_tracked")
                    self.assertEqual((entry["dtype"], entry["shape"], written), ("I64", [], struct.pack("<q", count)))
        for kind, data, shape in (("LongStorage", bytes(16), [2]), ("ComplexFloatStorage", bytes(8), [])):
            tensors["bn1.num_batches_tracked"] = Saved(Storage(kind, "n", data), shape)
            self.out.unlink(missing_ok=True)
            save(self.folder / "in.pth", tensors)
            self.refused(f"bn1.num_batches_tracked is a {kind} of shape {shape}")

    def test_a_network_without_its_classifier(self):
        backbone = {name: tensor for name, tensor in resnet18().items() if not name.startswith("fc.")}
        self.assertEqual(self.convert(backbone), (0, f"{self.out}: resnet18, without a classifier, 101 tensors\n"))
        self.out.unlink()
        save(self.folder / "in.pth", {**backbone, "fc.weight": resnet18()["fc.weight"]})
        self.refused("fc.bias is missing")

    def test_what_is_nearly_right_is_named(self):
        file, bare = self.folder / "in.pth", resnet18()
        for root, words in (({"state": {"model": bare, "opt": {}}, "ema": bare}, "--key may be state.model, ema"),
                            ({"epoch": 1, "model": Trap("x")}, "a whole pickled model under model"),
                            ({**bare, "module.fc.bias": bare["fc.bias"]}, "fc.bias is there twice")):
            for protocol in (2, 4):
                save(file, root, protocol=protocol)
                self.refused(words)
        file.write_bytes((2).to_bytes(8, "little") + b"{}")
        self.refused("is safetensors already: give it to --weights")
        file.write_text('{"metadata": {}, "weight_map": {}}')
        self.refused("the index of a sharded model")

    def test_nothing_in_the_file_is_executed(self):
        trap = self.folder / "executed"
        code, _ = self.convert({"hook": Trap(str(trap)), "state_dict": resnet18()})
        self.assertEqual((code, trap.exists()), (0, False))
        trapped = {"fc.bias": Trap(str(trap))}
        self.assertEqual(self.convert(trapped)[0], 2)
        self.assertFalse(trap.exists())

    def test_what_cannot_be_converted_is_named(self):
        def refused(root, *words):
            save(self.folder / "in.pth", root)
            self.refused(*words)
        missing = resnet18()
        del missing["layer2.1.bn2.running_var"]
        refused(missing, "resnet18", "layer2.1.bn2.running_var is missing")
        refused({**resnet18(), "se.weight": Saved(Storage("FloatStorage", "se", bytes(4)), [1])}, "se.weight is not expected")
        wrong = resnet18()
        wrong["layer1.0.conv1.weight"].shape = (128, 64, 3, 3)
        refused(wrong, "layer1.0.conv1.weight is [128, 64, 3, 3], not [64, 64, 3, 3]")
        short = resnet18()
        short["fc.bias"].storage.data = bytes(8)
        refused(short, "fc.bias: a tensor of shape [3] at 0 of a storage of 2 elements")
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
