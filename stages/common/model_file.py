"""A model file as somebody made it: its real inputs, its opset, and what is put right before it is quantized."""

import onnx

LEAST_OPSET = 13  # a scale for every output channel, in QDQ form, needs the `axis` that DequantizeLinear has from 13 on


def real_inputs(graph):
    """Return a GraphProto's inputs without the weights that old exporters list among them."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def opset_of(model):
    """Return the version of ONNX's own operators that a ModelProto asks for; 0 if it uses none."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def with_weights_apart(model):
    """Return whether `model`, a ModelProto, listed weights as inputs; they are taken off its inputs, in place.

    A weight that a caller may replace is none that a quantizer can round.
    """
    inputs = real_inputs(model.graph)
    if len(inputs) == len(model.graph.input):
        return False
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)  # before it a weight had to be an input
    return True


def with_least_opset(model):
    """Return a ModelProto with at least LEAST_OPSET: itself, or converted. Raises ValueError if it cannot be."""
    if opset_of(model) >= LEAST_OPSET:
        return model
    try:
        converted = onnx.version_converter.convert_version(model, LEAST_OPSET)
        onnx.checker.check_model(converted, full_check=True)
    except Exception as error:  # the converter raises RuntimeError, the checker its own, shape inference a third
        raise ValueError(" ".join(str(error).split())[:200]) from None
    return converted
