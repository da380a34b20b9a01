"""Quantize a model with Olive's static pass for ONNX, by its defaults; runs in the environment of toolkits.py.

Writes olive-static.onnx into a folder.

    python -m stages.tools.quantize_olive models/cnn/onnx/fp32.onnx calibration.npy folder
"""

import shutil
import sys

import numpy as np
import onnx
from olive.data.config import DataComponentConfig, DataConfig
from olive.data.registry import Registry
from olive.model import ONNXModelHandler
from olive.passes.olive_pass import create_pass_from_dict
from olive.passes.onnx.quantization import OnnxStaticQuantization


class Images:
    """The calibration images in the form that Olive's data loader takes: ({input: image}, a label that nobody reads)."""

    def __init__(self, name, path):
        self.name, self.images = name, np.load(path, mmap_mode="r", allow_pickle=False)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {self.name: np.array(self.images[index])}, 0


def main(onnx_path, calibration_path, folder):
    """`calibration_path` holds the model's input, (N, C, H, W) float32."""
    name = onnx.load(onnx_path, load_external_data=False).graph.input[0].name

    @Registry.register_dataset()
    def calibration_images(**_):
        return Images(name, calibration_path)

    data = DataConfig(
        name="calibration",
        load_dataset_config=DataComponentConfig(type="calibration_images"),
        dataloader_config=DataComponentConfig(type="default_dataloader", params={"batch_size": 1}),
        pre_process_data_config=DataComponentConfig(type="skip_pre_process"),
        post_process_data_config=DataComponentConfig(type="skip_post_process"),
    )
    static = create_pass_from_dict(OnnxStaticQuantization, {"data_config": data}, disable_search=True)
    made = static.run(ONNXModelHandler(model_path=onnx_path), f"{folder}/olive")
    shutil.copyfile(made.model_path, f"{folder}/olive-static.onnx")


if __name__ == "__main__":
    main(*sys.argv[1:])
