"""performance_report.txt, one page, and appendix.txt, all else. Lines are folded for a terminal only:
in a file or a pipe a sentence is one line, which scripts can match."""

import shutil
import sys
import textwrap

from . import words

WIDTH, WIDEST = 80, 110
PAGE = 100  # lines, as folded for a terminal


def terminal_width():
    """Columns to fold for; None where standard output is no terminal."""
    if not sys.stdout.isatty():
        return None
    return min(max(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH), WIDEST)


def folded(sentence, indent="", width=WIDTH):
    """A sentence in lines, a figure and its unit on one."""
    if width is None:
        return indent + sentence
    return textwrap.fill(words.glued(sentence), width, initial_indent=indent,
                         subsequent_indent="  ", break_long_words=False,
                         break_on_hyphens=False).replace("\u00a0", " ")


def table_text(table, width=WIDTH):
    def lines_of(sentences):
        return [folded(sentence, width=width) for sentence in sentences]
    if not table.rows:
        return "\n".join(lines_of([table.title, *table.notes]))
    cells = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    lines = ["  ".join(text.ljust(width) if i == 0 else text.rjust(width)
                       for i, (text, width) in enumerate(zip(row, widths))).rstrip()
             for row in cells]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join([*lines_of([table.title]), *lines, *lines_of(table.notes)])


def section_text(section, width):
    title, blocks = section
    lines = [title, "=" * len(title)]
    for heading, sentences in blocks:
        lines += [f"{heading}:"] if heading else []
        lines += [folded(sentence, "- ", width) for sentence in sentences]
    return "\n".join(lines)


def verdict_text(outcome, reason, sentences, width):
    return "\n".join([f"Verdict: {outcome}", *(folded(f"{what}: {sentence}", "- ", width)
                                              for what, sentence in [("Reason", reason), *sentences])])


def first_parts(content, width):
    parts = [f"{content.title}\n{'#' * len(content.title)}",
             "\n".join(folded(line, width=width) for line in content.machines),
             verdict_text(content.outcome, content.reason, content.sentences, width)]
    return parts + letters_text(content.configurations, width)


def letters_text(configurations, width):
    lines = [folded(f"{letter}: {name}", width=width) for letter, name in configurations]
    return ["\n".join(lines)] if lines else []


def report_text(content, width=None):
    """(the page, the appendix), folded to a width if there is one. The first tables stand on the page as
    far as there is room."""
    # Each part is followed by an empty line; the last lines name the appendix.
    room = PAGE - 2 - sum(part.count("\n") + 2 for part in first_parts(content, WIDTH))
    on_page = 0
    for table in map(table_text, content.front):
        room -= table.count("\n") + 1
        if room < 0:
            break
        room -= 1
        on_page += 1
    tables = [table_text(table, width) for table in [*content.front, *content.tables]]
    appendix = [*letters_text(content.more_configurations, width), *tables[on_page:len(content.front)],
                *(section_text(section, width) for section in content.sections),
                *tables[len(content.front):]]
    parts = first_parts(content, width) + tables[:on_page]
    if appendix:
        parts.append(f"More: appendix.txt ({words.count(len(appendix), 'part')}; printed by "
                     "--verbose).")
    return "\n\n".join(parts) + "\n", "\n\n".join(appendix) + "\n" * bool(appendix)
