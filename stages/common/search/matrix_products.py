"""How fast this machine multiplies matrices, in integers and in floating point: what a variant is measured against.

An operation is a multiplication or an addition: a product of (M, K) and (K, N) has 2 M N K of them.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from stages.common.session.runtime import open_session
from stages.common.timing import time_calls

ROWS, INNER, COLUMNS = 512, 1024, 1024  # large enough that a call is all arithmetic, small enough for the caches
CALLS = 40


def measure_products(folder, *, threads):
    """Return {int8_product_gops, fp32_product_gops}: billions of operations a second of the quickest of a few calls.

    The products are onnxruntime's own, of constant weights: MatMulInteger of uint8 and int8, and MatMul of float32.
    """
    draw = np.random.default_rng(0)
    values = {
        "MatMulInteger": (draw.integers(0, 255, (ROWS, INNER)).astype(np.uint8), draw.integers(-63, 64, (INNER, COLUMNS)).astype(np.int8)),
        "MatMul": tuple(draw.normal(size=shape).astype(np.float32) for shape in ((ROWS, INNER), (INNER, COLUMNS))),
    }  # fmt: skip
    seconds = {}
    for op_type, (left, right) in values.items():
        path = f"{folder}/{op_type}.onnx"
        onnx.save(product(op_type, right), path)
        session = open_session(path, threads=threads)
        seconds[op_type] = min(time_calls(session, left, CALLS)) / 1e9
    operations = 2 * ROWS * INNER * COLUMNS / 1e9
    return {
        "int8_product_gops": round(operations / seconds["MatMulInteger"], 2),
        "fp32_product_gops": round(operations / seconds["MatMul"], 2),
    }


def product(op_type, right):
    """Return a ModelProto of one product of its input, (rows, K), with the constant `right`, (K, N)."""
    types = (TensorProto.UINT8, TensorProto.INT32) if op_type == "MatMulInteger" else (TensorProto.FLOAT,) * 2
    graph = helper.make_graph(
        [helper.make_node(op_type, ["left", "right"], ["product"])],
        "product",
        [helper.make_tensor_value_info("left", types[0], [None, right.shape[0]])],
        [helper.make_tensor_value_info("product", types[1], [None, right.shape[1]])],
        [numpy_helper.from_array(right, "right")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def operations_per_image(model):
    """Return the operations of all convolutions and matrix products with constant weights for one image.

    `model`: a preprocessed ModelProto, whose shapes are known but for the batch; None where they are not.
    """
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    shapes = {
        value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim][1:]
        for value in [*model.graph.value_info, *model.graph.output]
    }
    total = 0
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm", "MatMul") and node.input[1] in weights:
            made, weight = shapes.get(node.output[0]), weights[node.input[1]]
            if not made or not all(made):
                return None
            # each value of the output is a dot product with the weights of its channel
            channels = made[0] if node.op_type == "Conv" else made[-1]
            total += 2 * int(np.prod(made)) * int(np.prod(weight)) // channels
    return total
