"""Charts as SVG that a page holds: no library, sharp in print, and of bounded size."""

import dataclasses
import math
import statistics

from ..words import figure
from .markup import element

BLUE, LIGHT, RED, GREY, INK = "#0072B2", "#9CC9E3", "#b3261e", "#8a8a8a", "#444444"
WIDTH, HEIGHT = 480, 190
LEFT, RIGHT, TOP, BOTTOM = 52, 68, 10, 24
DOTS = 128  # values up to which each is drawn
BINS = 96  # bars in their place beyond
FLAGGED = 64  # of the values that a finding names
SPREAD = 0.04  # of the value, at least, from bottom to top: noise is not blown up


@dataclasses.dataclass(frozen=True)
class Point:
    place: float  # 0 to 1, from left to right
    value: float
    of: object = None  # what `strip` passes to its function `label`
    flagged: bool = False
    samples: tuple = ()


class Scale:
    """From values to heights."""

    def __init__(self, values):
        low, high = min(values), max(values)
        room = max(0.08 * (high - low), (SPREAD * max(abs(low), abs(high)) - (high - low)) / 2)
        room = room or 1
        self.low, self.high = low - room, high + room
        step = 10 ** math.floor(math.log10(self.high - self.low))
        step *= next(m for m in (0.2, 0.5, 1, 2) if (self.high - self.low) / (step * m) <= 5.5)
        first = math.ceil(self.low / step)
        self.ticks = [round(step * i, 12) for i in range(first, first + 7)
                      if step * i <= self.high]

    def __call__(self, value):
        return TOP + (HEIGHT - TOP - BOTTOM) * (self.high - value) / (self.high - self.low)


def across(place):
    return LEFT + (WIDTH - LEFT - RIGHT) * place


def strip(title, points, label, ends, lines=()):
    """Values over nodes. `label(point.of)` names a value; `ends`: labels [(place, text)] below;
    `lines`: [(value, text, dashed)]."""
    finite = [point for point in points if math.isfinite(point.value)]
    lines = [line for line in lines if math.isfinite(line[0])]
    scale = Scale([*(point.value for point in finite), *(value for value, _, _ in lines)])
    draw = dots if len(finite) <= DOTS else bars
    return element("svg", axis(scale, ends),
                   [rule(scale, *line) for line in labelled(lines, scale)],
                   draw(finite, scale, label), viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img",
                   aria_label=title)


def text(x, y, words, anchor="start", colour=INK):
    return element("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, fill=colour)


def axis(scale, ends):
    return [
        *(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{scale(tick):.1f}",
                  y2=f"{scale(tick):.1f}", stroke="#e4e4e4") for tick in scale.ticks),
        *(text(LEFT - 6, scale(tick) + 3.5, f"{tick:,.6g}", "end", GREY) for tick in scale.ticks),
        *(text(across(place), HEIGHT - 8, words, "middle") for place, words in ends)]


def labelled(lines, scale):
    """The lines with heights of their labels that do not overlap."""
    last = -math.inf
    for value, words, dashed in sorted(lines, key=lambda line: -line[0]):
        last = max(scale(value), last + 12)
        yield value, words, dashed, last


def rule(scale, value, words, dashed, label_height):
    colour = RED if dashed else GREY
    return [element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{scale(value):.1f}",
                    y2=f"{scale(value):.1f}", stroke=colour,
                    stroke_dasharray="4 3" if dashed else None),
            text(WIDTH - RIGHT + 5, label_height + 3.5, words, colour=colour)]


def dots(points, scale, label):
    """A dot per value, with a line over its samples."""
    drawn = []
    for point in sorted(points, key=lambda point: point.flagged):
        colour = RED if point.flagged else BLUE
        x = f"{across(point.place):.1f}"
        samples = [value for value in point.samples if math.isfinite(value)]
        ends = [min(max(scale(end), TOP), HEIGHT - BOTTOM)
                for end in (min(samples), max(samples))] if samples else []
        if ends:
            drawn.append(element("line", x1=x, x2=x, y1=f"{ends[0]:.1f}", y2=f"{ends[1]:.1f}",
                                 stroke=colour, stroke_width=1, opacity=0.45))
        drawn.append(dot(point, scale, label, colour, 3))
    return drawn


def dot(point, scale, label, colour, radius):
    return element("circle", element("title", f"{label(point.of)}: {figure(point.value)}"),
                   cx=f"{across(point.place):.1f}", cy=f"{scale(point.value):.1f}", r=radius,
                   fill=colour)


def bars(points, scale, label):
    """A bar from the lowest to the highest of neighbouring values, darker where the middle half
    lies, and dots for those that a finding names."""
    flagged = sorted((point for point in points if point.flagged),
                     key=lambda point: point.value)[:FLAGGED]
    apart = set(map(id, flagged))
    bins = {}
    for point in points:
        if id(point) not in apart:
            bins.setdefault(min(int(point.place * BINS), BINS - 1), []).append(point.value)
    whole, middle = [], []
    for at, values in bins.items():
        low, high = (statistics.quantiles(values, n=4)[::2] if len(values) > 3 else
                     (min(values), max(values)))
        x = f"{across((at + 0.5) / BINS):.1f}"
        whole.append(vertical(x, scale(max(values)), scale(min(values))))
        middle.append(vertical(x, scale(high), scale(low)))
    wide = f"{0.7 * (WIDTH - LEFT - RIGHT) / BINS:.1f}"
    return [element("path", d="".join(whole), stroke=LIGHT, stroke_width=wide),
            element("path", d="".join(middle), stroke=BLUE, stroke_width=wide),
            [dot(point, scale, label, RED, 2.5) for point in flagged]]


def vertical(x, top, bottom):
    """At least two units long, to be seen."""
    short = max(0, 2 - (bottom - top)) / 2
    return f"M{x} {top - short:.1f}V{bottom + short:.1f}"


def fleet(squares):
    """A square per node, in order. `squares`: [(colour, label)]; those without a label, which are
    many, are one path per colour."""
    side, gap, across_ = 11, 2, 64 if len(squares) <= 1024 else 128
    plain, named = {}, []
    for at, (colour, label) in enumerate(squares):
        y, x = ((side + gap) * part for part in divmod(at, across_))
        if label:
            named.append(element("rect", element("title", label), x=x, y=y, width=side,
                                 height=side, rx=2, fill=colour))
        else:
            plain.setdefault(colour, []).append(f"M{x} {y}h{side}v{side}h-{side}z")
    wide = (side + gap) * min(len(squares), across_) - gap
    high = (side + gap) * math.ceil(len(squares) / across_) - gap
    return element("svg", [element("path", d="".join(parts), fill=colour)
                           for colour, parts in plain.items()], named,
                   viewBox=f"0 0 {wide} {high}", role="img", aria_label="verdicts of the nodes",
                   style=f"max-width: {1.4 * wide:.0f}px")
