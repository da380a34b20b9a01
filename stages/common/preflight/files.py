"""The files that params.yaml names: models and arrays have to be there, with as many images as are asked for."""

import math
import os

import numpy as np

from stages.common.preflight.names import unknown_models
from stages.common.preflight.recipes import calibrate_sections

FETCHED_IMAGES = {"fashion-mnist": {"train": 60_000, "test": 10_000}}  # known before the data is there
IN_EXPERIMENT = "DVC_EXP_BASELINE_REV"  # set by DVC for the stages of an experiment


def is_there(root, file):
    """Return whether a file is there, or DVC follows it and can bring it."""
    return (root / file).is_file() or (root / f"{file}.dvc").is_file()


def missing(file):
    """Return that a file of the user's own is missing and what to do; an experiment has only what DVC or Git follows."""
    if IN_EXPERIMENT in os.environ:
        return f"{file} is not tracked, so that this experiment does not have it: run `dvc add {file}` in your workspace and commit {file}.dvc"
    return f"{file} is missing: put it there and run `dvc add {file}`"


def models_and_their_files(params, root):
    """Yield models that nobody makes, and files beside the shippable ones that no stage makes."""
    yield from unknown_models(params, "train")
    for name in params["models"]:
        folder = root / "models" / name / "onnx"
        file = f"models/{name}/onnx/fp32.onnx"
        if name not in params["train"] and not is_there(root, file):
            yield f"the model `{name}` is not under `train` and {missing(file)}, or add it to `train`"
        made_here = {"fp32", *params["variants"]}
        for path in sorted(folder.glob("*.onnx")):
            if path.stem not in made_here:
                yield f"models/{name}/onnx/{path.name} is made by no stage, and the benchmark depends on that folder: delete it or move it away"


def images_asked_for(params, root):
    """Yield what asks for more images than an array has, or for batches larger than their set."""
    dataset, wanted = params["dataset"], {"train": {}, "test": {}}
    for where, _, calibrate in calibrate_sections(params):
        if calibrate["batch_size"] > calibrate["images"]:
            yield f"`{where}.batch_size` is {calibrate['batch_size']} and `{where}.images` is {calibrate['images']}: make the batch no larger than the set"
        wanted["train"][f"{where}.images"] = calibrate["images"]
    for name, plan in params["sensitivity"].items():
        wanted["train"][f"sensitivity.{name}.images"] = max(plan["images"])
        wanted["test"][f"sensitivity.{name}.test_images"] = plan["test_images"]
    for name, settings in params["train"].items():
        wanted["train"][f"train.{name}.batch_size"] = settings["batch_size"]
        wanted["train"][f"train.{name}.images"] = settings.get("images", 1)
        wanted["test"][f"train.{name}.test_images"] = settings.get("test_images", 1)
        if settings.get("images", math.inf) < settings["batch_size"]:
            yield f"`train.{name}.batch_size` is {settings['batch_size']} and `train.{name}.images` is {settings['images']}: make the batch no larger than the set"
    for name, settings in params["models"].items():
        wanted["test"][f"models.{name}.evaluate.images"] = settings["evaluate"]["images"]
        wanted["test"][f"models.{name}.benchmark.batches"] = max(settings["benchmark"]["batches"])
    for name, plan in params["tune"].items():
        wanted["train"][f"tune.{name}.batch"] = plan["batch"]
        wanted["train"][f"tune.{name}.trained_images"] = plan.get("trained_images", 0)
    wanted["test"]["verify_load.images"] = params["verify_load"]["images"]
    for part, counts in wanted.items():
        path = f"data/{dataset}/{part}-images.npy"
        if not is_there(root, path) and dataset not in params["fetch_data"]:
            yield f"`dataset` is `{dataset}`, which `fetch_data` does not fetch, and {missing(path)}"
            continue
        available = known_images(dataset, part, root)
        for key, count in counts.items():
            if available is not None and count > available:
                yield f"`{key}` is {count} and {path} has {available} images: ask for fewer"


def known_images(dataset, part, root):
    """Return how many images an array has or, fetched, will have; None if that is not known yet."""
    return _stored_images(root / f"data/{dataset}/{part}-images.npy") or FETCHED_IMAGES.get(dataset, {}).get(part)


def _stored_images(path):
    """Return the number of images of an array, None if it is not there or damaged: that is for the stage that reads it."""
    try:
        return len(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, TypeError, OSError, EOFError):
        return None
