"""When to choose which strategy: by throughput, memory and accuracy, as measured here."""

from .. import words
from ..intervals import accuracy_margin, told_apart
from ..records import number
from ..summary import ranked

CLOSE = 0.01  # below which a difference needs enough repetitions to be believed
LESS_MEMORY = 0.95  # of the fastest's: what counts as a reason to choose another


def sentences(summary):
    for conditions, group in summary.groups():
        order = ranked(group)
        if conditions.world_size < 2 or len(order) < 2:
            continue
        fit = [measured for measured in order
               if measured.certified is not False and not measured.diverged]
        said = [f"Not {measured.strategy}, "
                f"{'which diverged' if measured.diverged else 'whose certificate failed'}."
                for measured in order if measured not in fit]
        if fit:
            said += [fastest(fit), *memory(fit), *accuracy(fit)]
        yield from ((conditions, text) for text in said)


def fastest(fit):
    equals = [measured.strategy for measured in fit[1:] if tied(fit[0].rate, measured.rate)]
    text = f"For throughput {fit[0].strategy} ({words.rate(fit[0].rate.median)} images/s)"
    if equals:
        text += f", or {words.listed(equals, 'or')}, which these runs do not tell from it"
    if fit[0].certified is None and not fit[0].histories and fit[0].strategy != "all-reduce":
        text += "; no certificate and no training under these conditions show that it learns as " \
                "the others do"
    return text + "."


def tied(fast, slow):
    apart = told_apart(fast, slow)
    return apart is False or apart is None and slow.median > (1 - CLOSE) * fast.median


def memory(fit):
    known = [measured for measured in fit if measured.peak_memory]
    if fit[0] not in known:
        return
    least = min(known, key=lambda measured: measured.peak_memory)
    if least.peak_memory < LESS_MEMORY * fit[0].peak_memory:
        yield (f"Where memory is short {least.strategy}, {words.size(least.peak_memory)} on the "
               f"fullest rank instead of {words.size(fit[0].peak_memory)}, at "
               f"{words.percent(least.rate.median / fit[0].rate.median)} of the images/s.")


def accuracy(fit):
    """Another than the fastest only where its validation accuracy is higher beyond the margin."""
    scored = [(measured, max(measured.best_epochs, key=lambda epoch: epoch["val_top1"]))
              for measured in fit if measured.best_epochs]
    scored = [(m, e) for m, e in scored if number(e, "validated_images")]
    if not scored or scored[0][0] is not fit[0]:
        return
    best, epoch = max(scored, key=lambda entry: entry[1]["val_top1"])
    ours = scored[0][1]
    margin = accuracy_margin(*((e["val_top1"], e["validated_images"]) for e in (epoch, ours)))
    if epoch["val_top1"] - ours["val_top1"] > margin:
        yield (f"For accuracy {best.strategy}, {words.percent(epoch['val_top1'], 2)} against "
               f"{words.percent(ours['val_top1'], 2)}, at "
               f"{words.percent(best.rate.median / fit[0].rate.median)} of the images/s.")
