"""The graph that onnxruntime really runs, every node of it mapped back to a layer of the original model.

onnxruntime fuses, renames and reorders: `node_conv2d` comes back as `relu_nchwc`, `node_conv2d_token_15` or as
`node_conv2d_quant` with a Cast and two Muls behind it. Names survive in part: a name of the original model, of a node
or of a tensor, plus an ending. Where they do not, the tensors tell.
"""

import re
from dataclasses import dataclass, field

import onnx

from stages.common.profiling.operators import runs_in_integers
from stages.common.session.runtime import open_session

QUANTIZE = {"QuantizeLinear", "DynamicQuantizeLinear"}
DEQUANTIZE = {"DequantizeLinear"}
LAYOUT = {"Transpose", "ReorderInput", "ReorderOutput"}
NCHWC_DOMAIN = "com.microsoft.nchwc"
GRAPH_INPUT = "input"


@dataclass(frozen=True)
class Node:
    """A node of an optimized graph, in an order in which it can run.

    `kind`: "layer" (work of the original model), "quantize", "dequantize", "layout", or "other" (mapped to nothing).
    `origin`: the original node that a "layer" does the work of; for a conversion the one whose output it converts
    ("input" for the graph's input, the reader of the weights for weights).
    """

    name: str
    op_type: str
    kind: str
    origin: str | None
    layout: str  # of its tensors: "NCHWc", "NHWC", "NCHW" (convolutions and pools only), else ""
    source: int | None  # the place of the node that makes its first input


@dataclass
class Original:
    """The model before optimization: its nodes by name, and who makes and reads each tensor."""

    nodes: dict = field(default_factory=dict)
    producer: dict = field(default_factory=dict)
    weights: dict = field(default_factory=dict)  # initializer: shape
    inputs: set = field(default_factory=set)

    @classmethod
    def of(cls, model):
        """Return the Original of a preprocessed ModelProto, whose nodes all have names of their own."""
        graph, self = model.graph, cls()
        self.weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self.inputs = {value.name for value in graph.input} - set(self.weights)
        for node in graph.node:
            self.nodes[node.name] = node
            self.producer |= dict.fromkeys(node.output, node.name)
        return self

    def parents(self, name):
        """Return the nodes that make a node's inputs, in the order of the inputs."""
        return [self.producer[tensor] for tensor in self.nodes[name].input if tensor in self.producer]

    def find(self, text):
        """Return the node whose name, or whose output's name, is the longest beginning of `text`; None if none is.

        What follows the beginning must be an ending that onnxruntime hangs on: after `_`, `/` or `:` and no digit
        (`conv_1` is not made from `conv`), or the quantizer's `quant`.
        """
        text = text.removeprefix("fused ")
        for end in range(len(text), 0, -1):
            name = self.producer.get(text[:end], text[:end])
            if name in self.nodes and re.match(r"$|_(?!\d)|[/:]|quant", text[end:]):
                return name
        return None

    def nearest(self, name, family):
        """Return `name` or the nearest node before it that is of `family` ("Conv" or "MatMul"); None if there is none."""
        level, seen = [name], set()
        while level:
            for candidate in level:
                if family_of(self.nodes[candidate].op_type) == family:
                    return candidate
            seen |= set(level)
            level = [parent for node in level for parent in self.parents(node) if parent not in seen]
        return None


def family_of(op_type):
    """Return what an operator is at heart, in whatever type it computes: "Conv", "MatMul" (Gemm, too), or None."""
    if "Conv" in op_type:
        return "Conv"
    return "MatMul" if "Gemm" in op_type or "MatMul" in op_type else None


def save_optimized(onnx_path, optimized_path, *, threads):
    """Write the graph as onnxruntime runs it on this machine, for inspection, and return it as a ModelProto.

    It is not to be shipped: on another processor other fusions are right, and its operators may be missing.
    """
    open_session(onnx_path, threads=threads, optimized_model_filepath=str(optimized_path))
    return onnx.load(optimized_path)


