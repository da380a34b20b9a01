"""Where accuracy goes: noise by tensor, the effect of each layer alone, the images whose prediction changed."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from small_models import S8S8, U8S8, images_for, make_variants, save_plain

from stages.common.calibration.static_quantization import quantize
from stages.common.explanation.changed_figures import draw_changed, draw_margins, margins
from stages.common.explanation.layer_effects import layer_effects
from stages.common.explanation.quantization_noise import activation_noise, decibels, energies, weight_sqnr
from stages.common.session.runtime import predict_images
from stages.explain_accuracy import COLUMNS, layer_rows, layer_table, quantization_noise, summarize

SCALING = {"scale": 1.0, "mean": 0.0, "std": 1.0, "channels": 1, "repeat": 1}
RUN = {"batch_size": 50, "threads": 1}
CORES = "stages.common.explanation.layer_effects.usable_cores"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """(preprocessed file, ranges, file of 100 images, fp32's logits of them)"""
    path = save_plain(tmp_path_factory.mktemp("small") / "onnx" / "fp32.onnx")
    _, preprocessed, ranges = make_variants(path)
    images_path = path.parent.parent / "images.npy"
    np.save(images_path, images_for(path, 100))
    return preprocessed, ranges, images_path, predict_images(path, images_path, SCALING, images=100, **RUN)


def quantized(small, tmp_path, **changes):
    preprocessed, ranges, _, _ = small
    quantize(preprocessed, tmp_path / "quantized.onnx", ranges, **U8S8 | changes)
    return tmp_path / "quantized.onnx"


def test_decibels_are_of_energies_and_undefined_without_noise():
    assert decibels(*energies([np.array([3.0, 4.0])], [np.array([3.0, 3.5])])) == pytest.approx(20)
    assert decibels(*energies([np.ones(3)], [np.ones(3)])) is None


def test_weights_survive_rounding_to_half_a_step(small, tmp_path):
    weights = next(
        numpy_helper.to_array(tensor)
        for tensor in onnx.load(small[0]).graph.initializer
        if tensor.name == "conv_2.weight"
    )
    step = np.abs(weights).max() / 127
    expected = decibels(np.square(weights).sum(), weights.size * step**2 / 12)
    found = weight_sqnr(onnx.load(small[0]), onnx.load(quantized(small, tmp_path)))
    assert found["conv_2"] == pytest.approx(expected, abs=0.5)
    assert list(found) == ["conv_1", "conv_2", "fc"]


def test_unsigned_weights_are_as_good_as_signed_ones(small, tmp_path):
    signed = weight_sqnr(onnx.load(small[0]), onnx.load(quantized(small, tmp_path)))
    unsigned = weight_sqnr(onnx.load(small[0]), onnx.load(quantized(small, tmp_path, weight_type="QUInt8")))
    assert unsigned == pytest.approx(signed, abs=1)


def test_a_scale_for_every_channel_never_hurts_the_weights(small, tmp_path):
    one = weight_sqnr(onnx.load(small[0]), onnx.load(quantized(small, tmp_path)))
    many = weight_sqnr(onnx.load(small[0]), onnx.load(quantized(small, tmp_path, per_channel=True)))
    assert all(many[layer] > one[layer] - 0.1 for layer in one)
    assert many["conv_2"] > one["conv_2"]


def test_the_noise_of_activations_does_not_depend_on_the_cut_into_batches(small, tmp_path):
    path, images = quantized(small, tmp_path), np.load(small[2])
    whole = activation_noise(small[0], path, [images])
    assert activation_noise(small[0], path, np.split(images, [7, 50])) == {
        tensor: pytest.approx(noise, rel=1e-6) for tensor, noise in whole.items()
    }


def test_rounding_is_the_quantizers_alone_and_noise_accumulates(small, tmp_path):
    noise = activation_noise(small[0], quantized(small, tmp_path), [np.load(small[2])])
    assert noise["input"]["rounding_sqnr_db"] == pytest.approx(noise["input"]["accumulated_sqnr_db"], abs=0.01)
    assert noise["relu_2_out"]["rounding_sqnr_db"] > noise["relu_2_out"]["accumulated_sqnr_db"]


def test_what_lies_beyond_the_range_is_counted_as_clipped(small, tmp_path):
    preprocessed, ranges, images_path, _ = small
    images = np.load(images_path)
    limits = {**ranges, "input": (np.float32(-0.3), np.float32(0.2))}
    quantize(preprocessed, tmp_path / "narrow.onnx", limits, **U8S8)
    found = activation_noise(preprocessed, tmp_path / "narrow.onnx", [images])["input"]
    beyond = 100 * (images > 0.2 + found["scale"] / 2).mean()
    assert found["clipped_percent"] == pytest.approx(beyond, abs=0.5)
    assert found["scale"] == pytest.approx(0.5 / 255, rel=1e-3)


def test_a_batch_that_paddlepaddle_writes_as_minus_one_is_a_free_one(small, tmp_path):
    preprocessed, ranges, images_path, _ = small
    model = onnx.load(preprocessed)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(model, tmp_path / "preprocessed.onnx")
    batch = [np.load(images_path)]
    free, minus_one = (
        quantization_noise(path, ranges, U8S8, batch) for path in (preprocessed, tmp_path / "preprocessed.onnx")
    )
    assert free == minus_one and "logits" in free[1]


def effects_of(small, recipe):
    preprocessed, ranges, images_path, baseline = small
    return layer_effects(preprocessed, ranges, recipe, images_path, SCALING, baseline, batch_size=50)


def test_the_layer_with_an_outlier_in_its_weights_is_found_from_both_sides(tmp_path):
    path = save_plain(tmp_path / "onnx" / "fp32.onnx")
    model = onnx.load(path)
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "conv_2.weight")
    values = numpy_helper.to_array(weights).copy()
    values[0, 0, 0, 0] = 40 * np.abs(values).max()  # one scale for the tensor leaves little for all others
    weights.CopyFrom(numpy_helper.from_array(values, weights.name))
    onnx.save(model, path)
    _, preprocessed, ranges = make_variants(path)
    np.save(tmp_path / "images.npy", images_for(path, 100))
    baseline = predict_images(path, tmp_path / "images.npy", SCALING, images=100, **RUN)
    effects = effects_of((preprocessed, ranges, tmp_path / "images.npy", baseline), U8S8)
    assert min(effects, key=lambda layer: effects[layer]["alone_logit_sqnr_db"]) == "conv_2"
    assert max(effects, key=lambda layer: effects[layer]["all_but_logit_sqnr_db"]) == "conv_2"


