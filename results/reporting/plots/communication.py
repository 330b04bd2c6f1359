"""Communication of a step, and the terms of its time."""

from matplotlib.patches import Patch

from .. import colours, words
from ..summary import TERMS, ranked
from . import style

TERM_COLOURS = dict(zip(TERMS, colours.TERMS))
BACK = {"facecolor": "none", "edgecolor": "black", "hatch": "////"}  # a term below zero
SEEN = 0.005  # of the step
PARTS = {  # of a bar: colour, hatch, label
    "push": ("#D55E00", None, "push of gradients"),
    "pull": ("#F0B48A", None, "pull of weights"),
    "exposed": ("#D55E00", "//", "exposed"),
    "hidden": ("#56B4E9", None, "hidden by compute"),
    "total": ("#0072B2", None, "communication"),
    "beyond_none": ("#888888", "..", "step time beyond none's"),
}


def parts_of(known):
    """What a bar is made of, left to right; its parts never add up to more than is known."""
    if "push" in known and "pull" in known:
        return {"push": known["push"], "pull": known["pull"]}
    if "total" in known and "hidden" in known:
        hidden = min(known["hidden"], known["total"])
        return {"exposed": known["total"] - hidden, "hidden": hidden}
    if "total" in known and known.get("exposed", known["total"] + 1) <= known["total"]:
        return {"exposed": known["exposed"], "hidden": known["total"] - known["exposed"]}
    return {key: known[key] for key in ("total", "exposed", "beyond_none") if key in known and
            (key != "exposed" or "total" not in known)}


def overhead_of(group):
    """[(strategy, {part: ms})]; parts as in Measured.communication, and beyond_none where nothing
    else is known. Empty where nothing is."""
    none = next((other.step_ms for other in group if other.strategy == "none"), None)
    bars = []
    for measured in ranked(group):
        known = measured.communication
        if not known and None not in (none, measured.step_ms):
            known = {"beyond_none": max(measured.step_ms - none, 0)}
        if known:
            bars.append((measured.strategy, known))
    return bars


def overhead(summary):
    figure, found = style.grouped_panels(summary, overhead_of, height=3)
    for axes, bars in found:
        longest, used = 0, {}
        for row, (_, known) in enumerate(bars):
            left = 0
            for part, value in parts_of(known).items():
                colour, hatch, label = PARTS[part]
                used[label] = axes.barh(row, value, left=left, color=colour, hatch=hatch,
                                        edgecolor="white", height=0.65)
                left += value
            style.annotated(axes, words.ms(left), left, row)
            longest = max(longest, left)
        style.label_rows(axes, [name for name, _ in bars], "ms per step", longest)
        style.legend_below(axes, used.values(), used.keys())
    return figure


def breakdown(summary):
    def broken_down(group):
        found = [measured for measured in group if measured.breakdowns]
        return found if len(found) > 1 or len(summary.groups) == 1 else []

    figure, found = style.grouped_panels(summary, broken_down, height=3)
    for axes, measured in found:
        longest, negative = 0, False
        for row, one in enumerate(measured):
            left = furthest = 0
            for key in TERMS:
                value = one.term(key) or 0
                look = {"color": TERM_COLOURS[key], "edgecolor": "white"} if value > 0 else BACK
                axes.barh(row, abs(value), left=left + min(value, 0), height=0.65, linewidth=0.5, **look)
                left += value
                furthest = max(furthest, left)
                negative = negative or value < -SEEN * (one.term("step_ms") or 0)
            longest = max(longest, furthest, one.term("step_ms") or 0)
            if one.term("step_ms"):
                axes.plot([one.term("step_ms")] * 2, [row - 0.4, row + 0.4], color="black")
                style.annotated(axes, words.ms(one.term("step_ms")), max(furthest, one.term("step_ms")), row)
        style.label_rows(axes, [one.strategy for one in measured],
                         "ms per step; line: measured step", longest)
        style.legend_below(axes, [Patch(color=c) for c in TERM_COLOURS.values()] + [Patch(**BACK)] * negative,
                           [*TERMS.values(), "residual below 0"][:len(TERMS) + negative])
    return figure
