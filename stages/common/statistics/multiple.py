"""Which of many differences are real: the p-value of one, and Holm's correction of all that are asked about together."""

import math

import numpy as np

from stages.common.statistics.intervals import CONFIDENCE

SIGNIFICANCE = 1 - CONFIDENCE


def holm(p_values):
    """Return the p-values adjusted by Holm's method, in the order given.

    Rejecting where the adjusted value is below 0.05 bounds the chance of even one false rejection among all of them by
    5 %, however they depend on each other (Scandinavian Journal of Statistics 6, 1979, 65-70).
    """
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted


def ratio_p(ratios):
    """Return the two-sided p-value of per-round ratios (rounds,) for a true ratio of 1: the t-test of ratio_interval.

    Raises ValueError for fewer than two rounds, which have no spread.
    """
    from scipy.special import stdtr  # noqa: PLC0415 -- 0.3 s that evaluation, with 0.1 s of work, need not pay

    logs = np.log(np.asarray(ratios, dtype=float))
    if len(logs) < 2:
        raise ValueError("a p-value needs at least two rounds")
    error = logs.std(ddof=1) / math.sqrt(len(logs))
    if error == 0:
        return float(logs.mean() == 0)
    return float(2 * stdtr(len(logs) - 1, -abs(logs.mean()) / error))
