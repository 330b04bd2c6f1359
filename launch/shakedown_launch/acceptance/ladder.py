"""Which node, or which path between nodes, a failure of several nodes belongs to.

Screen each domain; bisect what failed; where all parts pass and the whole fails, find the boundary
between them by mixed groups; confirm each suspect with known-good partners, another one each time,
before it is blamed; test what is left of a domain again; test representatives of the domains
together. docs/engineering/isolation.md has the method, what it finds and what it misses."""

import math

from .isolation import Isolation, Link, Suspect, Unresolved, name_of
from .ladder_rounds import Pool, Rounds
from .ladder_search import Search, parts_of
from .model import INCONCLUSIVE

ROUNDS = 60  # what is open then is unresolved
ATTEMPTS = 3  # at a domain of which a part keeps failing


def isolate(nodes, domains=None, *, group_size=None, confirmations=3, screens=1,
            representatives=1):
    """A generator: yields rounds, lists of disjoint groups (tuples of node names) to be tested at
    the same time; is sent the outcome of each group, in order, or None to end early; returns an
    Isolation.

    `nodes`: in an order in which neighbours share a switch, as far as that is known. `domains`:
    {node: name of what it shares a switch with}. Without: groups of ceil(sqrt(N)). `group_size`:
    the most nodes of a group that is screened. `confirmations`: tests with different known-good
    partners that a node must fail before it is blamed. `screens`: each more finds intermittent
    nodes that passed in those before. `representatives` of each domain: of as many paths between
    the domains, at the same time."""
    nodes = list(dict.fromkeys(nodes))
    if not nodes:
        return Isolation()
    ladder = _Ladder(_screened(nodes, domains, group_size), domains or {}, confirmations,
                     representatives)
    yield from ladder.run(screens)
    return _Conclusion(ladder).isolation(nodes)


