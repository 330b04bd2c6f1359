"""What results/report shows of records made by hand: report_cases.txt; run by report_test.py."""

import json
import shutil
import sys

import report_records
from report_records import (breakdown, collective, exchange, header, link_cost, prediction, record, step, training,
                            winner)
from report_support import Report, called
from reporting import text as text_module
from support import TREE

sys.path.insert(0, str(TREE / "tests/support"))
import transcript  # noqa: E402

END = {"kind": "end", "exit_code": 0, "elapsed_s": 1}
CRASHED = {"kind": "crashed"}  # in the place of an end


def ended(code, seconds=1):
    return {"kind": "end", "exit_code": code, "elapsed_s": seconds}


def verdict(outcome, name="a", cause="b", scope="job", **more):
    return {"kind": "verdict", "scope": scope, "name": name, "verdict": outcome, "cause": cause, **more}


def certificate(strategy, passes, difference=0.0, tolerance=0.001, **more):
    return record("certificate", strategy, **{"reference": "all-reduce", "max_abs_diff": difference,
                                              "tolerance": tolerance, "pass": passes, **more})


def part(code, minute, epochs, **options):
    """A run of a training with a checkpoint folder, of 50 s, that ended with this exit code."""
    return [header(started=f"2026-11-21T16:{minute:02}:00Z", **{
        f"options.{name}": value for name, value in {"resume": "auto", "checkpoint_dir": "ck", **options}.items()}),
            *epochs, ended(code, 50)]


def losses(*values, **more):
    """A training of ddp with these losses."""
    return [{**epoch, "train_loss": loss} for epoch, loss in zip(training("ddp", [0.5] * len(values), **more), values)]


def terms(**changes):
    """A breakdown with what overlap is compared with."""
    return breakdown("ddp", **{"compute_ms": 8.0, "exposed_comm_ms": 1.0, "optimizer_ms": 0.5, "interference_ms": 0.5,
                               "residual_ms": 0.0}) | {
        "none_step_ms": 8.5, "comm_alone_ms": 3.0, "serial_step_ms": 12.5, "comm_ms": 4.0, "hidden_comm_ms": 3.0,
        "interference_slowdown": 0.125, "residual": 0.0, **changes}


def throttled(step_ms, measured, gbs, **throttle):
    return [step("ddp", 1000 / step_ms, step_ms_p50=measured, **throttle), breakdown("ddp", compute_ms=step_ms) | throttle,
            *(exchange("ddp", i, step_ms, **throttle) for i in range(2)), link_cost(bandwidth_gbs=gbs),
            prediction("ddp", step_ms, step_ms_measured=measured, **throttle),
            prediction("ddp", step_ms, world_size=8, efficiency_predicted=1 / step_ms, **throttle),
            winner("ddp", gbs, 0.01, **throttle)]


def night(rows, slow=None, more=1):
    """Collectives of five samples, or `more` times five, of which one is slow."""
    times = {False: [10, 11, 12, 11, 10] * more, True: [20, 21, 22, 21, 20] * more}
    return [collective(8 * n, sorted(times[n == slow])[2], samples_us=times[n == slow]) for n in range(1, rows + 1)]


def nights(*rates):
    """A run each."""
    return [[header(), step("ddp", rate, 0.01)] for rate in rates]


# Notes of tables, which report_golden.txt has.
NOTES = ("the round with the median step", "exposed = total", "busbw: the highest", "distinct: from", "More: ",
         "Shakedown: ", "low-high unknown", "MHz, W:", "most exposed: which", "assumes that all links")
AGAINST_NOTES = ("OLD against", "its interval: from", "no interval: the", "efficiency (images/s", "low-high", "a single measure",
                 "OLD: NVIDIA H200, 1 run", "NEW: NVIDIA H200, 1 run", "slower, ", "of 0.1", "two standard deviations")
NAMES = {name: value for of in (vars(report_records), globals()) for name, value in of.items() if name[:1] != "_"}


class Cases(Report):
    def files_of(self, given, side=""):
        """Of one list of records, or of several: each a file."""
        shutil.rmtree(self.folder / "given", ignore_errors=True)
        (self.folder / "given").mkdir()
        several = given if given and isinstance(given[0], list) else [given]
        paths = []
        for at, lines in enumerate(several):
            head = [] if lines and lines[0]["kind"] == "run" else [header()]
            end = [] if lines and lines[-1]["kind"] in ("end", "crashed") else [END]
            paths.append(self.folder / f"given/{at}.jsonl")
            paths[-1].write_text("".join(json.dumps({"run_id": f"2026-id{side}{at}", **line}) + "\n"
                                         for line in (*head, *lines, *end) if line is not CRASHED))
        return paths

    def shown_parts(self, names, pages):
        """The blocks that begin with one of these names; without names all."""
        blocks = [block for page in pages for block in page.strip().replace("\n\n- ", "\n- ").split("\n\n")]
        parts = [next((block for block in blocks if block.startswith(name.replace("_", " "))), f"{name}: nothing")
                 for name in names] or blocks
        lines = [line for part_ in parts for line in part_.splitlines() if line.strip("-=#") and not line.startswith(NOTES)]
        return "\n".join(lines).replace(f"{self.folder}/given/", "")

    def answer(self, given):
        """Of "NAMES | RECORDS", or "against [notes] OPTIONS | RECORDS, RECORDS"."""
        words, _, records = given.partition("|")
        found = eval(f"({records})", dict(NAMES))  # pylint: disable=eval-used
        names = words.split()
        if names[0] != "against":
            content = self.content_of(self.files_of(found))
            return self.shown_parts([] if names == ["all"] else names, text_module.report_text(content))
        folders = []
        for side, given_ in zip(("OLD", "NEW"), found):
            shutil.rmtree(self.folder / side, ignore_errors=True)
            self.files_of(given_, side)
            folders.append((self.folder / "given").rename(self.folder / side))
        notes = names.count("notes")
        shown = called(["--against", *folders, *names[1 + notes:]])
        text = "\n".join(line for line in shown.stdout.splitlines() if line.strip("-=#") and (
            notes or not line.startswith(AGAINST_NOTES)))
        return f"exit code {shown.returncode}\n{text}\n{shown.stderr}".replace(f"{self.folder}/", "")

    def test_cases(self):
        transcript.check(self, TREE / "tests/programs/report_cases.txt", self.answer)
