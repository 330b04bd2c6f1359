"""Throughput over ranks, with the ideal line and what was predicted."""

from .. import words
from ..records import number
from . import style


def scaling(summary):
    """A panel for what differs in strategy and ranks alone. The ideal line is the throughput of a
    single rank (summary.single), else of a computing rank of the smallest run, times ranks."""
    series = {}
    for (conditions, strategy), points in summary.series().items():
        series.setdefault(conditions, {})[strategy] = points
    predicted = {}
    for (conditions, strategy), record in summary.predictions:
        if number(record, "images_per_s_predicted"):
            key = conditions._replace(world_size=0, nodes=0)
            predicted.setdefault(key, {}).setdefault(strategy, []).append(
                (conditions.world_size, record["images_per_s_predicted"]))
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
        axes.plot(*zip(*sorted(points)), linestyle=":", marker="o", markerfacecolor="white",
                  color=style.colour(strategy), label=f"{strategy or 'step'}, predicted")
    base = ideal_base(summary, conditions, series)
    if base:
        rate, of = base
        ends = [min(ranks), max(ranks)]
        axes.plot(ends, [rate * n for n in ends], "--", color="black", linewidth=1,
                  label=f"ideal: {words.rate(rate)} a rank, {of}")
    if max(ranks) >= 8 * min(ranks):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: words.rate(value))
    else:
        axes.set_ylim(0)
        axes.yaxis.set_major_formatter(style.thousands)
    axes.set_xticks(ranks, [str(n) for n in ranks])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
    axes.set_ylabel("images/s, median")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)


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
