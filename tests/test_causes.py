"""Causes name what the profile shows, the largest first, and nothing that it does not show."""

import platform

import numpy as np
import onnx
import pytest
from small_models import Network, images_for, make_variants, save_choice, save_plain, save_residual

from stages.common.explanation.causes import find_causes, ranked
from stages.common.explanation.layer_times import LayerTimes
from stages.common.explanation.shown_by_rounds import CONFIDENCE, median_interval
from stages.common.explanation.wording import describe
from stages.common.preflight.sections import FEWEST_PROFILED
from stages.common.profiling.optimized_graph import Node, Original, group_layers, map_nodes, save_optimized
from stages.common.profiling.profile import Profile, measure_profiles
from stages.common.quantization import float_layers

ROUNDS = 11


def profile_of(paths, preprocessed, *, batch=32, seconds=4):
    """Return (profiles, nodes, original, layers, weighted layers) of files with the layers of a preprocessed model."""
    model, folder = onnx.load(preprocessed), preprocessed.parent
    original, inputs = Original.of(model), {batch: images_for(preprocessed, batch)}
    graphs = {name: save_optimized(path, folder / "optimized.onnx", threads=1) for name, path in paths.items()}
    nodes = {name: map_nodes(graph, original) for name, graph in graphs.items()}
    profiles, _ = measure_profiles(paths, graphs, inputs, rounds=ROUNDS, seconds=seconds, threads=1)
    return profiles, nodes, original, group_layers(original, nodes.values()), float_layers(model)


def causes_of(paths, preprocessed, *, batch=32, seconds=4):
    """Return {variant: causes} of files, from a real profile."""
    profiles, nodes, original, layers, weighted = profile_of(paths, preprocessed, batch=batch, seconds=seconds)
    times = {name: LayerTimes(profiles[name, batch], nodes[name], layers) for name in paths}
    return {name: find_causes(name, batch, times, original, weighted) for name in paths}


@pytest.fixture
def plain(tmp_path):
    """A preprocessed model: conv_1, relu, pool, conv_2, relu, pool, flatten, fc."""
    return make_variants(save_plain(tmp_path / "onnx" / "fp32.onnx", width=32))[1]


@pytest.mark.timed
def test_the_layer_that_is_known_to_be_slower_is_named_first(plain, tmp_path):
    wide = save_plain(tmp_path / "wide.onnx", width=32, kernel=7)  # the same nodes, conv_2 with 7x7 for 3x3
    first = causes_of({"fp32": plain, "wide": wide}, plain)["wide"][0]
    assert (first["layer"], first["kind"]) == ("conv_2", "layer")
    assert first["microseconds"] > 0
    assert first["cause"].startswith("convolution conv_2: ")
    assert "slower as Conv on float" in first["cause"]


@pytest.mark.timed
def test_no_cause_is_invented_for_a_copy_of_the_baseline(plain):
    assert causes_of({"fp32": plain, "copy": plain}, plain)["copy"] == []


def test_the_baseline_has_no_causes(plain):
    assert causes_of({"fp32": plain}, plain, seconds=0.5)["fp32"] == []


def test_a_node_that_holds_graphs_is_a_layer_like_any_other(tmp_path):
    paths, preprocessed, _ = make_variants(save_choice(tmp_path / "onnx" / "fp32.onnx"))
    paths = {name: paths[name] for name in ("fp32", "u8s8")}
    profiles, nodes, original, layers, weighted = profile_of(paths, preprocessed, batch=4, seconds=0.1)
    times = {name: LayerTimes(profiles[name, 4], nodes[name], layers) for name in paths}
    assert [times[name].op_types(("choice", "layer")) for name in paths] == [["If"], ["If"]]
    assert all(cause["kind"] and cause["cause"] for cause in find_causes("u8s8", 4, times, original, weighted))


# From here on times are made, so that the right answer is known to the microsecond.


def times(nodes, *microseconds, wall=0.0, seed=0, noise=0.003):
    """Return LayerTimes whose nodes take the given times in every round, give or take some noise."""
    noise = np.random.default_rng(seed).normal(1, noise, (ROUNDS, len(nodes)))
    values = np.array(microseconds) * noise
    sums = values.sum(axis=1)
    profile = Profile(values, sums, sums + wall, sums.min(), sums.min() + wall, ["float"] * len(nodes), 0, 100)
    return LayerTimes(profile, nodes, {name: name for name in ("conv_1", "pool_1", "conv_2", "fc")})


def layer(name, op_type, source=None):
    return Node(name, op_type, "layer", name, "NCHWc", source)


FLOAT = [layer("conv_1", "Conv"), layer("pool_1", "MaxPool"), layer("conv_2", "Conv"), layer("fc", "Gemm")]
INTEGER = [
    Node("q", "QuantizeLinear", "quantize", "input", "", None),
    layer("conv_1", "QLinearConv"),
    layer("pool_1", "MaxPool"),
    layer("conv_2", "QLinearConv"),
    layer("fc", "QGemm"),
    Node("dq", "DequantizeLinear", "dequantize", "fc", "", None),
]
BASELINE = (52.0, 21.0, 254.0, 60.0)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return Original.of(onnx.load(save_plain(tmp_path_factory.mktemp("original") / "fp32.onnx")))


