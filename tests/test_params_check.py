"""A mistake in params.yaml is one clear sentence from the first stage: nothing is written, nothing long is started."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from onnxruntime.quantization import registry

from stages import machine
from stages.common.calibration.collection import draw_indices
from stages.common.preflight import threads, validation_room
from stages.common.preflight.params_check import check_params
from stages.common.preflight.recipes import DYNAMIC_OP_TYPES, STATIC_OP_TYPES
from stages.common.preflight.sections import Input, Train
from stages.common.workspace import UserError, load_params, run_main

RECIPE = "calibrate_quantize.static-u8s8"
S8 = {"quant_format": "QDQ", "activation_type": "QInt8", "weight_type": "QInt8"}
BEFORE = '{"cpu": "as it was"}\n'


@pytest.fixture
def refused(workspace, monkeypatch):
    """Return a function that runs the machine stage on a changed params.yaml and returns what it says in refusal."""
    monkeypatch.setattr(sys, "argv", ["machine", "metrics/machine.json"])
    monkeypatch.setattr(machine, "ensure_runtime", lambda runtime: pytest.fail("began to work on bad parameters"))

    def refuse(*changes, **arguments):
        folder = workspace(*changes, **arguments)
        Path("metrics").mkdir(exist_ok=True)
        Path("metrics/machine.json").write_text(BEFORE)
        with pytest.raises(SystemExit) as stop:
            run_main(machine.main)
        assert Path("metrics/machine.json").read_text() == BEFORE
        assert os.listdir("metrics") == ["machine.json"] and folder == Path.cwd()
        return stop.value.code

    return refuse


SENTENCES = [
    # a wrong value
    ("calibrate.seed", "zero", "`calibrate.seed` is 'zero': write a whole number"),
    ("calibrate.seed", 0.5, "`calibrate.seed` is 0.5: write a whole number"),
    ("calibrate.seed", True, "`calibrate.seed` is True: write a whole number"),
    ("calibrate.seed", -1, "`calibrate.seed` is -1: it must be at least 0"),
    ("train.cnn.seed", 2**32, "`train.cnn.seed` is 4294967296: it must be less than 4294967296"),
    ("train.cnn.batch_size", 0, "`train.cnn.batch_size` is 0: it must be at least 1"),
    ("train.cnn.learning_rate", 0, "`train.cnn.learning_rate` is 0: it must be greater than 0"),
    ("train.cnn.learning_rate", float("nan"), "`train.cnn.learning_rate` is nan: write a finite number"),
    (
        "train.cnn.architecture",
        "cnn-smal",
        "`train.cnn.architecture`: 'cnn-smal' is unknown: did you mean `cnn-small`?",
    ),
    ("calibrate.batch_size", 0, "`calibrate.batch_size` is 0: it must be at least 1"),
    ("calibrate.method", "MinMx", "`calibrate.method`: 'MinMx' is unknown: did you mean `MinMax`?"),
    ("models.cnn.evaluate.images", "50%", "`models.cnn.evaluate.images` is '50%': write a whole number"),
    ("models.cnn.evaluate.images", 0, "`models.cnn.evaluate.images` is 0: it must be at least 1"),
    ("models.cnn.evaluate.images", 0.5, "`models.cnn.evaluate.images` is 0.5: write a whole number"),
    (
        "models.cnn.input.std",
        "abc",
        "`models.cnn.input.std`: 'abc' is not a number greater than 0: write one for all channels, or a list of one a channel",
    ),
    (
        "models.cnn.input.std",
        [0.0],
        "`models.cnn.input.std`: 0.0 is not a number greater than 0: write one for all channels, or a list of one a channel",
    ),
    (
        "models.cnn.input.mean",
        [0.5, None],
        "`models.cnn.input.mean`: None is not a number: write one for all channels, or a list of one a channel",
    ),
    (
        "models.cnn.input.mean",
        [0.5, 0.4],
        "`models.cnn.input`: `mean` has 2 numbers: give one, or one for each of the 1 channels",
    ),
    ("models.cnn.benchmark.batches", [1, 32, 1], "`models.cnn.benchmark`: `batches` names a size twice"),
    ("models.cnn.benchmark.batches", [], "`models.cnn.benchmark.batches` is empty: it needs at least 1"),
    ("models.cnn.benchmark.batches", 1, "`models.cnn.benchmark.batches` is 1: write a list, [1]"),
    (
        "models.cnn.benchmark.batches",
        None,
        "`models.cnn.benchmark.batches` is blank: write a list in brackets, of at least one",
    ),
    ("benchmark.rounds", 1, "`benchmark.rounds` is 1: it must be at least 2"),
    ("benchmark.rounds", 100_000, "`benchmark.rounds` is 100000: it must be at most 1000"),
    ("models.cnn.benchmark.seconds", 1e9, "`models.cnn.benchmark.seconds` is 1000000000.0: it must be at most 86400"),
    ("tune.cnn.seconds", 90_000, "`tune.cnn.seconds` is 90000: it must be at most 86400"),
    ("models.resnet18.benchmark.rounds", 1, "`models.resnet18.benchmark.rounds` is 1: it must be at least 2"),
    (
        "explain.time.rounds",
        6,
        "`explain.time.rounds`: 6 rounds cannot show a cause, which takes an interval of 97 % confidence: write at least 7",
    ),
    (
        "models.resnet18.explain.rounds",
        3,
        "`models.resnet18.explain.rounds`: 3 rounds cannot show a cause, which takes an interval of 97 % confidence: write at least 7",
    ),
    ("benchmark.warmup_calls", 0, "`benchmark.warmup_calls` is 0: it must be at least 1"),
    ("verify_load.strict", "yes", "`verify_load.strict` is 'yes': write true or false"),
    (
        "verify_load.runtimes",
        [1.20],
        '`verify_load.runtimes[0]`: 1.2 is not a version: write a full one in quotes, such as "1.20.1"',
    ),
    (
        "verify_load.runtimes",
        ["1.20"],
        "`verify_load.runtimes[0]`: '1.20' is not a version: write a full one in quotes, such as \"1.20.1\"",
    ),
    # a wrong recipe
    (
        f"{RECIPE}.op_types_to_quantize",
        "Conv",
        f"`{RECIPE}.op_types_to_quantize` is 'Conv': write a list, [Conv]",
    ),
    (
        f"{RECIPE}.op_types_to_quantize",
        ["Conv", "Gem"],
        f"`{RECIPE}.op_types_to_quantize[1]`: 'Gem' is unknown: did you mean `Gemm`?",
    ),
    (f"{RECIPE}.op_types_to_quantize", [], f"`{RECIPE}.op_types_to_quantize` is empty: it needs at least 1"),
    (f"{RECIPE}.weight_type", "S4", f"`{RECIPE}.weight_type`: 'S4' is unknown: expected one of QInt8, QUInt8"),
    # a blank
    ("train", None, "`train` is blank: write a mapping, {} if it holds nothing"),
    ("fetch_data", None, "`fetch_data` is blank: write a mapping, {} if it holds nothing"),
    ("calibrate", None, "`calibrate` is blank: write its parameters below it, each on a line"),
    ("variants", None, "`variants` is blank: write a list in brackets, [] if it holds nothing"),
    ("benchmark.rounds", None, "`benchmark.rounds` is blank: write a whole number"),
    ("models", {}, "`models` is empty: it needs at least 1"),
    # a name
    (
        "dataset",
        "Fashion_MNIST",
        "`dataset`: 'Fashion_MNIST' cannot be a name: write a name of a-z, 0-9 and inner hyphens, in quotes if it looks like a number",
    ),
    # unknown keys
    ("calibrate.metod", "MinMax", "`calibrate.metod` is not a parameter: did you mean `calibrate.method`?"),
    ("calibration", {}, "`calibration` is not a parameter: did you mean `calibrate`?"),
    (
        f"{RECIPE}.extra_options",
        {"percentile": 90},
        f"`{RECIPE}.extra_options.percentile` is not a parameter: expected one of ActivationSymmetric, WeightSymmetric, "
        "ForceQuantizeNoInputCheck, MatMulConstBOnly, AddQDQPairToWeight, DedicatedQDQPair, QDQKeepRemovableActivations, "
        "QDQDisableWeightAdjustForInt32Bias, OpTypesToExcludeOutputQuantization",
    ),
    # what does not go together
    (
        "calibrate.batch_size",
        201,
        "`calibrate.batch_size` is 201 and `calibrate.images` is 200: make the batch no larger than the set",
    ),
    (
        "tune.cnn.objective",
        "speed",
        "`tune.cnn.objective`: 'speed' is unknown: expected one of latency, throughput, size",
    ),
    ("tune.cnn.seconds", 0, "`tune.cnn.seconds` is 0: it must be greater than 0"),
    ("tune.cnn.max_drop", -1, "`tune.cnn.max_drop` is -1: it must be at least 0"),
    (
        "tune.cnn.recipe",
        "fp23",
        "`tune.cnn.recipe`: 'fp23' is no recipe: write its parameters below it, or the word fp32",
    ),
    ("tune.cnn.recipe", None, "`tune.cnn.recipe` is blank: write its parameters below it, each on a line"),
    ("tune.cnn.recipe", ["fp32"], "`tune.cnn.recipe` is ['fp32']: write its parameters below it, each on a line"),
    (
        "tune.cnn.recipe",
        S8 | {"weight_type": "int8"},
        "`tune.cnn.recipe.weight_type`: 'int8' is unknown: did you mean `QInt8`?",
    ),
    (
        "tune.cnn.recipe",
        S8 | {"weight_type": "QUInt8"},
        "`tune.cnn.recipe`: QInt8 activations with QUInt8 weights have no kernels: make `weight_type` QInt8 or `activation_type` QUInt8",
    ),
    (
        "tune.cnn.recipe",
        S8 | {"seed": 1},
        "`tune.cnn.recipe.seed` is not a parameter: expected one of quant_format, activation_type, weight_type, per_channel, reduce_range, op_types_to_quantize, nodes_to_exclude, swap_relu_maxpool, extra_options, calibrate",
    ),
    (
        "tune.cnn.recipe",
        {"weight_type": "QInt8", "quant_format": "QDQ"},
        "`tune.cnn.recipe.activation_type` is missing: add it",
    ),
    (
        "tune.cnn.recipe",
        S8 | {"calibrate": {"percentile": 99}},
        "`tune.cnn.recipe.calibrate.percentile` is no parameter of MinMax, which uses symmetric, moving_average, averaging_constant: remove it",
    ),
    (
        "tune.cnn.recipe",
        S8 | {"calibrate": {"images": 60001}},
        "`tune.cnn.recipe.calibrate.images` is 60001 and data/fashion-mnist/train-images.npy has 60000 images: ask for fewer",
    ),
    (
        "tune.cnn.recipe",
        S8 | {"calibrate": {"images": 10}},
        "`tune.cnn.recipe.calibrate.batch_size` is 20 and `tune.cnn.recipe.calibrate.images` is 10: make the batch no larger than the set",
    ),
    (
        "tune.cnn.batch",
        60_001,
        "`tune.cnn.batch` is 60001 and data/fashion-mnist/train-images.npy has 60000 images: ask for fewer",
    ),
    (
        "calibrate.images",
        60_001,
        "`calibrate.images` is 60001 and data/fashion-mnist/train-images.npy has 60000 images: ask for fewer",
    ),
    (
        "models.cnn.evaluate.images",
        10_001,
        "`models.cnn.evaluate.images` is 10001 and data/fashion-mnist/test-images.npy has 10000 images: ask for fewer",
    ),
    (
        "models.cnn.benchmark.batches",
        [1, 10_001],
        "`models.cnn.benchmark.batches` is 10001 and data/fashion-mnist/test-images.npy has 10000 images: ask for fewer",
    ),
]


@pytest.mark.parametrize(
    ("key", "value", "sentence"), SENTENCES, ids=[f"{key}={value}"[:70] for key, value, _ in SENTENCES]
)
def test_a_wrong_value_is_refused_in_one_sentence(refused, key, value, sentence):
    end = "" if sentence.endswith("?") else "."
    assert refused({key: value}) == f"error: params.yaml: {sentence}{end}"


def test_the_parameters_of_the_repository_are_accepted(params, repository):
    check_params(params, repository)


def test_a_pair_of_types_without_kernels_is_refused_before_calibration(refused):
    """Signed activations with unsigned weights would fail only after calibration, inside onnxruntime."""
    assert refused({f"{RECIPE}.activation_type": "QInt8", f"{RECIPE}.weight_type": "QUInt8"}) == (
        f"error: params.yaml: `{RECIPE}`: QInt8 activations with QUInt8 weights have no kernels: "
        "make `weight_type` QInt8 or `activation_type` QUInt8."
    )


def test_per_channel_qdq_is_refused_below_opset_13(refused):
    """onnxruntime 1.32 writes such a file, and cannot load it."""
    assert refused({"export.opset": 12}) == (
        "error: params.yaml: `calibrate_quantize.static-s8s8-convgemm` is per-channel QDQ, which needs opset >= 13, "
        "and `export.opset` is 12."
    )
    given = {f"tune.{model}.recipe": S8 | {"per_channel": True} for model in ("cnn", "resnet18")}
    found = refused({"export.opset": 12, **given}).split("\n  - ")[1:]
    assert [text.split("`")[1] for text in found] == ["calibrate_quantize.static-s8s8-convgemm", *given]


def test_what_a_given_recipe_may_lose_on_this_processor_is_said_before_the_work(workspace, monkeypatch, capsys):
    workspace(
        {"tune.cnn.recipe": S8, "tune.cnn-small.recipe": S8 | {"reduce_range": True}, "tune.resnet18.recipe": "fp32"}
    )
    monkeypatch.setattr(machine, "best_int8_path", lambda flags: "avx2")
    monkeypatch.setattr(machine, "ensure_runtime", lambda runtime: True)
    machine.main("machine.json")
    [warning] = [line for line in capsys.readouterr().out.splitlines() if "no VNNI" in line]
    assert "`tune.cnn.recipe` belongs to it" in warning and warning.count("tune.") == 1


def test_a_missing_key_is_named(refused, params):
    del params["calibrate"]["seed"]
    assert refused() == "error: params.yaml: `calibrate.seed` is missing: add it."


def test_all_mistakes_are_named_at_once(refused):
    assert refused({"calibrate.seed": -1, "benchmark.rounds": 1}) == (
        "error: params.yaml has 2 mistakes:\n"
        "  - `calibrate.seed` is -1: it must be at least 0\n"
        "  - `benchmark.rounds` is 1: it must be at least 2"
    )


def test_a_file_that_is_no_mapping_is_refused(refused):
    assert refused(content=["calibrate"]) == (
        "error: params.yaml: the file is not a mapping of parameters: write `key: value` lines."
    )


def test_a_file_that_is_no_yaml_is_refused_with_the_place(refused, monkeypatch):
    monkeypatch.setattr(yaml, "safe_dump", lambda *_, **__: "calibrate: {seed: 0\n")
    message = refused()
    assert message.startswith("error: params.yaml is not valid YAML: ") and "line 2" in message and "\n" not in message


def test_a_missing_file_says_where_to_run(tmp_path):
    with pytest.raises(UserError, match=r"params.yaml is not here: run the stage from the root of the repository\.$"):
        load_params(tmp_path / "params.yaml")


def test_a_recipe_that_no_variant_lists_is_refused(refused, params):
    params["variants"].remove("static-u8s8")
    assert refused() == (
        "error: params.yaml: the recipe `static-u8s8` is not in `variants`: add it there, or remove the recipe."
    )


def test_a_variant_without_a_recipe_is_refused_with_the_nearest(refused, params):
    params["variants"].append("static-u8s9")
    assert refused() == (
        "error: params.yaml: `variants` names `static-u8s9`, which has no recipe: did you mean `static-u8s8`?"
    )


def test_a_variant_that_is_listed_twice_is_refused(refused, params):
    params["variants"].append("static-u8s8")
    assert refused() == "error: params.yaml: `variants` names `static-u8s8` 2 times: once is enough."


def test_a_recipe_in_both_sections_is_refused(refused, params):
    params["quantize_dynamic"]["static-u8s8"] = {"weight_type": "QInt8"}
    assert refused() == (
        "error: params.yaml: `static-u8s8` is a recipe under both quantize_dynamic and calibrate_quantize: rename one."
    )


@pytest.mark.parametrize(
    ("name", "owner"),
    [("fp32", "the baseline"), ("fp32-again", "the benchmark's control"), ("tuned", "what `tune` finds")],
)
def test_the_names_of_what_the_pipeline_makes_itself_are_reserved(refused, params, name, owner):
    params["variants"] = list(dict.fromkeys([*params["variants"], name]))
    assert refused({f"quantize_dynamic.{name}": {"weight_type": "QInt8"}}) == (
        f"error: params.yaml: a recipe is named `{name}`, which is the name of {owner}: rename it."
    )


def test_the_names_that_the_search_gives_to_what_it_tries_are_reserved(refused, params):
    params["variants"].append("searched-01")
    recipe = params["calibrate_quantize"]["static-u8s8"]
    assert refused({"calibrate_quantize.searched-01": recipe}) == (
        "error: params.yaml: a recipe is named `searched-01`: names that begin with `searched-` are those of what `tune` tries: rename it."
    )


def test_a_search_and_its_variant_belong_together(refused, params):
    """`tuned` is made for all models or for none, because every variant is."""
    models = list(params["models"])
    assert refused({"tune": {}}) == (
        "error: params.yaml: `variants` names `tuned`, and `tune` is empty: put the models under `tune`, or take it out of `variants`."
    )
    plan = {"seconds": 60, "objective": "latency", "batch": 1, "max_drop": 0.5, "validation_images": 500, "seed": 0}
    every = dict.fromkeys(models, plan)
    assert refused({"tune": every | {"cnm": plan}}) == (
        "error: params.yaml: `tune` names the model `cnm`, which is not in `models`: did you mean `cnn`?"
    )
    assert refused({"tune": dict.fromkeys(models[1:], plan)}) == (
        f"error: params.yaml: `tune` lacks the model `{models[0]}`: add it, since every variant is made of all models, or write `tune: {{}}`."
    )
    params["variants"].remove("tuned")
    assert refused({"tune": every}) == (
        "error: params.yaml: `tune` makes the variant `tuned`, which is not in `variants`: add it there, or write `tune: {}`."
    )


def test_without_a_search_and_its_variant_nothing_is_missing(params, repository, tmp_path):
    params["variants"].remove("tuned")
    check_params(params | {"tune": {}}, tmp_path)


def test_the_tuned_variant_cannot_be_taken_apart_by_a_stage_that_reads_recipes(refused):
    assert refused({"explain.layers_of": "tuned"}) == (
        "error: params.yaml: `explain.layers_of` is `tuned`, which is another recipe for every model: "
        "name one of `calibrate_quantize`, where it can be pasted if it fits them all."
    )


def test_names_that_dvc_would_join_into_one_stage_are_refused(refused, params):
    """(`a`, `b-c`) and (`a-b`, `c`) are both a-b-c, and DVC would run one of them without a word."""
    for model in ("a", "a-b"):
        params["models"][model], params["train"][model] = params["models"]["cnn"], params["train"]["cnn"]
    for recipe in ("b-c", "c"):
        params["quantize_dynamic"][recipe] = {"weight_type": "QUInt8"}
    params["variants"] += ["b-c", "c"]
    params["tune"] = dict.fromkeys(params["models"], params["tune"]["cnn"])
    assert refused() == (
        "error: params.yaml: model `a-b` with variant `c` and model `a` with variant `b-c` are both called a-b-c: rename one."
    )


@pytest.mark.parametrize("name", ["u8/s8", "U8S8", "-u8", "u8_s8", "", "1.0", 7, None, 1e-05])
def test_what_cannot_be_a_name_is_refused(refused, params, name):
    params["models"][name], params["train"]["cnn"] = params["models"]["cnn"], params["train"]["cnn"]
    message = refused()
    assert repr(name) in message or f"`{name}` under `models`" in message
    assert message.endswith("write a name of a-z, 0-9 and inner hyphens, in quotes if it looks like a number.")


def test_a_model_that_nobody_trains_has_to_be_there(refused, params):
    del params["train"]["cnn"]
    assert refused() == (
        "error: params.yaml: the model `cnn` is not under `train` and models/cnn/onnx/fp32.onnx is missing: "
        "put it there and run `dvc add models/cnn/onnx/fp32.onnx`, or add it to `train`."
    )


def test_a_trained_model_has_to_be_among_the_models(refused, params):
    params["train"]["cnn-smal"] = params["train"]["cnn-small"]
    assert refused() == (
        "error: params.yaml: `train` names the model `cnn-smal`, which is not in `models`: did you mean `cnn-small`?"
    )


def test_a_stray_file_among_the_shippable_ones_is_refused(refused, tmp_path):
    (tmp_path / "models/cnn/onnx").mkdir(parents=True)
    for name in ("fp32", "static-u8s8", "copy-of-fp32"):
        (tmp_path / f"models/cnn/onnx/{name}.onnx").touch()
    assert refused() == (
        "error: params.yaml: models/cnn/onnx/copy-of-fp32.onnx is made by no stage, and the benchmark depends on that folder: "
        "delete it or move it away."
    )


def test_a_dataset_that_is_not_fetched_has_to_be_there(refused):
    message = refused({"dataset": "birds"})
    for part in ("train", "test"):
        assert (
            f"`dataset` is `birds`, which `fetch_data` does not fetch, and data/birds/{part}-images.npy is missing: "
            f"put it there and run `dvc add data/birds/{part}-images.npy`"
        ) in message


def test_images_are_counted_in_the_arrays_that_are_there(refused, tmp_path):
    (tmp_path / "data/birds").mkdir(parents=True)
    for part, count in (("train", 150), ("test", 10_000)):
        np.save(tmp_path / f"data/birds/{part}-images.npy", np.arange(count * 4).reshape(-1, 1, 2, 2).astype(np.uint8))
        np.save(tmp_path / f"data/birds/{part}-labels.npy", np.zeros(count, np.int64))
    message = refused({"dataset": "birds", "sensitivity": {}, "train.resnet18.images": 150})
    for key, count in (("calibrate.images", 200), ("train.cnn.images", 54_000), ("tune.cnn.trained_images", 54_000)):
        assert f"`{key}` is {count} and data/birds/train-images.npy has 150 images: ask for fewer" in message
    assert "train.resnet18.images" not in message


@pytest.mark.parametrize("text", ["1e-5", "1E-05", "1.0e-5", "0.00001", "1.e-5"])
def test_a_number_is_read_as_dvc_reads_it(tmp_path, text):
    """YAML 1.1, which PyYAML speaks, takes 1e-5 for text."""
    (tmp_path / "params.yaml").write_text(f"learning_rate: {text}\n")
    assert load_params(tmp_path / "params.yaml") == {"learning_rate": 1e-5}


def test_a_large_number_with_an_exponent_is_read_as_dvc_reads_it(tmp_path):
    (tmp_path / "params.yaml").write_text("images: 1.5e3\nversion: '1e-5'\nname: 1e-5x\n")
    assert load_params(tmp_path / "params.yaml") == {"images": 1500.0, "version": "1e-5", "name": "1e-5x"}


def test_a_mean_and_std_of_each_channel_are_accepted():
    from_list = {"scale": 1.0, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2], "channels": 3, "repeat": 8}
    from_number = {"scale": 1, "mean": 0, "std": 1, "channels": 3, "repeat": 1}
    assert Input(**from_list).mean == [0.4, 0.5, 0.6] and Input(**from_number).std == 1


def test_operator_types_are_those_that_onnxruntime_can_quantize():
    """The check holds a copy, since importing onnxruntime would cost 0.2 s at every `dvc repro`."""
    static = {*registry.QLinearOpsRegistry, *registry.QDQRegistry}
    assert set(STATIC_OP_TYPES) == static
    assert set(DYNAMIC_OP_TYPES) == {*registry.IntegerOpsRegistry, *registry.CommonOpsRegistry}


def test_architectures_are_those_that_can_be_trained(repository):
    """The check holds a copy, since the networks import torch."""
    tree = ast.parse((repository / "stages/common/networks.py").read_text())
    [table] = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "ARCHITECTURES"
    ]
    settings = {"epochs": 1, "batch_size": 1, "learning_rate": 1, "seed": 0, "threads": 1}
    with pytest.raises(ValueError, match=f"expected one of {', '.join(key.value for key in table.keys)} "):
        Train(architecture="?", **settings)


def test_more_threads_for_sessions_than_there_are_cores_are_refused_with_the_number(refused, monkeypatch):
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)
    message = refused({"benchmark.threads": 5, "evaluate.threads": 64, "train.cnn.threads": 64})
    assert message.splitlines() == [
        "error: params.yaml has 2 mistakes:",
        "  - `benchmark.threads` is 5, and this machine has 4 logical cores: write 4 at most",
        "  - `evaluate.threads` is 64, and this machine has 4 logical cores: write 4 at most",
    ]


def test_the_parameters_of_the_repository_run_on_one_core(params):
    assert list(threads.threads_of_sessions(params, cores=1)) == []


def with_training_images(tmp_path, count):
    (tmp_path / "data/fashion-mnist").mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (count, 1, 2, 2), np.uint8)
    np.save(tmp_path / "data/fashion-mnist/train-images.npy", images)


def test_a_search_that_calibration_leaves_no_image_to_judge_by_is_refused_before_training(refused, params, tmp_path):
    for name in ("cnn-small", "resnet18"):
        params["tune"][name]["recipe"] = "fp32"
    with_training_images(tmp_path, 250)
    trained = {"cnn": 0, "cnn-small": 30, "resnet18": 250}
    for name, count in trained.items():
        params["tune"][name]["trained_images"] = count
        params["train"][name]["images"] = 250
    del params["tune"]["cnn"]["trained_images"]
    message = refused({"calibrate.images": 250, "sensitivity": {}})
    for name, count in trained.items():
        known = (
            f"the network knows {count} (`tune.{name}.trained_images`) and calibration takes the others: make either"
        )
        assert (
            f"`tune.{name}` has no image to judge by: of 250 in data/fashion-mnist/train-images.npy "
            f"{known if count else 'calibration takes all: make it'} smaller, or add training images"
        ) in message


def test_more_images_that_a_network_knows_than_there_are_are_refused(refused, tmp_path):
    with_training_images(tmp_path, 250)
    message = refused({"tune.resnet18.trained_images": 251})
    assert "`tune.resnet18.trained_images` is 251 and data/fashion-mnist/train-images.npy has 250 images" in message


def test_a_search_that_is_told_of_fewer_images_than_are_trained_on_is_refused(refused, params):
    del params["train"]["cnn-small"]["images"]
    message = refused({"train.cnn.images": 54_001})
    for model, images in (("cnn", 54_001), ("cnn-small", 60_000)):
        assert (
            f"`train.{model}` trains on the first {images} images and `tune.{model}.trained_images` is 54000: make them the "
            "same, or the search judges by images that the network knows"
        ) in message
    assert "train.resnet18" not in message


def test_a_search_that_is_not_told_which_images_its_network_knows_is_warned_of(params, tmp_path):
    assert list(validation_room.few_validation_images(params, tmp_path)) == []
    del params["tune"]["resnet18"]["trained_images"], params["tune"]["cnn"]["trained_images"]
    params["tune"]["cnn"]["recipe"] = "fp32"  # nothing is judged
    assert list(validation_room.few_validation_images(params, tmp_path)) == [
        "`train.resnet18` trains on 1000 images and `tune.resnet18.trained_images` does not say so: the search may judge by "
        "images that the network knows"
    ]
    del params["train"]["resnet18"]
    assert list(validation_room.few_validation_images(params, tmp_path)) == []


def test_the_images_left_for_a_search_are_those_of_no_draw_at_all(params, tmp_path):
    """The shared draw and that of every recipe; of a recipe that is given, its own alone. Counted, not added up."""
    with_training_images(tmp_path, 250)
    params["calibrate_quantize"]["static-s8s8"]["calibrate"] = {"seed": 1}
    params["tune"]["cnn-small"]["recipe"] = S8 | {"calibrate": {"images": 100}}
    draws = [set(draw_indices(seed=seed, images=200, available=250)) for seed in (0, 1)]
    together = set.union(*draws)
    assert 200 < len(together) < 250
    del params["tune"]["cnn"]["trained_images"], params["tune"]["cnn-small"]["trained_images"]
    params["tune"]["resnet18"]["trained_images"] = params["train"]["resnet18"]["images"] = 100
    behind = set(range(100, 250)) - together
    found = {model: left for model, left, _ in validation_room.rooms(params, tmp_path)}
    assert found == {"cnn": 250 - len(together), "cnn-small": 150, "resnet18": len(behind)}
    assert 0 < len(behind) < 250 - len(together)
    assert list(validation_room.no_validation_images(params, tmp_path)) == []
    assert next(validation_room.few_validation_images(params, tmp_path)) == (
        "`tune.cnn.validation_images` is 5000, and training and calibration leave "
        f"{250 - len(together)} of 250 training images: it judges by {250 - len(together)} at most"
    )


def test_a_search_among_all_of_the_fetched_images_has_room_before_they_are_there(params, tmp_path):
    left = {model: left for model, left, available in validation_room.rooms(params, tmp_path) if available == 60_000}
    assert left == {"cnn": 5800, "cnn-small": 5800, "resnet18": 58_800}
    params["calibrate"]["images"] = 60_000
    assert len(list(validation_room.no_validation_images(params, tmp_path))) == 3


def test_the_command_ends_with_one_line_and_exit_code_1(workspace, repository):
    folder = workspace({"calibrate.metod": "MinMax"})
    done = subprocess.run(
        [sys.executable, "-m", "stages.machine", "metrics/machine.json"],
        env={**os.environ, "PYTHONPATH": str(repository)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    sentence = "error: params.yaml: `calibrate.metod` is not a parameter: did you mean `calibrate.method`?\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)
    assert os.listdir(folder) == ["params.yaml"]
