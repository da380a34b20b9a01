"""Files that other exporters write are prepared for quantization, and still compute the same."""

import numpy as np
import onnx
from onnx import helper
from own_models import CLASSES, Classifier, images_like

from stages.common.calibration.static_quantization import calibrate, quantize
from stages.common.preprocessing import preprocess
from stages.common.session.runtime import open_session

U8S8_CHANNELS = {"quant_format": "QDQ", "activation_type": "QUInt8", "weight_type": "QInt8", "per_channel": True}


def scores(path, images):
    """Return the output of a file, (N, classes)."""
    session = open_session(path, threads=1)
    return session.run(None, {session.get_inputs()[0].name: images})[0]


def flattened_by_its_own_shape(path):
    """Save a network that is flattened as PaddlePaddle exports it: the shape is put together along axis -1."""
    net = Classifier((2, 6, 6)).conv(8, 2, 3, 3)
    features = net.last
    shape = net.add("Shape").add("Slice", np.array([0]), np.array([1])).add("Concat", np.array([-1]), axis=-1).last
    net.nodes.append(helper.make_node("Reshape", [features, shape], ["flat"]))
    net.last = "flat"
    return net.dense(CLASSES, 8 * 36).save(path)


def test_a_graph_on_which_symbolic_shape_inference_gives_up_is_prepared_without_it(tmp_path):
    path = flattened_by_its_own_shape(tmp_path / "theirs.onnx")
    assert preprocess(path, tmp_path / "prepared.onnx") == ", without symbolic shape inference, which gave up"
    images = images_like((2, 6, 6), 5, seed=1)
    np.testing.assert_allclose(scores(tmp_path / "prepared.onnx", images), scores(path, images), atol=1e-6)


def test_a_dense_layer_of_matmul_and_add_is_quantized_per_channel(tmp_path):
    """Fused, its bias is a row (1, classes), on which onnxruntime's quantizer fails if it is left so."""
    net = Classifier((2, 6, 6)).conv(8, 2, 3, 3).add("GlobalAveragePool").add("Flatten")
    net.add("MatMul", net.normal(8, CLASSES)).add("Add", net.normal(1, CLASSES))
    path, prepared = net.save(tmp_path / "theirs.onnx"), tmp_path / "prepared.onnx"
    preprocess(path, prepared)
    assert [node.op_type for node in onnx.load(prepared).graph.node][-1] == "Gemm"  # what the test is about
    images = images_like((2, 6, 6), 20, seed=1)
    expected = scores(path, images)
    np.testing.assert_allclose(scores(prepared, images), expected, atol=1e-6)
    np.save(tmp_path / "images.npy", images)
    ranges = calibrate(prepared, tmp_path / "images.npy", np.arange(20), {}, batch_size=20, method="MinMax")
    assert quantize(prepared, tmp_path / "int8.onnx", ranges, **U8S8_CHANNELS) == (2, 2)
    assert np.abs(scores(tmp_path / "int8.onnx", images) - expected).max() < 0.05 * np.ptp(expected)
