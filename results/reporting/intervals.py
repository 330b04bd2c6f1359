"""The statistics of the report."""

import functools
import math
import statistics
from typing import NamedTuple, Optional

from .records import number

RANGE, OF_MEDIAN, OF_MEAN = "range", "95 % interval of the median", "95 % interval of the mean"
SCATTER, AS_OTHER = "two standard deviations of a sample", "as the measurements that it is compared with"

NO_INTERVAL = "the only run has fewer than 25 steps, is one epoch, or is of 0.1"


class Rate(NamedTuple):
    """Throughput of a configuration, images/s."""
    mean: float
    median: float
    low: Optional[float]
    high: Optional[float]
    kind: str  # what low and high are: one of the above, or empty
    samples: int
    values: tuple = ()  # of repetitions


OUTLIER = 8  # times the median distance from the median: of normal errors one value in ten million
LEAST_SPREAD = 0.001  # of the median: what that distance is at least


def without_outliers(rate):
    """(rate of the repetitions that agree, the others). One of three that is far from two others does
    not widen the interval by which the three are compared with another run."""
    if len(rate.values) < 3:
        return rate, []
    def far(value):
        return abs(value - rate.median) > OUTLIER * max(spread, LEAST_SPREAD * rate.median)
    spread = statistics.median(abs(value - rate.median) for value in rate.values)
    agreeing = [value for value in rate.values if not far(value)]
    return rate_of(agreeing), [value for value in rate.values if far(value)]


# 99.5 % quantiles of Student's t, of one degree of freedom and more.
STUDENT = (63.7, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17)


def with_interval(rate, other):
    """A rate; that of a single run may be as far off as one more repetition of what it is compared with (prediction
    interval), whatever its own interval; without one, as a single one that it is compared with."""
    if len(rate.values) > 1 or other.low is None or rate.low is not None and len(other.values) < 2:
        return rate
    share, n = max(other.high / other.median, other.median / other.low) - 1, len(other.values)
    if n > 1:
        t = STUDENT[min(n - 1, len(STUDENT)) - 1]
        share = t * statistics.stdev(other.values) * math.sqrt(1 + 1 / n) / other.median
    wide = scattered(rate.median, share, AS_OTHER)
    return wide if rate.low is None or wide.high - wide.low > rate.high - rate.low else rate


def scattered(value, share, kind=SCATTER):
    """A single measurement that may be off by a share of it."""
    return Rate(value, value, value / (1 + share), value * (1 + share), kind, 1)


def median_interval(samples):
    """(low, high, kind): a distribution-free interval of the median.

    The order statistics x(k) and x(n+1-k) hold the median with probability
    1 - 2 P(B < k), B binomial (n, 1/2) (David, Nagaraja: Order Statistics, 7.1); k is the largest
    for which that is 95 %. Below six samples not even the extremes reach it: their range.
    """
    ordered, n = sorted(samples), len(samples)
    if n < 2:
        return None, None, ""
    if n < 6:
        return ordered[0], ordered[-1], RANGE
    k = order_of(n)
    return ordered[k - 1], ordered[n - k], OF_MEDIAN


@functools.lru_cache(maxsize=None)
def order_of(n):
    """The k of median_interval. What is more than ten standard deviations below n/2 has a
    probability below 1e-22 and is left out of the sum."""
    k = max(0, int(n / 2 - 5 * math.sqrt(n)))
    below = 0.0
    while True:
        below += math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) -
                          n * math.log(2))
        if 1 - 2 * below < 0.95:
            return k
        k += 1


def recorded_interval(step):
    """(low, high, kind) of a `step` record's images_per_s, which is of the mean step. Records
    without the key say nothing of it: their low and high are of the median step (0.1)."""
    ends = number(step, "images_per_s_low"), number(step, "images_per_s_high")
    if step.get("images_per_s_interval") != "block_bootstrap_mean" or None in ends:
        return None, None, ""
    return *ends, OF_MEAN


def rate_of(rates, interval=None):
    """Rate of repetitions, with the interval of their median if no other is given."""
    return Rate(statistics.fmean(rates), statistics.median(rates),
                *(interval or median_interval(rates)), len(rates), tuple(rates))


def rate_of_steps(steps):
    """Rate of `step` records: repetitions of one throughput run, which differ more than the steps
    within one. A single record has the interval that its program computed over steps."""
    return rate_of([step["images_per_s"] for step in steps],
                   recorded_interval(steps[0]) if len(steps) == 1 else None)


def rate_of_epochs(epochs):
    """Rate of `epoch` records: the mean is all images over all time, which agrees with the mean time
    of an epoch."""
    rates = [epoch["images_per_s"] for epoch in epochs]
    seconds = [number(epoch, "epoch_s") for epoch in epochs]
    rate = rate_of(rates)
    if not all(seconds):
        return rate
    return rate._replace(mean=sum(rate * s for rate, s in zip(rates, seconds)) / sum(seconds))


def distinct(first, second):
    """Whether two rates differ: False where their intervals overlap; None where one has none, or
    where ranges may be disjoint by chance: of n and m samples of one distribution they are with
    probability 2 / C(n+m, n), which must be 5 % at most."""
    if None in (first.low, second.low):
        return None
    if first.low <= second.high and second.low <= first.high:
        return False
    if RANGE not in (first.kind, second.kind):
        return True
    return True if 2 / math.comb(first.samples + second.samples, first.samples) <= 0.05 else None


def ratio_interval(old, new):
    """(low, high) of NEW's rate over OLD's, from end to end; Nones where one has no interval.

    Of 95 % intervals of independent, normal errors it is one of 95 % or more: not the errors add
    up, but their squares. It leaves out 1 where the two do not overlap, which is a test at 0.6 to
    5 % (Schenker, Gentleman: On Judging the Significance of Differences by Examining the Overlap
    Between Confidence Intervals, The American Statistician 55, 2001)."""
    if None in (old.low, new.low):
        return None, None
    return new.low / old.high, new.high / old.low


def accuracy_margin(first, second):
    """The largest difference (95 %) of two accuracies from the choice of validation images alone:
    1.96 sqrt(p(1-p)/n + q(1-q)/m). Each is (accuracy, images), an accuracy from 0 to 1."""
    return 1.96 * math.sqrt(sum(p * (1 - p) / n for p, n in (first, second)))
