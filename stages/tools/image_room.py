"""Whether imported images fit: all of them on the disk, and one at a time into memory. Asked before any is read."""

import math
import os
import shutil
from pathlib import Path

from stages.common.workspace import UserError

COPIES = 3  # of an image's pixels that are held at once: Pillow's, NumPy's, and the bytes that are written


def check_room(target, count, shape, *, channels, shorter_side=None):
    """Raise UserError if `count` uint8 images of `shape` do not fit on the disk of the folder `target`, or one into memory.

    On its way to its size an image may have a larger one, `shorter_side` squared or more.
    """
    size, free = count * math.prod(shape), free_bytes(target)
    if size > free:
        raise UserError(
            f"{count:,} images of shape {shape} take {gigabytes(size)}, and the disk of {target} has {gigabytes(free)} "
            "left: ask for a smaller --size, or import fewer images."
        )
    held, memory = COPIES * max(math.prod(shape), channels * (shorter_side or 0) ** 2), memory_bytes()
    if held > memory:
        option = "--size" if shorter_side is None else "--size and --shorter-side"
        raise UserError(
            f"an image of this size takes {gigabytes(held)} of memory, and this machine has {gigabytes(memory)}: ask for "
            f"a smaller {option}."
        )


def free_bytes(folder):
    """Return what is left on the disk of a folder, which may not be there yet."""
    path = Path(folder).resolve()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def memory_bytes():
    """Return the machine's memory, infinity where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, others not these names
        return math.inf


def gigabytes(count):
    return f"{count / 1e9:,.1f} GB"
