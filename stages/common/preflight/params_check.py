"""The whole of params.yaml, checked at once: unknown keys, types, ranges, names, and what belongs together.

Only the `machine` stage imports this, because it runs first and always.
"""

from pathlib import Path

from pydantic import ValidationError

from stages.common.preflight.files import images_asked_for, models_and_their_files
from stages.common.preflight.names import colliding_names, explained, sensitivity, tune, variants_against_recipes
from stages.common.preflight.recipes import calibration_methods, per_channel_opset
from stages.common.preflight.sections import Params
from stages.common.preflight.threads import threads_of_sessions
from stages.common.preflight.validation_room import no_validation_images
from stages.common.preflight.wording import sentence
from stages.common.workspace import UserError

NAMING = ("", "dataset", "fetch_data", "models", "train")  # the sections that name files


def check_params(params, root, further=None):
    """Raise UserError naming every mistake in `params`, the content of params.yaml in the folder `root`.

    `further(params, root)` yields mistakes in the files that the parameters name, which are listed with them; it is
    asked unless the sections that name files are wrong themselves.
    """
    root, others = Path(root), []
    try:
        Params.model_validate(params)
        mistakes = list(_what_does_not_belong_together(params, root))
        understood = True
    except ValidationError as error:
        mistakes = [sentence(problem) for problem in error.errors()]
        understood = {str(problem["loc"][0]) if problem["loc"] else "" for problem in error.errors()}.isdisjoint(NAMING)
    if further and understood:
        others = list(further(params, root))
    found = [*mistakes, *others]
    if len(found) == 1:
        prefix = "params.yaml: " if mistakes else ""
        raise UserError(f"{prefix}{found[0]}" + ("" if found[0].endswith("?") else "."))
    if found:
        where = "params.yaml" if not others else "your files" if not mistakes else "params.yaml and your files"
        has = "have" if others else "has"
        raise UserError("\n  - ".join([f"{where} {has} {len(found)} mistakes:", *found]))


def _what_does_not_belong_together(params, root):
    yield from variants_against_recipes(params)
    yield from colliding_names(params)
    yield from models_and_their_files(params, root)
    yield from calibration_methods(params)
    yield from images_asked_for(params, root)
    yield from tune(params)
    yield from explained(params)
    yield from sensitivity(params)
    yield from per_channel_opset(params)
    yield from no_validation_images(params, root)
    yield from threads_of_sessions(params)
