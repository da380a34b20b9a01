"""The whole of params.yaml, checked at once: unknown keys, types, ranges, names, and what belongs together.

Only the `machine` stage imports this, because it runs first and always; a new parameter is a line here.
"""

import difflib
import math
import os
import re
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from stages.common.calibration.settings import METHODS, calibration_settings
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

FETCHED_IMAGES = {"fashion-mnist": {"train": 60_000, "test": 10_000}}  # known before the data is there
IN_EXPERIMENT = "DVC_EXP_BASELINE_REV"  # set by DVC for the stages of an experiment
NAMING = ("", "dataset", "fetch_data", "models", "train")  # the sections that name files
RESERVED_NAMES = {"fp32": "the baseline", "fp32-again": "the benchmark's control", "tuned": "what `tune` finds"}
TUNED = "tuned"


def nearest(word, words, prefix=""):
    """Return how to go on after an unknown word: the nearest known one, with `prefix` before it, or all of them."""
    words = list(words)
    if not words:
        return "there is none to name"
    match = difflib.get_close_matches(str(word), words, n=1, cutoff=0.6)
    return f"did you mean `{prefix}{match[0]}`?" if match else f"expected one of {', '.join(words)}"


NAME = "write a name of a-z, 0-9 and inner hyphens, in quotes if it looks like a number"


def _name(value):
    if not value or set(value) - set("abcdefghijklmnopqrstuvwxyz0123456789-") or value.strip("-") != value:
        raise ValueError(f"{value!r} cannot be a name: {NAME}")
    return value


def _one_of(*words):
    def check(value):
        if value not in words:
            raise ValueError(f"{value!r} is unknown: {nearest(value, words)}")
        return value

    return BeforeValidator(check)


def _version(value):
    """YAML reads an unquoted 1.20 as the number 1.2: a version has to be text."""
    if not isinstance(value, str) or not re.fullmatch(r"\d+\.\d+\.\d+", value):
        raise ValueError(f'{value!r} is not a version: write a full one in quotes, such as "1.20.1"')
    return value


def _per_channel(*, above=-math.inf):
    """Check one number or a list of numbers; pydantic's own words for a union name its inner types."""

    def check(value):
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float) or not above < number < math.inf:
                kind = "number" if above == -math.inf else f"number greater than {above}"
                raise ValueError(f"{number!r} is not a {kind}: write one for all channels, or a list of one a channel")
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
            for key in value:
                if key not in cls.model_fields:
                    raise PydanticCustomError(
                        "unknown_key", "{key}", {"key": str(key), "known": list(cls.model_fields)}
                    )
        return value


class FetchData(Section):
    timeout_seconds: Positive


class Input(Section):
    scale: Positive = 1
    mean: Annotated[Any, _per_channel()] = 0
    std: Annotated[Any, _per_channel(above=0)] = 1
    channels: Count = None
    repeat: Count = 1
    channels_last: bool = False
    dtype: Annotated[str, _one_of("float32", "uint8")] = "float32"

    @model_validator(mode="after")
    def a_number_a_channel(self):
        for key in ("mean", "std"):
            value = getattr(self, key)
            if isinstance(value, list) and self.channels and len(value) != self.channels:
                raise ValueError(
                    f"`{key}` has {len(value)} numbers: give one, or one for each of the {self.channels} channels"
                )
        return self

    @model_validator(mode="after")
    def pixels_that_are_not_touched(self):
        if self.dtype == "uint8" and (self.scale, self.mean, self.std) != (1, 0, 1):
            raise ValueError("`dtype` is uint8, so that the model scales inside: leave out `scale`, `mean` and `std`")
        return self


class ModelEvaluate(Section):
    images: Count
    output: str = None


class ModelBenchmark(Section):
    batches: list[Count] = Field(min_length=1)
    seconds: Positive

    @model_validator(mode="after")
    def each_batch_once(self):
        if len(set(self.batches)) < len(self.batches):
            raise ValueError("`batches` names a size twice")
        return self


