"""Training images that neither training nor calibration has seen: what a search judges accuracy on.

So the test set stays unseen, and what a network has learned by heart is not taken for what it can.
"""

from pathlib import Path

import numpy as np

from stages.common.images import labels_or_none, load_images
from stages.common.session.runtime import predict_images
from stages.common.statistics.paired import compare
from stages.common.workspace import UserError


def free_images(available, *, trained, taken):
    """Return the indices, ascending, of the training images behind the `trained` first ones that are not `taken`."""
    free = np.setdiff1d(np.arange(trained, available), taken)
    if not len(free):
        raise UserError(
            f"tune has no image to judge by: of {available} training images {trained} are trained on and calibration takes the others: make `calibrate.images` or the model's `trained_images` smaller."
        )
    return free


def draw_validation(free, *, seed, images):
    """Return the indices of validation images, (images,) int64, ascending, of the `free` ones."""
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
