"""The power of tools that test GPUs by products: which share of the faults of a class each finds, and when. `results/report --power SOAK
PLACEMENTS` prints it for the rates of a recorded soak and the q that tests/faulty/run --placement has measured; docs/burn-in.md has it for
one H200.

Computed, as no measurement reaches a fault that is wrong once in a billion products: the probability that it shows in one of the
products, or changes of place, that a tool compares. The models are not nature's. A fault is in a unit, an SM or a lane of
one, or in none. It is wrong in a share e of the unit's elements, always the same ones for the same operands (it sticks), or in a share r
of all products (it comes and goes). q is the share of blocks that run on another SM than in the first product.
"""

import collections
import dataclasses
import itertools
import math
import statistics

from . import words
from .records import UsageError, number, text

HORIZONS = (10, 120, 900)  # seconds
TYPES = ("int8", "fp8", "bf16", "fp16", "tf32", "fp32", "fp64")  # in the order of a soak's cycle
ELEMENTS = 8192 * 8192  # of a product
SMS, LANES = 132, 8 * 32  # of H100 and H200; of an SM that computes a product
UNITS = {"SM": SMS, "lane": SMS * LANES}
SEEDS = 4  # of operands in a window; in every other window of a type one of them is of integers
TURN_S = {"fp8": 0.1, "int8": 0.2}  # at least, of a seed in one place; of the other types, whose k is smaller, 0.05
TURNS = 3, 32  # of a seed, at least and at most
WINDOW_S = 2
BETWEEN_S = 0.1  # about, on an H200: records from before soak_summary had it
SHARES = {"square": 0.5, "mixed": 0.85}  # of the products that a steady window of that length has
BURN_PRODUCTS = 470  # of gpu-burn, between two comparisons: those that an H200's memory holds


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    unit: str = "lane"
    e: float = 1.0  # share of the unit's elements, where it sticks
    r: float = None  # share of the products, where it comes and goes; None: it sticks
    q: float = None  # None: the tool's, as measured
    integers: bool = False  # whether operands of small integers show it too
    nan: bool = False  # what is wrong is NaN
    one_type: bool = False  # of the seven alone
    alike: bool = False  # on all SMs, and so in all places
    brief: bool = False  # a row of the README's table


CLASSES = (
    Fault("an SM, always, whatever the data", "SM", integers=True),
    Fault("an SM or lane, always, data of full entropy"),
    Fault("the same, were each block on the same SM in every product (q = 0)", q=0.0),
    Fault("a lane, 1e-4 of its elements", e=1e-4, brief=True),
    Fault("the same, in one type of seven", e=1e-4, one_type=True, brief=True),
    Fault("an SM, 1e-8 of its elements", "SM", e=1e-8, brief=True),
    Fault("a lane, 1e-4 of its elements, NaN", e=1e-4, nan=True, brief=True),
    Fault("all SMs alike, 1e-7 of the elements, integers too", "SM", e=1e-7, alike=True, integers=True),
    Fault("all SMs alike, 1e-7 of the elements, full entropy alone", "SM", e=1e-7, alike=True),
    *(Fault(f"1e-{digits} of the products", r=10.0 ** -digits, integers=True, brief=digits in (4, 5)) for digits in range(3, 10)),
    Fault("1e-4 of the products, in one type of seven", r=1e-4, integers=True, one_type=True),
)


@dataclasses.dataclass(frozen=True)
class Window:
    """Products of one type, compared at its end."""
    type: str
    end: float  # seconds from the start
    products: float
    turns: int = 1  # pairs of operands of full entropy and place
    known: int = 1  # operands of integers, whose product is known
    q: float = 0.0  # of a tool that compares products with the first one


@dataclasses.dataclass(frozen=True)
class Rates:
    """Of one GPU."""
    products: dict  # {type: per second}, in the order of TYPES
    between_s: float = BETWEEN_S  # seconds between two windows
    q: dict = dataclasses.field(default_factory=dict)  # {type: of the loop's blocks}


