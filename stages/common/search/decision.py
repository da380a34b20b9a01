"""Whose accuracy holds, what can be done where it does not, and which of the best is taken in the end."""

from dataclasses import replace

from stages.common.search.points import BEHIND, FAILED, INACCURATE, NOT_REACHED
from stages.common.search.race import speedup
from stages.common.workspace import UserError

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


class Accuracy:
    """Asks whether a point's accuracy holds: whether it is shown that no more than `max_drop` (a fraction) is lost.

    `compare_file(path)` is the paired comparison with fp32 on validation images. Accuracy holds where the 95 % interval
    of its change lies above the limit, which is a one-sided test at 2.5 %.
    """

    def __init__(self, compare_file, max_drop):
        self.compare_file, self.max_drop = compare_file, max_drop

    def holds(self, point):
        """Return whether a point's accuracy holds; drop the point if it does not. Predicts once a point."""
        if point.judged is None:
            try:
                point.judged = self.compare_file(point.path)
            except UserError as error:  # logits that are not finite
                point.drop(FAILED, f"does not work: {error}")
                return False
        low, change = (100 * point.judged[key] for key in ("change_low", "accuracy_change"))
        if low >= -100 * self.max_drop:
            return True
        point.drop(INACCURATE, f"accuracy {change:+.2f} points, and it could be {low:+.2f}")
        return False


def decide(winner, hand, medians, *, by_size):
    """Return the point to take; None is fp32 itself.

    `medians`: of fresh rounds, {name: (rounds,)} with "fp32". A point has to be faster than fp32 for certain, and the
    winner of the search faster than the best hand-written recipe, which is the simpler one to have. By size, smaller.
    """
    if by_size:
        return min((point for point in (hand, winner) if point), key=lambda point: point.size_bytes, default=None)
    sure = [point for point in (winner, hand) if point and speedup(medians, "fp32", point.name)[1] > 1]
    if winner in sure and hand in sure and winner is not hand and speedup(medians, hand.name, winner.name)[1] <= 1:
        winner.drop(BEHIND, f"not faster than {hand.name} for certain, which is written by hand")
        return hand
    for point in (winner, hand):
        if point and point not in sure:
            point.drop(BEHIND, "not faster than fp32 for certain")
    return sure[0] if sure else None
