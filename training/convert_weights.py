#!/usr/bin/env python3
"""Converts a PyTorch checkpoint of a ResNet to safetensors for --weights. Needs PyTorch.

  training/convert_weights.py FILE.pth OUT.safetensors [--key NAME]

FILE.pth holds a state_dict: bare, or under model_state_dict, state_dict or model (--key: under another
name, as model_ema or state.model). Nothing in the file is executed (torch.load's weights_only).
OUT.safetensors has its tensors in float32, without the counts of batches, which change no result, and
names the model; --weights checks names and shapes.

torchvision's weights, from https://download.pytorch.org/models/:
  resnet18-f37072fd.pth  resnet34-b627a593.pth  resnet50-0676ba61.pth  resnet101-63fe2227.pth
  resnet152-394f9c45.pth; trained longer: resnet50-11ad3fa6.pth resnet101-cd907fc2.pth resnet152-f82ba261.pth
"""

import argparse
import errno
import json
import os
import re
import sys

# Of a network's number of convolutions.
MODELS = {20: "resnet18", 36: "resnet34", 53: "resnet50", 104: "resnet101", 155: "resnet152"}


def load(path):
    """What torch.save wrote; torchvision's own script saves its arguments next to the weights."""
    import torch  # pylint: disable=import-outside-toplevel
    getattr(torch.serialization, "add_safe_globals", lambda _: None)([argparse.Namespace])
    return torch.load(path, map_location="cpu", weights_only=True)


def state_dict(root, key):
    """{name: tensor}, without the prefixes of DistributedDataParallel and torch.compile."""
    found = root
    for name in key.split(".") if key else ():
        found = found[name]
    if not key:
        found = next((root[name] for name in ("model_state_dict", "state_dict", "model") if name in root), root)
    return {re.sub(r"^((module|_orig_mod)\.)+", "", name): tensor for name, tensor in found.items()
            if hasattr(tensor, "dim") and not name.endswith(("num_batches_tracked", "n_averaged"))}


def write_safetensors(path, tensors, model):
    about = {"model": model, "image_size": 224, "classes": []}
    header, at = {"__metadata__": {"format": "pt", "shakedown": json.dumps(about)}}, 0
    for name, tensor in tensors.items():
        end = at + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".partial", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.writelines(tensor.detach().float().contiguous().numpy().tobytes() for tensor in tensors.values())
    os.replace(path + ".partial", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE.pth")
    parser.add_argument("out", metavar="OUT.safetensors")
    parser.add_argument("--key", metavar="NAME", help="the entry of FILE.pth that holds the state_dict")
    options = parser.parse_args()
    try:
        if os.path.exists(options.out) and os.path.samefile(options.file, options.out):
            raise ValueError("OUT.safetensors is the file to convert")
        tensors = state_dict(load(options.file), options.key)
        convolutions = sum(tensor.dim() == 4 for tensor in tensors.values())
        if convolutions not in MODELS:
            raise ValueError(f"no ResNet-18 to 152: {convolutions} convolutions; --key names the entry of its weights")
        write_safetensors(options.out, tensors, MODELS[convolutions])
    except Exception as error:  # torch.load has many for bytes that are no checkpoint
        print(f"{options.file}: {type(error).__name__}: {error}", file=sys.stderr)
        return 3 if getattr(error, "errno", 0) == errno.ENOSPC else 2
    print(f"{options.out}: {MODELS[convolutions]}, {len(tensors)} tensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
