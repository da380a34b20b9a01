"""Whether it is shown that a point keeps its accuracy, though many points are asked and the first that does is taken."""

from stages.common.search.points import FAILED, INACCURATE
from stages.common.statistics.intervals import least_change
from stages.common.workspace import UserError

CHANCE = 0.025  # that any point is said to keep its accuracy, of all that are asked, and does not


class Accuracy:
    """Asks whether a point's accuracy holds: whether it is shown that no more than `max_drop` (a fraction) is lost.

    `compare_file(path)` is the paired comparison with fp32 on validation images. The more points are asked until one
    passes, the likelier is one that passes by luck. So the chance of that is spent: the first may take a half of CHANCE,
    the next a sixth, then a twelfth, and so on, each by a limit of its own confidence, so that all together stay below
    CHANCE.
    """

    def __init__(self, compare_file, max_drop):
        self.compare_file, self.max_drop = compare_file, max_drop
        self.answers = {}  # {point: whether its accuracy holds}, in the order in which they were asked

    def holds(self, point):
        """Return whether a point's accuracy holds; drop the point if it does not. A point is asked once."""
        if point not in self.answers:
            self.answers[point] = self.works(point) and self._shown(point)
        return self.answers[point]

    def works(self, point):
        """Compare a point's predictions, which decides nothing yet; return False, and drop it, if there are none."""
        if point.judged is None and point.outcome != FAILED:
            try:
                point.judged = self.compare_file(point.path)
            except UserError as error:  # logits that are not finite
                point.drop(FAILED, f"does not work: {error}")
        return point.judged is not None

    def _shown(self, point):
        place = 1 + sum(asked.judged is not None for asked in self.answers)  # a file that does not work had no chance
        chance = CHANCE / (place * (place + 1))  # all of which are CHANCE: 1 / (k (k + 1)) is 1 / k - 1 / (k + 1)
        point.shown_low = least_change(*(point.judged[key] for key in ("lost", "gained", "images")), chance)
        if point.shown_low >= -self.max_drop:
            return True
        change, low = 100 * point.judged["accuracy_change"], 100 * point.shown_low
        confidence = f"{100 * (1 - chance):.5g} % confidence, as number {place} that was asked"
        point.drop(INACCURATE, f"accuracy {change:+.2f} points, and it could be {low:+.2f} ({confidence})")
        return False
