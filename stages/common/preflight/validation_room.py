"""Whether training and calibration leave images for `tune` to judge by: those that no network and no range has seen."""

import numpy as np

from stages.common.calibration.settings import calibration_settings
from stages.common.preflight.files import known_images


def no_validation_images(params, root):
    """Yield the searches for which no image is left, or for which more are trained on than they are told."""
    for model, left, available in rooms(params, root):
        trained, images = trained_of(params, model), images_of_training(params, model, available)
        if not left:
            array = f"data/{params['dataset']}/train-images.npy"
            known = (
                f"the network knows {trained} (`tune.{model}.trained_images`) and calibration takes the others: make either"
                if trained
                else "calibration takes all: make it"
            )
            yield f"`tune.{model}` has no image to judge by: of {available} in {array} {known} smaller, or add training images"
        elif 0 < trained < images:
            yield f"`train.{model}` trains on the first {images} images and `tune.{model}.trained_images` is {trained}: make them the same, or the search judges by images that the network knows"


def few_validation_images(params, root):
    """Yield a warning for each search that judges by fewer images than it asks for, or by some that its network knows."""
    for model, left, available in rooms(params, root):
        plan, images = params["tune"][model], images_of_training(params, model, available)
        if 0 < left < plan["validation_images"]:
            yield f"`tune.{model}.validation_images` is {plan['validation_images']}, and training and calibration leave {left} of {available} training images: it judges by {left} at most"
        if images and not trained_of(params, model) and plan.get("recipe") != "fp32":
            yield f"`train.{model}` trains on {images} images and `tune.{model}.trained_images` does not say so: the search may judge by images that the network knows"


def images_of_training(params, model, available):
    """Return on how many of the first images a model is trained here; 0 for a model that comes trained."""
    return params["train"][model].get("images", available) if model in params["train"] else 0


def trained_of(params, model):
    """Return how many of the first training images the search keeps away from, because the network knows them."""
    return params["tune"][model].get("trained_images", 0)


def rooms(params, root):
    """Yield (model, images left, training images) of the searches for which this is known.

    Where there is room for all calibrations without overlap, what is left may be more.
    """
    available = known_images(params["dataset"], "train", root)
    for model, plan in params["tune"].items() if available else ():
        draws, trained = calibration_draws(params, plan), trained_of(params, model)
        if trained <= available and all(draw["images"] <= available for draw in draws):  # else another check refuses it
            yield model, left_beside(draws, available, trained, plan["validation_images"]), available


def calibration_draws(params, plan):
    """Return the different {seed, images} with which a search calibrates: those of a given recipe are its own alone."""
    given = plan.get("recipe")
    recipes = [{}, *params["calibrate_quantize"].values()] if given is None else [{} if given == "fp32" else given]
    draws = [calibration_settings(params["calibrate"], recipe.get("calibrate", {}))[0] for recipe in recipes]
    return [draw for place, draw in enumerate(draws) if draw not in draws[:place]]


def left_beside(draws, available, trained, wanted):
    """Return how many images are left of those behind the `trained` first ones; with room for `wanted` at least that many."""
    together = sum(draw["images"] for draw in draws)
    if together + wanted <= available - trained:
        return available - trained - together
    from stages.common.calibration.collection import draw_indices  # noqa: PLC0415 -- 0.3 s, where there is no such room

    taken = np.concatenate([draw_indices(**draw, available=available) for draw in draws])
    return len(np.setdiff1d(np.arange(trained, available), taken))
