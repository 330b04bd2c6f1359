"""comparison_report.html: one file, its images inlined."""

import base64
import pathlib

from . import colours, words
from .records import plain
from .summary import TERMS
from .tables import fastest_first

TEMPLATE = "page.html.j2"


def bars(summary):
    """Page one's charts: [(title, bars of throughput, bars of the breakdown)] for each set of
    conditions, drawn by the browser, so that they fit any width. Lengths are in percent."""
    groups = [(summary.name(conditions) or words.setting(conditions), group)
              for conditions, group in summary.groups()]
    return [chart for chart in ((title, rates(group), steps(group)) for title, group in groups)
            if len(chart[1]) > 1 or len(chart[2]) > 1 or len(groups) == 1 and any(chart[1:])]


def rates(group):
    """[(strategy, length, colour, text, interval's ends)]."""
    rated = fastest_first([m for m in group if m.rate])
    longest = max((max(m.rate.median, m.rate.high or 0) for m in rated), default=1)
    return [(m.strategy, 100 * m.rate.median / longest, colours.of_strategy(plain(m.strategy)),
             words.rate(m.rate.median),
             None if m.rate.low is None else (100 * m.rate.low / longest,
                                              100 * m.rate.high / longest)) for m in rated]


def steps(group):
    """[(strategy, [(start, length, colour, term)], text)]."""
    known = [m for m in fastest_first(group) if m.term("step_ms")]
    longest = max((m.term("step_ms") for m in known), default=1)
    rows = []
    for measured in known:
        parts, start = [], 0
        for (key, name), colour in zip(TERMS.items(), colours.TERMS):
            ms = measured.term(key) or 0  # a residual may be below zero: it is in the table
            if ms > 0:
                parts.append((100 * start / longest, 100 * ms / longest, colour,
                              f"{name} {words.ms(ms)}"))
                start += ms
        rows.append((measured.strategy, parts, f"{measured.term('step_ms'):.2f}"))
    return rows


def render_page(summary, content, plots):
    """`plots`: [(caption, path of a PNG)]. Raises ImportError without Jinja2."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    images = [(caption, base64.b64encode(path.read_bytes()).decode()) for caption, path in plots]
    return environment.get_template(TEMPLATE).render(
        content=content, charts=bars(summary), images=images,
        legend=list(zip(TERMS.values(), colours.TERMS)))
