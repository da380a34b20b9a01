"""Prepare the fp32 model for quantization: shape inference and onnxruntime's basic graph clean-up.

What the quantizer needs is put right first: an opset that has a scale for every channel, weights that are no inputs.
The file that was given stays as it is: it is the baseline.

python -m stages.preprocess models/cnn/onnx/fp32.onnx models/cnn/preprocessed.onnx
"""

import logging
import tempfile

import onnx
from onnxruntime.quantization.shape_inference import quant_pre_process

from stages.common.model_file import opset_of, with_least_opset, with_weights_apart
from stages.common.workspace import UserError, run_main, whole_file


def preprocess(onnx_path, preprocessed_path):
    """Run quant_pre_process from one file into another; return what was put right before, in words.

    Raises UserError if the opset cannot be raised, or if onnxruntime cannot infer the shapes.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, changes = put_right(onnx_path, f"{folder}/model.onnx")
            quant_pre_process(str(source), str(preprocessed_path))
    except ImportError as error:
        raise UserError(
            f"quant_pre_process needs a package that is missing ({error}): install requirements.txt."
        ) from None
    except UserError:
        raise
    except Exception as error:  # onnxruntime raises plain Exception where shape inference cannot finish
        raise UserError(f"quant_pre_process failed on {onnx_path}: {' '.join(str(error).split())}.") from error
    name_nodes(preprocessed_path)
    return changes


def put_right(onnx_path, path):
    """Return (a file that can be quantized, what was changed, in words): `onnx_path`, or its copy with the changes at `path`."""
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


def name_nodes(path):
    """Name the nodes of a model file that have no name, or another's, after their first output.

    Recipes exclude nodes, and explanations speak of layers, by name.
    """
    model, taken, renamed = onnx.load(path), set(), False
    for node in model.graph.node:
        if not node.name or node.name in taken:
            node.name, renamed = node.output[0], True
        taken.add(node.name)
    if renamed:
        onnx.save(model, path)


def main(onnx_path, preprocessed_path):
    logging.getLogger().setLevel(logging.ERROR)
    with whole_file(preprocessed_path) as temporary:
        changes = preprocess(onnx_path, temporary)
        before, after = (len(onnx.load(path).graph.node) for path in (onnx_path, temporary))
    print(f"{onnx_path}: {before} nodes, {after} after preprocessing{changes}")


if __name__ == "__main__":
    run_main(main)
