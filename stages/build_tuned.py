"""Make the variant `tuned` from the recipe that `tune` found: the same recipe, the same bytes.

Where the recipe is fp32 itself, the variant is a copy of it, and the ranges are empty.

    python -m stages.build_tuned cnn models/cnn/tuned-recipe.yaml models/cnn/onnx/fp32.onnx ... (see dvc.yaml)
"""

import json
import shutil
from pathlib import Path

from stages.common.calibration.static_variant import make_variant
from stages.common.workspace import UserError, parse_yaml, read_params, run_main, whole_file, write_text

FP32 = "fp32"


def read_recipe(path):
    """Return the recipe in a file of `tune`: a dictionary, or "fp32"."""
    entries = list(parse_yaml(Path(path).read_bytes(), path).values())
    if len(entries) != 1 or not (entries[0] == FP32 or isinstance(entries[0], dict)):
        raise UserError(f"{path} does not hold one recipe: run `dvc repro tune` again.")
    return entries[0]


def main(model, recipe_path, fp32_path, preprocessed_path, images_path, variant_path, ranges_path):
    recipe, scaling = read_recipe(recipe_path), read_params(f"models.{model}.input")
    if recipe == FP32:
        with whole_file(variant_path) as temporary:
            shutil.copyfile(fp32_path, temporary)
        write_text(ranges_path, json.dumps({"copy_of": FP32, "ranges": {}}) + "\n")
        print(f"{variant_path}: a copy of fp32, since no recipe is better on this machine")
        return
    done = make_variant(recipe, {}, preprocessed_path, images_path, scaling, variant_path, ranges_path)
    print(f"{variant_path}: {done}")


if __name__ == "__main__":
    run_main(main)
