"""What a node lacks, as findings about it. Fails closed: a stage without a result, and what nodes did
not pass together and is traced to none of them, are INCONCLUSIVE."""

import dataclasses

from ..model import FAIL, INCONCLUSIVE, INFRASTRUCTURE, MISSING, WORST_FIRST, Finding

UNFINISHED = ("not-finished", "record")  # checks


def closed(nodes, ran, findings, expected=None, left_out=None):
    """[Finding], each about one node. `ran`: {node: stages}. `expected`: {node: names of the stages of
    its tier}. `left_out`: {node: why no further stage ran on it}."""
    blamed = {each.nodes[0] for each in findings if len(each.nodes) == 1 and each.blames}
    made = [of_one(name, found) for found, names in untraced(findings) for name in sorted(names)]
    blamed.update(each.nodes[0] for each in made)
    for node in nodes:
        stages = ran.get(node.name, ())
        why = (left_out or {}).get(node.name, "")
        why = f": {why}" if why else ""
        lacks = missing(node.name, ran, expected)
        if lacks:
            made.append(Finding(lacks[0], INCONCLUSIVE, (node.name,), f"not run: {', '.join(lacks)}{why}",
                                check=MISSING))
        elif not stages or why and node.name not in blamed:
            stage, what = (list(stages)[-1], "left out") if stages else (MISSING, "nothing ran")
            made.append(Finding(stage, INCONCLUSIVE, (node.name,), what + why, check=MISSING))
    return made


def missing(name, ran, expected):
    """The stages that did not run on the node."""
    return tuple(stage for stage in (expected or {}).get(name, ()) if stage not in ran.get(name, ()))


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


def rank(finding):
    """Worst first; among equals what has a class, a GPU or rank, and an action."""
    return (WORST_FIRST.index(finding.outcome), not finding.class_,
            not (finding.gpu or finding.subject), not finding.action)
