"""The programs that meet faults: a run of each that would take minutes, one that takes a second, and
where each writes."""

import collections
import json
import os

import support

SMALL = ["--model", "tiny", "--image-size", 32, "--batch-size", 4, "--warmup", 1]
LONG, STALLED = 10 ** 6, "stalled"

# endless(folder), short: words. outputs: options that name a file. kind: of a record line that shows
# it at work. environment(folder): added. rank: of what starts jobs itself, the program of whose ranks it is
# done to.
Program = collections.namedtuple("Program", "name endless short outputs kind environment uses_gpus rank record",
                                 defaults=(lambda folder: {}, True, None, "r.jsonl"))


def fake_gpus(folder):
    """NVML with two GPUs, for what reads them."""
    fixture = json.loads((support.TREE / "tests/node/fixtures/h200.json").read_text())
    (folder / "gpus.json").write_text(json.dumps({**fixture, "gpus": fixture["gpus"][:2]}))
    return {"SHAKEDOWN_NVML_LIBRARY": str(support.BUILD / "fake_nvml.so"),
            "SHAKEDOWN_FAKE_NVML": str(folder / "gpus.json")}


def stalled_readings(folder):
    """node_check ends by itself within a second: it is kept at work by a file that nobody writes."""
    os.mkfifo(folder / STALLED)
    return ["node_check", "--readings", folder / STALLED]


PROGRAMS = {program.name: program for program in [
    Program("train", lambda folder: ["train", *SMALL, "--iterations", LONG, "--certificate", "off"],
            ["train", *SMALL, "--iterations", 2], ("--trace", "--save"), "run"),
    Program("compare",
            lambda folder: ["compare", *SMALL, "--strategies", "ddp", "--iterations", 100, "--repeats", LONG,
                            "--certificate", "off"],
            ["compare", *SMALL, "--strategies", "ddp", "--iterations", 2, "--repeats", 1],
            ("--trace",), "run"),
    Program("collective_perf",
            lambda folder: ["collective_perf", "-b", "64K", "-e", "64K", "-N", 0],
            ["collective_perf", "-b", "64K", "-e", "64K"], ("--output-file",), "collective"),
    Program("link_matrix",
            lambda folder: ["link_matrix", "--bytes", "64K", "--iterations", LONG],
            ["link_matrix", "--bytes", "64K"], (), "run"),
    Program("compute_perf",
            lambda folder: ["compute_perf", "--size", 128, "--bytes", "256K", "--seconds", 0.01,
                            "--rounds", LONG],
            ["compute_perf", "--size", 128, "--bytes", "256K", "--seconds", 0.01, "--rounds", 1, "--tests",
             "products,memory", "--types", "fp32"], (), "run"),
    Program("soak",
            lambda folder: ["soak", "--minutes", 2, "--shape", "steady", "--types", "fp32", "--output", folder],
            ["soak", "--minutes", 0.004, "--types", "fp32", "--shape", "steady", "--loads", "products,probes,copies"],
            (), "run"),
    Program("node_check", stalled_readings, ["node_check"], (), "run"),
    Program("gpu_monitor", lambda folder: ["gpu_monitor", "--interval", 0.1, "--pretend-nodes", 2],
            ["gpu_monitor", "--interval", 0.1, "--count", 2], ("--save-readings",), "health",
            fake_gpus, False),
    Program("acceptance",
            lambda folder: [support.TREE / "launch/acceptance", "--full", "--soak-minutes", 5, "--backend", "cpu",
                            "-n", 2, "--output", folder / "out"],
            None, (), None, uses_gpus=False, rank="soak", record="out/acceptance.jsonl"),
]}
