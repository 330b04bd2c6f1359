"""A training for scripts. --history: its epochs as those of other projects read them, training_history.json, a list per
quantity, and training_history.csv, a line per epoch. Accuracies are percentages, as PyTorch's example scripts have them.

--mllog: a training as MLPerf's log lines (training rules 4.0.0, benchmark resnet), which MLCommons' compliance
checker reads. The benchmark ends with the first validation that reaches its target; a training that does not reach
it ends as aborted. Runs that continue one another are one log: the checker accepts one start and one end."""

import json

from .exports import write_rows
from .records import UsageError, number, text
from .summary import highest
from .trainings import ended_at, only_training

TARGET_TOP1 = 0.7590
IMAGENET = (1281167, 50000)  # images of training, of validation
START, END, POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"
NEEDED = ("start_ms", "trained_ms", "end_ms", "val_top1")


def lines_of(runs):
    """The lines of the log."""
    training = only_training(runs, "--mllog")
    begins = [begin for run in training.runs for begin in run.of("training")[:1]]
    epochs = training.epochs
    lacking = [epoch["epoch"] for epoch in epochs if any(number(epoch, key) is None for key in NEEDED)]
    if not begins or lacking:
        raise UsageError("--mllog: needs a training with validation, recorded by version 0.3 or newer: " + (
            f"epoch {lacking[0]} has no {' or no '.join(NEEDED)}" if begins else "there is no `training` record"))
    first, log = begins[0], Log()
    log.add(POINT, "cache_clear", False, first["init_start_ms"])  # the page cache is left as it was
    log.add(START, "init_start", None, first["init_start_ms"])
    for key, value in facts(training.runs[0], first).items():
        log.add(POINT, key, value, first["init_stop_ms"])
    log.add(END, "init_stop", None, first["init_stop_ms"])
    log.add(START, "run_start", None, first["init_stop_ms"])
    for epoch in epochs:
        log.add_epoch(epoch)
        if epoch["val_top1"] >= TARGET_TOP1:
            log.stop("success", epoch["epoch"], epoch["end_ms"])
            return log.lines
    ended = max((seconds for run in training.runs if run.end and (seconds := ended_at(run))), default=None)
    last = epochs[-1] if epochs else {"epoch": 0, "end_ms": first["init_stop_ms"]}
    log.stop("aborted", last["epoch"], max(last["end_ms"], round(1e3 * ended) if ended else 0))
    return log.lines


class Log:
    def __init__(self):
        self.lines = []

    def add(self, event, key, value, time_ms, **metadata):
        self.lines.append(":::MLLOG " + json.dumps({"namespace": "", "time_ms": time_ms, "event_type": event,
                                                    "key": key, "value": value, "metadata": metadata}))

    def add_epoch(self, epoch):
        n, begin, trained, end = (epoch[key] for key in ("epoch", "start_ms", "trained_ms", "end_ms"))
        block = {"first_epoch_num": n, "epoch_count": 1}
        self.add(START, "block_start", None, begin, **block)
        self.add(START, "epoch_start", None, begin, epoch_num=n)
        self.add(END, "epoch_stop", None, trained, epoch_num=n)
        self.add(START, "eval_start", None, trained, epoch_num=n)
        self.add(POINT, "eval_accuracy", epoch["val_top1"], end, epoch_num=n)
        self.add(END, "eval_stop", None, end, epoch_num=n)
        self.add(END, "block_stop", None, end, **block)

    def stop(self, status, epoch, time_ms):
        self.add(END, "run_stop", None, time_ms, status=status, epoch_num=epoch)


def facts(run, begin):
    """{key: value} that the log states about the training."""
    def option(name):
        return run.header.get(f"options.{name}")
    optimizer, batch, accumulate = text(begin, "optimizer"), begin.get("batch_size"), begin.get("accumulate", 1)
    has_momentum = optimizer in ("sgd", "lars")
    polynomial = option("schedule") == "polynomial"
    updates, warmup = begin["updates_per_epoch"], begin["warmup_epochs"]
    of_optimizer = {
        "base_learning_rate": option("learning_rate"), "end_learning_rate": begin["end_learning_rate"],
        "weight_decay": option("weight_decay"),
        "learning_rate_decay_steps": round(((option("epochs") or 0) - warmup) * updates),
        **({"learning_rate_decay_poly_power": option("lr_power")} if polynomial else {}),
        **({"momentum": option("momentum")} if has_momentum else {})}
    stated = {
        "submission_benchmark": "resnet", "submission_division": division_of(begin, polynomial),
        "submission_org": "none",  # the log is no submission
        "submission_status": "research", "submission_platform": f"{begin['world_size']} x {run.device}",
        "seed": option("seed"), "train_samples": begin["train_images"], "eval_samples": begin["val_images"],
        "global_batch_size": batch * accumulate * begin["ranks_computing"],
        "gradient_accumulation_steps": accumulate, "model_bn_span": batch, "opt_name": optimizer,
        **{f"{optimizer}_opt_{key}": value for key, value in of_optimizer.items()}}
    if optimizer == "lars":
        return {**stated, "lars_opt_learning_rate_warmup_epochs": warmup, "lars_epsilon": 0.0}
    return {**stated, "opt_learning_rate_warmup_epochs": warmup}


def division_of(begin, polynomial):
    """Closed where the settings are those of the benchmark on ImageNet, so that the checker applies its rules."""
    benchmark = (begin.get("model"), begin.get("classes"), begin.get("image_size"), begin["train_images"],
                 begin["val_images"]) == ("resnet50", 1000, 224, *IMAGENET)
    return "closed" if benchmark and polynomial and begin.get("optimizer") in ("sgd", "lars") else "open"


# ---- --history -----------------------------------------------------------------------------------

AS_RECORDED = ("learning_rate", "images_per_s", "input_stall_ms")


def row_of(epoch):
    """{quantity: its value}, in the order of the columns. The time is that with validation; records before 0.3 have the
    time of training alone."""
    def percentage(key):
        return None if number(epoch, key) is None else 100 * epoch[key]
    return {"epoch": epoch["epoch"], "train_loss": number(epoch, "train_loss"), "train_acc": percentage("train_top1"),
            "val_loss": number(epoch, "val_loss"), "val_acc": percentage("val_top1"), "val_acc_top5": percentage("val_top5"),
            **{key: number(epoch, key) for key in AS_RECORDED},
            "epoch_time": number(epoch, "total_s" if "total_s" in epoch else "epoch_s"),
            "peak_memory_bytes": highest(epoch, "peak_memory_bytes")}


def history_of(runs):
    """{quantity: a value per epoch}. A training has an epoch."""
    rows = list(map(row_of, only_training(runs, "--history").epochs))
    return {key: [row[key] for row in rows] for key in rows[0]}


def write_history(history, folder):
    path = folder / "training_history.json"
    path.write_text(json.dumps(history, indent=1) + "\n", encoding="utf-8")
    write_rows(folder / "training_history.csv", list(history), zip(*history.values()))
    return path
