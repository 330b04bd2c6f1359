"""Runs and findings as lines of a record (results/schema.json): of runs.jsonl, which bin/judge reads,
and of acceptance.jsonl."""

from .model import INFRASTRUCTURE


def stage_line(run):
    return {"kind": "stage", "name": run.stage, "nodes": run.nodes, "round": run.round,
            "group": run.group, "exit_code": run.code, "started": run.started,
            "elapsed_s": run.seconds, "record": run.record, "log": run.log, "note": run.note,
            "lost_hosts": run.lost, "dead_ranks": [rank for rank, _, _ in run.dead],
            "dead_hosts": [host for _, host, _ in run.dead],
            "dead_causes": [cause for _, _, cause in run.dead]}


def finding_line(finding):
    scope = scope_of(finding)
    found = {"kind": "verdict", "stage": finding.stage, "scope": scope,
             "name": name_of(finding, scope), "verdict": finding.outcome, "nodes": finding.nodes,
             "cause": finding.cause}
    others = {"class": finding.class_, "action": finding.action, "gpu": finding.gpu,
              "subject": finding.subject, "check": finding.check, "evidence": finding.evidence,
              "accepted": finding.accepted}
    if finding.looks:  # of a rate
        others.update(metric=finding.check, looks=finding.looks)
        found["slow_looks"] = finding.slow_looks
    return {**found, **{key: value for key, value in others.items() if value}}


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
