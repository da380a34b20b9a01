"""Which differences between two runs of a benchmark are real."""

import math

import numpy as np

from stages.common.statistics.intervals import CONFIDENCE


def welch(before, after):
    """Return (difference of means, its standard error, degrees of freedom) for two samples of unequal variance."""
    a, b = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    share_a, share_b = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    total = share_a + share_b
    freedom = total**2 / (share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1)) if total else len(a) + len(b) - 2
    return float(b.mean() - a.mean()), math.sqrt(total), float(freedom)


def run_difference(before, after, control_before, control_after):
    """Compare two runs of a benchmark by the logarithms of their per-round ratios, each (rounds,).

    `before`, `after`: log(fp32 time / variant time) of the two runs. The controls: the same for fp32's second copy, whose
    true difference is 0. Returns (difference, low, high, p) of the mean logarithm, 95 % interval.

    The rounds of one run share what is peculiar to that run (where the process lies in memory, what else the machine
    did), which their spread does not show. The control has shown what such a thing can do: the outer end of the 95 %
    interval of its difference between the same two runs is the floor. The interval is Welch's, wider by the floor on
    both sides, and p is Welch's for a difference that exceeds the floor, so the two always agree.

    The control is a lower bound: what disturbs fp32 and int8 differently does not cancel in their ratio. Over 28 runs of
    the same files on a busy two-core machine (378 pairs, 8 rows each, Holm), 9 % of the pairs showed any difference;
    without the floor 30 %; fp32 as a variant of its own, none.
    """
    from scipy.special import stdtr, stdtrit  # noqa: PLC0415 -- 0.3 s that a comparison of accuracies need not pay

    quantile = 0.5 + CONFIDENCE / 2
    seeming, control_error, control_freedom = welch(control_before, control_after)
    floor = abs(seeming) + stdtrit(control_freedom, quantile) * control_error
    difference, error, freedom = welch(before, after)
    half = stdtrit(freedom, quantile) * error + floor
    excess = abs(difference) - floor
    p = 1.0 if excess <= 0 else float(2 * stdtr(freedom, -excess / error)) if error else 0.0
    return difference, float(difference - half), float(difference + half), p