def rates_of(runs):
    """Of the steady windows of soaks, and q of the loop's products. gpu-burn's is that of the loop in fp32, whose product is the same."""
    done, seconds = {}, {}
    for line in (line for run in runs for line in run.of("soak")):
        shape, _, rest = text(line, "phase").partition(" ")
        if shape == "steady" and rest.startswith("products ") and number(line, "seconds") and number(line, "world_size"):
            name = rest.split()[1]
            done[name] = done.get(name, 0) + (number(line, "checked_products") or 0) / line["world_size"]
            seconds[name] = seconds.get(name, 0) + line["seconds"]
    rates = {name: done[name] / seconds[name] for name in TYPES if done.get(name)}
    if not rates:
        raise UsageError("--power: the record has no steady products of bin/soak")
    between = [line["between_windows_s"] for run in runs for line in run.of("soak_summary") if line.get("between_windows_s")]
    placements = [line for run in runs for line in run.of("placement") if text(line, "tool") == "loop" and "q" in line]
    return Rates(rates, statistics.mean(between) if between else BETWEEN_S, {line["type"]: line["q"] for line in placements})


def soak(total_s, rates):
    """The windows of a lone GPU's soak, as launch/node/soak/schedule.cpp has them. In less than half a minute without
    memory, which would not be covered."""
    types, between_s = list(rates.products), rates.between_s
    others = (0.05, 0.4), (0.05, 0.4), *([(0.15, 1)] if total_s > 30 else [])  # shares of a window in the sweep, in a cycle
    each = min(WINDOW_S, total_s / (2 * (len(types) + 2 + sum(share for _, share in others))))
    windows, now, of_type = [], 0.0, collections.Counter()

    def add(name, seconds, share=1.0):
        nonlocal now
        least, most = TURNS
        turns = min(most, max(least, int(seconds / SEEDS / TURN_S.get(name, 0.05)) if share != SHARES["square"] else 0))
        seconds = max(seconds, SEEDS * turns / rates.products[name])  # a product of each at least
        now += seconds + between_s
        of_type[name] += 1
        windows.append(Window(name, now, max(share * rates.products[name] * seconds, SEEDS * turns), (SEEDS - 1) * turns,
                              of_type[name] % 2))

    for name in types:
        add(name, 0)
    now += sum(share * each + between_s for share, _ in others)
    for cycle in itertools.count():
        for name in types:
            add(name, each)
        add(types[cycle % len(types)], each, SHARES["square"])
        add(types[(cycle + 1) % len(types)], each, SHARES["mixed"])
        now += sum(share * each + between_s for _, share in others)
        if now >= total_s:
            return [window for window in windows if window.end <= total_s]


def burn(total_s, rates):
    """gpu-burn: one type, one pair of operands; a comparison whenever the memory is full of products."""
    step = BURN_PRODUCTS / rates.products["fp32"]
    return [Window("fp32", (i + 1) * step, BURN_PRODUCTS, q=rates.q["fp32"]) for i in range(int(total_s / step))]


def loop(total_s, rates):
    """Products of one pair of operands, each compared with the first."""
    return [Window("bf16", i + 1.0, rates.products["bf16"], q=rates.q["bf16"]) for i in range(int(total_s))]


def at_least_once(p, n):
    return 1.0 if p >= 1 and n > 0 else -math.expm1(n * math.log1p(-p))


def shows(fault, tool, q):
    """([(share of the faults, P per count that one shows)], count of a window); a fault of the rest never shows."""
    elements = ELEMENTS / (1 if fault.alike else UNITS[fault.unit])
    excited = at_least_once(fault.e, elements)  # by one pair of operands, or in one place
    if fault.r is not None:
        return [(1.0, fault.r)], lambda window: window.products
    if tool is soak:
        if fault.alike:
            return [(1.0, excited if fault.integers else 0.0)], lambda window: window.known
        return [(1.0, excited)], lambda window: window.turns
    if fault.alike or fault.nan and tool is burn:  # fabsf(NaN - x) > EPSILON is false
        return [], lambda window: 0
    # The first product has an element that is wrong, then one shows that is right (NaN is no NaN); or it has none, then one shows whose
    # blocks have moved such that the unit has one of the product's elements that excite the fault.
    any_element = at_least_once(fault.e, ELEMENTS)
    moved_to = at_least_once(1 / UNITS[fault.unit], max(1, fault.e * ELEMENTS)) if fault.e < 1 else 1.0
    return [(excited, 1.0 if fault.nan else q), (any_element - excited, q * moved_to)], lambda window: window.products


