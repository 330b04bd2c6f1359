"""The sentences of the appendix: what tables cannot show. Each topic yields those of a group, which may be compared
with one another. A sentence is made only where the figures that it names are there, and what it claims is decided by
them."""

from itertools import combinations

from . import soak, verdict, words
from .intervals import accuracy_margin, distinct
from .records import configuration_of, number, text, texts
from .summary import TERMS, ranked
from .trainings import restarts_of

RESIDUAL_MATTERS = 0.02  # of the step, on a GPU, where events leave nothing out

# Options that repetitions of one configuration may differ in, or that its identity already names.
IRRELEVANT = {"seed", "record", "save", "epochs", "iterations", "warmup", "certificate", "timeout",
              "trace", "describe", "repeats", "resume", "checkpoint_dir", "history", "mllog"}
IDENTITY = {"backend", "model", "image_size", "classes", "precision", "batch_size", "global_batch",
            "accumulate", "strategy", "optimizer", "settings", "data_dir", "train_dir", "val_dir",
            "throttle_gbs", "models", "precisions", "batch_sizes", "ranks", "strategies",
            "bucket_caps", "deterministic"}


def sections(summary):
    """[(title, [(heading, sentences)])] of the topics that there is something to say about; a
    heading names conditions, and is empty where there is only one set of them."""
    said = []
    for title, topic in (("Why", why), ("Input", input_limits), ("Convergence", convergence)):
        blocks = {}
        for conditions, group in summary.groups:
            heading = summary.heading(conditions) if len(summary.groups) > 1 else ""
            blocks.setdefault(heading, []).extend(topic(summary, group))
        said.append((title, [block for block in blocks.items() if block[1]]))
    said += [(title, [("", list(topic(summary)))]) for title, topic in (("Soak", soak.sentences), ("Runs", runs))]
    return [part for part in said if any(block[1] for block in part[1])]


def why(summary, group):
    """Why the second is slower than the fastest, and what the figures do not show."""
    order = ranked(group)
    for slow in order[1:2]:
        yield from reasons(order[0], slow)
    for measured in order:
        yield from doubts(summary, measured)


def reasons(fast, slow):
    """Ranks that do not compute; the term that adds most to the step, from both breakdowns."""
    if slow.ranks_computing < fast.ranks_computing:
        yield (f"{slow.ranks_computing} of {slow.strategy}'s ranks compute, "
               f"{fast.ranks_computing} of {fast.strategy}'s.")
    steps = fast.term("step_ms"), slow.term("step_ms")
    if None in steps or steps[1] <= steps[0]:
        return
    more = {key: slow.term(key) - fast.term(key) for key in TERMS
            if None not in (slow.term(key), fast.term(key))}
    key = max(more, key=more.get, default=None)
    if key is not None and more[key] > 0:
        yield (f"The step of {slow.strategy} takes {words.ms(steps[1] - steps[0])} more than that "
               f"of {fast.strategy} ({words.ms(steps[1])} and {words.ms(steps[0])}); {TERMS[key]} "
               f"adds most, {words.ms(slow.term(key))} instead of {words.ms(fast.term(key))}.")


def doubts(summary, measured):
    efficiency = summary.efficiency_vs_none(measured)
    if efficiency is not None and efficiency > 1.001:
        yield (f"{measured.strategy} reaches {words.percent(efficiency)} of none: more than "
               "without exchange, so these runs do not show what the exchange costs.")
    elif summary.bound(measured) and distinct(summary.bound(measured), measured.rate) is False:
        yield (f"{measured.strategy}: its interval and none's overlap, so the cost of the exchange "
               "is not distinguishable from noise.")
    residual, step = measured.term("residual_ms"), measured.term("step_ms")
    if measured.conditions.backend == "gpu" and residual is not None and step and \
            abs(residual) > RESIDUAL_MATTERS * step:
        size = f"{words.ms(abs(residual))} ({words.percent(abs(residual) / step)})"
        yield (f"{measured.strategy}: {size} of its step are in none of the terms of the breakdown."
               if residual > 0 else
               f"{measured.strategy}: the terms of the breakdown add up to {size} more than its step.")


