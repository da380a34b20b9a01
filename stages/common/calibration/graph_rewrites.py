"""Exact rewrites of the float graph before quantization: the same values, in an order that runs faster in 8 bits.

`swap_relu_maxpool`, a key of a static recipe, names MaxPool nodes. Where a layer that stays in floating point is
followed by ReLU, MaxPool and a quantized layer, onnxruntime moves the QuantizeLinear above the MaxPool, and the pool
then runs in 8 bits and NCHW, with a kernel many times slower than the float one in NCHWc. A ReLU between pool and
QuantizeLinear keeps it in its place. Both orders give the same values in every bit: the largest of rectified values is
the rectified largest.
"""

import copy

from stages.common.workspace import UserError


def swap_pools(model, pools):
    """Let the MaxPool nodes named in `pools` of a ModelProto run before the ReLU that they read; change it in place.

    Tensor names stay where quantization looks for ranges: the last one keeps its name and its values, and the one in
    between keeps its name. What that one holds now is not rectified yet, and a range that was found before the swap
    is right for it: what it clips the ReLU behind it clips, too. Raises UserError for a pool that cannot be swapped.
    """
    graph = model.graph
    places = {node.name: place for place, node in enumerate(graph.node)}
    swappable = swappable_pools(model)
    for name in pools:
        if name not in swappable:
            raise UserError(
                f"swap_relu_maxpool names {name!r}, which is no MaxPool that alone reads a ReLU: "
                + (
                    f"it can name {', '.join(sorted(swappable))}."
                    if swappable
                    else "this model has none, remove the key."
                )
            )
        relu_place, pool_place = places[swappable[name]], places[name]
        relu, pool = copy.deepcopy(graph.node[relu_place]), copy.deepcopy(graph.node[pool_place])
        between, after = relu.output[0], pool.output[0]
        pool.input[0], pool.output[0] = relu.input[0], between
        relu.input[0], relu.output[0] = between, after
        graph.node[relu_place].CopyFrom(pool)
        graph.node[pool_place].CopyFrom(relu)
        shapes = {value.name: value for value in graph.value_info}
        if between in shapes and after in shapes:
            shapes[between].type.CopyFrom(shapes[after].type)
        elif between in shapes:
            graph.value_info.remove(shapes[between])
        places |= {relu.name: pool_place, pool.name: relu_place}


def swappable_pools(model):
    """Return {MaxPool: ReLU} by node name: pools of which nobody wants the indices, and that alone read a ReLU's output."""
    graph = model.graph
    producers = {tensor: node for node in graph.node for tensor in node.output}
    readers = [tensor for node in graph.node for tensor in node.input] + [value.name for value in graph.output]
    found = {}
    for pool in graph.node:
        relu = producers.get(pool.input[0]) if pool.op_type == "MaxPool" and len(pool.output) == 1 else None
        if relu is not None and relu.op_type == "Relu" and readers.count(pool.input[0]) == 1:
            found[pool.name] = relu.name
    return found
