"""A signature of an optimized graph: the same for two sessions that run the same, whatever they call it."""

import hashlib
from collections import Counter


def graph_signature(model):
    """Return what an optimized ModelProto computes, whatever its nodes and tensors are called.

    Each tensor is known by the type of its elements, as far as the file says it, and by its producer: operator, attributes
    and, in turn, inputs. Of weights it is shape and type, of what the model is fed the place. Nodes are in
    topological order, as onnxruntime writes them.
    """
    graph = model.graph
    types = {value.name: value.type.tensor_type.elem_type for value in [*graph.input, *graph.value_info, *graph.output]}
    known = {"": "", **{value.name: f"input {place} {types[value.name]}" for place, value in enumerate(graph.input)}}
    known |= {tensor.name: f"weights {tuple(tensor.dims)} {tensor.data_type}" for tensor in graph.initializer}
    nodes = Counter()
    for node in graph.node:
        attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
        inputs = [known.get(name, name) for name in node.input]
        outputs = [types.get(name) for name in node.output]
        digest = hashlib.sha256(repr((node.domain, node.op_type, attributes, inputs, outputs)).encode()).hexdigest()
        known |= {name: f"{digest} {place}" for place, name in enumerate(node.output) if name}
        nodes[digest] += 1
    return nodes, [known.get(value.name) for value in graph.output]
