"""What is written of an acceptance: acceptance.txt, .html and .jsonl, lines for Nagios and Slurm, JUnit XML and metrics: what
they say, that they are bounded, and that what hosts are called and causes say is shown and never obeyed."""

import collections
import dataclasses
import html.parser
import io
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
from support import Folder, read_record  # noqa: E402
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


SHOWN = {"names": lambda given: records(given, "names"), "runs": lambda given: records(given, "stage"),
         "figures": lambda given: records(given, "figure"), "junit": lambda given: re.sub(">(?=<)", ">\n", exports.junit(given)),
         "prometheus": lambda given: re.sub("(?m)^# .*\n", "", exports.prometheus(given)), "text": lambda given: parts_of(given, False), "usual": lambda given: parts_of(given, True), "page": words_of_page,
         "rows": lambda given: "\n".join(re.findall("<td[^>]*>([^<]*; [^<]*)", page.html(given))),
         "brief": main.brief, "drain": lambda given: "\n".join(report.drain_lines(given)) or "nothing",
         "nagios": lambda given: "{0[0]}\nexit code {0[1]}".format(exports.nagios(given))}


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

    def test_what_distinguishes_figures_of_a_metric(self):
        """Another number of nodes, and other conditions, are another series."""
        alone = samples.clean(2)
        measured = [each for each in alone.figures if each.metric == samples.ALL_REDUCE]
        for more, nodes, stage, name in [
                ({"condition.bytes": "1048576"}, 1, "collective", "all_reduce 1 MiB"),
                ({"condition.dtype": "float16"}, 1, "collective", "all_reduce 1 GiB float16"),
                ({"condition.in_place": "false"}, 1, "collective", "all_reduce 1 GiB out of place"),
                ({"condition.world_size": "16"}, 2, "all_reduce", "all_reduce all_reduce of 2 nodes 1 GiB world_size 16")]:
            other = dataclasses.replace(measured[0], nodes=("n001", "n002")[:nodes], stage=stage, limit=439.0,
                                        more={**measured[0].more, **more})
            found = series.measured(dataclasses.replace(alone, figures=(*measured, other)))
            self.assertEqual([(len(each.figures), each.worst.limit) for each in found], [(2, 0.92 * 478), (1, 439)])
            self.assertEqual(found[1].name, name)

    def test_of_many_metrics_the_first_to_look_at(self):
        one = samples.clean().figures[-1]
        names = [*(f"collective/{op}/busbw" for op in ("broadcast", "all_reduce")),
                 *(f"setting/{i}" for i in range(40)), samples.FP16, "low"]
        made = [dataclasses.replace(one, metric=name) for name in names]
        made[-1] = dataclasses.replace(made[-1], outcome="FAIL", more={"slower": 0.5})
        many = dataclasses.replace(samples.clean(), figures=tuple(made))
        chosen = [each.metric for each in series.chosen(series.measured(many), 20)]
        self.assertEqual(chosen, [names[1], samples.FP16, "low"])
        self.assertIn("  and 41 more: acceptance.jsonl", report.text(many))
        others = dataclasses.replace(many, figures=many.figures[2:42])
        self.assertEqual(len(series.chosen(series.measured(others), 20)), 20)

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


class Words(unittest.TestCase):
    def test_words(self):
        self.assertEqual([words.figure(value) for value in
                          (629.04, 55.3, 4270, 79400.4, 0, 0.01234, 1e-5, 12345678, math.nan, -3.21)],
                         ["629.0", "55.30", "4,270", "79,400", "0", "0.01234", "1.000e-05",
                          "1.235e+07", "unknown", "-3.210"])
        self.assertEqual([words.duration(value) for value in (2.44, 9.97, 59.9, 431.6, 3599.7, 90061)],
                         ["2.4 s", "10 s", "1 min 0 s", "7 min 12 s", "1 h 0 min", "25 h 1 min"])
        self.assertFalse(re.search("[\n\u202e]", words.clean(EVIL)))

# ---- for other programs --------------------------------------------------------------------------

SAMPLE = re.compile(r'(shakedown_[a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?[0-9.e+-]+|NaN|[+-]Inf)')
# 'label'=value[UOM];[warn];[crit];[min];[max], as the Nagios plugin guidelines have it.
DATA = re.compile(r"('[^'=|]+'|[^ '=|]+)=(-?[0-9.e+]+)(s|%|[KMGT]?B|c)?"
                  r"(;[-0-9.:@~e+]*){0,2}(;[0-9.]*){0,2}( |$)")


class Jsonl(Folder):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "acceptance.jsonl"

    def write(self, acceptance):
        exports.write_records(self.path, acceptance)
        return read_record(self.path)

    def test_names_from_hosts(self):
        of = samples.node("n1\n\x1b[2J\udc80")
        names = [line["name"] for line in self.write(
            samples.acceptance([samples.verdict(of, samples.slow(of))]))
            if line.get("scope") == "node" and "stage" not in line]
        self.assertEqual(names, [of.name.replace("\udc80", "?")])  # a byte that is no UTF-8

    def test_a_failed_write_leaves_what_there_was(self):
        self.path.write_text("before")
        bad = changed(samples.clean(), settings={"x": [object()]})
        with self.assertRaises(TypeError):
            exports.write_records(self.path, bad)
        self.assertEqual(self.path.read_text(), "before")
        self.assertEqual(list(self.folder.iterdir()), [self.path])


