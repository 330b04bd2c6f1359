"""Whether a figure and a reference's figure were measured alike: conditions, data and path."""

import dataclasses

PATH = ("transport", "mpi_algorithm", "algorithm", "protocol", "transports", "nvls")
SETTINGS = ("setting/", "path/")  # what figures depend on, themselves not compared
POWER_LIMIT, LINKS = "setting/power_limit", "setting/nvlinks"


def with_paths(figures):
    """The figures of operations whose path another run on the same nodes logged, with it in their
    conditions: NCCL chooses it by operation and size, and to log it would be in the time."""
    paths = {(each.nodes, operation(each)): each.conditions for each in figures
             if each.metric.startswith("path/")}
    found = []
    for each in figures:
        logged = each.metric.startswith("collective/")
        known = paths.get((each.nodes, operation(each)), {}) if logged else {}
        more = {key: known[key] for key in PATH if key in known and key not in each.conditions}
        if more:
            each = dataclasses.replace(each, conditions={**each.conditions, **more})
        found.append(each)
    return found


def operation(figure):
    """("all_reduce", "float32", "67108864"), of a collective or of its path."""
    return tuple(figure.metric.split("/")[1:4])


def nearest(figure, reference):
    """The figure of the reference that differs least in what it was measured under."""
    return min((each for each in reference.figures
                if (each.metric, each.unit) == (figure.metric, figure.unit)), default=None,
               key=lambda each: (bool(differences(figure, each)), not each.may_fail,
                                 bool(other_path(figure, each)),
                                 differences(figure, each).count(";")))


def differences(figure, entry):
    """"seconds 0.2, reference 1"; "" where it may be compared."""
    other = [f"{key} {figure.conditions.get(key, 'unknown')}, reference {value}"
             for key, value in entry.conditions.items() if figure.conditions.get(key) != value]
    return "; ".join(other + ([other_data(figure, entry)] if other_data(figure, entry) else []))


def other_data(figure, entry):
    data = figure.conditions.get("data", "")
    return f"data {data}, reference {entry.data}" if entry.data and data not in (
        "", entry.data) else ""


def other_path(figure, entry):
    """An unknown path is no other one, but then nothing is blamed on the hardware."""
    return "; ".join(f"{key} {figure.conditions[key]}, reference {value}"
                     for key, value in entry.path.items()
                     if figure.conditions.get(key, value) != value)


def listed(metrics):
    metrics = list(dict.fromkeys(metrics))
    more = f" and {len(metrics) - 3} more" if len(metrics) > 3 else ""
    return ", ".join(metrics[:3]) + more
