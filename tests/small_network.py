"""A network and images small enough for tests in seconds, and real: two layers with weights, built without PyTorch."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from stages.common.preprocessing import preprocess

SCALING = {"scale": 1.0, "mean": 0.0, "std": 1.0, "channels": 1, "repeat": 1}
CLASSES = 5


def write_network(folder):
    """Write fp32.onnx and preprocessed.onnx, conv - relu - pool - dense on 1x8x8 images; return the latter's path."""
    draw = np.random.default_rng(7)
    weights = {
        "conv_weight": draw.normal(size=(4, 1, 3, 3)),
        "conv_bias": draw.normal(size=4),
        "dense_weight": draw.normal(size=(64, CLASSES)) / 8,
        "dense_bias": draw.normal(size=CLASSES),
    }
    nodes = [
        helper.make_node("Conv", ["input", "conv_weight", "conv_bias"], ["conv"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"], "relu"),
        helper.make_node("MaxPool", ["relu"], ["pool"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pool"], ["flat"], "flat"),
        helper.make_node("Gemm", ["flat", "dense_weight", "dense_bias"], ["logits"], "dense"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, folder / "fp32.onnx")
    preprocess(folder / "fp32.onnx", folder / "preprocessed.onnx")
    return folder / "preprocessed.onnx"


def write_heavy_tailed_images(path, count):
    """Write float32 images (count, 1, 8, 8) from Student's t with 2 degrees of freedom: a few values far out."""
    images = np.random.default_rng(3).standard_t(2, size=(count, 1, 8, 8))
    np.save(path, images.astype(np.float32))
    return path
