"""acceptance.txt and acceptance.html: what they say, that they are bounded, and that what hosts are
called and causes say is shown and never obeyed."""

import dataclasses
import html.parser
import math
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import acceptance_samples as samples  # noqa: E402
from shakedown_launch.acceptance import main, references, words  # noqa: E402
from shakedown_launch.acceptance.judge.judge import Judge  # noqa: E402
from shakedown_launch.acceptance.report import charts, nagios, page, series  # noqa: E402
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


class Text(unittest.TestCase):
    def lines(self, acceptance, **more):
        text = report.text(acceptance, **more)
        self.assertTrue(text.endswith("\n") and "\n\n\n" not in text)
        return text.splitlines()

    def test_a_clean_node(self):
        lines = self.lines(samples.clean())
        self.assertEqual(lines[:5], ["Shakedown acceptance: PASS", "node n001: PASS",
                                     "default, 7 min 12 s, started 2026-11-23T09:12:44Z", "",
                                     "PASS          n001"])
        self.assertLessEqual(len(lines), 40)
        self.assertIn("  0 wrong in 2.1e6 products and 9.8 PB: below 1.5 per GPU-hour (95 %)", lines)
        self.assertNotIn("Not judged", lines)

    def test_no_gpu_is_in_the_first_lines(self):
        one = samples.clean()
        bare = [dataclasses.replace(each, node=dataclasses.replace(each.node, gpus=()))
                for each in one.verdicts]
        for acceptance, said in [
                (dataclasses.replace(one, settings={"backend": "cpu"}),
                 "--backend cpu: no GPU was tested, in short stages without path and throughput"),
                (dataclasses.replace(one, settings={"backend": "cpu"}, tier="passive"),
                 "--backend cpu: no GPU was tested"),
                (dataclasses.replace(one, verdicts=tuple(bare)),
                 "no GPU was found: nothing but the host was tested, in short stages without path")]:
            self.assertIn(f"; {said}", self.lines(acceptance)[2] + "\n")
            self.assertEqual("short" in said, "short" in self.lines(acceptance)[2])

    def test_a_pass_without_judged_rates_says_so(self):
        nodes = [samples.node(f"n{i:03}") for i in range(1, 4)]
        why = "rates not judged: no reference of this model"
        one = samples.acceptance([samples.verdict(nodes[0], samples.unjudged(nodes[0]))])
        lines = self.lines(one)
        self.assertEqual((lines[1], lines[4]),
                         (f"node n001: PASS ({why})", f"PASS          n001 ({why})"))
        self.assertIn(f"node n001: PASS ({why})", Page(page.html(one)).text)
        self.assertTrue(main.brief(one).startswith(f"PASS n001 ({why})\n"))
        self.assertIn(f"1 node PASS ({why})", nagios.line(one)[0])
        some = samples.acceptance([samples.verdict(nodes[0]),
                                   *(samples.verdict(of, samples.unjudged(of)) for of in nodes[1:])])
        lines = self.lines(some)
        self.assertEqual((lines[1], lines[4:6]), (
            f"3 nodes: 3 PASS ({why} (on n[002-003]))",
            ["PASS          n001", f"PASS          n[002-003] ({why})"]))

    def test_what_did_not_pass(self):
        lines = self.lines(samples.few())
        text = "\n".join(lines)
        self.assertLessEqual(len(lines), 60)
        self.assertLessEqual(max(map(len, lines)), 100)
        for part in ["4 nodes: 1 FAIL, 1 INCONCLUSIVE, 2 PASS", "isolation: 9 tests in 3 rounds",
                     "FAIL          n002\n              GPU 5, serial 1650000000205: 3 wrong",
                     "class: HARDWARE; action: RMA; check: soak-products",
                     "evidence: n002/soak-capsule.json",
                     "7 % slow, all of it clock: 1,423 MHz against 1,530,\n"
                     "                83 °C against 71: cooling",
                     "INCONCLUSIVE  n003\n", "class: unknown; action: run it again",
                     "PASS          n[001,004]",
                     "FAIL n[001,003], link n001-n003: both halves pass and the whole fails",
                     "WARN n004, GPU 0, serial 1650000000400: power limit 650 W",
                     "4 nodes  4 runs  3 PASS, 1 no result", "collectives: no result of n003",
                     "driver 575.57.08 on n004, 580.95.05 elsewhere",
                     "4 nodes with 8 x NVIDIA H200"]:
            self.assertIn(part, text)
        self.assertRegex(text, r"compute/fp16/sustained +TFLOP/s +583\.\d  n002 GPU 3 +-7\.\d % +6\d\d\.\d +"
                               r"578\.7 +629\.0\n")
        self.assertRegex(text, r"all_reduce/float32/1 GiB/in_place +GB/s ")

    def test_no_node(self):
        lines = self.lines(samples.acceptance([]))
        self.assertEqual(lines[:2], ["Shakedown acceptance: INCONCLUSIVE", "no node was judged"])

    def test_without_a_reference(self):
        few = dataclasses.replace(samples.clean(), reference={}, statement="")
        text = report.text(few)
        self.assertIn("no reference matched: 2 of 6 metrics have fewer than 3 values and were",
                      text)
        self.assertIn("the soak did not pass", text)
        self.assertIn("no soak", report.text(dataclasses.replace(few, runs=())))
        self.assertNotIn("floor", text)
        self.assertIn("compared with one another only",
                      report.text(dataclasses.replace(samples.clean(3), reference={})))
        known = {"memory/copy": samples.REFERENCE["figures"]["memory/copy"]}
        self.assertIn("not in the reference: compute/fp16/sustained, compute/fp64/sustained, "
                      "host/to_device/all_at_once\n    and 2 more", report.text(
                          dataclasses.replace(samples.clean(), reference={"figures": known})))

    def test_a_missed_floor_is_marked(self):
        missed = samples.acceptance([samples.verdict(samples.node("n1"))],
                                    slow_gpus={("n1", 2): 0.8})
        self.assertRegex(report.text(missed), r"compute/fp16/sustained .* n1 GPU 2 .* missed\n")

    def test_what_others_published_has_no_floor(self):
        known = {"memory/copy": [{"value": 9000.0, "floor": 8000.0, "may_fail": False,
                                  "kind": "published", "source": "a blog"}]}
        acceptance = dataclasses.replace(samples.clean(), reference={"figures": known})
        self.assertRegex(report.text(acceptance), r"memory/copy .* 9,000\n")
        shown = Page(page.html(acceptance)).text
        self.assertIn("published, a blog", shown)
        self.assertNotIn("floor", shown)

    def test_our_own_reference(self):
        judge = Judge("", references.load(str(samples.TREE / "results/reference")))
        judge.choose([samples.node("n001")], {"n001": 2}, [])
        acceptance = dataclasses.replace(samples.clean(), reference=judge.described())
        entries = acceptance.reference["figures"]["host/to_device/alone"]
        self.assertEqual((entries[0]["kind"], entries[0]["may_fail"]), ("measured", True))
        self.assertGreater(len(entries), 1)
        figure = dataclasses.replace(acceptance.figures[0], metric="host/to_device/alone",
                                     conditions=entries[0]["conditions"])
        found = series.reference_of(acceptance, figure)
        self.assertLess(0.8 * found["value"], found["floor"])
        self.assertLess(found["floor"], found["value"])
        self.assertEqual(series.reference_of(acceptance, dataclasses.replace(
            figure, conditions={"backend": "cpu"})).get("may_fail", False), False)

    def test_another_number_of_nodes_is_another_series(self):
        alone = samples.clean(2)
        both = dataclasses.replace(alone.figures[-1], nodes=("n001", "n002"), value=1.0,
                                   metric=samples.ALL_REDUCE, stage="all_reduce",
                                   conditions={"world_size": 16})
        floor = {samples.ALL_REDUCE: [{"value": 900.0, "conditions": {"ranks": 4}},
                                      {"value": 478.0, "floor": 439.0, "conditions": {"ranks": 8}}]}
        found = {each.name: each for each in series.measured(dataclasses.replace(
            alone, figures=(*alone.figures, both), reference={"figures": floor}))}
        name = "all_reduce/float32/1 GiB/in_place"
        self.assertEqual(len(found[f"{name} (collective)"].figures), 2)
        self.assertEqual(found[f"{name} (collective)"].floor, 439)
        self.assertTrue(math.isnan(found[f"{name} (all_reduce, 2 nodes)"].floor))

    def test_of_many_metrics_the_first_to_look_at(self):
        one = samples.clean().figures[-1]
        names = [*(f"collective/{op}/float32/{size}/in_place/busbw" for op in
                   ("broadcast", "all_reduce") for size in (65536, 1 << 20, 1 << 25, 1 << 30)),
                 *(f"setting/{i}" for i in range(40)), "compute/fp16/sustained", "low"]
        many = dataclasses.replace(
            samples.clean(), figures=tuple(dataclasses.replace(one, metric=name) for name in names),
            reference={"figures": {"low": [{"floor": 1e9}]}})
        chosen = [each.metric for each in series.chosen(series.measured(many), 20)]
        self.assertEqual(chosen, [*names[6:8], "compute/fp16/sustained", "low"])
        self.assertIn("  and 46 more: acceptance.jsonl", report.text(many))
        others = dataclasses.replace(many, figures=many.figures[8:48], reference={})
        self.assertEqual(len(series.chosen(series.measured(others), 20)), 20)

    def test_what_is_not_known_and_what_is_accepted_come_last(self):
        nodes = [samples.node(f"n{i:03}") for i in (1, 2)]
        usual = dataclasses.replace(samples.warned(nodes[0]), accepted=True)
        one = samples.acceptance([samples.verdict(nodes[0], samples.unknown(nodes[0]), usual),
                                  samples.verdict(nodes[1], samples.silent(nodes[1]), samples.unknown(nodes[1]))])
        lines = self.lines(one)
        self.assertNotIn("Warnings", lines)
        first = lines.index("Not known (1)")
        self.assertEqual(lines[first + 1:first + 4], ["  n[001-002]: no frequency governor is visible [governor]",
                                                      "", "Accepted (1)"])
        self.assertIn("power limit 650 W", lines[first + 4])
        self.assertEqual(len(lines), first + 5)
        self.assertNotIn("governor", "\n".join(lines[:first]))
        shown = page.html(one)
        self.assertNotIn("Warnings", shown)
        self.assertIn("<summary>Not known (1)</summary><ul><li>n[001-002]: no frequency governor", shown)
        self.assertLess(shown.index("Runs"), shown.index("Not known"))
        strict = dataclasses.replace(one, settings={"strict": True})  # then it is a reason
        self.assertIn("              UNKNOWN no frequency governor is visible [governor]", self.lines(strict))
        self.assertNotIn("UNKNOWN n001", main.brief(dataclasses.replace(one, verdicts=one.verdicts[:1])))
        self.assertNotIn("power limit", main.brief(one))

    def test_a_fact_that_is_not_known_of_several_gpus_is_one(self):
        of = samples.node("n1")
        facts = [dataclasses.replace(samples.unknown(of, "nvlink-speed", "NVLinks are not reported"), gpu=gpu.uuid,
                                     subject="") for gpu in of.gpus]
        for count, line in [(8, "  n1, 8 GPUs: NVLinks are not reported [nvlink-speed]"),
                            (1, "  n1, GPU 0, serial 1650000000100: NVLinks are not reported [nvlink-speed]")]:
            one = samples.acceptance([samples.verdict(of, *facts[:count])])
            self.assertEqual(self.lines(one)[-2:], ["Not known (1)", line])
            self.assertIn("1 fact not known", nagios.line(one)[0])

    def test_warnings_begin_with_what_is_off_by_most(self):
        of = samples.node("n1")
        found = [dataclasses.replace(samples.warned(of), cause=f"{off:.0%} slow", off=off)
                 for off in (0.06, 0.67, 0.05, 0.12)]
        lines = self.lines(samples.acceptance([samples.verdict(of, *found)]))
        self.assertEqual([line.split(": ")[1] for line in lines if "slow" in line],
                         ["67% slow", "12% slow", "6% slow", "5% slow"])

    def test_two_values_have_no_median(self):
        """It would be their mean, which hides the factor between them."""
        pair = samples.clean(2)
        slow = dataclasses.replace(pair, figures=tuple(
            dataclasses.replace(each, value=11.41 if each.nodes == ("n002",) else 96.3, unit="images/s")
            for each in pair.figures if each.metric.startswith("train/")))
        self.assertRegex(report.text(slow), r"unit +worst  of +off +best .*\n.* images/s  11.41  n002  -88.2 %  96.30 ")
        self.assertNotIn("53.8", report.text(slow) + page.html(slow, plots=False))

    def test_versions_have_names(self):
        of = samples.node("n1")
        of.identity.clear()
        of.identity.update({"git_revision": "15365bc", "versions.mpi_built": "Open MPI 4.1.4",
                            "versions.mpi": "Open MPI v4.1.6", "versions.cuda_built": "13.0", "versions.cuda": "13.0",
                            "versions.cudnn_built": "9.19.0", "versions.cudnn": "9.14.0"})
        text = " ".join(report.text(samples.acceptance([samples.verdict(of)])).split())
        self.assertIn("Shakedown 15365bc, Open MPI v4.1.6, CUDA 13.0, cuDNN 9.14.0, built with Open MPI 4.1.4, "
                      "built with cuDNN 9.19.0", text)
        self.assertNotRegex(text, "_built|git_rev|versions")

    def test_what_did_not_run_has_no_class(self):
        of = samples.node("n1")
        missing = samples.Finding("soak", samples.INCONCLUSIVE, ("n1",), "not run: soak: lost", check="missing")
        one = samples.acceptance([samples.verdict(of, missing, missing=("soak",))])
        self.assertIn("not run: soak: lost [missing]", report.text(one))
        for shown in (report.text(one), page.html(one)):
            self.assertNotRegex(shown, "class(:.)? unknown|none known|no action known")

    def test_nothing_is_named_twice(self):
        of = samples.node("n1", gpus=0)
        for subject, cause, line in [("node n1", "no driver", "WARN n1: no driver [x]"),
                                     ("rank 1", "rank 1 on n1: slow", "WARN n1: rank 1 on n1: slow"),
                                     ("rank 1", "slow", "WARN n1, rank 1: slow [x]")]:
            found = samples.Finding("s", samples.WARN, ("n1",), cause, subject=subject, check="x")
            text = report.text(samples.acceptance([samples.verdict(of, found)]))
            self.assertIn(f"\n  {line}", text)

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

    def test_a_clean_node(self):
        shown = self.page(samples.clean())
        self.assertIn("node n001: PASS", shown.text)
        self.assertNotIn("did not pass", shown.text)
        self.assertEqual(shown.tags.count("svg"), 9)
        self.assertNotIn("no result", shown.text)  # a column without content
        self.assertIn("GPU 7", shown.text)
        self.assertIn("1650000000107", shown.text)

    def test_what_did_not_pass(self):
        shown = self.page(samples.few(), sections=[("Slurm lines", ["scontrol  update", "# next"])])
        for part in ["GPU 5, serial 1650000000205: 3 wrong products", "RMA · HARDWARE",
                     "both halves pass", "power limit 650 W", "no result of n003",
                     "SM clock, MHz during compute/fp16/sustained", "GPU temperature, °C",
                     "9 tests of the isolation, 3 rounds", "scontrol update # next",
                     "Reference h200-sxm-8"]:
            self.assertIn(part, shown.text)
        self.assertEqual(shown.tags.count("details"), 4)

    def test_without_plots(self):
        self.assertNotIn("svg", self.page(samples.few(), plots=False).tags)

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
                                            explains={"sm_clock_mhz": math.nan, "power_w": "?"})
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
        self.assertLessEqual(max(map(len, lines)), 130)
        text = "\n".join(lines)
        self.assertRegex(text, r"FAIL +\d+ more nodes, ENVIRONMENT, compute/fp16/sustained:\n")
        self.assertRegex(text, r"INCONCLUSIVE  n\[.*\.\.\.\] \(\d+ nodes\)\n +no end line")
        self.assertRegex(text, r"PASS +3,\d\d\d nodes")

    def test_page(self):
        text = page.html(self.fleet)
        self.assertLess(len(text), 1_000_000)
        shown = Page(text)
        self.assertIn("A square per node", shown.text)
        self.assertIn("n4095", shown.text)


