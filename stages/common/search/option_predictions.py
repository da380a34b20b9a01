"""What session options do to the predictions of a file: compared with those of its default session, image by image."""

import numpy as np

from stages.common.images import input_batches, load_images
from stages.common.search.options_to_try import DEFAULT
from stages.common.session.model_io import as_logits, judged_output, output_names, run
from stages.common.statistics.paired import compare

FEWEST_IMAGES, MOST_IMAGES, AT_ONCE = 8, 1000, 32  # whose predictions are compared; the last is memory only


def affordable_images(count, seconds, seconds_an_image):
    """Return how many of `count` images there is time for; `seconds_an_image`: of one with all options, each once."""
    return int(min(count, max(FEWEST_IMAGES, min(MOST_IMAGES, seconds / seconds_an_image))))


def compare_predictions(opened, validation, images, *, threads, output, where):
    """Return {option's name: {changed, max_abs_logit_difference} against the default session}.

    `opened`: {option's name, or DEFAULT: what opens a session} of the file `where`; `validation`: (path, count, scaling) of
    images, of which the first `images` are predicted; `output`: the name of the one that holds the logits, or None.
    """
    path, _, scaling = validation
    stored, streamed = load_images(path), {"batch_size": AT_ONCE, "path": path, "limit": images, **scaling}
    logits = {
        name: _predict(open_it(threads=threads), input_batches(stored, **streamed), output, where)
        for name, open_it in opened.items()
    }
    judged = {name: compare(found, logits[DEFAULT], None) for name, found in logits.items() if name != DEFAULT}
    keys = ("changed", "max_abs_logit_difference")
    return {name: {key: found[key] for key in keys} for name, found in judged.items()}


def _predict(session, batches, output, where):
    judged = judged_output(output_names(session), output, where)
    return np.concatenate([as_logits(found) for batch in batches for [found] in run(session, batch, [judged])])
