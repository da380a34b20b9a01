"""Make a static variant: find activation ranges on the calibration set, then quantize weights and activations.

The ranges and the indices of the calibration images are kept beside the result, in models/<model>/ranges/.

    python -m stages.calibrate_quantize cnn static-u8s8 models/cnn/preprocessed.onnx ... (see dvc.yaml)
"""

import json

from stages.common.calibration import draw_indices
from stages.common.calibration_settings import calibration_settings
from stages.common.images import load_images
from stages.common.static_quantization import calibrate, check_recipe, quantize
from stages.common.workspace import read_params, run_main, whole_file, write_text


def ranges_json(ranges, indices, settings, layers):
    """Return the ranges artifact: the settings, the images used, layers quantized and in all, [lowest, highest] a tensor."""
    bounds = {tensor: [float(low), float(high)] for tensor, (low, high) in ranges.items()}
    content = {"calibrate": settings, "image_indices": indices.tolist(), "layers": layers, "ranges": bounds}
    return json.dumps(content, indent=1) + "\n"


def main(model, variant, preprocessed_path, images_path, variant_path, ranges_path):
    recipe, scaling = read_params(f"calibrate_quantize.{variant}"), read_params(f"models.{model}.input")
    check_recipe(preprocessed_path, recipe)
    draw, how = calibration_settings(read_params("calibrate"), recipe.pop("calibrate", {}))
    indices = draw_indices(**draw, available=len(load_images(images_path)))
    op_types = recipe.get("op_types_to_quantize")
    ranges = calibrate(preprocessed_path, images_path, indices, scaling, op_types=op_types, **how)
    with whole_file(variant_path) as temporary:
        quantized, total = quantize(preprocessed_path, temporary, ranges, **recipe)
        size = temporary.stat().st_size
    write_text(ranges_path, ranges_json(ranges, indices, draw | how, {"quantized": quantized, "all": total}))
    print(
        f"{variant_path}: {quantized} of {total} layers quantized, {how['method']} on {len(indices)} images, {size:,} bytes"
    )


if __name__ == "__main__":
    run_main(main)