class ModelExplain(Section):
    images: Count
    noise_images: Count


class Model(Section):
    input: Input
    evaluate: ModelEvaluate
    benchmark: ModelBenchmark
    explain: ModelExplain


class Train(Section):
    architecture: Annotated[str, _one_of("cnn", "cnn-small", "resnet18")]
    weights: Annotated[str, _one_of("none", "IMAGENET1K_V1")] = "none"
    images: Count = None
    test_images: Count = None
    epochs: Count
    batch_size: Count
    learning_rate: Positive
    seed: Seed
    threads: Count

    @model_validator(mode="after")
    def weights_that_are_published(self):
        if self.weights != "none" and self.architecture != "resnet18":
            raise ValueError(
                f"torchvision publishes no `weights` for {self.architecture}: remove `weights`, or make `architecture` resnet18"
            )
        return self


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


class VerifyLoad(Section):
    runtimes: list[Annotated[str, BeforeValidator(_version)]]
    images: Count
    strict: bool

    @model_validator(mode="after")
    def each_version_once(self):
        if len(set(self.runtimes)) < len(self.runtimes):
            raise ValueError("`runtimes` names a version twice")
        return self


class Evaluate(Section):
    batch_size: Count
    threads: Count


class Benchmark(Section):
    rounds: Annotated[int, Field(ge=2)]
    threads: Count
    warmup_calls: Count
    seed: Seed


class ExplainTime(Section):
    rounds: Annotated[int, Field(ge=2)]
    seconds: Positive


class Explain(Section):
    layers_of: Name
    time: ExplainTime


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


class Tune(Section):
    seconds: Positive
    objective: Annotated[str, _one_of("latency", "throughput", "size")]
    batch: Count
    max_drop: Annotated[float, Field(ge=0, le=100)]
    validation_images: Count
    seed: Seed


class Params(Section):
    dataset: Name
    fetch_data: dict[Name, FetchData]
    models: dict[Name, Model] = Field(min_length=1)
    train: dict[Name, Train]
    export: Export
    calibrate: Calibrate
    quantize_dynamic: dict[Name, DynamicRecipe]
    calibrate_quantize: dict[Name, StaticRecipe]
    tune: dict[Name, Tune]
    variants: list[Name]
    verify_load: VerifyLoad
    evaluate: Evaluate
    benchmark: Benchmark
    explain: Explain
    sensitivity: dict[Name, Sensitivity]


def check_params(params, root, further=None):
    """Raise UserError naming every mistake in `params`, the content of params.yaml in the folder `root`.

    `further(params, root)` yields mistakes in the files that the parameters name, which are listed with them; it is
    asked unless the sections that name files are wrong themselves.
    """
    root, others = Path(root), []
    try:
        Params.model_validate(params)
        mistakes = list(_what_does_not_belong_together(params, root))
        understood = True
    except ValidationError as error:
        mistakes = [_sentence(problem) for problem in error.errors()]
        understood = {str(problem["loc"][0]) if problem["loc"] else "" for problem in error.errors()}.isdisjoint(NAMING)
    if further and understood:
        others = list(further(params, root))
    found = [*mistakes, *others]
    if len(found) == 1:
        prefix = "params.yaml: " if mistakes else ""
        raise UserError(f"{prefix}{found[0]}" + ("" if found[0].endswith("?") else "."))
    if found:
        where = (
            "params.yaml has"
            if not others
            else "your files have"
            if not mistakes
            else "params.yaml and your files have"
        )
        raise UserError("\n  - ".join([f"{where} {len(found)} mistakes:", *found]))


# What to write, by pydantic's name of the error.
EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text, in quotes if it looks like a number",
    "list_type": "a list in brackets, [] if it holds nothing",
    "dict_type": "a mapping, {} if it holds nothing",
    "model_type": "its parameters below it, each on a line",
}
LIMITS = {
    "greater_than": "greater than {gt:.12g}",
    "greater_than_equal": "at least {ge:.12g}",
    "less_than": "less than {lt:.12g}",
    "less_than_equal": "at most {le:.12g}",
}


