"""What results/report makes of trainings' records: history, MLPerf's log, what limits the input, the tables of
--layers; run by report_test.py."""

import csv
import json

from report_records import header, record, step, training
from report_support import Report, read_runs
from support import TREE
from reporting import findings, layers, training_logs
from reporting.records import UsageError
from reporting.summary import Summary


def run_of(number, epochs, code=0, begin=None, **options):
    """The lines of a run with a checkpoint folder."""
    head = header(started=f"2026-11-21T16:{number:02}:00Z", **{
        "options.resume": "auto", "options.checkpoint_dir": "ck", **options})
    return [head, *([begin] if begin else []), *epochs, {"kind": "end", "exit_code": code, "elapsed_s": 50}]


class OneTraining(Report):
    def runs(self, *runs):
        """All in one file, each with its run_id."""
        path = self.folder / "r.jsonl"
        path.write_text("".join(json.dumps({"run_id": f"id{at}", **line}) + "\n"
                                for at, lines in enumerate(runs) for line in lines))
        return read_runs([path])


class History(OneTraining):
    def epochs(self, *losses, first=1):
        return [{**epoch, "epoch": first + at, "train_loss": loss, "train_top1": 0.25, "total_s": 60,
                 "peak_memory_bytes": [5, 7]} for at, (loss, epoch) in enumerate(zip(losses, training("ddp", [0.5] * len(losses))))]

    def test_a_resumed_training_has_each_epoch_once(self):
        stopped = run_of(0, self.epochs(4, 3, None), code=5)
        found = training_logs.history_of(self.runs(stopped, run_of(1, self.epochs(2.5, 2, first=2))))
        self.assertEqual((found["epoch"], found["train_loss"]), ([1, 2, 3], [4, 2.5, 2]))
        self.assertEqual((found["train_acc"][0], found["val_acc"][0], found["epoch_time"][0], found["peak_memory_bytes"][0],
                          found["val_acc_top5"][0]), (25, 50, 60, 7, None))
        self.assertEqual(training_logs.history_of(self.runs(stopped))["train_loss"], [4, 3, None])
        old = self.runs(run_of(0, training("ddp", [0.5])))  # before 0.3: of training alone
        self.assertEqual(training_logs.history_of(old)["epoch_time"], [50])

    def test_files(self):
        self.runs(run_of(0, self.epochs(4, None)))
        self.with_plots("--history", self.folder / "r.jsonl")
        self.assertEqual(json.loads((self.out / "training_history.json").read_text())["train_loss"], [4, None])
        with (self.out / "training_history.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([(row["epoch"], row["train_loss"], row["val_loss"]) for row in rows],
                         [("1", "4", "2.5"), ("2", "", "1.25")])
        self.assertGreater((self.out / "curves.png").stat().st_size, 5_000)

    def test_what_is_no_training_is_refused(self):
        for records, found in (([step("ddp", 1)], "no `epoch` records"), (training("ddp", [0.5]), "")):
            paths = [self.write(f"{at}.jsonl", *records) for at in range(2)]
            for option in ("--history", "--mllog"):
                shown = self.report(option, *paths, "--output", self.out, code=2).stderr
                self.assertIn(f"{option}: needs the record of one training", shown)
                self.assertIn(found or "2 trainings", shown)


BENCHMARK = {"train_images": 1281167, "val_images": 50000, "updates_per_epoch": 392, "ranks_computing": 8,
             "warmup_epochs": 2, "end_learning_rate": 1e-4, "init_start_ms": 1_000, "init_stop_ms": 121_000}
OPTIONS = {"options.epochs": 37, "options.schedule": "polynomial", "options.lr_power": 2.0, "options.learning_rate": 10.5,
           "options.weight_decay": 5e-5, "options.momentum": 0.9, "options.seed": 3}


