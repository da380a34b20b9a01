"""Make a static variant: find activation ranges on the calibration set, then quantize weights and activations.

The ranges and the indices of the calibration images are kept beside the result, in models/<model>/ranges/.

    python -m stages.calibrate_quantize cnn static-u8s8 models/cnn/preprocessed.onnx ... (see dvc.yaml)
"""

from stages.common.calibration.static_variant import make_variant
from stages.common.workspace import read_params, run_main


def main(model, variant, preprocessed_path, images_path, variant_path, ranges_path):
    recipe, scaling = read_params(f"calibrate_quantize.{variant}"), read_params(f"models.{model}.input")
    shared = read_params("calibrate")
    done = make_variant(recipe, shared, preprocessed_path, images_path, scaling, variant_path, ranges_path)
    print(f"{variant_path}: {done}")


if __name__ == "__main__":
    run_main(main)
