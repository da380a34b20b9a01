"""What a search says of its end, as metrics: how fast the chosen file is, what was tried, what its arithmetic reaches."""

import numpy as np

from stages.common.search.points import NOT_REACHED, OUTCOMES
from stages.common.search.race import speedup


def final_speeds(chosen, hand, medians):
    """Return {speedup...: over fp32, rounds, over_hand_written: {speedup...}}; the last only if another was chosen.

    `medians`: {name: (rounds,)} of rounds by which nothing was decided.
    """
    if chosen is None:
        return {}
    keys = ("speedup", "speedup_low", "speedup_high")
    found = dict(zip(keys, speedup(medians, "fp32", chosen.name), strict=True))
    found["rounds"] = len(medians["fp32"])
    if hand is not None and hand is not chosen:
        found["over_hand_written"] = dict(zip(keys, speedup(medians, hand.name, chosen.name), strict=True))
    return found


def summary(points, chosen, hand):
    """Return what was tried and what came of it: counts, names, size and the accuracy on the validation images."""
    counts = {"tried": sum(point.outcome != NOT_REACHED for point in points)}
    counts |= {outcome.replace("-", "_"): sum(point.outcome == outcome for point in points) for outcome in OUTCOMES[1:]}
    found = {"chosen": (chosen.name if chosen else "fp32")[:40], "points": counts}
    if hand:
        found["best_hand_written"] = {"name": hand.name[:40], **judgement(hand, ("accuracy_change", "change_low"))}
    if chosen:
        keys = ("images", "accuracy", "accuracy_change", "change_low", "change_high", "changed")
        found |= {"size_bytes": chosen.size_bytes, "validation": judgement(chosen, keys)}
    return found


def judgement(point, keys):
    """Return what is known of a point's accuracy; `shown_low` is missing where nothing was to be shown."""
    shown = {} if point.shown_low is None else {"shown_low": point.shown_low}
    return {key: point.judged[key] for key in keys} | shown


def reached_gops(operations, batch, medians, chosen):
    """Return what fp32 and the chosen file reach in the last rounds, in billions of operations a second."""
    if operations is None:
        return {}
    files = {"fp32_gops": "fp32"} | ({"tuned_gops": chosen.name} if chosen else {})
    # operations a nanosecond are billions a second
    return {key: round(operations * batch / float(np.median(medians[name])), 2) for key, name in files.items()}
