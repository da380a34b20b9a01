"""Ranges for many calibration sets that are drawn from the same images: each image is run once, not once a set."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tqdm import tqdm

from stages.common.calibration.collection import open_calibrator
from stages.common.cpu import usable_cores
from stages.common.images import check_finite, load_images, to_input
from stages.common.session.model_io import run


def image_ranges(preprocessed_path, images_path, indices, scaling, *, batch_size, op_types=None):
    """Return (tensors, lowest, highest): names, and the bounds of every tensor on every image, (images, tensors) float32.

    `batch_size` is how many images are read at a time. They run one by one, since some tensors have no batch axis.
    """
    calibrator = open_calibrator(preprocessed_path, method="MinMax", op_types=op_types)
    session = calibrator.infer_session
    outputs = [output.name for output in session.get_outputs()][calibrator.num_model_outputs :]  # lowest, highest, ...

    def run_alone(chosen):
        images = load_images(images_path)[chosen]
        check_finite(images, images_path, chosen)
        return [
            np.concatenate([np.ravel(bound) for bound in bounds])
            for image in to_input(images, **scaling)
            for bounds in run(session, image[None], outputs)
        ]

    parts = [indices[start : start + batch_size] for start in range(0, len(indices), batch_size)]
    with ThreadPoolExecutor(usable_cores()) as pool:
        found = np.concatenate(list(tqdm(pool.map(run_alone, parts), "ranges", len(parts), unit="batch", disable=None)))
    return [output.removesuffix("_ReduceMin") for output in outputs[::2]], found[:, ::2], found[:, 1::2]


def minmax_of_sets(preprocessed_path, images_path, sets, scaling, *, batch_size, symmetric=False, op_types=None):
    """Return the MinMax ranges of every set of image indices, each {tensor: (lowest, highest)} as `calibrate` finds it."""
    union = np.unique(np.concatenate(sets))
    tensors, lowest, highest = image_ranges(
        preprocessed_path, images_path, union, scaling, batch_size=batch_size, op_types=op_types
    )
    if symmetric:
        highest = np.maximum(-lowest, highest)
        lowest = -highest
    ranges = []
    for indices in sets:
        rows = np.searchsorted(union, indices)
        low, high = lowest[rows].min(axis=0), highest[rows].max(axis=0)
        ranges.append({tensor: (low[column], high[column]) for column, tensor in enumerate(tensors)})
    return ranges
