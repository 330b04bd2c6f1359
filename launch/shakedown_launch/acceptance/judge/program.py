"""bin/judge: what it is given, runs.jsonl and the records that it names, and what it concludes. Here
nothing is compared: limits, references and peers are bin/judge's."""

import collections
import contextlib
import json
import math
import os

from ... import places
from ...words import valid
from .. import stages
from ..model import (CLASSES, INCONCLUSIVE, NOT_JUDGED, OUTCOMES, PASS, SOFTWARE, VERDICTS,
                     Figure, Finding, worst)

RUNS, RECORD = "runs.jsonl", "judged.jsonl"
LIMIT_S = 300  # 8,000 GPUs take 2 s
CHECK = "judge"  # of what it could not conclude, and its stage
# What it concluded. `findings`: of rates, worst first. `nodes`: {name: its verdict line}. `failed`: why
# there is none of it all.
Judged = collections.namedtuple("Judged", "figures findings nodes found failed")
ORDER = {stage.name: number for number, stage in enumerate(stages.STAGES)}
NOTHING = Judged((), (), {}, (), "")
FIGURE_KEYS = {"kind", "run_id", "metric", "unit", "value", "samples", "scope", "name", "nodes", "outcome",
               "stage", "record", "witness", "usual", "limit"}


def write_runs(folder, nodes, runs, findings=()):
    """`nodes`: {name: the hosts that its ranks report}. What several nodes did together is the job's: a
    finding of each says what it means for the node."""
    lines = [*({"kind": "node", "name": name, "hosts": hosts} for name, hosts in nodes.items()),
             *(each.line() for each in (*runs, *findings))]
    with open(os.path.join(folder, RUNS), "w", encoding="utf-8") as file:
        for line in lines:
            if line["kind"] == "verdict" and len(line["nodes"]) > 1:
                line["nodes"] = ()
            file.write(text_of(line) + "\n")


def text_of(line):
    """Without blanks: bin/judge looks at the first bytes of a line."""
    return json.dumps(valid(line), allow_nan=False, separators=(",", ":"))


class Program:
    """`options`: --reference and --limits of the user."""

    def __init__(self, folder, environ, options=(), strict=False):
        self._folder, self._environ, self._options = folder, environ, options
        self._strict = ["--strict"] if strict else []

    def judge(self, nodes, runs, findings=(), rates=(), stage="", limit=LIMIT_S):
        """Judged. `nodes`, `runs`, `findings`: of runs.jsonl."""
        record = os.path.join(self._folder, RECORD)
        words = ["--record", record, *self._strict]
        words += ["--rates", ",".join(rates)] if rates else []
        words += ["--stage", stage] if stage else []
        try:
            write_runs(self._folder, nodes, runs, findings)
        except OSError as error:  # a full disk
            return NOTHING._replace(failed=f"{RUNS}: {error.strerror}")
        failed = self.run(words, limit)
        judged = NOTHING._replace(failed=failed) if failed else read(record)
        with contextlib.suppress(OSError):
            os.unlink(record)  # acceptance.jsonl has what is in it
        return judged

    def run(self, words, limit=LIMIT_S):
        """Why there is no result; "" where there is, whatever it is."""
        line = [places.find_program("judge", self._environ), self._folder, *self._options, *words]
        said = places.ask(line, limit, self._environ)
        if said.code in (0, 1, 3):
            return ""
        if said.code is None:
            return f"bin/judge {said.error}"
        how = f"signal {-said.code}" if said.code < 0 else f"exit code {said.code}"
        return said.error.strip().removeprefix("error: ") or f"bin/judge ended with {how}"


def read(path):
    """Judged; a record that is cut, or of another form, has no result."""
    figures, findings, nodes, found = [], [], {}, []
    try:
        with open(path, encoding="utf-8") as file:
            for line in map(json.loads, file):
                kind = line["kind"]
                if kind == "figure":
                    figures.append(figure_of(line))
                elif kind == "found":
                    found.append((line["rates"], line["metric"], line["witness"], line["slow_down"],
                                  line.get("warns_from", 0)))
                elif kind == "verdict" and "metric" in line:
                    findings.append(line)
                elif kind == "verdict" and line["scope"] == "node":
                    nodes[line["name"]] = line
        measured = {}  # in the first of the stages that has it
        for each in sorted(figures, key=lambda each: ORDER.get(each.stage, 0)):
            measured.setdefault((each.metric, each.outcome), each.stage)
            measured.setdefault((each.metric, each.outcome, each.name), each.stage)
        return Judged(figures, [finding_of(line, measured) for line in findings], nodes, found, "")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return NOTHING._replace(failed=f"the record of bin/judge cannot be read: {error!r}")


def figure_of(line):
    def number(key):
        value = line.get(key)
        return math.nan if value is None else float(value)
    return Figure(line.get("stage", ""), tuple(line["nodes"]), line["metric"], number("value"), line["unit"],
                  line["scope"], line["name"],
                  tuple(math.nan if each is None else float(each) for each in line["samples"]),
                  line["outcome"], line.get("witness", ""), number("usual"), number("limit"),
                  line.get("record", ""),
                  {key: value for key, value in line.items() if key not in FIGURE_KEYS})


def finding_of(line, measured):
    """Of a rate, or of a class of them ("products") that nothing judged. An outcome of another name is
    no pass. `measured`: where."""
    scope, name, metric = line["scope"], line["name"], line["metric"]
    outcome = line["verdict"] if line["verdict"] in OUTCOMES else INCONCLUSIVE
    known = metric, line["verdict"]
    stage = line.get("stage") or measured.get((*known, name)) or measured.get(known) or CHECK
    return Finding(stage, outcome, tuple(line["nodes"]), line["cause"],
                   line["class"] if line.get("class") in CLASSES else "", line.get("action", ""),
                   name if scope == "gpu" else "", "" if scope == "gpu" else f"{scope} {name}",
                   metric if "/" in metric else NOT_JUDGED, slow_looks=line.get("slow_looks", 0),
                   looks=line.get("looks", 0))


def verdict_of(judged, node, own):
    """(outcome of a node, [Finding that says why where none of `own` does])."""
    line = judged.nodes.get(node)
    if judged.failed or line is None:
        more = Finding(CHECK, INCONCLUSIVE, (node,), judged.failed or "bin/judge has no verdict of it",
                       SOFTWARE, f"see {RUNS}", subject=f"node {node}", check=CHECK)
        return worst(each.outcome for each in [*own, more] if each.blames), [more]
    outcome = line["verdict"]
    if outcome not in VERDICTS:
        outcome = PASS if outcome in OUTCOMES else INCONCLUSIVE
    if outcome == PASS or any(each.blames for each in own):
        return outcome, []
    return outcome, [Finding(CHECK, outcome, (node,), line["cause"], line.get("class", ""),
                             line.get("action", ""), subject=f"node {node}", check=CHECK)]
