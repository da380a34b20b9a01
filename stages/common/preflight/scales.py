"""The sizes of the numbers in arrays of the user's own: train and test in one unit, something in them, scaled once.

int8 takes its ranges from the training images. Where the test images are in another unit, everything runs and int8 seems
to lose what the unit does. Only a sample of the images is looked at.
"""

import numpy as np

FACTOR = 20  # between the largest values of typical images: other light makes less of a difference, other units more
SCALED = 4.0  # values after `input` are about 1 in size; stored pixels go to 255
PIXEL_SCALE = 0.01  # an `input.scale` below it is meant for such pixels


def scale_mistakes(samples, arrays, data):
    """Yield what train and test images, as they are stored, do not share. `samples`: {part: some of its images}."""
    where = {part: f"{data}/{part}-images.npy" for part in samples}
    for part, images in samples.items():
        if images.min() == images.max():
            among = (
                "" if len(images) == len(arrays[part]) else f" ({len(images)} of {len(arrays[part]):,} were looked at)"
            )
            yield f"{where[part]} has nothing but the value {images.max():g} in all images{among}: store the images anew"
            return
    if len(samples) < 2:
        return
    types = {part: str(images.dtype) for part, images in samples.items()}
    ranges = ", ".join(f"{where[part]} from {images.min():g} to {images.max():g}" for part, images in samples.items())
    if types["train"] != types["test"]:
        yield f"{where['train']} holds {types['train']} and {where['test']} {types['test']} ({ranges}): store both in one type and one unit"
        return
    train, test = (typical_largest(samples[part]) for part in ("train", "test"))
    if max(train, test) > FACTOR * min(train, test):
        yield f"the largest value of a typical image is {train:.4g} in {where['train']} and {test:.4g} in {where['test']}: store both in one unit, since calibration on the one says nothing of the other"


def typical_largest(images):
    """Return the median of the images' largest magnitudes, or the largest of all if most images hold nothing but zeros."""
    largest = np.abs(images.reshape(len(images), -1).astype(np.float32)).max(axis=1)
    return float(np.median(largest)) or float(largest.max())


def scaled_twice(samples, data, models):
    """Yield the models whose `input.scale` is meant for pixels up to 255 where the arrays are scaled already."""
    scaled = {
        part: images
        for part, images in samples.items()
        if images.dtype == np.float32 and np.abs(images).max() <= SCALED
    }
    for part, images in list(scaled.items())[:1]:
        for name, settings in models.items():
            scale = settings["input"].get("scale", 1)
            if scale < PIXEL_SCALE:
                yield f"{data}/{part}-images.npy holds float32 from {images.min():g} to {images.max():g}, and `models.{name}.input.scale` is {scale:g}, as for pixels up to 255: they would be scaled twice, so leave `scale` out, or store the pixels as uint8"
