"""A model and data of the user's own: names, batch, layout, classes and labels are the file's and the arrays', not ours."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper
from own_models import CLASSES, Classifier, images_like, own_params, run_pipeline, save_data

from stages import evaluate
from stages.common.calibration.image_ranges import minmax_of_sets
from stages.common.calibration.static_quantization import calibrate, quantize
from stages.common.explanation.quantization_noise import activation_noise
from stages.common.images import input_batches, labels_or_none, load_labels, to_input
from stages.common.preprocessing import preprocess
from stages.common.reporting.verdict import sentence
from stages.common.session.model_io import ties
from stages.common.session.runtime import open_session, predict_images
from stages.common.workspace import UserError
from stages.tools.comparison import accuracy_row, judge
from stages.tools.comparison_report import values
from stages.tools.sweep import numbers
from stages.tools.update_readme import results_section

RECIPE = {"quant_format": "QDQ", "activation_type": "QUInt8", "weight_type": "QInt8", "reduce_range": True}
RUN = {"images": 20, "batch_size": 7, "threads": 1}


def small(batch="N", **arguments):
    """Return a convolutional Classifier of (batch, 2, 6, 6)."""
    net = Classifier((2, 6, 6), batch=batch, **arguments).conv(8, 2, 3, 3)
    return net.add("GlobalAveragePool").add("Flatten").dense(CLASSES, 8)


@pytest.fixture
def images(tmp_path):
    """A file of 20 images (2, 6, 6)."""
    np.save(tmp_path / "images.npy", images_like((2, 6, 6), 20, seed=1))
    return tmp_path / "images.npy"


def test_a_fixed_batch_gives_the_predictions_of_a_free_one_the_last_batch_filled_up(tmp_path, images):
    """20 images in batches of 8: the answers of 4 that fill the last one up are cut off."""
    free = predict_images(small().save(tmp_path / "free.onnx"), images, {}, **RUN)
    fixed = predict_images(small(batch=8).save(tmp_path / "fixed.onnx"), images, {}, **RUN)
    assert free.shape == (20, CLASSES) and np.ptp(free, axis=0).min() > 0.1  # every image has its own
    np.testing.assert_allclose(fixed, free, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("MinMax", {"symmetric": False, "moving_average": False}),
        ("Percentile", {"num_bins": 512, "percentile": 99, "symmetric": True}),
    ],
)
def test_a_fixed_batch_gives_the_ranges_of_a_free_one(tmp_path, images, method, options):
    """Neither the size of the batch nor what fills the last one up is seen in them."""
    found = []
    for batch in ("N", -1, 8):  # PaddlePaddle writes -1 where any is taken
        preprocess(small(batch=batch).save(tmp_path / "fp32.onnx"), tmp_path / "preprocessed.onnx")
        how = {"batch_size": 7, "method": method, **options}
        found.append(calibrate(tmp_path / "preprocessed.onnx", images, np.arange(20), {}, **how))
    if method == "MinMax":  # as the sensitivity stage finds them, image by image
        found += minmax_of_sets(tmp_path / "preprocessed.onnx", images, [np.arange(20)], {}, batch_size=7)
    free, *others = found
    for other in others:
        assert free.keys() == other.keys() and len(free) > 3
        for tensor, bounds in free.items():
            np.testing.assert_allclose(other[tensor], bounds, rtol=1e-5, atol=1e-6)


def test_a_fixed_batch_gives_the_noise_of_a_free_one(tmp_path, images):
    found = []
    for batch in ("N", 8):
        preprocess(small(batch=batch).save(tmp_path / "fp32.onnx"), tmp_path / "preprocessed.onnx")
        how = {"batch_size": 7, "method": "MinMax"}
        ranges = calibrate(tmp_path / "preprocessed.onnx", images, np.arange(20), {}, **how)
        quantize(tmp_path / "preprocessed.onnx", tmp_path / "int8.onnx", ranges, **RECIPE)
        files = (tmp_path / "preprocessed.onnx", tmp_path / "int8.onnx")
        found.append(activation_noise(*files, input_batches(np.load(images), batch_size=4, path=images)))
    free, fixed = found
    assert free.keys() == fixed.keys() and len(free) > 3
    for tensor, noise in free.items():
        assert fixed[tensor] == pytest.approx(noise, rel=0.02), tensor


def test_weights_that_are_listed_as_inputs_are_not_asked_for(tmp_path, images):
    path = small(name="their input").save(tmp_path / "old.onnx", ir_version=3, opset=9, weights_as_inputs=True)
    assert len(onnx.load(path).graph.input) > 1
    logits = predict_images(path, images, {}, **RUN)
    preprocess(path, tmp_path / "preprocessed.onnx")
    prepared = onnx.load(tmp_path / "preprocessed.onnx")
    assert [value.name for value in prepared.graph.input] == ["their input"]
    np.testing.assert_allclose(predict_images(tmp_path / "preprocessed.onnx", images, {}, **RUN), logits, atol=1e-6)


@pytest.mark.parametrize("opset", [7, 9, 12])
def test_an_old_opset_is_raised_before_quantization_and_the_baseline_stays_as_it_is(tmp_path, images, opset):
    """A scale for every channel is written for opset 7 to 12 as well, and then no runtime loads the file."""
    path = small().save(tmp_path / "old.onnx", opset=opset)
    before, logits = path.read_bytes(), predict_images(path, images, {}, **RUN)
    assert preprocess(path, tmp_path / "preprocessed.onnx") == f", opset {opset} raised to 13"
    assert onnx.load(tmp_path / "preprocessed.onnx").opset_import[0].version == 13 and path.read_bytes() == before
    np.testing.assert_allclose(predict_images(tmp_path / "preprocessed.onnx", images, {}, **RUN), logits, atol=1e-6)
    how = {"batch_size": 20, "method": "MinMax"}
    ranges = calibrate(tmp_path / "preprocessed.onnx", images, np.arange(20), {}, **how)
    files = (tmp_path / "preprocessed.onnx", tmp_path / "int8.onnx")
    assert quantize(*files, ranges, **RECIPE, per_channel=True) == (2, 2)
    assert np.abs(predict_images(tmp_path / "int8.onnx", images, {}, **RUN) - logits).max() < 0.1 * np.ptp(logits)


def test_a_residual_network_with_biases_of_odd_shapes_is_quantized_as_it_is(tmp_path, images):
    """Biases that an exporter left as additions of (1, C, 1, 1), and a sum of two branches."""
    net = Classifier((2, 6, 6))
    net.add("Conv", net.normal(4, 2, 3, 3), pads=[1] * 4).add("Add", net.normal(1, 4, 1, 1)).add("Relu")
    branch = net.last
    net.add("Conv", net.normal(4, 4, 3, 3), pads=[1] * 4).add("Add", net.normal(4, 1, 1))
    net.nodes.append(helper.make_node("Add", [net.last, branch], ["sum"]))
    net.last = "sum"
    net.add("Relu").add("GlobalAveragePool").add("Flatten").dense(CLASSES, 4)
    logits = predict_images(net.save(tmp_path / "fp32.onnx"), images, {}, **RUN)
    preprocess(tmp_path / "fp32.onnx", tmp_path / "preprocessed.onnx")
    files = (tmp_path / "preprocessed.onnx", tmp_path / "int8.onnx")
    ranges = calibrate(files[0], images, np.arange(20), {}, batch_size=7, method="MinMax")
    assert quantize(*files, ranges, **RECIPE) == (3, 3)
    assert np.abs(predict_images(files[1], images, {}, **RUN) - logits).max() < 0.1 * np.ptp(logits)


def test_of_several_outputs_the_one_that_is_judged_has_to_be_named(tmp_path, images):
    net = Classifier((2, 6, 6)).conv(8, 2, 3, 3).add("GlobalAveragePool").add("Flatten")
    features = net.last
    path = net.dense(CLASSES, 8).save(tmp_path / "two.onnx", outputs={"features": features, "scores": net.last})
    assert predict_images(path, images, {}, output="scores", **RUN).shape == (20, CLASSES)
    assert predict_images(path, images, {}, output="features", **RUN).shape == (20, 8)
    with pytest.raises(UserError) as error:
        predict_images(path, images, {}, **RUN)
    assert str(error.value) == (
        f"{path} has several outputs: write one of features, scores as `evaluate.output` of the model in params.yaml."
    )
    with pytest.raises(UserError, match="has no output 'score': write one of features, scores as"):
        predict_images(path, images, {}, output="score", **RUN)


def test_logits_with_axes_of_one_behind_the_classes_are_logits(tmp_path, images):
    path = Classifier((2, 6, 6)).conv(CLASSES, 2, 3, 3).add("GlobalAveragePool").save(tmp_path / "spatial.onnx")
    assert open_session(path, threads=1).get_outputs()[0].shape[1:] == [CLASSES, 1, 1]
    assert predict_images(path, images, {}, **RUN).shape == (20, CLASSES)


def test_channels_last_images_are_scaled_by_channel_and_stay_in_their_layout():
    first = images_like((3, 4, 5), 6, 0)
    scaling = {"scale": 2, "mean": [1, 2, 3], "std": [1, 2, 4], "repeat": 2}
    last = to_input(np.moveaxis(first, 1, -1), channels_last=True, **scaling)
    assert last.shape == (6, 8, 10, 3)
    np.testing.assert_array_equal(np.moveaxis(last, -1, 1), to_input(first, **scaling))


def test_a_grey_channels_last_image_is_copied_to_the_channels_that_are_asked_for():
    grey = images_like((4, 5, 1), 2, 0)
    assert (to_input(grey, channels=3, channels_last=True) == grey).all()
    assert to_input(grey, channels=3, channels_last=True).shape == (2, 4, 5, 3)


@pytest.mark.parametrize("shape", [(7,), (3, 9), (2, 4, 4), (2, 3, 4, 5)])
def test_images_of_any_number_of_axes_go_through_as_they_are_stored(shape):
    stored = images_like(shape, 3, 0)
    np.testing.assert_array_equal(to_input(stored), stored)


def test_pixels_for_a_model_that_scales_inside_are_not_touched():
    stored = images_like((2, 3, 3), 4, 0, np.uint8)
    values = to_input(stored, dtype="uint8")
    assert values.dtype == np.uint8 and (values == stored).all() and not np.shares_memory(values, stored)
    with pytest.raises(UserError, match=r"the images are float32 and `input.dtype` is uint8: store them as uint8\."):
        to_input(stored.astype(np.float32), dtype="uint8")


def test_an_empty_array_of_labels_means_that_there_are_none(tmp_path):
    np.save(tmp_path / "labels.npy", np.empty(0, np.int64))
    assert labels_or_none(tmp_path / "labels.npy", 20) is None
    with pytest.raises(UserError, match="a network cannot be trained without"):
        load_labels(tmp_path / "labels.npy", 20)


def test_rows_whose_largest_value_is_there_twice_are_counted():
    """Softmax makes them: what float32 cannot tell from 1 is 1."""
    logits = np.float32([[1, 3, 3], [3, 3, 3], [1, 1, 3], [0.5, 0.5, 0], [2, 1, 0]])
    assert ties(logits) == 3
    metrics = evaluate.compare(logits, logits[:, ::-1], np.zeros(5, np.int64))
    assert metrics["ties"] == 3


def test_without_labels_agreement_is_measured_and_accuracy_is_not():
    baseline = np.eye(4, dtype=np.float32)[[0, 1, 2, 3]]
    variant = np.eye(4, dtype=np.float32)[[0, 1, 3, 3]]
    assert evaluate.compare(variant, baseline, None) == {
        "argmax_agreement": 0.75, "changed": 1, "max_abs_logit_difference": 1.0, "ties": 0, "images": 4
    }  # fmt: skip
    assert evaluate.changed_table(variant, baseline, None) == [[2, "", 2, 3]]
    assert evaluate.class_table(variant, baseline, None) == []


def unlabelled(changed, speedup, images=10_000):
    """Return the results of a variant of unlabelled images."""
    judged = {"argmax_agreement": 1 - changed / images, "changed": changed, "images": images}
    cell = {"speedup": speedup, "speedup_low": speedup - 0.01, "speedup_high": speedup + 0.01}
    return {"verify": {"size_bytes": 250}, "evaluate": judged, "benchmark": {1: cell}}


def verdict(**variants):
    baseline = {"verify": {"size_bytes": 1000}, "evaluate": {"images": 10_000}, "benchmark": {}}
    return sentence("net", {"variants": {"fp32": baseline, **variants}}, list(variants))


def test_without_labels_the_verdict_speaks_of_agreement():
    assert verdict(a=unlabelled(47, 1.9)) == (
        "On this machine use `a` for net: 1.9x faster at batch 1, 4.0x smaller and agrees with fp32 on 99.53 % of 10,000 "
        "images (95 % interval 99.38 to 99.65), whose labels are not known."
    )


def test_without_labels_a_fast_file_that_decides_otherwise_is_not_recommended():
    """Its accuracy could be that of fp32 nevertheless, but nothing says so."""
    assert "use `a`" in verdict(a=unlabelled(47, 1.9), b=unlabelled(900, 3.0))
    text = verdict(a=unlabelled(1200, 1.9), b=unlabelled(900, 3.0))
    assert text.startswith("Every int8 file of net decides otherwise than fp32 too often, `b` the least: it agrees")
    assert text.endswith("keep fp32, or measure with labels.")


def test_without_labels_two_revisions_are_compared_in_their_agreement_with_fp32():
    fp32 = np.eye(4, dtype=np.float32)[np.arange(400) % 4]
    worse = np.roll(fp32, 1, axis=1)
    worse[40:] = fp32[40:]
    [row] = judge([accuracy_row("net", "v", fp32, worse, fp32.argmax(1), "agreement")])
    assert (row.quantity, row.a, row.b, row.verdict) == ("agreement", 1.0, 0.9, "worse")
    assert values(row)[:2] == ("100.00%", "90.00%")


def test_without_labels_a_sweep_shows_agreement():
    assert numbers({"argmax_agreement": 0.9953, "changed": 47, "images": 10_000}) == ("99.53% agree", "", "47")
    assert numbers({"ties": 0, "images": 10_000}) == ("no labels", "", "")
    assert numbers({"loads": 0, "runs": 0, "finite": 0})[0] == "does not work here"


@pytest.fixture
def pipeline(workspace, params, repository):
    """Return a function that runs every stage on models/theirs and data/own in an empty repository; it returns metrics."""

    def run(**settings):
        chosen = own_params(params, **settings)
        Path("params.yaml").write_text(yaml.safe_dump(chosen, sort_keys=False))
        run_pipeline(chosen, repository)
        files = Path("metrics").rglob("*/*.json")
        return {str(path.relative_to("metrics"))[:-5]: json.loads(path.read_text()) for path in files}

    return run


@pytest.mark.slow
def test_a_channels_last_model_of_pixels_with_a_fixed_batch_and_no_labels_goes_through_every_stage(pipeline):
    net = Classifier((12, 12, 3), batch=8, dtype=TensorProto.UINT8, name="image").add("Transpose", perm=[0, 3, 1, 2])
    net.add("Cast", to=TensorProto.FLOAT).add("Mul", np.float32(1 / 255)).conv(8, 3, 3, 3)
    net.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2]).conv(CLASSES, 8, 3, 3).add("GlobalAveragePool")
    net.save("models/theirs/onnx/fp32.onnx")
    save_data("data/own", (12, 12, 3), dtype=np.uint8, labelled=False)
    metrics = pipeline(batches=[8], input={"dtype": "uint8", "channels_last": True})
    assert metrics["evaluate/theirs/fp32"] == {"theirs": {"fp32": {"ties": 0, "images": 50}}}
    judged = metrics["evaluate/theirs/static-u8s8"]["theirs"]["static-u8s8"]
    assert judged["argmax_agreement"] > 0.7 and judged["images"] == 50
    assert list(metrics["benchmark/theirs"]["theirs"]["static-u8s8"]) == ["batch_8"]
    assert "mean_agreement" in metrics["sensitivity/theirs"]["theirs"]["static-u8s8"]["images_20"]
    assert "| agreement " in results_section(".") and "agrees with fp32 on" in results_section(".")
    report = Path("plots/report.md").read_text()
    assert "| agreement " in report and "| accuracy " not in report and "lost" not in report
    assert "agrees with fp32 on" in report and "whose labels are not known" in report


@pytest.mark.slow
def test_an_old_model_of_features_with_two_outputs_that_ends_in_softmax_goes_through_every_stage(pipeline):
    net = Classifier((20,), name="x").dense(32, 20).add("Relu").dense(16, 32).add("Relu")
    hidden = net.last
    net.dense(CLASSES, 16).add("Mul", np.float32(200)).add("Softmax", axis=1)
    outputs = {"features": hidden, "probabilities": net.last}
    net.save("models/theirs/onnx/fp32.onnx", outputs=outputs, opset=9, ir_version=3, weights_as_inputs=True)
    save_data("data/own", (20,))
    metrics = pipeline(evaluate={"output": "probabilities"})
    judged = metrics["evaluate/theirs/static-u8s8"]["theirs"]["static-u8s8"]
    assert judged["accuracy"] < 0.6 and judged["ties"] <= 50 and "change_low" in judged
    assert np.load("models/theirs/predictions/fp32.npz")["logits"].sum(axis=1) == pytest.approx(np.ones(50), abs=1e-5)
    assert "| accuracy " in Path("plots/report.md").read_text()


@pytest.mark.slow
def test_a_model_of_series_with_a_fixed_batch_of_one_goes_through_every_stage(pipeline):
    net = Classifier((3, 40), batch=1, name="serving_default_x:0").conv(8, 3, 5)
    net.add("MaxPool", kernel_shape=[2], strides=[2]).conv(8, 8, 3).add("GlobalAveragePool").add("Flatten")
    net.dense(CLASSES, 8).save("models/theirs/onnx/fp32.onnx")
    save_data("data/own", (3, 40))
    metrics = pipeline(batches=[1], input={"scale": 2, "mean": [0.1, 0.2, 0.3]})
    judged = metrics["evaluate/theirs/static-s8s8"]["theirs"]["static-s8s8"]
    assert judged["argmax_agreement"] > 0.7 and judged["images"] == 50
