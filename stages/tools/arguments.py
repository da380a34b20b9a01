"""What the tools' command lines ask for, refused in a sentence before any work: counts, times, models, their files."""

import argparse
import math
from pathlib import Path

from stages.common.workspace import UserError, read_params


def positive_count(text):
    """Return a whole number, 1 or more, of a command line's text."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count: write a whole number, 1 or more")
    return int(text)


def number_between(low, high, otherwise):
    """Return what reads a number of a command line's text, more than `low` and less than `high`.

    `otherwise`: what is said of any other text.
    """

    def number(text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low < value < high:
            raise argparse.ArgumentTypeError(f"{text!r} {otherwise}")
        return value

    return number


positive_seconds = number_between(0, math.inf, "is no time: write a number of seconds, more than 0")


def check_model(model):
    """Raise UserError if params.yaml has no such model."""
    known = read_params("models")
    if model not in known:
        raise UserError(f"there is no model {model!r}: params.yaml has {', '.join(known)}.")


def check_file(path, stage=None):
    """Raise UserError if a file is not here; `stage` is the name of the one that makes it, None if the user does."""
    if not Path(path).is_file():
        made = f"`dvc repro {stage}` makes it" if stage else "put your own there"
        raise UserError(f"{path} is not here: {made}, or `dvc pull {path}` gets it from a remote.")
