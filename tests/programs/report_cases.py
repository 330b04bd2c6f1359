"""What results/report shows of records made by hand: report_cases.txt; run by report_test.py."""

import json
import shutil

import report_records
from report_records import (breakdown, collective, exchange, header, link_cost, prediction, record, step, training,
                            winner)
from report_support import Report, called, read_runs
from reporting import findings, text as text_module, training_logs
from reporting.records import UsageError
from support import TREE
import transcript  # support says where it is


END = {"kind": "end", "exit_code": 0, "elapsed_s": 1}
CRASHED = {"kind": "crashed"}  # in the place of an end


def ended(code, seconds=1):
    return {"kind": "end", "exit_code": code, "elapsed_s": seconds}


def verdict(outcome, name="a", cause="b", scope="job", **more):
    return {"kind": "verdict", "scope": scope, "name": name, "verdict": outcome, "cause": cause, **more}


def certificate(strategy, passes, difference=0.0, tolerance=0.001, **more):
    return record("certificate", strategy, **{"reference": "all-reduce", "max_abs_diff": difference,
                                              "tolerance": tolerance, "pass": passes, **more})


def part(code, minute, lines, **options):
    """A run of a training with a checkpoint folder, of 50 s, that ended with this exit code."""
    return [header(started=f"2026-11-21T16:{minute:02}:00Z", **{
        f"options.{name}": value for name, value in {"resume": "auto", "checkpoint_dir": "ck", **options}.items()}),
            *lines, ended(code, 50)]


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


def night(rows, slow=(), more=1):
    """Collectives of five samples, or `more` times five, of which some are slow."""
    times = {False: [10, 11, 12, 11, 10] * more, True: [20, 21, 22, 21, 20] * more}
    return [collective(8 * n, sorted(times[n in slow])[2], samples_us=times[n in slow]) for n in range(1, rows + 1)]


def nights(*rates):
    """A run each."""
    return [[header(), step("ddp", rate, 0.01)] for rate in rates]


# Notes of tables, which report_golden.txt has.
NOTES = ("the round with the median step", "exposed = total", "busbw: the highest", "distinct: from", "More: ",
         "Shakedown: ", "low-high unknown", "MHz, W:", "medians over the rounds", "assumes that all links")
AGAINST_NOTES = ("OLD against", "its interval: from", "no interval: the", "efficiency (images/s", "low-high", "a single measure",
                 "OLD: NVIDIA H200, 1 run", "NEW: NVIDIA H200, 1 run", "slower, ", "of 0.1", "two standard deviations")


def begin(optimizer="lars", **changes):
    """The `training` record of MLPerf's benchmark."""
    return record("training", "ddp", **{
        "batch_size": 408, "world_size": 8, "optimizer": optimizer, "train_images": 1281167, "val_images": 50000,
        "updates_per_epoch": 392, "ranks_computing": 8, "warmup_epochs": 2, "end_learning_rate": 1e-4,
        "init_start_ms": 1_000, "init_stop_ms": 121_000, **changes})


def benchmark(code, minute, epochs, **changes):
    """A run of a training by its rules."""
    head, *lines = part(code, minute, epochs, epochs=37, schedule="polynomial", lr_power=2.0, learning_rate=10.5,
                        weight_decay=5e-5, momentum=0.9, seed=3)
    return [head, begin(**changes), *lines]


def timed(*accuracies, first=1, **figures):
    """Epochs as 0.3 records them."""
    return [{**epoch, "epoch": n, "start_ms": 1_000_000 * n, "trained_ms": 1_000_000 * n + 1_000,
             "end_ms": 1_000_000 * n + 1_500, "total_s": 60, "train_top1": 0.25, "peak_memory_bytes": [5, 7], **figures}
            for n, epoch in enumerate(training("ddp", accuracies), first)]


def stalled(stall_s, seconds, workers=4, ranks=1, **figures):
    """An epoch of 1,000 images that waited for its input."""
    return training("ddp", [0.5])[0] | {
        "images_per_s": 1000 / seconds, "epoch_s": seconds, "input_stall_ms": 1e3 * stall_s, "workers": workers, "cores": 16,
        "loading_ranks": ranks, "decoder": "cpu", "source": "folder", "stage_open_ms": 0.01, "stage_read_ms": 0.09,
        "stage_decode_ms": 1.2, "stage_augment_ms": 0.3, "stage_copy_ms": 0.02, **figures}


def job(run_id, rate, end=END, gpu="NVIDIA H200", **figures):
    """The lines of a run with this id."""
    return [{**line, "run_id": run_id} for line in (header(gpu=gpu), step("ddp", rate, **figures), end)]


