#!/usr/bin/env python3
"""Converts a PyTorch checkpoint of a ResNet to safetensors for --weights.

  training/convert_weights.py FILE.pth OUT.safetensors [--key NAME]

FILE.pth holds a state_dict: bare, or under model_state_dict, state_dict or model (--key: under another
name, as model_ema). Prefixes module. and _orig_mod. are removed. OUT.safetensors has torchvision's names
and shapes in float32, and names the model. PyTorch is not needed, and nothing in the file is executed.

torchvision's weights, from https://download.pytorch.org/models/:
  resnet18-f37072fd.pth  resnet34-b627a593.pth  resnet50-0676ba61.pth  resnet101-63fe2227.pth
  resnet152-394f9c45.pth; trained longer: resnet50-11ad3fa6.pth resnet101-cd907fc2.pth resnet152-f82ba261.pth
"""

import argparse
import array
import contextlib
import errno
import json
import os
import pickle
import re
import struct
import sys
import zipfile
from collections import OrderedDict
from math import prod

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3),
          "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
SIZES = {"FloatStorage": 4, "DoubleStorage": 8, "HalfStorage": 2, "BFloat16Storage": 2,
         "LongStorage": 8}
LEGACY_MAGIC = 0x1950a86a20f9469cfc6c


class Refused(Exception):
    """What the user must change."""


class Opaque:
    """Stands for any object of the file that is not a tensor; it does nothing."""
    def __init__(self, *_, **__):
        pass

    def __setstate__(self, _):
        pass

    def __setitem__(self, *_):
        pass

    append = extend = update = __init__


class Tensor:
    """A view of a storage (type, key), whose bytes are read later."""
    def __init__(self, storage, offset, shape, stride, *_):
        (self.type, self.key), self.offset = storage, offset
        self.shape, self.stride = list(shape), list(stride)

    def values(self, data):
        """Its elements in row-major order, as bytes of float32, or of int64."""
        size, count = SIZES[self.type], prod(self.shape)
        dense = [prod(self.shape[i + 1:]) for i in range(len(self.shape))]
        if all(a == b or n == 1 for a, b, n in zip(self.stride, dense, self.shape)):
            begin = self.offset * size
            raw = data[begin:begin + count * size]
        else:  # as channels_last
            at = [self.offset]
            for n, step in zip(self.shape, self.stride):
                at = [base + i * step for base in at for i in range(n)]
            raw = b"".join(data[i * size:(i + 1) * size] for i in at)
        if len(raw) != count * size:
            raise Refused("the data end early (truncated?)")
        if self.type == "BFloat16Storage":
            wide = bytearray(2 * len(raw))
            wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
            return bytes(wide)
        if self.type in ("HalfStorage", "DoubleStorage"):
            letter = "e" if self.type == "HalfStorage" else "d"
            return array.array("f", struct.unpack(f"<{count}{letter}", raw)).tobytes()
        return raw


class Reader(pickle.Unpickler):
    """Makes tensors and containers; every other name of the file becomes Opaque."""
    KNOWN = {("collections", "OrderedDict"): OrderedDict,
             ("torch._utils", "_rebuild_tensor_v2"): Tensor,
             ("torch._utils", "_rebuild_tensor"): Tensor,
             ("torch._utils", "_rebuild_parameter"): lambda data, *_: data}

    def find_class(self, module, name):
        if module == "torch" and name.endswith("Storage"):
            return name
        return self.KNOWN.get((module, name), Opaque)

    def persistent_load(self, pid):
        return (pid[1], pid[2]) if pid[0] == "storage" else None


def read_checkpoint(path):
    """(the pickled object, a function from a storage's key to its bytes)."""
    with open(path, "rb") as file:
        if zipfile.is_zipfile(file):
            archive = zipfile.ZipFile(path)
            found = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if not found:
                raise Refused("a zip file, but not of PyTorch: it has no data.pkl")
            folder = found[0][:-len("data.pkl")]
            return Reader(archive.open(found[0])).load(), lambda key: archive.read(f"{folder}data/{key}")
        file.seek(0)  # the format before PyTorch 1.6
        if Reader(file).load() != LEGACY_MAGIC:
            raise Refused("not a PyTorch checkpoint")
        Reader(file).load(), Reader(file).load()  # protocol, machine
        sizes = {}

        class Sized(Reader):
            def persistent_load(self, pid):
                if pid[0] == "storage":
                    sizes[pid[2]] = pid[4] * SIZES.get(pid[1], 0)
                return super().persistent_load(pid)
        root, data = Sized(file).load(), {}
        for key in Reader(file).load():
            file.seek(8, os.SEEK_CUR)  # the number of elements
            data[key] = file.read(sizes[key])
        return root, data.__getitem__


