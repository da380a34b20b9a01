"""The fp32 model made ready for quantization: shape inference and onnxruntime's basic graph clean-up.

Around them stands what the quantizer needs besides: an opset that has a scale for every channel, weights that are no
inputs, a name for every node.
"""

import tempfile

import onnx
from onnxruntime.quantization.shape_inference import quant_pre_process

from stages.common.model_file import opset_of, with_least_opset, with_weights_apart
from stages.common.workspace import UserError


def preprocess(onnx_path, preprocessed_path):
    """Run quant_pre_process from one file into another; return what was put right before, in words.

    Raises UserError if the opset cannot be raised, or if onnxruntime cannot infer the shapes.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, changes = put_right(onnx_path, f"{folder}/model.onnx")
            changes += infer_shapes(source, preprocessed_path)
    except ImportError as error:
        raise UserError(
            f"quant_pre_process needs a package that is missing ({error}): install requirements.txt."
        ) from None
    except UserError:
        raise
    except Exception as error:  # onnxruntime raises plain Exception where shape inference cannot finish
        raise UserError(f"quant_pre_process failed on {onnx_path}: {' '.join(str(error).split())}.") from error
    tidy(preprocessed_path)
    return changes


def infer_shapes(source, preprocessed_path):
    """Run quant_pre_process; return what was left out, in words.

    onnxruntime's symbolic inference gives up on graphs that run well (a Concat of shapes along axis -1, as PaddlePaddle
    exports it, trips an assertion); ONNX's own inference, the second step, goes on without it.
    """
    try:
        quant_pre_process(str(source), str(preprocessed_path))
    except ImportError:
        raise
    except Exception:  # onnxruntime raises AssertionError, KeyError, plain Exception ...
        quant_pre_process(str(source), str(preprocessed_path), skip_symbolic_shape=True)
        return ", without symbolic shape inference, which gave up"
    return ""


def put_right(onnx_path, path):
    """Return (a file that can be quantized, what was changed, in words): `onnx_path`, or its changed copy at `path`."""
    model, changes = onnx.load(onnx_path), ""
    if with_weights_apart(model):
        changes += ", weights taken off the inputs"
    try:
        raised = with_least_opset(model)
    except ValueError as error:
        raise UserError(
            f"{onnx_path} has opset {opset_of(model)}, which cannot be raised to what quantization needs ({error}): export it anew."
        ) from None
    if raised is not model:
        changes += f", opset {opset_of(model)} raised to {opset_of(raised)}"
    if changes:
        onnx.save(raised, path)
    return path if changes else onnx_path, changes


def tidy(path):
    """Name the nodes of a preprocessed model file, and make Gemm biases vectors; the file stays as it is if all are."""
    model = onnx.load(path)
    if name_nodes(model.graph) + flatten_biases(model.graph):
        onnx.save(model, path)


def name_nodes(graph):
    """Name the nodes of a GraphProto that have no name, or another's, after their first output; return how many.

    Recipes exclude nodes, and explanations speak of layers, by name.
    """
    taken, renamed = set(), 0
    for node in graph.node:
        if not node.name or node.name in taken:
            node.name, renamed = node.output[0], renamed + 1
        taken.add(node.name)
    return renamed


def flatten_biases(graph):
    """Make the biases (1, N) of a GraphProto's Gemm nodes (N,), which adds the same numbers; return how many.

    onnxruntime makes such biases when it fuses MatMul and Add, and then fails to quantize them per channel.
    """
    readers = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            readers.setdefault(name, []).append((node.op_type, place))
    flat = 0
    for tensor in graph.initializer:
        if len(tensor.dims) == 2 and tensor.dims[0] == 1 and set(readers.get(tensor.name, [])) == {("Gemm", 2)}:
            del tensor.dims[0]
            flat += 1
    return flat
