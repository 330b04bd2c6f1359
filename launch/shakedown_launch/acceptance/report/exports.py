"""An acceptance for other programs: acceptance.jsonl (results/schema.json), JUnit XML for CI servers, metrics for the
textfile collector of Prometheus's node_exporter, and a line for Nagios. A file is replaced as a whole."""

import collections
import contextlib
import datetime
import json
import math
import os
import re
import secrets
import xml.etree.ElementTree as xml

from ...words import clean, count, nodes, valid
from ..model import EXIT_CODES, FAIL, INCONCLUSIVE, PASS, STOPPED, VERDICTS, WARN, WORST_FIRST, known
from . import digest, series


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


def write(path, text):
    with replaced(path) as file:
        file.write(text)


# ---- acceptance.jsonl ----------------------------------------------------------------------------

PROGRAM = "acceptance"
GPU_KEYS = {"gpu_indices": "index", "gpu_uuids": "uuid", "gpu_serials": "serial",
            "gpu_models": "model", "gpu_pci_ids": "pci_id"}


def write_records(path, acceptance, stopped=False):
    """`stopped`: by a signal."""
    run_id = secrets.token_hex(8)
    with replaced(path) as file:
        for record in records(acceptance, stopped):
            line = {"kind": record.pop("kind"), "run_id": run_id, **valid(record)}
            file.write(json.dumps(line, allow_nan=False) + "\n")


def records(acceptance, stopped=False):
    """Each line as a flat object, without run_id. A `verdict` line with a `stage` is a finding of that
    stage; one without is the conclusion over all stages: of each node, and at the end of the job."""
    yield run_record(acceptance)
    yield from (each.line() for each in (*acceptance.runs, *acceptance.figures))
    yield from ({"kind": "found", "rates": rates, "metric": metric, "witness": witness, "slow_down": share,
                 **known({"warns_from": warns})} for rates, metric, witness, share, warns in acceptance.found)
    for verdict in acceptance.verdicts:
        yield from (each.line() for each in verdict.findings)
        yield node_record(verdict)
    yield from (each.line() for each in acceptance.findings)
    yield {"kind": "verdict", "scope": "job", "name": PROGRAM, "verdict": acceptance.outcome,
           "cause": digest.headline(acceptance)}
    yield {"kind": "end", "exit_code": STOPPED if stopped else EXIT_CODES[acceptance.outcome],
           "elapsed_s": max(acceptance.seconds, 0)}


def run_record(acceptance):
    hosts = [verdict.node.name for verdict in acceptance.verdicts] or [""]
    return {"kind": "run", "program": PROGRAM, "started": acceptance.started, "host": hosts[0], "hosts": hosts,
            "tier": acceptance.tier, "elapsed_s": acceptance.seconds, "tests": acceptance.tests,
            "rounds": acceptance.rounds, "statement": acceptance.statement,
            **flat("settings", acceptance.settings), **known({"backend": acceptance.backend})}


def flat(prefix, values):
    """{"prefix.key": value}: no object is nested."""
    return {f"{prefix}.{key}": value if isinstance(value, (str, int, float, bool, list, tuple)) else str(value)
            for key, value in values.items() if value is not None}


def node_record(verdict):
    worst = verdict.findings[0] if verdict.findings and verdict.outcome != PASS else None
    return {"kind": "verdict", "scope": "node", "name": verdict.node.name,
            "verdict": verdict.outcome, "cause": worst.cause if worst else "",
            "stages": list(verdict.stages), "stage_verdicts": list(verdict.stages.values()),
            "missing_stages": verdict.missing,
            **{key: [getattr(gpu, name) for gpu in verdict.node.gpus] for key, name in GPU_KEYS.items()},
            **flat("identity", verdict.node.identity),
            **(known({"class": worst.class_, "action": worst.action}) if worst else {})}


# ---- JUnit ---------------------------------------------------------------------------------------

JOB = "job"  # suite of what concerns no single node


