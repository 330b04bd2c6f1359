"""bin/judge: what it is given, runs.jsonl and the records that it names, and what it concludes. Here
nothing is compared: limits, references and peers are bin/judge's."""

import collections
import json
import math
import os
import subprocess

from ... import places
from ..lines import finding_line, stage_line
from ..model import (CLASSES, CONFIG, INCONCLUSIVE, NOT_JUDGED, OUTCOMES, PASS, SOFTWARE, VERDICTS,
                     Figure, Finding, worst)
from ..words import valid

RUNS = "runs.jsonl"
LIMIT_S = 300  # 8,000 GPUs take 2 s
CHECK = "judge"  # of what it could not conclude, and its stage
# What it concluded. `findings`: of rates, worst first. `nodes`: {name: its verdict line}. `unjudged`:
# {node: findings about its classes of rates without a witness}. `failed`: why there is none of it all.
Judged = collections.namedtuple("Judged", "figures findings nodes unjudged found failed")
NOTHING = Judged((), (), {}, {}, (), "")
FIGURE_KEYS = {"kind", "run_id", "metric", "unit", "value", "samples", "scope", "name", "nodes", "outcome",
               "stage", "record", "witness", "usual", "limit", "source"}


def write_runs(folder, nodes, runs, findings=()):
    """`nodes`: {name: the hosts that its ranks report}."""
    lines = [*({"kind": "node", "name": name, "hosts": hosts} for name, hosts in nodes.items()),
             *map(stage_line, runs), *map(finding_line, findings)]
    with open(os.path.join(folder, RUNS), "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(valid(line), allow_nan=False) + "\n")


class Program:
    """`reference`: of the user, or ""."""

    def __init__(self, folder, environ, reference="", strict=False):
        self._folder, self._environ = folder, environ
        self._options = ["--reference", reference] if reference else []
        self._strict = ["--strict"] if strict else []

    def judge(self, name, rates=(), stage="", limit=LIMIT_S):
        """Judged, by its record NAME in the folder."""
        record = os.path.join(self._folder, name)
        if os.path.exists(record):
            os.unlink(record)  # it would be appended to
        words = ["--record", record, *self._strict]
        words += ["--rates", ",".join(rates)] if rates else []
        words += ["--stage", stage] if stage else []
        failed = self.run(words, limit)
        return NOTHING._replace(failed=failed) if failed else read(record)

    def run(self, words, limit=LIMIT_S):
        """Why there is no result; "" where there is, whatever it is."""
        line = [places.find_program("judge", self._environ), self._folder, *self._options, *words]
        try:
            result = subprocess.run(line, env=self._environ, stdin=subprocess.DEVNULL, timeout=limit,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                    start_new_session=True)  # a Ctrl-C is not its own
        except subprocess.TimeoutExpired:
            return f"bin/judge did not end within {limit:.0f} s"
        except OSError as error:
            return f"bin/judge: {error.strerror}"
        said = result.stderr.decode(errors="replace").strip().removeprefix("error: ")
        if result.returncode not in (0, 1, 3):
            how = f"signal {-result.returncode}" if result.returncode < 0 else \
                f"exit code {result.returncode}"
            return said or f"bin/judge ended with {how}"
        return ""


def read(path):
    """Judged; a record that is cut, or of another form, has no result."""
    made = Judged([], [], {}, {}, [], "")
    try:
        with open(path, encoding="utf-8") as file:
            for text in file:
                add(made, json.loads(text))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return made._replace(nodes={}, failed=f"the record of bin/judge cannot be read: {error!r}")
    return made


def add(made, line):
    kind = line["kind"]
    if kind == "figure":
        made.figures.append(figure_of(line))
    elif kind == "found":
        made.found.append((line["rates"], line["metric"], line["witness"], line["slow_down"]))
    elif kind == "unjudged":
        for name in line["nodes"]:
            made.unjudged.setdefault(name, []).append(Finding(
                CHECK, INCONCLUSIVE, (name,), f"{line['rates'].replace('_', ' ')} not judged: {line['why']}",
                CONFIG, line.get("action", ""), subject=f"node {name}", check=NOT_JUDGED))
    elif kind == "verdict" and "metric" in line:
        made.findings.append(finding_of(line))
    elif kind == "verdict" and line["scope"] == "node" and "check" not in line:
        made.nodes[line["name"]] = line


def figure_of(line):
    def number(key):
        value = line.get(key)
        return math.nan if value is None else float(value)
    witness = line.get("witness", "")
    return Figure(line.get("stage", ""), tuple(line["nodes"]), line["metric"], number("value"), line["unit"],
                  line["scope"], line["name"],
                  tuple(math.nan if each is None else float(each) for each in line["samples"]),
                  line["outcome"], "" if witness == "none" else witness, number("usual"), number("limit"),
                  line.get("source", ""), line.get("record", ""),
                  {key: value for key, value in line.items() if key not in FIGURE_KEYS})


def finding_of(line):
    """Of a rate. An outcome of another name is no pass."""
    scope, name = line["scope"], line["name"]
    outcome = line["verdict"] if line["verdict"] in OUTCOMES else INCONCLUSIVE
    return Finding(line.get("stage", CHECK), outcome, tuple(line["nodes"]), line["cause"],
                   line["class"] if line.get("class") in CLASSES else "", line.get("action", ""),
                   name if scope == "gpu" else line.get("gpu", ""), "" if scope == "gpu" else f"{scope} {name}",
                   line["metric"], line.get("record", ""), line.get("slow_looks", 0), line.get("looks", 1))


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
