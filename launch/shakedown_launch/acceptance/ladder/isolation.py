"""What a search for faulty nodes and paths found out, and the Findings it amounts to."""

import dataclasses

from ..model import FAIL, HARDWARE, INCONCLUSIVE, INFRASTRUCTURE, PASS, WARN, Finding
from .search import left_of


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


# ---- from what a ladder found -------------------------------------------------------------------

def is_silent(tests):
    """Whether most of those that did not pass were inconclusive."""
    bad = [test for test in tests if not test.passed]
    return 2 * sum(test.outcome == INCONCLUSIVE for test in bad) > len(bad)


class Conclusion:
    """An Isolation of what a ladder found. Fails closed: what is neither blamed nor has passed is
    unresolved."""

    def __init__(self, ladder):
        self.ladder = ladder
        self.within, self.across, self.groups = ladder.within, ladder.across, ladder.groups
        self.excused = {unit for units in ladder.islands[self.within] for unit in units}
        self.fabrics = self.groups_without_a_pair()
        self.excused.update(unit for units in self.fabrics for unit in units)
        self.doubtful = self.doubtful_nodes() - self.excused

    def isolation(self, nodes):
        gone = self.within.pool.lost
        lost = tuple(node for node in nodes if node in gone)
        nodes = [node for node in nodes if node not in gone]
        passed = self.ladder.rounds.passed - gone
        if not passed and len(nodes) > 1:
            return Isolation(unresolved=(Unresolved(
                tuple(nodes), "no test of any of them passed: the test, or what all of them share"),
            ), lost=lost, **self.counts())
        blamed = self.blamed()
        faulty, dead = (tuple(self.suspect(unit, tests) for unit, tests in blamed.items()
                              if is_silent(tests) is silent) for silent in (False, True))
        links = tuple(self.links())
        unresolved = self.open_questions()
        bad = {each.node for each in (*faulty, *dead)}
        bad.update(node for each in unresolved for node in each.nodes)
        on_links = {node for link in links for side in link.sides for node in side}
        unproven = tuple(node for node in nodes if node not in bad | passed | on_links)
        if unproven:
            unresolved.append(Unresolved(unproven, "passed in no test"))
        bad.update(node for unit in self.excused for node in unit)
        return Isolation(faulty, dead, links, tuple(unresolved), tuple(self.transients(bad)),
                         tuple(node for node in nodes if node in passed - bad), lost,
                         **self.counts())

    def counts(self):
        return {"tests": self.ladder.rounds.tests, "rounds": self.ladder.rounds.rounds}

    def groups_without_a_pair(self):
        """Of groups of which no node is good, those that pass alone: the fault is in what they
        share."""
        found = (tuple(unit for unit in units if self.passes_alone(unit) and
                       unit not in self.excused)
                 for units in self.groups.values() if len(units) > 2 and all(
                     unit in self.within.faulty for unit in units))
        return [units for units in found if len(units) > 1]

    def passes_alone(self, unit, unknown=False):
        test = self.ladder.alone.get(unit)
        return test.passed if test is not None and test.outcome else unknown

    def blamed(self):
        """By node; a domain of one node is a node."""
        single = {unit: tests for unit, tests in self.across.faulty.items() if self.is_node(unit)}
        lost = {(node,) for node in self.within.pool.lost}
        return {unit: tests for unit, tests in {**self.within.faulty, **single}.items()
                if unit not in self.excused | self.doubtful
                and not (unit in lost and is_silent(tests))}

    def doubtful_nodes(self):
        """Where no domains are given, nodes that do not fail alone, if paths are bad or several
        such nodes are near one another: a switch that they share fits as well."""
        if self.ladder.domains:
            return set()
        suspects = {unit for unit in self.within.faulty if self.passes_alone(unit, unknown=True)}
        if self.within.links or self.across.links or self.across.faulty or self.excused:
            return suspects
        number = {name: i for i, name in enumerate(self.groups)}
        places = {unit: number[self.ladder.home[unit[0]]] for unit in suspects}
        return {unit for unit, own in places.items()
                if sum(abs(place - own) < 2 for place in places.values()) > 2}

    def is_node(self, unit):
        return len(self.groups[self.ladder.home[unit[0]]]) == 1

    def suspect(self, unit, tests):
        failed = [test for test in tests if not test.passed]
        alone = [*tests, *filter(None, [self.ladder.alone.get(unit)])]
        alone = [test.outcome for test in alone if not test.partner]
        return Suspect(unit[0], len(failed), len(tests),
                       tuple(test.partner for test in failed if test.partner), *alone[-1:])

    def links(self):
        for units in self.fabrics:
            yield self.link([units], [test for unit in units for test in self.within.faulty[unit]])
        for sides, tests in self.within.links:
            yield self.link(sides, tests)
        for sides, tests in self.across.links:
            yield self.link(sides, tests)
        yield from self.one_against_the_others()

    def one_against_the_others(self):
        """Islands, and domains that fail with each other domain."""
        islands = [(search, units) for search in (self.within, self.across)
                   for units in self.ladder.islands[search]]
        known = {unit for _, units in islands for unit in units}
        islands += [(self.across, (unit,)) for unit in self.across.faulty
                    if unit not in known and not self.is_node(unit)]
        for search, units in islands:
            yield self.link([units], [test for unit in units for test in search.faulty[unit]], True)

    def link(self, sides, tests, others=False):
        failed = [test for test in tests if not test.passed]
        nodes = [tuple(node for unit in side for node in unit) for side in sides]
        names = [self.name(each) for each in nodes]
        if others:
            nodes.append(tuple(dict.fromkeys(test.partner for test in failed if test.partner)))
            names.append("the others")
        return Link(tuple(nodes), tuple(names), len(failed),
                    sum(test.outcome == INCONCLUSIVE for test in failed))

    def name(self, nodes):
        """The domains' names where these are all of their nodes that are not blamed."""
        homes = {self.ladder.home[node] for node in nodes}
        names = dict.fromkeys(self.ladder.domains.get(node, "") for node in nodes)
        members = {node for home in homes for unit in self.groups[home]
                   if unit not in self.within.faulty for node in unit}
        whole = len(nodes) > 1 and all(names) and members <= set(nodes)
        return ", ".join(names) if whole else name_of(nodes)

    def open_questions(self):
        found = []
        for search in (self.within, self.across):
            found += [Unresolved(tuple(node for unit in units for node in unit), cause)
                      for units, cause in search.unresolved]
        found += [Unresolved(unit, "failed with known-good partners, but paths are bad, too, or "
                                   "neighbours: which nodes share a switch is not known")
                  for unit in sorted(self.doubtful)]
        found += [Unresolved(test.group, "no round was left to test it")
                  for test in self.ladder.rounds.abandoned]
        found += [Unresolved(tuple(node for node, in left_of(self.within, self.groups[name])),
                             "failed again after each attempt to explain it")
                  for name in sorted(self.ladder.failing)]
        if self.ladder.separate:
            found.append(Unresolved(tuple(unit[0] for unit in self.ladder.separate),
                                    "these representatives of their domains failed together again"))
        return [each for each in found if each.nodes]

    def transients(self, bad):
        for search in (self.within, self.across):
            for units, tests in search.cleared:
                nodes = tuple(node for unit in units for node in unit)
                failed = sum(not test.passed for test in tests)
                if failed and not bad.intersection(nodes):
                    yield Unresolved(nodes, f"failed in {failed} of {len(tests)} tests, then "
                                            "passed again and again")


