"""What is written of an acceptance: acceptance.txt, .html and .jsonl, lines for Nagios and Slurm, JUnit XML and metrics: what
they say, that they are bounded, and that what hosts are called and causes say is shown and never obeyed."""

import collections
import dataclasses
import html.parser
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import unittest
import xml.etree.ElementTree as xml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import acceptance_samples as samples  # noqa: E402
import transcript  # noqa: E402
from support import Folder  # noqa: E402
from acceptance_fakes import concluded  # noqa: E402
from shakedown_launch import words  # noqa: E402
from shakedown_launch.acceptance import evidence, main  # noqa: E402
from shakedown_launch.acceptance.report import exports, page, series  # noqa: E402
from shakedown_launch.acceptance.report import text as report  # noqa: E402

EVIL = "<script>alert(1)</script> \x1b[2J\x00\u202e\udc80\n & \"'>"
VOID = {"meta", "br", "img"}


class Page(html.parser.HTMLParser):
    """A page's tags, checked for nesting, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.open, self.words, self.attributes = [], [], [], []
        self.feed(page)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def evil():
    of = dataclasses.replace(samples.node("n1" + EVIL), identity={"driver" + EVIL: EVIL})
    found = dataclasses.replace(samples.slow(of), cause=EVIL, action=EVIL, evidence=EVIL,
                                check=EVIL, subject=EVIL)
    gpus = tuple(dataclasses.replace(gpu, serial=EVIL, model=EVIL) for gpu in of.gpus)
    acceptance = samples.acceptance([samples.verdict(dataclasses.replace(of, gpus=gpus), found)],
                                    [dataclasses.replace(samples.LINK, cause=EVIL)],
                                    settings={EVIL: EVIL, "inject_fault": EVIL}, statement=EVIL)
    return dataclasses.replace(acceptance, figures=tuple(
        dataclasses.replace(each, metric=each.metric + EVIL, unit=EVIL)
        for each in acceptance.figures))


class Golden(unittest.TestCase):
    def test_a_clean_node_and_what_did_not_pass_in_every_form(self):
        """After a change that is meant: UPDATE_GOLDEN=1, and read the difference."""
        golden, parts = pathlib.Path(__file__).with_name("acceptance_golden.txt"), []
        for acceptance, sections in ((samples.clean(), ()), (samples.few(), [("Slurm lines", ["scontrol  update", "# next"])])):
            made = page.html(acceptance, sections)
            tags, shown = collections.Counter(Page(made).tags), Page(re.sub("<svg.*?</svg>", "", made)).text
            parts += [report.text(acceptance, sections), f"page: {sorted(tags.items())}",
                      textwrap.fill(shown, 150, break_long_words=False)]
        lines = {}  # of what is long, the first
        for line in exports.records(samples.few()):
            lines.setdefault(line["kind"] if line["kind"] in ("stage", "figure") else str(line), line)
        parts += ["\n".join(map(json.dumps, lines.values())), exports.nagios(samples.few())[0],
                  "\n".join(report.drain_lines(samples.few()))]
        text = re.sub(r"\d+\.\d{5,}", lambda digits: f"{float(digits[0]):.6g}", "\n\n".join(parts) + "\n")
        if os.environ.get("UPDATE_GOLDEN"):
            golden.write_text(text)
        self.assertEqual(text, golden.read_text())


def bare(*findings, node=None, missing=(), **changes):
    """Of one node, without figures."""
    return samples.acceptance([samples.verdict(node or samples.node("n001"), *findings, missing=missing)],
                              **{"figures": (), **changes})


def changed(acceptance, **changes):
    return dataclasses.replace(acceptance, **changes)


def of_node_check(*lines, gpu="GPU-574bcfa1"):
    """An acceptance of what node_check records of one node: lines (scope, check, cause, outcome)."""
    run = samples.Run("inventory", ("vm",), 0, samples.STARTED, 0.3, "r.jsonl", "r.log")
    head = {"kind": "run", "program": "node_check", "hosts": ["vm"], "gpu_uuids": [gpu]}
    job = {"kind": "verdict", "scope": "job", "name": "node_check", "verdict": "PASS", "cause": ""}
    found = [{"kind": "verdict", "scope": scope, "name": gpu if scope == "gpu" else "vm", "check": check, "cause": cause,
              "verdict": outcome} for scope, check, cause, outcome in lines]
    made, = concluded(["vm"], [run], evidence.findings(run, [head, *found, job, {"kind": "end", "exit_code": 0}]))
    return changed(samples.acceptance([made]), figures=(), runs=(run,))


def failed(*names, cause="3 wrong products", check="soak-products"):
    return samples.acceptance([samples.verdict(of, changed(samples.corrupt(of), cause=cause, check=check))
                               for of in map(samples.node, names)], figures=())


def both(*acceptances):
    return samples.acceptance([verdict for each in acceptances for verdict in each.verdicts], figures=())


USUAL = ("Stages", "Soak", "Machine")  # parts of a text, which the golden file has


def parts_of(acceptance, usual):
    return "\n\n".join(part for part in report.text(acceptance).strip().split("\n\n") if part.startswith(USUAL) == usual)


def words_of_page(acceptance):
    """Without its tables and plots, which the golden file has."""
    text = re.sub("<(svg|table).*?</\\1>", "", page.html(acceptance), flags=re.S)
    return textwrap.fill(Page(text).text, 150, break_long_words=False)


def records(acceptance, kind):
    """Its findings as "scope name", or its lines of a kind, of acceptance.jsonl."""
    lines = [words.valid(line) for line in exports.records(acceptance)]
    return "\n".join([f"{line['scope']} {line['name']}" for line in lines if "stage" in line] if kind == "names" else
                     [json.dumps(line) for line in lines if line["kind"] == kind])


# 'label'=value[UOM];[warn];[crit];[min];[max], as the Nagios plugin guidelines have it.
DATA = re.compile(r"('[^'=|]+'|[^ '=|]+)=(-?[0-9.e+]+)(s|%|[KMGT]?B|c)?"
                  r"(;[-0-9.:@~e+]*){0,2}(;[0-9.]*){0,2}( |$)")
SAMPLE = re.compile(r'(shakedown_[a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?[0-9.e+-]+|NaN|[+-]Inf)')


def nagios(acceptance):
    """One short line, whose data follow the guidelines."""
    line, code = exports.nagios(acceptance)
    assert "\n" not in line and len(line.encode()) < 1024, line
    text, _, data = line.partition(" | ")
    assert "|" not in data and not DATA.sub("", data), data
    return f"{line}\nexit code {code}"


def prometheus(acceptance):
    """Its samples: described, in the textfile collector's form, none twice."""
    lines, described, seen = exports.prometheus(acceptance).splitlines(), set(), set()
    for line in lines:
        sample = SAMPLE.fullmatch(line)
        if line.startswith("# "):
            described.add(line.split()[2])
        else:
            assert sample and sample[1] in described and sample.group(1, 2) not in seen, line
            seen.add(sample.group(1, 2))
    return "\n".join(line for line in lines if not line.startswith("# "))


