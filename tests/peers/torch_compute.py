#!/usr/bin/env python3
"""The peer of compute_perf: PyTorch's matrix products, device copies and host links on one GPU.

Operands are random in every bit that their type has: fp64 is made in fp64. (Made in fp32 and
converted, 29 bits of each significand are zero; fewer transistors switch, the clock under the power
limit is higher, and so is the rate.) Memory and links move random words too. Medians of five windows
of --seconds after 0.3 of it as warm-up, by CUDA events. TFLOP/s count 2 n^3; GB/s count bytes once
for links, read + write for device copies. One JSON line per figure.
"""

import argparse
import json
import statistics
import time

import torch

NAMES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
DTYPES = {"fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", default=",".join(NAMES))
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=2, help="timed seconds per product")
    parser.add_argument("--fp32-values", action="store_true", help="fp64 operands of 24 bits")
    parser.add_argument("--copy-zeros", action="store_true", help="device copies of zeros as well")
    return parser.parse_args()


def elapsed_s(run, runs):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(runs):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def rates(run, work, seconds, windows=5):
    """Of each window, in work per second."""
    run()
    once_s = max(elapsed_s(run, 3) / 3, 1e-6)
    deadline = time.time() + 0.3 * seconds
    while time.time() < deadline:
        elapsed_s(run, max(1, int(0.05 / once_s)))
    runs = max(1, int(seconds / windows / once_s))
    return [work * runs / elapsed_s(run, runs) for _ in range(windows)]


def show(what, unit, scale, found):
    print(json.dumps({"what": what, "gpu": 0, unit: round(statistics.median(found) / scale, 2),
                      "lo": round(min(found) / scale, 2), "hi": round(max(found) / scale, 2)}), flush=True)


def operands(name, size, fp32_values):
    made = torch.float64 if name == "fp64" and not fp32_values else torch.float32
    pair = [torch.randn(size, size, device="cuda", dtype=made) for _ in range(2)]
    if name == "fp8":
        return [x.to(torch.float8_e4m3fn) for x in pair]
    if name == "int8":
        return [(x * 30).to(torch.int8) for x in pair]
    return [x.to(DTYPES.get(name, torch.float32)) for x in pair]


def product(name, size, fp32_values=False):
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    a, b = operands(name, size, fp32_values)
    if name == "fp8":
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    if name == "int8":
        return lambda: torch._int_mm(a, b.t())
    c = torch.empty(size, size, dtype=a.dtype, device="cuda")
    return lambda: torch.mm(a, b, out=c)


def transfers(options):
    words = 1 << 27  # of 8 bytes: 1 GiB
    size = 8.0 * words
    seconds = options.seconds / 10
    device = torch.randint(-2**63, 2**63 - 1, (words,), dtype=torch.int64, device="cuda")
    host = torch.empty(words, dtype=torch.int64, pin_memory=True)
    host.copy_(device)
    other = torch.empty_like(device)
    show("host to device", "gbs", 1e9, rates(lambda: other.copy_(host, non_blocking=True), size, seconds))
    show("device to host", "gbs", 1e9, rates(lambda: host.copy_(device, non_blocking=True), size, seconds))
    show("device copy (read + write)", "gbs", 1e9, rates(lambda: other.copy_(device), 2 * size, seconds))
    if options.copy_zeros:
        device.zero_()
        show("device copy of zeros", "gbs", 1e9, rates(lambda: other.copy_(device), 2 * size, seconds))


def main():
    options = parse_options()
    flop = 2.0 * options.size**3
    for name in options.types.split(","):
        show(f"product {name}", "tflops", 1e12, rates(product(name, options.size), flop, options.seconds))
        if name == "fp64" and options.fp32_values:
            show("product fp64 of fp32 values", "tflops", 1e12,
                 rates(product(name, options.size, True), flop, options.seconds))
    transfers(options)


if __name__ == "__main__":
    main()
