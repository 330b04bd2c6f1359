"""What the reader must know of the runs: crashes, failures, verdicts, settings that differ."""

import statistics

from .. import words
from ..records import configuration_of, number

# Options that repetitions of one configuration may differ in, or that its identity already names.
IRRELEVANT = {"seed", "record", "save", "epochs", "iterations", "warmup", "certificate", "timeout",
              "trace", "describe", "repeats"}
IDENTITY = {"backend", "model", "image_size", "classes", "precision", "batch_size", "global_batch",
            "accumulate", "strategy", "optimizer", "settings", "data_dir", "train_dir", "val_dir",
            "throttle_gbs", "models", "precisions", "batch_sizes", "ranks", "strategies",
            "bucket_caps"}


def sentences(summary):
    for about in (crashes, cut_lines, failures, without_rate, verdicts, versions, mixed_options,
                  wrong_data, slow_links):
        yield from ((None, text) for text in about(summary))


def crashes(summary):
    for run in summary.runs:
        if run.end is None:
            cut = f", its last line {run.cut_at} is cut off" if run.cut_at else ""
            yield (f"Crashed: {run.name} has no end record{cut}; "
                   f"{words.count(len(run.records), 'record')} it wrote before are used.")


def cut_lines(summary):
    for run in summary.runs:
        if run.end is not None and run.cut_at:
            yield f"Left out: line {run.cut_at} of {run.name}, which is cut off."


def versions(summary):
    for run in summary.runs:
        differing = dict.fromkeys(run.header.get("versions_by_rank") or [])
        if differing:
            yield f"Versions differ between the ranks of {run.name}: {'; '.join(differing)}."


def failures(summary):
    for run in summary.runs:
        if run.end is not None and run.end.get("exit_code") != 0:
            yield f"Failed: {run.name} ended with exit code {run.end.get('exit_code')}."


def without_rate(summary):
    for run in summary.runs:
        lacking = [step for step in run.of("step") if number(step, "images_per_s") is None]
        if lacking:
            yield (f"Left out: {words.count(len(lacking), 'step record')} of {run.name} without "
                   f"images_per_s.")


def verdicts(summary):
    for run in summary.runs:
        for verdict in run.of("verdict"):
            if verdict.get("verdict") != "PASS":
                yield (f"{verdict.get('verdict')}: {verdict.get('scope')} {verdict.get('name')}: "
                       f"{verdict.get('cause')} ({run.name}).")


def mixed_options(summary):
    """Repetitions are put together by identity; options beyond it must not differ unseen."""
    options = {}
    for run in summary.runs:
        settings = {key[len("options."):]: value for key, value in run.header.items()
                    if key.startswith("options.")}
        for configuration in sorted({configuration_of(run, record) for record in run.records
                                     if record["kind"] in ("step", "epoch")}):
            options.setdefault(configuration, []).append(settings)
    differing = {}
    for (conditions, strategy), found in options.items():
        for key in sorted(set().union(*found) - IRRELEVANT - IDENTITY):
            values = sorted({str(settings[key]) for settings in found if key in settings})
            if len(values) > 1:
                name = f"{strategy} ({words.setting(conditions, summary.shared)})"
                differing.setdefault((key, ", ".join(values)), []).append(name)
    for (key, values), names in differing.items():
        more = f" and {len(names) - 1} more configurations" if len(names) > 2 else \
            f" and {names[1]}" if len(names) == 2 else ""
        yield (f"{names[0]}{more}: {'their' if more else 'its'} runs differ in "
               f"--{key.replace('_', '-')} ({values}) and are taken together here.")


def wrong_data(summary):
    for kind in ("collective", "link", "split"):
        for run in summary.runs:
            wrong = [r for r in run.of(kind) if number(r, "wrong_elements")]
            if wrong:
                elements = sum(record["wrong_elements"] for record in wrong)
                yield (f"Wrong data: {words.count(len(wrong), f'{kind} record')} of {run.name} "
                       f"with {elements:.0f} wrong elements.")


def slow_links(summary):
    """The slowest link against the median of its like, per run and kind."""
    for run in summary.runs:
        kinds = {}
        for link in run.of("link"):
            if number(link, "bandwidth_gbs") is not None:
                kinds.setdefault((link.get("direction"), link.get("concurrency")), []).append(link)
        for (direction, concurrency), links in kinds.items():
            slowest = min(links, key=lambda link: link["bandwidth_gbs"])
            median = statistics.median(link["bandwidth_gbs"] for link in links)
            if len(links) > 2:
                yield (f"Links, {direction}, {concurrency}: {slowest.get('from')} to "
                       f"{slowest.get('to')} is slowest at {slowest['bandwidth_gbs']:.4g} GB/s, "
                       f"{words.percent(1 - slowest['bandwidth_gbs'] / median)} below the median "
                       f"of {len(links)} ({median:.4g} GB/s).")