class Nagios(unittest.TestCase):
    def line(self, acceptance):
        """(text, data, code); the data follow the guidelines."""
        line, code = exports.nagios(acceptance)
        self.assertNotIn("\n", line)
        self.assertLess(len(line.encode()), 1024)
        text, _, data = line.partition(" | ")
        self.assertNotIn("|", data)
        self.assertEqual(DATA.sub("", data), "")
        return text, data, code

    def test_performance_data(self):
        self.line(samples.few())
        figure = samples.Figure("collectives", ("n1",), "it's=|latency", 9.0, "us", limit=12.0)
        _, data, _ = self.line(changed(samples.clean(), figures=(figure,)))
        self.assertTrue(data.endswith("'its/latency'=9;;12"), data)

    def test_text_of_hosts(self):
        of = samples.node("n1|rm\n-rf")
        bad = changed(samples.slow(of), cause="a|b\nc\x1b[2J" + "x" * 2000)
        text, _, code = self.line(samples.acceptance([samples.verdict(of, bad)]))
        self.assertEqual(code, 2)
        self.assertIn("n1/rm -rf", text)

    def test_thousands_of_nodes(self):
        text, data, _ = self.line(samples.fleet(1024, per_node=1))
        self.assertRegex(text, r"CRITICAL - \d+ of 1,024 nodes FAIL: n\[\d.*\.\.\.\] \(\d+ nodes\)")
        self.assertIn("nodes=1024", data)


class Prometheus(unittest.TestCase):
    def samples_of(self, acceptance):
        """{(metric, labels): value}; the text has the textfile collector's form."""
        found, described = {}, set()
        text = exports.prometheus(acceptance)
        self.assertTrue(text.endswith("\n"))
        for line in text.splitlines():
            if line.startswith("# "):
                described.add(line.split()[2])
                continue
            match = SAMPLE.fullmatch(line)
            self.assertIsNotNone(match, line)
            self.assertIn(match[1], described)
            self.assertNotIn(match.group(1, 2), found, "a series twice")
            found[match.group(1, 2)] = float(match[3])
        return found

    def test_any_text_and_number(self):
        of = samples.node('n"1\\\n')
        figure = samples.Figure("compute", (of.name,), "x", float("nan"), "TFLOP/s")
        self.samples_of(changed(samples.acceptance([samples.verdict(of)]), figures=(figure, figure)))
        self.samples_of(samples.few())

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_accepts_it(self):
        for acceptance in (samples.few(), samples.clean(2)):
            result = subprocess.run(["promtool", "check", "metrics"], input=exports.prometheus(acceptance), text=True, capture_output=True)
            self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))


class Junit(unittest.TestCase):
    def test_control_characters_are_no_xml(self):
        of = samples.node("n1")
        xml.fromstring(exports.junit(samples.acceptance([samples.verdict(of, changed(samples.slow(of), cause="a\x00b\x1b[1m\udcfc"))])))


def commands(lines, name):
    return [shlex.split(line) for line in lines if line.startswith(name)]


class HostLists(unittest.TestCase):
    def test_as_slurm(self):
        for names, text in [("n3 n17", "n[3,17]"), ("n1", "n1"), ("n001 n002 n003 n004 n007",
                                                                   "n[001-004,007]"),
                            ("n9 n10 n11 n8", "n[8-11]"), ("n09 n10 n9 n99 n100",
                                                          "n[9,09-10,99-100]"),
                            ("n n1 n2 login", "login,n,n[1-2]"), ("r1n1 r1n2 r2n1",
                                                                  "r1n[1-2],r2n1"),
                            ("a-1-b a-2-b", "a-1-b,a-2-b"), ("10 11", "[10-11]"),
                            ("n2 n2 n1", "n[1-2]"), ("", "")]:
            self.assertEqual(words.hostlist(names.split()), text)

    def test_a_sentence_counts_what_it_cuts(self):
        names = [f"n{i:04}" for i in range(0, 4096, 2)]
        self.assertRegex(words.nodes(names), r"^n\[0000,0002,.*,\.\.\.\] \(2,048 nodes\)$")
        self.assertLess(len(words.nodes(names)), 120)
        self.assertEqual(words.nodes(["x" * 200]), "x" * 90 + ",... (1 node)")


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
        """sinfo's answer has another's reason, and a node of ours."""
        answer = "n[1-2] Not responding\\nn3 shakedown:soak-products: GPU 5\\nn4 shakedown:end: x\\n"
        lines = report.drain_lines(failed("n1", "n3"))
        folder = f"f() {{ :; }}; sinfo() {{ printf '{answer}'; }}\n"
        resume = next(line for line in lines if line.startswith("sinfo"))
        shown = subprocess.run(["bash", "-c", folder + resume.replace("scontrol", "echo scontrol")],
                               capture_output=True, text=True)
        self.assertEqual(shown.stdout, "scontrol update nodename=n3 state=resume\n")


if __name__ == "__main__":
    unittest.main()