def _sentence(problem: dict[str, Any]):
    """Return pydantic's problem in the words of params.yaml: the key, what it is, and what to write."""
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    if not where and kind == "model_type":
        return "the file is not a mapping of parameters: write `key: value` lines"
    if kind == "unknown_key":
        prefix = f"{where}." if where else ""
        return f"`{prefix}{context['key']}` is not a parameter: {nearest(context['key'], context['known'], prefix)}"
    if where.endswith(".[key]"):
        return f"`{value}` under `{problem['loc'][0]}` cannot be a name: {NAME}"
    if kind == "missing":
        return f"`{where}` is missing: add it"
    if kind == "list_type" and isinstance(value, str):
        return f"`{where}` is {value!r}: write a list, [{value}]"
    if kind in EXPECTED:
        return f"`{where}` is {'blank' if value is None else repr(value)}: write {EXPECTED[kind]}"
    if kind in LIMITS:
        return f"`{where}` is {value!r}: it must be {LIMITS[kind].format(**context)}"
    if kind == "too_short":
        return f"`{where}` is empty: it needs at least {context['min_length']}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"`{where}`: {message}" if where else message


def _what_does_not_belong_together(params, root):
    yield from _variants_against_recipes(params)
    yield from _colliding_names(params)
    yield from _models_and_their_files(params, root)
    yield from _calibration_methods(params)
    yield from _images_asked_for(params, root)
    yield from _tune(params)
    if params["explain"]["layers_of"] == TUNED:
        yield "`explain.layers_of` is `tuned`, which the next search may change: paste its recipe under `calibrate_quantize` and name that"
    elif params["explain"]["layers_of"] not in params["calibrate_quantize"]:
        yield f"`explain.layers_of` is `{params['explain']['layers_of']}`, which is no static recipe: {nearest(params['explain']['layers_of'], params['calibrate_quantize'])}"
    yield from _sensitivity(params)
    if params["export"]["opset"] < 13 and params["train"]:
        for name, recipe in params["calibrate_quantize"].items():
            if recipe.get("per_channel") and recipe["quant_format"] == "QDQ":
                yield f"`calibrate_quantize.{name}` is per-channel QDQ, which needs opset >= 13, and `export.opset` is {params['export']['opset']}"


def _variants_against_recipes(params):
    dynamic, static, listed = params["quantize_dynamic"], params["calibrate_quantize"], params["variants"]
    for name in [*dynamic, *static]:
        if name in RESERVED_NAMES:
            yield f"a recipe is named `{name}`, which is the name of {RESERVED_NAMES[name]}: rename it"
        if name not in listed:
            yield f"the recipe `{name}` is not in `variants`: add it there, or remove the recipe"
    for name in sorted(set(dynamic) & set(static)):
        yield f"`{name}` is a recipe under both quantize_dynamic and calibrate_quantize: rename one"
    for name in sorted(set(listed)):
        if listed.count(name) > 1:
            yield f"`variants` names `{name}` {listed.count(name)} times: once is enough"
        if name not in dynamic and name not in static and name != TUNED:
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
            file = f"models/{name}/onnx/fp32.onnx"
            yield f"the model `{name}` is not under `train` and {missing(file)}, or add it to `train`"
        made_here = {"fp32", *params["variants"]}
        for file in sorted(folder.glob("*.onnx")):
            if file.stem not in made_here:
                yield f"models/{name}/onnx/{file.name} is made by no stage, and the benchmark depends on that folder: delete it or move it away"


def missing(file):
    """Return that a file of the user's own is missing and what to do; an experiment has only what DVC or Git follows."""
    if IN_EXPERIMENT in os.environ:
        return f"{file} is not tracked, so that this experiment does not have it: run `dvc add {file}` in your workspace and commit {file}.dvc"
    return f"{file} is missing: put it there and run `dvc add {file}`"


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


