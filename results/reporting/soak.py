"""What a soak proves, and what its loads did, in sentences: from its `soak_summary` record."""

from . import words
from .records import number, numbers_in

WAYS = {"copied_to_device_bytes": "host to device", "copied_within_device_bytes": "within the device",
        "copied_to_host_bytes": "device to host"}
TYPES = "checked_over_unchecked."


def statement(record):
    """"0 wrong in 2.1e6 products, 9.8 PB of memory: rate below 12 per GPU-hour at 95 %": the rule of three, 3 / T
    where none was seen in T hours; and with what power. Empty of a record without these numbers."""
    hours, wrong = number(record, "gpu_hours"), number(record, "wrong")
    if None in (hours, wrong):
        return ""
    parts = [f"{words.rounded(number(record, key))} {what}" for key, what in
             (("products", "products"), ("probes", "probes of processors")) if number(record, key)]
    alone = number(record, "products_self_compared")
    if parts and alone:
        parts[0] += f", of which {words.rounded(alone)} were compared only with themselves"
    parts += [f"{words.decimal_size(number(record, key))} {what}" for key, what in
              (("memory_bytes", "of memory"), ("copied_bytes", "copied"), ("link_bytes", "over links"))
              if number(record, key)]
    if not parts:
        return "nothing was checked"
    done = f"{words.rounded(wrong)} wrong in {', '.join(parts)}"
    unit = "rank" if record.get("backend") == "cpu" else "GPU"
    if wrong or not hours:
        return done
    power = record.get("would_have_found")
    return f"{done}: rate below {3 / hours:.3g} per {unit}-hour at 95 %{f'; {power}' if power else ''}"


def proved(run, record):
    """Before there were numbers the verdict's cause had the statement."""
    return statement(record) or next((line["cause"] for line in reversed(run.of("verdict"))
                                      if line.get("scope") == "job" and line.get("cause")), "")


def statements(summary):
    return [proved(run, record) for run in summary.runs for record in run.of("soak_summary")]


def sentences(summary):
    """Of each soak: what it proves, and what each load did on the rank that did least."""
    for run, record in ((run, record) for run in summary.runs for record in run.of("soak_summary")):
        for text in (proved(run, record), memory(record), probes(record), copies(record), rates(record), energy(record)):
            if text:
                yield f"{text}."


def memory(record):
    share, passes = (min(numbers_in(record, key), default=None) for key in ("memory_share", "memory_passes"))
    if passes is None:
        return ""
    of = "" if share is None else f"{words.percent(share)} of a GPU's memory, "
    tested = min(numbers_in(record, "memory_tested_bytes"), default=None)
    size = "" if tested is None else f"{words.size(tested)}, "
    done = min(numbers_in(record, "memory_patterns_done"), default=None)
    more = "" if done is None else f" and {words.count(int(done), 'pattern')} of the next"
    return f"Memory: {of}{size}{words.count(int(passes), 'complete pass', 'complete passes')}{more}"


def probes(record):
    reached, all_ = (sum(numbers_in(record, key)) for key in ("processors_reached", "processors"))
    if not all_:
        return ""
    ratios, names = record.get("slowest_processor_ratio") or [], record.get("slowest_processor") or []
    found = [(ratio, name, rank) for rank, (ratio, name) in enumerate(zip(ratios, names)) if ratio is not None]
    unit = "core" if record.get("backend") == "cpu" else "SM"
    text = f"Probes reached {reached:.0f} of {all_:.0f} {unit}s"
    if found:
        ratio, name, rank = max(found)
        text += f"; the slowest, {unit} {name:.0f} of rank {rank}, takes {ratio:.3f} of the median's time"
    return text


def copies(record):
    ways = [f"{words.decimal_size(sum(numbers_in(record, key)))} {way}" for key, way in WAYS.items() if key in record]
    return f"Copies: {', '.join(ways)}" if ways else ""


def rates(record):
    ratio = number(record, "checked_over_unchecked")
    types = ", ".join(f"{key[len(TYPES):]} {100 * record[key]:.1f}" for key in record if key.startswith(TYPES))
    return "" if ratio is None else \
        f"Checked products run at {words.percent(ratio)} of the rate of unchecked ones ({types})"


def energy(record):
    joules = number(record, "energy_j")
    return "" if joules is None else f"Energy: {joules / 1e3:.4g} kJ"
