"""performance_report.txt."""

import textwrap

from . import words

WIDTH = 100


def folded(sentence, **indents):
    """A sentence in lines, a figure and its unit on one."""
    return textwrap.fill(words.glued(sentence), WIDTH, break_long_words=False,
                         break_on_hyphens=False, **indents).replace("\u00a0", " ")


def table_text(table):
    cells = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    lines = ["  ".join(text.ljust(width) if i == 0 else text.rjust(width)
                       for i, (text, width) in enumerate(zip(row, widths))).rstrip()
             for row in cells]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join([table.title, *lines, *map(folded, table.notes)])


def section_text(section):
    title, blocks = section
    lines = [title, "=" * len(title)]
    for heading, sentences in blocks:
        lines += [f"{heading}:"] if heading else []
        lines += [folded(sentence, initial_indent="- ", subsequent_indent="  ")
                  for sentence in sentences]
    return "\n".join(lines)


def report_text(title, machines, method_tables, sections, other_tables):
    parts = [f"{title}\n{'#' * len(title)}", "\n".join(machines)]
    parts += [table_text(table) for table in method_tables]
    parts += [section_text(section) for section in sections]
    parts += [table_text(table) for table in other_tables]
    return "\n\n".join(parts) + "\n"
