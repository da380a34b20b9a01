"""A static variant from a recipe: its file, and beside it the ranges and the indices of the images behind them."""

import json

from stages.common.calibration.collection import draw_indices
from stages.common.calibration.settings import calibration_settings
from stages.common.calibration.static_quantization import calibrate, check_recipe, quantize
from stages.common.images import load_images
from stages.common.workspace import whole_file, write_text


def make_variant(recipe, shared, preprocessed_path, images_path, scaling, variant_path, ranges_path):
    """Calibrate and quantize by a recipe of params.yaml; return what was done in words.

    `shared`: the calibration settings that the recipe's own `calibrate` overrides; `scaling`: arguments of `to_input`.
    """
    recipe = dict(recipe)
    check_recipe(preprocessed_path, recipe)
    draw, how = calibration_settings(shared, recipe.pop("calibrate", {}))
    indices = draw_indices(**draw, available=len(load_images(images_path)))
    op_types = recipe.get("op_types_to_quantize")
    ranges = calibrate(preprocessed_path, images_path, indices, scaling, op_types=op_types, **how)
    with whole_file(variant_path) as temporary:
        quantized, total = quantize(preprocessed_path, temporary, ranges, **recipe)
        size = temporary.stat().st_size
    write_text(ranges_path, ranges_json(ranges, indices, draw | how, {"quantized": quantized, "all": total}))
    return f"{quantized} of {total} layers quantized, {how['method']} on {len(indices)} images, {size:,} bytes"


def ranges_json(ranges, indices, settings, layers):
    """Return the ranges artifact: the settings, the images used, layers quantized and in all, [lowest, highest] a tensor."""
    bounds = {tensor: [float(low), float(high)] for tensor, (low, high) in ranges.items()}
    content = {"calibrate": settings, "image_indices": indices.tolist(), "layers": layers, "ranges": bounds}
    return json.dumps(content, indent=1) + "\n"
