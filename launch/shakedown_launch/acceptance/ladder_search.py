"""What is wrong among units that fail together: bisection, crossing of boundaries, confirmation.

A unit is a tuple of nodes that may stand for one another: one node, or the nodes of a healthy
domain when the paths between domains are tested."""

import itertools

from .ladder_rounds import Ask
from .model import FAIL


def parts_of(units, count):
    """At most `count` parts of nearly equal size, none empty, as tuples of units."""
    count = min(count, len(units))
    return [tuple(units[i * len(units) // count:(i + 1) * len(units) // count])
            for i in range(count)]


def sides_of(parts, joined):
    """The parts, merged where pairs of them passed together."""
    sides = [{part} for part in parts]
    for pair in joined:
        touched = [side for side in sides if side.intersection(pair)]
        sides = [side for side in sides if side not in touched] + [set().union(*touched)]
    return [tuple(unit for part in parts if part in side for unit in part) for side in sides]


class Search:
    """One search: among nodes within domains, or among domains."""

    def __init__(self, rounds, pool, confirmations):
        self.rounds, self.pool, self.confirmations = rounds, pool, confirmations
        self.faulty = {}  # unit: its Asks
        self.dead = {}
        self.cleared = []  # (units, Asks): failed once, then passed again and again
        self.unresolved = []  # (units, cause)
        self.links = []  # (sides, Asks): each side passes, or each unit of the only one

    def ask(self, units, turn=0, partner=False, before=()):
        return Ask([unit[turn % len(unit)] for unit in units], self.pool, partner, before)

    def failed(self, units, ask):
        """The units did not pass together: finds out why."""
        if len(units) == 1:
            self.rounds.spawn(self.confirm(units[0], [ask]))
        else:
            self.rounds.spawn(self.split(units, ask))

    def split(self, units, whole):
        """In four: two bisections in one round. A single unit has a known-good partner."""
        parts = parts_of(units, 4)
        asks = [self.ask(part, partner=len(part) == 1) for part in parts]
        yield asks
        if all(ask.passed for ask in asks):
            self.rounds.spawn(self.crossing(parts, (), [whole]))
        elif not any(ask.passed for ask in asks) and len(units) > 4:
            self.rounds.spawn(self.pairs(units, [whole, *asks]))
            return
        for part, ask in zip(parts, asks):
            if not ask.passed:
                self.failed(part, ask)

    def pairs(self, units, evidence):
        """No part of them passed: many are bad, or what all of them share."""
        pairs = parts_of(units, len(units) // 2)
        asks = [self.ask(pair) for pair in pairs]
        yield asks
        evidence = [*evidence, *(ask for ask in asks if not ask.passed)]
        if any(ask.passed for ask in asks):
            for pair, ask in zip(pairs, asks):
                if not ask.passed:
                    self.failed(pair, ask)
            return
        alone = [self.ask((unit,)) for unit in units]
        yield alone
        for unit, ask in zip(units, alone):
            if not ask.passed:
                self.failed((unit,), ask)
        rest = tuple(unit for unit, ask in zip(units, alone) if ask.passed)
        if len(rest) > 1:
            self.links.append(([rest], evidence))

    def confirm(self, unit, asks):
        """A suspect with known-good partners, another one each time; alone where there are none."""
        needed = self.confirmations
        while True:
            bad = [ask for ask in asks if not ask.passed]
            passed = [ask for ask in asks if ask.passed]
            if len(bad) >= needed:
                break
            if len(bad) < 2 and len(passed) >= 2 * needed - 1:
                self.cleared.append(((unit,), asks))
                if bad and len(unit) > 1:  # the others that stand for it pass: perhaps this one
                    self.rounds.spawn(self.confirm((bad[0].nodes[0],), bad))
                return
            if len(asks) >= 3 * needed:
                self.unresolved.append(
                    ((unit,), f"did not pass in {len(bad)} of {len(asks)} tests with "
                              "known-good partners: too few to blame it, too many to clear it"))
                return
            ask = self.ask((unit,), len(asks), True, [each.partner for each in asks])
            yield [ask]
            asks = [*asks, ask]
        if passed:
            # By the partner: a path between some pairs of nodes. By chance: the node.
            same = [ask.again() for ask in (bad[-1], bad[-1], passed[-1])]
            yield same
            asks = [*asks, *same]
            if [ask.passed for ask in same] == [False, False, True]:
                partners = dict.fromkeys(ask.partner for ask in asks if not ask.passed)
                self.links.append(([(unit,), tuple((each,) for each in partners)], asks))
                return
            bad = [ask for ask in asks if not ask.passed]
        self.pool.drop(unit)
        fails = sum(ask.outcome == FAIL for ask in bad)
        (self.faulty if 2 * fails >= len(bad) else self.dead)[unit] = asks

    def crossing(self, parts, joined, evidence):
        """Each part passed, all of them together did not. `joined`: pairs that passed together."""
        units = sum(parts, ())
        if not joined:
            again = self.ask(units)
            yield [again]
            evidence = [*evidence, again]
            if again.passed:
                self.rounds.spawn(self.repeat(units, evidence))
                return
        pairs = [pair for pair in itertools.combinations(parts, 2) if pair not in joined]
        asks = [self.ask(a + b) for a, b in pairs]
        yield asks
        failed = [pair for pair, ask in zip(pairs, asks) if not ask.passed]
        evidence = [*evidence, *(ask for ask in asks if not ask.passed)]
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
        """No part of one side passed with one of another: once more, the sides and then all of
        them. An intermittent node shows here."""
        large = [side for side in sides if len(side) > 1]
        asks = [self.ask(side) for side in large]
        whole = self.ask(sum(sides, ()))
        yield asks
        yield [whole]
        if whole.passed or not all(ask.passed for ask in asks):
            self.rounds.spawn(self.watch(sum(sides, ())))
            return
        # A unit that never passed with any other may itself be the cause.
        strange = [side for side in sides if len(side) == 1 and
                   not self.pool.good.keys() & set(side[0])] if large else []
        for side in strange:
            self.rounds.spawn(self.confirm(side[0], []))
        rest = [side for side in sides if side not in strange]
        if len(rest) > 1:
            self.links.append((rest if large or len(rest) == 2 else [sum(rest, ())],
                               [*evidence, whole]))

    def repeat(self, units, asks):
        """They failed as a whole, and no part of them fails."""
        while True:
            bad = sum(not ask.passed for ask in asks)
            if bad > 1:
                self.rounds.spawn(self.watch(units))
                return
            if len(asks) - bad >= self.confirmations:
                self.cleared.append((units, asks))
                return
            ask = self.ask(units)
            yield [ask]
            asks = [*asks, ask]

    def watch(self, units):
        """Something in them fails now and then: each with known-good partners, several times."""
        seen = {unit: [] for unit in units}
        for turn in range(self.confirmations + 1):
            asks = [self.ask((unit,), turn, True, [ask.partner for ask in seen[unit]])
                    for unit in units]
            yield asks
            for unit, ask in zip(units, asks):
                seen[unit].append(ask)
        suspects = [unit for unit in units if not all(ask.passed for ask in seen[unit])]
        for unit in suspects:
            self.rounds.spawn(self.confirm(unit, seen[unit]))
        if not suspects:
            self.unresolved.append((units, "failed together more than once, and each of them "
                                           "passes alone and with known-good partners"))
