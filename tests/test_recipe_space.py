"""The search proposes only recipes that a user could write and that load, and those that are known to be fast are among them."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import onnx
import pytest
from small_models import save_plain, save_residual

from stages.common.preflight.params_check import check_params
from stages.common.preflight.recipes import StaticRecipe
from stages.common.preprocessing import preprocess
from stages.common.search.decision import repairs
from stages.common.search.screening import float_sets, toggled, variations
from stages.common.search.space import FORMATS, TYPES, Shape, Space


def space_of(folder, save, opset=18):
    preprocess(save(folder / "fp32.onnx"), folder / "preprocessed.onnx")
    model = onnx.load(folder / "preprocessed.onnx")
    model.opset_import[0].version = opset
    return Space(model)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """conv_1, relu_1, pool_1, conv_2, relu_2, pool_2, flatten, fc."""
    return space_of(tmp_path_factory.mktemp("plain"), save_plain)


@pytest.fixture(scope="module")
def residual(tmp_path_factory):
    return space_of(tmp_path_factory.mktemp("residual"), save_residual)


def every_shape(space):
    """Return all shapes of a space, valid or not: every pair of types, option and set of layers in floating point."""
    sets = itertools.chain.from_iterable(
        itertools.combinations(space.layers, count) for count in range(len(space.layers) + 1)
    )
    flags = itertools.product((False, True), repeat=4)
    return [
        Shape(activation, weight, quant_format, per_channel, reduce_range, in_float, float_output, swap)
        for in_float, (activation, weight), quant_format, (
            per_channel,
            reduce_range,
            float_output,
            swap,
        ) in itertools.product(sets, [*TYPES, ("QInt8", "QUInt8")], FORMATS, flags)
    ]


def test_every_valid_shape_is_a_recipe_that_params_yaml_accepts(plain):
    valid = [shape for shape in every_shape(plain) if plain.valid(shape)]
    assert valid
    for recipe in map(plain.recipe, valid):
        StaticRecipe.model_validate(recipe)
        assert recipe["quant_format"] == "QDQ" or "extra_options" not in recipe


def test_a_pair_without_kernels_and_a_copy_of_fp32_are_never_proposed(plain):
    assert not plain.valid(Shape("QInt8", "QUInt8"))
    assert not plain.valid(Shape(in_float=tuple(plain.layers)))


def test_per_channel_qdq_needs_opset_13(tmp_path):
    old = space_of(tmp_path, save_plain, opset=12)
    assert not old.valid(Shape(per_channel=True))
    assert old.valid(Shape(per_channel=True, quant_format="QOperator"))


def test_the_recipe_with_the_first_layer_in_floating_point_swaps_its_pool(plain):
    """The one that makes int8 pay on small networks; written out in full."""
    assert plain.recipe(Shape(in_float=("conv_1",), float_output=True)) == {
        "quant_format": "QDQ",
        "activation_type": "QUInt8",
        "weight_type": "QInt8",
        "nodes_to_exclude": ["conv_1", "relu_1", "pool_1"],
        "swap_relu_maxpool": ["pool_1"],
        "extra_options": {"OpTypesToExcludeOutputQuantization": ["Gemm"]},
    }


def test_only_pools_at_a_border_are_swapped(plain):
    """Behind a flatten there is a border, too; between two layers in floating point there is none."""
    assert plain.recipe(Shape(in_float=("conv_1", "conv_2")))["swap_relu_maxpool"] == ["pool_2"]
    assert "swap_relu_maxpool" not in plain.recipe(Shape(in_float=("fc",)))


def test_an_addition_stays_in_floating_point_only_if_all_that_it_adds_does(residual):
    assert residual.float_region(("conv_1", "conv_1a")) == ["conv_1", "relu_1", "pool", "conv_1a", "relu_1a"]
    whole_block = residual.float_region(("conv_1", "conv_1a", "conv_1b"))
    assert {"add_1", "relu_1b"} <= set(whole_block)


def test_what_the_search_goes_through_starts_with_the_ends_of_the_network_and_what_the_profile_names():
    layers = ["a", "b", "c", "d", "e"]
    sets = float_sets(layers, {"a": 5.0, "b": -3.0, "c": 2.0, "d": -1.0, "e": -1.0})
    assert sets[:3] == [("a",), ("e",), ("a", "e")]
    assert ("a", "c") in sets, "slower in integers"
    assert ("a", "b", "c") in sets, "and what would be quantized alone between two of those"
    assert len(set(sets)) == len(sets)


def test_a_layer_is_toggled_in_the_order_of_the_model():
    assert toggled(("a", "d"), "b", ["a", "b", "c", "d"]) == ("a", "b", "d")
    assert toggled(("a", "b", "d"), "b", ["a", "b", "c", "d"]) == ("a", "d")


def test_a_variation_changes_one_thing(plain):
    start = Shape(in_float=("conv_1",))
    for shape in variations(start):
        changed = [name for name in vars(start) if getattr(shape, name) != getattr(start, name)]
        assert set(changed) <= {"activation_type", "weight_type"} or len(changed) <= 1


def test_repairs_are_valid_recipes_with_settings_of_calibration_that_the_check_accepts(plain, params, repository):
    shape = Shape(in_float=("conv_1",))
    own = {"seed": 0, "images": 200, "batch_size": 20, "method": "MinMax", "symmetric": False}
    found = repairs(
        SimpleNamespace(shape=shape, recipe=plain.recipe(shape) | {"calibrate": own}), plain, narrow_sums=True
    )
    methods = [recipe.get("calibrate", {}).get("method") for recipe, _ in found]
    assert {"Percentile", "Entropy"} <= set(methods) and all(plain.valid(new) for _, new in found)
    assert any(recipe.get("reduce_range") for recipe, _ in found)
    assert replace(shape, per_channel=True) in [new for _, new in found]
    for place, (recipe, _) in enumerate(found):
        params["calibrate_quantize"][f"repair-{place}"] = recipe
        params["variants"].append(f"repair-{place}")
    check_params(params, repository)
