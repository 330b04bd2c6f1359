"""Acceptances for the tests of what is written about them."""

import dataclasses
import pathlib
import random
import sys

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / each) for each in ("launch", "tests/programs", "tests/support")]
from shakedown_launch.acceptance.model import (  # noqa: E402
    CONFIG, ENVIRONMENT, FAIL, HARDWARE, INCONCLUSIVE, INFRASTRUCTURE, NOT_JUDGED, PASS, UNKNOWN, WARN,
    Acceptance, Figure, Finding, Gpu, Node, NodeVerdict, Run, worst)

STARTED = "2026-11-23T09:12:44Z"
STAGES = {"node_check": 3, "self_test": 9, "compute": 92, "link_matrix": 21, "collectives": 48,
          "train": 61, "soak": 122}
FP16 = "product/fp16/flop_per_cycle_sm"
METRICS = {FP16: ("FLOP/cycle/SM", 4002, 0.0002),
           "product/fp64/flop_per_cycle_sm": ("FLOP/cycle/SM", 243.1, 0.0002),
           "memory/copy": ("GB/s", 4270, 0.004),
           "host_link/to_device/all_at_once": ("GB/s", 55.3, 0.001)}
ALL_REDUCE, TRAIN = "collective/all_reduce/busbw", "train/step_ms"
BY_NODE = {ALL_REDUCE: ("GB/s", 478, 0.004), TRAIN: ("ms", 25.8, 0.004)}
FOUND = (("products", FP16, "reference", 0.014, 0), ("memory", "memory/copy", "reference", 0.0382, 0))
IDENTITY = {"driver": "580.95.05", "versions.cuda": "13.0", "versions.nccl": "2.28.7",
            "versions.cudnn": "9.15.1", "versions.mpi": "Open MPI 4.1.6"}


def node(name, gpus=8, **identity):
    number = int("".join(c for c in name if c.isdigit()) or 0)
    return Node(name, tuple(Gpu(i, f"GPU-{number:08x}-0000-0000-0000-{i:012x}",
                                str(1_650_000_000_000 + 100 * number + i), "NVIDIA H200",
                                f"00000000:{16 * i + 11:02X}:00.0") for i in range(gpus)),
                {**IDENTITY, **identity})


def figures(nodes, slow=()):
    """`slow`: {(node's name, GPU): factor} of products."""
    made, chance = [], random.Random(22)
    for metric, (unit, value, spread) in {**METRICS, **BY_NODE}.items():
        for of in nodes:
            for gpu in of.gpus if metric in METRICS else (None,):
                factor = dict(slow).get((of.name, gpu and gpu.index), 1) \
                    if metric.startswith("product") else 1
                rates = [value * factor * (1 + chance.gauss(0, spread)) for _ in range(5)]
                more = {"clock_mhz": round(1530 * factor), "power_w": 698.5,
                        "temperature_c": 71 if factor == 1 else 83} if metric.startswith("product") else {}
                if metric == ALL_REDUCE:
                    more = {"condition.bytes": "1073741824", "condition.in_place": "true"}
                made.append(Figure(
                    metric.split("/")[0], (of.name,), metric, sorted(rates)[2], unit, "gpu" if gpu else "node",
                    gpu.uuid if gpu else of.name, tuple(rates), FAIL if factor < 1 else PASS, "reference",
                    float(value), value * (0.92 if unit != "ms" else 1.08), f"{of.name}.jsonl", {**more, "slower": max(0, 1 / factor - 1)}))
    return tuple(made)


def runs(nodes):
    return tuple(Run(stage, (of.name,), 0, STARTED, seconds, f"{of.name}/{stage}.jsonl",
                     f"{of.name}/{stage}.log")
                 for stage, seconds in STAGES.items() for of in nodes)


def verdict(of, *findings, missing=()):
    stages = {stage: worst(each.outcome for each in findings
                           if each.stage == stage and each.blames)
              for stage in STAGES if stage not in missing}
    return NodeVerdict(of, worst([each.outcome for each in findings if each.blames]),
                       findings, stages, tuple(missing))


