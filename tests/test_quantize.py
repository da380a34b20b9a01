"""Quantization uses the ranges of its own graph and images, says what it quantized, and gives the same bytes anywhere."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from stages import calibrate_quantize, quantize_dynamic
from stages.common.calibration import static_variant
from stages.common.calibration.collection import collect_ranges, draw_indices
from stages.common.calibration.static_quantization import calibrate, quantize
from stages.common.cpu import EXACT_INT8, best_int8_path, cpu_model_and_flags, saturating
from stages.common.images import input_batches, load_images, to_input
from stages.common.preprocessing import preprocess
from stages.common.session.runtime import open_session, predict_images
from stages.common.workspace import UserError

U8S8 = {"quant_format": "QDQ", "activation_type": "QUInt8", "weight_type": "QInt8"}
SAME_FILE = "calibrate and quantize the same preprocessed file."


@pytest.fixture
def images(dataset):
    return dataset / "train-images.npy"


@pytest.fixture
def ranges(preprocessed, images, scaling):
    """Ranges of the CNN on 20 images."""
    return calibrate(preprocessed, images, np.arange(20), scaling, batch_size=8, method="MinMax")


def all_tensors(path, inputs):
    """Return {tensor: values} of every float tensor of a model, from a plain session with all of them as outputs."""
    model = onnx.load(path)
    names = [name for node in model.graph.node if node.op_type != "QuantizeLinear" for name in node.output]
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    values = onnxruntime.InferenceSession(model.SerializeToString()).run(names, {"input": inputs})
    return {"input": inputs, **dict(zip(names, values, strict=True))}


def test_ranges_are_the_smallest_and_largest_values_that_were_seen(preprocessed, images, scaling, ranges):
    expected = all_tensors(preprocessed, to_input(load_images(images)[:20], **scaling))
    assert set(ranges) == set(expected)
    for name, (low, high) in ranges.items():
        np.testing.assert_allclose((low, high), (expected[name].min(), expected[name].max()), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("batch_size", [1, 3, 20])
def test_ranges_do_not_depend_on_the_cut_into_batches_or_on_the_run(preprocessed, images, scaling, ranges, batch_size):
    again = calibrate(preprocessed, images, np.arange(20), scaling, batch_size=batch_size, method="MinMax")
    for name, bounds in again.items():
        np.testing.assert_allclose(bounds, ranges[name], rtol=1e-6, err_msg=name)


def test_every_image_of_the_set_counts_the_last_short_batch_too(preprocessed, scaling, tmp_path):
    stored = np.full((7, 1, 28, 28), 10, np.uint8)
    stored[6] = 255
    np.save(tmp_path / "images.npy", stored)
    found = calibrate(preprocessed, tmp_path / "images.npy", np.arange(7), scaling, batch_size=3, method="MinMax")
    assert found["input"][1] == to_input(stored, **scaling).max()


def test_calibration_and_evaluation_feed_the_same_input(preprocessed, images, scaling, ranges):
    evaluated = np.concatenate(list(input_batches(load_images(images)[:20], batch_size=7, path=images, **scaling)))
    assert ranges["input"] == (evaluated.min(), evaluated.max())


def test_images_that_are_scaled_otherwise_give_other_ranges(preprocessed, images, scaling, ranges):
    raw = calibrate(preprocessed, images, np.arange(20), scaling | {"scale": 1}, batch_size=8, method="MinMax")
    assert raw["input"][1] > 100 * ranges["input"][1]


def test_a_calibration_image_that_is_not_finite_is_refused_for_every_method(preprocessed, scaling, tmp_path):
    stored = np.zeros((5, 1, 28, 28), np.float32)
    stored[0, 0, 3, 3] = np.nan
    np.save(tmp_path / "images.npy", stored)
    with pytest.raises(UserError, match=r"images.npy has 1 non-finite values, the first in image 0: mend or remove"):
        calibrate(preprocessed, tmp_path / "images.npy", np.arange(5), scaling, batch_size=2, method="MinMax")


def test_the_calibration_set_is_drawn_by_its_seed_without_repetition():
    drawn = draw_indices(seed=3, images=50, available=60)
    assert len(set(drawn.tolist())) == 50 and drawn.max() < 60 and (np.diff(drawn) > 0).all()
    np.testing.assert_array_equal(drawn, draw_indices(seed=3, images=50, available=60))
    assert set(drawn.tolist()) != set(draw_indices(seed=4, images=50, available=60).tolist())
    with pytest.raises(UserError, match=r"^calibrate.images is 61 and there are 60 training images: ask for fewer\.$"):
        draw_indices(seed=3, images=61, available=60)


@pytest.mark.parametrize("recipe", [U8S8, U8S8 | {"activation_type": "QInt8"}, U8S8 | {"quant_format": "QOperator"}])
def test_a_static_variant_predicts_nearly_what_the_baseline_does(
    preprocessed, images, scaling, ranges, tmp_path, recipe
):
    recipe = recipe | {"reduce_range": best_int8_path(cpu_model_and_flags()[1]) not in EXACT_INT8}
    assert quantize(preprocessed, tmp_path / "int8.onnx", ranges, **recipe) == (3, 3)
    settings = {"images": 20, "batch_size": 20, "threads": 1}
    fp32, int8 = (predict_images(path, images, scaling, **settings) for path in (preprocessed, tmp_path / "int8.onnx"))
    step = (ranges["logits"][1] - ranges["logits"][0]) / 255
    assert 0 < np.abs(fp32 - int8).max() < 12 * step


def test_with_a_reduced_range_or_unsigned_weights_int8_kernels_compute_what_the_file_says(
    preprocessed, images, scaling, ranges, tmp_path
):
    """On every processor. Without VNNI signed weights of the full range saturate, and the scores are of another model.

    What the file says is what it computes in floating point, without any optimization.
    """
    step = (ranges["logits"][1] - ranges["logits"][0]) / 255
    inputs = to_input(load_images(images)[:20], **scaling)

    def error(**changes):
        quantize(preprocessed, tmp_path / "int8.onnx", ranges, **U8S8 | changes)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        plain = onnxruntime.InferenceSession(tmp_path / "int8.onnx", options, providers=["CPUExecutionProvider"])
        fast = open_session(tmp_path / "int8.onnx", threads=1)
        expected, actual = (session.run(None, {"input": inputs})[0] for session in (plain, fast))
        return np.abs(expected - actual).max() / step

    assert error(reduce_range=True) < 3 and error(weight_type="QUInt8") < 3
    isa = best_int8_path(cpu_model_and_flags()[1])
    recipes = {"u8s8": U8S8, "s8s8": U8S8 | {"activation_type": "QInt8"}, "reduced": U8S8 | {"reduce_range": True}}
    warned = saturating(isa, recipes | {"u8u8": U8S8 | {"weight_type": "QUInt8"}})
    assert warned == ([] if isa in EXACT_INT8 else ["u8s8", "s8s8"])
    if isa in EXACT_INT8:
        assert error() < 3


def test_a_dynamic_variant_predicts_nearly_what_the_baseline_does(preprocessed, images, scaling, ranges, tmp_path):
    assert quantize_dynamic.quantize_dynamic(preprocessed, tmp_path / "int8.onnx", weight_type="QUInt8") == (3, 3)
    settings = {"images": 20, "batch_size": 20, "threads": 1}
    fp32, int8 = (predict_images(path, images, scaling, **settings) for path in (preprocessed, tmp_path / "int8.onnx"))
    assert 0 < np.abs(fp32 - int8).max() < 12 * (ranges["logits"][1] - ranges["logits"][0]) / 255


@pytest.mark.parametrize(("op_types", "layers"), [(["Gemm"], 1), (["Conv"], 2), (["Conv", "Gemm", "MatMul"], 3)])
def test_only_the_operator_types_of_the_recipe_are_quantized(preprocessed, images, scaling, tmp_path, op_types, layers):
    found = calibrate(preprocessed, images, np.arange(4), scaling, batch_size=4, method="MinMax", op_types=op_types)
    recipe = U8S8 | {"op_types_to_quantize": op_types}
    assert quantize(preprocessed, tmp_path / "int8.onnx", found, **recipe) == (layers, 3)


def test_a_layer_that_the_recipe_excludes_stays_in_fp32(preprocessed, ranges, tmp_path):
    recipe = U8S8 | {"nodes_to_exclude": ["Conv0"]}
    assert quantize(preprocessed, tmp_path / "int8.onnx", ranges, **recipe) == (2, 3)
    recipe = {"weight_type": "QUInt8", "nodes_to_exclude": ["Gemm"]}
    assert quantize_dynamic.quantize_dynamic(preprocessed, tmp_path / "int8.onnx", **recipe) == (2, 3)


def test_ranges_of_another_graph_are_refused_by_tensor(preprocessed, other_preprocessed, images, scaling, tmp_path):
    found = calibrate(other_preprocessed, images, np.arange(4), scaling, batch_size=4, method="MinMax")
    with pytest.raises(UserError) as error:
        quantize(preprocessed, tmp_path / "int8.onnx", found, **U8S8)
    assert str(error.value) == f"the ranges have tensor 'pool2', which {preprocessed} does not: {SAME_FILE}"
    assert not (tmp_path / "int8.onnx").exists()


def test_a_layer_without_a_range_is_refused_by_node_and_tensor(other_preprocessed, ranges, tmp_path):
    known = {name: ranges[name] for name in ("input", "sum0", "relu0", "pool0", "features", "logits")}
    with pytest.raises(UserError) as error:
        quantize(other_preprocessed, tmp_path / "int8.onnx", known, **U8S8)
    assert str(error.value) == f"node 'Conv2' reads tensor 'pool1', which has no range: {SAME_FILE}"


@pytest.mark.parametrize("make", [lambda *a, **k: quantize_dynamic.quantize_dynamic(*a[:2], **k), quantize])
def test_a_file_that_would_be_a_copy_of_fp32_is_refused(preprocessed, ranges, tmp_path, make):
    recipe = {"weight_type": "QUInt8"} if make is not quantize else U8S8
    excluded = {"nodes_to_exclude": ["Conv0", "Conv1", "Gemm"]}
    with pytest.raises(UserError) as error:
        make(preprocessed, tmp_path / "int8.onnx", ranges, **recipe, **excluded)
    assert str(error.value) == (
        "the recipe quantizes none of the 3 layers with weights: widen op_types_to_quantize or shorten nodes_to_exclude."
    )


@pytest.mark.parametrize("make", [lambda *a, **k: quantize_dynamic.quantize_dynamic(*a[:2], **k), quantize])
def test_an_excluded_node_that_is_not_there_is_refused_by_name(preprocessed, ranges, tmp_path, make):
    """onnxruntime would ignore it, and quantize the layer."""
    recipe = {"weight_type": "QUInt8"} if make is not quantize else U8S8
    with pytest.raises(UserError) as error:
        make(preprocessed, tmp_path / "int8.onnx", ranges, **recipe, nodes_to_exclude=["conv0"])
    assert str(error.value) == (
        "nodes_to_exclude names 'conv0', which is no node of the preprocessed model: did you mean 'Conv0'?"
    )
    with pytest.raises(UserError, match="of the preprocessed model: it has Conv0, Conv1, Flatten, Gemm, GlobalAverage"):
        make(preprocessed, tmp_path / "int8.onnx", ranges, **recipe, nodes_to_exclude=["zzz"])


@pytest.fixture
def variant(workspace, params, scaling, preprocessed, images):
    """Return a function that runs the stage's command line arguments for one recipe, here or in a fresh process."""
    params["models"]["cnn"]["input"] = scaling
    workspace({"calibrate.images": 20})

    def make(name, folder, run=lambda arguments: calibrate_quantize.main(*arguments)):
        run(["cnn", name, str(preprocessed), str(images), f"{folder}/{name}.onnx", f"{folder}/{name}.json"])
        return Path(f"{folder}/{name}.onnx").read_bytes(), Path(f"{folder}/{name}.json").read_bytes()

    return make


