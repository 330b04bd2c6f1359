"""HTML and SVG as elements: text and attributes are escaped where they are written, and nowhere
else, and control characters are replaced. Lengths are the callers' matter."""

from xml.etree import ElementTree

from ..words import printable


def element(tag, /, *children, **attributes):
    """`children`: elements, text, None, or lists of them. class_ is class, stroke_width is
    stroke-width; viewBox stays."""
    made = ElementTree.Element(tag, {key.rstrip("_").replace("_", "-"): printable(value)
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
            text = printable(child)
            if len(parent):
                parent[-1].tail = (parent[-1].tail or "") + text
            else:
                parent.text = (parent.text or "") + text


def document(root):
    return "<!DOCTYPE html>\n" + ElementTree.tostring(root, "unicode", method="html") + "\n"
