#!/usr/bin/env python3
"""The peer of train's loader: images/s of PyTorch's DataLoader alone, over a folder of images.

usage: tests/peers/torch_loader.py DIR [--workers N] [--batch-size N] [--warmup S] [--seconds S]

As a training script has it: ImageFolder, RandomResizedCrop(224), RandomHorizontalFlip and
PILToTensor, prefetch_factor 4, pinned memory where there is a GPU. The sampler shuffles the folder
again and again without an end, so that a small folder's epochs do not drain the queue. Workers
start together and their batches arrive together, so whole rounds of a batch per worker are timed.
"""

import argparse
import itertools
import os
import time

import torch
import torchvision
from torchvision import transforms

ENDLESS = 1 << 40  # images


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--warmup", type=float, default=4, help="seconds from the first batch")
    parser.add_argument("--seconds", type=float, default=12, help="timed at the least")
    return parser.parse_args()


def make_loader(options):
    crop = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(),
            transforms.PILToTensor()]
    images = torchvision.datasets.ImageFolder(options.folder, transforms.Compose(crop))
    return torch.utils.data.DataLoader(
        images, options.batch_size,
        sampler=torch.utils.data.RandomSampler(images, num_samples=ENDLESS),
        num_workers=options.workers, prefetch_factor=4, persistent_workers=True,
        pin_memory=torch.cuda.is_available())


def take_rounds(batches, workers, seconds):
    """(Images, seconds) of whole rounds, that long at the least."""
    images = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        images += sum(len(labels) for _, labels in itertools.islice(batches, workers))
    return images, time.perf_counter() - start


def main():
    options = parse_options()
    batches = iter(make_loader(options))
    next(batches)
    take_rounds(batches, options.workers, options.warmup)
    images, seconds = take_rounds(batches, options.workers, options.seconds)
    print(f"PyTorch DataLoader, {options.workers} workers: {images / seconds:.0f} images/s "
          f"over {seconds:.1f} s")


if __name__ == "__main__":
    main()