class MlLog(OneTraining):
    def begin(self, optimizer="lars", **changes):
        return record("training", "ddp", **{"batch_size": 408, "world_size": 8, "optimizer": optimizer, **BENCHMARK,
                                            **changes})

    def epochs(self, *accuracies, first=1):
        return [{**epoch, "epoch": n, "start_ms": 1_000_000 * n, "trained_ms": 1_000_000 * n + 1_000,
                 "end_ms": 1_000_000 * n + 1_500} for n, epoch in enumerate(training("ddp", accuracies), first)]

    def log(self, *runs):
        """[(key, value, time_ms, metadata)]."""
        lines = training_logs.lines_of(self.runs(*runs))
        self.assertTrue(all(line.startswith(":::MLLOG {") for line in lines))
        return [(line["key"], line["value"], line["time_ms"], line["metadata"])
                for line in (json.loads(text[9:]) for text in lines)]

    def test_a_run_that_reaches_the_target_has_the_keys_of_the_closed_division(self):
        for optimizer, more in (("lars", ["lars_epsilon", "lars_opt_learning_rate_warmup_epochs"]),
                                ("sgd", ["opt_learning_rate_warmup_epochs"])):
            lines = self.log(run_of(0, self.epochs(0.5, 0.7591, 0.77), begin=self.begin(optimizer), **OPTIONS))
            keys = [key for key, *_ in lines]
            for key in ("cache_clear", "init_start", "init_stop", "run_start", "run_stop", "submission_benchmark",
                        "submission_org", "submission_status", "submission_platform", "train_samples", "eval_samples",
                        "gradient_accumulation_steps", "model_bn_span", "seed", "opt_name", *more,
                        *(f"{optimizer}_opt_{name}" for name in (
                            "base_learning_rate", "end_learning_rate", "weight_decay", "momentum",
                            "learning_rate_decay_poly_power", "learning_rate_decay_steps"))):
                self.assertEqual(keys.count(key), 1, key)
            values = {key: value for key, value, *_ in lines}
            self.assertEqual((values["submission_division"], values["global_batch_size"], values["seed"],
                              values[f"{optimizer}_opt_learning_rate_decay_steps"]), ("closed", 3264, 3, 35 * 392))
            self.assertEqual(keys.count("eval_accuracy"), 2)  # the benchmark has ended
            self.assertEqual((lines[-1][0], lines[-1][3]), ("run_stop", {"status": "success", "epoch_num": 2}))
            times = {key: time for key, _, time, _ in reversed(lines)}
            self.assertEqual((times["init_stop"] - times["init_start"], times["epoch_stop"] - times["epoch_start"],
                              times["eval_stop"] - times["eval_start"]), (120_000, 1_000, 500))

    def test_another_network_data_or_schedule_is_of_the_open_division(self):
        self.assertEqual(training_logs.division_of(self.begin("sgd"), True), "closed")
        for changes, polynomial in (({"model": "resnet18"}, True), ({"train_images": 1000}, True),
                                    ({"optimizer": "adam"}, True), ({}, False)):
            self.assertEqual(training_logs.division_of(self.begin(**changes), polynomial), "open")

    def test_runs_that_continue_are_one_log_which_ends_as_aborted(self):
        def part(number, epochs, code=5):
            return run_of(number, epochs, code, self.begin(init_start_ms=1_000 + number), **OPTIONS)
        runs = [part(0, self.epochs(0.5, 0.6, 0.61)), part(1, self.epochs(0.62, 0.63, first=3)),
                part(2, self.epochs(0.64, first=4), code=0)]
        lines = self.log(*runs)
        self.assertEqual([value for key, value, *_ in lines if key == "eval_accuracy"], [0.5, 0.6, 0.62, 0.64])
        for key in ("init_start", "run_start", "run_stop"):
            self.assertEqual([each[0] for each in lines].count(key), 1)
        self.assertEqual(lines[0][2], 1_000)  # the first run's
        self.assertEqual(lines[-1][3], {"status": "aborted", "epoch_num": 4})
        self.assertGreaterEqual(lines[-1][2], lines[-2][2])

    def test_what_lacks_times_or_validation_is_refused(self):
        lacking = [{**self.epochs(0.5)[0], "val_top1": None}]
        for runs, cause in ((run_of(0, self.epochs(0.5)), "no `training` record"),
                            (run_of(0, lacking, begin=self.begin()), "epoch 1 has no")):
            with self.assertRaisesRegex(UsageError, cause):
                training_logs.lines_of(self.runs(runs))

    def test_the_file(self):
        self.runs(run_of(0, self.epochs(0.5), begin=self.begin(), **OPTIONS))
        self.report("--mllog", self.folder / "r.jsonl", "--output", self.out)
        self.assertEqual((self.out / "mllog.txt").read_text().splitlines(),
                         training_logs.lines_of(read_runs([self.folder / "r.jsonl"])))


