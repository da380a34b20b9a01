"""The points of a recipe search: what was tried, what came of it, and the files behind them."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from stages.common.calibration.collection import draw_indices
from stages.common.calibration.image_ranges import minmax_of_sets
from stages.common.calibration.settings import calibration_settings
from stages.common.calibration.static_quantization import calibrate, quantize

SEARCHED, HAND_WRITTEN = "searched", "hand-written"
CHOSEN, TIED, BEHIND, INACCURATE, SAME_FILE, FAILED, NOT_REACHED = OUTCOMES = (
    "chosen", "tied", "behind", "inaccurate", "same-file", "failed", "not-reached",
)  # fmt: skip
COLUMNS = ["point", "origin", "outcome", "reason", "size_bytes", "screened_time_ratio", "time_ratio", "time_ratio_low",
           "time_ratio_high", "accuracy_change", "change_low", "changed", "validation_images", "recipe"]  # fmt: skip


@dataclass(eq=False)
class Point:
    """A recipe and what is known of it. Times are relative to fp32's: below 1 is faster.

    `recipe`: as in params.yaml, its `calibrate` spelled out (empty for fp32 itself); `raced`: (ratio, low, high) of the
    rounds; `judged`: the paired comparison of predictions; `shown_low`: what the change of accuracy is shown to be above,
    with the confidence that the search asks for; `outcome`: "" while the point is in the running, then one of
    OUTCOMES, with a `reason` in words.
    """

    name: str
    origin: str
    recipe: dict
    path: Path | None = None
    size_bytes: int = 0
    call_seconds: float = 0.0
    open_seconds: float = 0.0
    screened: float | None = None
    raced: tuple | None = None
    judged: dict | None = None
    shown_low: float | None = None
    outcome: str = ""
    reason: str = ""
    shape: object = None  # space.Shape of a searched point
    twin: "Point | None" = None  # an earlier point with the same file
    repair_of: "Point | None" = None  # the point whose accuracy did not hold

    def drop(self, outcome, reason):
        """Take the point out of the running; the first reason counts."""
        if not self.outcome:
            self.outcome, self.reason = outcome, reason
        return self

    def come_back(self):
        """Put a point into the running again that was only behind, or not reached."""
        self.outcome, self.reason = "", ""

    def time_ratio(self):
        """Return its time as the rounds have it, else as the screening has it."""
        return self.raced[0] if self.raced else self.screened

    def complexity(self):
        """Return how much there is in the recipe to explain: of two equal ones the simpler is better."""
        own = {key: value for key, value in self.recipe.items() if key != "calibrate"}
        parts = sum(len(value) if isinstance(value, list | dict) else 1 for value in own.values())
        return parts + (own.get("quant_format") == "QOperator")  # the older format, which other tools read less well

    def row(self):
        """Return the point as a row of COLUMNS."""
        judged = self.judged or {}
        ratios = self.raced or (None, None, None)
        return [
            self.name, self.origin, self.outcome, self.reason, self.size_bytes or "",
            *("" if value is None else f"{value:.4f}" for value in (self.screened, *ratios)),
            *(f"{judged[key]:.5f}" if key in judged else "" for key in ("accuracy_change", "change_low")),
            judged.get("changed", ""), judged.get("images", ""), json.dumps(self.recipe),
        ]  # fmt: skip


class Builder:
    """Makes the files of points in a folder, with one calibration for all points that calibrate alike."""

    def __init__(self, preprocessed_path, images_path, available, scaling, shared, folder):
        self.preprocessed_path, self.images_path, self.available = preprocessed_path, images_path, available
        self.scaling, self.shared, self.folder = scaling, shared, Path(folder)
        self._ranges, self.digests = {}, {}

    def spelled_out(self, recipe):
        """Return a recipe with all settings of its calibration in its own `calibrate`."""
        draw, how = calibration_settings(self.shared, recipe.get("calibrate", {}))
        return recipe | {"calibrate": draw | how}

    def indices(self, recipe):
        """Return the indices of a recipe's calibration images."""
        draw, _ = calibration_settings(self.shared, recipe.get("calibrate", {}))
        return draw_indices(**draw, available=self.available)

    def ranges(self, recipe):
        """Return the ranges of all tensors for a recipe's calibration; they serve recipes that quantize fewer."""
        own = recipe.get("calibrate", {})
        key = json.dumps(own, sort_keys=True)
        if key not in self._ranges:
            _, how = calibration_settings(self.shared, own)
            self._ranges[key] = self._calibrate(self.indices(recipe), how)
        return self._ranges[key]

    def _calibrate(self, indices, how):
        """Return what `calibrate` finds; where the way allows it on all cores, since calibrating is not timed."""
        files = (self.preprocessed_path, self.images_path)
        if how["method"] == "MinMax" and not how["moving_average"]:
            settings = {"batch_size": how["batch_size"], "symmetric": how["symmetric"]}
            return minmax_of_sets(*files, [indices], self.scaling, **settings)[0]
        return calibrate(*files, indices, self.scaling, **how)

    def build(self, point):
        """Make a point's file; return the earlier point that has the same bytes, if there is one."""
        point.path = self.folder / f"{point.name}.onnx"
        own = {key: value for key, value in point.recipe.items() if key != "calibrate"}
        quantize(self.preprocessed_path, point.path, self.ranges(point.recipe), **own)
        point.size_bytes = point.path.stat().st_size
        digest = hashlib.sha256(point.path.read_bytes()).hexdigest()
        earlier = self.digests.setdefault(digest, point)
        return None if earlier is point else earlier
