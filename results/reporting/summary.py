"""The runs' records by configuration, and the groups that may be compared. What is derived of them is
cached: all records are read before anything is asked."""

import statistics
from functools import cached_property
from types import SimpleNamespace

from . import intervals, words
from .records import configuration_of, number, numbers, numbers_in, text
from .trainings import trainings_of

SERVED = ("parameter-server", "parameter-server-async")  # rank 0 serves, the others compute
LONG = 36  # characters of a name: longer ones have a letter
TERMS = {  # of a step's time, in the order in which they add up (`breakdown` records)
    "compute_ms": "compute",
    "exposed_comm_ms": "exposed communication",
    "interference_ms": "interference",
    "input_stall_ms": "input stall",
    "optimizer_ms": "optimizer",
    "residual_ms": "residual",
}


def median_of(records, key):
    """Median over the records that have the number; None where none has."""
    values = numbers(records, key)
    return statistics.median(values) if values else None


def highest(record, key, of=max):
    """The highest of one value per rank; None where there is none."""
    return of(numbers_in(record, key), default=None)


class Measured:
    """Everything recorded of one configuration. Several records of a kind are repetitions."""

    def __init__(self, configuration):
        self.conditions, self.strategy = configuration
        self.steps = []
        self.trained = []  # (run, its epochs)
        self.evaluations = []  # (weights, `epoch` record) of bin/train --evaluate
        self.certificates = []
        self.breakdowns = []
        self.rounds = []  # of each round of each run its exchanges (`bucket` records), by index
        self.links = {}  # {path: `link_cost` record}
        self.ready = []  # `ready` records: when gradients are

    @cached_property
    def histories(self):
        """Of each training its epochs, those of the runs that continued it included."""
        return [training.epochs for training in trainings_of(self.trained)]

    @cached_property
    def rate(self):
        """Throughput: of the throughput runs, else of the training's epochs; None if neither."""
        if self.steps:
            return intervals.rate_of_steps(self.steps)
        epochs = self.timed_epochs()
        return intervals.rate_of_epochs(epochs) if epochs else None

    def timed_epochs(self):
        return [epoch for history in self.histories for epoch in history
                if number(epoch, "images_per_s")]

    @property
    def epoch_s(self):
        """Mean time of an epoch; else the time a data set would need, by a throughput run."""
        times = numbers([epoch for history in self.histories for epoch in history], "epoch_s")
        return statistics.fmean(times) if times else median_of(self.steps, "epoch_s")

    @cached_property
    def best_epochs(self):
        """The epoch with the best validation accuracy of each training."""
        scored = [[epoch for epoch in history if number(epoch, "val_top1") is not None]
                  for history in self.histories]
        return [max(epochs, key=lambda epoch: epoch["val_top1"]) for epochs in scored if epochs]

    @property
    def best_accuracy(self):
        return median_of(self.best_epochs, "val_top1")

    @property
    def step_ms(self):
        return median_of(self.steps, "step_ms_p50")

    @property
    def ranks_computing(self):
        ranks = median_of(self.steps, "ranks_computing")
        return int(ranks) if ranks else max(1, self.conditions.world_size - (self.strategy in SERVED))

    @cached_property
    def peak_memory(self):
        """Bytes allocated on the rank that needs most."""
        epochs = [epoch for history in self.histories for epoch in history]
        peaks = [highest(record, "peak_memory_bytes") for record in [*self.steps, *epochs]]
        return max((peak for peak in peaks if peak is not None), default=None)

    def highest(self, key):
        """The highest value of any rank in the timed windows; None where there is none."""
        return max((value for step in self.steps
                    if (value := highest(step, key)) is not None), default=None)

    def lowest(self, key):
        return min((value for step in self.steps
                    if (value := highest(step, key, min)) is not None), default=None)

    @property
    def certified(self):
        """False where a certificate failed, True where one passed, else None."""
        verdicts = {certificate.get("pass") for certificate in self.certificates}
        return False if False in verdicts else True if True in verdicts else None

    @property
    def verdict_of_weights(self):
        """Verdict for a table; None where nothing was compared."""
        waived = "waived" if any(c.get("waived") for c in self.certificates) else None
        return "diverged" if self.diverged else {True: "pass", False: "FAIL", None: waived}[
            self.certified]

    @property
    def diverged(self):
        """Epochs, or "the timed steps", whose loss was not finite, which records write as null."""
        places = [f"epoch {epoch['epoch']}" for history in self.histories for epoch in history if
                  None in (epoch.get("train_loss", 0), epoch.get("val_loss", 0))]
        if any(step.get("loss_last", 0) is None for step in self.steps):
            places.append("the timed steps")
        return places

    @cached_property
    def account(self):
        """The `breakdown` record that stands for all, of one round, so that its terms add up: of those
        with most terms the one whose step, and whose step without an exchange, are nearest to their
        medians; of two as near, the shorter one's."""
        def terms(record):
            return sum(number(record, key) is not None for key in TERMS)

        most = max(map(terms, self.breakdowns), default=0)
        full = [record for record in self.breakdowns if terms(record) == most]
        medians = {key: median_of(full, key) for key in ("step_ms", "none_step_ms")}

        def distance(record):
            return sum(abs((number(record, key) or 0) - (middle or 0)) for key, middle in medians.items())

        nearest = min(map(distance, full), default=0) + 1e-9  # two are as near, but for rounding
        near = [record for record in full if distance(record) <= nearest]
        return min(near, key=lambda record: number(record, "step_ms") or 0, default={})

    def term(self, key):
        """A term of the step's time, ms."""
        return number(self.account, key)

    def differences(self, longer, shorter):
        """Differences in ms within each round that has both terms, as rounds drift."""
        pairs = [(number(record, longer), number(record, shorter)) for record in self.breakdowns]
        return [a - b for a, b in pairs if None not in (a, b)]

    @cached_property
    def exchanges(self):
        """A step's exchanges: medians over the rounds."""
        return over_rounds(self.rounds)

    @property
    def communication(self):
        """The known times of the communication of a step, ms: total (busy, hidden or not), hidden
        (busy while the rank computes) and exposed (the stream that computes exchanges or waits) of
        the account's round; its push and pull, and the total without an account, medians over the
        rounds."""
        known = {"total": self.term("comm_ms"), "hidden": self.term("hidden_comm_ms"),
                 "exposed": self.term("exposed_comm_ms"), "push": median_of(self.steps, "push_ms"),
                 "pull": median_of(self.steps, "pull_ms")}
        if known["total"] is None:
            known["total"] = median_of(self.steps, "comm_ms")
        return {key: value for key, value in known.items() if value is not None}