def test_the_second_variant_of_a_process_equals_the_one_of_a_fresh_process(variant, repository, monkeypatch):
    """Nothing of the first calibration is left in the second, and no path or moment is in the file."""
    monkeypatch.setenv("PYTHONPATH", str(repository))
    variant("static-s8s8-convgemm", "here")
    command = [sys.executable, "-m", "stages.calibrate_quantize"]
    fresh = variant("static-u8s8", "fresh", lambda arguments: subprocess.run([*command, *arguments], check=True))
    assert variant("static-u8s8", "here") == fresh


def test_the_ranges_that_are_kept_say_what_they_were_made_of(variant, images, scaling):
    _, text = variant("static-u8s8", "here")
    kept = json.loads(text)
    assert kept["calibrate"] | {"seed": 0, "images": 20, "batch_size": 20, "method": "MinMax"} == kept["calibrate"]
    chosen = to_input(load_images(images)[kept["image_indices"]], **scaling)
    assert len(set(kept["image_indices"])) == 20
    assert kept["layers"] == {"quantized": 3, "all": 3}
    assert kept["ranges"]["input"] == [float(chosen.min()), float(chosen.max())]


def test_another_seed_gives_other_ranges_and_another_file(variant, workspace):
    before = variant("static-u8s8", "here")
    workspace({"calibrate.seed": 1})
    after = variant("static-u8s8", "here")
    assert before[0] != after[0] and before[1] != after[1]


