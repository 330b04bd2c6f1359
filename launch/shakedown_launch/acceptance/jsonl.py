"""acceptance.jsonl: an acceptance as records (results/schema.json), and read again.

A `verdict` line with a `stage` is a finding of that stage; one without is the conclusion over all
stages: of each node, and at the end of the job."""

import json
import math
import os
import secrets

from ..places import UsageError
from . import digest, series
from .model import (FAIL, INCONCLUSIVE, INFRASTRUCTURE, PASS, WARN, Acceptance, Figure, Finding,
                    Gpu, Node, NodeVerdict, Run)

PROGRAM = "acceptance"
EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}
SEVERITIES = {FAIL: "FAIL", WARN: "WARN", INCONCLUSIVE: "UNKNOWN"}
OUTCOMES = {severity: outcome for outcome, severity in SEVERITIES.items()}
GPU_KEYS = {"gpu_indices": "index", "gpu_uuids": "uuid", "gpu_serials": "serial",
            "gpu_models": "model", "gpu_pci_ids": "pci_id"}


# ---- write ---------------------------------------------------------------------------------------

def write(path, acceptance):
    """Replaces the file, once all is written."""
    run_id = secrets.token_hex(8)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="ascii") as file:
            for record in records(acceptance):
                kind = record.pop("kind")
                line = {"kind": kind, "run_id": run_id, **finite(record)}
                file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def finite(value):
    """What is not finite is null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def records(acceptance):
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
    yield {"kind": "end", "exit_code": EXIT_CODES[acceptance.outcome],
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
    """`verdict` is as node_check's: a warning is INCONCLUSIVE there, its `severity` WARN."""
    scope = scope_of(finding)
    found = {"kind": "verdict", "stage": finding.stage, "scope": scope,
             "name": name_of(finding, scope),
             "verdict": INCONCLUSIVE if finding.outcome == WARN else finding.outcome,
             "severity": SEVERITIES[finding.outcome], "nodes": finding.nodes,
             "cause": finding.cause}
    others = {"class": finding.class_, "action": finding.action, "gpu": finding.gpu,
              "subject": finding.subject, "check": finding.check, "evidence": finding.evidence}
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


# ---- read ----------------------------------------------------------------------------------------

def read(path):
    """The Acceptance of a file that `write` wrote; UsageError where it is none."""
    runs, figures, verdicts, findings, pending, header, ended = [], [], [], [], [], None, False
    metrics = {}
    for number, record in enumerate(lines_of(path), 1):
        try:
            kind = record["kind"]
            if kind == "run" and record["program"] == PROGRAM:
                header = record
            elif kind == "stage":
                runs.append(run_of(record))
            elif kind == "figure":
                figures.append(figure_of(record))
                entries = metrics.setdefault(record["metric"], [])
                entries += [each for each in [reference_of(record)] if each and each not in entries]
            elif kind == "verdict" and "stage" in record:
                pending.append(finding_of(record))
            elif kind == "verdict" and record["scope"] == "node":
                verdicts.append(node_of(record, pending))
                pending = []
            elif kind == "verdict":
                findings, pending = pending, []
            ended = ended or kind == "end"
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path}: line {number} is not a record of an acceptance: "
                             f"{error!r}") from None
    if header is None or not ended:
        raise UsageError(f"{path}: not a whole record of an acceptance: no "
                         f"{'run' if header is None else 'end'} line")
    reference = below(header, "reference")
    metrics = {metric: entries for metric, entries in metrics.items() if entries}
    return Acceptance(header["tier"], header["started"], header["elapsed_s"], tuple(verdicts),
                      tuple(findings), tuple(figures), tuple(runs),
                      {**reference, "figures": metrics} if metrics else reference,
                      below(header, "settings"), header["tests"], header["rounds"],
                      header["statement"])


def lines_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                raise UsageError(f"{path}: line {number} is not JSON") from None
            if not isinstance(record, dict):
                raise UsageError(f"{path}: line {number} is not a record")
            yield record


def below(record, prefix):
    """{key: value} of the keys "prefix.key"."""
    return {key[len(prefix) + 1:]: value for key, value in record.items()
            if key.startswith(prefix + ".")}


def reference_of(record):
    """As Acceptance.reference has it of a metric."""
    known = below(record, "reference")
    conditions = below(known, "conditions")
    values = {key: value for key, value in known.items() if not key.startswith("conditions.")}
    return {**values, "conditions": conditions} if conditions else values


def number_of(value):
    return math.nan if value is None else value


def run_of(record):
    return Run(record["name"], tuple(record["nodes"]), record["exit_code"], record["started"],
               record["elapsed_s"], record["record"], record["log"], record["round"],
               tuple(zip(record["dead_ranks"], record["dead_hosts"], record["dead_causes"])),
               tuple(record["lost_hosts"]), record["note"])


def figure_of(record):
    return Figure(record["stage"], tuple(record["nodes"]), record["metric"],
                  number_of(record["value"]), record["unit"], record.get("gpu", ""),
                  record["higher_is_better"], tuple(map(number_of, record["samples"])),
                  below(record, "conditions"), below(record, "explains"))


def finding_of(record):
    return Finding(record["stage"], OUTCOMES[record["severity"]], tuple(record["nodes"]),
                   record["cause"], record.get("class", ""), record.get("action", ""),
                   record.get("gpu", ""), record.get("subject", ""), record.get("check", ""),
                   record.get("evidence", ""))


def node_of(record, findings):
    gpus = zip(*(record[key] for key in GPU_KEYS))
    return NodeVerdict(Node(record["name"], tuple(Gpu(*gpu) for gpu in gpus),
                            below(record, "identity")),
                       record["verdict"], tuple(findings),
                       dict(zip(record["stages"], record["stage_verdicts"])),
                       tuple(record["missing_stages"]))
