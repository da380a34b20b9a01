"""The graph that onnxruntime runs is mapped back to the layers of the original model."""

import platform

import onnx
import pytest
from small_models import make_variants, save_plain, save_residual

from stages.common.profiling.optimized_graph import Original, count_graph, group_layers, map_nodes, save_optimized
from stages.common.quantization import float_layers

on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the rule is of x86's kernels")


def read(fp32_path):
    """Return (Original, {variant: optimized ModelProto}, {variant: Nodes}, the layers with weights) of a model file."""
    paths, preprocessed, _ = make_variants(fp32_path)
    model = onnx.load(preprocessed)
    original, saved = Original.of(model), fp32_path.parent.parent / "optimized.onnx"
    graphs = {variant: save_optimized(path, saved, threads=1) for variant, path in paths.items()}
    return original, graphs, {name: map_nodes(graph, original) for name, graph in graphs.items()}, float_layers(model)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return read(save_plain(tmp_path_factory.mktemp("plain") / "onnx" / "fp32.onnx"))


@pytest.fixture(scope="module")
def residual(tmp_path_factory):
    return read(save_residual(tmp_path_factory.mktemp("residual") / "onnx" / "fp32.onnx"))


@pytest.mark.parametrize("network", ["plain", "residual"])
def test_every_node_of_every_variant_is_mapped(network, request):
    _, _, nodes, _ = request.getfixturevalue(network)
    assert [node for found in nodes.values() for node in found if node.kind == "other" or node.origin is None] == []


@pytest.mark.parametrize("network", ["plain", "residual"])
def test_every_convolution_is_found_once_as_a_convolution_in_every_variant(network, request):
    original, _, nodes, _ = request.getfixturevalue(network)
    expected = sorted(name for name, node in original.nodes.items() if node.op_type == "Conv")
    for found in nodes.values():
        assert sorted(node.origin for node in found if "Conv" in node.op_type) == expected


def test_an_activation_that_is_fused_in_one_variant_is_one_layer_with_its_convolution_in_all(plain):
    original, _, nodes, _ = plain
    layers = group_layers(original, nodes.values())
    assert any(node.op_type == "Relu" for node in nodes["dynamic"]), "a Relu of its own there"
    assert (layers["relu_1"], layers["relu_2"], layers["pool_1"]) == ("conv_1", "conv_2", "pool_1")


def test_an_addition_is_one_layer_with_the_convolution_that_it_is_fused_into_not_with_the_shortcut(residual):
    original, _, nodes, _ = residual
    layers = group_layers(original, nodes.values())
    assert (layers["add_1"], layers["relu_2b"]) == ("conv_1b", "conv_2b")


def test_conversions_belong_to_the_layer_whose_output_they_convert(plain):
    _, _, nodes, _ = plain
    where = [(node.kind, node.origin) for node in nodes["u8s8"] if node.kind != "layer"]
    assert where == [("quantize", "input"), ("layout", "input"), ("layout", "pool_2"), ("dequantize", "fc")]


def test_integer_and_float_layers_are_counted(plain):
    original, graphs, nodes, weighted = plain
    counts = {variant: count_graph(nodes[variant], graphs[variant], weighted, original) for variant in graphs}
    assert (counts["fp32"]["integer_layers"], counts["fp32"]["float_layers"]) == (0, 3)
    assert {(counts[name]["integer_layers"], counts[name]["float_layers"]) for name in counts if name != "fp32"} == {
        (3, 0)
    }


def test_pairs_are_left_only_where_a_tensor_goes_back_to_floating_point_within_the_network(plain):
    original, graphs, nodes, weighted = plain
    left = {name: count_graph(nodes[name], graphs[name], weighted, original)["quantize_pairs_left"] for name in graphs}
    assert (left["fp32"], left["u8s8"], left["qoperator"]) == (0, 0, 0)
    assert left["convgemm"] > 0


def convolutions(original):
    return [node for node in original.nodes.values() if node.op_type == "Conv"]


@on_x86
def test_signed_activations_leave_convolutions_of_a_residual_network_in_floating_point_unsigned_ones_none(residual):
    original, graphs, nodes, weighted = residual
    signed, unsigned = (count_graph(nodes[name], graphs[name], weighted, original) for name in ("s8s8", "u8s8"))
    assert signed["float_layers"] == signed["float_convolutions"] == 2
    assert unsigned["float_layers"] == unsigned["float_convolutions"] == 0
    assert signed["integer_convolutions"] + 2 == unsigned["integer_convolutions"] == len(convolutions(original))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("relu_1_out_nchwc", "relu_1"),  # named after a tensor
        ("fused conv_1", "conv_1"),
        ("conv_1_token_15", "conv_1"),
        ("conv_1_quant_output_scale_mul", "conv_1"),
        ("conv_1_outquant_scaled_output", "conv_1"),
        ("conv_10", None),  # another node, which is gone
        ("conv_1_7", None),
        ("ReorderOutput_token_3", None),
    ],
)
def test_a_name_is_traced_to_the_node_that_it_was_made_from(plain, text, found):
    assert plain[0].find(text) == found


def test_a_transpose_of_the_models_own_is_a_layer_not_a_layout_change(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[2, 3] x) => (float[3, 2] y) { y = Transpose (x) }'
    )
    model.graph.node[0].name = "turn"
    onnx.save(model, tmp_path / "model.onnx")
    graph = save_optimized(tmp_path / "model.onnx", tmp_path / "optimized.onnx", threads=1)
    assert [node.kind for node in map_nodes(graph, Original.of(model))] == ["layer"]


def test_a_network_without_node_names_is_mapped_as_well(tmp_path):
    path = save_plain(tmp_path / "onnx" / "fp32.onnx")
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, path)
    _, _, nodes, _ = read(path)
    assert [node for found in nodes.values() for node in found if node.kind == "other"] == []
