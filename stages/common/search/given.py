"""A search in a space of one point: the recipe that params.yaml gives, measured as a winner is, and taken in any case."""

import math

from stages.common.calibration.static_quantization import check_recipe
from stages.common.search.points import FAILED
from stages.common.search.search import Search
from stages.common.statistics.intervals import ratio_interval
from stages.common.tuned_recipe import GIVEN
from stages.common.workspace import UserError


class GivenRecipe(Search):
    """A Search whose `hand_written` is {"given": recipe}, or {} where fp32 is given."""

    def calibrated(self):
        """Return the one recipe alone: the validation images that it is judged by do not follow the shared settings."""
        return [*self.hand_written.values()] or [{}]

    def explore(self):
        """Make and time the one file."""
        for name, recipe in self.hand_written.items():
            try:
                check_recipe(self.preprocessed_path, recipe)
            except UserError as error:
                raise UserError(f"the recipe given under `tune` cannot be used: {error}") from None
            must_work(self.screening.try_recipe(name, GIVEN, recipe, until=math.inf))

    def best(self):
        """Return the one point; its accuracy is asked for as that of the first one in a search, and decides nothing."""
        for point in self.points:
            self.accuracy.holds(point)
            must_work(point)
        return next(iter(self.points), None), None

    def split(self, medians):
        """Return all rounds twice: nothing is decided by them."""
        return medians, medians

    def decide(self, winner, hand, medians):
        """Return the one point; its time in the table is that of these rounds, the only ones that there are."""
        winner.raced = ratio_interval(medians[winner.name] / medians["fp32"])
        return winner


def must_work(point):
    """Raise UserError if a point's file cannot be made, loaded or run: nothing else can stand in for it."""
    if point.outcome == FAILED:
        raise UserError(
            f"the recipe given under `tune` {point.reason.removesuffix('.')}: change it, or remove it and search."
        )