def _screened(nodes, domains, group_size):
    """{name: units}: what is tested first."""
    if domains is None:
        count = max(1, len(nodes) // math.ceil(math.sqrt(len(nodes))))
        chunks = {("", i): chunk for i, chunk in enumerate(parts_of(nodes, count))}
    else:
        chunks = {}
        for node in nodes:
            chunks.setdefault((domains.get(node, ""), 0), []).append(node)
    groups = {}
    for (name, index), members in chunks.items():
        pieces = math.ceil(len(members) / (group_size or len(members)))
        for i, piece in enumerate(parts_of(members, pieces)):
            groups[name, index, i] = tuple((node,) for node in piece)
    return groups


def left_of(search, units):
    """The units less what the search has explained: of each link only the largest side is left."""
    gone = {node for unit in (*search.faulty, *search.dead) for node in unit}
    for sides, _ in search.links:
        lesser = sorted(sides, key=len)[:-1] or sides
        gone.update(node for side in lesser for unit in side for node in unit)
    gone.update(node for group, _ in search.unresolved for unit in group for node in unit)
    left = (tuple(node for node in unit if node not in gone) for unit in units)
    return tuple(filter(None, left))


class _Ladder:
    def __init__(self, groups, domains, confirmations, sets):
        self.groups, self.domains, self.sets = groups, domains, sets
        self.home = home = {node: name for name, units in groups.items() for node, in units}
        self.rounds = Rounds(ROUNDS)
        self.within = Search(self.rounds, Pool(home, by_chance=not domains), confirmations)
        self.across = Search(self.rounds, Pool(home, across=True), confirmations)
        self.failing = set()  # names of groups of which what is left did not pass
        self.separate = ()  # units that did not pass across, where that is not explained yet
        self.alone = {}  # unit: Test
        self.islands = {self.within: [], self.across: []}  # fail with others, pass together
        self.known = set()  # what was tested together: frozensets of units

    def run(self, screens):
        self.rounds.spawn(self.screen(screens))
        yield from self.rounds.run()
        for _ in range(ATTEMPTS):
            tests = self.rounds.tests
            for task in (self.remainders, self.blamed_nodes, self.blamed_domains):
                self.rounds.spawn(task())
            yield from self.rounds.run()
            for task in (self.representatives, self.blamed_nodes):
                self.rounds.spawn(task())
            yield from self.rounds.run()
            if self.rounds.tests == tests:
                break

    def screen(self, screens):
        failed = {}
        for _ in range(screens):
            tests = {name: self.within.test(units) for name, units in self.groups.items()
                     if name not in failed}
            yield list(tests.values())
            failed.update((name, test) for name, test in tests.items() if not test.passed)
        self.failing = set(failed)
        self.rounds.spawn(self.representatives())
        for name in sorted(self.failing):
            self.within.failed(self.groups[name], failed[name])

    def remainders(self):
        """What is left of each group that failed has to pass: another fault may be in it."""
        rest = {name: left_of(self.within, self.groups[name]) for name in sorted(self.failing)}
        tests = {name: self.within.test(units) for name, units in rest.items() if len(units) > 1}
        yield list(tests.values())
        self.failing = {name for name, test in tests.items() if not test.passed}
        for name in sorted(self.failing):
            self.within.failed(rest[name], tests[name])

    def representatives(self):
        """One node of each domain that passed, or several disjoint sets of them."""
        domains = (tuple(node for node, in left_of(self.within, units))
                   for name, units in self.groups.items() if name not in self.failing)
        units = left_of(self.across, tuple(filter(None, domains)))
        self.separate = ()
        if len(units) < 2 or frozenset(units) in self.known:
            return
        sets = min(self.sets, min(map(len, units)))
        tests = [self.across.test(units, turn) for turn in range(sets)]
        yield tests
        failed = [turn for turn, test in enumerate(tests) if not test.passed]
        if not failed:
            self.known.add(frozenset(units))
            return
        self.separate = units  # the other sets are tested again after this one is explained
        self.across.failed(tuple(unit[failed[0]:] + unit[:failed[0]] for unit in units),
                           tests[failed[0]])

    def blamed_nodes(self):
        """Whether it is the node or what connects it; and whether several pass with one another,
        because they share what fails: a switch that `domains` does not know."""
        tests = {unit: self.within.test((unit,)) for unit in self.within.faulty
                 if unit not in self.alone}
        self.alone.update(tests)
        yield list(tests.values())
        groups = {}
        for unit, tests in self.within.faulty.items():
            if self.alone[unit].passed and not any(test.passed for test in tests):
                groups.setdefault(self.home[unit[0]] if self.domains else "", []).append(unit)
        for units in groups.values():
            self.rounds.spawn(self.together(self.within, tuple(units)))

    def blamed_domains(self):
        yield []
        by_home = {self.home[unit[0]]: unit for unit in self.across.faulty}
        self.rounds.spawn(self.together(self.across, tuple(by_home.values())))

    def together(self, search, units):
        if len(units) < 2 or frozenset(units) in self.known:
            return
        self.known.add(frozenset(units))
        test = search.test(units)
        yield [test]
        if test.passed:
            self.islands[search].append(units)
            search.pool.drop(test.nodes)
        elif len(units) > 2:
            for half in parts_of(units, 2):
                self.rounds.spawn(self.together(search, half))


class _Conclusion:
    """An Isolation of what a ladder found. Fails closed: what is neither blamed nor has passed is
    unresolved."""

    def __init__(self, ladder):
        self.ladder = ladder
        self.within, self.across, self.groups = ladder.within, ladder.across, ladder.groups
        self.fabrics = self.groups_without_a_pair()
        self.excused = {unit for units in (*self.fabrics, *ladder.islands[self.within])
                        for unit in units}
        self.doubtful = self.near_bad_paths() - self.excused

    def isolation(self, nodes):
        passed = self.ladder.rounds.passed
        if not passed and len(nodes) > 1:
            return Isolation(unresolved=(Unresolved(
                tuple(nodes), "no test of any of them passed: the test, or what all of them share"),
            ), **self.counts())
        faulty = tuple(self.suspect(unit, tests) for unit, tests in self.blamed().items())
        dead = tuple(self.suspect(unit, tests) for unit, tests in self.within.dead.items())
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
                         tuple(node for node in nodes if node in passed - bad), **self.counts())

    def counts(self):
        return {"tests": self.ladder.rounds.tests, "rounds": self.ladder.rounds.rounds}

    def groups_without_a_pair(self):
        """Groups of three and more of which every node is blamed, though it passes alone: the fault
        is in what they share."""
        def blamed(unit):
            return unit in self.within.faulty and self.ladder.alone[unit].passed
        return [units for units in self.groups.values() if len(units) > 2 and
                all(map(blamed, units))]

    def blamed(self):
        """By node; a domain of one node is a node."""
        single = {unit: tests for unit, tests in self.across.faulty.items() if self.is_node(unit)}
        return {unit: tests for unit, tests in {**self.within.faulty, **single}.items()
                if unit not in self.excused | self.doubtful}

    def near_bad_paths(self):
        """Where no domains are given, nodes that pass alone, near bad paths or several such nodes:
        a switch that they share, or that their partners do not, fits as well."""
        if self.ladder.domains:
            return set()
        suspects = {unit for unit in self.within.faulty if self.ladder.alone[unit].passed}
        if self.across.links or self.across.faulty:
            return suspects
        number = {name: i for i, name in enumerate(self.groups)}
        on_links = {node for sides, _ in self.within.links for side in sides
                    for unit in side for node in unit}
        bad = [number[self.ladder.home[node]] for node in on_links]

        def near(unit):
            own = number[self.ladder.home[unit[0]]]
            like = sum(abs(number[self.ladder.home[other[0]]] - own) < 2 for other in suspects)
            return like > 2 or any(abs(own - other) < 2 for other in bad)
        return set(filter(near, suspects))

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
        blamed = {unit for unit in (*self.within.faulty, *self.within.dead)}
        members = {node for home in homes for unit in self.groups[home] if unit not in blamed
                   for node in unit}
        whole = len(nodes) > 1 and all(names) and members <= set(nodes)
        return ", ".join(names) if whole else name_of(nodes)

    def open_questions(self):
        found = []
        for search in (self.within, self.across):
            found += [Unresolved(tuple(node for unit in units for node in unit), cause)
                      for units, cause in search.unresolved]
        found += [Unresolved(unit, "failed with known-good partners, but paths of its group are "
                                   "bad, too: which nodes share a switch is not known")
                  for unit in sorted(self.doubtful)]
        found += [Unresolved(test.group, "no round was left to test it")
                  for test in self.ladder.rounds.abandoned]
        found += [Unresolved(tuple(node for node, in left_of(self.within, self.groups[name])),
                             f"failed again after {ATTEMPTS} attempts to explain it")
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
