#!/usr/bin/env python3
"""Writes what the pages of docs/ repeat from elsewhere: options.md from the programs, install.md's table from
launch/tested_versions, judge.md's table of cycles from the records and that of what is found from build/unit_tests, whose test
holds it, burn-in.md's tables and the README's of power from the records. usage: docs/pages.py.
tests/check_tree holds the others equal to it."""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TREE / "results"))
from reporting import power, reading  # noqa: E402

PROGRAMS = ["train", "compare", "collective_perf", "link_matrix",
            "node_check", "gpu_monitor", "compute_perf", "soak", "judge"]
CYCLES = re.compile(r"(<!-- cycles -->\n).*?(<!-- cycles end -->)", re.S)
TYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
POWER = re.compile(r"(<!-- power -->\n).*?(<!-- power end -->)", re.S)
INJECTIONS = re.compile(r"(<!-- injections -->\n).*?(<!-- injections end -->)", re.S)
PLACEMENTS = re.compile(r"(<!-- placements -->\n).*?(<!-- placements end -->)", re.S)
SOAK = TREE / "results/0.2/h200/soak-5min-1gpu.jsonl"
PLACED = TREE / "results/0.2/h200/placements.jsonl"
VERSIONS = re.compile(r"(<!-- versions -->\n).*?(<!-- end -->)", re.S)

OPTIONS_HEAD = """# Options

Generated from the programs by `make docs`; do not edit. `PROGRAM --help all` prints the same.

Underscores are accepted for hyphens. An option that is given twice has its last value. An option that another one makes
idle is an error that names both.
"""
AS_TRAIN = "`bin/compare` also has these options of `bin/train`, with the same meaning and default:"


def table(rows):
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows]) + "\n"


def rows_of(program):
    """(group, option's first name, row) of each option that the help shows."""
    text = subprocess.run([TREE / "bin" / program, "--help-json"], capture_output=True, text=True,
                          check=True).stdout
    for group in json.loads(text)["groups"]:
        for option in group["options"]:
            if not option["hidden"]:
                names = ", ".join(f"`{name}`" for name in option["names"])
                meaning = option["help"].replace("\n", "<br>").replace("|", "\\|")
                row = f"| {names} | {option['default']} | {meaning} |"
                yield group["title"], option["names"][0], row


def options_page():
    page = OPTIONS_HEAD
    of_train = {row for _, _, row in rows_of("train")}
    for program in PROGRAMS:
        options = list(rows_of(program))
        shared = [name for _, name, row in options if program == "compare" and row in of_train]
        page += f"\n## bin/{program}\n"
        titles = dict.fromkeys(title for title, name, _ in options if name not in shared)
        for title in titles:
            rows = [row for of, name, row in options if of == title and name not in shared]
            page += f"\n### {title}\n\n{table(rows)}"
        if shared:
            page += f"\n{AS_TRAIN} " + ", ".join(f"`{name}`" for name in shared) + ".\n"
    return page


def versions_table():
    rows = [line.split("\t") for line in (TREE / "launch/tested_versions").read_text().splitlines()
            if not line.startswith("#")]
    lines = ["| software | version | where |", "|---|---|---|"]
    lines += [f"| {name} | {version} | {where} |" for name, version, where in rows]
    return "\n".join(lines) + "\n"


def install_page():
    page = (TREE / "docs/install.md").read_text()
    return VERSIONS.sub(lambda m: m[1] + versions_table() + m[2], page)


def products():
    """{(model, type): {GPU: [samples of each look]}} of compute_perf in the records of the judge's references."""
    found = {}
    for path in sorted(TREE.glob("results/0.2/h[12]00/judge-*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            if line["kind"] == "metric" and "condition.manner" not in line and \
                    line["metric"].endswith("/flop_per_cycle_sm"):
                key = line["board"].split()[1], line["metric"].split("/")[1]
                found.setdefault(key, {}).setdefault(line["name"], []).append(line["samples"])
    return found


def spread(values):
    return 100 * (max(values) / min(values) - 1)


def cycles_table():
    """Per model and type: the median over GPUs, how far GPUs are apart, how far p5 and p95 of a GPU's batches are."""
    rows = ["| | " + " | ".join(f"{model}: median | GPUs | between | within" for model in ("H100", "H200")) + " |",
            "|---|" + "---|" * 8]
    measured = products()
    for name in TYPES:
        cells = []
        for model in ("H100", "H200"):
            looks = measured[model, name]
            of_gpu = [statistics.median(statistics.median(each) for each in each_look) for each_look in looks.values()]
            within = [spread(sorted(each)[len(each) // 20:len(each) - len(each) // 20])
                      for each_look in looks.values() for each in each_look]
            cells += [f"{statistics.median(of_gpu):,.1f}", str(len(of_gpu)), f"{spread(of_gpu):.2f} %",
                      f"{statistics.median(within):.2f} %"]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def judge_page():
    page = (TREE / "docs/judge.md").read_text()
    return CYCLES.sub(lambda m: m[1] + cycles_table() + m[2], page)


def measured_by_faulty(records):
    """The table of what tests/faulty/run has recorded."""
    return subprocess.run([TREE / "tests/faulty/table", *records], stdout=subprocess.PIPE, text=True, check=True).stdout


def burn_in_page():
    page = (TREE / "docs/burn-in.md").read_text()
    page = POWER.sub(lambda m: m[1] + power.page(reading.read_runs([SOAK, PLACED])) + m[2], page)
    page = PLACEMENTS.sub(lambda m: m[1] + measured_by_faulty([PLACED]) + m[2], page)
    found = sorted(path for what in ("*injections*", "soak*") for path in TREE.glob(f"results/*/*/{what}.jsonl"))
    return INJECTIONS.sub(lambda m: m[1] + measured_by_faulty(found) + m[2], page)


def readme():
    return POWER.sub(lambda m: m[1] + power.brief(reading.read_runs([SOAK, PLACED])) + m[2], (TREE / "README.md").read_text())


def pages():
    """Path and text of every page that can be written here: options.md needs the programs."""
    yield "README.md", readme()
    yield "docs/install.md", install_page()
    yield "docs/judge.md", judge_page()
    yield "docs/burn-in.md", burn_in_page()
    if all((TREE / "bin" / program).exists() for program in PROGRAMS):
        yield "docs/options.md", options_page()


if __name__ == "__main__":
    for path, text in pages():
        (TREE / path).write_text(text)
    subprocess.run([TREE / "launch/mpi", "-n", "1", "build/unit_tests", "docs/judge.md has*"], cwd=TREE, check=True,
                   env={**os.environ, "SHAKEDOWN_WRITE": "1"})
