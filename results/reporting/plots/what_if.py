"""The map of the fastest strategies."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .. import words
from ..what_if import models
from ..what_if_tables import WinnerMap
from . import style


def strategy_map(summary):
    """A cell a batch and bandwidth, in the colour of its strategy, paler where that is within the error;
    a panel for each set of links."""
    found = [(model, WinnerMap(summary, model)) for model in models(summary) if model.is_trusted()]
    found = [(model, grid) for model, grid in found if grid.cells]
    if not found:
        return None
    every = [model.conditions for model, _ in found]
    same = words.shared(every)
    heights = [1.15 + 0.6 * len(grid.batches) for _, grid in found]
    widest = max(len(grid.bandwidths) for _, grid in found)
    figure = Figure(figsize=(max(1.5 + 1.35 * widest, 7), sum(heights) + 1), layout="constrained")
    panels = figure.subplots(len(found), 1, squeeze=False, gridspec_kw={
        "height_ratios": [len(grid.batches) for _, grid in found]})
    figure.shared = words.setting(every[0], set(words.parts(every[0])) - same)
    figure.note = "%: images/s compared with the second fastest; pale: within the model's error, or noise"
    for axes, (model, grid) in zip(panels.flat, found):
        title = [words.setting(model.conditions, same) or "links as they are"] * (len(found) > 1)
        missing = [f"not in the model: {words.listed(grid.left_out)}"] if grid.left_out else []
        style.prepare(axes, "; ".join([*title, *model.doubt(summary), *missing]), 110)
        draw(axes, grid, widest)
    return figure


def draw(axes, grid, widest):
    for row, batch in enumerate(grid.batches):
        for column, gbs in enumerate(grid.bandwidths):
            if (batch, gbs) not in grid.cells:
                continue
            strategy, text = grid.cells[batch, gbs]
            strength = 0.4 if text.startswith("within") else 0.8
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=style.colour(strategy),
                                     alpha=strength, edgecolor="white"))
            lines = [strategy, *text.replace("within ", "within\n").split("\n")]
            axes.text(column + 0.5, row + 0.5, "\n".join(lines),
                      ha="center", va="center",
                      fontsize=9, color="white" if strength > 0.5 else "black")
    axes.set_xlim(0, widest)
    axes.set_ylim(0, len(grid.batches))
    axes.set_xticks([i + 0.5 for i in range(len(grid.bandwidths))],
                    [grid.bandwidth_name(gbs).replace(" (", "\n(") for gbs in grid.bandwidths])
    axes.set_yticks([i + 0.5 for i in range(len(grid.batches))], grid.batches)
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xlabel("bandwidth of every rank's link, each way")
    axes.set_ylabel("batch per rank")
