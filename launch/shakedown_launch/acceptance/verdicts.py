"""One verdict per node, from what ran on it and what was found. Fails closed: a stage without a
result, and a program that did not pass and of which nothing was found, are INCONCLUSIVE."""

import dataclasses

from .model import (FAIL, INCONCLUSIVE, INFRASTRUCTURE, OUTCOMES, PASS, WARN, Finding, NodeVerdict,
                    worst)

ORDER = (FAIL, INCONCLUSIVE, WARN)


def verdicts(nodes, runs, findings, expected=None, left_out=None, strict=False, good=None):
    """[NodeVerdict], by name. `expected`: {node: names of the stages of its tier}; without it those
    that ran on any node. `left_out`: {node: why no further stage ran on it}. `strict`: a warning
    is INCONCLUSIVE. `good`: {stage: nodes that passed it, whatever failed as well}."""
    cleared = {(stage, name) for stage, names in (good or {}).items() for name in names}
    ran = list(dict.fromkeys(run.stage for run in runs))
    return [verdict(node, [run for run in runs if node.name in run.nodes], findings,
                    (expected or {}).get(node.name, ran), (left_out or {}).get(node.name, ""),
                    strict, cleared)
            for node in sorted(nodes, key=lambda node: node.name)]


def verdict(node, runs, findings, expected, left_out, strict, cleared):
    ran = list(dict.fromkeys(run.stage for run in runs))
    own = [found for found in findings if found.nodes == (node.name,)]
    own += [untraced(node, found) for found in findings if concerns_each(found, node, findings)]
    own += [found for run in runs if (run.stage, node.name) not in cleared
            for found in unexplained(node, run, findings)]
    missing = tuple(name for name in expected if name not in ran)
    if missing:
        why = f": {left_out}" if left_out else ""
        own.append(Finding(missing[0], INCONCLUSIVE, (node.name,),
                           f"not run: {', '.join(missing)}{why}", check="missing"))
    counted = [(found.stage, outcome_of(found, strict)) for found in own]
    outcome = worst(outcome for _, outcome in counted) if runs else INCONCLUSIVE
    stages = {name: worst(outcome for stage, outcome in counted if stage == name) for name in ran}
    return NodeVerdict(node, outcome, tuple(sorted(own, key=rank)), stages, missing)


def outcome_of(finding, strict):
    """As it counts for the node."""
    if finding.outcome == WARN:
        return INCONCLUSIVE if strict else PASS
    return finding.outcome if finding.outcome in OUTCOMES else INCONCLUSIVE


def concerns_each(finding, node, findings):
    """Whether nodes did not pass together, this one among them, and none of them nor a link between
    them is the one to blame."""
    if node.name not in finding.nodes or len(finding.nodes) == 1 or finding.outcome == WARN:
        return False
    return not any(each.stage == finding.stage and set(each.nodes) <= set(finding.nodes)
                   and (len(each.nodes) == 1 and each.outcome == FAIL
                        or each.class_ == INFRASTRUCTURE) for each in findings)


def untraced(node, finding):
    """None of them has proved to be good."""
    return dataclasses.replace(
        finding, outcome=INCONCLUSIVE, nodes=(node.name,), gpu="",
        cause=f"{finding.cause} ({len(finding.nodes)} nodes together: not traced to one of them)")


def unexplained(node, run, findings):
    """A program that did not pass, and of which nothing was found: an iterable of none or one."""
    if run.code == 0 or any(found.stage == run.stage and set(found.nodes) & set(run.nodes)
                            for found in findings):
        return
    yield Finding(run.stage, FAIL if run.code == 1 and len(run.nodes) == 1 else INCONCLUSIVE,
                  (node.name,), run.note or f"ended with {run.code}, and its record does not say "
                  "why", check="exit-code", evidence=run.log)


def rank(finding):
    """Worst first; among equals what has a class, a GPU or rank, and an action."""
    order = ORDER.index(finding.outcome) if finding.outcome in ORDER else 1
    return order, not finding.class_, not (finding.gpu or finding.subject), not finding.action
