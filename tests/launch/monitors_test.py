"""The files for other monitors: metrics for Prometheus, JUnit XML."""

import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
import unittest
import xml.etree.ElementTree as xml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import acceptance_samples as samples  # noqa: E402
from shakedown_launch.acceptance.report import junit, prometheus  # noqa: E402

SAMPLE = re.compile(r'(shakedown_[a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?[0-9.e+-]+|NaN|[+-]Inf)')


class Prometheus(unittest.TestCase):
    def samples_of(self, acceptance):
        """{(metric, labels): value}; the text has the textfile collector's form."""
        found, described = {}, set()
        text = prometheus.text(acceptance)
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

    def test_verdicts_findings_and_age(self):
        of = samples.node("n001")
        found = self.samples_of(samples.acceptance([samples.verdict(of, samples.slow(of))]))
        self.assertEqual(found["shakedown_node_verdict", 'node="n001",verdict="FAIL"'], 1)
        self.assertEqual(found["shakedown_node_verdict", 'node="n001",verdict="PASS"'], 0)
        self.assertEqual(found["shakedown_findings", 'node="n001",outcome="FAIL",check="product/fp16/flop_per_cycle_sm",class="ENVIRONMENT"'], 1)
        self.assertAlmostEqual(found["shakedown_acceptance_end_time_seconds", 'tier="default"'], 1795425164 + 431.6)

    def test_what_is_accepted_and_what_is_not_known_are_no_warnings(self):
        of = samples.node("n001")
        usual = dataclasses.replace(samples.warned(of), accepted=True)
        found = self.samples_of(samples.acceptance([samples.verdict(of, usual, samples.unknown(of))]))
        self.assertEqual([key for key in found if 'outcome="WARN"' in key[1]], [])
        self.assertEqual(sum('outcome="ACCEPTED"' in key[1] or 'outcome="UNKNOWN"' in key[1] for key in found), 2)

    def test_any_text_and_number(self):
        of = samples.node('n"1\\\n')
        figure = samples.Figure("compute", (of.name,), "x", float("nan"), "TFLOP/s")
        self.samples_of(dataclasses.replace(samples.acceptance([samples.verdict(of)]), figures=(figure, figure)))

    def test_figures_of_other_conditions_are_others(self):
        figures = [dataclasses.replace(each, more={"condition.bytes": size}) for size in ("8", "16")
                   for each in samples.clean().figures if each.metric == samples.ALL_REDUCE]
        found = self.samples_of(dataclasses.replace(samples.clean(), figures=figures))
        self.assertEqual([key[1].partition("conditions=")[2] for key in found if key[0] == "shakedown_figure"],
                         ['"bytes=8"', '"bytes=16"'])

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_accepts_it(self):
        for acceptance in (samples.few(), samples.clean(2)):
            result = subprocess.run(["promtool", "check", "metrics"], input=prometheus.text(acceptance), text=True, capture_output=True)
            self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))


class Junit(unittest.TestCase):
    def root(self, acceptance):
        return xml.fromstring(junit.text(acceptance))

    def test_failures_and_errors_by_stage(self):
        of, other = samples.node("n001"), samples.node("n002")
        root = self.root(samples.acceptance([samples.verdict(of, samples.slow(of), samples.silent(of)),
                                             samples.verdict(other, samples.warned(other))]))
        self.assertEqual([(each.get("name"), each.get("failures"), each.get("errors")) for each in root],
                         [("n001", "1", "1"), ("n002", "0", "0")])
        self.assertEqual(root.get("tests"), str(2 * len(samples.STAGES)))
        case = root.find("./testsuite[@name='n001']/testcase[@name='compute']")
        self.assertEqual(case.get("time"), "92.000")
        self.assertIn("7 % slow", case.find("failure").get("message"))
        self.assertEqual(case.find("failure").get("type"), "ENVIRONMENT")
        self.assertIn("power limit", root.find("./testsuite[@name='n002']/testcase[@name='node_check']/system-out").text)

    def test_what_is_missing_is_an_error(self):
        self.assertEqual(self.root(samples.acceptance([])).get("errors"), "1")
        linked = self.root(dataclasses.replace(samples.clean(2), findings=(samples.LINK,)))
        self.assertEqual(linked.find("./testsuite[@name='job']").get("failures"), "1")

    def test_control_characters_are_no_xml(self):
        of = samples.node("n1")
        self.root(samples.acceptance([samples.verdict(of, dataclasses.replace(samples.slow(of), cause="a\x00b\x1b[1m\udcfc"))]))


if __name__ == "__main__":
    unittest.main()
