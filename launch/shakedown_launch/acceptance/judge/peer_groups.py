"""Groups of nodes compared with groups of the same size: what a reference of one node says nothing
about, a slow port or link among them, shows without one."""

import statistics

FLOOR = 0.92  # of the median; all_reduces over healthy nodes differ by 2 to 3 %
FEWEST = 3  # groups; of two, either may be the slow one
SHARE = 0.6  # of a group's bandwidths that must be below


class Groups:
    """The bandwidths of the groups that were tested so far, less those that were slow."""

    def __init__(self):
        self._good = {}  # what is comparable: bandwidths

    def slow(self, of_groups):
        """Of each group of a round whether it is slower than most; `of_groups`: its figures."""
        measured = [dict(comparable(figures)) for figures in of_groups]
        known = {key: [*self._good.get(key, ()), *(each[key] for each in measured if key in each)]
                 for each in measured for key in each}
        found = [below_most(each, known) for each in measured]
        for each, slow in zip(measured, found):
            for key, value in each.items():
                if not slow:
                    self._good.setdefault(key, []).append(value)
        return found


def below_most(values, known):
    below = [value < FLOOR * statistics.median(known[key])
             for key, value in values.items() if len(known[key]) >= FEWEST]
    return bool(below) and sum(below) >= SHARE * len(below)


def comparable(figures):
    """(key, bandwidth) of each that depends on the paths between nodes, not on a CPU's load."""
    for figure in figures:
        if len(figure.nodes) > 1 and figure.metric.endswith("/busbw") and \
                figure.conditions.get("backend") != "cpu":
            conditions = sorted((key, str(value)) for key, value in figure.conditions.items())
            yield (figure.metric, len(figure.nodes), tuple(conditions)), figure.value