@pytest.mark.parametrize("key", ["nodes_to_exclude", "swap_relu_maxpool"])
def test_a_stage_that_is_refused_writes_nothing(variant, workspace, monkeypatch, key):
    """Nor does it calibrate first, which can take long."""
    monkeypatch.setattr(static_variant, "calibrate", lambda *_, **__: pytest.fail("began to calibrate"))
    workspace({f"calibrate_quantize.static-u8s8.{key}": ["none"]})
    with pytest.raises(UserError):
        variant("static-u8s8", "here")
    assert not Path("here").exists() or not list(Path("here").iterdir())


def two_convolutions(tmp_path, first_weights, first_bias, between):
    """Save and preprocess Conv, `between`, Conv of 4 channels; return the path."""
    weights = {
        "w0": first_weights,
        "b0": first_bias,
        "w1": np.random.default_rng(1).normal(0, 0.3, (4, 4, 3, 3)),
        "low": np.float32(0),
        "high": np.float32(6),
    }
    nodes = [
        helper.make_node("Conv", ["input", "w0", "b0"], ["sum0"], "Conv0"),
        helper.make_node(between[0], ["sum0", *between[1:]], ["active"], between[0]),
        helper.make_node("Conv", ["active", "w1"], ["logits"], "Conv1"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 9, 9])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 4, 5, 5])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "a.onnx")
    preprocess(tmp_path / "a.onnx", tmp_path / "b.onnx")
    return tmp_path / "b.onnx"