def find(original, **profiles):
    return find_causes("int8", 32, profiles, original, ["conv_1", "conv_2", "fc"])


def test_causes_are_ranked_by_the_microseconds_that_they_explain(original):
    found = find(original, fp32=times(FLOAT, *BASELINE), int8=times(INTEGER, 16, 408, 21, 109, 60, 20, seed=1))
    assert [cause["layer"] or cause["kind"] for cause in found] == ["conv_1", "conv_2", "dequantize", "quantize"]
    assert [cause["microseconds"] for cause in found] == pytest.approx([356, -145, 20, 16], abs=2)


def test_a_sentence_says_which_layer_how_much_and_how_it_ran(original):
    baseline, integer = times(FLOAT, *BASELINE, noise=0), times(INTEGER, 16, 408, 21, 109, 60, 20, noise=0)
    assert [cause["cause"] for cause in find(original, fp32=baseline, int8=integer)] == [
        "first convolution conv_1 with 1 input channel: 356 us slower as QLinearConv on float in NCHWc than as Conv on float in NCHWc",
        "convolution conv_2: 145 us faster as QLinearConv on float in NCHWc than as Conv on float in NCHWc",
        "1 DequantizeLinear, 20 us of it after fc: 20 us slower",
        "1 QuantizeLinear, 16 us of it of the input: 16 us slower",
    ]


def test_conversions_that_fp32_has_as_well_are_held_against_them(original):
    """Two Transposes can be faster than nothing: than the five conversions that they stand for."""
    reorders = [Node(f"r{place}", "ReorderOutput", "layout", "conv_1", "", None) for place in range(5)]
    transposes = [Node(f"t{place}", "Transpose", "layout", "input", "", None) for place in range(2)]
    baseline, integer = (
        times([*FLOAT, *reorders], *BASELINE, *[30] * 5, noise=0),
        times([*FLOAT, *transposes], *BASELINE, 20, 25, noise=0),
    )
    assert [cause["cause"] for cause in find(original, fp32=baseline, int8=integer)] == [
        "2 Transpose, 25 us of it of the input, where fp32 has 5: 105 us faster"
    ]


def test_what_the_trace_cannot_tell_apart_is_no_cause_whichever_file_the_nodes_are_in(original):
    """Half a microsecond a node: four nodes are one call's 1.6 us, which is more than a fiftieth of it."""
    others = [Node(f"n{place}", "Mul", "other", None, "", None) for place in range(4)]
    reorders = [Node(f"r{place}", "ReorderOutput", "layout", "conv_1", "", None) for place in range(4)]
    bare, few = times(FLOAT, 5, 5, 5, 5, noise=0), 1.6 / 4
    for nodes in (others, reorders):
        more = times([*FLOAT, *nodes], 5, 5, 5, 5, *[few] * 4, noise=0)
        assert find(original, fp32=bare, int8=more) == find(original, fp32=more, int8=bare) == []
        enough = times([*FLOAT, *nodes], 5, 5, 5, 5, *[2.0] * 4, noise=0)
        assert len(find(original, fp32=bare, int8=enough)) == len(find(original, fp32=enough, int8=bare)) == 1


def test_a_difference_within_the_noise_of_the_rounds_is_no_cause(original):
    baseline, noisy = times(FLOAT, *BASELINE), times(FLOAT, *BASELINE, seed=1)
    noisy.times["conv_2", "layer"] = noisy.times["conv_2", "layer"] + np.where(np.arange(ROUNDS) % 3, 60, -60)
    assert find(original, fp32=baseline, int8=noisy) == []


def test_a_disturbed_round_neither_makes_a_cause_nor_hides_one(original):
    baseline, slower = times(FLOAT, *BASELINE), times(FLOAT, 52, 21, 300, 60, seed=1)
    baseline.times["conv_2", "layer"][3] += 5000
    slower.times["pool_1", "layer"][7] += 5000
    assert [cause["layer"] for cause in find(original, fp32=baseline, int8=slower)] == ["conv_2"]


def test_layers_left_in_floating_point_are_held_against_the_variant_that_runs_them_in_integers(original):
    partly = times([INTEGER[0], *FLOAT], 1, 52, 21, 254, 60, seed=1)
    fully = times(INTEGER, 8, 60, 21, 109, 20, 3, seed=2)
    found = find(original, fp32=times(FLOAT, *BASELINE), int8=partly, full=fully)
    cause = next(cause for cause in found if cause["kind"] == "float-layers")
    assert cause["cause"].startswith("3 of 3 layers with weights in floating point")
    assert cause["cause"].endswith("than in integers in full")
    assert cause["layer"] == "", "no single layer is to blame"
    assert cause["microseconds"] == pytest.approx(52 + 254 + 60 - 60 - 109 - 20, abs=3)


