"""Small networks with random weights, built node by node, and the variants that the pipeline makes of them."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from stages.common.calibration.collection import collect_ranges
from stages.common.calibration.static_quantization import quantize
from stages.common.preprocessing import preprocess
from stages.quantize_dynamic import quantize_dynamic

U8S8 = {"quant_format": "QDQ", "activation_type": "QUInt8", "weight_type": "QInt8"}
S8S8 = {"quant_format": "QDQ", "activation_type": "QInt8", "weight_type": "QInt8"}
RECIPES = {
    "u8s8": U8S8,
    "s8s8": S8S8,
    "convgemm": {**S8S8, "per_channel": True, "op_types_to_quantize": ["Conv", "Gemm", "MatMul"]},
    "qoperator": {**U8S8, "quant_format": "QOperator"},
}


class Network:
    """A chain of nodes that is written down as it is read; every method returns the name of its output tensor."""

    def __init__(self, channels=1, size=16, seed=0):
        self.random, self.nodes, self.tensors, self.channels = np.random.default_rng(seed), [], [], channels
        self.input = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", channels, size, size])

    def add(self, op_type, name, inputs, **attributes):
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def constant(self, name, values):
        self.tensors.append(numpy_helper.from_array(values, name))
        return name

    def weights(self, name, *shape):
        values = self.random.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)
        return self.constant(name, values)

    def conv(self, name, source, outputs, inputs, kernel=3, **attributes):
        weights = self.weights(f"{name}.weight", outputs, inputs, kernel, kernel)
        bias = self.weights(f"{name}.bias", outputs)
        return self.add("Conv", name, [source, weights, bias], pads=[kernel // 2] * 4, **attributes)

    def gemm(self, name, source, outputs, inputs):
        weights = self.weights(f"{name}.weight", outputs, inputs)
        return self.add("Gemm", name, [source, weights, self.weights(f"{name}.bias", outputs)], transB=1)

    def save(self, path, output):
        self.nodes[-1].output[0] = "logits"
        ends = [self.input], [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", output])]
        graph = helper.make_graph(self.nodes, "network", *ends, self.tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        onnx.checker.check_model(model, full_check=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)
        return path


def save_plain(path, *, kernel=3, width=16):
    """Save conv_1 (1 -> width channels), relu, pool, conv_2 (kernel), relu, pool, flatten, fc: (N, 1, 16, 16) -> (N, 10)."""
    net = Network()
    tensor = net.add("Relu", "relu_1", [net.conv("conv_1", "input", width, 1)])
    tensor = net.add("MaxPool", "pool_1", [tensor], kernel_shape=[2, 2], strides=[2, 2])
    tensor = net.add("Relu", "relu_2", [net.conv("conv_2", tensor, 2 * width, width, kernel)])
    tensor = net.add("MaxPool", "pool_2", [tensor], kernel_shape=[2, 2], strides=[2, 2])
    tensor = net.add("Flatten", "flatten", [tensor])
    net.gemm("fc", tensor, 10, 2 * width * 16)
    return net.save(path, 10)


def save_residual(path):
    """Save conv_1, relu, two residual blocks of two convolutions, mean, fc: (N, 3, 16, 16) -> (N, 10)."""
    net = Network(channels=3)
    tensor = net.add("Relu", "relu_1", [net.conv("conv_1", "input", 16, 3)])
    tensor = net.add("MaxPool", "pool", [tensor], kernel_shape=[2, 2], strides=[2, 2])
    for block in (1, 2):
        inner = net.add("Relu", f"relu_{block}a", [net.conv(f"conv_{block}a", tensor, 16, 16)])
        inner = net.conv(f"conv_{block}b", inner, 16, 16)
        tensor = net.add("Relu", f"relu_{block}b", [net.add("Add", f"add_{block}", [inner, tensor])])
    tensor = net.add("GlobalAveragePool", "mean", [tensor])
    net.gemm("fc", net.add("Flatten", "flatten", [tensor]), 10, 16)
    return net.save(path, 10)


def save_choice(path):
    """Save conv, relu, mean, flatten, an If on the sign of their sum, and fc: (N, 1, 16, 16) -> (N, 10)."""
    net = Network()
    tensor = net.add("Relu", "relu", [net.conv("conv", "input", 16, 1)])
    tensor = net.add("Flatten", "flatten", [net.add("GlobalAveragePool", "mean", [tensor])])
    total = net.add("ReduceSum", "total", [tensor], keepdims=0)
    positive = net.add("Greater", "positive", [total, net.constant("zero", np.float32(0))])
    branches = {"then_branch": _branch("Tanh", tensor), "else_branch": _branch("Neg", tensor)}
    net.gemm("fc", net.add("If", "choice", [positive], **branches), 10, 16)
    return net.save(path, 10)


def _branch(op_type, source):
    """Return a graph of two nodes, as an If has them, that reads a tensor of the graph around it."""
    nodes = [
        helper.make_node(op_type, [source], [f"{op_type}_1"], f"{op_type}_first"),
        helper.make_node(op_type, [f"{op_type}_1"], [f"{op_type}_2"], f"{op_type}_second"),
    ]
    output = helper.make_tensor_value_info(f"{op_type}_2", TensorProto.FLOAT, None)
    return helper.make_graph(nodes, op_type, [], [output])


def images_for(path, count=64, seed=1):
    """Return random inputs (count, C, H, W) float32 for a model file."""
    shape = [axis.dim_value for axis in onnx.load(path).graph.input[0].type.tensor_type.shape.dim][1:]
    return np.random.default_rng(seed).random((count, *shape), dtype=np.float32) - 0.3


def make_variants(fp32_path):
    """Preprocess and quantize a model file every way; return ({variant: file} with "fp32", preprocessed file, ranges)."""
    folder = fp32_path.parent
    preprocessed = folder.parent / "preprocessed.onnx"
    preprocess(fp32_path, preprocessed)
    paths, ranges = {"fp32": fp32_path}, collect_ranges(preprocessed, lambda: [images_for(fp32_path)], method="MinMax")
    for name, recipe in RECIPES.items():
        paths[name] = folder / f"{name}.onnx"
        # the ranges of all tensors serve a recipe that quantizes fewer
        quantize(preprocessed, paths[name], ranges, **recipe)
    paths["dynamic"] = folder / "dynamic.onnx"
    quantize_dynamic(preprocessed, paths["dynamic"], weight_type="QUInt8")
    return paths, preprocessed, ranges