def junit(acceptance):
    """A suite per node, a test case per stage. FAIL is a failure, INCONCLUSIVE an error, what only warns is
    output of a case that passed."""
    suites = [suite(verdict.node.name, acceptance, stages_of(verdict), verdict.findings) for verdict in acceptance.verdicts]
    if acceptance.findings or not suites:
        found = acceptance.findings
        suites.append(suite(JOB, acceptance, list(dict.fromkeys(each.stage for each in found)) or [PROGRAM], found))
        if not acceptance.verdicts and not found:
            failed(suites[-1][0], INCONCLUSIVE, "no node was judged", "")
    root = xml.Element("testsuites", {"name": f"acceptance {acceptance.tier}", "time": f"{acceptance.seconds:.3f}"})
    root.extend(suites)
    for each in [root, *suites]:
        for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
            each.set(name, str(len(list(each.iter(tag)))))
    return xml.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def stages_of(verdict):
    """Those that ran, and those of which something was found all the same: a reason not to pass."""
    return list(dict.fromkeys([*verdict.stages, *verdict.missing, *(each.stage for each in verdict.findings)]))


def suite(name, acceptance, stages, findings):
    made = xml.Element("testsuite", {"name": name, "hostname": name, "timestamp": acceptance.started.rstrip("Z")})
    for stage in stages:
        seconds = sum(run.seconds for run in acceptance.runs if run.stage == stage and name in run.nodes)
        case = xml.SubElement(made, "testcase", {"classname": f"shakedown.{name}", "name": stage, "time": f"{seconds:.3f}"})
        output = []
        for each in (each for each in findings if each.stage == stage):
            words = ": ".join(filter(None, [each.subject, each.cause]))
            about = {"class": each.class_, "action": each.action, "check": each.check, "evidence": each.evidence,
                     "gpu": each.gpu}
            more = "\n".join(f"{key}: {value}" for key, value in about.items() if value)
            if each.blames:
                failed(case, each.outcome, words, more, each.class_)
            else:
                output.append(f"{each.outcome} {words}\n{more}")
        if output:
            xml.SubElement(case, "system-out").text = legal("\n".join(output))
    return made


def failed(case, outcome, message, more, kind=""):
    xml.SubElement(case, "failure" if outcome == FAIL else "error",
                   {"message": legal(message), "type": kind or outcome}).text = legal(more)


def legal(text):
    """XML 1.0 has no control characters, not even escaped ones."""
    return re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


# ---- Prometheus ----------------------------------------------------------------------------------

PREFIX = "shakedown_"


def prometheus(acceptance):
    """No timestamps of its own, one HELP and TYPE per metric, as the collector needs it. An alert on the age of
    shakedown_acceptance_end_time_seconds finds a node that is checked no longer."""
    lines = []
    for name, help_, samples in metrics(acceptance):
        lines += [f"# HELP {PREFIX}{name} {help_}", f"# TYPE {PREFIX}{name} gauge"] if samples else []
        lines += [f"{PREFIX}{name}{labels(of)} {number(value)}" for of, value in samples]
    return "".join(f"{line}\n" for line in lines)


def metrics(acceptance):
    """(name, help, [(labels, value)])"""
    tier = {"tier": acceptance.tier}
    started = datetime.datetime.strptime(acceptance.started, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
    yield ("acceptance_end_time_seconds", "When the acceptance ended, in seconds since 1970.",
           [(tier, started.timestamp() + acceptance.seconds)])
    yield "acceptance_duration_seconds", "How long the acceptance took.", [(tier, acceptance.seconds)]
    yield ("node_verdict", "Verdict of a node: 1 for the one that applies, 0 for the others.",
           [({"node": each.node.name, "verdict": outcome}, each.outcome == outcome)
            for each in acceptance.verdicts for outcome in VERDICTS])
    findings = collections.Counter(
        (",".join(each.nodes), "ACCEPTED" if each.accepted else each.outcome, each.check or each.stage, each.class_)
        for each in acceptance.all_findings())
    yield ("findings", "Findings by node, outcome (ACCEPTED: by --accept), check and class.",
           [(dict(zip(("node", "outcome", "check", "class"), key)), value) for key, value in findings.items()])
    figures = {}
    for each in acceptance.figures:  # a series exists once: the newest figure of a metric counts
        kind = " ".join(f"{key.removeprefix('condition.')}={value}" for key, value in sorted(each.more.items())
                        if key.startswith("condition."))
        figures[each.metric, ",".join(each.nodes), each.name, each.unit, kind] = each.value
    yield ("figure", "Measured rates and times, each in its unit.",
           [(dict(zip(("metric", "node", "name", "unit", "conditions"), key)), value) for key, value in figures.items()])


def labels(of):
    def escaped(value):
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in of.items()) + "}"


