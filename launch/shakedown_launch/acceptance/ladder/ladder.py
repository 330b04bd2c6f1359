"""Which node, or which path between nodes, a failure of several nodes belongs to.

Screen each domain; bisect what failed; where all parts pass and the whole fails, find the boundary
between them by mixed groups; confirm each suspect with known-good partners, another one each time,
before it is blamed; test what is left of a domain again; test representatives of the domains
together. docs/engineering/isolation.md has the method, what it finds and what it misses."""

import math

from .isolation import Conclusion, Isolation
from .search import Pool, Rounds, Search, left_of, parts_of

ROUNDS = 60  # what is open then is unresolved
ATTEMPTS = 3  # at a domain of which a part keeps failing


def isolate(nodes, domains=None, lost=None):
    """A generator: yields rounds, lists of disjoint groups (tuples of node names) to be tested at
    the same time; is sent the outcome of each group, in order, or None to end early; returns an
    Isolation.

    `nodes`: in an order in which neighbours share a switch, as far as that is known. `domains`:
    {node: name of what it shares a switch with}. Without: groups of ceil(sqrt(N)). `lost`: a set to which
    the caller adds nodes that no longer answer, before it sends the outcomes of a round: each is in no
    further test, and those that had no result with it are repeated without it."""
    nodes = list(dict.fromkeys(nodes))
    if not nodes:
        return Isolation()
    ladder = _Ladder(_screened(nodes, domains), domains or {}, set() if lost is None else lost)
    yield from ladder.run()
    return Conclusion(ladder).isolation(nodes)


def _screened(nodes, domains):
    """{name: units}: what is tested first."""
    groups = {}
    if domains is None:
        count = max(1, len(nodes) // math.ceil(math.sqrt(len(nodes))))
        groups = dict(enumerate(parts_of(nodes, count)))
    for node in nodes if domains is not None else ():
        groups.setdefault(domains.get(node, ""), []).append(node)
    return {name: tuple((node,) for node in members) for name, members in groups.items()}


class _Ladder:
    def __init__(self, groups, domains, lost):
        self.groups, self.domains = groups, domains
        self.home = home = {node: name for name, units in groups.items() for node, in units}
        self.rounds = Rounds(ROUNDS)
        self.within = Search(self.rounds, Pool(home, lost))
        self.across = Search(self.rounds, Pool(home, lost, across=True))
        self.failing = set()  # names of groups of which what is left did not pass
        self.separate = ()  # units that did not pass across, where that is not explained yet
        self.alone = {}  # unit: Test
        self.islands = {self.within: [], self.across: []}  # fail with others, pass together
        self.known = set()  # what was tested together: frozensets of units

    def run(self):
        self.rounds.spawn(self.screen(self.groups, True))
        yield from self.rounds.run()
        for _ in range(ATTEMPTS):
            tests = self.rounds.tests
            for task in (self.screen(self.remainders()), self.blamed_nodes(), self.blamed_domains()):
                self.rounds.spawn(task)
            yield from self.rounds.run()
            for task in (self.representatives, self.blamed_nodes):
                self.rounds.spawn(task())
            yield from self.rounds.run()
            if self.rounds.tests == tests:
                break

    def screen(self, groups, first=False):
        tests = {name: self.within.test(units) for name, units in groups.items()}
        yield list(tests.values())
        self.failing = {name for name, test in tests.items() if not test.passed}
        if first:
            self.rounds.spawn(self.representatives())
        for name in sorted(self.failing):
            self.within.failed(groups[name], tests[name])

    def remainders(self):
        """What is left of each group that failed has to pass: another fault may be in it."""
        rest = {name: left_of(self.within, self.groups[name]) for name in sorted(self.failing)}
        return {name: units for name, units in rest.items() if len(units) > 1}

    def representatives(self):
        """One node of each domain that passed."""
        domains = (tuple(node for node, in left_of(self.within, units))
                   for name, units in self.groups.items() if name not in self.failing)
        units = left_of(self.across, tuple(filter(None, domains)))
        self.separate = ()
        if len(units) < 2 or frozenset(units) in self.known:
            return
        test = self.across.test(units)
        yield [test]
        if test.passed:
            self.known.add(frozenset(units))
        else:
            self.separate = units
            self.across.failed(units, test)

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
            others = [each for each in self.islands[search] if not set(each) <= set(units)]
            self.islands[search] = [*others, units]
            search.pool.drop(test.nodes)
        elif len(units) > 2:
            for half in parts_of(units, 2):
                self.rounds.spawn(self.together(search, half))
