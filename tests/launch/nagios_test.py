"""The line for Nagios: state, text, performance data, exit code."""

import dataclasses
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import acceptance_samples as samples  # noqa: E402
from acceptance_fakes import concluded  # noqa: E402
from shakedown_launch.acceptance.evidence import findings  # noqa: E402
from shakedown_launch.acceptance.report import nagios, page  # noqa: E402

# 'label'=value[UOM];[warn];[crit];[min];[max], as the Nagios plugin guidelines have it.
DATA = re.compile(r"('[^'=|]+'|[^ '=|]+)=(-?[0-9.e+]+)(s|%|[KMGT]?B|c)?"
                  r"(;[-0-9.:@~e+]*){0,2}(;[0-9.]*){0,2}( |$)")


class Nagios(unittest.TestCase):
    def line(self, acceptance):
        """(text, data, code); the data follow the guidelines."""
        line, code = nagios.line(acceptance)
        self.assertNotIn("\n", line)
        self.assertLess(len(line.encode()), 1024)
        text, _, data = line.partition(" | ")
        self.assertNotIn("|", data)
        self.assertEqual(DATA.sub("", data), "")
        return text, data, code

    def test_states(self):
        of = samples.node("n001")
        for findings, state, code in [((), "OK - 1 node PASS", 0),
                                      ((samples.warned(of),), "WARNING - 1 node PASS; n001 GPU 0", 1),
                                      ((samples.slow(of), samples.silent(of)),
                                       "CRITICAL - 1 of 1 node FAIL: n001; n001 GPU 3: 7 % slow", 2),
                                      ((samples.silent(of),),
                                       "UNKNOWN - 1 of 1 node INCONCLUSIVE: n001; n001: no end", 3)]:
            text, _, found = self.line(samples.acceptance([samples.verdict(of, *findings)]))
            self.assertEqual(found, code)
            self.assertTrue(text.startswith(f"ACCEPTANCE {state}"), text)

    def test_a_fact_that_is_not_known_is_no_warning(self):
        of = samples.node("n001")
        facts = samples.unknown(of), samples.unknown(of, "nics", "eth0 at unknown speed")
        usual = dataclasses.replace(samples.warned(of), accepted=True)
        for found, said, code in [
                (facts, "ACCEPTANCE OK - 1 node PASS; 2 facts not known; would have found at 99 %: products 1.4", 0),
                ((*facts, samples.warned(of)), "ACCEPTANCE WARNING - 1 node PASS; n001 GPU 0: power limit 650 W, "
                 "700 by default; 2 facts not known", 1),
                ((usual,), "ACCEPTANCE OK - 1 node PASS", 0),
                ((usual, samples.silent(of)), "ACCEPTANCE UNKNOWN - 1 of 1 node INCONCLUSIVE", 3)]:
            text, _, state = self.line(samples.acceptance([samples.verdict(of, *found)]))
            self.assertEqual((text[:len(said)], state), (said, code))

    def test_healthy_machines_of_which_not_all_is_known(self):
        """As node_check records them: no GPU, an H200 in a virtual machine (results/0.2/h200), a user
        without rights. A remark on corrected errors is a warning on each."""
        gpu = "GPU-574bcfa1"
        for facts in [
                [("node", "gpu-count", "how many GPUs there are is not known"),
                 ("node", "driver", "the driver's version is not known"), ("node", "nics", "eth0 at unknown speed")],
                [("node", "gpu-count", "1 GPUs; how many there should be is not known"),
                 ("gpu", "nvlink-count", "the state of the NVLinks is not reported"),
                 ("gpu", "nvlink-errors", "NVLinks are not reported"),
                 ("node", "governor", "no frequency governor is visible"),
                 ("node", "fabric-manager", "the fabric manager's version is not readable here")],
                [("node", "kernel-log", "the kernel's messages are not readable: XIDs are not known")]]:
            lines = [{"kind": "verdict", "scope": scope, "name": gpu if scope == "gpu" else "vm", "check": check,
                      "cause": cause, "verdict": "UNKNOWN"}
                     for scope, check, cause in facts]
            corrected = {"kind": "verdict", "scope": "gpu", "name": gpu, "check": "ecc-corrected",
                         "cause": "7 corrected ECC errors", "verdict": "WARN"}
            for more, said, code in [([], f"OK - 1 node PASS; {len(facts)} fact", 0),
                                     ([corrected], f"WARNING - 1 node PASS; vm: 7 corrected ECC errors; {len(facts)} fact", 1)]:
                found, run = self.of_node_check([*lines, *more], gpu)
                made, = concluded(["vm"], [run], found)
                acceptance = dataclasses.replace(samples.acceptance([made]), figures=(), runs=(run,))
                text, _, state = self.line(acceptance)
                self.assertEqual((text.replace(f" GPU of rank 0:", ":")[:len(said) + 11], state),
                                 (f"ACCEPTANCE {said}", code))
                shown = page.html(acceptance)
                self.assertIn(f"<summary>Not known ({len(facts)})</summary>", shown)
                self.assertEqual("Warnings" in shown, bool(more))

    @staticmethod
    def of_node_check(lines, gpu):
        run = samples.Run("inventory", ("vm",), 0, samples.STARTED, 0.3, "r.jsonl", "r.log")
        head = {"kind": "run", "program": "node_check", "hosts": ["vm"], "gpu_uuids": [gpu]}
        job = {"kind": "verdict", "scope": "job", "name": "node_check", "verdict": "PASS", "cause": ""}
        return findings.findings(run, [head, *lines, job, {"kind": "end", "exit_code": 0}]), run

    def test_a_link_alone_is_critical(self):
        clean = dataclasses.replace(samples.clean(4), findings=(samples.LINK,))
        self.assertEqual(self.line(clean)[2], 2)

    def test_nothing_judged_is_unknown(self):
        self.assertEqual(self.line(samples.acceptance([]))[2], 3)

    def test_performance_data(self):
        _, data, _ = self.line(samples.few())
        self.assertTrue(data.startswith("nodes=4;;;0 pass=2;;;0;4 fail=1;;0;0;4 "
                                        "inconclusive=1;0;;0;4 time=432s;;;0 "))
        self.assertRegex(data, r"'product/fp16'=372\d\.\d+;;3681\.84: ")
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


if __name__ == "__main__":
    unittest.main()
