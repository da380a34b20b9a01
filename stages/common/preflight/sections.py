"""Every section of params.yaml with its keys, types and ranges: a new parameter is a line here, or in recipes.py."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, WrapValidator, model_validator

from stages.common.preflight.fields import (
    Count,
    Name,
    Positive,
    Rounds,
    Seconds,
    Section,
    Seed,
    Version,
    each_once,
    filled_list,
    one_of,
    per_channel,
)
from stages.common.preflight.recipes import Calibrate, DynamicRecipe, StaticRecipe

FEWEST_PROFILED = 7  # rounds: their smallest and largest have the median between them in 98.4 %, those of 6 in 96.9 %


def _enough_rounds(value):
    if value < FEWEST_PROFILED:
        raise ValueError(
            f"{value} rounds cannot show a cause, which takes an interval of 97 % confidence: write at least {FEWEST_PROFILED}"
        )
    return value


ProfiledRounds = Annotated[int, Field(le=1000), AfterValidator(_enough_rounds)]


class FetchData(Section):
    timeout_seconds: Seconds


class Input(Section):
    scale: Positive = 1
    mean: Annotated[Any, per_channel()] = 0
    std: Annotated[Any, per_channel(above=0)] = 1
    channels: Count = None
    repeat: Count = 1
    channels_last: bool = False
    dtype: Annotated[str, one_of("float32", "uint8")] = "float32"

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
    batches: filled_list(Count)
    seconds: Seconds
    rounds: Rounds = None
    each_batch_once = each_once("batches", "a size")


class ModelExplain(Section):
    images: Count
    noise_images: Count
    rounds: ProfiledRounds = None


class Model(Section):
    input: Input
    evaluate: ModelEvaluate
    benchmark: ModelBenchmark
    explain: ModelExplain


class Train(Section):
    architecture: Annotated[str, one_of("cnn", "cnn-small", "resnet18")]
    weights: Annotated[str, one_of("none", "IMAGENET1K_V1")] = "none"
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


class VerifyLoad(Section):
    runtimes: list[Version]
    images: Count
    strict: bool
    each_version_once = each_once("runtimes", "a version")


class Evaluate(Section):
    batch_size: Count
    threads: Count


class Benchmark(Section):
    rounds: Rounds
    threads: Count
    warmup_calls: Count
    seed: Seed


class ExplainTime(Section):
    rounds: ProfiledRounds
    seconds: Seconds


class Explain(Section):
    layers_of: Name
    time: ExplainTime


class Sensitivity(Section):
    variant: Name
    images: filled_list(Count)
    seeds: Annotated[int, Field(ge=2)]
    test_images: Count
    each_size_once = each_once("images", "a size")


def _or_fp32(value, validate):
    """Let a recipe be the word fp32: `tuned` is a copy of it."""
    if isinstance(value, str) and value != "fp32":
        raise ValueError(f"{value!r} is no recipe: write its parameters below it, or the word fp32")
    return value if value == "fp32" else validate(value)


class Tune(Section):
    seconds: Seconds
    objective: Annotated[str, one_of("latency", "throughput", "size")]
    batch: Count
    max_drop: Annotated[float, Field(ge=0, le=100)]
    validation_images: Count
    trained_images: Count = None
    seed: Seed
    recipe: Annotated[StaticRecipe, WrapValidator(_or_fp32)] = None


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
