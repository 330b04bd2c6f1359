#!/usr/bin/env python3
"""Converts a PyTorch checkpoint of a ResNet to safetensors for --weights.

  training/convert_weights.py FILE.pth OUT.safetensors [--key NAME]

FILE.pth holds a state_dict: bare, or under model_state_dict, state_dict or model (--key: under another
name, as model_ema or state.model). Prefixes module. and _orig_mod. are removed. OUT.safetensors has
torchvision's names and shapes in float32, and names the model. PyTorch is not needed, and nothing in the
file is executed.

torchvision's weights, from https://download.pytorch.org/models/:
  resnet18-f37072fd.pth  resnet34-b627a593.pth  resnet50-0676ba61.pth  resnet101-63fe2227.pth
  resnet152-394f9c45.pth; trained longer: resnet50-11ad3fa6.pth resnet101-cd907fc2.pth resnet152-f82ba261.pth
"""

import argparse
import array
import contextlib
import errno
import io
import json
import os
import pickle
import re
import struct
import sys
import zipfile
from collections import OrderedDict
from math import prod
from typing import NamedTuple

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3),
          "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
# Of every storage of PyTorch: bytes per element, and the letter of struct for a number; None: another kind.
TYPES = {"FloatStorage": (4, "f"), "DoubleStorage": (8, "d"), "HalfStorage": (2, "e"),
         "BFloat16Storage": (2, "h"), "LongStorage": (8, "q"), "IntStorage": (4, "i"),
         "ShortStorage": (2, "h"), "CharStorage": (1, "b"), "ByteStorage": (1, "B"),
         "BoolStorage": (1, "?"), "ComplexFloatStorage": (8, None), "ComplexDoubleStorage": (16, None),
         "QInt8Storage": (1, None), "QUInt8Storage": (1, None), "QInt32Storage": (4, None),
         "QUInt4x2Storage": (1, None), "QUInt2x4Storage": (1, None), "UntypedStorage": (1, None)}
FLOATING = ("FloatStorage", "DoubleStorage", "HalfStorage", "BFloat16Storage")
COUNT = "num_batches_tracked"  # of a batch norm; it changes no result
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

    def __call__(self, *_, **__):
        return Opaque()

    append = extend = update = __init__


class Storage(NamedTuple):
    """Elements that tensors view, under a key of the file. A view of them starts at `first`."""
    type: str
    key: str
    count: int
    first: int = 0

    def bytes(self):
        if self.type not in TYPES:
            raise Refused(f"storage {self.key} is a {self.type}, whose element size is not known")
        return self.count * TYPES[self.type][0]


class Tensor:
    """A view of a storage, whose bytes are read later."""
    def __init__(self, storage, offset, shape, stride, *_):
        self.storage, self.offset = storage, offset
        self.shape, self.stride = list(shape), list(stride)

    def numbers(self, data_of):
        """Its elements in row-major order, as bytes of its type."""
        size, count = TYPES[self.storage.type][0], self.check()
        begin, data = self.storage.first + self.offset, data_of(self.storage)
        dense = [prod(self.shape[i + 1:]) for i in range(len(self.shape))]
        if all(a == b or n == 1 for a, b, n in zip(self.stride, dense, self.shape)):
            return data[begin * size:(begin + count) * size]
        at = [begin]  # as channels_last
        for n, step in zip(self.shape, self.stride):
            at = [base + i * step for base in at for i in range(n)]
        return b"".join(data[i * size:(i + 1) * size] for i in at)

    def check(self):
        """The number of its elements, which all are the storage's."""
        numbers = [self.offset, *self.shape, *self.stride]
        if len(self.shape) != len(self.stride) or any(type(n) is not int or n < 0 for n in numbers):
            raise Refused(f"a tensor of shape {self.shape}, stride {self.stride}, offset {self.offset}")
        count = prod(self.shape)
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.stride))
        if count > self.storage.count or (count > 0 and last >= self.storage.count):
            raise Refused(f"a tensor of shape {self.shape} at {self.offset} of a storage of "
                          f"{self.storage.count} elements")
        return count

    def values(self, data_of):
        """Its elements as bytes of float32."""
        raw, letter = self.numbers(data_of), TYPES[self.storage.type][1]
        if self.storage.type == "BFloat16Storage":
            wide = bytearray(2 * len(raw))
            wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
            return bytes(wide)
        if letter != "f":
            return array.array("f", (value for value, in struct.iter_unpack("<" + letter, raw))).tobytes()
        return raw

    def tracked(self, data_of):
        """The count of batches; 0, as a file without one, if it is no count (a half overflows at 65,520)."""
        if self.storage.type == "BFloat16Storage":
            value, = struct.unpack("<f", self.values(data_of))
        else:
            value, = struct.unpack("<" + TYPES[self.storage.type][1], self.numbers(data_of))
        return int(value) if 0 <= value < 2**63 else 0