class Summary:
    def __init__(self, runs):
        self.runs = runs
        self.measured = {}
        for run in runs:
            self.add(run)

    def of(self, configuration):
        if configuration not in self.measured:
            self.measured[configuration] = Measured(configuration)
        return self.measured[configuration]

    def add(self, run):
        histories, exchanges = {}, {}
        for record in run.records:
            kind, configuration = record["kind"], configuration_of(run, record)
            if kind == "step" and number(record, "images_per_s") is not None:
                self.of(configuration).steps.append(record)
            elif kind == "certificate":
                self.of(configuration).certificates.append(record)
            elif kind == "breakdown":
                self.of(configuration).breakdowns.append(record)
            elif kind in ("ready", "link_cost") and "strategy" not in record:  # 0.1's and 0.2's
                continue
            elif kind == "ready":
                self.of(configuration).ready.append(record)
            elif kind == "link_cost":
                self.of(configuration).links[record.get("path")] = record
            elif kind == "epoch" and number(record, "epoch"):
                histories.setdefault(configuration, []).append(record)
            elif kind == "epoch" and number(record, "val_top1") is not None:
                self.of(configuration).evaluations.append((text(run.header, "options.weights") or "unknown weights", record))
            elif kind == "bucket":
                exchanges.setdefault(configuration, []).append(record)
        for configuration, epochs in histories.items():
            self.of(configuration).trained.append((run, epochs))
        for configuration, records in exchanges.items():
            self.of(configuration).rounds += rounds_of(records)

    def records(self, kind):
        return [record for run in self.runs for record in run.of(kind)]

    @cached_property
    def groups(self):
        """[(conditions, [Measured])]: what may be compared with one another, in a fixed order."""
        groups = {}
        for (conditions, _), measured in self.measured.items():
            groups.setdefault(conditions, []).append(measured)
        def order(conditions):  # trainings first, which have all that the first table shows
            return not any(measured.histories for measured in groups[conditions]), conditions

        return [(conditions, groups[conditions]) for conditions in sorted(groups, key=order)]

    @cached_property
    def shared(self):
        """The parts of the conditions (words.parts) that are the same in everything measured: said
        once, at the top."""
        return words.shared({conditions for conditions, _ in self.measured})

    def name(self, conditions, without=()):
        """Conditions in words, without what is the same in everything measured."""
        return words.setting(conditions, {*self.shared, *without})

    @cached_property
    def letters(self):
        """{conditions: a letter}, which stands for them where their names are long."""
        compared = sorted(self.groups, key=lambda group: len(group[1]) < 2)
        several = [conditions for conditions, _ in compared]
        if len(several) < 2 or max(len(self.name(conditions)) for conditions in several) <= LONG:
            return {}
        return {conditions: chr(ord("A") + at % 26) + (str(at // 26) if at >= 26 else "")
                for at, conditions in enumerate(several)}

    def label(self, conditions):
        """Letter of the conditions, else their name."""
        return self.letters.get(conditions) or self.name(conditions)

    def named(self, measured):
        """A strategy and its conditions."""
        return ", ".join(filter(None, (measured.strategy, self.label(measured.conditions))))

    def heading(self, conditions):
        """Letter and name; empty where nothing else was measured."""
        letter, named = self.letters.get(conditions), self.name(conditions)
        return f"{letter}: {named}" if letter else named

    def same(self, measured, strategy):
        """Another strategy under the same conditions."""
        other = self.measured.get((measured.conditions, strategy))
        return None if other is measured else other

    def bound(self, measured):
        """The rate of `none`, which exchanges nothing, under the same conditions."""
        none = self.same(measured, "none")
        return none and none.rate

    def efficiency_vs_none(self, measured):
        """Throughput over that of `none` on as many ranks, a server counted: as recorded, else
        computed."""
        recorded = median_of(measured.steps, "efficiency_vs_none")
        bound = self.bound(measured)
        if recorded is not None or bound is None or measured.rate is None:
            return recorded
        return measured.rate.median / bound.median

    def single(self, conditions):
        """`none` on one rank, else another strategy on one, which has nothing to exchange."""
        alone = conditions._replace(world_size=1, nodes=1)
        found = {strategy: measured for (of, strategy), measured in self.measured.items()
                 if of == alone and measured.rate}
        return found.get("none") or next(iter(found.values()), None)

    def efficiency_vs_single(self, measured):
        """Throughput over that of one rank times all ranks held."""
        recorded = median_of(measured.steps, "efficiency_vs_single")
        single = self.single(measured.conditions)
        if recorded is not None or single is None or measured.rate is None:
            return recorded
        return measured.rate.median / (single.rate.median * measured.conditions.world_size)

    def series(self, least=2):
        """{(conditions without ranks, strategy): [Measured by rising world_size]}, for those
        measured on at least `least` numbers of ranks."""
        series = {}
        for (conditions, strategy), measured in self.measured.items():
            if measured.rate:
                key = conditions._replace(world_size=0, nodes=0), strategy
                series.setdefault(key, []).append(measured)
        return {key: sorted(points, key=lambda point: point.conditions.world_size)
                for key, points in series.items()
                if len({point.conditions.world_size for point in points}) >= least}


def ranked(group):
    """The strategies that exchange and have a rate, fastest first: `none` is their upper bound."""
    rated = [measured for measured in group if measured.rate and measured.strategy != "none"]
    return sorted(rated, key=lambda measured: -measured.rate.median)


# ---- the exchanges of a step (`bucket` records): a list a round, of which medians are taken ------

MEDIANS = ("ready_ms", "launch_ms", "start_ms", "end_ms", "hidden_ms", "exposed_ms", "wait_ms",
           "straggler_share")


def rounds_of(records):
    """Records of one run and configuration: a list per `repeat`, each by index."""
    rounds = {}
    for record in records:
        if number(record, "index") is not None:
            rounds.setdefault(number(record, "repeat") or 1, []).append(record)
    return [sorted(found, key=lambda record: record["index"])
            for _, found in sorted(rounds.items())]


def over_rounds(rounds):
    """[an exchange, as `merged`]. Where rounds have different exchanges (runs with other buckets, say), of the last
    round alone: a median over different things is of nothing."""
    if not rounds:
        return []
    if len({tuple(map(exchange_of, found)) for found in rounds}) > 1:
        rounds = rounds[-1:]
    return [merged(same) for same in zip(*rounds)]


def exchange_of(record):
    return record["index"], record.get("exchange"), number(record, "bytes")


def merged(records):
    """index (in the order of the launch), operation, bytes, MEDIANS, duration_ms, and straggler_rank, that of most
    rounds. None is what was not recorded."""
    def median(name):
        values = [number(record, name) for record in records]
        return None if None in values else statistics.median(values)

    ranks = numbers(records, "straggler_rank")
    index, operation, size = exchange_of(records[0])
    one = SimpleNamespace(index=index, operation=operation or "", bytes=size, **{name: median(name) for name in MEDIANS},
                          straggler_rank=max(sorted(set(ranks)), key=ranks.count, default=None))
    one.duration_ms = None if None in (one.start_ms, one.end_ms) else one.end_ms - one.start_ms
    return one


def total(exchanges, name):
    """Sum of a figure; None where one lacks it, or there are none."""
    values = [getattr(exchange, name) for exchange in exchanges]
    return None if None in values or not values else sum(values)
