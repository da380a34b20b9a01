"""What goes into a model file and what comes out of it: names, a fixed batch, the output that is judged.

All of it is read from the file, so that a model of any origin is run in the same way as one that was exported here.
Weights that a file lists among its inputs, as old exporters do, are not inputs: onnxruntime sets them apart.
"""

import numpy as np

from stages.common.workspace import UserError


def input_of(session):
    """Return (name, batch) of a session's only input; `batch` is the size that the file fixes, or None for any."""
    [value] = session.get_inputs()
    return value.name, value.shape[0] if isinstance(value.shape[0], int) else None


def output_names(session):
    """Return the names of all outputs, to be asked for where a call is timed or checked as a whole."""
    return [value.name for value in session.get_outputs()]


def judged_output(names, output, where):
    """Return the output whose largest value is the decision: `output`, or the only one of `names`.

    `where` names the model file in the UserError of an output that is not there, or of several and none named.
    """
    if output is None and len(names) == 1:
        return names[0]
    if output not in names:
        asked = f"no output {output!r}" if output else "several outputs"
        raise UserError(
            f"{where} has {asked}: write one of {', '.join(names)} as `evaluate.output` of the model in params.yaml."
        )
    return output


def parts(batch, size):
    """Yield (images, count) that a model with a fixed batch of `size` can take; `count` of the images are wanted.

    The last part is filled up with images that are in it already: they are valid input, and widen no range. A `size` of
    None stands for any: the batch as it is.
    """
    if size is None:
        yield batch, len(batch)
        return
    for start in range(0, len(batch), size):
        part = batch[start : start + size]
        yield (part if len(part) == size else np.resize(part, (size, *part.shape[1:]))), len(part)


def without_filling(values, count, size):
    """Return a tensor without what belongs to the images that filled a fixed batch of `size` up to it.

    A tensor whose first axis is not the batch, such as one of shapes or of constants, is left as it is.
    """
    filled = size is not None and count < size and values.ndim > 0 and len(values) == size
    return values[:count] if filled else values


def run(session, batch, outputs):
    """Yield the `outputs` of a session (a list of arrays) for each part of a batch (N, ...) that it takes."""
    name, size = input_of(session)
    for part, count in parts(batch, size):
        yield [without_filling(values, count, size) for values in session.run(outputs, {name: part})]


def as_logits(values):
    """Return an output (N, classes), or (N, classes, 1, 1) and the like, as (N, classes)."""
    return values.reshape(values.shape[:2]) if values.ndim > 2 and set(values.shape[2:]) == {1} else values


def ties(logits):
    """Return how many rows of (N, classes) have their largest value twice: there the order of the classes decides."""
    return int((np.sum(logits == logits.max(axis=1, keepdims=True), axis=1) > 1).sum())


def tied(count):
    """Return the number of `ties` as the end of a sentence, or nothing if there are none."""
    return f", {count:,} with two equal largest outputs" if count else ""
