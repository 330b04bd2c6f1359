"""Throughput over ranks, with the ideal line and what was predicted, and the map of the fastest strategies."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .. import words
from ..records import number
from ..what_if import models
from ..what_if_tables import WinnerMap
from . import style


def scaling(summary):
    """A panel for what differs in strategy and ranks alone. The ideal line is the throughput of a
    single rank (summary.single), else of a computing rank of the smallest run, times ranks.
    Predictions are drawn of what was not measured, from the largest that was."""
    predicted = {}
    for model in models(summary):
        for (conditions, strategy), record in model.unmeasured(summary):
            if number(record, "images_per_s_predicted"):
                key = conditions._replace(world_size=0, nodes=0)
                predicted.setdefault(key, {}).setdefault(strategy, []).append(
                    (conditions.world_size, record["images_per_s_predicted"]))
    series = {}
    for (conditions, strategy), points in summary.series(least=1).items():
        if len(points) > 1 or strategy in predicted.get(conditions, {}):
            series.setdefault(conditions, {})[strategy] = points
    drawn = sorted({*series, *predicted})
    if not drawn:
        return None
    titles = [words.setting(conditions, without=("world_size", "machine")) for conditions in drawn]
    figure, panels = style.panels(titles, height=4)
    for axes, conditions in zip(panels, drawn):
        draw(axes, summary, conditions, series.get(conditions, {}), predicted.get(conditions, {}))
    return figure


def draw(axes, summary, conditions, series, predicted):
    ranks = sorted({point.conditions.world_size for points in series.values() for point in points} |
                   {at for points in predicted.values() for at, _ in points})
    for strategy, points in series.items():
        axes.plot([p.conditions.world_size for p in points], [p.rate.median for p in points],
                  marker="o", color=style.colour(strategy), label=strategy)
    for strategy, points in predicted.items():
        hue = style.colour(strategy)
        points = sorted(points)
        axes.plot(*zip(*points), linestyle=":", marker="o", markerfacecolor="white", color=hue,
                  label=f"{strategy or 'step'}, predicted")
        for last in series.get(strategy, [])[-1:]:
            axes.plot((last.conditions.world_size, points[0][0]), (last.rate.median, points[0][1]),
                      linestyle=":", color=hue, zorder=1)
    base = ideal_base(summary, conditions, series)
    if base:
        rate, of = base
        ends = [min(ranks), max(ranks)]
        axes.plot(ends, [rate * n for n in ends], "--", color="black", linewidth=1,
                  label=f"ideal: {words.rate(rate)} per rank, {of}")
    if max(ranks) >= 8 * min(ranks):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: words.rate(value))
    else:
        axes.set_ylim(0)
        axes.yaxis.set_major_formatter(style.thousands)
    axes.set_xticks(ranks, [str(n) for n in ranks])
    axes.minorticks_off()
    style.described(axes, "ranks", "images/s, median")


def ideal_base(summary, conditions, series):
    single = summary.single(conditions)
    if single:
        return single.rate.median, f"as {single.strategy} on one"
    if not series:
        return None
    first = min((points[0] for points in series.values()),
                key=lambda point: point.conditions.world_size)
    return (first.rate.median / first.ranks_computing,
            f"as {first.strategy} on {first.conditions.world_size}")


# ---- the map of the fastest strategies -----------------------------------------------------------

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
        draw_map(axes, grid, widest)
    return figure


def draw_map(axes, grid, widest):
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
