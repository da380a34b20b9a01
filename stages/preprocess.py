"""Prepare the fp32 model for quantization: shape inference and onnxruntime's basic graph clean-up.

The file that was given stays as it is: it is the baseline (stages/common/preprocessing.py says what is changed).

    python -m stages.preprocess models/cnn/onnx/fp32.onnx models/cnn/preprocessed.onnx
"""

import logging

import onnx

from stages.common.preprocessing import preprocess
from stages.common.workspace import run_main, whole_file


def main(onnx_path, preprocessed_path):
    logging.getLogger().setLevel(logging.ERROR)
    with whole_file(preprocessed_path) as temporary:
        changes = preprocess(onnx_path, temporary)
        before, after = (len(onnx.load(path).graph.node) for path in (onnx_path, temporary))
    print(f"{onnx_path}: {before} nodes, {after} after preprocessing{changes}")


if __name__ == "__main__":
    run_main(main)
