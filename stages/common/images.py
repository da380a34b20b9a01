"""Stored images, and the one function that turns them into a model's input.

Training, export, calibration, verification, evaluation and benchmark all go through `to_input`, so that images cannot
be scaled one way for calibration and another way for evaluation.
"""

from pathlib import Path

import numpy as np

from stages.common.workspace import UserError


def load_images(path):
    """Return stored images as a memory map: (N, C, H, W), uint8, or float32 in the model's own input units."""
    images = _load(path)
    if images.ndim < 2 or images.dtype not in (np.uint8, np.float32) or len(images) == 0:
        raise UserError(
            f"{path} holds {images.dtype} of shape {images.shape}: expected images as uint8 or float32 of shape (N, C, H, W)."
        )
    return images


def load_labels(path, count):
    """Return the labels of `count` images: (N,), int64."""
    labels = _load(path)
    if labels.shape != (count,) or labels.dtype != np.int64:
        raise UserError(
            f"{path} holds {labels.dtype} of shape {labels.shape}: expected int64 of shape ({count},), a label an image."
        )
    return labels


def _load(path):
    if not Path(path).is_file():
        raise UserError(f"{path} is missing: run `dvc repro fetch-data`, or put your own array there.")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{path} is not a complete NumPy array ({error}): fetch it again.") from None


def to_input(images, *, scale, mean, std, channels, repeat):
    """Turn stored images into a model's input: (N, C, H, W) uint8 or float32 -> (N, channels, H*repeat, W*repeat) float32.

    value = (pixel * scale - mean) / std, with `mean` and `std` one number, or a list of one a channel. A single stored
    channel is copied to `channels`; a pixel is repeated `repeat` times in both directions, which is exact.
    """
    values = np.asarray(images, dtype=np.float32) * np.float32(scale)
    if values.shape[1] == 1 and channels > 1:
        values = np.repeat(values, channels, axis=1)
    if values.shape[1] != channels:
        raise UserError(
            f"the images have {values.shape[1]} channels and `input.channels` is {channels}: make them equal in params.yaml."
        )
    per_channel = (-1,) + (1,) * (values.ndim - 2)
    values -= np.asarray(mean, dtype=np.float32).reshape(per_channel)
    values /= np.asarray(std, dtype=np.float32).reshape(per_channel)
    for axis in range(2, values.ndim) if repeat > 1 else ():
        values = np.repeat(values, repeat, axis=axis)
    return values


def check_finite(images, path, indices=None):
    """Raise UserError if an image is not finite, naming the file, the first such image and the number of values.

    `indices` are the images' places in the file, where they are not 0, 1, 2 ...
    """
    if images.dtype == np.uint8:
        return
    bad = ~np.isfinite(images).reshape(len(images), -1)
    if bad.any():
        first = int(np.flatnonzero(bad.any(axis=1))[0])
        first = first if indices is None else int(indices[first])
        raise UserError(
            f"{path} has {int(bad.sum())} non-finite values, the first in image {first}: mend or remove these images."
        )


def input_batches(images, *, batch_size, path, limit=None, **scaling):
    """Yield the model's input batch by batch from a memory map, so that memory does not grow with N.

    `limit` is the number of images to take, from the first on; `scaling` goes to `to_input`; `path` is for messages.
    """
    count = len(images) if limit is None else limit
    for start in range(0, count, batch_size):
        batch = images[start : min(start + batch_size, count)]
        check_finite(batch, path, range(start, start + len(batch)))
        yield to_input(batch, **scaling)


def first_input(path, count, **scaling):
    """Return the model's input for the first `count` stored images, or for all of them if there are fewer."""
    stored = load_images(path)
    return next(input_batches(stored[:count], batch_size=count, path=path, **scaling))
