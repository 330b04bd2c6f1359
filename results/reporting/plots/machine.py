"""Collectives, links and the GPUs' own samples."""

import statistics
from datetime import datetime, timezone

from .. import words
from ..machine_tables import mode_of
from ..records import number
from . import style

DRAWN = 4096  # ranks: a map of more has no fields that can be seen
ANNOTATED = 16  # ranks up to which a heat map's fields hold their figures

SAMPLED = {"utilisation_percent": "utilisation, %", "memory_used_bytes": "memory, GiB",
           "temperature_c": "temperature, C", "power_w": "power, W", "sm_clock_mhz": "clock, MHz"}


def collective_bandwidth(summary):
    """busbw over size, a line an operation and way of running; repetitions by their median."""
    panels = {}
    for run in summary.runs:
        for record in run.of("collective"):
            if None in (number(record, "bytes"), number(record, "busbw_gbs")) or \
                    record["bytes"] <= 0 or record["busbw_gbs"] <= 0:
                continue
            key = ", ".join((words.count(record.get("world_size"), "rank"), *mode_of(run, record)[1:]))
            line = panels.setdefault(key, {}).setdefault(record.get("operation"), {})
            line.setdefault(record["bytes"], []).append(record["busbw_gbs"])
    if not panels:
        return None
    figure, all_axes = style.panels(list(panels), height=3.8)
    operations = sorted({str(operation) for lines in panels.values() for operation in lines})
    for axes, lines in zip(all_axes, panels.values()):
        for operation, sizes in lines.items():
            medians = [(b, statistics.median(rates)) for b, rates in sorted(sizes.items())]
            axes.plot(*zip(*medians), marker=".", label=operation, **style.line_of(operations.index(str(operation))))
        axes.set_xscale("log", base=2)
        axes.set_ylim(0)
        axes.xaxis.set_major_formatter(lambda value, _: words.size(value))
        axes.tick_params(axis="x", labelrotation=30)
        style.described(axes, "size", "busbw, GB/s")
    return figure


def link_matrix(summary):
    """A map a run, direction and concurrency; bidirectional links are one figure a pair."""
    maps = {}
    for run in summary.runs:
        for link in run.of("link"):
            if None not in (number(link, key) for key in ("from", "to", "bandwidth_gbs")) and \
                    max(link["from"], link["to"]) < DRAWN:
                key = (f"{link.get('direction')}, {link.get('concurrency')}, "
                       f"{words.size(link['bytes']) + ', ' if link.get('bytes') else ''}"
                       f"{run.header.get('started', '')}", run.path)
                maps.setdefault(key, []).append(link)
    if not maps:
        return None
    figure, all_axes = style.panels([title for title, _ in maps], height=4.2)
    for axes, links in zip(all_axes, maps.values()):
        ranks = int(max(max(link["from"], link["to"]) for link in links)) + 1
        field = [[float("nan")] * ranks for _ in range(ranks)]
        for link in links:
            a, b = int(link["from"]), int(link["to"])
            field[a][b] = link["bandwidth_gbs"]
            if link.get("direction") == "bidirectional":
                field[b][a] = link["bandwidth_gbs"]
        draw_map(figure, axes, field)
    return figure


def draw_map(figure, axes, field):
    ranks = len(field)
    known = [value for row in field for value in row if value == value]
    low, high = min(known), max(known)
    image = axes.imshow(field, cmap="viridis", vmin=min(low, 0.9 * high), vmax=high)
    axes.set_facecolor("#EEEEEE")  # where there is no link
    if ranks <= ANNOTATED:
        middle = (min(low, 0.9 * high) + high) / 2
        for i, row in enumerate(field):
            for j, value in enumerate(row):
                if value == value:
                    axes.text(j, i, f"{value:.3g}", ha="center", va="center", fontsize=8,
                              color="white" if value < middle else "black")
    step = max(1, ranks // 16)
    axes.set_xticks(range(0, ranks, step))
    axes.set_yticks(range(0, ranks, step))
    axes.set_xlabel("to rank")
    axes.set_ylabel("from rank")
    figure.colorbar(image, ax=axes, label="GB/s", shrink=0.85)


def gpu_samples(summary):
    """`health` records over time, one line per GPU."""
    lines = {}
    for record in summary.records("health"):
        try:
            time = datetime.fromisoformat(str(record.get("time")).replace("Z", "+00:00"))
        except ValueError:
            continue
        time = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
        lines.setdefault(f"{record.get('host')} GPU {record.get('index')}", []).append((time, record))
    samples = [record for line in lines.values() for _, record in line]
    units = {key: unit for key, unit in SAMPLED.items()
             if any(number(record, key) is not None for record in samples)}
    if not units:
        return None
    start = min(time for line in lines.values() for time, _ in line)
    figure = style.Figure(figsize=(9, 1.9 * len(units) + 1.2), layout="constrained")
    all_axes = figure.subplots(len(units), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (key, unit) in zip(all_axes, units.items()):
        for i, (gpu, line) in enumerate(sorted(lines.items())):
            scale = 2 ** -30 if key == "memory_used_bytes" else 1
            drawn = [((time - start).total_seconds(), scale * number(record, key))
                     for time, record in sorted(line, key=lambda sample: sample[0])
                     if number(record, key) is not None]
            if drawn:
                axes.plot(*zip(*drawn), label=gpu, linewidth=1.2, **style.line_of(i))
        style.described(axes, f"s since {start:%Y-%m-%d %H:%M:%S} UTC" if axes is all_axes[-1] else "", unit, legend=False)
        axes.set_ylim(0)
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0].legend(fontsize=8, frameon=False, ncols=4, loc="lower left",
                       bbox_to_anchor=(0, 1))
    return figure
