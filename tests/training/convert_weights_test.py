"""training/convert_weights.py, with a module in PyTorch's place; tests/gpu/logits runs it with PyTorch."""

import array
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = TREE / "training/convert_weights.py"
# What the converter uses of PyTorch. load() runs the file, which makes `root`.
TORCH = """
import array, types
serialization = types.SimpleNamespace(add_safe_globals=print)
class Tensor:
    def __init__(self, shape, values=(), kind="d"):
        self.shape, self.values = shape, array.array(kind, values)
    def dim(self): return len(self.shape)
    def numel(self):
        count = 1
        for n in self.shape: count *= n
        return count
    def detach(self):
        self.detached = True  # numpy() of a Parameter is an error
        return self
    def float(self):
        assert self.detached
        return Tensor(self.shape, self.values or [0.0] * self.numel(), "f")
    def contiguous(self): return self
    def numpy(self): return self.values
def load(path, map_location, weights_only):
    assert (map_location, weights_only) == ("cpu", True)
    names = {"Tensor": Tensor}
    exec(open(path).read(), names)
    return names["root"]
"""
NETWORK = """
def network(convolutions=20, prefix=""):
    tensors = {f"{prefix}conv{i}.weight": Tensor([1, 1, 1, 1]) for i in range(convolutions)}
    return {**tensors, prefix + "fc.bias": Tensor([3], [0.5, 1.5, 2.5]), "bn1.num_batches_tracked": Tensor([], [7])}
"""


class Convert(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shakedown_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "torch.py").write_text(TORCH)
        self.file, self.out = self.folder / "in.pth", self.folder / "out.safetensors"

    def convert(self, root, *arguments, out=None, path=None):
        """(exit code, output)"""
        self.file.write_text(f"{NETWORK}root = {root}")
        done = subprocess.run([sys.executable, SCRIPT, self.file, out or self.out, *arguments], text=True,
                              env={"PYTHONPATH": str(path or self.folder)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def test_where_the_state_dict_lies(self):
        for root, arguments, model in (
                ("network()", [], "resnet18"),
                ("{'epoch': 3, 'model_state_dict': network(36, 'module._orig_mod.')}", [], "resnet34"),
                ("{'state_dict': network(53), 'args': 1}", [], "resnet50"),
                ("{'model': {}, 'ema': network(104)}", ["--key", "ema"], "resnet101"),
                ("{'state': {'model': network(155), 'step': 3}}", ["--key", "state.model"], "resnet152")):
            with self.subTest(root=root):
                code, text = self.convert(root, *arguments)
                self.assertEqual((code, f"{self.out}: {model}, " in text), (0, True), text)
                data = self.out.read_bytes()
                length, = struct.unpack("<Q", data[:8])
                header = json.loads(data[8:8 + length])
                about = header.pop("__metadata__")
                self.assertEqual((json.loads(about["shakedown"])["model"], length % 8), (model, 0))
                self.assertEqual(len(data) - 8 - length, max(entry["data_offsets"][1] for entry in header.values()))
                begin, end = header["fc.bias"]["data_offsets"]
                self.assertEqual(header["fc.bias"], {"dtype": "F32", "shape": [3], "data_offsets": [begin, begin + 12]})
                self.assertEqual(array.array("f", data[8 + length + begin:8 + length + end]).tolist(), [0.5, 1.5, 2.5])
                self.assertNotIn("bn1.num_batches_tracked", header)

    def test_what_cannot_be_converted_is_named(self):
        for root, arguments, words in (("network(19)", [], "no ResNet-18 to 152: 19 convolutions"),
                                       ("{'epoch': 1}", [], "0 convolutions; --key names"),
                                       ("network()", ["--key", "ema"], "KeyError: 'ema'"), ("1 +", [], "SyntaxError")):
            code, text = self.convert(root, *arguments)
            self.assertEqual((code, words in text), (2, True), text)
            self.assertIn(f"{self.file}: ", text)
            self.assertFalse(self.out.exists())
        self.assertIn("No module named 'torch'", self.convert("network()", path="/nowhere")[1])
        code, text = self.convert("network()", out=self.file)
        self.assertEqual((code, "is the file to convert" in text, self.file.read_text()[:1]), (2, True, "\n"), text)
        code, text = self.convert("network()", out="/dev/full/x")
        self.assertEqual((code, "Not a directory" in text), (2, True), text)

    def test_help_names_torchvisions_files(self):
        text = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True).stdout
        self.assertIn("resnet50-0676ba61.pth", text)


if __name__ == "__main__":
    unittest.main()