class Charts(unittest.TestCase):
    def test_scale(self):
        for values in ([0, 0], [1e-9, 1e-9], [70, 70], [578.7, 640], [-5, 5], [1e12, 1e12]):
            scale = charts.Scale(values)
            self.assertTrue(1 <= len(scale.ticks) <= 7, (values, scale.ticks))
            self.assertTrue(all(scale.low <= tick <= scale.high for tick in scale.ticks))
            for value in values:
                self.assertTrue(charts.TOP < scale(value) < charts.HEIGHT - charts.BOTTOM)

    def test_noise_is_not_blown_up(self):
        scale = charts.Scale([99.9, 100.1])
        self.assertLess(scale(99.9) - scale(100.1), 0.1 * charts.HEIGHT)

    def test_words(self):
        self.assertEqual([words.figure(value) for value in
                          (629.04, 55.3, 4270, 79400.4, 0, 0.01234, 1e-5, 12345678, math.nan, -3.21)],
                         ["629.0", "55.30", "4,270", "79,400", "0", "0.01234", "1.000e-05",
                          "1.235e+07", "unknown", "-3.210"])
        self.assertEqual([words.duration(value) for value in (2.44, 9.97, 59.9, 431.6, 3599.7, 90061)],
                         ["2.4 s", "10 s", "1 min 0 s", "7 min 12 s", "1 h 0 min", "25 h 1 min"])
        self.assertFalse(re.search("[\n\u202e]", words.clean(EVIL)))


if __name__ == "__main__":
    unittest.main()
