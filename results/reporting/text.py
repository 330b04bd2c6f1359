"""performance_report.txt, one page, and appendix.txt, all else."""

import textwrap

from . import words

WIDTH = 80
PAGE = 100  # lines


def folded(sentence, indent=""):
    """A sentence in lines, a figure and its unit on one."""
    return textwrap.fill(words.glued(sentence), WIDTH, initial_indent=indent,
                         subsequent_indent="  ", break_long_words=False,
                         break_on_hyphens=False).replace("\u00a0", " ")


def table_text(table):
    if not table.rows:
        return "\n".join(map(folded, [table.title, *table.notes]))
    cells = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    lines = ["  ".join(text.ljust(width) if i == 0 else text.rjust(width)
                       for i, (text, width) in enumerate(zip(row, widths))).rstrip()
             for row in cells]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join([folded(table.title), *lines, *map(folded, table.notes)])


def section_text(section):
    title, blocks = section
    lines = [title, "=" * len(title)]
    for heading, sentences in blocks:
        lines += [f"{heading}:"] if heading else []
        lines += [folded(sentence, "- ")
                  for sentence in sentences]
    return "\n".join(lines)


def report_text(content):
    """(the page, the appendix). The first tables stand on the page as far as there is room."""
    parts = [f"{content.title}\n{'#' * len(content.title)}",
             "\n".join(map(folded, content.machines)),
             "\n".join([f"Verdict: {content.outcome}", *(
                 folded(f"{what}: {sentence}", "- ")
                 for what, sentence in content.sentences)])]
    left_over = []
    for table in map(table_text, content.front):
        # Each part is followed by an empty line; the last lines name the appendix.
        used = sum(part.count("\n") + 2 for part in parts)
        if not left_over and used + table.count("\n") + 1 <= PAGE - 2:
            parts.append(table)
        else:
            left_over.append(table)
    appendix = [*left_over, *map(section_text, content.sections), *map(table_text, content.tables)]
    if appendix:
        parts.append(f"More: appendix.txt ({words.count(len(appendix), 'part')}; printed by "
                     "--verbose).")
    return "\n\n".join(parts) + "\n", "\n\n".join(appendix) + "\n" * bool(appendix)
