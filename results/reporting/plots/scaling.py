"""Throughput over ranks, with the ideal line and what was predicted."""

from .. import words
from ..records import number
from ..what_if import models
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
