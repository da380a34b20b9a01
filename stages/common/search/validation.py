"""Training images that no calibration has seen: what a search may judge accuracy on, so that the test set stays unseen."""

from pathlib import Path

import numpy as np

from stages.common.images import labels_or_none, load_images
from stages.common.session.runtime import predict_images
from stages.common.statistics.paired import compare
from stages.common.workspace import UserError


def draw_validation(*, seed, images, available, taken):
    """Return the indices of validation images, (images,) int64, ascending: of all but the `taken` ones."""
    free = np.setdiff1d(np.arange(available), taken)
    if images > len(free):
        raise UserError(
            f"tune asks for {images} validation images, and of {available} training images {len(free)} are left beside those of the calibration: ask for fewer, or make `calibrate.images` smaller."
        )
    return np.sort(np.random.default_rng(seed).choice(free, images, replace=False))


class Validation:
    """A validation split in a file of its own, fp32's predictions of it, and the paired comparison with these.

    `settings`: batch_size, threads and output of `predict_images`. Without labels what fp32 predicts stands for them, so
    that the change of accuracy is the loss of agreement; `labelled` tells.
    """

    def __init__(self, folder, images_path, labels_path, indices, fp32_path, scaling, **settings):
        self.path, self.count, self.scaling = Path(folder) / "validation-images.npy", len(indices), scaling
        self.settings = settings
        stored = load_images(images_path)
        np.save(self.path, stored[indices])
        self.baseline = self._predict(fp32_path)
        labels = labels_or_none(labels_path, len(stored))
        self.labelled = labels is not None
        self.labels = labels[indices] if self.labelled else self.baseline.argmax(1)

    def _predict(self, path):
        return predict_images(path, self.path, self.scaling, images=self.count, **self.settings)

    def compare_file(self, path):
        """Return the paired comparison of a file's predictions with fp32's (see paired.compare)."""
        return compare(self._predict(path), self.baseline, self.labels)
