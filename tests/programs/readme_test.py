#!/usr/bin/env python3
"""README.md is true: each recipe's commands run as written, and print what stands below them.

On two cores a recipe is run with SMALLER's options, and with a record that it names. What it prints is compared by
form: words, columns and order must agree, digits may differ, "..." stands for any lines. The commands of docs/ have options
that exist."""

import functools
import re
import shlex
import unittest

from support import BIN, GPUS, TREE, Folder, run_bare

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


class Pages(unittest.TestCase):
    """What pages write of options and of one another."""
    PAGES = [TREE / "README.md", TREE / "CHANGELOG.md", TREE / "CONTRIBUTING.md", TREE / "tests/README.md",
             TREE / "results/reference/README.md", *(TREE / "docs").rglob("*.md")]
    JOBS = {f"launch/slurm/{name}.sbatch": program for name, program in (
        ("acceptance", "launch/acceptance"), ("collectives", "bin/collective_perf"), ("links", "bin/link_matrix"),
        ("compare", "bin/compare"), ("soak", "bin/soak"), ("train", "bin/train"))}
    SCRIPTS = {f"launch/{name}" for name in ("acceptance", "bench", "experiments", "mpi", "variants", "slurm/compare_nodes", "slurm/rolling",
                                             "slurm/health_check")} | {"results/report"}
    BINARIES = {path.name: f"bin/{path.name}" for path in BIN.iterdir()}

    def of(self, word):
        return word if word in self.SCRIPTS else self.JOBS.get(word) or self.BINARIES.get(word.removeprefix("bin/"))

    def options(self, page):
        """(program, option) of its blocks of code."""
        for block in re.findall(r"```[a-z]*\n(.*?)```", page, re.S):
            for line in block.replace("\\\n", " ").splitlines():
                program = None
                for word in re.sub(r"\$\([^)]*\)", "", line.split("#")[0]).split():
                    program = self.of(word) or program
                    if program and re.match(r"--[a-z]", word):
                        yield program, re.match(r"--[a-z-]+", word)[0]

    @functools.lru_cache(None)
    def help(self, program):
        path = TREE / program if program in self.SCRIPTS else BIN / program.removeprefix("bin/")
        words = ["--help"] if program in self.SCRIPTS else ["--help", "all"]
        return run_bare(path, *words).stdout + (self.help("bin/train") if program == "launch/experiments" else "")

    def test_the_options_of_commands_exist(self):
        seen = set()
        for path in self.PAGES:
            for program, option in set(self.options(path.read_text())):
                with self.subTest(page=path.name, program=program):
                    self.assertRegex(self.help(program), rf"(?<![a-z-]){option}(?![a-z-])")
                seen.add(program)
        self.assertGreater(len(seen), 12)

    @functools.lru_cache(None)
    def anchors(self, path):
        """As GitHub makes them of headings; the second of one name has -1."""
        found = []
        for heading in re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?s)```.*?```", "", path.read_text())):
            name = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            found.append(f"{name}-{found.count(name)}" if name in found else name)
        return found

    def test_links_lead_somewhere(self):
        for path in self.PAGES:
            for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", path.read_text()):
                file, _, anchor = link.partition("#")
                target = (path.parent / file).resolve() if file else path
                with self.subTest(page=path.name, link=link):
                    self.assertTrue(target.exists())
                    self.assertTrue(not anchor or anchor in self.anchors(target))


if __name__ == "__main__":
    unittest.main()
