"""What is wrong among units that fail together: bisection, crossing of boundaries, confirmation.

A unit is a tuple of nodes that may stand for one another: one node, or the nodes of a healthy
domain when the paths between domains are tested."""

import itertools

from ..model import INCONCLUSIVE, PASS

CONFIRMATIONS = 3  # tests with different known-good partners that a node must fail before it is blamed


# ---- rounds of tests on disjoint groups, for searches that run at the same time ------------------

class Pool:
    """Nodes that are known to be good: they passed in a group of two or more."""

    def __init__(self, home, lost, across=False):
        self.home = home  # node: name of its domain
        self.lost = lost  # nodes that no longer answer
        self.across = across  # partners of other domains, else of its own as long as there is one
        self.place = {node: i for i, node in enumerate(home)}  # neighbours may share a switch
        self.good = {}

    def learn(self, nodes):
        """They passed together. What passed with a partner of another domain may still fail in its
        own."""
        if self.across or len({self.home[node] for node in nodes}) == 1:
            self.good.update(dict.fromkeys(nodes))

    def drop(self, nodes):
        for node in nodes:
            self.good.pop(node, None)

    def partner(self, node, before, busy):
        """The nearest good node that is free and, where there is one, new to this node. None: all are busy;
        "": there is none."""
        home, place = self.home[node], self.place[node]
        known = [each for each in self.good
                 if each != node and each not in self.lost and not (self.across and self.home[each] == home)]
        if not known:
            return ""
        # another domain's would add the paths between them to the test
        known = [each for each in known if self.home[each] == home] or known
        free = [each for each in known if each not in before] or known
        return min((each for each in free if each not in busy), key=lambda each: abs(self.place[each] - place),
                   default=None)


class Test:
    """A test that a search needs, and then its outcome."""

    def __init__(self, nodes, pool, partner=False, before=()):
        self.nodes, self.pool = tuple(nodes), pool
        self.needs_partner, self.before = partner, [each for each in before if each]
        self.partner, self.outcome = "", ""

    @property
    def group(self):
        lost = self.pool.lost
        return tuple(node for node in (*self.nodes, *filter(None, [self.partner])) if node not in lost)

    @property
    def passed(self):
        return self.outcome == PASS

    def again(self):
        """The same nodes, and the same partner."""
        same = Test(self.nodes, self.pool)
        same.partner = self.partner
        return same

    def place(self, busy):
        """Whether it can be in a round in which these nodes are busy."""
        if self.pool.lost.issuperset(self.nodes):
            self.outcome = INCONCLUSIVE
            return False
        if busy.intersection(self.group):
            return False
        if self.needs_partner:
            partner = self.pool.partner(self.nodes[0], self.before, busy)
            if partner is None:
                return False
            self.partner = partner
        if len(self.group) == 1 and self.pool.across:
            self.outcome = PASS  # its domain passed: alone there is nothing to test across domains
            return False
        return True

    def answer(self, outcome):
        self.outcome = outcome
        if self.passed and len(self.group) > 1:
            self.pool.learn(self.group)


class Rounds:
    """Runs tasks: generators that yield lists of Tests and go on when all of them have outcomes."""

    def __init__(self, limit):
        self.tests = self.rounds = 0
        self.limit = limit
        self.passed = set()  # nodes that passed in any test
        self.abandoned = []  # Tests for which no round was left
        self._live = []  # (task, its Tests)

    def spawn(self, task):
        tests = next(task, None)
        if tests is not None:
            self._live.append((task, tests))

    def run(self):
        """Yields groups, is sent their outcomes, until no task is left; None ends it early."""
        while self._live:
            pending = [test for _, tests in self._live for test in tests if not test.outcome]
            chosen = _disjoint(pending)
            if chosen:
                groups = [test.group for test in chosen]
                outcomes = (yield groups) if self.rounds < self.limit else None
                if outcomes is None:
                    self.limit = self.rounds
                    self.abandoned += [test for test in pending if test not in self.abandoned]
                    self._live = []
                    return
                self._record(chosen, groups, outcomes)
            live, self._live = self._live, []
            for task, tests in live:
                if all(test.outcome for test in tests):
                    self.spawn(task)
                else:
                    self._live.append((task, tests))

    def _record(self, chosen, groups, outcomes):
        self.rounds += 1
        self.tests += len(chosen)
        for test, group, outcome in zip(chosen, groups, outcomes):
            if outcome != PASS and not test.pool.lost.isdisjoint(group):
                continue  # again, without the nodes that were lost
            test.answer(outcome)
            if test.passed:
                self.passed.update(test.group)


