"""Functions that all plots share. Figures are made without pyplot, which would keep state."""

import io
import math
import textwrap

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image  # matplotlib needs it too

from .. import colours, words
from ..records import plain

PANELS_AT_MOST = 12
if "text.parse_math" in matplotlib.rcParams:  # a name may have a $
    matplotlib.rcParams["text.parse_math"] = False
DPI = 110
SHADES = 128  # colours of a file: they make it a third as large
MAXCOVERAGE = 1  # of Pillow: keeps the colour of a small bar, which else became that of another one


def colour(strategy):
    return colours.of_strategy(plain(strategy))


def panels(titles, height=3.4, width=5.2):
    """A figure with a panel for each title, up to three in a row; (figure, axes). Of more than
    twelve the first twelve are drawn, and the figure says so (finish)."""
    shown = titles[:PANELS_AT_MOST]
    across = 2 if len(shown) in (2, 4) else min(len(shown), 3)
    down = math.ceil(len(shown) / across)
    figure = Figure(figsize=(max(width * across, 7), height * down + 1.1), layout="constrained")
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, title in zip(grid, shown):
        prepare(axes, title, 52 if across > 1 else 80)
    for axes in grid[len(shown):]:
        axes.remove()
    figure.left_out = len(titles) - len(shown)
    return figure, grid[:len(shown)]


def prepare(axes, title, wide):
    axes.set_title("\n".join(textwrap.wrap(words.glued(title), wide)), fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def grouped_panels(summary, wanted, **sizes):
    """Panels for the groups in which `wanted` finds something; (figure, [(axes, found)]), or
    (None, []). What all panels share stands in the figure's heading only."""
    found = [(conditions, wanted(group)) for conditions, group in summary.groups]
    found = [(conditions, things) for conditions, things in found if things]
    if not found:
        return None, []
    same = words.shared([conditions for conditions, _ in found])
    figure, axes = panels([words.setting(conditions, same) for conditions, _ in found], **sizes)
    figure.shared = words.setting(found[0][0], set(words.parts(found[0][0])) - same)
    return figure, list(zip(axes, (things for _, things in found)))


def comparison_panels(summary, wanted, **sizes):
    """As grouped_panels, for bars of strategies side by side: (figure, [(axes, names, found)]).
    Groups of one strategy have nothing next to them: they are drawn where there are no others, all
    in one panel."""
    figure, found = grouped_panels(summary, lambda group: wanted(group)[1:] and wanted(group),
                                   **sizes)
    if figure:
        return figure, [(axes, [m.strategy for m in things], things) for axes, things in found]
    alone = [measured for _, group in summary.groups for measured in wanted(group)]
    if not alone:
        return None, []
    figure, (axes,) = panels([""], height=1 + 0.45 * len(alone), width=9)
    return figure, [(axes, [", ".join(filter(None, (m.strategy, summary.name(m.conditions))))
                            for m in alone], alone)]


def bars(axes, names, strategies, values, unit, low_high=None, text=words.rate):
    """Horizontal bars from the top, with their figures; low_high draws intervals."""
    at = range(len(names))
    axes.barh(at, values, color=[colour(strategy) for strategy in strategies], height=0.65)
    ends = list(values)
    for i, ends_of in enumerate(low_high or []):
        if None not in ends_of:
            axes.plot(ends_of, (i, i), color="black", linewidth=1.2, marker="|", markersize=8)
            ends[i] = max(values[i], ends_of[1])
    for i, value in enumerate(values):
        annotated(axes, text(value), ends[i], i, bbox={"fc": "white", "ec": "none", "pad": 0.5})
    label_rows(axes, names, unit, max(ends))


def label_rows(axes, names, unit, longest):
    axes.set_yticks(range(len(names)), ["\n".join(textwrap.wrap(name, 60)) for name in names],
                    fontsize=10 if max(map(len, names)) <= 40 else 7)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, longest * 1.22 or 1)
    axes.set_xlabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(thousands)


def described(axes, x, y, legend=True):
    """Of lines."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25)
    if legend:
        axes.legend(fontsize=8, frameon=False)


def over_epochs(axes, y, legend=True):
    axes.xaxis.get_major_locator().set_params(integer=True)
    described(axes, "epoch", y, legend)


def legend_below(axes, handles, names):
    axes.legend(handles, names, fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def annotated(axes, text, x, row, **more):
    """A figure at the end of a bar."""
    axes.annotate(text, (x, row), textcoords="offset points", va="center", **{"xytext": (5, 0), "fontsize": 9, **more})


def line_of(at):
    """The look of a line, by its number."""
    lines = len(colours.LINES)
    return {"color": colours.LINES[at % lines], "linestyle": "-" if at < lines else "--"}


def thousands(value, _):
    return f"{value:,.6g}"


def finish(figure, caption, source, path):
    """Heading, machine and date below, and the file. What a figure is marked with: `shared`, what
    its panels have in common; `note`; `left_out`, panels."""
    about = [line for text in (getattr(figure, "shared", ""), getattr(figure, "note", ""))
             for line in textwrap.wrap(text, int(figure.get_figwidth() * 11))]
    figure.suptitle("\n".join([caption, *about]), fontsize=11)
    if getattr(figure, "left_out", 0):
        source += f"; {words.count(figure.left_out, 'more panel')} left out"
    wide = int(figure.get_figwidth() * 16)
    figure.supxlabel("\n".join(textwrap.wrap(source, wide)), fontsize=8, color="#555555", x=0.01,
                     ha="left")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=DPI)
    Image.open(drawn).convert("RGB").quantize(SHADES, MAXCOVERAGE).save(path, optimize=True)
    return path
