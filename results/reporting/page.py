"""comparison_report.html: one file, its images inlined."""

import base64

from . import colours, words
from .html import document, element, fold, listed, quiet, table, titled
from .records import plain
from .summary import TERMS
from .tables import fastest_first

BACK = "url(#back)"  # the pattern of a term below zero
SEEN = 0.5  # percent of a chart's width: a shorter term needs no legend


def render_page(summary, content, plots):
    """`plots`: [(caption, path of a PNG)]."""
    charts = [chart(summary.heading(conditions), rates(group), steps(group), len(summary.groups) == 1)
              for conditions, group in summary.groups]
    charts = [each for each in charts if each]
    return document(
        content.title, pattern(), element("h1", content.title), [quiet(line) for line in content.machines],
        element("p", element("span", content.outcome, class_=f"verdict {content.outcome}"), " ",
                words.glued(content.reason), class_="outcome"),
        element("dl", [[element("dt", what), element("dd", words.glued(sentence))]
                       for what, sentence in content.sentences]),
        letters(content.configurations), charts,
        folded("Further configurations", letters(content.more_configurations)),
        folded("Tables", [shown(each) for each in content.front], not charts),
        [folded(topic, [[element("h3", heading) if heading else None, listed(map(words.glued, sentences))]
                        for heading, sentences in blocks]) for topic, blocks in content.sections],
        folded("Plots", [figure(*plot) for plot in plots], not charts),
        folded("Further tables", [shown(each) for each in content.tables]))


def folded(title, content, is_open=False):
    return fold(title, content, is_open=is_open) if content else None


def letters(configurations):
    return [element("p", element("b", letter), f": {name}", class_="quiet") for letter, name in configurations]


def shown(of):
    return [table(of.columns, of.rows, range(1, len(of.columns)), of.title), [quiet(words.glued(note)) for note in of.notes]]


def figure(caption, path):
    data = base64.b64encode(path.read_bytes()).decode()
    return element("figure", element("figcaption", caption),
                   element("img", alt=caption, src=f"data:image/png;base64,{data}"))


# ---- charts, drawn by the browser, so that they fit any width: lengths are in percent -------------------------

def pattern():
    """What is drawn with BACK."""
    lines = [element("rect", width=6, height=6, fill="#fff", fill_opacity=0.55),
             element("rect", width=2, height=6, fill="#000")]
    return element("svg", element("defs", element(
        "pattern", lines, id="back", width=6, height=6, patternUnits="userSpaceOnUse", patternTransform="rotate(45)")),
        width=0, height=0, style="position: absolute")


def chart(title, of_rates, of_steps, is_only):
    """Throughput and breakdown of a set of conditions; None where there is nothing to compare."""
    if not (len(of_rates) > 1 or len(of_steps) > 1 or is_only and (of_rates or of_steps)):
        return None
    return titled(title, element("div", section(
        "Throughput, images/s", "images/s", [(name, text, [bar(0, length, colour), *interval(ends)])
                                             for name, length, colour, text, ends in of_rates]), section(
        "Step breakdown, ms (line: the traced step)", "ms", [
            (name, text, [*(bar(*part) for part in parts), line(end, end, 0, 100)])
            for name, parts, end, text in of_steps], legend(of_steps)), class_="charts"))


def section(title, unit, rows, *after):
    """`rows`: [(name, figure, what is drawn)]."""
    if not rows:
        return None
    return element("section", element("h3", title), element("div", [
        [element("span", name), element("svg", drawn, role="img", aria_label=f"{name} {text} {unit}"),
         element("span", text, class_="figure")] for name, text, drawn in rows], class_="bars"), after)


def bar(start, length, colour, name=None):
    return element("rect", element("title", name) if name else None, x=f"{start:.2f}%", width=f"{length:.2f}%",
                   height="100%", fill=colour)


def line(x1, x2, y1, y2):
    return element("line", x1=f"{x1:.2f}%", x2=f"{x2:.2f}%", y1=f"{y1}%", y2=f"{y2}%", stroke="#000", stroke_width=2)


def interval(ends):
    return [line(*ends, 50, 50)] if ends else []


def legend(of_steps):
    is_back = any(colour == BACK and length > SEEN for _, parts, *_ in of_steps for _, length, colour, _ in parts)
    keys = [(element("i", class_="back"), "residual below 0: the terms add up to more than the step")] * is_back
    keys += [(element("i", style=f"background: {colour}"), term) for term, colour in zip(TERMS.values(), colours.TERMS)]
    return element("p", [element("span", key) for key in keys], class_="legend")


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
    known = [(m, {key: m.term(key) or 0 for key in TERMS}) for m in fastest_first(group) if m.term("step_ms")]
    longest = max((max(m.term("step_ms"), sum(ms for ms in terms.values() if ms > 0)) for m, terms in known), default=1)
    rows = []
    for measured, terms in known:
        parts, end = [], 0
        for (key, ms), colour in zip(terms.items(), colours.TERMS):
            if ms:
                start, end = end, end + ms
                parts.append((100 * min(start, end) / longest, 100 * abs(ms) / longest,
                              colour if ms > 0 else BACK, f"{TERMS[key]} {words.ms(ms)}"))
        step = measured.term("step_ms")
        rows.append((measured.strategy, parts, 100 * step / longest, f"{step:.2f}"))
    return rows