def junit(acceptance):
    text = exports.junit(acceptance)
    xml.fromstring(text)
    return re.sub(">(?=<)", ">\n", text)


def with_another(count, metric, nodes=("n001",), stage="collective", **more):
    """Clean nodes, and one figure more of this metric."""
    alone = samples.clean(count)
    first = next(each for each in alone.figures if each.metric == metric)
    other = changed(first, nodes=nodes, stage=stage, limit=439.0, more={**first.more, **more})
    return changed(alone, figures=(*(each for each in alone.figures if each.metric == metric), other))


def many_metrics():
    """The last one fails."""
    one = samples.clean().figures[-1]
    names = [*(f"collective/{op}/busbw" for op in ("broadcast", "all_reduce")), *(f"setting/{i}" for i in range(40)), samples.FP16]
    return changed(samples.clean(), figures=(*(changed(one, metric=name) for name in names),
                                             changed(one, metric="low", outcome="FAIL", more={"slower": 0.5})))


SHOWN = {"names": lambda given: records(given, "names"), "runs": lambda given: records(given, "stage"),
         "figures": lambda given: records(given, "figure"), "junit": junit,
         "prometheus": prometheus, "text": lambda given: parts_of(given, False), "usual": lambda given: parts_of(given, True), "page": words_of_page,
         "rows": lambda given: "\n".join(re.findall("<td[^>]*>([^<]*; [^<]*)", page.html(given))),
         "brief": main.brief, "drain": lambda given: "\n".join(report.drain_lines(given)) or "nothing",
         "nagios": nagios, "verdicts": lambda given: records(given, "verdict"),
         "series": lambda given: "\n".join(f"{each.name}: {len(each.figures)}, limit {each.worst.limit:g}"
                                            for each in series.measured(given)),
         "first": lambda given: ", ".join(each.metric for each in series.chosen(series.measured(given), 20))}