def error_in_steps(path, tensor, recipe):
    """Quantize a model from its own outputs on random input; return the largest error of `tensor` in quantization steps."""
    inputs = np.random.default_rng(0).normal(size=(16, 1, 9, 9)).astype(np.float32)
    found = collect_ranges(path, lambda: [inputs], method="MinMax")
    quantize(path, path.with_name("int8.onnx"), found, **recipe)
    expected, actual = all_tensors(path, inputs)[tensor], all_tensors(path.with_name("int8.onnx"), inputs)
    actual = actual.get(f"{tensor}_DequantizeLinear_Output", actual[tensor])
    low, high = min(found[tensor][0], 0), max(found[tensor][1], 0)
    return np.abs(expected - actual).max(axis=(0, 2, 3)) / ((high - low) / 255)


def test_a_channel_of_tiny_weights_and_a_bias_stays_within_one_step(tmp_path):
    """Per channel, its scale would be so small that an int32 bias overflows; onnxruntime adjusts the scale."""
    weights = np.random.default_rng(0).normal(0, 0.3, (4, 1, 3, 3))
    weights[2] = 1e-9
    path = two_convolutions(tmp_path, weights, [0.1, 0.2, 2.0, 0.3], ["Relu"])
    assert error_in_steps(path, "active", U8S8 | {"per_channel": True})[2] <= 1


def test_relu6_with_symmetric_activations_stays_within_a_few_steps(tmp_path):
    weights = np.random.default_rng(0).normal(0, 1, (4, 1, 3, 3))
    path = two_convolutions(tmp_path, weights, [0.1, 0.2, 2.0, 0.3], ["Clip", "low", "high"])
    recipe = U8S8 | {"activation_type": "QInt8", "extra_options": {"ActivationSymmetric": True}}
    assert error_in_steps(path, "active", recipe).max() <= 5


def test_a_model_whose_shapes_cannot_be_inferred_is_refused_by_name(tmp_path, fp32):
    (tmp_path / "cut.onnx").write_bytes(fp32.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"^quant_pre_process failed on .*cut.onnx: "):
        preprocess(tmp_path / "cut.onnx", tmp_path / "out.onnx")


def test_a_missing_package_is_said_to_be_missing(tmp_path, fp32, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "sympy" or "symbolic_shape_infer" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sympy", None)
    with pytest.raises(UserError, match=r"^quant_pre_process needs a package that is missing \(.*sympy.*install req"):
        preprocess(fp32, tmp_path / "out.onnx")


def test_preprocessing_gives_the_same_bytes_again(fp32, preprocessed, tmp_path):
    preprocess(fp32, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == preprocessed.read_bytes()
