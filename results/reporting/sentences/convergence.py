"""Whether the strategies of a group train alike: accuracies, losses, certificates."""

from itertools import combinations

from .. import words
from ..intervals import accuracy_margin
from ..records import number


def sentences(summary):
    for conditions, group in summary.groups():
        trained = [measured for measured in group if measured.histories]
        said = [f"{measured.strategy} diverged: its loss is not finite in {measured.diverged[0]}."
                for measured in group if measured.diverged]
        said += accuracies(trained)
        said += losses(trained)
        said += [text for measured in group for text in certificates(measured)]
        yield from ((conditions, text) for text in said)


def accuracies(trained):
    """All pairs, best epochs, within what the number of validation images leaves open."""
    best = []
    for measured in trained:
        epochs = sorted(measured.best_epochs, key=lambda epoch: epoch["val_top1"])
        if epochs:
            best.append((measured, epochs[len(epochs) // 2]))
    if len(best) < 2:
        return []
    lengths = {len(history) for measured, _ in best for history in measured.histories}
    said = ["Best validation accuracy: " + words.listed(
        f"{measured.strategy} {words.percent(epoch['val_top1'], 2)} (epoch {epoch['epoch']})"
        for measured, epoch in best) + "."]
    if len(lengths) > 1:
        said.append(f"They were trained for different numbers of epochs "
                    f"({words.listed(str(n) for n in sorted(lengths))}): their accuracies are not "
                    f"compared.")
        return said
    apart = []
    for (first, a), (second, b) in combinations(best, 2):
        if not (number(a, "validated_images") and number(b, "validated_images")):
            return said
        low, high = sorted(((a["val_top1"], first, a), (b["val_top1"], second, b)),
                           key=lambda entry: entry[0])
        margin = accuracy_margin(*((e["val_top1"], e["validated_images"]) for e in (a, b)))
        if high[0] - low[0] > margin:
            apart.append(f"{low[1].strategy} is {points(high[0] - low[0])} below "
                         f"{high[1].strategy}, more than the {points(margin)} that "
                         f"{low[2]['validated_images']:,} validation images leave open (95 %): "
                         f"they do not converge alike.")
    return said + (apart or ["They converge alike: no two differ by more than their validation "
                             "images leave open (95 %, of the images alone)."])


def points(difference):
    return f"{100 * difference:.2f} points"


def losses(trained):
    last = [(measured, [number(history[-1], "train_loss") for history in measured.histories])
            for measured in trained]
    last = [(measured, values) for measured, values in last if None not in values]
    if len(last) < 2:
        return []
    return ["Training loss of the last epoch: " + words.listed(
        f"{measured.strategy} {', '.join(f'{value:.4g}' for value in values)}"
        for measured, values in last) + "."]


def certificates(measured):
    """Failed ones in full; passed ones in short; a waived one says why."""
    kinds = {}
    for certificate in measured.certificates:
        kinds.setdefault(certificate.get("pass"), []).append(certificate)
    if False in kinds:
        worst = max(kinds[False], key=lambda c: number(c, "max_abs_diff") or 0)
        if worst.get("cause"):
            return [f"Certificate FAILED: {measured.strategy}: {worst['cause']}."]
        figures = ""
        if None not in (number(worst, "max_abs_diff"), number(worst, "tolerance")):
            figures = (f", they differ by {worst['max_abs_diff']:.3g} where "
                       f"{worst['tolerance']:.3g} is allowed")
        return [f"Certificate FAILED: {measured.strategy} does not hold the weights of "
                f"{worst.get('reference') or 'its reference'} after a step{figures}."]
    if True in kinds and kinds[True][0].get("reference"):
        diffs = [number(c, "max_abs_diff") for c in kinds[True]]
        diffs = [diff for diff in diffs if diff is not None]
        figures = f" (largest difference {max(diffs):.3g})" if diffs else ""
        return [f"Certificate passed: {measured.strategy} holds the weights of "
                f"{kinds[True][0]['reference']} after each of three steps{figures}."]
    return []
