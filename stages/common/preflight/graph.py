"""What keeps a model file of the user's own from being quantized, read from its graph alone: nothing is run.

Every function yields sentences: what was expected, what is there, what to do. `where` is the file's path in them.
"""

import difflib
import os
from pathlib import Path

import numpy as np
from onnx import AttributeProto, TensorProto, external_data_helper, numpy_helper

from stages.common.model_file import LEAST_OPSET, opset_of, real_inputs, with_least_opset
from stages.common.preflight.arrays import replace_command

OLDEST_OPSET = 7  # that onnxruntime runs
FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
INPUT_TYPES = {TensorProto.FLOAT: "float32", TensorProto.UINT8: "uint8"}
PASSED_ON = ("Identity", "Cast", "Squeeze", "Reshape", "Flatten")  # behind an ArgMax they change no number
LARGEST_FILE = 2**31  # bytes: what protobuf can hold


def graph_mistakes(model, path, where, *, dtype, output):
    """Yield all that is wrong with `model`, the ModelProto of the file at `path`, loaded without its external data.

    `dtype`, `output`: `input.dtype` and `evaluate.output` of the model in params.yaml.
    """
    yield from _external_data(model, path, where)
    yield from _made_by_others(model, where)
    yield from _in_training(model, where)
    yield from _types(model, where)
    yield from _input(model, where, dtype)
    yield from _output(model, where, output)
    yield from _opset(model, where)


def weights_of(graph):
    """Yield (name, TensorProto) of all constants of a GraphProto: initializers, and values of Constant nodes."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.type == AttributeProto.TENSOR:
                yield node.output[0], attribute.t


def weight_mistakes(model, where):
    """Yield a sentence for every constant that holds NaN or infinity."""
    for name, tensor in weights_of(model.graph):
        if tensor.data_type == TensorProto.FLOAT and not external_data_helper.uses_external_data(tensor):
            bad = int((~np.isfinite(numpy_helper.to_array(tensor))).sum())
            if bad:
                yield f"{where} has {bad} non-finite values in its weights {name!r}: train or export it again"


def one_file_command(where):
    """Return the command that puts a model's external data into its own file."""
    return replace_command(where, "import onnx", f"onnx.save(onnx.load({where!r}), {{new!r}})")


def _external_data(model, path, where):
    files = {}
    for _, tensor in weights_of(model.graph):
        if external_data_helper.uses_external_data(tensor):
            location = external_data_helper.ExternalDataInfo(tensor).location
            files.setdefault(location, tensor.name)
    folder = Path(path).parent.resolve()  # not the file's own, which may be a link into DVC's cache
    for location, tensor in files.items():
        file = Path(os.path.normpath(folder / location))
        if not file.is_relative_to(folder):
            yield f"{where} keeps weights ({tensor!r}) in {location}, outside of its folder: export it anew, as one file"
        elif not file.is_file():
            yield f"{where} keeps weights ({tensor!r}) in {location}, which is not beside it: put it there, then make one file of both with `{one_file_command(where)}`"
        elif file.stat().st_size >= LARGEST_FILE:
            yield f"{where} keeps {file.stat().st_size:,} bytes of weights in {location}, and one ONNX file holds less than 2 GB: a model of this size cannot be measured here"
        else:
            yield f"{where} keeps its weights in {location}, which DVC does not follow: make one file of both with `{one_file_command(where)}`, then delete {location}"


def is_quantized(op_type):
    """Return whether an operator only occurs in a quantized model."""
    return op_type in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QGemm", "QAttention") or any(
        part in op_type for part in ("QLinear", "Integer", "NBits", "DynamicQuantize")
    )


def _made_by_others(model, where):
    """Yield whether the model was quantized, or optimized by onnxruntime, before."""
    quantized = [node for node in model.graph.node if is_quantized(node.op_type)]
    if quantized:
        yield f"{where} is already quantized ({_first(quantized)}): put the float32 model there"
    fused = [node for node in model.graph.node if node.domain.startswith("com.microsoft") and node not in quantized]
    if fused:
        yield f"{where} is already optimized by onnxruntime ({_first(fused)} of {fused[0].domain}), which a quantizer cannot read: put the model there as it was exported"


def _in_training(model, where):
    """Yield whether the model draws at random or looks at its batch, as in training: it has no scores of its own then."""
    true = {name for name, tensor in weights_of(model.graph) if _is_true(tensor)}
    left = [
        node
        for node in model.graph.node
        if (node.op_type == "Dropout" and node.input[2:3] and node.input[2] in true)
        or (
            node.op_type == "BatchNormalization"
            and any(part.name == "training_mode" and part.i for part in node.attribute)
        )
    ]
    if left:
        yield f"{where} was exported in training mode ({_first(left)}): export it in evaluation mode, after `model.eval()` in PyTorch"


