"""A swap of ReLU and MaxPool changes no value, and keeps onnxruntime from pooling 8-bit values in NCHW at the border."""

import platform

import numpy as np
import onnx
import pytest
from small_models import U8S8, images_for, save_plain, save_residual

from stages.common.calibration.collection import collect_ranges
from stages.common.calibration.graph_rewrites import swap_pools, swappable_pools
from stages.common.calibration.static_quantization import quantize
from stages.common.preprocessing import preprocess
from stages.common.profiling.optimized_graph import save_optimized
from stages.common.search.space import Shape, Space
from stages.common.session.runtime import open_session
from stages.common.workspace import UserError

on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the kernels are x86's")


@pytest.fixture(scope="module", params=[save_plain, save_residual])
def network(request, tmp_path_factory):
    """A preprocessed file, its input and the ranges on it."""
    folder = tmp_path_factory.mktemp("network")
    fp32 = request.param(folder / "fp32.onnx")
    preprocess(fp32, folder / "preprocessed.onnx")
    images = images_for(fp32, 16)
    return (
        folder / "preprocessed.onnx",
        images,
        collect_ranges(folder / "preprocessed.onnx", lambda: [images], method="MinMax"),
    )


def run(path, images):
    session = open_session(path, threads=1)
    return session.run(None, {session.get_inputs()[0].name: images})[0]


def test_swapping_every_pool_changes_no_bit_of_the_logits(network, tmp_path):
    path, images, _ = network
    model = onnx.load(path)
    swap_pools(model, swappable_pools(model))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, tmp_path / "swapped.onnx")
    assert [node.op_type for node in model.graph.node] != [node.op_type for node in onnx.load(path).graph.node]
    np.testing.assert_array_equal(run(tmp_path / "swapped.onnx", images), run(path, images))


def test_a_swap_where_all_is_quantized_is_right_too_with_the_ranges_that_were_found_before_it(network, tmp_path):
    """What the range of the tensor in between clips is negative, and the ReLU behind it clips that anyway."""
    path, images, ranges = network
    quantize(path, tmp_path / "int8.onnx", ranges, **U8S8, swap_relu_maxpool=list(swappable_pools(onnx.load(path))))
    step = (ranges["logits"][1] - ranges["logits"][0]) / 255
    assert 0 < np.abs(run(tmp_path / "int8.onnx", images) - run(path, images)).max() < 12 * step


def border(network, folder, *, swap):
    """Return the optimized graph's nodes of the recipe that leaves the first layer in floating point, with types."""
    path, _, ranges = network
    space = Space(onnx.load(path))
    recipe = space.recipe(Shape(in_float=(space.layers[0],), swap=swap))
    assert ("swap_relu_maxpool" in recipe) == swap
    quantize(path, folder / "border.onnx", ranges, **recipe)
    graph = save_optimized(folder / "border.onnx", folder / "optimized.onnx", threads=1).graph
    made_by = {tensor: node for node in graph.node for tensor in node.output}
    pools = [(made_by[node.input[0]].op_type, node.domain) for node in graph.node if "MaxPool" in node.op_type]
    quantize_after = [made_by[node.input[0]].op_type for node in graph.node if node.op_type == "QuantizeLinear"]
    return pools, quantize_after


@on_x86
def test_with_the_swap_the_border_pool_is_float_and_blocked_and_its_values_are_quantized_after_it(network, tmp_path):
    """The recipe that makes int8 pay where the first convolution is slow in integers."""
    pools, quantize_after = border(network, tmp_path, swap=True)
    assert pools[0] == ("Conv", "com.microsoft.nchwc")
    assert not [pool for pool in pools if pool[0] == "QuantizeLinear"]
    assert quantize_after == ["ReorderOutput"]


@on_x86
def test_without_the_swap_onnxruntime_moves_the_quantization_above_the_pool(network, tmp_path):
    """If this fails, onnxruntime has changed its mind and the swap is not needed any more."""
    pools, _ = border(network, tmp_path, swap=False)
    assert pools[0] == ("QuantizeLinear", "")


def parsed(text):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}')
    for place, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{place}"
    return model


REFUSED = {
    "a ReLU that two nodes read": "g (float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y, float[1, 1, 4, 4] z) { r = Relu (x) y = MaxPool <kernel_shape = [2, 2]> (r) z = Neg (r) }",
    "a ReLU that is an output": "g (float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y, float[1, 1, 4, 4] r) { r = Relu (x) y = MaxPool <kernel_shape = [2, 2]> (r) }",
    "indices that are asked for": "g (float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y, int64[1, 1, 3, 3] i) { r = Relu (x) y, i = MaxPool <kernel_shape = [2, 2]> (r) }",
    "no ReLU": "g (float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y) { r = Neg (x) y = MaxPool <kernel_shape = [2, 2]> (r) }",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_a_pool_that_cannot_be_swapped_is_refused_by_name(text):
    with pytest.raises(
        UserError, match=r"^swap_relu_maxpool names 'MaxPool_1', which is no MaxPool that alone reads a ReLU: "
    ):
        swap_pools(parsed(text), ["MaxPool_1"])


def test_the_pools_that_can_be_swapped_are_named_instead(network):
    model = onnx.load(network[0])
    with pytest.raises(UserError, match=rf"it can name {', '.join(sorted(swappable_pools(model)))}\.$"):
        swap_pools(model, ["conv_1"])


def test_a_file_without_swaps_is_quantized_from_the_same_bytes_as_before(network, tmp_path):
    """The key is for those who ask for it: recipes without it make the files that they always made."""
    path, _, ranges = network
    for name, swaps in (("without", {}), ("with none", {"swap_relu_maxpool": []})):
        quantize(path, tmp_path / f"{name}.onnx", ranges, **U8S8, **swaps)
    assert (tmp_path / "without.onnx").read_bytes() == (tmp_path / "with none.onnx").read_bytes()
