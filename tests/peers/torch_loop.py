#!/usr/bin/env python3
"""What many write as a burn-in: one product in PyTorch, repeated and compared with the first one's bits.

A JSON line for each product that differs, and one at the end. tests/faulty/run measures what it finds.
"""

import argparse
import json
import time

import torch
import torch_compute


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--type", default="bf16", choices=torch_compute.NAMES)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=60)
    return parser.parse_args()


def main():
    options = parse_options()
    torch.manual_seed(1)
    product = torch_compute.product(options.type, options.size)
    first = product().clone()
    wrong, products, start = 0, 1, time.monotonic()
    while time.monotonic() - start < options.seconds:
        differs = not torch.equal(product(), first)
        products += 1
        if differs:
            wrong += 1
            print(json.dumps({"wrong_product": products, "seconds": time.monotonic() - start}), flush=True)
    print(json.dumps({"products": products, "wrong": wrong}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
