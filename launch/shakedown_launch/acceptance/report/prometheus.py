"""Metrics for node_exporter's textfile collector: verdicts, findings, figures, and when they were measured.

As the collector needs it: a file named *.prom that is replaced as a whole, no timestamps of its own, one HELP and TYPE
per metric. An alert on the age of shakedown_acceptance_end_time_seconds finds a node that is checked no longer."""

import collections
import datetime
import math

from ..model import VERDICTS
from .jsonl import replaced

PREFIX = "shakedown_"


def write(path, acceptance):
    with replaced(path) as file:
        file.write(text(acceptance))


def text(acceptance):
    lines = []
    for name, help_, samples in metrics(acceptance):
        lines += [f"# HELP {PREFIX}{name} {help_}", f"# TYPE {PREFIX}{name} gauge"]
        lines += [f"{PREFIX}{name}{labels(of)} {number(value)}" for of, value in samples]
    return "".join(f"{line}\n" for line in lines)


def metrics(acceptance):
    """(name, help, [(labels, value)]); a metric without samples is left out."""
    verdicts = [({"node": each.node.name, "verdict": outcome}, each.outcome == outcome)
                for each in acceptance.verdicts for outcome in VERDICTS]
    findings = collections.Counter(
        (",".join(each.nodes), "ACCEPTED" if each.accepted else each.outcome, each.check or each.stage, each.class_)
        for each in acceptance.all_findings())
    figures = {}
    for each in acceptance.figures:  # a series exists once: the newest figure of a metric counts
        kind = " ".join(f"{key.removeprefix('condition.')}={value}" for key, value in sorted(each.more.items())
                        if key.startswith("condition."))
        figures[(each.metric, ",".join(each.nodes), each.name, each.unit, kind)] = each.value
    started = datetime.datetime.strptime(acceptance.started, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
    for name, help_, samples in [
            ("acceptance_end_time_seconds", "When the acceptance ended, in seconds since 1970.",
             [({"tier": acceptance.tier}, started.timestamp() + acceptance.seconds)]),
            ("acceptance_duration_seconds", "How long the acceptance took.",
             [({"tier": acceptance.tier}, acceptance.seconds)]),
            ("node_verdict", "Verdict of a node: 1 for the one that applies, 0 for the others.", verdicts),
            ("findings", "Findings by node, outcome (ACCEPTED: by --accept), check and class.",
             [(dict(zip(("node", "outcome", "check", "class"), key)), value) for key, value in findings.items()]),
            ("figure", "Measured rates and times, each in its unit.",
             [(dict(zip(("metric", "node", "name", "unit", "conditions"), key)), value) for key, value in figures.items()])]:
        if samples:
            yield name, help_, samples


def labels(of):
    def escaped(value):
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in of.items()) + "}"


def number(value):
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
