"""launch/bench: the standard benchmark on what this machine has."""

import os
from pathlib import Path

from . import fashion_mnist, gpus, launchers, places
from .command import Command, Option, parse
from .experiments import Steps

COMMAND = Command(
    "[--source DIR] [train options that override the ones below]",
    """
    Trains ResNet-18 with DDP on Fashion-MNIST, on the GPUs or the CPU of this machine, then compares
    every strategy of gradient exchange, and writes a report.

      GPUs: all 60,000 images at 64x64, fp16, one rank per GPU; ResNet-50 at 256
            per rank compared.
      CPU:  6,000 of them at 32x32, on two ranks; ResNet-18 compared; 3 to 5
            minutes on two cores.
    """,
    [Option(("--source",), "DIR",
            "folder of the four Fashion-MNIST .gz files (default: that of Debian's package "
            "dataset-fashion-mnist; where it is not installed, images are generated)")],
    """
    The images are made in runs/ of the current folder (or SHAKEDOWN_RUNS), the results in a folder
    of their own there, whose path is printed at the end. Ends with the exit code of the first step
    that did not end with 0; a training's 2 (usage) and a signal (5) end it at once, and so
    do GPUs that are requested while none is visible (3).
    """)


def settings(gpu_count):
    """(images of a part, or all; train's options; compare's options)"""
    if gpu_count:
        return ({"train": None, "val": None},
                ["--image-size", "64", "--precision", "fp16", "--lr", "0.1", "--epochs", "30",
                 "--global-batch", str(512 // gpu_count * gpu_count), "--workers", "12"],
                ["--model", "resnet50", "--precision", "fp16", "--batch-size", "256",
                 "--lr", "0.01", "--iterations", "50"])
    return ({"train": 6000, "val": 2000},
            ["--image-size", "32", "--batch-size", "32", "--lr", "0.025", "--epochs", "4",
             "--workers", "2"],
            ["--backend", "cpu", "--model", "resnet18", "--image-size", "32", "--classes", "10",
             "--batch-size", "32", "--lr", "0.01", "--iterations", "5", "--warmup", "2",
             "--repeats", "2", "--epoch-images", "60000"])


def make_images(source, part, environ):
    """The image folder; without Fashion-MNIST it has generated images, as its name shows."""
    source = source or (fashion_mnist.SOURCE if fashion_mnist.available() else None)
    name = "fashion-mnist" if source else "generated-images"
    if part["train"]:
        name += f"-{part['train']}"
    if not source:
        print(f"Fashion-MNIST is not in {fashion_mnist.SOURCE}: training on generated images, whose "
              "accuracy is meaningless; throughput is the same (--source DIR reads Fashion-MNIST's "
              "files)", flush=True)
    data = Path(places.runs_folder(environ), "data", name)
    data.parent.mkdir(parents=True, exist_ok=True)
    fashion_mnist.convert(source and Path(source), data, part)
    return data


def main(arguments):
    values, arguments = parse(COMMAND, arguments, keep_unknown=True)
    environ = dict(os.environ)
    gpus.check_visible(arguments, environ)
    gpu_count = 0 if gpus.backend(arguments) == "cpu" else gpus.visible(environ)
    part, options, compared = settings(gpu_count)
    results = places.new_folder("bench", environ)
    try:
        launchers.find(None, environ).check([])
        data = make_images(values.get("--source"), part, environ)
    except BaseException:
        os.rmdir(results)
        raise

    steps = Steps(results, environ)
    saved = f"{results}/resnet18.safetensors"
    trained = steps.step("train", [
        "train", "--model", "resnet18", "--train-dir", f"{data}/train", "--val-dir", f"{data}/val",
        "--augment", "shift", "--schedule", "cosine", "--lr-warmup-epochs", "1",
        "--strategy", "ddp", *options, "--save", saved, *arguments])
    if trained == 2:
        return 2
    steps.step("compare", ["compare", *compared])
    steps.report([results])

    weights = ", resnet18.safetensors (weights)" if os.path.exists(saved) else ""
    print(f"results: {results}: train.jsonl, compare.jsonl (records){weights}")
    print(f"report:  {results}/report/comparison_report.html, performance_report.txt", flush=True)
    return steps.code
