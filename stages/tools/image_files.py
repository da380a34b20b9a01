"""One image file, whatever its format, as pixels of the shape that a model is fed."""

import numpy as np
from PIL import Image, ImageColor, ImageOps

FITS = ("crop", "pad", "stretch")
INTERPOLATIONS = {"nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR,
                  "bicubic": Image.Resampling.BICUBIC, "lanczos": Image.Resampling.LANCZOS}  # fmt: skip


def read_pixels(
    path,
    *,
    channels,
    channels_last=False,
    size=None,
    fit="crop",
    shorter_side=None,
    interpolation="bilinear",
    background="white",
):
    """Return an image file as uint8 of shape (channels, height, width), or with `channels_last` (height, width, channels).

    It is turned upright as its EXIF data says; what is transparent lies on `background`; 16 bits a channel become 8; of
    an animation the first picture counts. `size` is (height, width), None leaves the image's own; `fit`, `shorter_side`:
    see `resized`. Raises whatever Pillow raises for a broken file, and ValueError for pixels that are not 8 or 16 bits.
    """
    with Image.open(path) as stored:
        image = in_channels(ImageOps.exif_transpose(stored), channels, background)
    if size is not None:
        image = resized(image, size, fit, shorter_side, INTERPOLATIONS[interpolation], background)
    pixels = np.asarray(image).reshape(image.height, image.width, channels)
    return pixels if channels_last else pixels.transpose(2, 0, 1)


def in_channels(image, channels, background):
    """Return a Pillow image in grey (1 channel; luma of ITU-R 601) or RGB (3)."""
    if image.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits; save it with 8 or 16")
    if image.mode.startswith("I;16"):  # Pillow's own conversion has clipped or shifted, by version
        image = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))
    elif image.has_transparency_data:
        below = Image.new("RGBA", image.size, background)
        image = Image.alpha_composite(below, image.convert("RGBA"))
    return image.convert("L" if channels == 1 else "RGB")


def resized(image, size, fit, shorter_side, resampling, background):
    """Return a Pillow image in `size`, (height, width).

    stretch: to that size, whatever its sides. pad: as large as it fits whole, centred, `background` around it. crop: so
    that the size is filled, and the centre cut out; or with the shorter side resized to `shorter_side` and the centre
    cut out, to the pixel as torchvision's Resize and CenterCrop do.
    """
    height, width = size
    if fit == "stretch":
        return image.resize((width, height), resampling)
    if fit == "pad":
        return ImageOps.pad(image, (width, height), resampling, color=ImageColor.getcolor(background, image.mode))
    if shorter_side is None:
        return ImageOps.fit(image, (width, height), resampling)
    short = min(image.size)
    image = image.resize([int(shorter_side * side / short) for side in image.size], resampling)
    left, top = (round((have - want) / 2) for have, want in zip(image.size, (width, height), strict=True))
    return image.crop((left, top, left + width, top + height))
