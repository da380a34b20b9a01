"""Intervals and tests for paired comparisons: the same images twice, or the same round of a benchmark twice."""

import math
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95


def accuracy_change_interval(both_right, lost, gained, both_wrong):
    """Return (change, low, high) of a proportion measured twice on the same images: (gained - lost) / images.

    Newcombe's square-and-add interval for paired proportions, his method 10 (Statistics in Medicine 17, 1998,
    2635-2650), at 95 %. It stays within [-1, 1] and is not empty when nothing changed.
    """
    images = both_right + lost + gained + both_wrong
    before, after = both_right + lost, both_right + gained
    change = (after - before) / images
    low_1, high_1 = wilson_interval(after, images)
    low_2, high_2 = wilson_interval(before, images)
    down_1, up_1 = after / images - low_1, high_1 - after / images
    down_2, up_2 = before / images - low_2, high_2 - before / images
    phi = _phi(both_right, lost, gained, both_wrong)
    low = change - math.sqrt(down_1**2 - 2 * phi * down_1 * up_2 + up_2**2)
    high = change + math.sqrt(up_1**2 - 2 * phi * up_1 * down_2 + down_2**2)
    return change, low, high


def _phi(both_right, lost, gained, both_wrong):
    """Return the correlation of the two measurements, with Newcombe's continuity correction where it is positive."""
    images = both_right + lost + gained + both_wrong
    margins = (both_right + lost) * (gained + both_wrong) * (both_right + gained) * (lost + both_wrong)
    if margins == 0:
        return 0.0
    cross = both_right * both_wrong - lost * gained
    if cross > 0:
        cross = max(cross - images / 2, 0)
    return cross / math.sqrt(margins)


def least_change(lost, gained, images, chance):
    """Return the change of accuracy that the true one lies below with a small `chance` at most: a fraction.

    The lower limit of Tango's score interval for paired proportions (Statistics in Medicine 17, 1998, 891-908), for
    showing that no more than so much is lost. Newcombe's interval is right on the whole; of a few dozen changed
    predictions its lower end alone is wrong up to twice as often as it says, and this one is not, since its variance is
    that of the limit itself. With nothing gained it is Wilson's.
    """
    z, low, high = NormalDist().inv_cdf(1 - chance), -1.0, (gained - lost) / images
    for _ in range(50):  # halvings: down to a float's precision
        middle = (low + high) / 2
        low, high = (middle, high) if _tango_score(middle, lost, gained, images) > z else (low, middle)
    return low


def _tango_score(change, lost, gained, images):
    """Return by how many standard deviations more was gained than a true `change` makes one expect."""
    linear = (2 * images - gained + lost) * change - gained - lost
    constant = -lost * change * (1 - change)
    # the likeliest share of lost predictions for that change: the larger root of a quadratic equation
    share = (math.sqrt(max(linear**2 - 8 * images * constant, 0.0)) - linear) / (4 * images)
    variance = images * (2 * share + change * (1 - change))
    return (gained - lost - images * change) / math.sqrt(max(variance, 1e-12))  # it is 0 where all is lost, for certain


def wilson_interval(successes, trials):
    """Return Wilson's 95 % interval of a proportion (no continuity correction)."""
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    centre = (successes + z * z / 2) / (trials + z * z)
    half = z * math.sqrt(successes * (trials - successes) / trials + z * z / 4) / (trials + z * z)
    return max(0.0, centre - half), min(1.0, centre + half)


def mcnemar_p(lost, gained):
    """Return the two-sided p-value of McNemar's exact test: are lost and gained equally likely? 1.0 if nothing changed."""
    changed, term, tail = lost + gained, 1, 0
    for count in range(min(lost, gained) + 1):  # whole numbers: exact where floats would underflow
        tail += term
        term = term * (changed - count) // (count + 1)
    return min(1.0, 2 * tail / 2**changed)


def ratio_interval(ratios):
    """Return (ratio, low, high): geometric mean of per-round ratios and its 95 % t-interval, computed on logarithms.

    The rounds are the sample: new sessions in every round make them independent, which calls within one are not.
    Raises ValueError for fewer than two rounds, which have no spread.
    """
    from scipy.special import stdtrit  # noqa: PLC0415 -- 0.3 s that evaluation, with 0.1 s of work, need not pay

    logs = np.log(np.asarray(ratios, dtype=float))
    if len(logs) < 2:
        raise ValueError("an interval needs at least two rounds")
    mean = logs.mean()
    half = stdtrit(len(logs) - 1, 0.5 + CONFIDENCE / 2) * logs.std(ddof=1) / math.sqrt(len(logs))
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))
