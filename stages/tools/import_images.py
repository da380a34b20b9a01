"""Turn a folder of images into the arrays that the pipeline reads: data/<name>/{train,test}-{images,labels}.npy.

    python -m stages.tools.import_images PICTURES my-data --channels 3 --size 224 --shorter-side 256
    python -m stages.tools.import_images PICTURES my-data --channels 1 --size 48x192 --fit stretch

PICTURES holds a folder a class (split here, a share of every class for the test), or train/ and test/ with such folders
(used as they are), or images and no folders (no labels: the pipeline compares predictions with fp32's instead). Beside
the arrays it writes {train,test}-files.txt, where line i names the file of image i (from 0), and classes.txt.
"""

import argparse
import os
import re
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from PIL import ImageColor
from tqdm import tqdm

from stages.common.workspace import UserError, whole_file
from stages.tools.arguments import number_between
from stages.tools.image_files import FITS, INTERPOLATIONS, read_pixels
from stages.tools.image_folders import list_images, shortened
from stages.tools.image_room import check_room


def import_images(folder, target, *, classes=None, test_share=None, seed=0, **form):
    """Write the images below `folder` as arrays into the folder `target`; return the Listing and an image's shape.

    `form`: the arguments of `read_pixels`. Images are read one at a time, so memory does not grow with their size times
    their number. All files are written, or none. Raises UserError, which names every image that cannot be read.
    """
    target, listing = Path(target), list_images(folder, classes=classes, test_share=test_share, seed=seed)
    shape, broken, total = shape_of_all(listing, **form), [], len(listing.train) + len(listing.test)
    check_room(target, total, shape, channels=form["channels"], shorter_side=form.get("shorter_side"))
    with ExitStack() as stack, tqdm(total=total, desc="import", unit="image", mininterval=1) as progress:
        files = []
        for part in ("train", "test"):
            images = getattr(listing, part)
            files.append(stack.enter_context(growing_array(target / f"{part}-images.npy", (len(images), *shape))))
            files.append(stack.enter_context(growing_file(target / f"{part}-labels.npy")))
            np.save(files[-1], np.array([label for _, label in images if label is not None], dtype=np.int64))
            names = lines(path.relative_to(folder).as_posix() for path, _ in images)
            files.append(stack.enter_context(growing_file(target / f"{part}-files.txt")))
            files[-1].write(names.encode("utf-8"))
            for path, _ in images:
                append_image(files[-3], path, shape, form, broken)
                progress.update()
        files.append(stack.enter_context(growing_file(target / "classes.txt")))
        files[-1].write(lines(listing.classes).encode("utf-8"))
        if broken:
            raise UserError(broken_sentence(broken))
        for file in files:  # a disk that is full shows here, before the first of them is renamed
            file.flush()
            os.fsync(file.fileno())
    return listing, shape


@contextmanager
def growing_file(path):
    """Yield an open binary file, which becomes `path` when the block ends."""
    with whole_file(path) as temporary, open(temporary, "wb") as file:
        yield file


@contextmanager
def growing_array(path, shape):
    """Yield an open file to which the bytes of a uint8 array of `shape` are written; it becomes `path` when it is whole."""
    with growing_file(path) as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        yield file


def shape_of_all(listing, *, size=None, channels, channels_last=False, **form):
    """Return the shape of all images: what is asked for, or that of the first one that can be read."""
    if size is not None:
        return (*size, channels) if channels_last else (channels, *size)
    for path, _ in [*listing.train, *listing.test]:
        try:
            return read_pixels(path, channels=channels, channels_last=channels_last, **form).shape
        except Exception:  # noqa: S112 -- whatever a broken file makes Pillow raise; it is named with the others
            continue
    return (0, 0, 0)


def append_image(file, path, shape, form, broken):
    """Append an image's pixels to an open file, or what is wrong with it to `broken`."""
    try:
        pixels = read_pixels(path, **form)
    except MemoryError:
        raise UserError(f"{path} does not fit into memory: make it smaller, or ask for a smaller --size.") from None
    except Exception as error:  # Pillow's decoders raise anything on a broken file
        broken.append(f"{path} ({' '.join(str(error).split()) or type(error).__name__})")
        return
    if pixels.shape != shape:
        raise UserError(
            f"{path} has the shape {pixels.shape} and the images before it {shape}: give one size to all with --size."
        )
    file.write(pixels.tobytes())