class Reader(pickle.Unpickler):
    """Makes tensors and containers; every other name of the file becomes Opaque."""
    KNOWN = {("collections", "OrderedDict"): OrderedDict,
             ("torch._utils", "_rebuild_tensor_v2"): Tensor,
             ("torch._utils", "_rebuild_tensor_v3"): Tensor,
             ("torch._utils", "_rebuild_tensor"): Tensor,
             ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
             ("torch._utils", "_rebuild_parameter_with_state"): lambda data, *_: data,
             ("torch._tensor", "_rebuild_from_type_v2"): lambda make, _, arguments, *__: make(*arguments)}

    def __init__(self, file):
        super().__init__(file, encoding="utf-8")  # of the text of Python 2, as torch.load
        self.storages = {}  # by key

    def find_class(self, module, name):
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return name.lstrip("_")
        return self.KNOWN.get((module, name), Opaque)

    def persistent_load(self, pid):
        """pid: "storage", type, key, device, elements and, of an old file, the part that is viewed."""
        if pid[0] != "storage":
            return Opaque
        _, kind, key, _, count, view = (*pid, None)[:6]
        if type(count) is not int or count < 0:
            raise Refused(f"storage {key} has {count} elements")
        storage = Storage(kind if isinstance(kind, str) else "foreign type", key, count)
        if self.storages.setdefault(key, storage) != storage:
            raise Refused(f"storage {key} is {storage.count} elements of {storage.type}, and "
                          f"{self.storages[key].count} of {self.storages[key].type}")
        if view is None:
            return storage
        _, first, viewed = view
        if first < 0 or viewed < 0 or first + viewed > count:
            raise Refused(f"storage {key}: {viewed} elements at {first} of {count}")
        return storage._replace(first=first, count=viewed)


def read_checkpoint(path):
    """(the pickled object, a function from a storage to its bytes)."""
    with open(path, "rb") as file:
        start = file.read(9)
        file.seek(0)
        if start[:4] == b"PK\3\4":
            return read_zip(zipfile.ZipFile(path))
        if start[8:] == b"{":
            raise Refused("is safetensors already: give it to --weights")
        if start[:1] == b"{":
            raise Refused("JSON, no weights: as the index of a sharded model, which is not supported")
        return read_legacy(file)


def read_zip(archive):
    names = archive.namelist()
    found = [name for name in names if name.endswith("data.pkl")]
    if not found:
        raise Refused("a zip file, but not of PyTorch: it has no data.pkl")
    if len(found) > 1 or len(names) > len(set(names)):
        raise Refused("a zip file, but not of PyTorch: it has names twice")
    folder = found[0][:-len("data.pkl")]
    if folder + "byteorder" in names and archive.read(folder + "byteorder") != b"little":
        raise Refused("its numbers are not little-endian")
    reader = Reader(io.BytesIO(archive.read(found[0])))  # whole: the checksum is at its end
    root = reader.load()

    def data_of(storage):
        name, stated = f"{folder}data/{storage.key}", reader.storages[storage.key].bytes()
        if name not in names:
            raise Refused(f"{name} is missing (truncated?)")
        if archive.getinfo(name).file_size != stated:
            raise Refused(f"{name} has {archive.getinfo(name).file_size} bytes, not {stated} (truncated?)")
        return archive.read(name)
    return root, data_of


def read_legacy(file):
    """The format before PyTorch 1.6: pickles, then the storages one after another."""
    if Reader(file).load() != LEGACY_MAGIC:
        raise Refused("not a PyTorch checkpoint")
    if (version := Reader(file).load()) != 1001:
        raise Refused(f"version {version} of PyTorch's old format, not 1001")
    machine = Reader(file).load()
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise Refused("its numbers are not little-endian")
    reader, data = Reader(file), {}
    root, keys = reader.load(), Reader(file).load()
    if not isinstance(keys, list) or sorted(keys) != sorted(reader.storages):
        raise Refused("its list of storages is not that of its tensors")
    for key in keys:
        storage = reader.storages[key]
        stated, count = storage.bytes(), int.from_bytes(file.read(8), "little")
        if count != storage.count:
            raise Refused(f"storage {key} has {count} elements, not {storage.count} (truncated?)")
        data[key] = file.read(stated)
        if len(data[key]) != stated:
            raise Refused(f"storage {key} ends early (truncated?)")
    if file.read(1):
        raise Refused("bytes follow its last storage")
    return root, lambda storage: data[storage.key]


