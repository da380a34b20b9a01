"""Quantize a model with NNCF for OpenVINO, by its defaults; runs in the environment of toolkits.py.

Writes openvino-fp32.xml and openvino-nncf.xml into a folder.

    python -m stages.tools.quantize_openvino models/cnn/onnx/fp32.onnx calibration.npy folder
"""

import sys

import nncf
import numpy as np
import openvino


def main(onnx_path, calibration_path, folder):
    """`calibration_path` holds the model's input, (N, C, H, W) float32."""
    images = np.load(calibration_path, mmap_mode="r", allow_pickle=False)
    model = openvino.Core().read_model(onnx_path)
    openvino.save_model(model, f"{folder}/openvino-fp32.xml", compress_to_fp16=False)
    dataset = nncf.Dataset(
        images, lambda image: np.array(image[None])
    )  # one by one: all of them may not fit into memory
    quantized = nncf.quantize(model, dataset, subset_size=len(images))
    openvino.save_model(quantized, f"{folder}/openvino-nncf.xml", compress_to_fp16=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