def test_every_quantized_layer_has_its_effects_and_a_layer_that_the_recipe_excludes_has_none(small):
    effects = effects_of(small, {**S8S8, "nodes_to_exclude": ["conv_1"]})
    assert list(effects) == ["conv_2", "fc"]
    assert all(0 <= effect["alone_changed"] <= 100 for effect in effects.values())


def test_several_files_at_a_time_have_the_effects_of_one_after_the_other(small, monkeypatch):
    preprocessed, ranges, images_path, baseline = small
    monkeypatch.setattr(CORES, lambda: 3)
    effects, expected = effects_of(small, U8S8), {}
    for layer in effects:
        expected[layer] = {}
        for prefix, nodes in (("alone", {"nodes_to_quantize": [layer]}), ("all_but", {"nodes_to_exclude": [layer]})):
            quantize(preprocessed, images_path.with_name("layer.onnx"), ranges, **U8S8 | nodes)
            logits = predict_images(images_path.with_name("layer.onnx"), images_path, SCALING, images=100, **RUN)
            expected[layer] |= {
                f"{prefix}_changed": (logits.argmax(1) != baseline.argmax(1)).sum(),
                f"{prefix}_logit_sqnr_db": decibels(*energies(baseline, logits)),
            }
    assert effects == expected


def test_a_single_quantized_layer_cannot_be_left_out(small):
    effects = effects_of(small, {**U8S8, "op_types_to_quantize": ["Gemm"]})
    assert list(effects) == ["fc"]
    assert "all_but_changed" not in effects["fc"]


def test_the_table_has_a_row_for_the_input_every_layer_and_every_other_tensor(small):
    preprocessed, ranges, images_path, _ = small
    weights, tensors = quantization_noise(preprocessed, ranges, U8S8, [np.load(images_path)])
    rows = layer_table(onnx.load(preprocessed), weights, tensors, effects_of(small, U8S8))
    outputs = {row["layer"]: row["tensor"] for row in rows}
    assert list(outputs) == ["input", "conv_1", "pool_1", "conv_2", "pool_2", "flatten", "fc"]
    assert (outputs["conv_1"], outputs["fc"]) == ("relu_1_out", "logits")
    table = [dict(zip(COLUMNS, row, strict=True)) for row in layer_rows(rows)]
    assert [row["layer"] for row in table if row["alone_changed"] != ""] == ["conv_1", "conv_2", "fc"]


def test_the_older_format_has_the_noise_of_its_qdq_form(small):
    preprocessed, ranges, images_path, _ = small
    batch = [np.load(images_path)]
    older = quantization_noise(preprocessed, ranges, {**U8S8, "quant_format": "QOperator"}, batch)
    assert older == quantization_noise(preprocessed, ranges, U8S8, batch)


BASELINE = np.array([[3.0, 1.0, 0.0], [1.0, 1.1, 0.0], [0.0, 5.0, 1.0]], np.float32)
CHANGED = np.array([[3.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 5.0, 5.0]], np.float32)


def test_the_margin_is_the_largest_logit_minus_the_second_largest():
    assert margins(BASELINE) == pytest.approx([2, 0.1, 4])


def test_ties_and_the_margins_of_changed_images_are_told():
    effects = {"fc": {"alone_changed": 1, "alone_logit_sqnr_db": 20.0}}
    metrics = summarize(BASELINE, CHANGED, effects)
    assert (metrics["changed"], metrics["ties"], metrics["changed_ties"]) == (1, 2, 1)
    assert metrics["changed_max_margin"] == pytest.approx(0.1)


def test_what_rounding_the_logits_alone_changes_is_told():
    effects = {"fc": {"alone_changed": 1, "alone_logit_sqnr_db": 20.0}}
    coarse, fine = (summarize(BASELINE, CHANGED, effects, scale)["changed_by_logit_scale"] for scale in (1.0, 0.01))
    assert (coarse, fine) == (1, 0)


@pytest.mark.parametrize("logits", [BASELINE, CHANGED], ids=["nothing changed", "one changed"])
def test_the_figures_are_drawn_and_the_same_input_gives_the_same_bytes(tmp_path, logits):
    images, labels = np.zeros((3, 1, 8, 8), np.uint8), np.array([0, 1, 1])
    names = {"model": "small", "variant": "u8s8", "baseline": BASELINE, "logits": logits}
    for name in ("one", "two"):
        draw_changed(tmp_path / f"{name}-changed.png", images=images, labels=labels, **names)
        draw_margins(tmp_path / f"{name}-margins.png", **names)
    for kind in ("changed", "margins"):
        one, two = ((tmp_path / f"{name}-{kind}.png").read_bytes() for name in ("one", "two"))
        assert one == two
        assert one.startswith(b"\x89PNG")