def runs_with(option, *values, **figures):
    """A run of ddp and none with each value of an option."""
    return [[header(**{f"options.{option}": value}), step("ddp", 1000 + at, bucket_cap_mb=25, **figures),
             step("none", 2000, **figures)] for at, value in enumerate(values)]


def soaked(**numbers):
    """A soak of two GPUs."""
    return [{"kind": "soak_summary", "backend": "gpu", "world_size": 2, "energy_j": None, "products": 2.1e6,
             "products_self_compared": 0, **numbers}, verdict("PASS", "soak", "its own words")]


VISIT = ["from", "to", "forward_gbs", "backward_gbs", "both_gbs", "latency_us"]
PROVED = {"gpu_hours": 0.25, "wrong": 0, "probes": 700, "memory_bytes": 9.8e15, "copied_bytes": 0, "link_bytes": 1.2e15}
NAMES = {name: value for of in (vars(report_records), globals()) for name, value in of.items() if name[:1] != "_"}


def log_of(runs, *keys):
    """MLPerf's, without what all of its lines have: those of keys with these words."""
    lines = [json.loads(line.removeprefix(":::MLLOG ")) for line in training_logs.lines_of(runs)]
    return "\n".join(f"{line['time_ms']} {line['key']}: {line['value']} {line['metadata'] or ''}" for line in lines
                     if not keys or any(key in line["key"] for key in keys))


LOGS = {"history": lambda runs: "\n".join(f"{key}: {values}" for key, values in training_logs.history_of(runs).items() if any(values)),
        "mllog": log_of}


class Cases(Report):
    def files_of(self, given, side=""):
        """Of one list of records, or of several: each a file. A text is a line as it stands; after it no end is written."""
        shutil.rmtree(self.folder / "given", ignore_errors=True)
        (self.folder / "given").mkdir()
        several = given if given and isinstance(given[0], list) else [given]
        paths = []
        for at, lines in enumerate(several):
            kinds = [line["kind"] if isinstance(line, dict) else "text" for line in lines] or [""]
            head, end = [header()] * (kinds[0] != "run"), [END] * (kinds[-1] not in ("end", "crashed", "text"))
            paths.append(self.folder / f"given/{at}.jsonl")
            paths[-1].write_text("\n".join(
                line if isinstance(line, str) else json.dumps({"run_id": f"2026-id{side}{at}", **line})
                for line in (*head, *lines, *end) if line is not CRASHED) + "\n")
        return paths

    def shown_parts(self, names, pages):
        """The blocks that begin with one of these names; without names all."""
        blocks = [block for page in pages for block in page.strip().replace("\n\n- ", "\n- ").split("\n\n")]
        parts = [next((block for block in blocks if block.startswith(name.replace("_", " "))), f"{name}: nothing")
                 for name in names] or blocks
        lines = [line for part_ in parts for line in part_.splitlines() if line.strip("-=#") and not line.startswith(NOTES)]
        return "\n".join(lines).replace(f"{self.folder}/given/", "")

    def written(self, kind, *stems, records):
        """The files of a kind with these names, or all of the kind."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.report(*self.files_of(records), "--output", self.out, *["--csv"] * (kind == "csv"))
        found = {path.name: path.read_text().replace(str(self.folder), "FOLDER") for path in sorted(self.out.glob(f"*.{kind}"))
                 if not stems or path.stem in stems}
        if kind == "json":  # but what is null, or of every strategy
            found = {name: "\n".join(f"{key}: {json.dumps(value)}" for key, value in json.loads(text).items()
                                     if value not in (None, [], "") and key not in report_records.IDENTITY)
                     for name, text in found.items()}
        return "\n".join(f"{name}\n{text}" for name, text in found.items())

    def answer(self, given):
        """Of "NAMES | RECORDS", "csv FILES | RECORDS", "json FILES | RECORDS", or "against [notes] OPTIONS | RECORDS, RECORDS"."""
        words, _, records = given.partition("|")
        found = eval(f"({records})", dict(NAMES))  # pylint: disable=eval-used
        names = words.split()
        if names[0] == "input":
            return findings.input_advice(found) or "nothing"
        if names[0] == "refused":
            (self.folder / "bad.jsonl").write_bytes(found if isinstance(found, bytes) else found.encode())
            return self.report(self.folder / "bad.jsonl", "--output", self.out, code=2).stderr.replace(f"{self.folder}/", "")
        if names[0] in ("csv", "json"):
            return self.written(*names, records=found)
        if names[0] in LOGS:
            try:
                return LOGS[names[0]](read_runs(self.files_of(found)), *names[1:])
            except UsageError as error:
                return f"refused: {error}"
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
        for file in ("report_cases.txt", "report_records.txt"):
            transcript.check(self, TREE / "tests/programs" / file, self.answer)
