"""Arrays of the user's own, checked before anything long: what is missing, of another type or shape, not finite.

Sentences say what was expected, what is there and what to do, where one command does it with that command.
"""

import numpy as np

from stages.common.images import check_finite, labels_or_none, load_images, load_labels
from stages.common.preflight.files import is_there, missing
from stages.common.preflight.scales import scale_mistakes, scaled_twice
from stages.common.workspace import UserError

SAMPLE = 64  # images of an array that are looked at here, evenly spread; where they are used, all of them are
FLOATS = dict.fromkeys(("float64", "float16"), "float32")
INTEGERS = dict.fromkeys(("uint8", "int8", "int16", "uint16", "int32", "uint32"), "int64")


def check_arrays(root, data, *, fetched, models=None):
    """Return ({array: memory map}, mistakes) of what is there; what a stage will fetch may be missing.

    `models`: what params.yaml has of them, where the size of the numbers is to be looked at, too.
    """
    found, samples, mistakes = {}, {}, []
    for part in ("train", "test"):
        path = f"{data}/{part}-images.npy"
        if not (root / path).is_file():
            continue  # the parameter check names it
        try:
            images = found[part] = load_images(root / path)
        except UserError as error:
            mistakes.append(_plain(error, root) + _conversion(root, path, FLOATS))
            continue
        chosen = np.unique(np.linspace(0, len(images) - 1, SAMPLE).astype(int))
        sample = images[chosen]
        try:
            check_finite(sample, path, chosen)
            samples[part] = sample
        except UserError as error:
            looked_at = (
                f" ({len(chosen)} of {len(images):,} images were looked at)" if len(chosen) < len(images) else ""
            )
            mistakes.append(_plain(error, root) + looked_at)
    if len(found) == 2 and found["train"].shape[1:] != found["test"].shape[1:]:
        mistakes.append(
            f"{data}/train-images.npy has images {found['train'].shape[1:]} and {data}/test-images.npy {found['test'].shape[1:]}: make both as the model takes them"
        )
    mistakes += scale_mistakes(samples, found, data)
    mistakes += scaled_twice(samples, data, models or {})
    path = f"{data}/test-labels.npy"
    if not is_there(root, path) and not fetched:
        command = f"python -c \"import numpy; numpy.save({path!r}, numpy.empty(0, 'int64'))\""
        mistakes.append(f"{missing(path)}; if there are no labels, `{command}` says so")
    elif (root / path).is_file() and "test" in found:
        try:
            found["test-labels"] = labels_or_none(root / path, len(found["test"]))
        except UserError as error:
            mistakes.append(_plain(error, root) + _conversion(root, path, INTEGERS))
    return found, mistakes


def training_labels(root, data, arrays):
    """Yield what training lacks: it learns from labels, and draws its curve with those of the test images."""
    yield from _labels_of_training_images(root, data, arrays, load_labels, "{}")
    if arrays.get("test-labels", ()) is None:
        yield f"{data}/test-labels.npy is empty, and `train` draws its curve with them: put them there, or take the models out of `train`"


def validation_labels(root, data, arrays):
    """Yield what the search for a recipe lacks: it judges accuracy by training images, or agreement if told so."""
    empty = f"python -c \"import numpy; numpy.save('{data}/train-labels.npy', numpy.empty(0, 'int64'))\""
    yield from _labels_of_training_images(
        root, data, arrays, labels_or_none, f"`tune` judges by labels, and {{}}; if there are none, `{empty}` says so"
    )


def _labels_of_training_images(root, data, arrays, load, use):
    path = f"{data}/train-labels.npy"
    if "train" in arrays and not is_there(root, path):
        yield use.format(missing(path))
    elif "train" in arrays and (root / path).is_file():
        try:
            arrays["train-labels"] = load(root / path, len(arrays["train"]))
        except UserError as error:
            yield _plain(error, root)


def _conversion(root, path, types):
    """Return how to store an array in another type, as the rest of a sentence; nothing if its type is not in `types`."""
    try:
        wanted = types.get(str(np.load(root / path, mmap_mode="r", allow_pickle=False).dtype))
    except (ValueError, OSError, EOFError):  # not an array at all
        return ""
    if wanted is None:
        return ""
    converted = f"numpy.load({path!r}).astype({wanted!r})"
    command = replace_command(path, "import numpy", f"numpy.save(open({{new!r}}, 'wb'), {converted})")
    return f"; `{command}` makes it {wanted}"


def _plain(error, root):
    """Return a UserError's sentence as one of a list: without the full stop, paths relative to `root`."""
    return str(error).removesuffix(".").replace(f"{root}/", "")


def replace_command(path, imports, write):
    """Return a command that writes a file anew: `write` is Python with {new!r} for a path beside it, which is then renamed.

    The file may be a link into DVC's cache, through which nothing may be written.
    """
    new = f"{path}.tmp"
    return f'python -c "{imports}, os; {write.replace("{new!r}", repr(new))}; os.replace({new!r}, {path!r})"'