def _is_true(tensor):
    """Return whether a TensorProto is the one truth value "true"."""
    return tensor.data_type == TensorProto.BOOL and not tensor.dims and bool(numpy_helper.to_array(tensor))


def _first(nodes):
    name = f" {nodes[0].name!r}" if nodes[0].name else ""
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"{nodes[0].op_type}{name}{more}"


def _types(model, where):
    found = [(name, tensor) for name, tensor in weights_of(model.graph) if tensor.data_type in FLOATS and tensor.dims]
    if found:
        name, tensor = found[0]
        kind = TensorProto.DataType.Name(tensor.data_type).lower().replace("double", "float64")
        yield f"{where} has weights in {kind} ({name!r}{f' and {len(found) - 1} more' if len(found) > 1 else ''}), and the baseline is float32: export it in float32"


def _input(model, where, dtype):
    inputs = real_inputs(model.graph)
    if len(inputs) != 1:
        names = ", ".join(repr(value.name) for value in inputs) or "none"
        yield f"{where} has {len(inputs)} inputs ({names}), and one is expected, a batch of images: export it with the others as constants"
        return
    [value] = inputs
    kind = value.type.tensor_type.elem_type
    if kind not in INPUT_TYPES:
        name = TensorProto.DataType.Name(kind).lower().replace("double", "float64")
        yield f"{where} takes {name} (input {value.name!r}), and float32 or uint8 is expected: export it for float32"
    elif INPUT_TYPES[kind] != dtype:
        fix = "write `dtype: uint8` there" if dtype == "float32" else "take it out"
        yield f"{where} takes {INPUT_TYPES[kind]} (input {value.name!r}), and `input.dtype` of the model is {dtype}: {fix}"
    if value.type.tensor_type.HasField("shape") and len(value.type.tensor_type.shape.dim) < 2:
        yield f"{where} takes an input {value.name!r} without a batch axis: export it for a batch of images"


def _output(model, where, output):
    values = {value.name: value for value in model.graph.output}
    if output is None and len(values) > 1:
        yield f"{where} has {len(values)} outputs: write the one to judge as `evaluate.output` of the model, one of {', '.join(values)}"
        return
    if output is not None and output not in values:
        near = difflib.get_close_matches(output, values, n=1)
        yield f"{where} has no output {output!r}, which `evaluate.output` names: " + (
            f"did you mean `{near[0]}`?" if near else f"it has {', '.join(values)}"
        )
        return
    name = output or next(iter(values), None)
    if name is None or values[name].type.WhichOneof("value") != "tensor_type":
        yield f"{where} gives no tensor in its output {name!r}: export it with the scores of the classes as an output"
        return
    before = _argmax_behind(model.graph, name)
    if before:
        inputs = [value.name for value in real_inputs(model.graph)]
        yield (
            f"{where} ends in ArgMax, so that its output {name!r} is a class and not a score for each: cut it off with "
            f"`{replace_command(where, 'import onnx.utils', f'onnx.utils.extract_model({where!r}, {{new!r}}, {inputs}, [{before!r}])')}`"
        )
    elif values[name].type.tensor_type.elem_type not in (TensorProto.FLOAT, TensorProto.UNDEFINED):
        kind = TensorProto.DataType.Name(values[name].type.tensor_type.elem_type).lower().replace("double", "float64")
        yield f"{where} gives {kind} in its output {name!r}, and float32 is expected, a score for each class: export it so"


def _argmax_behind(graph, output):
    """Return the tensor that an ArgMax behind `output` reads, or None if no ArgMax makes it."""
    makers = {name: node for node in graph.node for name in node.output}
    node = makers.get(output)
    while node is not None and node.op_type in PASSED_ON:
        node = makers.get(node.input[0])
    return node.input[0] if node is not None and node.op_type == "ArgMax" else None


def _opset(model, where):
    opset = opset_of(model)
    if opset < OLDEST_OPSET:
        yield f"{where} has opset {opset}, and onnxruntime runs {OLDEST_OPSET} and later: export it anew"
    elif opset < LEAST_OPSET and not any(
        external_data_helper.uses_external_data(t) for _, t in weights_of(model.graph)
    ):
        try:
            with_least_opset(model)
        except ValueError as error:
            yield f"{where} has opset {opset}, quantization needs {LEAST_OPSET}, and ONNX's converter cannot raise it ({error}): export it anew with opset {LEAST_OPSET} or later"


def fixed_shape(value):
    """Return an input's axes from a ValueInfoProto: a number where the file fixes one, else None; None if not known.

    Some exporters write -1 for a free axis.
    """
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [axis.dim_value if axis.dim_value > 0 else None for axis in value.type.tensor_type.shape.dim]
