"""Whether a network knows anything of the images that it is judged by."""

import numpy as np


def right_and_by_chance(logits, labels):
    """Return {accuracy, most_frequent_share} of logits (N, classes) for labels (N,) int64: fractions.

    The second is how often saying the most frequent class every time would be right.
    """
    return {
        "accuracy": float((logits.argmax(1) == labels).mean()),
        "most_frequent_share": float(np.bincount(labels).max() / len(labels)),
    }


def no_better_than_one_class(judged):
    """Return whether a network is right no more often than saying the most frequent class every time would be.

    `judged`: what right_and_by_chance returns, or metrics with it; without labels nothing is known, and where all images
    are of one class nothing could be better.
    """
    return "accuracy" in judged and judged["accuracy"] <= judged["most_frequent_share"] < 1
