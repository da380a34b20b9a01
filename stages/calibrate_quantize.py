"""Make a static variant: find activation ranges on the calibration set, then quantize weights and activations.

The ranges and the indices of the calibration images are kept beside the result, in models/<model>/ranges/.

    python -m stages.calibrate_quantize cnn static-u8s8 models/cnn/preprocessed.onnx ... (see dvc.yaml)
"""

import json
import shutil
import tempfile

import onnx
from onnxruntime.quantization import CalibrationMethod, quantize_static

from stages.common.calibration import check_ranges_belong, collect_ranges, draw_indices, save_ranges
from stages.common.calibration_settings import calibration_settings
from stages.common.images import check_finite, load_images, to_input
from stages.common.quantization import check_excluded_nodes, count_quantized, onnxruntime_arguments
from stages.common.workspace import read_params, run_main, whole_file, write_text


def calibrate(preprocessed_path, images_path, indices, scaling, *, batch_size, method, op_types=None, **options):
    """Return {tensor: (lowest, highest)} over the images at `indices`, read and run `batch_size` at a time.

    `options` are the method's parameters, as in params.yaml.
    """

    def batches():
        for start in range(0, len(indices), batch_size):
            chosen = indices[start : start + batch_size]
            images = load_images(images_path)[chosen]  # a new map: the pages that an old one has read stay in memory
            check_finite(images, images_path, chosen)
            yield to_input(images, **scaling)

    return collect_ranges(preprocessed_path, batches, method=method, op_types=op_types, **options)


def quantize(preprocessed_path, variant_path, ranges, **recipe):
    """Quantize one file into another with given ranges; return (layers quantized, layers in all)."""
    model = onnx.load(preprocessed_path)
    check_excluded_nodes(model, recipe)
    check_ranges_belong(ranges, model, preprocessed_path, recipe.get("op_types_to_quantize"))
    with tempfile.TemporaryDirectory() as folder:
        save_ranges(ranges, f"{folder}/ranges.json")
        quantize_static(
            shutil.copy(preprocessed_path, folder),  # quantize_static writes a file beside its input
            variant_path,
            calibrate_method=CalibrationMethod.MinMax,  # the cache's format; how the ranges were found no longer matters
            calibration_cache_path=f"{folder}/ranges.json",
            **onnxruntime_arguments(recipe),
        )
    return count_quantized(model, variant_path)


def ranges_json(ranges, indices, settings):
    """Return the ranges artifact: the calibration settings, the images used, and [lowest, highest] a tensor."""
    bounds = {tensor: [float(low), float(high)] for tensor, (low, high) in ranges.items()}
    return json.dumps({"calibrate": settings, "image_indices": indices.tolist(), "ranges": bounds}, indent=1) + "\n"


def main(model, variant, preprocessed_path, images_path, variant_path, ranges_path):
    recipe, scaling = read_params(f"calibrate_quantize.{variant}"), read_params(f"models.{model}.input")
    draw, how = calibration_settings(read_params("calibrate"), recipe.pop("calibrate", {}))
    indices = draw_indices(**draw, available=len(load_images(images_path)))
    op_types = recipe.get("op_types_to_quantize")
    ranges = calibrate(preprocessed_path, images_path, indices, scaling, op_types=op_types, **how)
    with whole_file(variant_path) as temporary:
        quantized, total = quantize(preprocessed_path, temporary, ranges, **recipe)
        size = temporary.stat().st_size
    write_text(ranges_path, ranges_json(ranges, indices, draw | how))
    print(
        f"{variant_path}: {quantized} of {total} layers quantized, {how['method']} on {len(indices)} images, {size:,} bytes"
    )


if __name__ == "__main__":
    run_main(main)