def number(value):
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


# ---- Nagios --------------------------------------------------------------------------------------

OK, WARNING, CRITICAL, UNKNOWN = range(4)
STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
TEXT = 400  # characters
FIGURES = 16
LINE = 1000  # NRPE 2 cuts after 1,023


def nagios(acceptance):
    """(text, exit code), as Nagios, Icinga and Naemon expect them of a plugin. INCONCLUSIVE is UNKNOWN; what only warns is WARNING, but what the site has
    accepted, and facts that are not known, leave a node OK."""
    code = code_of(acceptance)
    text = f"ACCEPTANCE {STATES[code]} - {sentence(acceptance)}"
    text = clean(text, TEXT).replace("|", "/")  # what follows a bar is performance data
    for number, data in enumerate(performance(acceptance)):
        word = (" | " if number == 0 else " ") + data
        if len((text + word).encode()) > LINE:
            break
        text += word
    return text, code


def code_of(acceptance):
    if acceptance.outcome == FAIL:
        return CRITICAL
    if acceptance.outcome != PASS:
        return UNKNOWN
    return WARNING if any(each.outcome == WARN for each in worst_first(acceptance)) else OK


def worst_first(acceptance):
    """Findings, without what is listed apart."""
    found = [each for each in acceptance.all_findings() if not digest.is_apart(acceptance, each)]
    return sorted(found, key=lambda each: WORST_FIRST.index(each.outcome))


def sentence(acceptance):
    total = len(acceptance.verdicts)
    parts = []
    for outcome in (FAIL, INCONCLUSIVE):
        names = [each.node.name for each in acceptance.verdicts if each.outcome == outcome]
        if names:
            parts.append(f"{len(names)} of {count(total, 'node')} {outcome}: {nodes(names, 60)}")
    if not parts:
        parts.append(f"{count(total, 'node')} {PASS}{digest.reservation(acceptance)}" if total
                     else "no node was judged")
    found = worst_first(acceptance)
    if found:
        first = found[0]
        subject = "" if digest.is_named(first) else first.subject
        where = " ".join(filter(None, [",".join(first.nodes[:2]), subject]))
        parts.append(f"{where}: {first.cause}" if where else first.cause)
    facts = len(digest.apart(acceptance)[digest.NOT_KNOWN])
    if facts:
        parts.append(f"{count(facts, 'fact')} not known")
    parts += filter(None, [digest.would_have_found(acceptance)])
    return "; ".join(parts)


def performance(acceptance):
    """label=value[unit];warn;crit;min;max. A figure is that of the worst GPU or node, and is
    critical beyond its limit."""
    of = [each.outcome for each in acceptance.verdicts]
    yield f"nodes={len(of)};;;0"
    yield f"pass={of.count(PASS)};;;0;{len(of)}"
    yield f"fail={of.count(FAIL)};;0;0;{len(of)}"
    yield f"inconclusive={of.count(INCONCLUSIVE)};0;;0;{len(of)}"
    yield f"time={acceptance.seconds:.0f}s;;;0"
    for each in series.headlines(series.measured(acceptance), FIGURES):
        limit = f"{each.worst.limit:.6g}" if math.isfinite(each.worst.limit) else ""
        label = each.name.replace("'", "").replace("=", "").replace("|", "/")
        yield f"'{label}'={each.worst.value:.6g};;" + \
            (f"{limit}:" if limit and each.higher_is_better else limit)