# ---- to findings ---------------------------------------------------------------------------------

PORT = "inspect its network card, cable and switch port"


def findings(isolation, stage, transient=WARN):
    """`transient`: what a failure amounts to that did not repeat. Wrong data is never noise: such a
    stage passes INCONCLUSIVE."""
    def of(node, outcome, cause, class_="", action="", check="isolation"):
        return Finding(stage, outcome, (node,), cause, class_, action, subject=f"node {node}", check=check)
    found = []
    for each in isolation.faulty:
        class_, action = {PASS: (INFRASTRUCTURE, PORT),
                          FAIL: (HARDWARE, "drain; repair by what its single-node stages found")}.get(
            each.alone, ("", "run the stages of one node, then inspect its network card, cable and port"))
        found.append(of(each.node, FAIL, f"fails in {_tests_of(each)}", class_, action))
    for each in isolation.dead:
        known = each.alone == PASS
        cause = f"{'' if known else 'dead or hung, or not comparable: '}inconclusive in {_tests_of(each)}"
        found.append(of(each.node, INCONCLUSIVE, cause, INFRASTRUCTURE * known,
                        PORT if known else "reboot, then run again"))
    found += [of(node, INCONCLUSIVE, "was lost, and did not answer again", INFRASTRUCTURE,
                 "inspect the node and its network", "node-lost") for node in isolation.lost]
    found += [_of_link(each, stage) for each in isolation.links]
    for each, outcome, action in [*((each, INCONCLUSIVE, "run again") for each in isolation.unresolved),
                                  *((each, transient, "") for each in isolation.transient)]:
        whom = f" ({name_of(each.nodes)})" if len(each.nodes) > 1 else ""
        found += [of(node, outcome, each.cause + whom, action=action) for node in each.nodes]  # of its own each
    return found


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
