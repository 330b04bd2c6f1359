"""Throughput, time and learning of the strategies; of a single training its history."""

from .. import colours, words
from ..records import number
from ..tables import fastest_first
from . import style


def throughput(summary):
    """Medians with their intervals; none, where measured, is the bound that a line shows."""
    figure, found = style.comparison_panels(summary, lambda group: fastest_first(m for m in group if m.rate), height=2.6)
    for axes, names, rated in found:
        rates = [measured.rate for measured in rated]
        style.bars(axes, names, [measured.strategy for measured in rated],
                   [rate.median for rate in rates], "images/s, median",
                   [(rate.low, rate.high) for rate in rates])
        for measured in rated:
            if measured.strategy == "none" and "none" in names:
                axes.axvline(measured.rate.median, color=style.colour("none"), linestyle="--",
                             linewidth=1)
    return figure


def training_time(summary):
    def timed(group):
        return sorted((m for m in group if m.histories and m.epoch_s), key=lambda m: m.epoch_s)

    if sum(len(timed(group)) for _, group in summary.groups) < 2:
        return None  # a single figure is in the table
    figure, found = style.comparison_panels(summary, timed, height=2.4)
    for axes, names, measured in found:
        style.bars(axes, names, [m.strategy for m in measured], [m.epoch_s for m in measured],
                   "s per epoch, mean", text=lambda value: f"{words.seconds(value)} s")
    return figure


def curves(summary, keys, unit, scale=1):
    """A line a training; keys: {record key: (line style, what it is)}. Of lines that lie on one
    another all are seen: the first strategies' are wider, and below."""
    def points(history, key):
        drawn = [(epoch["epoch"], scale * number(epoch, key)) for epoch in history
                 if number(epoch, key) is not None]
        return sorted(drawn)

    def with_points(group):
        return [m for m in group if any(points(h, key) for h in m.histories for key in keys)]

    figure, found = style.grouped_panels(summary, with_points, height=3.6)
    for axes, trained in found:
        for over, measured in enumerate(reversed(trained)):
            for i, epochs in enumerate(measured.histories):
                for key, (line, what) in keys.items():
                    drawn = points(epochs, key)
                    if drawn:
                        axes.plot(*zip(*drawn), line, color=style.colour(measured.strategy),
                                  marker=".", linewidth=1.2 + 1.1 * over,
                                  zorder=3 - over / 10,
                                  label=f"{measured.strategy}, {what}" if i == 0 else None)
        style.over_epochs(axes, unit)
    return figure


def loss_curves(summary):
    return curves(summary, {"train_loss": ("-", "training"), "val_loss": ("--", "validation")},
                  "cross-entropy, nats")


def accuracy_curves(summary):
    return curves(summary, {"val_top1": ("-", "validation"), "train_top1": (":", "training")},
                  "top-1 accuracy, %", scale=100)


# ---- --history: curves.png -----------------------------------------------------------------------

HISTORY = [
    ("loss", "cross-entropy, nats", {"train_loss": "training", "val_loss": "validation"}),
    ("top-1 accuracy", "%", {"train_acc": "training", "val_acc": "validation"}),
    ("learning rate", "of the last step", {"learning_rate": None}),
    ("training rate", "images/s", {"images_per_s": None}),
]


def history(lists, folder):
    """Draws what the lists of training_logs.history_of have values of; the path of the file."""
    figure, grid = style.panels([title for title, _, _ in HISTORY], height=2.9)
    for axes, (_, unit, lines) in zip(grid, HISTORY):
        for colour, (key, label) in zip(colours.LINES, lines.items()):
            points = [(epoch, value) for epoch, value in zip(lists["epoch"], lists.get(key, []))
                      if value is not None]
            if points:
                axes.plot(*zip(*points), marker=".", label=label, color=colour)
        style.over_epochs(axes, unit, legend=len(axes.lines) > 1)
    epochs = len(lists["epoch"])
    return style.finish(figure, "Training", f"{words.printable(folder)}, {epochs} epoch{'s' if epochs != 1 else ''}",
                        folder / "curves.png")
