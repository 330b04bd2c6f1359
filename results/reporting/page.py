"""comparison_report.html: one file, its images inlined."""

import base64
import functools
import pathlib

from . import colours, words
from .records import plain
from .summary import TERMS
from .tables import fastest_first

TEMPLATE = "page.html.j2"
BACK = "url(#back)"  # the pattern of a term below zero


def bars(summary):
    """Page one's charts: [(title, bars of throughput, bars of the breakdown)] for each set of
    conditions, drawn by the browser, so that they fit any width. Lengths are in percent."""
    groups = [(summary.heading(conditions), group)
              for conditions, group in summary.groups]
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
    """[(strategy, [(start, length, colour, term)], end of the step, text)]. The terms of a step add up to
    it: a residual below zero reaches back from the end of the others to the end of the step."""
    known = [m for m in fastest_first(group) if m.term("step_ms")]
    longest = max((max(m.term("step_ms"), sum(ms for ms in terms_of(m).values() if ms > 0))
                   for m in known), default=1)
    rows = []
    for measured in known:
        parts, end = [], 0
        for (key, ms), colour in zip(terms_of(measured).items(), colours.TERMS):
            if ms:
                start, end = end, end + ms
                parts.append((100 * min(start, end) / longest, 100 * abs(ms) / longest,
                              colour if ms > 0 else BACK, f"{TERMS[key]} {words.ms(ms)}"))
        step = measured.term("step_ms")
        rows.append((measured.strategy, parts, 100 * step / longest, f"{step:.2f}"))
    return rows


def terms_of(measured):
    return {key: measured.term(key) or 0 for key in TERMS}


@functools.lru_cache(maxsize=None)
def template():
    """Compiled once."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["glued"] = words.glued
    return environment.get_template(TEMPLATE)


def render_page(summary, content, plots):
    """`plots`: [(caption, path of a PNG)]. Raises ImportError without Jinja2."""
    images = [(caption, base64.b64encode(path.read_bytes()).decode()) for caption, path in plots]
    return template().render(
        content=content, charts=bars(summary), images=images, back=BACK,
        legend=list(zip(TERMS.values(), colours.TERMS)))