class Cases(unittest.TestCase):
    def answer(self, given):
        """Of "FORMS | ACCEPTANCE"."""
        forms, _, expression = given.partition("|")
        names = {**vars(samples), **globals()}
        acceptance = eval(f"({expression})", names)  # pylint: disable=eval-used
        return "\n".join(SHOWN[form](acceptance) for form in forms.split())

    def test_cases(self):
        transcript.check(self, samples.TREE / "tests/launch/acceptance_cases.txt", self.answer)


class Text(unittest.TestCase):
    def lines(self, acceptance, **more):
        text = report.text(acceptance, **more)
        self.assertTrue(text.endswith("\n") and "\n\n\n" not in text)
        return text.splitlines()

    def test_what_was_compared_with_nothing_has_no_limit(self):
        bare = tuple(dataclasses.replace(each, witness="", usual=math.nan, limit=math.nan, more={})
                     for each in samples.clean().figures)
        acceptance = dataclasses.replace(samples.clean(), figures=bare)
        for shown in (report.text(acceptance), Page(page.html(acceptance)).text):
            self.assertNotRegex(shown, "limit|usual|missed|nan")
        self.assertIn("reference", Page(page.html(samples.clean())).text)

    def test_two_values_have_no_median(self):
        """It would be their mean, which hides the factor between them."""
        pair = samples.clean(2)
        slow = dataclasses.replace(pair, figures=tuple(
            dataclasses.replace(each, value=11.41 if each.nodes == ("n002",) else 96.3, unit="GB/s",
                                more={"slower": 7.44} if each.nodes == ("n002",) else {})
            for each in pair.figures if each.metric == samples.TRAIN))
        self.assertRegex(report.text(slow), r"unit +worst  of +slower +best .*\n.* GB/s  11.41  n002  744.0 %  96.30 ")
        self.assertNotIn("53.8", report.text(slow) + page.html(slow))

    def test_sections(self):
        command = "scontrol " + "x" * 5000
        lines = self.lines(samples.clean(), sections=[("Slurm", [command]), ("None", [])])
        self.assertEqual(lines[-2:], ["Slurm", f"  {command}"])
        self.assertNotIn("None", lines)

    def test_names_and_causes_of_hosts(self):
        text = report.text(evil())
        self.assertTrue(all(c.isprintable() or c == "\n" for c in text))
        self.assertIn("injected for a test: inject_fault <script>alert(1)</script> [2J & \"'>", text)
        text.encode()


