"""The tools that tests/faulty/run gives faults to: how each is started, and when it has found something."""

import json
import os
import pathlib
import re
import shlex
import signal
import sys

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "launch"))
from shakedown_launch import gpus  # noqa: E402

BIN = pathlib.Path(os.environ.get("BIN", TREE / "bin")).resolve()
BUILD = pathlib.Path(os.environ.get("SHAKEDOWN_TEST_BUILD", TREE / "build")).resolve()


class Program:
    """Of bin/, on several ranks of which the last one has the fault."""
    folder = TREE
    end = signal.SIGTERM
    least_ranks = 1
    ends_itself = True  # after the seconds

    def __init__(self, options):
        self.options = options

    def command(self, preload, output):
        self.record = output / "record.jsonl"
        ranks = max(self.least_ranks, self.options.ranks)
        as_node = [TREE / "tests/gpu/as_node"] if 0 < gpus.visible(os.environ) < ranks else []
        return [TREE / "launch/mpi", "-n", ranks, *as_node, "env", *preload, f"FAULTY_RANK={ranks - 1}", BIN / self.program,
                *self.arguments(output), "--record", self.record, *self.options.more]

    def found(self, _said):
        """What names the place of the first wrong data, or of a failure without them; else None."""
        try:
            lines = [json.loads(line) for line in self.record.read_text().splitlines(keepends=True) if line.endswith("\n")]
        except OSError:
            return None
        for line in lines:
            if line["kind"] == "mismatch" and "verdict" not in line:
                return line
        for line in lines:
            if line["kind"] == "verdict" and line["verdict"] == "FAIL":
                return line
        return None


class Soak(Program):
    name = program = "soak"

    def arguments(self, output):
        return ["--minutes", self.options.seconds / 60, "--output", output]


class Train(Program):
    """bin/train --check-neighbour before every update, until it is stopped. Its convolutions have no faults: the last layer has."""
    name = program = "train"
    least_ranks = 2
    ends_itself = False

    def arguments(self, output):
        return ["--check-neighbour", 1, "--deterministic", "--certificate", "off", "--warmup", 1, "--iterations", 10**9,
                "--output", output]


class Invariant(Program):
    """bin/train --invariant without the fault and then with it: the weights must be the same bits."""
    name = "invariant"
    program = "train"

    def command(self, preload, output):
        self.weights = [output / "right.safetensors", output / "tested.safetensors"]
        runs = [super(Invariant, self).command(how, output) + ["--save", weights] for how, weights in zip(([], preload), self.weights)]
        return ["bash", "-c", " && ".join(shlex.join(map(str, run)) for run in runs)]

    def arguments(self, _output):
        return ["--invariant", 4, "--warmup", 1, "--iterations", 19]

    def found(self, _said):
        if all(each.exists() for each in self.weights) and self.weights[0].read_bytes() != self.weights[1].read_bytes():
            return {"where": "other weights after 20 steps"}
        return None


class GpuBurn:
    """github.com/wilicc/gpu-burn: fp32 products, compared with the first one of the memory that they fill."""
    name = "gpu-burn"
    end = signal.SIGKILL
    ends_itself = True

    def __init__(self, options):
        self.options = options
        self.folder = options.gpu_burn

    def command(self, preload, _output):
        return ["env", *preload, self.folder.resolve() / "gpu_burn", max(1, round(self.options.seconds))]

    def found(self, said):
        wrong = re.search(r"errors: *(?:\d+[ -]+)*[1-9]\d*[^\r\n]*|GPU \d+: FAULTY", said)
        return {"where": " ".join(wrong[0].split())} if wrong else None


class Loop:
    name = "loop"
    end = signal.SIGKILL
    ends_itself = True
    folder = TREE

    def __init__(self, options):
        self.options = options

    def command(self, preload, _output):
        return ["env", *preload, sys.executable, TREE / "tests/peers/torch_loop.py", "--seconds", self.options.seconds,
                "--type", self.options.type]

    def found(self, said):
        wrong = re.search(r'\{"wrong_product": (\d+).*\}', said)
        return {"where": f"product {wrong[1]}"} if wrong else None


TOOLS = {tool.name: tool for tool in (Soak, Train, Invariant, GpuBurn, Loop)}
