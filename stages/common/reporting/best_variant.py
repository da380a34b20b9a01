"""Which of the variants that are accurate enough is the best: by speed, then by size."""

import math

CLEARLY_SMALLER = 0.95  # of the size


def best_variant(found, sound):
    """Return (the best of the variants `sound`, whether it is the fastest, the others that are as fast).

    The fastest on average over the batch sizes (geometric mean) is looked for. Of those that cannot be told from it by
    the intervals, nor are slower than another such one, the best is the clearly smallest, and the first of `sound`
    where sizes are about equal. The others are those that cannot be told from the best, in the order of `sound`.
    """
    cells_of = {name: found["variants"][name]["benchmark"] for name in sound}
    fastest = max(sound, key=lambda name: mean_speedup(cells_of[name]))
    tied = [name for name in sound if overlap(cells_of[name], cells_of[fastest])]
    tied = [name for name in tied if not any(beats(cells_of[other], cells_of[name]) for other in tied)]
    best = first_of_the_smallest(found, tied)
    is_fastest = mean_speedup(cells_of[best]) >= mean_speedup(cells_of[fastest])
    return best, is_fastest, [name for name in tied if name != best and overlap(cells_of[name], cells_of[best])]


def first_of_the_smallest(found, names):
    """Return the first of `names` than whose file none of the others' is clearly smaller."""
    sizes = {name: found["variants"][name]["verify"]["size_bytes"] for name in names}
    return next(name for name in names if min(sizes.values()) > CLEARLY_SMALLER * sizes[name])


def overlap(cells, others):
    """Return whether the intervals of two variants overlap at every batch size that both were timed at."""
    return all(
        cells[batch]["speedup_low"] <= others[batch]["speedup_high"]
        and others[batch]["speedup_low"] <= cells[batch]["speedup_high"]
        for batch in cells
        if batch in others
    )


def beats(cells, others):
    """Return whether a variant is faster for certain than another at some batch size, and slower at none."""
    both = [(cell, others[batch]) for batch, cell in cells.items() if batch in others]
    return any(cell["speedup_low"] > other["speedup_high"] for cell, other in both) and not any(
        cell["speedup_high"] < other["speedup_low"] for cell, other in both
    )


def mean_speedup(cells):
    """Return the geometric mean of the speedups over the batch sizes."""
    return math.exp(sum(math.log(cell["speedup"]) for cell in cells.values()) / len(cells))