def test_a_layer_that_is_gone_is_not_left_in_floating_point(original):
    gone = times([INTEGER[0], INTEGER[3]], 1, 109, seed=1)
    fully = times(INTEGER, 8, 60, 21, 109, 20, 3, seed=2)
    found = find(original, fp32=times(FLOAT, *BASELINE), int8=gone, full=fully)
    assert "float-layers" not in [cause["kind"] for cause in found]
    gone = times([INTEGER[0], FLOAT[0], FLOAT[2]], 1, 152, 254, seed=1)
    found = find(original, fp32=times(FLOAT, *BASELINE), int8=gone, full=fully)
    (cause,) = (cause for cause in found if cause["kind"] == "float-layers")
    assert cause["cause"].startswith("2 of 2 convolutions in floating point")


def test_layers_that_would_be_slower_in_integers_do_not_rank_first():
    """They are no difference to fp32, and no reason to be slow."""
    kinds = {"float-layers": -222, "layer": -150, "quantize": 30}
    causes = [{"kind": kind, "microseconds": microseconds} for kind, microseconds in kinds.items()]
    assert [cause["kind"] for cause in ranked(causes)] == ["layer", "quantize", "float-layers"]
    causes[0]["microseconds"] = 222
    assert ranked(causes)[0]["kind"] == "float-layers"


def test_a_copy_of_fp32_has_left_no_layers_in_floating_point(original):
    """It would read as if it were slower than itself."""
    copy, fully = times(FLOAT, *BASELINE, seed=1), times(INTEGER, 8, 60, 21, 109, 20, 3, seed=2)
    assert find(original, fp32=times(FLOAT, *BASELINE), int8=copy, full=fully) == []


def test_what_is_less_than_a_fiftieth_of_the_call_is_not_worth_a_sentence(original):
    baseline, slower = times(FLOAT, *BASELINE, noise=0), times(FLOAT, 52, 21, 260, 60, noise=0)
    assert find(original, fp32=baseline, int8=slower) == []


def test_time_outside_of_all_nodes_is_a_cause_of_its_own(original):
    found = find(original, fp32=times(FLOAT, *BASELINE), int8=times(FLOAT, *BASELINE, wall=100, seed=1))
    assert [(cause["kind"], cause["microseconds"]) for cause in found] == [("other", pytest.approx(100, abs=3))]


def test_a_profile_that_holds_more_than_its_call_says_nothing_of_the_time_outside(original):
    """It would be faster by more than the whole call takes."""
    quick, most = times(FLOAT, *BASELINE, wall=5), times(INTEGER, 16, 408, 21, 109, 60, 20, wall=-300, seed=1)
    for baseline, own in ((quick, most), (most, quick)):
        assert "other" not in [cause["kind"] for cause in find(original, fp32=baseline, int8=own)]


def test_the_interval_of_eleven_rounds_leaves_out_one_round_at_either_end():
    assert median_interval(np.arange(11.0)) == (1, 9)


def test_the_interval_of_few_rounds_is_their_range():
    assert median_interval(np.array([5.0, 1.0, 3.0])) == (1, 5)


def test_the_fewest_rounds_that_params_yaml_may_ask_for_are_the_fewest_that_can_show_a_cause():
    """All of them lie on one side of the median with probability 2 ** -rounds, on either side twice that."""
    assert 2 * 0.5**FEWEST_PROFILED <= 1 - CONFIDENCE < 2 * 0.5 ** (FEWEST_PROFILED - 1)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the rule is of x86's kernels")
def test_signed_inputs_are_given_as_the_reason_where_they_tell_float_and_integer_layers_apart(tmp_path):
    paths, preprocessed, _ = make_variants(save_residual(tmp_path / "onnx" / "fp32.onnx"))
    paths = {name: paths[name] for name in ("fp32", "s8s8", "u8s8")}
    profiles, nodes, original, layers, weighted = profile_of(paths, preprocessed, seconds=0.1)
    for (name, _), profile in profiles.items():  # the types are real, the times made: integers are quicker
        profile.nodes[:] = [300 if node.op_type == "Conv" else 100 for node in nodes[name]]
        profile.wall[:] = profile.sums[:] = profile.nodes.sum(axis=1)
    times = {name: LayerTimes(profiles[name, 32], nodes[name], layers) for name in paths}
    assert (
        "2 of 5 convolutions in floating point (their inputs are int8, those of the integer ones uint8): "
        "400 us slower than in integers in u8s8"
    ) in [cause["cause"] for cause in find_causes("s8s8", 32, times, original, weighted)]


def test_a_convolution_in_groups_is_called_so_and_not_by_the_channels_of_a_group(tmp_path):
    """MobileNets' depthwise convolutions have one input channel a group, which is not the lack of channels."""
    network = Network(channels=3)
    tensor = network.conv("stem", "input", 16, 3)
    tensor = network.conv("deep", tensor, 16, 1, group=16)
    tensor = network.add("GlobalAveragePool", "pool", [network.conv("pairs", tensor, 16, 2, group=8)])
    network.add("Flatten", "flatten", [tensor])
    original = Original.of(onnx.load(network.save(tmp_path / "fp32.onnx", 16)))
    assert [describe(name, original) for name in ("stem", "deep", "pairs")] == [
        "first convolution stem with 3 input channels",
        "depthwise convolution deep",
        "grouped convolution pairs",
    ]
