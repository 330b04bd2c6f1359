"""The Slurm lines: host lists, reasons, quoting, and what is not drained."""

import dataclasses
import pathlib
import shlex
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import acceptance_samples as samples  # noqa: E402
from shakedown_launch import words  # noqa: E402
from shakedown_launch.acceptance.report import nagios, slurm_lines  # noqa: E402


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
    def test_drain_and_resume(self):
        lines = slurm_lines.drain_lines(failed("n3", "n17"))
        self.assertIn('scontrol update nodename="n[3,17]" state=drain '
                      'reason="shakedown:soak-products: GPU 5, 3 wrong products"', lines)
        self.assertIn("sinfo -hR -n \"n[3,17]\" -o '%N %E' | grep -F ' shakedown:soak-products:' | "
                      "cut -d' ' -f1 | xargs -rI{} scontrol update nodename={} state=resume", lines)

    def test_a_reason_does_not_repeat_the_node(self):
        of = samples.node("n3", gpus=0)
        lost = samples.Finding("inventory", samples.FAIL, ("n3",), "0 GPUs, 8 expected",
                               subject="node n3", check="gpu-count")
        one = samples.acceptance([samples.verdict(of, lost)])
        self.assertIn('reason="shakedown:gpu-count: 0 GPUs, 8 expected"',
                      slurm_lines.drain_lines(one)[1])
        self.assertIn("n3: 0 GPUs, 8 expected", nagios.line(one)[0])

    def test_grouped_by_reason(self):
        both = samples.acceptance([*failed("n1", "n2").verdicts,
                                   *failed("n5", cause="a hang", check="end").verdicts])
        drained = commands(slurm_lines.drain_lines(both), "scontrol")
        self.assertEqual([(words_[2], words_[4]) for words_ in drained],
                         [("nodename=n[1-2]", "reason=shakedown:soak-products: GPU 5, 3 wrong "
                           "products"), ("nodename=n5", "reason=shakedown:end: GPU 5, a hang")])

    def test_more_reasons_than_one_reads(self):
        many = samples.acceptance([each for i in range(40) for each in
                                   failed(f"n{i}", cause=f"{i} wrong").verdicts])
        drained = commands(slurm_lines.drain_lines(many), "scontrol")
        self.assertEqual([words_[2:] for words_ in drained],
                         [["nodename=n[0-39]", "state=drain", "reason=shakedown:soak-products: see the report"]])

    def test_only_what_failed(self):
        lines = slurm_lines.drain_lines(samples.few())
        self.assertEqual([words_[2] for words_ in commands(lines, "scontrol")], ["nodename=n002"])
        self.assertIn("# Not drained, INCONCLUSIVE: n003; run the acceptance again.", lines)
        self.assertEqual(slurm_lines.drain_lines(samples.clean(3)), [])
        self.assertEqual(lines[0], "# Drain 1 node; nothing was drained.")
        for count, said in [(2, False), (3, True)]:
            first = slurm_lines.drain_lines(failed(*[f"n{i}" for i in range(count)]))[0]
            self.assertEqual("2 nodes per hour" in first, said)

    def test_injected_faults(self):
        acceptance = dataclasses.replace(failed("n1"), settings={"inject_fault": "slow:0"})
        self.assertIn("injected (inject_fault slow:0)", slurm_lines.drain_lines(acceptance)[0])

    def test_nothing_of_a_host_is_run(self):
        """The lines are given to a shell, with functions in place of Slurm's commands."""
        evil = "\"; touch /tmp/x; echo $(id) `id` \\ 'a' ! | & \n\x1b[2J\u202e 83 °C"
        acceptance = samples.acceptance([*failed("n1", cause=evil, check=evil).verdicts,
                                         *failed("n2;id", "-n3", "$(id)").verdicts])
        lines = slurm_lines.drain_lines(acceptance)
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
        lines = slurm_lines.drain_lines(failed("n1", "n3"))
        folder = f"f() {{ :; }}; sinfo() {{ printf '{answer}'; }}\n"
        resume = next(line for line in lines if line.startswith("sinfo"))
        shown = subprocess.run(["bash", "-c", folder + resume.replace("scontrol", "echo scontrol")],
                               capture_output=True, text=True)
        self.assertEqual(shown.stdout, "scontrol update nodename=n3 state=resume\n")


if __name__ == "__main__":
    unittest.main()