def map_nodes(optimized, original):
    """Return the Nodes of an optimized ModelProto, in its order, which is one that they can run in (see trace_order.py)."""
    nodes, origins, places, readers = [], {}, {}, {}  # the last three by tensor
    for node in reversed(optimized.graph.node):
        readers |= dict.fromkeys(node.input, node)
    for place, node in enumerate(optimized.graph.node):
        kind, origin = _conversion(node, original), None
        if kind is None:
            origin = _origin(node, original)
            kind = "layer" if origin else "other"
        elif node.input[0] in places:
            origin = origins[node.input[0]]
        elif node.input[0] in original.inputs:
            origin = GRAPH_INPUT
        else:  # of weights: whoever reads them
            reader = readers.get(node.output[0])
            origin = _origin(reader, original) if reader else None
        nodes.append(Node(node.name, node.op_type, kind, origin, _layout(node), places.get(node.input[0])))
        origins |= dict.fromkeys(node.output, origin)
        places |= dict.fromkeys(node.output, place)
    return nodes


def _conversion(node, original):
    """Return the kind of a node that only converts between types and layouts, or None."""
    same = original.nodes.get(node.name)
    if same is not None and same.op_type == node.op_type:
        return None
    for kind, op_types in (("quantize", QUANTIZE), ("dequantize", DEQUANTIZE), ("layout", LAYOUT)):
        if node.op_type in op_types:
            return kind
    return None


def _origin(node, original):
    """Return the original node that an optimized one does the work of, by its name, then by those of its outputs."""
    for text in (node.name, *node.output):
        found = original.find(text)
        if found:
            family = family_of(node.op_type)
            return (family and original.nearest(found, family)) or found
    return None


def _layout(node):
    if node.domain == NCHWC_DOMAIN:
        return "NCHWc"
    channels_last = any(attribute.name == "channels_last" and attribute.i for attribute in node.attribute)
    if channels_last or node.op_type.startswith("Nhwc"):
        return "NHWC"
    return "NCHW" if "Conv" in node.op_type or "Pool" in node.op_type else ""


def group_layers(original, graphs):
    """Return {original node: layer}: the finest division in which no optimized node does the work of two layers.

    `graphs` are lists of Nodes, of all files to be compared. An original node that a graph does not run by itself was
    fused into, or dropped behind, one that makes its inputs: the one that runs last. Both are then one layer for all
    files, so that times are compared like with like. A layer is named after its convolution or matrix product, or
    after its first node.
    """
    group = {name: name for name in original.nodes}
    for nodes in graphs:
        rank = {node.origin: place for place, node in enumerate(nodes) if node.kind == "layer"}
        home = {}
        for name in original.nodes:  # in topological order, so that the parents have their homes
            homes = [home[parent] for parent in original.parents(name)]
            fused = name not in rank and homes and not family_of(original.nodes[name].op_type)
            home[name] = max(homes, key=lambda parent: rank.get(parent, -1)) if fused else name
            group = _joined(group, name, home[name])
    names = {}
    for name, leader in group.items():
        if leader not in names or (
            family_of(original.nodes[name].op_type) and not family_of(original.nodes[names[leader]].op_type)
        ):
            names[leader] = name
    return {name: names[leader] for name, leader in group.items()}


def _joined(group, one, other):
    if group[one] == group[other]:
        return group
    return {name: group[other] if leader == group[one] else leader for name, leader in group.items()}


def count_graph(nodes, optimized, layers, original):
    """Return {integer_layers, float_layers, integer_convolutions, float_convolutions, quantize_pairs_left,
    layout_changes} of one optimized graph.

    The first two count the convolutions and matrix products named in `layers`, the next two the convolutions among
    them, by the original model's operators. A pair is left where a tensor within the network goes back to floating
    point (the graph's outputs have to).
    """
    outputs = {value.name for value in optimized.graph.output}
    computed = {tensor for node in optimized.graph.node for tensor in node.output}
    integer = {node.origin for node in nodes if node.kind == "layer" and runs_in_integers(node.op_type)}
    convolutions = {name for name in layers if family_of(original.nodes[name].op_type) == "Conv"}
    return {
        "integer_layers": len(integer & set(layers)),
        "float_layers": len(set(layers) - integer),
        "integer_convolutions": len(integer & convolutions),
        "float_convolutions": len(convolutions - integer),
        "quantize_pairs_left": sum(
            node.op_type in DEQUANTIZE and node.input[0] in computed and not outputs & set(node.output)
            for node in optimized.graph.node
        ),
        "layout_changes": sum(node.kind == "layout" for node in nodes),
    }
