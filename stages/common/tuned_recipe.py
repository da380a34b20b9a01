"""The recipe of the variant `tuned`: how it stands in params.yaml and in its file, and what speaks against it."""

import textwrap
from pathlib import Path

import yaml

from stages.common.workspace import UserError, parse_yaml

FP32, GIVEN = "fp32", "given"
INDENT = 4 * " "  # of a key of `tune.<model>`


def entry(recipe):
    """Return a recipe, or "fp32", as the lines of YAML that give it under `tune.<model>` in params.yaml."""
    return textwrap.indent(yaml.safe_dump({"recipe": recipe}, sort_keys=False), INDENT)


def read_recipe(path):
    """Return the recipe in a file of `tune`: a dictionary, or "fp32"."""
    recipe = parse_yaml(Path(path).read_bytes(), path).get("recipe")
    if not (recipe == FP32 or isinstance(recipe, dict)):
        raise UserError(f"{path} does not hold a recipe: run `dvc repro tune` again.")
    return recipe


def by_chance(judged):
    """Return in words that a recipe was judged by accuracy where there is next to none to lose (see chance)."""
    return f"fp32 itself is right on {judged['accuracy']:.2%} of the validation images, no more often than saying the most frequent class every time ({judged['most_frequent_share']:.2%}), so that accuracy shows little of what a recipe loses: look whether train-labels.npy numbers the classes as the model does, or whether one class outweighs the others"


def doubts(metrics):
    """Return in words what a search would have turned down about a recipe that was given; nothing if it was found.

    `metrics`: those of `tune` for one model.
    """
    if GIVEN not in metrics or metrics["chosen"] == FP32:
        return []
    what = "accuracy" if metrics["labelled"] else "agreement with fp32"
    found = {
        "it is no smaller than fp32": metrics["objective"] == "size" and metrics["size_bytes"] >= metrics["fp32_size_bytes"],
        "it is not faster than fp32 for certain": metrics["objective"] != "size" and metrics["speedup_low"] <= 1,
        f"it may lose more than {metrics['max_drop']:g} points of {what}": 100 * metrics["validation"]["shown_low"] < -metrics["max_drop"],
    }  # fmt: skip
    return [words for words, true in found.items() if true]