def _images_asked_for(params, root):
    dataset, wanted = params["dataset"], {"train": {}, "test": {}}
    for where, own, _ in _calibrate_sections(params):
        calibrate = {**params["calibrate"], **own}
        if calibrate["batch_size"] > calibrate["images"]:
            yield f"`{where}.batch_size` is {calibrate['batch_size']} and `{where}.images` is {calibrate['images']}: make the batch no larger than the set"
        wanted["train"][f"{where}.images"] = calibrate["images"]
    for name, plan in params["sensitivity"].items():
        wanted["train"][f"sensitivity.{name}.images"] = max(plan["images"])
        wanted["test"][f"sensitivity.{name}.test_images"] = plan["test_images"]
    for name, settings in params["train"].items():
        wanted["train"][f"train.{name}.batch_size"] = settings["batch_size"]
        wanted["train"][f"train.{name}.images"] = settings.get("images", 1)
        wanted["test"][f"train.{name}.test_images"] = settings.get("test_images", 1)
        if settings.get("images", math.inf) < settings["batch_size"]:
            yield f"`train.{name}.batch_size` is {settings['batch_size']} and `train.{name}.images` is {settings['images']}: make the batch no larger than the set"
    for name, settings in params["models"].items():
        wanted["test"][f"models.{name}.evaluate.images"] = settings["evaluate"]["images"]
        wanted["test"][f"models.{name}.benchmark.batches"] = max(settings["benchmark"]["batches"])
    for name, plan in params["tune"].items():
        wanted["train"][f"tune.{name}.batch"] = plan["batch"]
    wanted["test"]["verify_load.images"] = params["verify_load"]["images"]
    for part, counts in wanted.items():
        path = f"data/{dataset}/{part}-images.npy"
        here = (root / path).is_file() or (root / f"{path}.dvc").is_file()
        if not here and dataset not in params["fetch_data"]:
            yield f"`dataset` is `{dataset}`, which `fetch_data` does not fetch, and {missing(path)}"
            continue
        available = _stored_images(root / path) or FETCHED_IMAGES.get(dataset, {}).get(part)
        for key, count in counts.items():
            if available is not None and count > available:
                yield f"`{key}{'' if '`' in key else '`'} is {count} and {path} has {available} images: ask for fewer"


def _stored_images(path):
    """Return the number of images of an array, None if it is not there or damaged: that is for the stage that reads it."""
    try:
        return len(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, TypeError, OSError, EOFError):
        return None


def _tune(params):
    """`tuned` is a variant like any other, and every variant is one of all models."""
    for name in params["tune"]:
        if name not in params["models"]:
            yield f"`tune` names the model `{name}`, which is not in `models`: {nearest(name, params['models'])}"
    missing = [name for name in params["models"] if name not in params["tune"]]
    if params["tune"] and missing:
        yield f"`tune` lacks the model `{missing[0]}`: add it, since every variant is made of all models, or write `tune: {{}}`"
    if params["tune"] and TUNED not in params["variants"]:
        yield "`tune` makes the variant `tuned`, which is not in `variants`: add it there, or write `tune: {}`"
    if not params["tune"] and TUNED in params["variants"]:
        yield "`variants` names `tuned`, and `tune` is empty: put the models under `tune`, or take it out of `variants`"


def _sensitivity(params):
    for name, plan in params["sensitivity"].items():
        if name not in params["models"]:
            yield f"`sensitivity` names the model `{name}`, which is not in `models`: {nearest(name, params['models'])}"
        elif plan["test_images"] > params["models"][name]["evaluate"]["images"]:
            yield f"`sensitivity.{name}.test_images` is {plan['test_images']}, and the baseline predicts {params['models'][name]['evaluate']['images']} (`models.{name}.evaluate.images`): ask for fewer"
        if plan["variant"] not in params["calibrate_quantize"]:
            yield f"`sensitivity.{name}.variant` is `{plan['variant']}`, which is no recipe of `calibrate_quantize`: {nearest(plan['variant'], params['calibrate_quantize'])}"
