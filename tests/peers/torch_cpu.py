#!/usr/bin/env python3
"""A peer of the CPU backend: training throughput of torchvision's ResNets with PyTorch.

One fixed synthetic batch, 1000 classes, fp32, cross-entropy, SGD with momentum 0.9 and weight
decay 1e-4; everything else is PyTorch's default. Left to itself, glibc returns the large tensors'
memory to the system after every step, and page faults cost up to a quarter of the speed. So the
fair, tuned peer is:

    MALLOC_MMAP_THRESHOLD_=34359738368 MALLOC_TRIM_THRESHOLD_=34359738368 \\
    MALLOC_TOP_PAD_=268435456 python tests/peers/torch_cpu.py --model resnet50

It prints one JSON line: images_per_s is the median over the timed steps, lo and hi the slowest and
the fastest step.
"""

import argparse
import json
import statistics
import time

import torch
import torchvision


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--channels-last", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def make_step(options):
    torch.manual_seed(0)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = getattr(torchvision.models, options.model)().to(memory_format=layout).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loss_of = torch.nn.CrossEntropyLoss()
    size = options.image_size
    x = torch.randn(options.batch_size, 3, size, size).to(memory_format=layout)
    labels = torch.randint(1000, (options.batch_size,))

    def step():
        optimizer.zero_grad()
        loss = loss_of(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main():
    options = parse_options()
    torch.set_num_threads(options.threads)
    step = make_step(options)
    rates = []
    for index in range(options.warmup + options.steps):
        start = time.perf_counter()
        step()
        if index >= options.warmup:
            rates.append(options.batch_size / (time.perf_counter() - start))
    print(json.dumps(dict(
        vars(options), images_per_s=round(statistics.median(rates), 3), lo=round(min(rates), 3),
        hi=round(max(rates), 3), torch=torch.__version__)))


if __name__ == "__main__":
    main()
