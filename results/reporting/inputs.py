"""What limits the input of a training, and what would cure it."""

from . import words
from .records import number, text

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


def advice(record):
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
