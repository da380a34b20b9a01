"""Prepare the fp32 model for quantization: shape inference and onnxruntime's basic graph clean-up.

python -m stages.preprocess models/cnn/onnx/fp32.onnx models/cnn/preprocessed.onnx
"""

import logging

import onnx
from onnxruntime.quantization.shape_inference import quant_pre_process

from stages.common.workspace import UserError, run_main, whole_file


def preprocess(onnx_path, preprocessed_path):
    """Run quant_pre_process from one file into another. Raises UserError if onnxruntime cannot infer the shapes."""
    try:
        quant_pre_process(str(onnx_path), str(preprocessed_path))
    except ImportError as error:
        raise UserError(
            f"quant_pre_process needs a package that is missing ({error}): install requirements.txt."
        ) from None
    except Exception as error:  # onnxruntime raises plain Exception where shape inference cannot finish
        raise UserError(f"quant_pre_process failed on {onnx_path}: {' '.join(str(error).split())}.") from error
    name_nodes(preprocessed_path)


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
        preprocess(onnx_path, temporary)
        before, after = (len(onnx.load(path).graph.node) for path in (onnx_path, temporary))
    print(f"{onnx_path}: {before} nodes, {after} after preprocessing")


if __name__ == "__main__":
    run_main(main)
