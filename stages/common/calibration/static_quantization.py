"""Static quantization in its two steps: activation ranges from the calibration set, then a file from given ranges."""

import copy
import shutil
import tempfile

import onnx
from onnxruntime.quantization import CalibrationMethod, quantize_static

from stages.common.calibration.collection import check_ranges_belong, collect_ranges, save_ranges
from stages.common.calibration.graph_rewrites import swap_pools
from stages.common.images import check_finite, load_images, to_input
from stages.common.quantization import check_excluded_nodes, count_quantized, onnxruntime_arguments


def calibrate(preprocessed_path, images_path, indices, scaling, *, batch_size, method, op_types=None, **options):
    """Return {tensor: (lowest, highest)} over the images at `indices`, read and run `batch_size` at a time.

    A batch that the file fixes takes the place of `batch_size`. `options` are the method's parameters, as in params.yaml.
    """
    batch_size = fixed_batch(preprocessed_path) or batch_size

    def batches():
        for start in range(0, len(indices), batch_size):
            chosen = indices[start : start + batch_size]
            images = load_images(images_path)[chosen]  # a new map: the pages that an old one has read stay in memory
            check_finite(images, images_path, chosen)
            yield to_input(images, **scaling)

    return collect_ranges(preprocessed_path, batches, method=method, op_types=op_types, **options)


def fixed_batch(preprocessed_path):
    """Return the batch size that a preprocessed file fixes, or 0 if it takes any (PaddlePaddle writes -1)."""
    [value] = onnx.load(preprocessed_path).graph.input
    return max(0, value.type.tensor_type.shape.dim[0].dim_value)


def check_recipe(preprocessed_path, recipe):
    """Raise UserError, before any calibration, if the recipe names nodes that the file does not have, or not so."""
    model = onnx.load(preprocessed_path)
    check_excluded_nodes(model, recipe)
    swap_pools(model, recipe.get("swap_relu_maxpool", ()))


def quantize(preprocessed_path, variant_path, ranges, *, swap_relu_maxpool=(), **recipe):
    """Quantize one file into another with given ranges; return (layers quantized, layers in all).

    `ranges` are those of the preprocessed file, whether the recipe swaps nodes or not (see graph_rewrites).
    """
    model = onnx.load(preprocessed_path)
    check_excluded_nodes(model, recipe)
    check_ranges_belong(ranges, model, preprocessed_path, recipe.get("op_types_to_quantize"))
    with tempfile.TemporaryDirectory() as folder:
        save_ranges(ranges, f"{folder}/ranges.json")
        source = shutil.copy(preprocessed_path, folder)  # quantize_static writes a file beside its input
        if swap_relu_maxpool:
            swapped = copy.deepcopy(model)
            swap_pools(swapped, swap_relu_maxpool)
            onnx.save(swapped, source)
        quantize_static(
            source,
            variant_path,
            calibrate_method=CalibrationMethod.MinMax,  # the cache's format; how the ranges were found no longer matters
            calibration_cache_path=f"{folder}/ranges.json",
            **onnxruntime_arguments(recipe),
        )
    return count_quantized(model, variant_path)
