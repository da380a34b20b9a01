"""The search for the fastest recipe: cheap screening first, then interleaved rounds for what is close, then accuracy.

The fastest whose accuracy holds meets the best hand-written recipe and fp32 in fresh rounds: one half of them decides,
the other, which was used for no choice, is reported. What session options would bring is measured last, in what is left
of the seconds, and changes nothing.
"""

from pathlib import Path

import numpy as np
import onnx

from stages.common.cpu import EXACT_INT8, CpuSeconds, best_int8_path, cpu_model_and_flags, disturbances, usable_cores
from stages.common.images import first_input, load_images
from stages.common.machine_lock import machine_lock
from stages.common.search.accuracy import Accuracy
from stages.common.search.clock import SearchClock
from stages.common.search.decision import best_by_hand, decide, drop_behind, first_that_holds, repairs
from stages.common.search.matrix_products import measure_products, operations_per_image
from stages.common.search.points import BEHIND, CHOSEN, HAND_WRITTEN, SAME_FILE, Builder
from stages.common.search.race import FEWEST_LAST_ROUNDS, field_of, halves, race, timed_rounds
from stages.common.search.screening import Screening, explore, slower_in_integers
from stages.common.search.session_options import measure_options
from stages.common.search.space import Space
from stages.common.search.summary import final_speeds, reached_gops, summary
from stages.common.search.validation import Validation, draw_validation, free_images
from stages.common.workspace import scratch_folder

SEARCH_SHARE = 0.8  # of tune.<model>.seconds; the rest, and what the search leaves of this, is for session options
ACCURACY_SHARE = 0.35  # of the search's seconds, as all shares below: for predictions of the validation images
ACCURACY_UNTIL, HAND_WRITTEN_UNTIL, FOR_THE_READER_UNTIL = 0.85, 0.9, 0.9  # from the start on
PROFILE_SHARE = 0.05
COMPARISONS = 3  # predictions of int8 files that the share is planned for, beside fp32's
FEWEST_IMAGES = 100
CORE_WORTH = 0.75  # of a further core to predictions, carefully guessed
PREDICTED_AT_ONCE = 32  # memory only; resnet18 at 224 needs 3 MB an image for one tensor
LIKELY = 5  # predictions that may be lost in the long run where none of a sample is, by the limit of the first asked
LAST_SEED = 1000  # of the last rounds: none of the race


