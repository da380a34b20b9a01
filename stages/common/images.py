"""Stored images, and the one function that turns them into a model's input.

Training, export, calibration, verification, evaluation and benchmark all go through `to_input`, so that images cannot
be scaled one way for calibration and another way for evaluation.
"""

from pathlib import Path

import numpy as np

from stages.common.workspace import UserError

MAPPED_BYTES = 2**20  # pages of a map that were read stay in memory until it is closed: then a new one is made
IMAGES = "uint8 or float32 of shape (N, C, H, W), (N, C, L) or (N, F)"


def load_images(path):
    """Return stored images as a memory map: uint8 or float32, of which `to_input` scales either.

    The first axis counts the images, the next the channels, (N, C, H, W) or with any other number of axes: (N, F) are F
    features. With `channels_last` the channels are the last axis.
    """
    images = _load(path)
    if images.size == 0:
        raise UserError(f"{path} is empty, shape {images.shape}: put images into it.")
    if images.ndim < 2 or images.dtype not in (np.uint8, np.float32):
        raise UserError(f"{path} holds {images.dtype} of shape {images.shape}: expected images as {IMAGES}.")
    return images


def load_labels(path, count):
    """Return the labels of `count` images: (N,), int64."""
    labels = labels_or_none(path, count)
    if labels is None:
        raise UserError(f"{path} is empty, which says that there are no labels: a network cannot be trained without.")
    return labels


def labels_or_none(path, count):
    """Return the labels of `count` images, (N,) int64, or None if the array is empty: they are not known."""
    labels = _load(path)
    if labels.shape == (0,) and labels.dtype == np.int64:
        return None
    if labels.shape != (count,) or labels.dtype != np.int64:
        raise UserError(
            f"{path} holds {labels.dtype} of shape {labels.shape}: expected int64 of shape ({count},), a label an image, or (0,) if there are none."
        )
    return labels


def _load(path):
    if not Path(path).is_file():
        raise UserError(f"{path} is missing: run `dvc repro fetch-data`, or put your own array there.")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        why = "it does not begin as one" if "pickle" in str(error) else error
        raise UserError(
            f"{path} is not a complete NumPy array ({why}): fetch it again, or write your own anew with `numpy.save`."
        ) from None
    if not isinstance(array, np.ndarray):
        raise UserError(f"{path} holds several arrays, as `numpy.savez` writes them: write one with `numpy.save`.")
    return array


def to_input(images, *, scale=1, mean=0, std=1, channels=None, repeat=1, channels_last=False, dtype="float32"):
    """Turn stored images into a model's input: (N, C, H, W) uint8 or float32 -> (N, channels, H*repeat, W*repeat) float32.

    value = (pixel * scale - mean) / std, with `mean` and `std` one number, or a list of one a channel. A single stored
    channel is copied to `channels` (None: as stored); a pixel is repeated `repeat` times in all directions, which is
    exact. With `channels_last` the channels are the last axis, of the images and of what is returned. A `dtype` of uint8
    is for a model that scales inside: its pixels are not touched.
    """
    channel_axis = images.ndim - 1 if channels_last else 1
    if dtype == "float32":
        values = np.asarray(images, dtype=np.float32) * np.float32(scale)
    elif images.dtype == dtype:
        values = np.array(images)
    else:
        raise UserError(f"the images are {images.dtype} and `input.dtype` is {dtype}: store them as {dtype}.")
    if values.shape[channel_axis] == 1 and channels not in (None, 1):
        values = np.repeat(values, channels, axis=channel_axis)
    if channels not in (None, values.shape[channel_axis]):
        raise UserError(
            f"the images have {values.shape[channel_axis]} channels and `input.channels` is {channels}: make them equal in params.yaml."
        )
    if dtype == "float32":
        for key, value in (("mean", mean), ("std", std)):
            if np.size(value) not in (1, values.shape[channel_axis]):
                raise UserError(
                    f"`input.{key}` has {np.size(value)} numbers and the images have {values.shape[channel_axis]} channels: give one, or one a channel."
                )
        per_channel = [-1 if axis == channel_axis else 1 for axis in range(values.ndim)]
        values -= np.asarray(mean, dtype=np.float32).reshape(per_channel)
        values /= np.asarray(std, dtype=np.float32).reshape(per_channel)
    for axis in range(1, values.ndim) if repeat > 1 else ():
        if axis != channel_axis:
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
    count, read = len(images) if limit is None else limit, 0
    for start in range(0, count, batch_size):
        if isinstance(images, np.memmap) and read > MAPPED_BYTES:
            images, read = load_images(path), 0
        batch = images[start : min(start + batch_size, count)]
        read += batch.nbytes
        check_finite(batch, path, range(start, start + len(batch)))
        yield to_input(batch, **scaling)


def first_input(path, count, **scaling):
    """Return the model's input for the first `count` stored images, or for all of them if there are fewer."""
    stored = load_images(path)
    return next(input_batches(stored[:count], batch_size=count, path=path, **scaling))
