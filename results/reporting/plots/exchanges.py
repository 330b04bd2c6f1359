"""A step's exchanges on its time line."""

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .. import words
from ..records import plain
from ..summary import total
from . import style

ALWAYS = ("ddp", "zero1")  # are meant to overlap: that they do not is worth seeing
HIDES = 0.01  # of the exchanges' time
SEEN = 0.95  # exposed beyond it, an exchange shows no other colour
COLUMNS, PANELS = 3, 9
FEW = 16  # rows that can be labelled each
WAITING, EXPOSED = "#DDDDDD", "#D55E00"
OPERATIONS = {"all_reduce": "#0072B2", "reduce_scatter": "#56B4E9", "all_gather": "#009E73",
              "push": "#CC79A7", "pull": "#882255", "push_pull": "#CC79A7"}


def colour_of(operation):
    return OPERATIONS.get(operation, "#444444")


def timeline(summary):
    """When each was ready, waited, and went on, hidden or not: medians over the rounds. A row a
    strategy, a column a set of conditions; what has no panel is named in the heading."""
    timed = [m for m in summary.measured.values() if m.exchanges and all(
        None not in (one.ready_ms, one.start_ms, one.end_ms) for one in m.exchanges)]
    overlapping = [measured for measured in timed if overlaps(measured)]
    largest = on_most_ranks(overlapping)
    columns = list(dict.fromkeys(measured.conditions for measured in largest))[:COLUMNS]
    rows = list(dict.fromkeys(m.strategy for m in largest if m.conditions in columns))
    rows.sort(key=lambda strategy: plain(strategy) != "ddp")
    rows = rows[:PANELS // len(columns)] if columns else []
    shown = {(m.strategy, m.conditions): m for m in largest
             if m.strategy in rows and m.conditions in columns}
    columns = [column for column in columns if any(at == column for _, at in shown)]
    if not shown:
        return None
    figure = draw(rows, columns, shown)
    figure.note = left_out(timed, overlapping, largest, shown)
    return figure


def overlaps(measured):
    hidden = total(measured.exchanges, "hidden_ms") or 0
    return (plain(measured.strategy) in ALWAYS or
            hidden > HIDES * total(measured.exchanges, "duration_ms"))


def on_most_ranks(several):
    def but_ranks(measured):
        return measured.conditions._replace(world_size=0, nodes=0)

    most = {}
    for measured in several:
        key = but_ranks(measured)
        most[key] = max(most.get(key, 0), measured.conditions.world_size)
    return [m for m in several if m.conditions.world_size == most[but_ranks(m)]]


def left_out(timed, overlapping, largest, shown):
    """In words; empty where nothing was."""
    idle = dict.fromkeys(m.strategy for m in timed if m not in overlapping)
    said = [f"{words.listed(idle)}, where nothing is hidden"] if idle else []
    said += ["fewer ranks"] if len(largest) < len(overlapping) else []
    more = len(largest) - len(shown)
    said += [words.count(more, "more panel")] if more else []
    return f"left out: {'; '.join(said)}" if said else ""


def draw(rows, columns, shown):
    longest = [max(len(m.exchanges) for m in shown.values() if m.strategy == row) for row in rows]
    heights = [1.1 + min(0.24 * count, 2.4 + 0.08 * count, 7) for count in longest]
    width = 4.8 if len(columns) > 1 else 9
    figure = Figure(figsize=(width * len(columns), sum(heights) + 1.5), layout="constrained")
    grid = figure.add_gridspec(len(rows) + 1, len(columns), height_ratios=[*heights, 0.4])
    same = words.shared(columns)
    figure.shared = words.setting(columns[0], set(words.parts(columns[0])) - same)
    for at, column in enumerate(columns):
        of_column = [m for m in shown.values() if m.conditions == column]
        end = max(end_of_step(measured) for measured in of_column)
        for measured in of_column:
            axes = figure.add_subplot(grid[rows.index(measured.strategy), at])
            title = ", ".join(filter(None, (measured.strategy, words.setting(column, same))))
            style.prepare(axes, title, 44 if len(columns) > 1 else 80)
            draw_exchanges(axes, measured, end)
    explain(figure.add_subplot(grid[-1, :]),
            {one.operation for measured in shown.values() for one in measured.exchanges
             if exposed_of(one) < SEEN * one.duration_ms})
    return figure


def explain(axes, operations):
    """The legend, in a place of its own, where it covers nothing."""
    axes.set_axis_off()
    hidden = [Patch(color=hue, label=f"{kind}, hidden") for kind, hue in OPERATIONS.items()
              if kind in operations]
    axes.legend(handles=[Patch(color=WAITING, label="ready, waiting"), *hidden,
                         Patch(facecolor=EXPOSED, hatch="//", edgecolor="white", label="exposed")],
                loc="center", ncols=6, fontsize=9, frameon=False)


def exposed_of(one):
    """Its share in the exchange's time, as far as it can be seen. (All are medians: hidden and
    exposed need not add up to the duration.)"""
    known = (one.exposed_ms or 0) + (one.hidden_ms or 0)
    share = (one.exposed_ms or 0) / known if known else 0
    return one.duration_ms * share if share > HIDES else 0


def end_of_step(measured):
    return max([measured.term("step_ms") or 0, *(one.end_ms for one in measured.exchanges)])


def draw_exchanges(axes, measured, end):
    """`end`: of the column's longest step, so that its panels have one scale."""
    found = measured.exchanges
    for row, one in enumerate(found):
        exposed = exposed_of(one)
        hue = colour_of(one.operation)
        axes.barh(row, one.start_ms - one.ready_ms, left=one.ready_ms, color=WAITING, height=0.7)
        for left, long, look in (
                (one.start_ms, one.duration_ms - exposed, {"color": hue}),
                (one.end_ms - exposed, exposed,
                 {"facecolor": EXPOSED, "hatch": "//", "edgecolor": "white", "linewidth": 0})):
            if long > 0:
                axes.barh(row, long, left=left, height=0.7, **look)
        # However short: a line is seen.
        axes.plot([one.start_ms] * 2, [row - 0.35, row + 0.35], linewidth=1,
                  color=EXPOSED if exposed > one.duration_ms / 2 else hue)
        if len(found) <= FEW:
            style.annotated(axes, words.ms(one.duration_ms), one.end_ms, row, xytext=(4, 0), fontsize=8,
                            bbox={"fc": "white", "ec": "none", "pad": 0.3})
    axes.axvline(end_of_step(measured), color="black", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, end * 1.16)
    axes.set_ylim(len(found) - 0.4, -0.6)
    label_rows(axes, found)
    axes.set_xlabel("ms since the step began; dotted: its end", fontsize=9)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)


def label_rows(axes, found):
    if len(found) <= FEW:
        names = [" ".join(filter(None, (str(one.index), one.operation,
                                        words.size(one.bytes) if one.bytes else "")))
                 for one in found]
        axes.set_yticks(range(len(found)), names, fontsize=8)
    else:
        rows = range(0, len(found), 10)
        axes.set_yticks(rows, [str(found[row].index) for row in rows])
    axes.set_ylabel("exchange", fontsize=9)
