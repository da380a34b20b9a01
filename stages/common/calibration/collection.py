"""The calibration set, and the activation ranges that onnxruntime's calibrators find on it, batch by batch."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    TensorData,
    TensorsData,
    create_calibrator,
    save_tensors_data,
)

from stages.common.calibration.histograms import check_range, histogram_ranges
from stages.common.calibration.pieces import map_pieces
from stages.common.quantization import LAYER_TYPES
from stages.common.session.model_io import input_of, parts
from stages.common.workspace import UserError


def draw_indices(*, seed, images, available):
    """Return the indices of the calibration images, (images,) int64: drawn without repetition, ascending."""
    if images > available:
        raise UserError(f"calibrate.images is {images} and there are {available} training images: ask for fewer.")
    return np.sort(np.random.default_rng(seed).choice(available, images, replace=False))


class Reader(CalibrationDataReader):
    """Batches of a model's only input, in the form that onnxruntime's calibrators ask for."""

    def __init__(self, name, batches):
        self.name = name
        self.batches = iter(batches)

    def get_next(self):
        return next(({self.name: batch} for batch in self.batches), None)


def open_calibrator(model_path, *, method, op_types=None, **options):
    """Return a calibrator of onnxruntime whose session has one thread.

    `method` is a name of onnxruntime's CalibrationMethod, `options` are create_calibrator's; `op_types` are the operator
    types to be quantized (all of onnxruntime's if None), which decides which tensors are looked at.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/augmented.onnx"
        model = Path(shutil.copy(model_path, folder))  # create_calibrator writes a file beside the model
        calibrator = create_calibrator(
            model, op_types, path, calibrate_method=CalibrationMethod[method], extra_options=options
        )
        settings = onnxruntime.SessionOptions()
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # every tensor exists
        # The calibrator's own session has a thread a core. From three on, the sums of a convolution depend on the
        # number of threads and on the size of the batch.
        settings.intra_op_num_threads = 1
        calibrator.infer_session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return calibrator


def collect_ranges(model_path, batches, *, method, op_types=None, **options):
    """Return {tensor: (lowest, highest)} as float32 over all batches of the model's input.

    `batches` is a function that returns them, since a histogram needs them twice; the other arguments are those of
    `open_calibrator`. Only a moving average depends on how the images are cut into batches: it is one over batches.
    """
    calibrator = open_calibrator(model_path, method=method, op_types=op_types, **options)
    if method == "MinMax":
        collect_minmax(calibrator, batches(), whole=options.get("moving_average", False))
        found = {tensor: data.range_value for tensor, data in calibrator.compute_data().items()}
    else:
        found = histogram_ranges(calibrator, batches)
    ranges = {}
    for tensor, bounds in sorted(found.items()):
        check_range(tensor, bounds)
        low, high = (np.float32(np.ravel(bound)[0]) for bound in bounds)
        ranges[tensor] = (low + np.float32(0), high + np.float32(0))  # -0.0, which depends on the order, becomes 0.0
    return ranges


def collect_minmax(calibrator, batches, *, whole):
    """Feed the batches to a MinMax calibrator, several pieces at a time unless each is to stay `whole`.

    What a piece gives goes to the calibrator at once and in order, as its own collect_data would have it.
    """
    session = calibrator.infer_session
    name, fixed = input_of(session)

    def run_piece(piece):
        [(filled, _)] = parts(piece, fixed)
        return session.run(None, {name: filled})

    for outputs in map_pieces(run_piece, session, batches, whole=whole):
        calibrator.intermediate_outputs.append(outputs)
        calibrator.compute_data()
        calibrator.clear_collected_data()


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
