"""acceptance.jsonl: an acceptance as records (results/schema.json).

A `verdict` line with a `stage` is a finding of that stage; one without is the conclusion over all
stages: of each node, and at the end of the job."""

import contextlib
import json
import os
import secrets

from ..model import EXIT_CODES, FAIL, INCONCLUSIVE, INFRASTRUCTURE, PASS, STOPPED
from ..words import valid
from . import digest, series

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
    yield from map(stage_record, acceptance.runs)
    yield from (figure_record(figure, series.reference_of(acceptance, figure))
                for figure in acceptance.figures)
    for verdict in acceptance.verdicts:
        yield from (finding_record(finding) for finding in verdict.findings)
        yield node_record(verdict)
    yield from (finding_record(finding) for finding in acceptance.findings)
    yield {"kind": "verdict", "scope": "job", "name": PROGRAM, "verdict": acceptance.outcome,
           "cause": digest.headline(acceptance)}
    yield {"kind": "end", "exit_code": STOPPED if stopped else EXIT_CODES[acceptance.outcome],
           "elapsed_s": max(acceptance.seconds, 0)}


def run_record(acceptance):
    hosts = [verdict.node.name for verdict in acceptance.verdicts]
    reference = {key: value for key, value in acceptance.reference.items() if key != "figures"}
    return {"kind": "run", "program": PROGRAM, "started": acceptance.started,
            "host": hosts[0] if hosts else "", "hosts": hosts or [""], "tier": acceptance.tier,
            "elapsed_s": acceptance.seconds, "tests": acceptance.tests,
            "rounds": acceptance.rounds, "statement": acceptance.statement,
            **flat("settings", acceptance.settings), **flat("reference", reference)}


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


def stage_record(run):
    return {"kind": "stage", "name": run.stage, "nodes": run.nodes, "round": run.round,
            "exit_code": run.code, "started": run.started, "elapsed_s": run.seconds,
            "record": run.record, "log": run.log, "note": run.note, "lost_hosts": run.lost,
            "dead_ranks": [rank for rank, _, _ in run.dead],
            "dead_hosts": [host for _, host, _ in run.dead],
            "dead_causes": [cause for _, _, cause in run.dead]}


def figure_record(figure, reference):
    """`reference`: what the reference file has of the metric, or {}."""
    found = {"kind": "figure", "stage": figure.stage, "nodes": figure.nodes,
             "metric": figure.metric, "value": figure.value, "unit": figure.unit,
             "higher_is_better": figure.higher_is_better, "samples": figure.samples,
             **flat("conditions", figure.conditions), **flat("explains", figure.explains),
             **flat("reference", reference)}
    if figure.gpu:
        found["gpu"] = figure.gpu
    return found


def scope_of(finding):
    if finding.gpu:
        return "gpu"
    kind = finding.subject.split(" ")[0]
    if kind in ("rank", "link", "rail"):
        return kind
    if len(finding.nodes) == 2 and finding.class_ == INFRASTRUCTURE:
        return "link"
    return "node" if len(finding.nodes) == 1 else "job"


def name_of(finding, scope):
    """As the programs' own verdicts name it: UUID, rank 1, link 0->2, node."""
    if scope == "gpu":
        return finding.gpu
    if scope == "node":
        return finding.nodes[0]
    return finding.subject.split(" ", 1)[-1] or ",".join(finding.nodes) or finding.stage


def finding_record(finding):
    """`verdict` is as node_check's: what only warns, or is not known, is INCONCLUSIVE there."""
    scope = scope_of(finding)
    found = {"kind": "verdict", "stage": finding.stage, "scope": scope,
             "name": name_of(finding, scope),
             "verdict": finding.outcome if finding.blames else INCONCLUSIVE,
             "severity": finding.outcome, "nodes": finding.nodes,
             "cause": finding.cause}
    others = {"class": finding.class_, "action": finding.action, "gpu": finding.gpu,
              "subject": finding.subject, "check": finding.check, "evidence": finding.evidence,
              "accepted": finding.accepted}
    return {**found, **{key: value for key, value in others.items() if value}}


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
