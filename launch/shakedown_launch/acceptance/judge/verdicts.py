"""One verdict per node, from what ran on it and what was found. Fails closed: a stage without a
result, and a program that did not pass and of which nothing was found, are INCONCLUSIVE."""

import dataclasses

from ..model import (FAIL, INCONCLUSIVE, INFRASTRUCTURE, MISSING, OUTCOMES, PASS, WORST_FIRST,
                     Finding, NodeVerdict, worst)

UNFINISHED = ("not-finished", "record")  # checks


def verdicts(nodes, runs, findings, expected=None, left_out=None, strict=False, good=None):
    """[NodeVerdict], by name. `expected`: {node: names of the stages of its tier}; without it those
    that ran on any node. `left_out`: {node: why no further stage ran on it}. `strict`: what
    blames nobody is INCONCLUSIVE as well, unless it is accepted. `good`: {stage: nodes that passed
    it, whatever failed as well}."""
    cleared = {(stage, name) for stage, names in (good or {}).items() for name in names}
    ran = list(dict.fromkeys(run.stage for run in runs))
    runs_of, found_of, named = {}, {}, {}
    for run in runs:
        for name in run.nodes:
            runs_of.setdefault(name, []).append(run)
    for found in findings:
        named.setdefault(found.stage, set()).update(found.nodes)
        if len(found.nodes) == 1:
            found_of.setdefault(found.nodes[0], []).append(found)
    for found, names in untraced(findings):
        for name in names:
            found_of.setdefault(name, []).append(of_one(name, found))
    return [verdict(node, runs_of.get(node.name, []), found_of.get(node.name, []), named,
                    (expected or {}).get(node.name, ran), (left_out or {}).get(node.name, ""),
                    strict, cleared)
            for node in sorted(nodes, key=lambda node: node.name)]


def verdict(node, runs, own, named, expected, left_out, strict, cleared):
    """`own`: the findings about it. `named`: {stage: nodes that any finding is about}."""
    ran = list(dict.fromkeys(run.stage for run in runs))
    own = [*own, *(found for run in runs if (run.stage, node.name) not in cleared
                   for found in unexplained(node, run, named))]
    missing = tuple(name for name in expected if name not in ran)
    why = f": {left_out}" if left_out else ""
    if left_out and not missing and ran and not any(found.blames for found in own):
        own.append(Finding(ran[-1], INCONCLUSIVE, (node.name,), f"left out{why}", check=MISSING))
    if missing:
        own.append(Finding(missing[0], INCONCLUSIVE, (node.name,),
                           f"not run: {', '.join(missing)}{why}", check=MISSING))
    counted = [(found.stage, outcome_of(found, strict)) for found in own]
    outcome = worst(outcome for _, outcome in counted) if runs else INCONCLUSIVE
    stages = {name: worst(outcome for stage, outcome in counted if stage == name) for name in ran}
    return NodeVerdict(node, outcome, tuple(sorted(own, key=rank)), stages, missing)


def outcome_of(finding, strict):
    """As it counts for the node."""
    if not finding.blames:
        return INCONCLUSIVE if strict and not finding.accepted else PASS
    return finding.outcome if finding.outcome in OUTCOMES else INCONCLUSIVE


def untraced(findings):
    """(Finding, nodes) of nodes that did not pass together, where none of them nor a link between
    them is the one to blame, or where the program did not come to its end for any of them."""
    to_blame = {}
    for each in findings:
        if each.outcome == FAIL and len(each.nodes) == 1 or \
                each.blames and each.class_ == INFRASTRUCTURE:
            to_blame.setdefault(each.stage, set()).add(frozenset(each.nodes))
    for each in findings:
        names = frozenset(each.nodes)
        if len(names) > 1 and each.blames and (each.check in UNFINISHED or not any(
                blamed <= names for blamed in to_blame.get(each.stage, ()))):
            yield each, names


def of_one(name, finding):
    """None of them has proved to be good."""
    return dataclasses.replace(
        finding, outcome=INCONCLUSIVE, nodes=(name,), gpu="",
        cause=f"{finding.cause} ({len(finding.nodes)} nodes together: not traced to one of them)")


def unexplained(node, run, named):
    """A program that did not pass, and of which nothing was found: an iterable of none or one."""
    if run.code == 0 or not named.get(run.stage, set()).isdisjoint(run.nodes):
        return
    yield Finding(run.stage, FAIL if run.code == 1 and len(run.nodes) == 1 else INCONCLUSIVE,
                  (node.name,), run.note or f"ended with {run.code}, and its record does not say "
                  "why", check="exit-code", evidence=run.log)


def rank(finding):
    """Worst first; among equals what is off by most, then what has a class, a GPU or rank, and an
    action."""
    order = WORST_FIRST.index(finding.outcome) if finding.outcome in WORST_FIRST else 1
    return order, -finding.off, not finding.class_, not (finding.gpu or finding.subject), not finding.action