def input_limits(_, group):
    """What limits the input where training waited for it: of each configuration the record that waited longest."""
    for measured in group:
        waited = [record for record in [*measured.steps, *measured.timed_epochs()] if input_advice(record)]
        if waited:
            worst = max(waited, key=lambda record: record["input_stall_ms"] / seconds_of(record))
            yield f"{measured.strategy}: {input_advice(worst)}."


def convergence(_, group):
    """All pairs, best epochs, within what the number of validation images leaves open."""
    best = [(measured, {**measured.best_epochs[-1], "val_top1": measured.best_accuracy})
            for measured in group if measured.best_epochs]
    return accuracies(best) if len(best) > 1 else []


def accuracies(best):
    lengths = {len(history) for measured, _ in best for history in measured.histories}
    if len(lengths) > 1:
        return [f"They were trained for different numbers of epochs "
                f"({words.listed(str(n) for n in sorted(lengths))}): their accuracies are not "
                f"compared."]
    different = []
    for (first, a), (second, b) in combinations(best, 2):
        if not (number(a, "validated_images") and number(b, "validated_images")):
            return []
        low, high = sorted(((a["val_top1"], first, a), (b["val_top1"], second, b)),
                           key=lambda entry: entry[0])
        margin = accuracy_margin(*((e["val_top1"], e["validated_images"]) for e in (a, b)))
        if high[0] - low[0] > margin:
            different.append(f"{low[1].strategy} is {points(high[0] - low[0])} below "
                             f"{high[1].strategy}, more than the {points(margin)} that "
                             f"{low[2]['validated_images']:,} validation images leave open (95 %): "
                             f"they do not converge alike.")
    return different or ["They converge alike: no two differ by more than their validation images "
                     "leave open (95 %, of the images alone)."]


def points(difference):
    return f"{100 * difference:.2f} points"


def runs(summary):
    """What the reader must know of the runs: all that did not pass, warnings, and what is left out."""
    yield from (f"{text}." for text in verdict.merged(
        verdict.of_summary(summary) + verdict.warnings(summary), lambda run: run.name))
    for restarted in restarts_of(summary.runs):
        yield (f"{restarted.run.name} continues what signals stopped: "
               f"{words.listed(run.name for run in restarted.stopped)}.")
    for run in summary.runs:
        if run.end is not None and run.cut_at:
            yield f"Left out: line {run.cut_at} of {run.name}, which is cut off."
        if run.copies:
            yield f"Left out: {words.count(run.copies, 'copy', 'copies')} of {run.name}."
        lacking = [step for step in run.of("step") if number(step, "images_per_s") is None]
        if lacking:
            yield f"Left out: {words.count(len(lacking), 'step record')} of {run.name} without images_per_s."
        differing = dict.fromkeys(texts(run.header, "versions_by_rank"))
        if differing:
            yield f"Versions differ between the ranks of {run.name}: {'; '.join(differing)}."
        causes = {}
        for record in run.of("skipped"):
            causes.setdefault(text(record, "cause"), []).append(
                f"{text(record, 'strategy')} on {words.count(number(record, 'world_size') or 0, 'rank')}")
        yield from (f"Not run in {run.name}: {words.listed(names)}: {cause}." for cause, names in causes.items())
    yield from [*stale(summary), *mixed_options(summary)]


def stale(summary):
    """How old the weights were that gradients of an asynchronous server were computed with."""
    for measured in summary.measured.values():
        for step in measured.steps[-1:]:
            updates = step.get("staleness_updates")
            if isinstance(updates, list) and any(updates):
                yield (f"{summary.named(measured)}: {words.percent(updates[0] / sum(updates), 0)} of the gradients were not stale, the "
                       f"oldest was {words.count(len(updates) - 1, 'update')} old.")