def _disjoint(tests):
    busy, chosen = set(), []
    for test in sorted(tests, key=lambda each: each.needs_partner):  # from the nodes that are left
        if test.place(busy):
            busy.update(test.group)
            chosen.append(test)
    return chosen


# ---- the search ----------------------------------------------------------------------------------

def parts_of(units, count):
    """At most `count` parts of nearly equal size, none empty, as tuples of units."""
    count = min(count, len(units))
    return [tuple(units[i * len(units) // count:(i + 1) * len(units) // count])
            for i in range(count)]


def sides_of(parts, joined):
    """The parts, merged where pairs of them passed together, in the order of their first."""
    sides = [{part} for part in parts]
    for pair in joined:
        touched = [side for side in sides if side.intersection(pair)]
        sides = [side for side in sides if side not in touched] + [set().union(*touched)]
    return [tuple(unit for part in parts if part in side for unit in part)
            for side in sorted(sides, key=lambda side: min(map(parts.index, side)))]


def pairings(units, turns):
    """Lists of disjoint pairs, of other partners each time, as in a round-robin tournament."""
    first, *others = [*units, None] if len(units) % 2 else units
    for _ in range(turns):
        row = [first, *others]
        pairs = [(row[i], row[-1 - i]) for i in range(len(row) // 2)]
        yield [pair for pair in pairs if None not in pair]
        others = [*others[1:], others[0]]


def left_of(search, units):
    """The units less what the search has explained: of each link only the largest side is left."""
    gone = {node for unit in search.faulty for node in unit}
    for sides, _ in search.links:
        lesser = sorted(sides, key=len)[:-1] or sides
        gone.update(node for side in lesser for unit in side for node in unit)
    gone.update(node for group, _ in search.unresolved for unit in group for node in unit)
    gone |= search.pool.lost
    left = (tuple(node for node in unit if node not in gone) for unit in units)
    return tuple(filter(None, left))


class Search:
    """One search: among nodes within domains, or among domains."""

    def __init__(self, rounds, pool):
        self.rounds, self.pool = rounds, pool
        self.faulty = {}  # unit: its Tests
        self.cleared = []  # (units, Tests): failed once, then passed again and again
        self.unresolved = []  # (units, cause)
        self.links = []  # (sides, Tests): each side passes, or each unit of the only one

    def test(self, units, turn=0, partner=False, before=()):
        left = [tuple(node for node in unit if node not in self.pool.lost) or unit for unit in units]
        return Test([unit[turn % len(unit)] for unit in left], self.pool, partner, before)

    def failed(self, units, test):
        """The units did not pass together: finds out why."""
        if len(units) == 1:
            self.rounds.spawn(self.confirm(units[0], [test]))
        else:
            self.rounds.spawn(self.split(units, test))

    def split(self, units, whole):
        """In four: two bisections in one round. A single unit has a known-good partner."""
        parts = parts_of(units, 4)
        tests = [self.test(part, partner=len(part) == 1) for part in parts]
        yield tests
        if all(test.passed for test in tests):
            self.rounds.spawn(self.crossing(parts, (), [whole]))
        elif not any(test.passed for test in tests) and len(units) > 4:
            self.rounds.spawn(self.pairs(units, [whole, *tests]))
            return
        for part, test in zip(parts, tests):
            if not test.passed:
                self.failed(part, test)

    def pairs(self, units, evidence):
        """No part of them passed: many are bad, or what all of them share."""
        pairs = parts_of(units, len(units) // 2)
        tests = [self.test(pair) for pair in pairs]
        yield tests
        evidence = [*evidence, *(test for test in tests if not test.passed)]
        if any(test.passed and len(test.group) > 1 for test in tests):  # one whose partner was lost shows nothing
            for pair, test in zip(pairs, tests):
                if not test.passed:
                    self.failed(pair, test)
            return
        alone = [self.test((unit,)) for unit in units]
        yield alone
        for unit, test in zip(units, alone):
            if not test.passed:
                self.failed((unit,), test)
        rest = tuple(unit for unit, test in zip(units, alone) if test.passed)
        if len(rest) > 1:
            self.links.append(([rest], evidence))

    def confirm(self, unit, tests):
        """A suspect with known-good partners, another one each time; alone where there are none."""
        needed = CONFIRMATIONS
        while True:
            bad = [test for test in tests if not test.passed]
            passed = [test for test in tests if test.passed]
            if len(bad) >= needed:
                break
            if len(bad) < 2 and len(passed) >= 2 * needed - 1:
                self.cleared.append(((unit,), tests))
                if bad and len(unit) > 1:  # the others that stand for it pass: perhaps this one
                    self.rounds.spawn(self.confirm((bad[0].nodes[0],), bad))
                return
            if len(tests) >= 3 * needed:
                self.unresolved.append(
                    ((unit,), f"did not pass in {len(bad)} of {len(tests)} tests with "
                              "known-good partners: too few to blame it, too many to clear it"))
                return
            test = self.test((unit,), len(tests), True, [each.partner for each in tests])
            yield [test]
            tests = [*tests, test]
        if passed and bad[-1].partner and passed[-1].partner:
            # By the partner: a path between some pairs of nodes. By chance: the node.
            same = [test.again() for test in (bad[-1], passed[-1]) * (needed - 1)]
            yield same
            tests = [*tests, *same]
            if [test.passed for test in same] == [False, True] * (needed - 1):
                partners = dict.fromkeys(test.partner for test in tests if not test.passed)
                self.links.append(([(unit,), tuple((each,) for each in partners if each)], tests))
                return
        self.pool.drop(unit)
        self.faulty[unit] = tests

    def crossing(self, parts, joined, evidence):
        """Each part passed, all of them together did not. `joined`: pairs that passed together."""
        units = sum(parts, ())
        if not joined:
            again = self.test(units)
            yield [again]
            evidence = [*evidence, again]
            if again.passed:
                self.rounds.spawn(self.repeat(units, evidence))
                return
        pairs = [pair for pair in itertools.combinations(parts, 2) if pair not in joined]
        tests = [self.test(a + b) for a, b in pairs]
        yield tests
        failed = [pair for pair, test in zip(pairs, tests) if not test.passed]
        evidence = [*evidence, *(test for test in tests if not test.passed)]
        sides = sides_of(parts, {*joined, *pairs} - {*failed})
        if not failed:
            self.rounds.spawn(self.repeat(units, evidence))
        elif len(sides) > 1:
            self.rounds.spawn(self.boundary(sides, evidence))
        else:
            for a, b in failed:
                halves = parts_of(a, 2), parts_of(b, 2)
                known = {tuple(half) for half in halves if len(half) == 2}
                # Of two single units only the pair itself can be tested.
                self.rounds.spawn(self.crossing([*halves[0], *halves[1]], known, evidence) if known
                                  else self.boundary([a, b], evidence))

    def boundary(self, sides, evidence):
        """No part of one side passed with one of another: of a path, each side passes again and all
        of them fail again, every time; of an intermittent node that is unlikely."""
        units = sum(sides, ())
        large = [side for side in sides if len(side) > 1]
        for turn in range(CONFIRMATIONS - 1):
            tests = [self.test(side, turn) for side in large]
            tests += [self.test(side, turn, True, self.nodes_of(units)) for side in sides
                      if len(side) == 1 and self.is_good(side[0])]
            whole = self.test(units, turn)
            yield tests
            yield [whole]
            evidence = [*evidence, whole]
            if whole.passed or not all(test.passed for test in tests):
                # Where units have several nodes, these were others.
                self.rounds.spawn(self.watch(tuple((unit[0],) for unit in units)))
                return
        # A unit that never passed with any other may itself be the cause.
        strange = [side for side in sides if large and len(side) == 1 and
                   not self.is_good(side[0])]
        for side in strange:
            self.rounds.spawn(self.confirm(side[0], []))
        rest = [side for side in sides if side not in strange]
        if len(rest) > 1:
            self.links.append((rest if large or len(rest) == 2 else [sum(rest, ())], evidence))

    def is_good(self, unit):
        return not self.pool.good.keys().isdisjoint(unit)

    @staticmethod
    def nodes_of(units):
        return [node for unit in units for node in unit]

    def repeat(self, units, tests):
        """They failed as a whole, and no part of them fails."""
        while True:
            bad = sum(not test.passed for test in tests)
            if bad > 1:
                self.rounds.spawn(self.watch(units))
                return
            if len(tests) - bad >= CONFIRMATIONS:
                self.cleared.append((units, tests))
                return
            test = self.test(units)
            yield [test]
            tests = [*tests, test]

    def watch(self, units):
        """Something in them fails now and then: in pairs, others each time."""
        seen = []
        for pairs in pairings(units, CONFIRMATIONS + 1):
            tests = {pair: self.test(pair) for pair in pairs}
            yield list(tests.values())
            seen += [(pair, test) for pair, test in tests.items() if not test.passed]
        suspects = dict.fromkeys(unit for pair, _ in seen for unit in pair)
        for unit in suspects:
            self.rounds.spawn(self.confirm(unit, []))
        if not suspects:
            self.unresolved.append((units, "failed together more than once, and passed in parts "
                                           "and in pairs"))
