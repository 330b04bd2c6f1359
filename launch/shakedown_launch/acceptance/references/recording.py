"""A reference made of what good nodes measured: --record-reference."""

import statistics

from ...places import UsageError
from ..model import PASS, Acceptance
from .file import ALLOWED, MEASURED, UNITS, Reference, ReferenceFigure, write
from .likeness import LINKS, PATH, POWER_LIMIT, SETTINGS, listed, with_paths


def record(acceptances, path, name=""):
    """Writes the reference that the nodes make which passed; of one acceptance or several. What a
    CPU backend measured is not validated: its cores do other work as well."""
    if isinstance(acceptances, Acceptance):
        acceptances = [acceptances]
    groups, nodes = {}, []
    for acceptance in acceptances:
        good = {each.node.name: each.node for each in acceptance.verdicts if each.outcome == PASS}
        nodes += good.values()
        for figure in with_paths(acceptance.figures):
            if set(figure.nodes) <= set(good):
                key = figure.metric, figure.unit, tuple(sorted(figure.conditions.items()))
                groups.setdefault(key, []).append(figure)
    if not nodes:
        raise UsageError(f"--record-reference {path}: no node passed")
    devices = {dict(key[2]).get("device") for key in groups} - {None, ""}
    if len(devices) != 1:
        raise UsageError(f"--record-reference {path}: one model of GPU or processor is allowed, "
                         f"found: {', '.join(sorted(devices)) or 'none'}")
    settings = {metric: {each.value for each in group} for (metric, _, _), group in groups.items()
                if metric.startswith(SETTINGS)}
    about = {"kind": MEASURED, "date": max(each.started for each in acceptances)[:10],
             "source": "launch/acceptance --record-reference, tier "
                       f"{'/'.join(sorted({each.tier for each in acceptances}))}, "
                       f"{listed([node.name for node in nodes])}",
             "versions": versions(nodes),
             "power_limit_w": only(settings.get(POWER_LIMIT))}
    figures = [recorded(key, group, about) for key, group in sorted(groups.items(), key=str)
               if key[1] in UNITS and statistics.median(each.value for each in group) > 0]
    ranks = {each.conditions.get("ranks_per_node") for each in figures} - {None}
    links = settings.get(LINKS)
    write(path, Reference(
        name=name or path.rpartition("/")[2].removesuffix(".json"), devices=tuple(devices),
        figures=tuple(figures), ranks_per_node=tuple(sorted(ranks)),
        link="" if not links else "nvlink" if min(links) > 0 else "pcie",
        power_limit_w=about["power_limit_w"]))


def recorded(key, group, about):
    metric, unit, conditions = key[0], key[1], dict(key[2])
    conditions.pop("device", None)
    data = conditions.pop("data") if conditions.get("data") in ALLOWED["data"] else ""
    values = [each.value for each in group]
    spreads = [statistics.stdev(each.samples) for each in group if len(each.samples) > 2]
    spreads += [statistics.stdev(values)] if len(values) > 2 else []
    return ReferenceFigure(
        metric=metric, value=statistics.median(values), unit=unit, data=data,
        path={key: conditions.pop(key) for key in PATH if key in conditions},
        conditions=conditions, spread=max(spreads, default=None), samples=len(values),
        units=len({(each.nodes, each.gpu, each.explains.get("rank")) for each in group}),
        validated=conditions.get("backend") != "cpu",
        sm_clock_mhz=middle(group, "sm_clock_mhz"), temperature_c=middle(group, "temperature_c"),
        **about)


def middle(group, key):
    known = [each.explains[key] for each in group if key in each.explains]
    return statistics.median(known) if known else None


def only(values):
    return next(iter(values)) if values and len(values) == 1 else None


def versions(nodes):
    """Those that all nodes have."""
    return {key: value for key, value in nodes[0].identity.items()
            if (key.startswith("versions.") or key == "driver")
            and all(node.identity.get(key) == value for node in nodes)}
