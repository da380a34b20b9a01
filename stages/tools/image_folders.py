"""A folder of images on the disk: which files are images, which class each is of, and which go into the test set."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from stages.common.workspace import UserError


class Listing(NamedTuple):
    """What a folder holds. `train`, `test`: [(path, label)] in the order of the arrays; `left_out`: other files.

    `classes`: names, the label of a class is its place; without classes the list is empty and every label is None.
    """

    train: list
    test: list
    classes: list
    left_out: int


def list_images(folder, *, test_share=None, seed=0, classes=None):
    """Return the Listing of a folder: its own train/ and test/ as they are, or one set that is split here.

    Each holds a folder a class, or images and no folders. `test_share` of every class goes into the test set (a fifth
    if it is None), at least one image and not all. `classes` names the classes in the order of the model's outputs;
    None takes the order of the folders' names, see `in_order`. `seed` draws the split and the order: the arrays are
    shuffled, because an evaluation of fewer images takes the first ones. Raises UserError.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: name the one that holds your images.")
    random = np.random.default_rng(seed)
    if (folder / "train").is_dir() or (folder / "test").is_dir():
        if test_share is not None:
            raise UserError(f"{folder} has train/ and test/ of its own, which are not split: leave out --test-share.")
        train, test, classes, left_out = as_they_are(folder, classes)
    else:
        found, classes, left_out = images_of(folder, classes)
        train, test = split(found, classes, 0.2 if test_share is None else test_share, random)
    for images in (train, test):
        random.shuffle(images)
    return Listing(train, test, classes, left_out)


def as_they_are(folder, classes):
    """Return (train, test, classes, files left out) of a folder with train/ and test/ and nothing else."""
    expected = {"train", "test"}
    inside = {path.name for path in visible(folder)}
    if inside != expected:
        odd = sorted(inside ^ expected)
        raise UserError(
            f"{folder} should hold train/ and test/ and nothing else, but see {', '.join(odd[:3])}: add what is missing, "
            "or rename the folder if `train` or `test` is a class."
        )
    train, names, left_out = images_of(folder / "train", classes)
    test, test_names, also_left_out = images_of(folder / "test", classes or names)
    if bool(names) != bool(test_names):
        raise UserError(f"only one of {folder}/train and {folder}/test has class folders: make them alike.")
    return train, test, names, left_out + also_left_out


def images_of(folder, classes):
    """Return ([(path, label)], classes, files left out) of a folder of class folders, or of images and no folders."""
    inside = visible(folder)
    folders = [path for path in inside if path.is_dir()]
    loose, left_out = images_among(path for path in inside if path.is_file())
    if not folders:
        if not loose:
            raise UserError(f"{folder} holds no images: name a folder of class folders, or of images.")
        return [(path, None) for path in loose], [], left_out
    if loose:
        raise UserError(f"{folder} holds images beside its class folders, {loose[0].name} first: move or remove them.")
    classes, found = classes or in_order([path.name for path in folders]), []
    for path in folders:
        if path.name not in classes:
            raise UserError(
                f"{path} is none of the {len(classes)} classes ({shortened(classes)}): rename or remove it."
            )
        images, others = images_among(Path(root) / name for root, _, names in os.walk(path) for name in names)
        if not images:
            raise UserError(f"{path} holds no images: add some, or remove the folder.")
        label = classes.index(path.name)
        found += [(image, label) for image in images]
        left_out += others
    return found, classes, left_out


def in_order(names):
    """Return the names of class folders in the order of the labels: of the alphabet, as torchvision's ImageFolder has it.

    Names that are all numbers are meant as numbers: 2 comes before 10, where ImageFolder has 10 before 2.
    """
    numbers = all(name.isascii() and name.isdigit() for name in names)
    return sorted(names, key=lambda name: (int(name), name) if numbers else name)


def visible(folder):
    """Return what a folder holds but for hidden files, in the order of names."""
    return sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda path: path.name)


def images_among(paths):
    """Return (the paths whose ending Pillow can read, in the order of names; how many others there are, hidden or not)."""
    known, paths = readable_endings(), list(paths)
    images = [path for path in paths if path.suffix.lower() in known and not path.name.startswith(".")]
    return sorted(images, key=lambda path: path.parts), len(paths) - len(images)


def readable_endings():
    """Return the file endings that Pillow can read as an image: .png, .jpg ... but not those of documents and films."""
    return {
        ending
        for ending, kind in Image.registered_extensions().items()
        if kind in Image.OPEN and kind not in ("EPS", "MPEG", "PDF", "WMF", "HDF5", "GRIB", "BUFR")
    }


def split(found, classes, share, random):
    """Return (train, test): of every class `share` for the test, at least one image, and at least one for training.

    Raises UserError if a class, or a folder without classes, has fewer than two images.
    """
    train, test, by_label = [], [], {}
    for path, label in found:
        by_label.setdefault(label, []).append((path, label))
    for label, own in by_label.items():
        if len(own) < 2:
            what = "the folder" if label is None else f"class {classes[label]}"
            raise UserError(
                f"{what} has one image, {own[0][0]}, and needs one for training and one for the test: add some."
            )
        random.shuffle(own)
        count = min(max(round(share * len(own)), 1), len(own) - 1)
        test += own[:count]
        train += own[count:]
    return train, test


def shortened(names):
    """Return names as text, the first five of them."""
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
