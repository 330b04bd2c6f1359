"""Figures as text, everywhere alike."""

import os
import re


def printable(path):
    """A path as text; bytes of it that are not UTF-8 as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def rate(value):
    """images/s: three digits at least."""
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ms(value):
    return "-" if value is None else f"{value:.2f} ms" if abs(value) < 100 else f"{value:,.0f} ms"


def seconds(value):
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def percent(ratio, digits=1):
    return "-" if ratio is None else f"{100 * ratio:.{digits}f} %"


BLANK = "\u00a0"  # that is no place to break


def without_control(text):
    """Blanks in place of control characters, directions of writing, and what is no character."""
    return "".join(c if c.isprintable() or c == BLANK else " " for c in str(text))


def lines(text):
    """What may go to a terminal: names and causes of records are other machines'."""
    return "\n".join(map(without_control, text.split("\n")))


def glued(text):
    """A figure and its unit held together."""
    units = "%|°C|W|s|ms|us|min|h|MHz|GHz|[KMGTP]?i?B(/s)?|TFLOP/s|images/s|points"
    return re.sub(rf"(\d) (?=({units})(\W|$))", rf"\1{BLANK}", text)


def unsigned_zero(figure):
    """-0.00 is 0.00."""
    return figure.lstrip("-") if not figure.strip("-0.") else figure


def size(value):
    """Bytes in binary units, as the programs' options take them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:.4g} {unit}"
        value /= 1024


def decimal_size(value):
    """Bytes as links and makers of memory count them: 9.8 PB."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB", "EB"):
        if value < 1000 or unit == "EB":
            return f"{value:.3g} {unit}"
        value /= 1000


def rounded(value):
    """A count: 64304, 2.1e6."""
    return f"{value:.0f}" if value < 1e5 else f"{value:.1e}".replace("e+0", "e").replace("e+", "e")


def count(n, singular, plural=None):
    return f"{n} {singular if n == 1 else plural or singular + 's'}"


def listed(items, last="and"):
    items = list(items)
    return "".join(items) if len(items) < 2 else f"{', '.join(items[:-1])} {last} {items[-1]}"


def ends(interval):
    return "-".join(map(rate, interval))


def batch(conditions):
    if not conditions.batch:
        return ""
    text = f"global batch {conditions.batch}" if conditions.batch_is_global else \
        f"batch {conditions.batch}"
    return text + (f" x {conditions.accumulate}" if conditions.accumulate > 1 else "")


def parts(conditions):
    """Conditions in words, by what they name."""
    return {
        "model": conditions.model,
        "precision": conditions.precision,
        "image_size": f"{conditions.image_size}x{conditions.image_size}",
        "classes": f"{conditions.classes} classes" if conditions.data == "synthetic" and
                   conditions.classes not in (0, 1000) else "",
        "batch": batch(conditions),
        "world_size": count(conditions.world_size, "rank") +
                      (f" on {conditions.nodes} nodes" if conditions.nodes > 1 else ""),
        "optimizer": conditions.optimizer,
        "data": "synthetic data" if conditions.data == "synthetic" else
                "/".join(conditions.data.rsplit("/", 2)[-2:]),
        "throttle_gbs": f"exchange throttled to {conditions.throttle_gbs:g} GB/s"
                        if conditions.throttle_gbs else "",
        "setting": conditions.setting,
        "deterministic": "--deterministic" if conditions.deterministic else "",
        "options": conditions.options,
        "machine": f"{conditions.machine} ({conditions.backend}" +
                   (f", {conditions.transport})" if conditions.transport else ")"),
    }


def setting(conditions, without=()):
    """Conditions in words; `without` names parts to leave out."""
    return ", ".join(text for key, text in parts(conditions).items() if text and key not in without)


def shared(several):
    """The parts in which all these conditions are the same."""
    several = [parts(conditions) for conditions in several]
    return {key for key in several[0] if len({of[key] for of in several}) == 1} if several else set()
