"""Names, figures and tables as text.

Names, causes and settings come from hosts that may be broken: `clean` comes first."""

import math
import re

from reporting.words import without_control

ELLIPSIS = "..."
SHOWN_NAMES = 90  # characters of a list of nodes in a sentence
NUMBER_AT_END = re.compile(r"[0-9]{0,18}$")


def valid(value):
    """As JSON can have it: what is not finite is null, and bytes of names that are not UTF-8 are
    "?"."""
    if isinstance(value, dict):
        return {valid(key): valid(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [valid(item) for item in value]
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def clean(text, most=800):
    """One line, printable, of at most `most` characters."""
    text = " ".join(without_control(text).split())
    return text if len(text) <= most else text[:most - len(ELLIPSIS)].rstrip() + ELLIPSIS


def count(number, noun):
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def figure(value):
    """Four significant digits."""
    if not math.isfinite(value):
        return "unknown"
    if value and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.3e}"
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{digits}f}" if digits <= 3 else f"{value:.4g}"


def duration(seconds):
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    if not minutes:
        return f"{seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def in_columns(rows):
    """Lines of a table whose cells are flush left."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def aligned(rows, left=(), head=(), most=math.inf):
    """Lines of a table of at most `most` characters, for which its first column is cut; columns in `left`
    flush left. A column without any content is left out, whatever its head."""
    columns = [at for at in range(len(rows[0]) if rows else 0) if {row[at] for row in rows} - {"", "-"}]
    rows = [*([head] if head and rows else []), *rows]
    wide = {at: max(len(row[at]) for row in rows) for at in columns}
    over = sum(wide.values()) + 2 * len(columns) - most
    if over > 0:
        wide[0] = max(16, wide[0] - over)
        rows = [[clean(row[0], wide[0]), *row[1:]] for row in rows]
    return ["  " + "  ".join(f"{row[at]:<{wide[at]}}" if at in left else f"{row[at]:>{wide[at]}}"
                             for at in columns).rstrip() for row in rows]


# ---- lists of nodes ------------------------------------------------------------------------------

def by_number(name):
    """Sorts n2 before n10, and n9 before n09."""
    return [(0, int(part), len(part)) if part[0] in "0123456789" else (1, part, 0)
            for part in re.split(r"([0-9]{1,18})", name) if part]


def hostlist(names):
    """Names as Slurm abbreviates them: login1,n[001-004,007]. The number at the end varies."""
    groups = {}
    for name in sorted(set(names), key=by_number):
        number = NUMBER_AT_END.search(name)[0]
        prefix = name[:len(name) - len(number)]
        groups.setdefault((prefix, bool(number)), []).append(number)
    return ",".join(prefix + number_list(numbers) for (prefix, _), numbers in groups.items())


def number_list(numbers):
    """[001-004,007], or 7 alone, of sorted texts of digits."""
    ranges = []
    for text in numbers:
        # Slurm counts up from the first with its number of digits: 09-10, 9-10.
        if ranges and text == f"{int(ranges[-1][1]) + 1:0{len(ranges[-1][0])}}":
            ranges[-1][1] = text
        else:
            ranges.append([text, text])
    shown = ",".join(low if low == high else f"{low}-{high}" for low, high in ranges)
    return shown if len(numbers) == 1 else f"[{shown}]"


def nodes(names, most=SHOWN_NAMES):
    """A hostlist for a sentence: cut after `most` characters, with the number of all."""
    text = clean(hostlist(names), 10 ** 6)
    if len(text) <= most:
        return text
    shown = text[:max(text.rfind(",", 0, most), 0)] or text[:most]
    end = "]" if shown.count("[") > shown.count("]") else ""
    return f"{shown},{ELLIPSIS}{end} ({count(len(set(names)), 'node')})"
