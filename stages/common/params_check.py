"""The whole of params.yaml, checked at once: unknown keys, types, ranges, names, and what belongs together.

Only the `machine` stage imports this, because it runs first and always; a new parameter is a line here.
"""

import difflib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from stages.common.calibration_settings import METHODS, calibration_settings
from stages.common.workspace import UserError

# Operator types that onnxruntime can quantize; importing its registry would cost 0.2 s at every `dvc repro`.
# A test holds them against onnxruntime.quantization.registry.
DYNAMIC_OP_TYPES = ("Attention", "Conv", "EmbedLayerNormalization", "Gather", "LSTM", "MatMul", "Transpose")
STATIC_OP_TYPES = (
    "Add", "ArgMax", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "ConvTranspose", "CumSum",
    "EmbedLayerNormalization", "Flatten", "Gather", "GatherElements", "Gemm", "GlobalAveragePool",
    "InstanceNormalization", "LayerNormalization", "LeakyRelu", "MatMul", "MaxPool", "Mul", "Pad", "Relu", "Reshape",
    "Resize", "Sigmoid", "Slice", "Softmax", "Split", "Squeeze", "TopK", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip

FETCHED_TRAINING_IMAGES = {"fashion-mnist": 60_000}  # known before the data is there
RESERVED_NAMES = ("fp32", "fp32-again")


def nearest(word, words):
    """Return how to go on after an unknown word: the nearest known one, or all of them."""
    words = list(words)
    match = difflib.get_close_matches(str(word), words, n=1, cutoff=0.6)
    return f"did you mean `{match[0]}`?" if match else f"expected one of {', '.join(words)}"


def _name(value):
    if not value or set(value) - set("abcdefghijklmnopqrstuvwxyz0123456789-") or value.strip("-") != value:
        raise ValueError("a name is made of a-z, 0-9 and inner hyphens")
    return value


def _one_of(*words):
    def check(value):
        if value not in words:
            raise ValueError(f"{value!r} is unknown: {nearest(value, words)}")
        return value

    return BeforeValidator(check)


Name = Annotated[str, AfterValidator(_name)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Int8Type = Annotated[str, _one_of("QInt8", "QUInt8")]


class Section(BaseModel):
    """A mapping of params.yaml: no unknown key, no conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def refuse_unknown_keys(cls, value):
        if isinstance(value, dict):
            unknown = [
                f"`{key}` is not a parameter: {nearest(key, cls.model_fields)}"
                for key in value
                if key not in cls.model_fields
            ]
            if unknown:
                raise ValueError("; ".join(unknown))
        return value


class FetchData(Section):
    timeout_seconds: Positive


class Input(Section):
    scale: Positive
    mean: Annotated[float, Field(allow_inf_nan=False)] | list[Annotated[float, Field(allow_inf_nan=False)]]
    std: Positive | list[Positive]
    channels: Count
    repeat: Count

    @model_validator(mode="after")
    def a_number_a_channel(self):
        for key in ("mean", "std"):
            value = getattr(self, key)
            if isinstance(value, list) and len(value) != self.channels:
                raise ValueError(
                    f"`{key}` has {len(value)} numbers: give one, or one for each of the {self.channels} channels"
                )
        return self


class ModelEvaluate(Section):
    images: Count


class ModelBenchmark(Section):
    batches: list[Count] = Field(min_length=1)
    seconds: Positive

    @model_validator(mode="after")
    def each_batch_once(self):
        if len(set(self.batches)) < len(self.batches):
            raise ValueError("`batches` names a size twice")
        return self


class Model(Section):
    input: Input
    evaluate: ModelEvaluate
    benchmark: ModelBenchmark


class Train(Section):
    architecture: Annotated[str, _one_of("cnn", "cnn-small")]
    epochs: Count
    batch_size: Count
    learning_rate: Positive
    seed: Seed
    threads: Count


class Export(Section):
    opset: Annotated[int, Field(ge=7)]
    max_abs_difference: Positive


def _method(value):
    if value == "Distribution":
        raise ValueError(
            "Distribution gives scales for float8 only; with int8 onnxruntime takes the ends of its histogram: write MinMax with `symmetric: true`, which is the same"
        )
    return value


class OwnCalibrate(Section):
    """Any key of `calibrate`; which of them belong to a method is checked where both sections are known."""

    seed: Seed = None
    images: Count = None
    batch_size: Count = None
    method: Annotated[str, _one_of(*METHODS), BeforeValidator(_method)] = None
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
    method: Annotated[str, _one_of(*METHODS), BeforeValidator(_method)]


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
    OpTypesToExcludeOutputQuantization: list[Annotated[str, _one_of(*STATIC_OP_TYPES)]] = []


class DynamicRecipe(Section):
    weight_type: Int8Type
    per_channel: bool = False
    reduce_range: bool = False
    op_types_to_quantize: list[Annotated[str, _one_of(*DYNAMIC_OP_TYPES)]] = Field(default=None, min_length=1)
    nodes_to_exclude: list[str] = []


class StaticRecipe(Section):
    quant_format: Annotated[str, _one_of("QDQ", "QOperator")]
    activation_type: Int8Type
    weight_type: Int8Type
    per_channel: bool = False
    reduce_range: bool = False
    op_types_to_quantize: list[Annotated[str, _one_of(*STATIC_OP_TYPES)]] = Field(default=None, min_length=1)
    nodes_to_exclude: list[str] = []
    extra_options: ExtraOptions = {}
    calibrate: OwnCalibrate = {}

    @model_validator(mode="after")
    def a_pair_with_kernels(self):
        if (self.activation_type, self.weight_type) == ("QInt8", "QUInt8"):
            raise ValueError(
                "QInt8 activations with QUInt8 weights have no kernels: make `weight_type` QInt8 or `activation_type` QUInt8"
            )
        return self


class VerifyLoad(Section):
    runtimes: list[Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]]
    images: Count
    strict: bool


class Evaluate(Section):
    batch_size: Count
    threads: Count


class Benchmark(Section):
    rounds: Annotated[int, Field(ge=2)]
    threads: Count
    warmup_calls: Count
    seed: Seed


class Sensitivity(Section):
    variant: Name
    images: list[Count] = Field(min_length=1)
    seeds: Annotated[int, Field(ge=2)]
    test_images: Count

    @model_validator(mode="after")
    def each_size_once(self):
        if len(set(self.images)) < len(self.images):
            raise ValueError("`images` names a size twice")
        return self


class Params(Section):
    dataset: Name
    fetch_data: dict[Name, FetchData]
    models: dict[Name, Model] = Field(min_length=1)
    train: dict[Name, Train]
    export: Export
    calibrate: Calibrate
    quantize_dynamic: dict[Name, DynamicRecipe]
    calibrate_quantize: dict[Name, StaticRecipe]
    variants: list[Name]
    verify_load: VerifyLoad
    evaluate: Evaluate
    benchmark: Benchmark
    sensitivity: dict[Name, Sensitivity]


def check_params(params, root):
    """Raise UserError naming every mistake in `params`, the content of params.yaml in the folder `root`."""
    try:
        Params.model_validate(params)
        mistakes = list(_what_does_not_belong_together(params, Path(root)))
    except ValidationError as error:
        mistakes = [_sentence(problem) for problem in error.errors()]
    if len(mistakes) == 1:
        raise UserError(f"params.yaml: {mistakes[0]}.")
    if mistakes:
        raise UserError("\n  - ".join([f"params.yaml has {len(mistakes)} mistakes:", *mistakes]))


def _sentence(problem: dict[str, Any]):
    where = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"] if part != "[key]"
    ).lstrip(".")
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"`{where}`: {message}" if where else message
    if problem["type"] == "missing":
        return f"`{where}` is missing"
    if problem["type"] == "string_pattern_mismatch":
        return f"`{where}` is {problem['input']!r}: write a full version such as 1.20.1, in quotes"
    hint = " (write {} if it holds nothing)" if problem["input"] is None else ""
    return f"`{where}` is {problem['input']!r}: {message[0].lower()}{message[1:]}{hint}"


def _what_does_not_belong_together(params, root):
    yield from _variants_against_recipes(params)
    yield from _colliding_names(params)
    yield from _models_and_their_files(params, root)
    yield from _calibration_methods(params)
    yield from _calibration_set(params, root)
    yield from _sensitivity(params)
    if params["export"]["opset"] < 13 and params["train"]:
        for name, recipe in params["calibrate_quantize"].items():
            if recipe.get("per_channel") and recipe["quant_format"] == "QDQ":
                yield f"`calibrate_quantize.{name}` is per-channel QDQ, which needs opset >= 13, and `export.opset` is {params['export']['opset']}"


def _variants_against_recipes(params):
    dynamic, static, listed = params["quantize_dynamic"], params["calibrate_quantize"], params["variants"]
    for name in [*dynamic, *static]:
        if name in RESERVED_NAMES:
            yield f"a recipe is named `{name}`, which the baseline is: rename it"
        if name not in listed:
            yield f"the recipe `{name}` is not in `variants`: add it there, or remove the recipe"
    for name in sorted(set(dynamic) & set(static)):
        yield f"`{name}` is a recipe under both quantize_dynamic and calibrate_quantize: rename one"
    for name in sorted(set(listed)):
        if listed.count(name) > 1:
            yield f"`variants` names `{name}` {listed.count(name)} times: once is enough"
        if name not in dynamic and name not in static:
            yield f"`variants` names `{name}`, which has no recipe: {nearest(name, [*dynamic, *static])}"


def _colliding_names(params):
    """DVC joins matrix names with a hyphen: (`a`, `b-c`) and (`a-b`, `c`) would be one stage."""
    seen = {}
    for model in params["models"]:
        for variant in dict.fromkeys(params["variants"]):
            stage = f"{model}-{variant}"
            if stage in seen:
                other = seen[stage]
                yield f"model `{model}` with variant `{variant}` and model `{other[0]}` with variant `{other[1]}` are both called {stage}: rename one"
            seen[stage] = (model, variant)


def _models_and_their_files(params, root):
    for name in params["train"]:
        if name not in params["models"]:
            yield f"`train` names the model `{name}`, which is not in `models`: {nearest(name, params['models'])}"
    for name in params["models"]:
        folder = root / "models" / name / "onnx"
        if (
            name not in params["train"]
            and not (folder / "fp32.onnx").is_file()
            and not (folder / "fp32.onnx.dvc").is_file()
        ):
            yield f"the model `{name}` is not under `train` and models/{name}/onnx/fp32.onnx is missing: put it there, or add it to `train`"
        made_here = {"fp32", *params["variants"]}
        for file in sorted(folder.glob("*.onnx")):
            if file.stem not in made_here:
                yield f"models/{name}/onnx/{file.name} is made by no stage, and the benchmark depends on that folder: delete it or move it away"


def _calibrate_sections(params):
    """Yield (key, section, how the calibration is done) for `calibrate` and for every recipe that overrides some of it."""
    shared = params["calibrate"]
    yield "calibrate", shared, calibration_settings(shared, {})[1]
    for name, recipe in params["calibrate_quantize"].items():
        if own := recipe.get("calibrate"):
            yield f"calibrate_quantize.{name}.calibrate", own, calibration_settings(shared, own)[1]


def _calibration_methods(params):
    of_methods = {key for parameters in METHODS.values() for key in parameters}
    for where, section, how in _calibrate_sections(params):
        method = how["method"]
        for key in section:
            if key in of_methods and key not in METHODS[method]:
                yield f"`{where}.{key}` is no parameter of {method}, which uses {', '.join(METHODS[method])}: remove it"
        if "averaging_constant" in section and not how.get("moving_average", True):
            yield f"`{where}.averaging_constant` is used by a moving average only: set `moving_average: true`, or remove it"
        if method == "Entropy" and how["num_bins"] // 2 <= how["num_quantized_bins"] // 2:
            yield f"`{where}` has {how['num_bins']} `num_bins` and {how['num_quantized_bins']} `num_quantized_bins`, which leaves the search one threshold, and that is MinMax: ask for more `num_bins`"


def _sensitivity(params):
    for name, plan in params["sensitivity"].items():
        if name not in params["models"]:
            yield f"`sensitivity` names the model `{name}`, which is not in `models`: {nearest(name, params['models'])}"
        elif plan["test_images"] > params["models"][name]["evaluate"]["images"]:
            yield f"`sensitivity.{name}.test_images` is {plan['test_images']}, and the baseline predicts {params['models'][name]['evaluate']['images']} (`models.{name}.evaluate.images`): ask for fewer"
        if plan["variant"] not in params["calibrate_quantize"]:
            yield f"`sensitivity.{name}.variant` is `{plan['variant']}`, which is no recipe of `calibrate_quantize`: {nearest(plan['variant'], params['calibrate_quantize'])}"


def _calibration_set(params, root):
    dataset = params["dataset"]
    path = root / "data" / dataset / "train-images.npy"
    if path.is_file():
        try:
            available = len(np.load(path, mmap_mode="r", allow_pickle=False))
        except (ValueError, OSError, EOFError):
            available = None  # a damaged array is for the stage that makes or reads it to name
    elif dataset in params["fetch_data"]:
        available = FETCHED_TRAINING_IMAGES.get(dataset)
    else:
        yield f"`dataset` is `{dataset}`, which `fetch_data` does not fetch, and data/{dataset}/train-images.npy is missing: put the arrays there"
        return
    wanted = {where: section["images"] for where, section, _ in _calibrate_sections(params) if "images" in section}
    wanted |= {f"sensitivity.{model}": max(plan["images"]) for model, plan in params["sensitivity"].items()}
    for where, images in wanted.items():
        if available is not None and images > available:
            yield f"`{where}.images` is {images} and the dataset has {available} training images: ask for fewer"
