"""`--side-by-side A B...`: machines in one table, with the ratio of each to the first."""

import pathlib

from . import words
from .quantities import KINDS, quantities, shared_keys
from .records import NotComparable, UsageError, machines_of
from .tables import Column, Table, figure


def side_by_side(sides):
    """[Table] of [(path, Summary)]; what only one side measured is left out, and counted."""
    names = [name_of(path, summary) for path, summary in sides]
    for name_by in (lambda path: pathlib.Path(path).stem, str):
        if len(set(names)) < len(names):
            names = [name_by(path) for path, _ in sides]
    found = [quantities(summary) for _, summary in sides]
    tables = [table_of(kind, names, [side[kind] for side in found]) for kind in KINDS]
    tables = [table for table in tables if table]
    if not tables:
        raise NotComparable("--side-by-side: the runs have no configuration, collective or link in "
                            "common")
    return tables


def name_of(path, summary):
    machines = machines_of(summary.runs)
    if len(machines) > 1:
        raise UsageError(f"--side-by-side {path}: has runs of several machines "
                         f"({', '.join(machines)}); name files of one machine each")
    return machines[0]


def table_of(kind, names, sides):
    keyed = [{quantity.what: quantity for quantity in side} for side in sides]
    for name, side, found in zip(names, sides, keyed):
        if len(found) < len(side):
            raise UsageError(f"--side-by-side: {name} measured the same on several numbers of "
                             "nodes")
    rows = [key for key in keyed[0] if all(key in side for side in keyed)]
    if not rows:
        return None
    first = [keyed[0][key] for key in rows]
    shared = shared_keys(first)
    show = words.rate if kind == "steps" else "{:.4g}".format
    common = first[0].name({key for key, _, _ in first[0].what} - shared)
    columns = [Column("", lambda key: keyed[0][key].name(shared))]
    for at, (name, side) in enumerate(zip(names, keyed)):
        columns.append(Column(name, lambda key, side=side: side[key].rate.median, show,
                              KINDS[kind]))
        if at:
            columns.append(Column("ratio", lambda key, side=side: side[key].rate.median /
                                  keyed[0][key].rate.median, figure(2), csv=f"{name} ratio"))
    left = len(set().union(*keyed)) - len(rows)
    notes = [f"ratio: to {names[0]}"] + [f"not measured by all: {left} more"] * (left > 0)
    return Table(f"side_by_side_{kind}", f"{KINDS[kind]}" + (f": {common}" if common else ""),
                 columns, rows, notes)
