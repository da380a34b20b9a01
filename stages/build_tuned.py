"""Make the variant `tuned` from the recipe that `tune` found or was given: the same recipe, the same bytes.

Where the recipe is fp32 itself, the variant is a copy of it, and the ranges are empty.

    python -m stages.build_tuned cnn models/cnn/tuned-recipe.yaml models/cnn/onnx/fp32.onnx ... (see dvc.yaml)
"""

import json
import shutil

from stages.common.calibration.static_variant import make_variant
from stages.common.tuned_recipe import FP32, read_recipe
from stages.common.workspace import read_params, run_main, whole_file, write_text


def main(model, recipe_path, fp32_path, preprocessed_path, images_path, variant_path, ranges_path):
    recipe, scaling = read_recipe(recipe_path), read_params(f"models.{model}.input")
    if recipe == FP32:
        with whole_file(variant_path) as temporary:
            shutil.copyfile(fp32_path, temporary)
        write_text(ranges_path, json.dumps({"copy_of": FP32, "ranges": {}}) + "\n")
        print(f"{variant_path}: a copy of fp32, which its recipe is")
        return
    done = make_variant(recipe, {}, preprocessed_path, images_path, scaling, variant_path, ranges_path)
    print(f"{variant_path}: {done}")


if __name__ == "__main__":
    run_main(main)
