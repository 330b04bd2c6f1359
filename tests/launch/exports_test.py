"""An acceptance for others: acceptance.jsonl, Nagios, Prometheus, JUnit XML, the lines that drain nodes in Slurm."""

import dataclasses
import math
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import unittest
import xml.etree.ElementTree as xml

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / each) for each in ("launch", "tests/programs", "tests/simulation", "tests/launch")]
import acceptance_samples as samples  # noqa: E402
from support import Folder, read_record  # noqa: E402
from shakedown_launch import words  # noqa: E402
from shakedown_launch.acceptance.report import exports, text  # noqa: E402

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

    def test_records(self):
        lines = self.write(samples.few())
        kinds = [line["kind"] for line in lines]
        self.assertEqual((kinds[0], kinds[-1]), ("run", "end"))
        self.assertEqual(set(kinds), {"run", "stage", "figure", "found", "verdict", "end"})
        self.assertEqual(len({line["run_id"] for line in lines}), 1)
        self.assertFalse([key for line in lines for key, value in line.items()
                          if isinstance(value, dict)])
        self.assertEqual(lines[-1]["exit_code"], 1)
        *_, end = exports.records(samples.few(), stopped=True)
        self.assertEqual(end["exit_code"], 5)

    def test_names_of_findings(self):
        for subject, nodes, scope, name in [
                ("rank 1", ("n1",), "rank", "1"), ("link 0->2", ("n1",), "link", "0->2"),
                ("", ("n1", "n2"), "link", "n1,n2"), ("all-reduce", ("n1",), "node", "n1"),
                ("", (), "job", "train"), ("rail 3", (), "rail", "3")]:
            line = samples.Finding(
                "train", "FAIL", nodes, "x", samples.INFRASTRUCTURE, subject=subject).line()
            self.assertEqual((line["scope"], line["name"]), (scope, name))

    def test_all_that_a_run_says_of_itself(self):
        run = samples.Run("soak", ("n001", "n002"), 3, samples.STARTED, 7.5, "r", "l", 2,
                          ((1, "n002", "signal 9 (Killed)"),), (("n001", "host n001 was lost"),), "killed")
        line = [line for line in self.write(dataclasses.replace(samples.clean(), runs=(run,)))
                if line["kind"] == "stage"]
        self.assertEqual([{key: value for key, value in each.items() if key != "run_id"}
                          for each in line],
                         [{"kind": "stage", "name": "soak", "nodes": ["n001", "n002"],
                           "exit_code": 3, "started": samples.STARTED, "elapsed_s": 7.5,
                           "record": "r", "log": "l", "round": 2, "group": 0, "dead_ranks": [1],
                           "dead_hosts": ["n002"], "dead_causes": ["signal 9 (Killed)"],
                           "lost_hosts": ["n001"], "note": "killed"}])

    def test_what_is_not_finite_is_null(self):
        first, *others = samples.clean().figures
        first = dataclasses.replace(first, value=math.nan, samples=(math.inf, 1.0))
        line = next(line for line in self.write(dataclasses.replace(
            samples.clean(), figures=(first, *others))) if line["kind"] == "figure")
        self.assertEqual((line["value"], line["samples"]), (None, [None, 1.0]))

    def test_names_from_hosts(self):
        of = samples.node("n1\n\x1b[2J\udc80")
        names = [line["name"] for line in self.write(
            samples.acceptance([samples.verdict(of, samples.slow(of))]))
            if line.get("scope") == "node" and "stage" not in line]
        self.assertEqual(names, [of.name.replace("\udc80", "?")])  # a byte that is no UTF-8

    def test_a_failed_write_leaves_what_there_was(self):
        self.path.write_text("before")
        bad = dataclasses.replace(samples.clean(), settings={"x": [object()]})
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
        _, data, _ = self.line(dataclasses.replace(samples.clean(), figures=(figure,)))
        self.assertTrue(data.endswith("'its/latency'=9;;12"), data)

    def test_text_of_hosts(self):
        of = samples.node("n1|rm\n-rf")
        bad = dataclasses.replace(samples.slow(of), cause="a|b\nc\x1b[2J" + "x" * 2000)
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
            result = subprocess.run(["promtool", "check", "metrics"], input=exports.prometheus(acceptance), text=True, capture_output=True)
            self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))


class Junit(unittest.TestCase):
    def root(self, acceptance):
        return xml.fromstring(exports.junit(acceptance))

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


def failed(*names, cause="3 wrong products", check="soak-products"):
    verdicts = [samples.verdict(of, dataclasses.replace(samples.corrupt(of), cause=cause,
                                                        check=check))
                for of in map(samples.node, names)]
    return samples.acceptance(verdicts)


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


class Lines(unittest.TestCase):

    def test_nothing_of_a_host_is_run(self):
        """The lines are given to a shell, with functions in place of Slurm's commands."""
        evil = "\"; touch /tmp/x; echo $(id) `id` \\ 'a' ! | & \n\x1b[2J\u202e 83 °C"
        acceptance = samples.acceptance([*failed("n1", cause=evil, check=evil).verdicts,
                                         *failed("n2;id", "-n3", "$(id)").verdicts])
        lines = text.drain_lines(acceptance)
        self.assertTrue(all(line.isascii() and line.isprintable() for line in lines))
        self.assertEqual([words_[2] for words_ in commands(lines, "scontrol")], ["nodename=n1"])
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
        lines = text.drain_lines(failed("n1", "n3"))
        folder = f"f() {{ :; }}; sinfo() {{ printf '{answer}'; }}\n"
        resume = next(line for line in lines if line.startswith("sinfo"))
        shown = subprocess.run(["bash", "-c", folder + resume.replace("scontrol", "echo scontrol")],
                               capture_output=True, text=True)
        self.assertEqual(shown.stdout, "scontrol update nodename=n3 state=resume\n")


if __name__ == "__main__":
    unittest.main()
