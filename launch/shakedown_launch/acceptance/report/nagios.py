"""One line and an exit code, as Nagios, Icinga and Naemon want them of a plugin."""

import math

from ...words import clean, count, nodes
from ..model import FAIL, INCONCLUSIVE, PASS, WARN, WORST_FIRST
from . import digest, series

OK, WARNING, CRITICAL, UNKNOWN = range(4)
STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
TEXT = 400  # characters
FIGURES = 16
LINE = 1000  # NRPE 2 cuts after 1,023


def line(acceptance):
    """(text, exit code). INCONCLUSIVE is UNKNOWN; what only warns is WARNING, but what the site has
    accepted, and facts that are not known, leave a node OK."""
    code = code_of(acceptance)
    text = f"ACCEPTANCE {STATES[code]} - {sentence(acceptance)}"
    text = clean(text, TEXT).replace("|", "/")  # what follows a bar is performance data
    for number, data in enumerate(performance(acceptance)):
        word = (" | " if number == 0 else " ") + data
        if len((text + word).encode()) > LINE:
            break
        text += word
    return text, code


def code_of(acceptance):
    if acceptance.outcome == FAIL:
        return CRITICAL
    if acceptance.outcome != PASS:
        return UNKNOWN
    return WARNING if any(each.outcome == WARN for each in findings(acceptance)) else OK


def findings(acceptance):
    """Worst first, without what is listed apart."""
    found = [each for each in acceptance.all_findings() if not digest.is_apart(acceptance, each)]
    return sorted(found, key=lambda each: WORST_FIRST.index(each.outcome))


def sentence(acceptance):
    total = len(acceptance.verdicts)
    parts = []
    for outcome in (FAIL, INCONCLUSIVE):
        names = [each.node.name for each in acceptance.verdicts if each.outcome == outcome]
        if names:
            parts.append(f"{len(names)} of {count(total, 'node')} {outcome}: {nodes(names, 60)}")
    if not parts:
        parts.append(f"{count(total, 'node')} {PASS}{digest.reservation(acceptance)}" if total
                     else "no node was judged")
    found = findings(acceptance)
    if found:
        first = found[0]
        subject = "" if digest.is_named(first) else first.subject
        where = " ".join(filter(None, [",".join(first.nodes[:2]), subject]))
        parts.append(f"{where}: {first.cause}" if where else first.cause)
    facts = len(digest.apart(acceptance)[digest.NOT_KNOWN])
    if facts:
        parts.append(f"{count(facts, 'fact')} not known")
    parts += filter(None, [digest.would_have_found(acceptance)])
    return "; ".join(parts)


def performance(acceptance):
    """label=value[unit];warn;crit;min;max. A figure is that of the worst GPU or node, and is
    critical beyond its limit."""
    of = [each.outcome for each in acceptance.verdicts]
    yield f"nodes={len(of)};;;0"
    yield f"pass={of.count(PASS)};;;0;{len(of)}"
    yield f"fail={of.count(FAIL)};;0;0;{len(of)}"
    yield f"inconclusive={of.count(INCONCLUSIVE)};0;;0;{len(of)}"
    yield f"time={acceptance.seconds:.0f}s;;;0"
    for each in series.headlines(series.measured(acceptance), FIGURES):
        limit = f"{each.limit:.6g}" if math.isfinite(each.limit) else ""
        label = each.name.replace("'", "").replace("=", "").replace("|", "/")
        yield f"'{label}'={each.worst.value:.6g};;" + \
            (f"{limit}:" if limit and each.higher_is_better else limit)