class Html(unittest.TestCase):
    def page(self, acceptance, **more):
        text = page.html(acceptance, **more)
        self.assertTrue(text.startswith("<!DOCTYPE html>\n<html lang=\"en\">"))
        for word in ("http:", "https:", "src=", "<link", "@import", "url("):
            self.assertNotIn(word, text)  # it needs nothing else
        return Page(text)

    def test_plots(self):
        """A dot per value, red where a finding names it, and noise is not blown up."""
        svg = [part.partition("</svg>")[0] for part in page.html(samples.few()).split("<svg")[1:]]
        self.assertEqual(len(svg), 9)
        circles = re.findall(r'cy="(\d+)".*?fill="(#\w+)"><title>([^<]*)', svg[0])
        self.assertEqual(len(circles), 32)
        red = [(int(y), title) for y, fill, title in circles if fill == page.RED]
        self.assertEqual([title[:10] for _, title in red], ["n002 GPU 5", "n002 GPU 3"])
        self.assertGreater(red[1][0], 20)
        self.assertLess(max(int(y) for y, fill, _ in circles if fill == page.BLUE), 8)
        for values in ([0, 0], [1e-9, 1e-9], [578.7, 640], [-5, 5], [99.9, 100.1]):
            made = tuple(dataclasses.replace(each, value=value, limit=math.nan)
                         for each, value in zip(samples.few().figures, values))
            drawn = page.html(dataclasses.replace(samples.few(), figures=made))
            heights = [int(y) for y in re.findall(r'cy="(\d+)"', drawn)][:2]
            self.assertTrue(all(0 < y < page.HEIGHT for y in heights), values)
        self.assertLess(abs(heights[0] - heights[1]), page.HEIGHT // 5)

    def test_no_node_and_no_figure(self):
        self.assertIn("INCONCLUSIVE no node was judged", self.page(samples.acceptance([])).text)
        bare = dataclasses.replace(samples.clean(), figures=(), runs=(), settings={})
        self.assertIn("PASS", self.page(bare).text)

    def test_names_and_causes_of_hosts(self):
        text = page.html(evil(), sections=[(EVIL, [EVIL])])
        shown = Page(text)
        self.assertNotIn("script", shown.tags)
        self.assertIn("<script>alert(1)</script> [2J", shown.text)
        self.assertTrue(all(c.isprintable() or c == "\n" for c in text))
        self.assertFalse([key for key, _ in shown.attributes if key.startswith("on")])
        text.encode()

    def test_figures_that_are_not_finite(self):
        few = samples.few()
        figures = tuple(dataclasses.replace(each, value=math.nan, samples=(math.inf, math.nan),
                                            usual=math.nan, limit=math.nan,
                                            more={"clock_mhz": math.nan, "power_w": "?"})
                        for each in few.figures)
        self.assertNotIn("svg", self.page(dataclasses.replace(few, figures=figures)).tags)
        self.assertNotIn("nan", report.text(dataclasses.replace(few, figures=figures)))


class Fleet(unittest.TestCase):
    """4,096 nodes: as few lines and bytes as a reader needs."""

    @classmethod
    def setUpClass(cls):
        cls.fleet = samples.fleet(4096, per_node=1)

    def test_text(self):
        lines = report.text(self.fleet).splitlines()
        self.assertLessEqual(len(lines), 100)
        self.assertLessEqual(max(map(len, lines)), report.WIDTH)
        text = "\n".join(lines)
        self.assertRegex(text, r"FAIL +\d+ more nodes, ENVIRONMENT, product/fp16/flop_per_cycle_sm:\n")
        self.assertRegex(text, r"INCONCLUSIVE  n\[.*\.\.\.\] \(\d+ nodes\)\n +no end line")
        self.assertRegex(text, r"PASS +3,\d\d\d nodes")

    def test_page(self):
        text = page.html(self.fleet)
        self.assertLess(len(text), 1_000_000)
        shown = Page(text)
        self.assertIn("A square per node", shown.text)
        self.assertIn("n0002 GPU 0: 3,6", shown.text)  # one that fails has its name in the plot


# ---- for other programs --------------------------------------------------------------------------

class Jsonl(Folder):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "acceptance.jsonl"

    def test_a_failed_write_leaves_what_there_was(self):
        self.path.write_text("before")
        bad = changed(samples.clean(), settings={"x": [object()]})
        with self.assertRaises(TypeError):
            exports.write_records(self.path, bad)
        self.assertEqual(self.path.read_text(), "before")
        self.assertEqual(list(self.folder.iterdir()), [self.path])


class Prometheus(unittest.TestCase):
    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_accepts_it(self):
        for acceptance in (samples.few(), samples.clean(2)):
            result = subprocess.run(["promtool", "check", "metrics"], input=exports.prometheus(acceptance), text=True, capture_output=True)
            self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))


def commands(lines, name):
    return [shlex.split(line) for line in lines if line.startswith(name)]


class SlurmLines(unittest.TestCase):
    def test_nothing_of_a_host_is_run(self):
        """The lines are given to a shell, with functions in place of Slurm's commands."""
        evil = "\"; touch /tmp/x; echo $(id) `id` \\ 'a' ! | & \n\x1b[2J\u202e 83 °C"
        acceptance = samples.acceptance([*failed("n1", cause=evil, check=evil).verdicts,
                                         *failed("n2;id", "-n3", "$(id)").verdicts])
        lines = report.drain_lines(acceptance)
        self.assertTrue(all(line.isascii() and line.isprintable() for line in lines))
        self.assertEqual([command[2] for command in commands(lines, "scontrol")], ["nodename=n1"])
        self.assertEqual(sum("by hand" in line for line in lines), 3)
        shown = subprocess.run(
            ["bash", "-c", "scontrol() { printf '<%s>' \"$@\"; echo; }; sinfo() { :; }\n" +
             "\n".join(lines)], capture_output=True, text=True)
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        self.assertRegex(shown.stdout, r"^<update><nodename=n1><state=drain><reason=shakedown:"
                                       r"[^<>]*>\n$")

    def test_resumes_only_its_own_reasons(self):
        """sinfo's answer has others' reasons, of which some have ours with a note, and a node of ours."""
        lines = report.drain_lines(failed("n1", "n3"))
        reason = re.search('reason="(.*)"', lines[1])[1]
        answer = f"n[1-2]|Not responding\\nn3|{reason}\\nn4|{reason}; RMA\\nn5|keep off, was {reason}\\nn6|shakedown:end: x\\n"
        folder = f"f() {{ :; }}; sinfo() {{ printf '{answer}'; }}\n"
        resume = next(line for line in lines if line.startswith("sinfo"))
        shown = subprocess.run(["bash", "-c", folder + resume.replace("scontrol", "echo scontrol")],
                               capture_output=True, text=True)
        self.assertEqual(shown.stdout, "scontrol update nodename=n3 state=resume\n")


if __name__ == "__main__":
    unittest.main()
