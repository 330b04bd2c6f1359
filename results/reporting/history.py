"""--history: a training's epochs as scripts of other projects read them: training_history.json, a list per
quantity, and training_history.csv, a line per epoch. Accuracies are percentages, as PyTorch's example scripts have
them."""

import json

from .exports import write_rows
from .records import number
from .summary import highest
from .trainings import only_training


def percentage(record, key):
    value = number(record, key)
    return None if value is None else 100 * value


def total_s(record):
    """With validation; records before 0.3 have the time of training alone."""
    return number(record, "total_s") if "total_s" in record else number(record, "epoch_s")


QUANTITIES = {  # in the order of the columns
    "epoch": lambda record: record["epoch"],
    "train_loss": lambda record: number(record, "train_loss"),
    "train_acc": lambda record: percentage(record, "train_top1"),
    "val_loss": lambda record: number(record, "val_loss"),
    "val_acc": lambda record: percentage(record, "val_top1"),
    "val_acc_top5": lambda record: percentage(record, "val_top5"),
    "learning_rate": lambda record: number(record, "learning_rate"),
    "images_per_s": lambda record: number(record, "images_per_s"),
    "input_stall_ms": lambda record: number(record, "input_stall_ms"),
    "epoch_time": total_s,
    "peak_memory_bytes": lambda record: highest(record, "peak_memory_bytes"),
}


def history_of(runs):
    """{quantity: a value per epoch}."""
    epochs = only_training(runs, "--history").epochs
    return {key: [of(epoch) for epoch in epochs] for key, of in QUANTITIES.items()}


def write(history, folder):
    path = folder / "training_history.json"
    path.write_text(json.dumps(history, indent=1) + "\n", encoding="utf-8")
    write_rows(folder / "training_history.csv", list(history), zip(*history.values()))
    return path
