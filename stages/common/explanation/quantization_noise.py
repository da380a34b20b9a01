"""How much of each tensor survives quantization: signal-to-quantization-noise ratio, range, scale, clipped share.

The ratio (SQNR) is 20 log10(|x| / |x - q|) in decibels, over all values of a tensor: 6 dB are one bit. It is taken from
the QDQ form of the variant, which computes in floating point what the integer kernels compute, tensor by tensor.
"""

import tempfile
from collections import defaultdict

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization.qdq_loss_debug import (
    collect_activations,
    compute_activation_error,
    create_activation_matching,
    modify_model_output_intermediate_tensors,
)

from stages.common.calibration.collection import Reader
from stages.common.calibration.static_quantization import fixed_batch
from stages.common.quantization import LAYER_TYPES
from stages.common.session.model_io import parts, without_filling


def decibels(signal, noise):
    """Return 10 log10(signal / noise) of two energies (sums of squares); None where there is no signal or no noise."""
    return float(10 * np.log10(signal / noise)) if signal > 0 and noise > 0 else None


def energies(expected, got):
    """Return (sum of squares of `expected`, of the difference): lists of arrays, or arrays, of equal shapes."""
    signal, noise = 0.0, 0.0
    for one, other in zip(expected, got, strict=True):
        signal += np.square(one, dtype=np.float64).sum()
        noise += np.square(np.subtract(one, other, dtype=np.float64)).sum()
    return np.array([signal, noise])


def weight_sqnr(model, quantized):
    """Return {layer: decibels} of the weights that `quantized`, the QDQ form of `model` (ModelProtos), stores as int8."""
    tensors = {tensor.name: tensor for tensor in quantized.graph.initializer}
    dequantized = {node.output[0]: node for node in quantized.graph.node if node.op_type == "DequantizeLinear"}
    floats = {tensor.name: tensor for tensor in model.graph.initializer}
    readers = {node.name: node for node in quantized.graph.node if node.op_type in LAYER_TYPES}
    found = {}
    for node in model.graph.node:
        if node.name not in readers or node.input[1] not in floats:
            continue
        stored = dequantized.get(readers[node.name].input[1])
        if stored is not None and stored.input[0] in tensors:
            weights = numpy_helper.to_array(floats[node.input[1]])
            found[node.name] = decibels(*energies(weights, dequantize(stored, tensors)))
    return found


def dequantize(node, tensors):
    """Return the float32 values of a DequantizeLinear node whose inputs are all among `tensors`, {name: TensorProto}.

    Unlike qdq_loss_debug, which subtracts zero points in 8 bits and so wraps around for unsigned weights.
    """
    stored, scale, zero_point = (numpy_helper.to_array(tensors[name]) for name in node.input)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    shape = [-1 if place == axis % stored.ndim else 1 for place in range(stored.ndim)] if scale.size > 1 else []
    return (stored.astype(np.int32) - zero_point.astype(np.int32).reshape(shape)) * scale.reshape(shape)


def activation_noise(preprocessed_path, quantized_path, batches):
    """Return {tensor: {accumulated_sqnr_db, rounding_sqnr_db, low, high, scale, zero_point, clipped_percent}}.

    `batches` are of the model's input, (N, ...); memory does not grow with their number. `accumulated`
    compares the two models, so it holds what the layers before did; `rounding` is this tensor's own loss, of the float
    model's values put on its grid. `low`, `high`: those values' range; `clipped_percent` of them lie outside the grid.
    """
    sums, limits = defaultdict(lambda: np.zeros(2)), scales(onnx.load(quantized_path))
    seen = defaultdict(list)
    [value] = onnx.load(preprocessed_path).graph.input
    fixed = fixed_batch(preprocessed_path) or None
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/float.onnx", f"{folder}/quantized.onnx"]
        for source, augmented in zip((preprocessed_path, quantized_path), paths, strict=True):
            modify_model_output_intermediate_tensors(str(source), augmented)
        for part, count in (part for batch in batches for part in parts(batch, fixed)):
            floats, quantized = (_activations(path, value.name, part, count, fixed) for path in paths)
            matching = create_activation_matching(quantized, floats)
            matching = {tensor: match for tensor, match in matching.items() if "float" in match and tensor in limits}
            for tensor, match in compute_activation_error(matching, energies).items():
                values = matching[tensor]["float"]
                sums[tensor, "accumulated"] += match["xmodel_err"]
                sums[tensor, "rounding"] += energies(values, [_on_grid(array, limits[tensor]) for array in values])
                seen[tensor].append(_met(values, limits[tensor]))
    return {tensor: _summary(tensor, found, limits[tensor], sums) for tensor, found in seen.items()}


def _activations(path, name, part, count, fixed):
    """Return {tensor: [values]} of one batch, without what fills a fixed batch up."""
    found = collect_activations(path, Reader(name, [part]))
    return {tensor: [without_filling(array, count, fixed) for array in arrays] for tensor, arrays in found.items()}


def scales(quantized):
    """Return {tensor: (scale, zero point, lowest, highest value)} of a QDQ ModelProto's quantized activations."""
    tensors = {tensor.name: tensor for tensor in quantized.graph.initializer}
    found = {}
    for node in quantized.graph.node:
        if node.op_type == "QuantizeLinear" and set(node.input[1:]) <= set(tensors):
            scale, zero_point = (numpy_helper.to_array(tensors[name]) for name in node.input[1:3])
            bounds = np.iinfo(zero_point.dtype)
            low, high = (float(scale) * (bound - int(zero_point)) for bound in (bounds.min, bounds.max))
            tensor = node.input[0].removesuffix("_QuantizeLinear_Input")
            found[tensor] = float(scale), int(zero_point), low, high
    return found


def _on_grid(values, limits):
    """Return values as the scale can say them."""
    scale, _, low, high = limits
    return np.clip(np.rint(values / np.float32(scale)) * np.float32(scale), low, high)


def _met(values, limits):
    """Return (lowest, highest, how many are clipped, how many there are) of a list of arrays."""
    scale, _, low, high = limits
    clipped = sum(int(((array < low - scale / 2) | (array > high + scale / 2)).sum()) for array in values)
    return (
        min(array.min() for array in values),
        max(array.max() for array in values),
        clipped,
        sum(array.size for array in values),
    )


def _summary(tensor, found, limits, sums):
    lows, highs, clipped, sizes = zip(*found, strict=True)
    return {
        "accumulated_sqnr_db": decibels(*sums[tensor, "accumulated"]),
        "rounding_sqnr_db": decibels(*sums[tensor, "rounding"]),
        "low": float(min(lows)),
        "high": float(max(highs)),
        "scale": limits[0],
        "zero_point": limits[1],
        "clipped_percent": 100 * sum(clipped) / sum(sizes),
    }