def mixed_options(summary):
    """Repetitions are merged by identity; options beyond it must not differ unseen."""
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
                name = ", ".join(filter(None, (strategy, summary.label(conditions))))
                differing.setdefault((key, ", ".join(values)), []).append(name)
    for (key, values), names in differing.items():
        more = f" and {len(names) - 1} more configurations" if len(names) > 2 else \
            f" and {names[1]}" if len(names) == 2 else ""
        yield (f"{names[0]}{more}: {'their' if more else 'its'} runs differ in "
               f"--{key.replace('_', '-')} ({values}) and are merged here.")


# ---- what limits the input of a training, and what would cure it ---------------------------------

WORTH_NAMING = 0.02  # of the time, waiting
BUSY = 0.5  # of the time: what is less busy limits nothing
STAGES = {"stage_open_ms": "opening files", "stage_read_ms": "reading", "stage_decode_ms": "decoding",
          "stage_augment_ms": "augmentation"}
# Workers per rank that decode as fast as the JPEG engines of an H200 that trains (ResNet-50, fp16, batch 256,
# 500x375 pixels): 8,000 images/s by the engines, 7,700 by 9 workers.
WORKERS_LIKE_ENGINES = 9


def seconds_of(record):
    """Of the epoch, or of the timed window."""
    if record["kind"] == "epoch":
        return number(record, "epoch_s")
    images = [number(record, key) for key in ("iterations", "batch_size", "accumulate", "ranks_computing")]
    if None in images or not number(record, "images_per_s"):
        return None
    iterations, batch, accumulate, ranks = images
    return iterations * batch * accumulate * ranks / record["images_per_s"]


def input_advice(record):
    """A sentence; None where training did not wait, or where the record does not have the stages."""
    seconds, stall = seconds_of(record), number(record, "input_stall_ms")
    workers = number(record, "workers")
    per_image = {name: number(record, key) or 0.0 for key, name in STAGES.items()}
    if not seconds or stall is None or not workers or not any(per_image.values()) or \
            stall <= 1e3 * WORTH_NAMING * seconds:
        return None
    ranks = number(record, "loading_ranks") or number(record, "ranks_computing") or number(record, "world_size") or 1
    of_workers = sum(per_image.values()) / workers
    copy, decode = (number(record, key) or 0.0 for key in ("stage_copy_ms", "stage_device_decode_ms"))
    longest = max(per_image, key=per_image.get)
    waited = f"training waited for data {words.percent(stall / 1e3 / seconds)} of the time; "

    def limit(ms):
        return f"{1e3 * ranks / ms:.0f} images/s"
    busy = max(copy + decode, of_workers) * record["images_per_s"] / 1e3 / ranks
    if busy < BUSY:
        return waited + (f"the workers and copies were busy only {words.percent(busy, 0)} of it, so it was for the "
                         "first batches of an epoch, or for cores that others use")
    if copy + decode > of_workers:
        if copy > decode:
            return waited + (f"copies to the device limit it to {limit(copy + decode)}: check the host link, or use "
                             "smaller images")
        return waited + (f"decoding by {text(record, 'decoder')} limits it to {limit(copy + decode)}: --decoder cpu, or "
                         "more --workers, decodes on the host")
    cure = cure_of_reading(record) if longest in ("opening files", "reading") else cure_of_decoding(record, workers)
    return waited + (f"{longest} limits it ({words.percent(per_image[longest] / of_workers / workers, 0)} of the time "
                     f"of {words.count(workers, 'worker')} per rank, {limit(of_workers)} at most): {cure}")


def cure_of_reading(record):
    if record.get("source") != "pack":
        return "--pack FILE, which --train-dir FILE reads"
    return "a faster file system, or memory for the whole packed file, which cat FILE >/dev/null reads at once"


def cure_of_decoding(record, workers):
    cores = number(record, "cores")
    cure = f"more --workers (a rank may use {words.count(cores, 'core')})" if cores and workers < cores else \
        f"more cores than a rank's {cores}" if cores else "more --workers, or cores"
    if record.get("decoder") == "cpu" and workers < WORKERS_LIKE_ENGINES:
        cure += ", --decoder nvjpeg on a GPU with JPEG engines"
    return cure + " or smaller images"
