"""Which numbers of calibration images sensitivity has drawn, and what their spread can say."""

import math


def drawn_counts(metrics):
    """Return the numbers of calibration images of sensitivity's metrics of a variant, in their order."""
    return [int(name.removeprefix("images_")) for name in metrics if name.startswith("images_")]


def share_of_pool(metrics, count):
    """Return how much of all training images a draw of `count` is; above a half any two draws have images in common."""
    return count / metrics["available"]


def nearest_count(metrics):
    """Return the number of drawn images nearest to the recipe's own by ratio, since spread falls by ratios.

    A draw of all images there are is none: there is only one. None where nothing else was drawn.
    """
    counts = [count for count in drawn_counts(metrics) if share_of_pool(metrics, count) < 1]
    return min(counts, key=lambda count: abs(math.log(count / metrics["recipe"]["images"])), default=None)
