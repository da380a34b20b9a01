"""Whether calibration leaves training images for `tune` to judge by: it takes none that any of its calibrations has seen."""

import numpy as np

from stages.common.calibration.settings import calibration_settings
from stages.common.preflight.files import known_images


def no_validation_images(params, root):
    """Yield the searches for which no image is left."""
    for model, taken, available in rooms(params, root):
        if taken == available:
            yield f"`tune.{model}` judges by training images that no calibration takes, and calibration takes {taken} of the {available} in data/{params['dataset']}/train-images.npy: make `calibrate.images` smaller, or add training images"


def few_validation_images(params, root):
    """Yield a warning for each search for which fewer images are left than it asks for."""
    for model, taken, available in rooms(params, root):
        wanted = params["tune"][model]["validation_images"]
        if 0 < available - taken < wanted:
            yield f"`tune.{model}.validation_images` is {wanted}, and calibration takes {taken} of {available} training images: it judges by {available - taken} at most"


def rooms(params, root):
    """Yield (model, images that its calibrations take, training images) of the searches for which this is known."""
    available = known_images(params["dataset"], "train", root)
    for model, plan in params["tune"].items() if available else ():
        draws = calibration_draws(params, plan)
        if all(draw["images"] <= available for draw in draws):  # else the parameter check refuses it
            yield model, taken_by(draws, available, plan["validation_images"]), available


def calibration_draws(params, plan):
    """Return the different {seed, images} with which a search calibrates: those of a given recipe are its own alone."""
    given = plan.get("recipe")
    recipes = [{}, *params["calibrate_quantize"].values()] if given is None else [{} if given == "fp32" else given]
    draws = [calibration_settings(params["calibrate"], recipe.get("calibrate", {}))[0] for recipe in recipes]
    return [draw for place, draw in enumerate(draws) if draw not in draws[:place]]


def taken_by(draws, available, wanted):
    """Return how many images draws take together; where there is room for all of them without overlap, that many at most."""
    together = sum(draw["images"] for draw in draws)
    if len(draws) == 1 or together + wanted <= available:
        return together
    from stages.common.calibration.collection import draw_indices  # noqa: PLC0415 -- 0.3 s, where there is no such room

    return len(np.unique(np.concatenate([draw_indices(**draw, available=available) for draw in draws])))
