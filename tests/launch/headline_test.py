"""The headline of results/report after a job of launch/mpi: of which record, and when."""

import contextlib
import io
import json
import os
import pathlib
import tempfile
import unittest

import tree  # noqa: F401 - what is imported below is in its folders
from shakedown_launch.mpi import RECORD, Headline, record_of

HEAD = {"kind": "run", "program": "train", "started": "2026-11-21T16:14:04Z", "host": "n1", "hosts": ["n1"]}
STEP = {"kind": "step", "strategy": "ddp", "images_per_s": 1000, "world_size": 2}


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


class AfterAJob(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.record = pathlib.Path(folder.name) / "r.jsonl"

    def shown(self, headline, code=0, written=lines(HEAD, STEP, {"kind": "end", "exit_code": 0})):
        """What is printed after a job that appended this to the record that the programs were to use."""
        path = headline.environment()[RECORD]
        if path:
            with open(path, "a") as file:
                file.write(written)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            headline.show(code)
        return out.getvalue()

    def test_the_record_among_a_programs_words(self):
        for words, path in ((["train"], ""), (["train", "--record", "a"], "a"), (["train", "--record=b", "c"], "b"),
                            (["train", "--record"], ""), (["train", "--record", "a", "--record=b"], "b")):
            self.assertEqual(record_of(words), path)

    def test_what_the_job_appended_is_reported(self):
        self.record.write_text(lines(HEAD, {**STEP, "strategy": "zero1"}, {"kind": "end", "exit_code": 1}))
        text = self.shown(Headline(["bin/train", "--record", str(self.record)]))
        self.assertRegex(text, r"^\nVerdict: PASS\n- Reason: (.|\n)*Fastest: ddp 1,000")
        self.assertTrue(text.endswith(f"report: results/report {self.record}\n"))
        self.assertNotIn("zero1", text)

    def test_a_crash_is_reported_and_a_usage_error_is_not(self):
        for code, verdict in ((137, True), (2, False)):
            headline = Headline(["compare"])
            path = headline.environment()[RECORD]
            text = self.shown(headline, code, lines(HEAD, STEP))
            self.assertEqual("Verdict: INCONCLUSIVE" in text, verdict)
            self.assertNotIn(path, text)
            self.assertFalse(os.path.exists(path))  # without --record it was a temporary file

    def test_a_job_that_ends_before_its_first_step_is_inconclusive_and_says_why(self):
        silent = {"kind": "failure", "check": "no-answer", "ranks": [1], "hosts": ["n2"]}
        for code, written, why in (
                (137, "", "exit code 137; nothing was recorded."),
                (137, lines(HEAD), "exit code 137; job train: crashed: no end record"),
                (4, lines(HEAD, silent), "no answer from rank 1 on n2"),
                (5, lines(HEAD, {"kind": "end", "exit_code": 5, "elapsed_s": 7}), "stopped by a signal after 7 s")):
            said = " ".join(self.shown(Headline(["train"]), code, written).split())
            self.assertIn("Verdict: INCONCLUSIVE - Reason: no step was measured: the job ended with", said)
            self.assertIn(why, said)
        said = " ".join(self.shown(Headline(["train"]), 1, lines(HEAD, {"kind": "end", "exit_code": 1})).split())
        self.assertIn("Verdict: FAIL - Reason: no step was measured: ", said)
        wrong = {"kind": "verdict", "verdict": "FAIL", "scope": "operation", "name": "broadcast", "cause": "wrong"}
        said = self.shown(Headline(["train"]), 1, lines(HEAD, wrong, {"kind": "end", "exit_code": 1}))  # --self-test
        self.assertIn("Verdict: FAIL\n- Reason: operation broadcast: wrong", said)

    def test_a_soak_that_crashes_is_reported_by_what_it_had_found(self):
        head, window = {**HEAD, "program": "soak"}, {"kind": "soak", "window": 0, "phase": "steady probes"}
        wrong = {"kind": "mismatch", "rank": 1, "host": "n2", "where": "core 0"}
        for records, verdict, why in (
                ([head], "INCONCLUSIVE", "no load was measured: the job ended with exit code 137; job soak: crashed: no end record."),
                ([head, window], "INCONCLUSIVE", "job soak: crashed: no end record; what it recorded before (1 record) is used."),
                ([head, {**wrong, "verdict": "INCONCLUSIVE"}, window], "INCONCLUSIVE", "job soak: crashed"),
                ([head, window, wrong], "FAIL", "job soak: wrong data: 1 mismatch, the first on rank 1 of n2; INCONCLUSIVE: job soak: crashed")):
            said = " ".join(self.shown(Headline(["soak"]), 137, lines(*records)).split())
            self.assertIn(f"Verdict: {verdict} - Reason: {why}", said)

    def test_where_nothing_was_trained_only_how_to_report_is_printed(self):
        self.assertEqual(self.shown(Headline(["train"]), written=lines(HEAD, {"kind": "end", "exit_code": 0})),
                         "report: --record FILE keeps what results/report reads\n")
        broken = self.shown(Headline(["train"]), written="oops\n")
        self.assertIn("no headline: ", broken)
        self.assertNotIn("Verdict", broken)

    def test_nothing_is_printed_where_nothing_was_recorded(self):
        self.record.write_text(lines(HEAD, STEP))
        self.assertEqual(self.shown(Headline(["train", "--help-json"]), written=""), "")
        for words in (["train", "--describe"], ["train", "--describe", "--record", str(self.record)]):
            self.assertEqual(self.shown(Headline(words), written=lines(HEAD, {"kind": "end", "exit_code": 0})), "")

    def test_other_programs_and_quiet_have_none(self):
        for headline in (Headline(["all_reduce_perf", "--record", str(self.record)]), Headline(["train"], quiet=True)):
            self.assertEqual(headline.environment(), {RECORD: ""})
            self.assertEqual(self.shown(headline), "")

    def test_a_record_on_another_host_is_named(self):
        self.assertEqual(self.shown(Headline(["train"], "n7")), "")
        headline = Headline(["train", "--record", str(self.record)], "n7")
        self.assertEqual(headline.environment(), {RECORD: str(self.record)})
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            headline.show(0)
        self.assertIn(f"record: n7:{self.record}", out.getvalue())


if __name__ == "__main__":
    unittest.main()
