"""Pages of one file that needs nothing else: those of results/report and of launch/acceptance."""

import pathlib
from xml.etree import ElementTree

from .words import without_control

AS_IT_IS = ("pre", "style")


def document(title, *body):
    style = pathlib.Path(__file__).with_name("page.css").read_text(encoding="ascii")
    page = element("html", element("head", element("meta", charset="utf-8"),
                                   element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                                   element("title", title), element("style", style)),
                   element("body", body), lang="en")
    return "<!DOCTYPE html>\n" + ElementTree.tostring(page, "unicode", method="html") + "\n"


def element(tag, /, *children, **attributes):
    """Text and attributes are escaped where they are written, and control characters replaced.
    `children`: elements, text, None, or lists of them. class_ is class, stroke_width is stroke-width."""
    made = ElementTree.Element(tag, {key.rstrip("_").replace("_", "-"): without_control(value)
                                     for key, value in attributes.items() if value is not None})
    add(made, children)
    return made


def add(parent, children):
    for child in children:
        if isinstance(child, (list, tuple)):
            add(parent, child)
        elif isinstance(child, ElementTree.Element):
            parent.append(child)
        elif child is not None:
            text = child if parent.tag in AS_IT_IS else without_control(child)
            if len(parent):
                parent[-1].tail = (parent[-1].tail or "") + text
            else:
                parent.text = (parent.text or "") + text


def titled(title, *content):
    return [element("h2", title) if title else None, content]


def quiet(text):
    return element("p", text, class_="quiet") if text else None


def listed(lines):
    return element("ul", [element("li", line) for line in lines])


def fold(title, *content, is_open=False):
    return element("details", element("summary", title), content, open="" if is_open else None)


def table(head, rows, numbers=(), caption=None):
    """`numbers`: columns of figures. A cell is text, an element, or (text, class). Columns without
    any content are left out."""
    def cell(name, at, value):
        value, kind = value if isinstance(value, tuple) else (value, None)
        return element(name, value, class_=" ".join(filter(None, ("n" * (at in numbers), kind))) or None)
    shown = [at for at in range(len(head))
             if any((row[at][0] if isinstance(row[at], tuple) else row[at]) not in ("", None) for row in rows)]
    return element("div", element(
        "table", element("caption", caption) if caption else None,
        element("thead", element("tr", [cell("th", at, head[at]) for at in shown])),
        element("tbody", [element("tr", [cell("td", at, row[at]) for at in shown]) for row in rows])), class_="scroll")
