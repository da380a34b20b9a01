"""What can be done where accuracy does not hold, who is the first of which it does, and which is taken in the end."""

from dataclasses import replace

from stages.common.search.points import BEHIND, FAILED, HAND_WRITTEN, NOT_REACHED, TIED
from stages.common.search.race import TIE, speedup

CALIBRATIONS = (
    {"method": "Percentile", "percentile": 99.99, "symmetric": False},
    {"method": "Entropy"},
)  # that clip outliers; MinMax clips nothing


def repairs(point, space, *, narrow_sums):
    """Return recipes like a searched point's that may lose less accuracy: [(recipe, shape)].

    `narrow_sums`: the processor adds products in 16 bits, where the sums of full 8-bit weights may not fit.
    """
    shape, own = point.shape, point.recipe["calibrate"]
    if shape is None:
        return []
    images = {key: own[key] for key in ("seed", "images", "batch_size")}
    last = tuple(layer for layer in space.layers if layer in (*shape.in_float, space.layers[-1]))
    shapes = [replace(shape, per_channel=True), replace(shape, in_float=last)]
    shapes += [replace(shape, reduce_range=True)] if narrow_sums else []
    found = [(space.recipe(other), other) for other in shapes if other != shape and space.valid(other)]
    return found + [(space.recipe(shape) | {"calibrate": images | how}, shape) for how in CALIBRATIONS]


def first_that_holds(queue, holds, *, repair, rank, clock, until):
    """Return the first point of a queue, best first, for which `holds(point)`; None if there is none.

    `repair(point)` returns points in place of one whose accuracy does not hold; they join the queue by `rank(point)`.
    """
    queue, first = list(queue), True
    while queue and (first or clock.left(until) > 0):
        point, first = queue.pop(0), False
        clock.show(f"accuracy of {point.name}")
        if holds(point):
            return point
        if new := repair(point):
            queue = sorted([*queue, *new], key=rank)
    for point in queue:
        point.drop(NOT_REACHED, "not reached in the time for accuracy")
    return None


def best_by_hand(points, accuracy, *, by_size, clock, until):
    """Return the best hand-written point whose accuracy holds, else the best of them all; None if none works.

    The best by the race, for those that were in it; by size the smallest.
    """
    works = [point for point in points if point.origin == HAND_WRITTEN and point.screened is not None]
    works.sort(key=lambda point: point.size_bytes if by_size else (point.raced is None, point.time_ratio()))
    judged = []
    for point in works:
        if judged and clock.left(until) <= 0:
            break
        clock.show(f"accuracy of {point.name}")
        if point.outcome == NOT_REACHED:
            point.come_back()
        if accuracy.holds(point):
            return point
        judged += [point] if point.outcome != FAILED else []
    return judged[0] if judged else None


def drop_behind(point, best, *, by_size):
    """Drop a point that was in the running to the end, by what is known of it beside the one that is taken."""
    if by_size:
        equal = point.size_bytes == best.size_bytes
        return point.drop(TIED if equal else BEHIND, f"{point.size_bytes:,} bytes, {best.name} has {best.size_bytes:,}")
    where = "race" if point.raced and best.raced else "screening"
    ratio = point.raced[0] / best.raced[0] if where == "race" else point.screened / best.screened
    if ratio > TIE:
        outcome, words = BEHIND, ""
    elif ratio < 1 / TIE:  # one that was not raced: its place is by other times than these
        outcome, words = BEHIND, f", but {best.name} was shown to keep its accuracy before"
    else:
        outcome, words = TIED, ", which is about as fast"
    return point.drop(outcome, f"{ratio:.2f} times {best.name} in the {where}{words}")


def decide(winner, hand, medians, *, by_size):
    """Return the point to take; None is fp32 itself.

    `medians`: of fresh rounds, {name: (rounds,)} with "fp32". A point has to be faster than fp32 for certain, and the
    winner of the search faster than the best hand-written recipe, which is the simpler one to have. By size, smaller.
    """
    if by_size:
        best = min((point for point in (hand, winner) if point), key=lambda point: point.size_bytes, default=None)
        if winner and winner is not best:
            drop_behind(winner, best, by_size=True)
        return best
    sure = [point for point in (winner, hand) if point and speedup(medians, "fp32", point.name)[1] > 1]
    if winner in sure and hand in sure and winner is not hand and speedup(medians, hand.name, winner.name)[1] <= 1:
        winner.drop(BEHIND, f"not faster than {hand.name} for certain, which is written by hand")
        return hand
    for point in (winner, hand):
        if point and point not in sure:
            point.drop(BEHIND, "not faster than fp32 for certain")
    return sure[0] if sure else None