def state_dict(root, key):
    for name in [key] if key else ["model_state_dict", "state_dict", "model", None]:
        found = root if name is None else root.get(name) if isinstance(root, dict) else None
        tensors = {re.sub(r"^((module|_orig_mod)\.)+", "", str(k)): v for k, v in found.items()
                   if isinstance(v, Tensor)} if isinstance(found, dict) else {}
        if tensors:
            return {k: v for k, v in tensors.items() if k != "n_averaged"}  # of an averaged model
    if isinstance(root, Opaque):
        raise Refused("a whole pickled model: save model.state_dict() where its code is")
    keys = ", ".join(map(str, root)) if isinstance(root, dict) else ""
    raise Refused(f"no state_dict{f' under {key}' if key else ''}; its keys: {keys[:200] or 'none'}")


def expected_shapes(model, classes):
    """{name: shape}, torchvision's, without num_batches_tracked."""
    shapes, wide = {}, 1 if model in ("resnet18", "resnet34") else 4

    def conv(name, norm, k, c, size):
        shapes[name + ".weight"] = [k, c, size, size]
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{part}"] = [k]
    conv("conv1", "bn1", 64, 3, 7)
    c = 64
    for stage, blocks in enumerate(BLOCKS[model], 1):
        k = 32 << stage
        for block in range(blocks):
            at = f"layer{stage}.{block}."
            sizes = [(k, c, 3), (k, k, 3)] if wide == 1 else [(k, c, 1), (k, k, 3), (4 * k, k, 1)]
            for i, size in enumerate(sizes, 1):
                conv(f"{at}conv{i}", f"{at}bn{i}", *size)
            if block == 0 and (stage > 1 or wide > 1):
                conv(at + "downsample.0", at + "downsample.1", wide * k, c, 1)
            c = wide * k
    shapes["fc.weight"], shapes["fc.bias"] = [classes, c], [classes]
    return shapes


def find_model(tensors):
    """The ResNet whose names and shapes these are."""
    classes = tensors["fc.bias"].shape[0] if "fc.bias" in tensors else 0
    found = {name: t.shape for name, t in tensors.items() if not name.endswith("num_batches_tracked")}
    best = None
    for model in BLOCKS:
        shapes = expected_shapes(model, classes)
        wrong = [f"{name} is missing" for name in shapes if name not in found]
        wrong += [f"{name} is not expected" for name in found if name not in shapes]
        wrong += [f"{name} is {found[name]}, not {shapes[name]}" for name in shapes
                  if name in found and found[name] != shapes[name]]
        if best is None or len(wrong) < len(best[1]):
            best = model, wrong
    model, wrong = best
    if wrong:
        raise Refused(f"no ResNet-18 to 152 of torchvision; of {model}, the nearest: {'; '.join(wrong[:3])}"
                      f"{f'; and {len(wrong) - 3} more' if len(wrong) > 3 else ''}")
    return model, classes


def write_safetensors(path, tensors, data_of, model):
    about = {"model": model, "image_size": 224, "classes": []}
    header, parts, at = {"__metadata__": {"format": "pt", "shakedown": json.dumps(about)}}, [], 0
    for name, tensor in tensors.items():
        is_count = name.endswith("num_batches_tracked")
        if tensor.type not in SIZES or is_count != (tensor.type == "LongStorage" and not tensor.shape):
            raise Refused(f"{name} is a {tensor.type} of shape {tensor.shape}")
        parts.append(tensor.values(data_of(tensor.key)))
        header[name] = {"dtype": "I64" if tensor.type == "LongStorage" else "F32", "shape": tensor.shape,
                        "data_offsets": [at, at + len(parts[-1])]}
        at += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = path + ".partial"
    try:
        with open(partial, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.writelines(parts)
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.remove(partial)
        if isinstance(error, OSError):
            error.filename = path
        raise


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE.pth")
    parser.add_argument("out", metavar="OUT.safetensors")
    parser.add_argument("--key", metavar="NAME", help="the entry of FILE.pth that holds the state_dict")
    options = parser.parse_args()
    if all(map(os.path.exists, (options.file, options.out))) and os.path.samefile(options.file, options.out):
        print(f"{options.out}: is the file to convert: name another", file=sys.stderr)
        return 2
    try:
        root, data_of = read_checkpoint(options.file)
        tensors = state_dict(root, options.key)
        model, classes = find_model(tensors)
        write_safetensors(options.out, tensors, data_of, model)
    except OSError as error:
        print(f"{error.filename or options.file}: {error.strerror or error}", file=sys.stderr)
        return 3 if error.errno in (errno.ENOSPC, errno.EDQUOT) else 2
    except Refused as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 2
    except (EOFError, LookupError, TypeError, ValueError, AttributeError,
            struct.error, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        print(f"{options.file}: no checkpoint of PyTorch (.pth): {error or type(error).__name__}",
              file=sys.stderr)
        return 2
    print(f"{options.out}: {model}, {classes} classes, {len(tensors)} tensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