def slow(of, gpu=3):
    return Finding("compute", FAIL, (of.name,), "7 % slow, all of it clock: 1,423 MHz against "
                   "1,530, 83 °C against 71: cooling", ENVIRONMENT, "inspect the cooling of the slot",
                   of.gpus[gpu].uuid, f"GPU {gpu}", FP16, slow_looks=2, looks=2)


def corrupt(of, gpu=5):
    return Finding("soak", FAIL, (of.name,), "3 wrong products of 2.1e6, bf16, tile 117 on SM 42; "
                   "repeated in 100 of 100", HARDWARE, "RMA", of.gpus[gpu].uuid, f"GPU {gpu}",
                   "soak-products", f"{of.name}/soak-capsule.json")


def silent(of):
    return Finding("collectives", INCONCLUSIVE, (of.name,), "no end line in its record: the program "
                   "was killed after 120 s", "", "run it again", "", "", "no-end",
                   f"{of.name}/collectives.log")


def unjudged(of):
    return Finding("judge", INCONCLUSIVE, (of.name,), "host link not judged: no reference, and no peers",
                   action="--record-reference FILE", subject=f"node {of.name}", check=NOT_JUDGED)


def warned(of):
    return Finding("node_check", WARN, (of.name,), "power limit 650 W, 700 by default", CONFIG,
                   "nvidia-smi -pl 700", of.gpus[0].uuid, "GPU 0", "power-limit",
                   f"{of.name}/node_check.jsonl")


def unknown(of, check="governor", cause="no frequency governor is visible", gpu=None):
    subject, uuid = (f"node {of.name}", "") if gpu is None else ("", of.gpus[gpu].uuid)
    return Finding("inventory", UNKNOWN, (of.name,), cause, gpu=uuid, subject=subject, check=check)


LINK = Finding("collectives", FAIL, ("n001", "n003"), "both halves pass and the whole fails: 41 "
               "GB/s between them, 378 within each", INFRASTRUCTURE, "inspect link n001-n003", "",
               "link n001-n003", ALL_REDUCE, "round2/collectives.jsonl")


def acceptance(verdicts, findings=(), slow_gpus=(), **changes):
    nodes = [each.node for each in verdicts]
    values = {"tier": "default", "started": STARTED, "seconds": 431.6, "verdicts": tuple(verdicts),
              "findings": tuple(findings), "figures": figures(nodes, slow_gpus),
              "runs": runs(nodes), "found": FOUND, "backend": "gpu",
              "settings": {"backend": "gpu", "soak_minutes": 2}, "tests": 0, "rounds": 0,
              "statement": "0 wrong in 2.1e6 products and 9.8 PB: below 1.5 per GPU-hour (95 %)"}
    return Acceptance(**{**values, **changes})


def clean(count=1):
    return acceptance([verdict(node(f"n{i + 1:03}")) for i in range(count)])


def few():
    """Four nodes: one clean, one with two bad GPUs, one that could not be judged, one that warns."""
    nodes = [node(f"n{i:03}") for i in range(1, 5)]
    nodes[3] = dataclasses.replace(nodes[3], identity={**IDENTITY, "driver": "575.57.08"})
    return acceptance([verdict(nodes[0]), verdict(nodes[1], corrupt(nodes[1]), slow(nodes[1])),
                       verdict(nodes[2], silent(nodes[2]), missing=("collectives",)),
                       verdict(nodes[3], warned(nodes[3]))], [LINK],
                      {("n002", 3): 0.93}, tests=9, rounds=3)


def fleet(count=4096, failing=0.05, per_node=8):
    """Many nodes, of which a share fails, each in its own way."""
    chance, verdicts, slow_gpus = random.Random(9), [], {}
    for i in range(count):
        of = node(f"n{i:04}", per_node)
        found = ()
        if chance.random() < failing:
            gpu = chance.randrange(per_node)
            found = (chance.choice((slow, corrupt))(of, gpu),)
            slow_gpus[of.name, gpu] = 0.9 if found[0].stage == "compute" else 1
        elif chance.random() < failing:
            found = (silent(of),)
        verdicts.append(verdict(of, *found))
    return acceptance(verdicts, slow_gpus=slow_gpus, tests=57, rounds=7)
