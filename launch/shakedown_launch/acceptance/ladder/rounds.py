"""Rounds of tests on disjoint groups of nodes, for searches that run at the same time."""

import collections

from ..model import INCONCLUSIVE, OUTCOMES, PASS


class Pool:
    """Nodes that are known to be good: they passed in a group of two or more."""

    def __init__(self, home, lost, across=False, by_chance=False):
        self.home = home  # node: name of its domain
        self.lost = lost  # nodes that no longer answer
        self.across = across  # partners of other domains, else of its own as long as there is one
        self.by_chance = by_chance  # the domains are no switches': partners of any, alternately
        self.place = {node: i for i, node in enumerate(home)}  # neighbours may share a switch
        self.uses = collections.Counter()
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
        """A good node that is free and, where there is one, new to this node: its neighbour on one
        side, then on the other. None: all are busy; "": there is none."""
        home, place = self.home[node], self.place[node]
        known = [each for each in self.good
                 if each != node and each not in self.lost and not (self.across and self.home[each] == home)]
        if not known:
            return ""
        if not self.by_chance:  # another domain's would add the paths between them to the test
            known = [each for each in known if self.home[each] == home] or known
        free = [each for each in known if each not in before] or known
        free = [each for each in free if each not in busy]
        seen = {self.home[each] for each in before}
        sides = {self.place[each] < place for each in before if self.home[each] == home}
        own = len(before) % 2 == 0

        def order(each):
            if self.home[each] == home:
                return (not own, (self.place[each] < place) in sides,
                        abs(self.place[each] - place))
            return own, self.home[each] in seen, self.uses[each]
        return min(free, key=order, default=None)


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
            self.pool.uses[partner] += 1
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
        outcomes = list(outcomes)
        if len(outcomes) != len(chosen):
            raise ValueError(f"{len(outcomes)} outcomes of {len(chosen)} groups")
        self.rounds += 1
        self.tests += len(chosen)
        for test, group, outcome in zip(chosen, groups, outcomes):
            if outcome != PASS and not test.pool.lost.isdisjoint(group):
                continue  # again, without the nodes that were lost
            test.answer(outcome if outcome in OUTCOMES else INCONCLUSIVE)
            if test.passed:
                self.passed.update(test.group)


def _disjoint(tests):
    busy, chosen = set(), []
    for test in sorted(tests, key=lambda each: each.needs_partner):  # from the nodes that are left
        if test.place(busy):
            busy.update(test.group)
            chosen.append(test)
    return chosen
