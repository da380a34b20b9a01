"""The sections of params.yaml that say how to quantize: recipes and calibration, each and together."""

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from stages.common.calibration.settings import METHODS, calibration_settings
from stages.common.preflight.fields import Count, Section, Seed, one_of

# Operator types that onnxruntime can quantize; importing its registry would cost 0.2 s at every `dvc repro`.
# A test holds them against onnxruntime.quantization.registry.
DYNAMIC_OP_TYPES = ("Attention", "Conv", "EmbedLayerNormalization", "Gather", "LSTM", "MatMul", "Transpose")
STATIC_OP_TYPES = (
    "Add", "ArgMax", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "ConvTranspose", "CumSum",
    "EmbedLayerNormalization", "Flatten", "Gather", "GatherElements", "Gemm", "GlobalAveragePool",
    "InstanceNormalization", "LayerNormalization", "LeakyRelu", "MatMul", "MaxPool", "Mul", "Pad", "Relu", "Reshape",
    "Resize", "Sigmoid", "Slice", "Softmax", "Split", "Squeeze", "TopK", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip
Int8Type = Annotated[str, one_of("QInt8", "QUInt8")]


def _makes_int8_scales(value):
    if value == "Distribution":
        raise ValueError(
            "Distribution gives scales for float8 only; with int8 onnxruntime takes the ends of its histogram: write MinMax with `symmetric: true`, which is the same"
        )
    return value


Method = Annotated[str, one_of(*METHODS), BeforeValidator(_makes_int8_scales)]


class OwnCalibrate(Section):
    """Any key of `calibrate`; which of them belong to a method is checked where both sections are known."""

    seed: Seed = None
    images: Count = None
    batch_size: Count = None
    method: Method = None
    symmetric: bool = None
    moving_average: bool = None
    averaging_constant: Annotated[float, Field(gt=0, le=1)] = None
    num_bins: Annotated[int, Field(ge=2, le=10_000)] = None  # above, onnxruntime's smoothing fails on a constant tensor
    num_quantized_bins: Annotated[int, Field(ge=2)] = None
    percentile: Annotated[float, Field(gt=0, le=100)] = None


class Calibrate(OwnCalibrate):
    seed: Seed
    images: Count
    batch_size: Count
    method: Method


class ExtraOptions(Section):
    """onnxruntime's own options, by its own names; it ignores unknown ones without a word, so they are refused here."""

    ActivationSymmetric: bool = False
    WeightSymmetric: bool = True
    ForceQuantizeNoInputCheck: bool = False
    MatMulConstBOnly: bool = False
    AddQDQPairToWeight: bool = False
    DedicatedQDQPair: bool = False
    QDQKeepRemovableActivations: bool = False
    QDQDisableWeightAdjustForInt32Bias: bool = False
    OpTypesToExcludeOutputQuantization: list[Annotated[str, one_of(*STATIC_OP_TYPES)]] = []


class DynamicRecipe(Section):
    weight_type: Int8Type
    per_channel: bool = False
    reduce_range: bool = False
    op_types_to_quantize: list[Annotated[str, one_of(*DYNAMIC_OP_TYPES)]] = Field(default=None, min_length=1)
    nodes_to_exclude: list[str] = []


class StaticRecipe(Section):
    quant_format: Annotated[str, one_of("QDQ", "QOperator")]
    activation_type: Int8Type
    weight_type: Int8Type
    per_channel: bool = False
    reduce_range: bool = False
    op_types_to_quantize: list[Annotated[str, one_of(*STATIC_OP_TYPES)]] = Field(default=None, min_length=1)
    nodes_to_exclude: list[str] = []
    swap_relu_maxpool: list[str] = []  # ours: see stages/common/calibration/graph_rewrites.py
    extra_options: ExtraOptions = {}
    calibrate: OwnCalibrate = {}

    @model_validator(mode="after")
    def a_pair_with_kernels(self):
        if (self.activation_type, self.weight_type) == ("QInt8", "QUInt8"):
            raise ValueError(
                "QInt8 activations with QUInt8 weights have no kernels: make `weight_type` QInt8 or `activation_type` QUInt8"
            )
        return self


def given_recipes(params):
    """Return {key: recipe} of the recipes that are given for one model each, in place of a search; fp32 is none."""
    return {
        f"tune.{model}.recipe": plan["recipe"]
        for model, plan in params["tune"].items()
        if isinstance(plan.get("recipe"), dict)
    }


def static_recipes(params):
    """Return {key: recipe} of all static recipes, of every model and of one."""
    shared = {f"calibrate_quantize.{name}": recipe for name, recipe in params["calibrate_quantize"].items()}
    return shared | given_recipes(params)


def calibrate_sections(params):
    """Yield (key, section, its settings) for `calibrate` and for every recipe that overrides some of it."""
    sections = {"calibrate": params["calibrate"]} | {
        f"{key}.calibrate": recipe["calibrate"]
        for key, recipe in static_recipes(params).items()
        if recipe.get("calibrate")
    }
    for where, section in sections.items():
        draw, how = calibration_settings(params["calibrate"], section)
        yield where, section, draw | how


def calibration_methods(params):
    """Yield what a calibration method does not use, or cannot work with."""
    of_methods = {key for parameters in METHODS.values() for key in parameters}
    for where, section, how in calibrate_sections(params):
        method = how["method"]
        for key in section:
            if key in of_methods and key not in METHODS[method]:
                yield f"`{where}.{key}` is no parameter of {method}, which uses {', '.join(METHODS[method])}: remove it"
        if "averaging_constant" in section and not how.get("moving_average", True):
            yield f"`{where}.averaging_constant` is used by a moving average only: set `moving_average: true`, or remove it"
        if method == "Entropy" and how["num_bins"] // 2 <= how["num_quantized_bins"] // 2:
            yield f"`{where}` has {how['num_bins']} `num_bins` and {how['num_quantized_bins']} `num_quantized_bins`, which leaves the search one threshold, and that is MinMax: ask for more `num_bins`"


def per_channel_opset(params):
    """Yield the recipes that cannot be made of a model that is exported in an older opset."""
    opset, trained = params["export"]["opset"], params["train"]
    exported = params | {"tune": {model: plan for model, plan in params["tune"].items() if model in trained}}
    for key, recipe in static_recipes(exported).items():
        if opset < 13 and trained and recipe.get("per_channel") and recipe["quant_format"] == "QDQ":
            yield f"`{key}` is per-channel QDQ, which needs opset >= 13, and `export.opset` is {opset}"
