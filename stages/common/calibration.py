"""The calibration set, and the activation ranges that onnxruntime's calibrators find on it, batch by batch."""

import tempfile
from pathlib import Path

import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    TensorData,
    TensorsData,
    create_calibrator,
    save_tensors_data,
)

from stages.common.quantization import LAYER_TYPES
from stages.common.workspace import UserError


def draw_indices(*, seed, images, available):
    """Return the indices of the calibration images, (images,) int64: drawn without repetition, ascending."""
    if images > available:
        raise UserError(f"calibrate.images is {images} and there are {available} training images: ask for fewer.")
    return np.sort(np.random.default_rng(seed).choice(available, images, replace=False))


class OneBatch(CalibrationDataReader):
    """A reader that gives one batch. Collecting batch by batch keeps memory independent of the number of batches."""

    def __init__(self, name, batch):
        self.rest = [{name: batch}]

    def get_next(self):
        return self.rest.pop() if self.rest else None


def collect_ranges(model_path, batches, *, method, op_types=None):
    """Return {tensor: (lowest, highest)} as float32 over all batches of the model's input.

    `method` is a name of onnxruntime's CalibrationMethod; `op_types` are the operator types to be quantized (all of
    onnxruntime's if None), which decides which tensors are looked at.
    """
    with tempfile.TemporaryDirectory() as folder:
        calibrator = create_calibrator(
            Path(model_path), op_types, f"{folder}/augmented.onnx", calibrate_method=CalibrationMethod[method]
        )
        name = calibrator.infer_session.get_inputs()[0].name
        for batch in batches:
            calibrator.collect_data(OneBatch(name, batch))
        data = calibrator.compute_data()
    return {
        tensor: tuple(np.float32(np.ravel(bound)[0]) for bound in found.range_value)
        for tensor, found in sorted(data.items())
    }


def save_ranges(ranges, path):
    """Write ranges in onnxruntime's cache format, which quantize_static reads in place of calibrating."""
    data = {name: TensorData(lowest=np.asarray(low), highest=np.asarray(high)) for name, (low, high) in ranges.items()}
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, data), path)


def check_ranges_belong(ranges, model, model_path, op_types=None):
    """Raise UserError unless `ranges` were found on `model`, a ModelProto, for the operator types to be quantized.

    A range of a tensor that is not there and a layer whose input has no range both tell of another graph.
    """
    tensors = {name for node in model.graph.node for name in (*node.input, *node.output)}
    for name in ranges:
        if name not in tensors:
            raise UserError(
                f"the ranges have tensor {name!r}, which {model_path} does not: calibrate and quantize the same preprocessed file."
            )
    for node in model.graph.node:
        if node.op_type in LAYER_TYPES and (not op_types or node.op_type in op_types) and node.input[0] not in ranges:
            raise UserError(
                f"node {node.name!r} reads tensor {node.input[0]!r}, which has no range: calibrate and quantize the same preprocessed file."
            )