class Search:
    """The search on one model: `run` it, then `points`, `chosen` (None is fp32 itself) and `metrics` are there.

    `plan`: tune.<model>; `hand_written`: {name: recipe}; `shared`: the calibration settings; `files`: (fp32, preprocessed,
    training images, their labels); `batch`: images of the timed call; `evaluate`: batch_size and output of
    predictions.
    """

    def __init__(self, plan, hand_written, shared, files, scaling, *, batch, evaluate, threads):
        self.plan, self.hand_written, self.shared, self.scaling = plan, hand_written, shared, scaling
        self.fp32_path, self.preprocessed_path, self.images_path, self.labels_path = files
        self.batch, self.evaluate, self.threads = batch, evaluate, threads
        self.model = onnx.load(self.preprocessed_path)
        self.values = first_input(self.images_path, batch, **scaling)
        self.space, self.by_size = Space(self.model), plan["objective"] == "size"
        self.chosen, self.metrics = None, {}

    def run(self):
        """Search, alone on the machine."""
        with machine_lock(), scratch_folder(Path(self.preprocessed_path).parent, "tune") as self.folder:
            start = CpuSeconds.now()
            self.clock = SearchClock(self.plan["seconds"], SEARCH_SHARE)
            self.open_screening()
            self.explore()
            self.open_validation()
            winner, hand = self.best()
            self.choose(winner, hand)
            self.compare_for_the_reader()
            self.metrics |= measure_products(self.folder, threads=self.threads)
            self.metrics |= summary(self.points, self.chosen, hand) | {"seconds": round(self.clock.spent(), 1)}
            self.race_session_options()
            self.clock.close()
            self.metrics |= CpuSeconds.now().since(start)
        for disturbance in disturbances(self.metrics):
            print(f"warning: {disturbance}: the search saw less, and less clearly")

    @property
    def points(self):
        """All points in the order in which they were tried."""
        return self.screening.points

    def open_screening(self):
        """Get ready to make files and to time them, and see that images are left to judge them by."""
        available = len(load_images(self.images_path))
        self.builder = Builder(
            self.preprocessed_path, self.images_path, available, self.scaling, self.shared, self.folder
        )
        taken = np.concatenate([self.builder.indices(recipe) for recipe in self.calibrated()])
        self.free = free_images(available, trained=self.plan.get("trained_images", 0), taken=taken)
        timed = {"threads": self.threads, "clock": self.clock}
        self.screening = Screening(self.builder, self.fp32_path, self.values, by_size=self.by_size, **timed)

    def calibrated(self):
        """Return recipes that have all calibration images of the search: those of the shared settings, and the others'."""
        return [{}, *self.hand_written.values()]

    def explore(self):
        """Time everything that is worth it a little."""

        def find_slower(point):
            files = (self.fp32_path, self.space, self.values, self.folder)
            seconds = PROFILE_SHARE * self.clock.seconds
            return slower_in_integers(point, *files, threads=self.threads, seconds=seconds)

        explore(self.screening, self.space, self.hand_written, find_slower=find_slower)

    def open_validation(self):
        """Draw as many validation images as there is time for, and predict them with fp32."""
        limit = self.plan["max_drop"]
        cores = usable_cores()  # the machine is the search's alone, and predictions are not timed
        seconds = (value / (1 + CORE_WORTH * (cores - 1)) for value in self.screening.image_seconds())
        images = affordable_images(self.plan, *seconds, len(self.free))
        if images * limit / 100 < LIKELY:
            print(
                f"warning: {images} validation images cannot show that no more than {limit:g} points are lost: "
                "raise max_drop, validation_images or seconds under `tune`"
            )
        indices = draw_validation(self.free, seed=self.plan["seed"], images=images)
        self.clock.show("fp32's predictions")
        batch_size = min(self.evaluate["batch_size"], PREDICTED_AT_ONCE)
        settings = self.evaluate | {"batch_size": batch_size, "threads": cores}
        self.validation = Validation(
            self.folder, self.images_path, self.labels_path, indices, self.fp32_path, self.scaling, **settings
        )
        self.accuracy = Accuracy(self.validation.compare_file, limit / 100)
        self.metrics["labelled"] = int(self.validation.labelled)

    def best(self):
        """Return the fastest point whose accuracy holds and the best hand-written one; None where there is none."""
        field = field_of(self.screening)
        if field and not self.by_size:
            field = race(field, self.fp32_path, self.values, clock=self.clock, threads=self.threads)
        until = {"clock": self.clock, "until": ACCURACY_UNTIL}
        winner = first_that_holds(field, self.accuracy.holds, repair=self.repaired, rank=self.rank, **until)
        for point in self.points:
            if winner and point is not winner and not point.outcome:
                drop_behind(point, winner, by_size=self.by_size)
        if winner and winner.origin == HAND_WRITTEN:
            return winner, winner
        until["until"] = HAND_WRITTEN_UNTIL
        return winner, best_by_hand(self.points, self.accuracy, by_size=self.by_size, **until)

    def rank(self, point):
        """Return what points are ordered by when they are asked for their accuracy: smaller is better."""
        return point.size_bytes if self.by_size else point.time_ratio()

    def repaired(self, point):
        """Return the points that take the place of one whose accuracy does not hold."""
        if point.repair_of:
            return []
        narrow_sums = best_int8_path(cpu_model_and_flags()[1]) not in EXACT_INT8
        found = []
        for recipe, shape in repairs(point, self.space, narrow_sums=narrow_sums):
            new = self.screening.try_searched(recipe, shape, until=ACCURACY_UNTIL)
            if new.outcome == SAME_FILE and new.twin.outcome == BEHIND:
                new = new.twin  # which is slower than the one that may lose too much, and that is no longer against it
                new.come_back()
            if not new.outcome:
                new.repair_of = point
                found.append(new)
        return found

    def choose(self, winner, hand):
        """Time the winner, the best hand-written recipe and fp32 in fresh rounds, and decide."""
        compared = [point for point in dict.fromkeys((winner, hand)) if point]
        if not compared:
            return
        self.clock.show("the best against fp32")
        medians = timed_rounds(
            compared, self.fp32_path, self.values,
            seconds=max(self.clock.left(), 0.0), threads=self.threads, seed=self.plan["seed"] + LAST_SEED,
            fewest=FEWEST_LAST_ROUNDS,
        )  # fmt: skip
        deciding, reported = self.split(medians)
        self.chosen = self.decide(winner, hand, deciding)
        if self.chosen:
            self.chosen.outcome, self.chosen.reason = CHOSEN, ""
        self.metrics |= final_speeds(self.chosen, hand, reported)
        self.metrics |= reached_gops(operations_per_image(self.model), self.batch, reported, self.chosen)

    def split(self, medians):
        """Return the rounds to decide by and those to report, of {name: medians (rounds,)}."""
        return halves(medians)

    def decide(self, winner, hand, medians):
        """Return the point to take; None is fp32 itself."""
        kept = hand if hand and self.accuracy.holds(hand) else None
        return decide(winner, kept, medians, by_size=self.by_size)

    def compare_for_the_reader(self):
        """Compare the predictions of what came close, too, in the time that is left: for the figure."""
        for point in self.points:
            came_close = point.raced or (point.origin == HAND_WRITTEN and point.screened)
            takes = self.validation.count * point.call_seconds / self.batch
            if came_close and self.clock.left(FOR_THE_READER_UNTIL) > takes:
                self.clock.show(f"accuracy of {point.name}")
                self.accuracy.works(point)

    def race_session_options(self):
        """Time session options with fp32 and the chosen file, in what the search has left of the seconds."""
        self.clock.show("session options")
        files = {"fp32": self.fp32_path} | ({"tuned": self.chosen.path} if self.chosen else {})
        self.metrics["session_options"] = measure_options(
            files, self.values, (self.validation.path, self.validation.count, self.scaling),
            threads=self.threads, seconds=self.plan["seconds"] - self.clock.spent(), seed=self.plan["seed"] + LAST_SEED + 1,
            folder=self.folder, output=self.evaluate["output"],
        )  # fmt: skip


def affordable_images(plan, fp32_seconds, int8_seconds, free):
    """Return how many validation images the budget allows, of `free`, by the seconds that one takes."""
    affordable = int(ACCURACY_SHARE * SEARCH_SHARE * plan["seconds"] / (fp32_seconds + COMPARISONS * int8_seconds))
    return max(1, min(plan["validation_images"], free, max(affordable, FEWEST_IMAGES)))