class Input(Report):
    def advice(self, stall_s, seconds, workers=4, ranks=1, images=1000, **figures):
        return findings.input_advice(training("ddp", [0.5])[0] | {
            "images_per_s": images / seconds, "epoch_s": seconds, "input_stall_ms": 1e3 * stall_s, "workers": workers,
            "cores": 16, "loading_ranks": ranks, "decoder": "cpu", "source": "folder",
            "stage_open_ms": 0.01, "stage_read_ms": 0.09, "stage_decode_ms": 1.2, "stage_augment_ms": 0.3,
            "stage_copy_ms": 0.02, **figures})

    def test_the_stage_that_limits_and_a_cure(self):
        self.assertIsNone(self.advice(0.3, 20))  # 1.5 % of the time
        self.assertRegex(self.advice(0.3, 1), "busy only 40 % of it.*first batches")
        self.assertRegex(self.advice(0.3, 0.5), r"waited for data 60\.0 % of the time; decoding limits it \(75 % .*2500 "
                         r"images/s.*more --workers \(a rank may use 16 cores\), --decoder nvjpeg")
        many = self.advice(0.3, 0.05, workers=16, ranks=2)
        self.assertRegex(many, "20000 images/s.*more cores than a rank's 16 or smaller images")
        for source, cure in (("folder", "--pack FILE"), ("pack", "a faster file system")):
            said = self.advice(0.3, 0.25, workers=16, stage_open_ms=2, source=source)
            self.assertRegex(said, f"opening files limits.*at most\\): {cure}")
        engines = {"decoder": "nvjpeg", "stage_device_decode_ms": 0.5, "workers": 16}
        self.assertRegex(self.advice(0.3, 0.5, **engines), "decoding by nvjpeg limits it to 1923 images/s")
        self.assertIn("copies to the device limit it", self.advice(0.3, 0.5, **engines, stage_copy_ms=0.6))

    def test_it_is_in_the_appendix(self):
        timed = step("ddp", 100, iterations=10, batch_size=64, input_stall_ms=12_800, workers=1, stage_decode_ms=10)
        self.assertIn("waited for data 50.0 %", str(dict(self.content(timed).sections)["Input"]))
        self.assertNotIn("Input", dict(self.content(step("ddp", 1000)).sections))


class Layers(Report):
    def test_the_tables_add_up_to_the_same_step(self):
        summary = Summary(read_runs([TREE / "results/0.2/h200/layers-64.jsonl"]))
        of_layers, kernels, sizes = layers.tables(summary)
        self.assertEqual([of_layers.values[0][0], of_layers.values[-1][0]], ["conv1", "sum"])
        total = of_layers.values[-1][1]
        self.assertAlmostEqual(total, sum(row[1] for row in of_layers.values[:-1]))
        self.assertAlmostEqual(total, sum(row[2] for row in kernels.values), 6)
        self.assertEqual(len({row[0] for row in kernels.values}), len(kernels.values))
        for table in (kernels, sizes):
            times = [row[table.columns.index("ms")] for row in table.values]
            self.assertEqual(times, sorted(times, reverse=True))
        self.assertEqual(sizes.notes[-3:], [
            "step: 7.296 ms without the log, 8.107 ms with it: events between 418 calls cost 0.811 ms (11.1 %)",
            "calls: 8.046 ms, 110.3 % of the step without the log; the rest of the step with it, 0.061 ms",
            "roof: 4.752 ms, 59.1 % of the calls' time"])

