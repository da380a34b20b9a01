"""Whether paired rounds show a difference in time: its interval leaves out zero, and it is large enough to matter."""

import math

import numpy as np

LEAST_PERCENT = 2.0
RESOLUTION_US = 0.5  # a node; the trace counts whole microseconds
CONFIDENCE = 0.97  # 11 rounds: between the second smallest and the second largest, so that a disturbed round is let off


def shown(difference, call_us, nodes):
    """Return whether the rounds show a difference (rounds,) from zero that matters to a call of `call_us`.

    `nodes`: how many nodes' times are in the difference.
    """
    low, high = median_interval(difference)
    least = max(LEAST_PERCENT / 100 * call_us, RESOLUTION_US * nodes)
    return (low > 0 or high < 0) and abs(np.median(difference)) >= least


def median_interval(values):
    """Return the narrowest interval between order statistics that holds the median with at least CONFIDENCE.

    With too few values for that it is their whole range.
    """
    ordered, count = np.sort(values), len(values)
    cut, outside = 0, 2 * 0.5**count
    while cut + 1 < count / 2:
        outside += 2 * math.comb(count, cut + 1) * 0.5**count
        if outside > 1 - CONFIDENCE:
            break
        cut += 1
    return float(ordered[cut]), float(ordered[count - 1 - cut])