def broken_sentence(broken):
    """Return which images cannot be read, and what to do."""
    more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
    return f"cannot read {', '.join(broken[:5])}{more}: mend or remove the files; nothing was written."


def lines(values):
    """Return texts one a line; a file's name need not be UTF-8."""
    return "".join(f"{value}\n" for value in values).encode("utf-8", "backslashreplace").decode("utf-8")


def parse(arguments):
    """Return the command line as a dictionary."""
    parser = argparse.ArgumentParser(prog="python -m stages.tools.import_images", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of class folders, of train/ and test/, or of images without labels")
    parser.add_argument("dataset", type=dataset_name, help="its name in params.yaml; the arrays go to data/DATASET/")
    parser.add_argument("--channels", type=int, choices=(1, 3), required=True, help="1: grey, 3: red, green and blue")
    parser.add_argument("--channels-last", action="store_true", help="store (N, H, W, C), for a model that takes it so")
    parser.add_argument(
        "--size", type=height_and_width, help="HEIGHTxWIDTH or one number for both; default: as the images are"
    )
    parser.add_argument("--fit", choices=FITS, default="crop", help="into that size: cut out the centre (default); pad to keep "
                        "the whole image; stretch, whatever its sides")  # fmt: skip
    parser.add_argument(
        "--shorter-side", type=int, help="with crop: resize the shorter side to this before the centre is cut out"
    )
    parser.add_argument("--interpolation", choices=INTERPOLATIONS, default="bilinear")
    parser.add_argument(
        "--background", type=color, default="white", help="below transparent pixels and around padded images"
    )
    parser.add_argument("--test-share", type=share, help="of every class, for the test; default: 0.2")
    parser.add_argument("--seed", type=whole_number, default=0, help="of the split and of the order")
    parser.add_argument("--classes", type=Path, help="a file that names the classes, one a line, in the order of the "
                        "model's outputs; default: the folders in the order of their names, or of their numbers if all "
                        "are numbers")  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace a data set of that name")
    options = vars(parser.parse_args(arguments))
    check_belongs_together(parser, options)
    return options


def refuse_existing(dataset):
    """Raise UserError if there are arrays of a data set, here or tracked by `dvc add`."""
    names = [f"data/{dataset}/{part}-{kind}.npy" for part in ("train", "test") for kind in ("images", "labels")]
    there = [name for name in names if Path(name).exists() or Path(f"{name}.dvc").exists()]
    if there:
        raise UserError(
            f"there is a data set {dataset} already, {there[0]} first: give another name, or --force to replace it."
        )


def check_belongs_together(parser, options):
    """Refuse options that say nothing, or the impossible, together."""
    size, side = options["size"], options["shorter_side"]
    if side is not None and (size is None or options["fit"] != "crop"):
        parser.error("--shorter-side belongs to --size with --fit crop")
    if side is not None and side < max(size):
        parser.error(f"--shorter-side {side} is less than the {max(size)} pixels that --size cuts out")


def dataset_name(text):
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be a name: write one of a-z, 0-9 and inner hyphens")
    return text


def height_and_width(text):
    found = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write HEIGHTxWIDTH in pixels, such as 48x192, or 224")
    return int(found[1]), int(found[2] or found[1])


def whole_number(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: write a whole number, 0 or more")
    return int(text)


share = number_between(0, 1, "is no share: write a number between 0 and 1")


def color(text):
    try:
        ImageColor.getrgb(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no colour: write a name such as grey, or #808080") from None
    return text


def class_names(path):
    """Return the class names of a file, one a line. Raises UserError if it is not there, empty or names one twice."""
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}): --classes names a text file, one class a line.") from None
    if not names or len(set(names)) < len(names):
        raise UserError(f"{path} names {'a class twice' if names else 'no class'}: write each class once, one a line.")
    return names


def main(arguments=None):
    options = parse(arguments)
    dataset, folder, classes = options.pop("dataset"), options.pop("folder"), options.pop("classes")
    if not options.pop("force"):
        refuse_existing(dataset)
    classes = None if classes is None else class_names(classes)
    listing, shape = import_images(folder, f"data/{dataset}", classes=classes, **options)
    labels = f"{len(listing.classes)} classes ({shortened(listing.classes)})" if listing.classes else "no labels"
    left_out = f"; other files, left out: {listing.left_out}" if listing.left_out else ""
    print(
        f"data/{dataset}: {len(listing.train):,} training and {len(listing.test):,} test images of shape {shape}, "
        f"{labels}{left_out}"
    )


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
