"""curves.png: one training over its epochs."""

from .. import colours, words
from . import style

PANELS = [
    ("loss", "cross-entropy, nats", {"train_loss": "training", "val_loss": "validation"}),
    ("top-1 accuracy", "%", {"train_acc": "training", "val_acc": "validation"}),
    ("learning rate", "of the last step", {"learning_rate": None}),
    ("training rate", "images/s", {"images_per_s": None}),
]


def draw(lists, folder):
    """Draws what the lists of history.read have values of; the path of the file."""
    figure, grid = style.panels([title for title, _, _ in PANELS], height=2.9)
    for axes, (_, unit, lines) in zip(grid, PANELS):
        for colour, (key, label) in zip(colours.LINES, lines.items()):
            points = [(epoch, value) for epoch, value in zip(lists["epoch"], lists.get(key, []))
                      if value is not None]
            if points:
                axes.plot(*zip(*points), marker=".", label=label, color=colour)
        style.over_epochs(axes, unit, legend=len(axes.lines) > 1)
    epochs = len(lists["epoch"])
    return style.finish(figure, "Training", f"{words.printable(folder)}, {epochs} epoch{'s' if epochs != 1 else ''}",
                        folder / "curves.png")