def tensors_of(found):
    """The tensors of a dictionary, without the prefixes of DistributedDataParallel and torch.compile."""
    tensors = {}
    for name, tensor in found.items() if isinstance(found, dict) else ():
        if isinstance(tensor, Tensor):
            plain = re.sub(r"^((module|_orig_mod)\.)+", "", str(name))
            if plain in tensors:
                raise Refused(f"{plain} is there twice, with and without a prefix")
            tensors[plain] = tensor
    return tensors


def entry(root, key):
    """root[key], or root[a][b] where the key is a.b; else None."""
    if not isinstance(root, dict):
        return None
    if key in root:
        return root[key]
    outer, dot, inner = key.partition(".")
    return entry(root.get(outer), inner) if dot else None


def networks_in(root, path="", depth=4):
    """The keys under which there is a network, of any kind."""
    for name, found in root.items() if isinstance(root, dict) and depth > 0 else ():
        if any(tensor.endswith("conv1.weight") for tensor in tensors_of(found)):
            yield f"{path}{name}"
        yield from networks_in(found, f"{path}{name}.", depth - 1)


def state_dict(root, key):
    places = {key: entry(root, key)} if key else {
        **{name: entry(root, name) for name in ("model_state_dict", "state_dict", "model")}, "": root}
    for found in places.values():
        if tensors := tensors_of(found):
            return {k: v for k, v in tensors.items() if k != "n_averaged"}  # of an averaged model
    if others := ", ".join(networks_in(root)):
        raise Refused(f"no state_dict{f' under {key}' if key else ''}; --key may be {others[:200]}")
    for name, found in places.items():
        if isinstance(found, Opaque):
            raise Refused(f"a whole pickled model{f' under {name}' if name else ''}: save "
                          "model.state_dict() where its code is")
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
    """(the ResNet whose names and shapes these are, its classes: None without a classifier)."""
    found = {name: t.shape for name, t in tensors.items() if not name.endswith(COUNT)}
    has_head = "fc.weight" in found or "fc.bias" in found
    classes = (found.get("fc.bias") or [0])[0] if has_head else None
    best = None
    for model in BLOCKS:
        shapes = expected_shapes(model, classes)
        if not has_head:
            del shapes["fc.weight"], shapes["fc.bias"]
        wrong = [f"{name} is missing" for name in shapes if name not in found]
        wrong += [f"{name} is not expected" for name in found if name not in shapes]
        wrong += [f"{name} is {found[name]}, not {shapes[name]}" for name in shapes
                  if name in found and found[name] != shapes[name]]
        if best is None or len(wrong) < len(best[1]):
            best = model, wrong
    model, wrong = best
    if classes == 0 and not wrong:
        wrong = ["fc.bias is empty"]
    if wrong:
        raise Refused(f"no ResNet-18 to 152 of torchvision; of {model}, the nearest: {'; '.join(wrong[:3])}"
                      f"{f'; and {len(wrong) - 3} more' if len(wrong) > 3 else ''}")
    return model, classes


def as_written(name, tensor, data_of):
    """(dtype, shape, bytes) of a tensor, in torchvision's types: a count is one integer, as load_state_dict
    makes of any number; all else is float32."""
    is_count, kind = name.endswith(COUNT), tensor.storage.type
    if (TYPES.get(kind, (0, None))[1] is None or prod(tensor.shape) != 1) if is_count else kind not in FLOATING:
        raise Refused(f"{name} is a {kind} of shape {tensor.shape}")
    try:
        if is_count:
            return "I64", [], struct.pack("<q", tensor.tracked(data_of))
        return "F32", tensor.shape, tensor.values(data_of)
    except Refused as error:
        raise Refused(f"{name}: {error}") from None


def write_safetensors(path, tensors, data_of, model):
    about = {"model": model, "image_size": 224, "classes": []}
    header, parts, at = {"__metadata__": {"format": "pt", "shakedown": json.dumps(about)}}, [], 0
    for name, tensor in tensors.items():
        dtype, shape, data = as_written(name, tensor, data_of)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
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
        why = "a damaged zip file" if error.errno == errno.EINVAL else error.strerror or error
        print(f"{error.filename or options.file}: {why}", file=sys.stderr)
        return 3 if error.errno in (errno.ENOSPC, errno.EDQUOT) else 2
    except Refused as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # whatever bytes that are no pickle or zip file make the readers of both raise
        print(f"{options.file}: no checkpoint of PyTorch (.pth): {error or type(error).__name__}",
              file=sys.stderr)
        return 2
    head = "without a classifier" if classes is None else f"{classes} classes"
    print(f"{options.out}: {model}, {head}, {len(tensors)} tensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
