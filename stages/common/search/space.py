"""The static recipes that are worth measuring on a model: which layers stay in floating point, and how the rest is done.

Every recipe here is one that a user could write under `calibrate_quantize`, and that loads: pairs of types with
kernels, per-channel QDQ from opset 13 on, and options only in the format that reads them.
"""

from dataclasses import dataclass

from stages.common.calibration.graph_rewrites import swappable_pools
from stages.common.profiling.optimized_graph import Original
from stages.common.quantization import float_layers

TYPES = (("QUInt8", "QInt8"), ("QInt8", "QInt8"), ("QUInt8", "QUInt8"))  # activations, weights
FORMATS = ("QDQ", "QOperator")
PER_CHANNEL_OPSET = 13  # DequantizeLinear has an axis from there on
FLOAT_LAST = {"OpTypesToExcludeOutputQuantization": ["Gemm"]}
MOVES_DATA = ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze")  # what a QuantizeLinear is moved above, too


@dataclass(frozen=True)
class Shape:
    """A point of the space without its calibration. `in_float`: names of the layers with weights that are not quantized.

    `float_output`: what a Gemm gives is not rounded to 8 bits; `swap`: pools at the border run before their ReLU.
    """

    activation_type: str = "QUInt8"
    weight_type: str = "QInt8"
    quant_format: str = "QDQ"
    per_channel: bool = False
    reduce_range: bool = False
    in_float: tuple = ()
    float_output: bool = False
    swap: bool = True


class Space:
    """The space of one preprocessed ModelProto."""

    def __init__(self, model):
        self.model, self.original, self.layers = model, Original.of(model), float_layers(model)
        self.opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        self.pools = swappable_pools(model)

    def valid(self, shape):
        """Return whether a shape makes a file that loads and is not another shape's by definition."""
        if len(shape.in_float) == len(self.layers) or (shape.activation_type, shape.weight_type) not in TYPES:
            return False
        gemms = [name for name in self.layers if self.original.nodes[name].op_type == "Gemm"]
        if shape.float_output and (shape.quant_format != "QDQ" or set(gemms) <= set(shape.in_float)):
            return False  # quantize_static reads the option in the QDQ format only
        return not shape.per_channel or shape.quant_format != "QDQ" or self.opset >= PER_CHANNEL_OPSET

    def recipe(self, shape):
        """Return a shape as a recipe of params.yaml, without its `calibrate`; what is onnxruntime's default is left out."""
        recipe = {
            "quant_format": shape.quant_format,
            "activation_type": shape.activation_type,
            "weight_type": shape.weight_type,
        }
        recipe |= {key: True for key in ("per_channel", "reduce_range") if getattr(shape, key)}
        region = self.float_region(shape.in_float)
        if region:
            recipe["nodes_to_exclude"] = region
        border = self.border_pools(region) if shape.swap else []
        if border:
            recipe["swap_relu_maxpool"] = border
        if shape.float_output:
            recipe["extra_options"] = dict(FLOAT_LAST)
        return recipe

    def float_region(self, layers):
        """Return the nodes that stay in floating point with `layers`: these, and what reads nothing but such nodes."""
        region = []
        for name in self.original.nodes:
            parents = self.original.parents(name)
            follows = name not in self.layers and parents and all(parent in region for parent in parents)
            if name in layers or follows:
                region.append(name)
        return region

    def border_pools(self, region):
        """Return the pools of a region that can run before their ReLU and whose output is quantized."""
        quantized = {name for name in self.original.nodes if name not in region}
        return [name for name in region if self.pools.get(name) in region and self._readers(name) & quantized]

    def _readers(self, name):
        """Return the nodes that read a node's values, also those behind nodes that only move data."""
        found = set()
        for reader, node in self.original.nodes.items():
            if name in self.original.parents(reader):
                found |= {reader} | (self._readers(reader) if node.op_type in MOVES_DATA else set())
        return found

    def own_nodes(self, layer):
        """Return a layer and the nodes behind it that no other layer has a part in."""
        return self.float_region((layer,))
