"""results_<strategy>.json, one file per strategy, and CSV files, for scripts."""

import csv
import json

from .communication_tables import hidden_share
from .records import plain
from .summary import TERMS, median_of

# Of `breakdown` records: the terms, their sum, and what the step is compared with.
BREAKDOWN = [*TERMS, "step_ms", "interference_slowdown", "residual", "none_step_ms",
             "comm_alone_ms", "serial_step_ms"]
FILES = {"ddp": "results_baseline_ddp.json", "all-reduce": "results_all_reduce.json",
         "parameter-server": "results_ps.json"}


def file_name(strategy):
    return FILES.get(strategy) or f"results_{strategy.replace('-', '_')}.json"


def exported(summary, measured):
    """One configuration, flat; a figure that was not measured is null, a list has one value an
    epoch. Accuracies are from 0 to 1."""
    rate = measured.rate
    epochs = measured.histories[-1] if measured.histories else []
    known = measured.communication
    conditions = measured.conditions._asdict()
    strategy, _, named = measured.strategy.partition(" (")  # its cap and options, where other runs have others
    conditions["options"] = ", ".join(filter(None, (named.rstrip(")"), conditions["options"])))
    return {
        "strategy": strategy,
        "bucket_cap_mb": median_of(measured.steps, "bucket_cap_mb"),
        **conditions,
        "ranks_computing": measured.ranks_computing,
        "throughput_images_per_s": rate and rate.mean,
        "throughput_median_images_per_s": rate and rate.median,
        "throughput_low_images_per_s": rate and rate.low,
        "throughput_high_images_per_s": rate and rate.high,
        "throughput_interval": rate and rate.kind,
        "samples": rate and rate.samples,
        "seconds_per_epoch": measured.epoch_s,
        "best_accuracy": measured.best_accuracy,
        "epoch": [epoch["epoch"] for epoch in epochs],
        **{key: [epoch.get(key) for epoch in epochs]
           for key in ("train_loss", "val_loss", "train_top1", "val_top1", "epoch_s")},
        "step_ms": measured.step_ms,
        "communication_ms": known.get("total"),
        "push_ms": known.get("push"),
        "pull_ms": known.get("pull"),
        "exposed_communication_ms": known.get("exposed"),
        "hidden_communication_ms": known.get("hidden"),
        "hidden_share": hidden_share(measured),
        **{f"breakdown.{key}": measured.term(key) for key in BREAKDOWN},
        "efficiency_vs_none": summary.efficiency_vs_none(measured),
        "efficiency_vs_single": summary.efficiency_vs_single(measured),
        "peak_memory_bytes": measured.peak_memory,
        "certificate_passed": measured.certified,
    }


def write_exports(summary, folder):
    """The first configuration (the trained before the only timed, then those without a setting of
    bin/compare, then most ranks) at the top, all others of the strategy in a list, in the same
    form. Returns the paths."""
    strategies = {}
    for measured in summary.measured.values():
        if measured.rate or measured.histories:
            strategies.setdefault(plain(measured.strategy), []).append(measured)
    paths = []
    for strategy, found in strategies.items():
        found.sort(key=lambda measured: (not measured.histories, measured.conditions.setting != "",
                                         -measured.conditions.world_size))
        first, *others = (exported(summary, measured) for measured in found)
        path = folder / file_name(strategy)
        path.write_text(json.dumps({**first, "other_configurations": others}, indent=1) + "\n")
        paths.append(path)
    return paths


def write_rows(path, heads, rows):
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        csv.writer(file).writerows([heads, *rows])


def write_csv(summary, tables, folder):
    """strategies.csv has every configuration with all figures; the other tables as they are, and the records
    that are rows of one."""
    rows = [exported(summary, measured) for measured in summary.measured.values()
            if measured.rate or measured.histories]
    write_tables([table for table in tables if table.name != "strategies"], folder)
    write_records(summary, folder)
    if rows:
        heads = [key for key, value in rows[0].items() if not isinstance(value, list)]
        write_rows(folder / "strategies.csv", heads, [[row[key] for key in heads] for row in rows])


def write_records(summary, folder):
    """A file for each kind of record that is a row of a table, with all its keys; items of a list are
    separated by blanks."""
    def cell(value):
        if isinstance(value, list):
            return " ".join(map(cell, value))
        return value if isinstance(value, str) else "" if value is None else json.dumps(value)
    for kind in ("collective", "link", "metric"):
        rows = [record for run in summary.runs for record in run.of(kind)]
        heads = list(dict.fromkeys(key for row in rows for key in row))
        if rows:
            write_rows(folder / f"records_{kind}.csv", heads, [[cell(row.get(key)) for key in heads] for row in rows])


def write_tables(tables, folder):
    """A file for each kind of table, in which all of its kind stand. A column that is a single figure
    is not rounded, has its unit in the heading, and as a share is a fraction."""
    kinds = {}
    for table in tables:
        kinds.setdefault(table.name, []).append(table)
    for name, found in kinds.items():
        rows = [{"table": table.title, **figures} for table in found for figures in table.figures()]
        heads = list(dict.fromkeys(["table", *(head for row in rows for head in row)]))
        write_rows(folder / f"{name}.csv", heads, [[row.get(head) for head in heads] for row in rows])
