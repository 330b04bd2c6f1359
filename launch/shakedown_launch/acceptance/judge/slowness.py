"""Why a device is slower than its peers: (cause, class, action), from what was read of it and of
them while the figure was measured. What nothing explains is the hardware's."""

import statistics

from ..model import CONFIG, ENVIRONMENT, HARDWARE

REST = 0.02  # a clock explains what is slow up to this share
HOTTER_C = 5
LESS_POWER = 0.97  # of the peers', where the power limit holds the clock
HEAT = ("sw_thermal_slowdown", "hw_thermal_slowdown")
BRAKE = ("hw_power_brake", "hw_slowdown")

PARTS = {  # what is not computed: whose fault it is, and what to do
    "host": (HARDWARE, "reseat; compare generation and width of the link under load "
                       "(nvidia-smi -q)"),
    "memory": (HARDWARE, "inspect ECC and row remapping; if it repeats, RMA"),
    "link": (HARDWARE, "inspect the link's error counters (nvidia-smi nvlink -e); reseat")}


def figure_name(figure):
    """What people call what it is of, on its node."""
    if figure.gpu:
        return f"GPU {figure.gpu.removeprefix('GPU-')[:8]}"
    return f"rank {figure.explains['rank']}" if "rank" in figure.explains else ""


def explain(figure, peers, below, limits, settings):
    """`below`: its ratio to the median. `settings`: {UUID: power limit}."""
    if figure.metric.startswith("setting/"):
        return ("below its peers", CONFIG,
                "set it as its peers'; after a reset it may fall back (nvidia-smi -q)")
    slow = "slow" if figure.higher_is_better else "slower"
    clock, usual = pair(figure, peers, "sm_clock_mhz")
    kind = figure.metric.split("/")[0]
    if figure.conditions.get("backend") == "cpu":
        return slow, "", "run again; if it repeats, look for other work on its cores"
    if kind not in ("compute", "soak", "train"):
        class_, action = PARTS.get(kind, ("", "run again; if it repeats, inspect the node's links"))
        return f"{slow}, which no clock explains", class_, action
    if clock is None:
        return f"{slow}; its clock is unknown", "", "run again; then compare the clocks"
    clocks = f"{clock:,.0f} against {usual:,.0f} MHz"
    rest = below / (clock / usual)
    if rest < 1 - REST and rest < limits.warn:
        return (f"{slow} at a normal clock ({clocks})" if clock / usual > 1 - REST else
                f"{slow}, more than its clock explains ({clocks})"), HARDWARE, \
            "run again in another slot or on another day; if it repeats, RMA"
    part = "all of it clock" if rest >= 1 - REST else "most of it clock"
    why, class_, action = explain_clock(figure, peers, settings)
    return f"{slow}, {part} ({clocks}), {why}", class_, action


def explain_clock(figure, peers, settings):
    limit, usual_limit = power_limits(figure, peers, settings)
    if limit and limit < 0.99 * usual_limit:
        return (f"at a power limit of {limit:.0f} against {usual_limit:.0f} W", CONFIG,
                "set the power limit as its peers' (nvidia-smi -pl)")
    heat, usual_heat = pair(figure, peers, "temperature_c")
    reasons = figure.explains.get("throttle_reasons")
    named = reasons.split() if isinstance(reasons, str) else []
    hotter = heat is not None and heat >= usual_heat + HOTTER_C
    degrees = f"{heat:.0f} °C against {usual_heat:.0f}" if heat is not None else "heat"
    if hotter or any(reason in named for reason in HEAT):
        return f"{degrees}: cooling", ENVIRONMENT, "inspect cooling: airflow, heat sink, inlet"
    if any(reason in named for reason in BRAKE):
        return (f"slowed by the hardware ({reasons})", ENVIRONMENT,
                "inspect the power supply and its cables")
    if "sw_power_cap" in named:
        power, usual_power = pair(figure, peers, "power_w")
        if power is not None and power < LESS_POWER * usual_power:
            return (f"at its power limit with {power:.0f} against {usual_power:.0f} W", CONFIG,
                    "compare the power limits (nvidia-smi -q -d POWER)")
        return ("at its power limit as its peers: it needs more power for its clock", ENVIRONMENT,
                "compare voltage, cooling and power limits; RMA only if the vendor's floor is "
                "missed")
    if reasons in (None, "unknown"):
        return ("for a reason that the driver does not report", "",
                "run again where it reports throttle reasons")
    return ("and nothing held it down: a locked clock", CONFIG,
            "reset the clocks (nvidia-smi -rgc, -rac)")


def number(figure, key):
    value = figure.explains.get(key)
    return value if isinstance(value, (int, float)) and value == value and value > 0 else None


def pair(figure, peers, key):
    """(its reading, the median of its peers'), (None, None) where one is not known."""
    own = number(figure, key)
    others = [number(each, key) for each in peers if each is not figure]
    others = [value for value in others if value is not None]
    return (own, statistics.median(others)) if own is not None and others else (None, None)


def power_limits(figure, peers, settings):
    known = [settings[each.gpu].value for each in peers if each.gpu in settings and each.gpu]
    if not figure.gpu or figure.gpu not in settings or not known:
        return pair(figure, peers, "power_limit_w")
    return settings[figure.gpu].value, statistics.median(known)
