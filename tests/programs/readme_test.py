#!/usr/bin/env python3
"""README.md is true: each recipe's commands run as written, and print what stands below them.

On two cores a recipe is run with SMALLER's options, and with a record that it names. What it prints is compared by
form: words, columns and order must agree, digits may differ, "..." stands for any lines."""

import re
import shlex
import subprocess
import unittest

from support import GPUS, TREE, Folder, run_bare

SMALLER = {"launch/mpi train": ["--model", "tiny", "--image-size", "32", "--batch-size", "8", "--iterations", "30", "--warmup", "2"],
           "launch/mpi collective_perf": ["--max-bytes", "256K", "--repeats", "2"],
           "launch/mpi compare": ["--model", "tiny", "--iterations", "4", "--warmup", "1", "--repeats", "2"]}
# The runs that recipe 5 compares, and that recipe 4 shows again.
NIGHTS = {"runs/last-month": "results/0.2/h200/restructured-before.jsonl", "runs/today": "results/0.2/h200/restructured.jsonl"}
STRATEGIES = "results/report results/0.1/h200/strategies-8gpu.jsonl"


def recipes():
    """{number: blocks of code} of "Five recipes"."""
    text = (TREE / "README.md").read_text().split("\n## Five recipes\n")[1].split("\n## ")[0]
    parts = re.split(r"\n\*\*(\d)\. .*\*\*\n", text)[1:]
    return {int(number): re.findall(r"```\n(.*?)```", part, re.S) for number, part in zip(parts[::2], parts[1::2])}


def form(line):
    """Words, with every number as 0, blanks as one, and bytes in one unit."""
    line = re.sub(r"(?<![a-z_])0x[0-9a-f]+|\d[\d,.]*(e[+-]?\d+)?", "0", line)
    return " ".join(re.sub(r"\b[KMG]iB\b", "GiB", line).split())


class Readme(Folder):
    def execute(self, command, code):
        words = shlex.split(command)
        if not GPUS:
            words += SMALLER.get(" ".join(words[:2]), [])
        words = [NIGHTS.get(word, str(self.record) if word.startswith("runs/") else word) for word in words]
        result = run_bare(*words, env={"SHAKEDOWN_RUNS": str(self.folder)})
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result.stdout

    def compare(self, expected, printed, without=()):
        """Each line of `expected` is in `printed`, in this order; adjacent where no "..." is between them."""
        lines, at, skips = [form(line) for line in printed.splitlines()], 0, True
        for line in map(str.strip, expected.splitlines()):
            if not line or any(re.match(pattern, line) for pattern in without):
                continue
            if line == "...":
                skips = True
                continue
            wanted, whole = form(line.removesuffix(" ...")), not line.endswith(" ...")
            found = [i for i in range(at, len(lines)) if lines[i] == wanted or not whole and lines[i].startswith(wanted)]
            self.assertTrue(found and (skips or found[0] == at), f"README: {line!r} ({wanted!r}) is not in\n{printed}")
            at, skips = found[0] + 1, not whole

    @unittest.skipIf(0 < GPUS < 3, "three ranks")
    def test_1_a_node(self):
        command, output = recipes()[1]
        self.compare(output, self.execute(command, 1))

    def test_2_training(self):
        command, output = recipes()[2]
        printed = self.execute(command, 0)
        self.compare(output, printed, [] if GPUS else ["GPU ", "sw_power_cap"])

    def test_3_collectives(self):
        command, output = recipes()[3]
        self.compare(output, self.execute(command, 0))

    def test_4_strategies(self):
        command, output = recipes()[4]
        self.execute(command, 0)
        columns = output.split("\n", 1)[0].split()
        report = run_bare("results/report", self.record, "--output", self.folder / "report").stdout
        headings = [line.split() for line in report.splitlines() if line.startswith("strategy ")]
        # clocks and power are a GPU's
        self.assertIn([word for word in columns if GPUS or word not in ("MHz", "W", "limit")], headings)
        shown = run_bare(*shlex.split(STRATEGIES), "--output", self.folder / "shown").stdout
        rows = [line.split() for line in shown.splitlines()]
        for line in output.splitlines():  # to the digit
            self.assertIn(line.split(), rows)

    def test_5_regressions(self):
        command, output = recipes()[5]
        printed = self.execute(command, 0)
        for line in output.splitlines():
            self.assertIn(line.split(), [each.split() for each in printed.splitlines()])

    def test_commands_exist(self):
        """Every option that the README writes is one that the program has."""
        text = (TREE / "README.md").read_text()
        for line in re.findall(r"(?m)^(?:launch/mpi )?(?:bin/)?(train|compare|collective_perf|node_check) (.*)$", text):
            known = subprocess.run([TREE / "bin" / line[0], "--help"], capture_output=True, text=True).stdout
            for option in re.findall(r"--[a-z-]+", line[1]):
                self.assertIn(option, known, line)


if __name__ == "__main__":
    unittest.main()
