"""What a search for faulty nodes and paths found out, and the Findings it amounts to."""

import dataclasses

from ..model import FAIL, HARDWARE, INCONCLUSIVE, INFRASTRUCTURE, PASS, WARN, Finding


@dataclasses.dataclass(frozen=True)
class Suspect:
    """A node that did not pass with known-good partners."""
    node: str
    failed: int
    tests: int
    partners: tuple  # it did not pass with
    alone: str = ""  # its outcome without a partner; "" where it was not tested


@dataclasses.dataclass(frozen=True)
class Link:
    """Sides that pass each, and fail together; of one side: no two of its nodes pass together."""
    sides: tuple  # of tuples of node names
    names: tuple  # of each side, as people call it
    failed: int  # tests across it that did not pass, and of them inconclusive
    lost: int = 0


@dataclasses.dataclass(frozen=True)
class Unresolved:
    nodes: tuple
    cause: str


@dataclasses.dataclass(frozen=True)
class Isolation:
    faulty: tuple = ()  # of Suspect
    dead: tuple = ()  # of Suspect: most tests with it were inconclusive
    links: tuple = ()  # of Link
    unresolved: tuple = ()  # of Unresolved
    transient: tuple = ()  # of Unresolved: failed once, then passed again and again
    good: tuple = ()  # nodes that passed and are in none of the above but transient
    lost: tuple = ()  # nodes that no longer answered, and were left out of the further tests
    tests: int = 0
    rounds: int = 0


def name_of(nodes):
    """What people call some nodes, in the order of the allocation."""
    if len(nodes) <= 3:
        return ", ".join(nodes)
    return f"{nodes[0]} to {nodes[-1]} ({len(nodes)} nodes)"


def findings(isolation, stage, transient=WARN):
    """`transient`: what a failure amounts to that did not repeat. Wrong data is never noise: such a
    stage passes INCONCLUSIVE."""
    return [*(_of_faulty(each, stage) for each in isolation.faulty),
            *(_of_dead(each, stage) for each in isolation.dead),
            *(Finding(stage, INCONCLUSIVE, (node,), "was lost, and did not answer again",
                      INFRASTRUCTURE, "inspect the node and its network", subject=f"node {node}",
                      check="node-lost") for node in isolation.lost),
            *(_of_link(each, stage) for each in isolation.links),
            *(found for each in isolation.unresolved
              for found in _of_each(each, stage, INCONCLUSIVE, "run again")),
            *(found for each in isolation.transient
              for found in _of_each(each, stage, transient))]


def _of_each(unresolved, stage, outcome, action=""):
    """A finding per node: each of them lacks a result of its own."""
    whom = f" ({name_of(unresolved.nodes)})" if len(unresolved.nodes) > 1 else ""
    for node in unresolved.nodes:
        yield Finding(stage, outcome, (node,), unresolved.cause + whom, action=action,
                      subject=f"node {node}", check="isolation")


def _of_faulty(suspect, stage):
    class_, action = "", "run the stages of one node, then inspect its network card, cable and port"
    if suspect.alone == PASS:
        class_, action = INFRASTRUCTURE, "inspect its network card, cable and switch port"
    elif suspect.alone == FAIL:
        class_, action = HARDWARE, "drain; repair by what its single-node stages found"
    return Finding(stage, FAIL, (suspect.node,), f"fails in {_tests_of(suspect)}", class_, action,
                   subject=f"node {suspect.node}", check="isolation")


def _of_dead(suspect, stage):
    alone = suspect.alone == PASS
    return Finding(stage, INCONCLUSIVE, (suspect.node,),
                   f"{'' if alone else 'dead or hung, or not comparable: '}inconclusive in {_tests_of(suspect)}",
                   INFRASTRUCTURE if alone else "",
                   "inspect its network card, cable and switch port" if alone else
                   "reboot, then run again", subject=f"node {suspect.node}", check="isolation")


def _tests_of(suspect):
    text = f"{suspect.failed} of {suspect.tests} tests"
    if suspect.partners:
        text += f" with known-good nodes ({', '.join(suspect.partners)})"
    if suspect.alone in (PASS, FAIL):
        text += f"; alone it {'passes' if suspect.alone == PASS else 'fails'}"
    return text + ("; intermittent" if suspect.failed < suspect.tests else "")


def _of_link(link, stage):
    nodes = tuple(node for side in link.sides for node in side)
    lost = f", {link.lost} of them inconclusive" if link.lost else ""
    tests = f"{link.failed} tests{lost}"
    if len(link.names) == 1:
        subject = f"paths within {link.names[0]}"
        cause = f"each passes alone, no two pass together ({tests})"
        action = f"inspect the switch or rail of {link.names[0]}; compare with the others' settings"
    else:
        subject = "link " + " - ".join(link.names)
        cause = f"each side passes, together they fail ({tests})"
        action = f"inspect {subject}; compare the settings of its sides"
    return Finding(stage, INCONCLUSIVE if link.lost == link.failed else FAIL, nodes, cause,
                   INFRASTRUCTURE, action, subject=subject, check="isolation")