def share(fault, tool, windows):
    """Of such faults that are found in these windows."""
    if not windows:
        return 0.0
    of_faults, count = shows(fault, tool, windows[0].q if fault.q is None else fault.q)
    types = TYPES if fault.one_type else (None,)  # None: any
    counts = [sum(count(window) for window in windows if name in (None, window.type)) for name in types]
    return statistics.mean(sum(part * at_least_once(p, n) for part, p in of_faults if p) for n in counts)


def median(fault, tool, windows):
    """Seconds until half of them are found; infinite where fewer are."""
    if share(fault, tool, windows) < 0.5:
        return math.inf
    none, half = 0, len(windows)  # of the first windows
    while none + 1 < half:
        middle = (none + half) // 2
        none, half = (none, middle) if share(fault, tool, windows[:middle]) >= 0.5 else (middle, half)
    return windows[half - 1].end


def percent(share):
    """Neither 0 nor 100 where it is not."""
    figure = f"{100 * share:.0f}" if share in (0, 1) or 0.095 <= share < 0.995 else f"{100 * share:.1f}"
    return {"0.0": "<0.1", "100.0": ">99.9"}.get(figure, figure)


def cell(fault, tool, plans):
    """"24 / 97 / 100, 32 s"."""
    half = median(fault, tool, plans[-1])
    return " / ".join(percent(share(fault, tool, windows)) for windows in plans) + (
        f", {words.seconds(half)} s" if math.isfinite(half) else "")


TOOLS = (("bin/soak, one GPU", soak), ("gpu-burn, fp32", burn), ("PyTorch loop, bf16", loop))


def classes(rates):
    """The table: a row per class, a cell per tool."""
    tools = [(name, tool) for name, tool in TOOLS if tool is soak or ("fp32" if tool is burn else "bf16") in rates.products.keys() & rates.q]
    plans = {tool: [tool(total_s, rates) for total_s in HORIZONS] for _, tool in tools}
    return ["class", *(name for name, _ in tools)], [
        [fault.name, *(cell(fault, tool, plans[tool]) for _, tool in tools)] for fault in CLASSES]


def brief(runs, horizon_s=120):
    """Markdown: the README's table, of what is found within two minutes."""
    rates = rates_of(runs)
    return markdown(["fault", *(name for name, _ in TOOLS)], [
        [fault.name, *(percent(share(fault, tool, tool(horizon_s, rates))) for _, tool in TOOLS)] for fault in CLASSES if fault.brief]) + "\n"


def lengths(rates):
    """What a soak finds at 95 %, by its length: formulas of launch/node/soak/power.hpp."""
    rows = []
    for total_s in (5, *HORIZONS, 4 * 3600):
        done = soak(total_s, rates)
        turns = min(sum(window.turns for window in done if window.type == name) for name in rates.products)
        products = sum(window.products for window in done)
        rows.append([f"{total_s} s" if total_s < 120 else f"{total_s / 60:g} min" if total_s < 3600 else f"{total_s / 3600:g} h",
                     words.rounded(products), words.rounded(turns), *(words.rounded(ELEMENTS * turns / units / 3)
                                                                      for units in UNITS.values()), words.rounded(products / 3)])
    return ["soak", "products", "turns of the type with fewest", "an SM wrong for 1 element in", "a lane for 1 in",
            "one product in"], rows


def waits(rates):
    """How long until 95 % of faults are found, of the rare ones."""
    per_second = sum(window.products for window in soak(900, rates)) / 900
    fastest = max(rates.products, key=rates.products.get)
    return ["of the products", "the soak", f"{fastest} alone"], [
        [f"1e-{digits}", *(duration(3 * 10 ** digits / rate) for rate in (per_second, rates.products[fastest]))]
        for digits in range(4, 10)]


def duration(seconds):
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def markdown(heads, rows):
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def page(runs):
    """Markdown: the three tables of docs/burn-in.md that are computed."""
    rates = rates_of(runs)
    per_second = ", ".join(f"{name} {rate:.3g}" for name, rate in rates.products.items())
    return "\n\n".join([
        f"Products per second of the record: {per_second}. q: {', '.join(f'{name} {q:.2g}' for name, q in rates.q.items()) or 'not measured'}.",
        "Found within 10 s / 2 min / 15 min, %, median time:",
        markdown(*classes(rates)),
        "What a soak of this length finds at 95 %:", markdown(*lengths(rates)),
        "Time until a fault that comes and goes is found, at 95 %:", markdown(*waits(rates))]) + "\n"

