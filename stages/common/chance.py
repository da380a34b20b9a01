"""Whether a network knows anything of its test images."""


def no_better_than_one_class(judged):
    """Return whether a network is right no more often than saying the most frequent class every time would be.

    `judged`: evaluate-fp32's metrics; without labels nothing is known, and where all images are of one class nothing
    could be better.
    """
    return "accuracy" in judged and judged["accuracy"] <= judged["most_frequent_share"] < 1
