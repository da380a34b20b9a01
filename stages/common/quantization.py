"""What the two quantize stages share: recipes in onnxruntime's terms, and a look at what became of the layers."""

import difflib

import onnx
from onnxruntime.quantization import QuantFormat, QuantType

from stages.common.workspace import UserError

LAYER_TYPES = ("Conv", "ConvTranspose", "Gemm", "MatMul")
ENUMERATIONS = {"activation_type": QuantType, "weight_type": QuantType, "quant_format": QuantFormat}


def onnxruntime_arguments(recipe):
    """Return a recipe of params.yaml as keyword arguments of quantize_static or quantize_dynamic."""
    return {key: ENUMERATIONS[key][value] if key in ENUMERATIONS else value for key, value in recipe.items()}


def check_excluded_nodes(model, recipe):
    """Raise UserError if the recipe excludes a node that `model`, a ModelProto, does not have."""
    names = {node.name for node in model.graph.node}
    for name in recipe.get("nodes_to_exclude", []):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(names))}."
            raise UserError(f"nodes_to_exclude names {name!r}, which is no node of the preprocessed model: {hint}")


def float_layers(model):
    """Return the names of the layers of a ModelProto whose weights are stored as floating point."""
    floats = {
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1
    }
    return [node.name for node in model.graph.node if node.op_type in LAYER_TYPES and floats & set(node.input[1:2])]


def count_quantized(before, path):
    """Return (layers quantized, layers in all) for the quantized file at `path`; `before` is the model it came from.

    Raises UserError if no layer was quantized: such a file would be a copy of fp32 under an int8 name.
    """
    total = len(float_layers(before))
    quantized = total - len(float_layers(onnx.load(path)))
    if quantized == 0:
        raise UserError(
            f"the recipe quantizes none of the {total} layers with weights: widen op_types_to_quantize or shorten nodes_to_exclude."
        )
    return quantized, total
