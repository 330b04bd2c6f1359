"""acceptance.jsonl: an acceptance as records (results/schema.json).

A `verdict` line with a `stage` is a finding of that stage; one without is the conclusion over all
stages: of each node, and at the end of the job."""

import contextlib
import json
import os
import secrets

from ..lines import finding_line, stage_line
from ..model import EXIT_CODES, PASS, STOPPED
from ...words import valid
from . import digest

PROGRAM = "acceptance"
GPU_KEYS = {"gpu_indices": "index", "gpu_uuids": "uuid", "gpu_serials": "serial",
            "gpu_models": "model", "gpu_pci_ids": "pci_id"}


def write(path, acceptance, stopped=False):
    """`stopped`: by a signal."""
    run_id = secrets.token_hex(8)
    with replaced(path) as file:
        for record in records(acceptance, stopped):
            kind = record.pop("kind")
            line = {"kind": kind, "run_id": run_id, **valid(record)}
            file.write(json.dumps(line, allow_nan=False) + "\n")


@contextlib.contextmanager
def replaced(path):
    """The file to write in place of one, which is replaced once all is written."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def records(acceptance, stopped=False):
    """Each line as a flat object, without run_id."""
    yield run_record(acceptance)
    yield from map(stage_line, acceptance.runs)
    yield from map(figure_line, acceptance.figures)
    yield from ({"kind": "found", "rates": rates, "metric": metric, "witness": witness, "slow_down": share,
                 **({"warns_from": warns} if warns else {})}
                for rates, metric, witness, share, warns in acceptance.found)
    for verdict in acceptance.verdicts:
        yield from map(finding_line, verdict.findings)
        yield node_record(verdict)
    yield from map(finding_line, acceptance.findings)
    yield {"kind": "verdict", "scope": "job", "name": PROGRAM, "verdict": acceptance.outcome,
           "cause": digest.headline(acceptance)}
    yield {"kind": "end", "exit_code": STOPPED if stopped else EXIT_CODES[acceptance.outcome],
           "elapsed_s": max(acceptance.seconds, 0)}


def run_record(acceptance):
    hosts = [verdict.node.name for verdict in acceptance.verdicts]
    return {"kind": "run", "program": PROGRAM, "started": acceptance.started,
            "host": hosts[0] if hosts else "", "hosts": hosts or [""], "tier": acceptance.tier,
            "elapsed_s": acceptance.seconds, "tests": acceptance.tests,
            "rounds": acceptance.rounds, "statement": acceptance.statement,
            **flat("settings", acceptance.settings),
            **({"backend": acceptance.backend} if acceptance.backend else {})}


def flat(prefix, values):
    """{"prefix.key": value}: no object is nested."""
    found = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found.update(flat(f"{prefix}.{key}", value))
        elif value is not None:
            found[f"{prefix}.{key}"] = value if isinstance(
                value, (str, int, float, bool, list, tuple)) else str(value)
    return found


def figure_line(figure):
    """As bin/judge has it."""
    found = {"kind": "figure", "metric": figure.metric, "unit": figure.unit, "value": figure.value,
             "samples": figure.samples, "scope": figure.scope, "name": figure.name,
             "nodes": figure.nodes, "outcome": figure.outcome}
    others = {"stage": figure.stage, "record": figure.record, "witness": figure.witness,
              "usual": figure.usual, "limit": figure.limit}
    return {**found, **{key: value for key, value in others.items() if value and value == value},
            **figure.more}


def node_record(verdict):
    worst = verdict.findings[0] if verdict.findings and verdict.outcome != PASS else None
    found = {"kind": "verdict", "scope": "node", "name": verdict.node.name,
             "verdict": verdict.outcome, "cause": worst.cause if worst else "",
             "stages": list(verdict.stages), "stage_verdicts": list(verdict.stages.values()),
             "missing_stages": verdict.missing,
             **{key: [getattr(gpu, name) for gpu in verdict.node.gpus]
                for key, name in GPU_KEYS.items()},
             **flat("identity", verdict.node.identity)}
    about = {"class": worst.class_, "action": worst.action} if worst else {}
    return {**found, **{key: value for key, value in about.items() if value}}
