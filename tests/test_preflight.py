"""What keeps a model or data of the user's own from being measured is named in seconds, all at once, with what to do."""

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, external_data_helper, helper, numpy_helper
from own_models import CLASSES, Classifier, images_like, own_params, save_data

from stages import machine
from stages.common.calibration.collection import collect_ranges
from stages.common.calibration.static_quantization import quantize
from stages.common.preflight.files import IN_EXPERIMENT
from stages.common.preflight.own_models import own_mistakes, untracked
from stages.common.preflight.params_check import check_params
from stages.common.preprocessing import preprocess
from stages.common.session.runtime import open_session
from stages.common.workspace import UserError

WHERE = "models/theirs/onnx/fp32.onnx"
SHAPE = (2, 6, 6)
U8S8 = {"quant_format": "QDQ", "activation_type": "QUInt8", "weight_type": "QInt8"}


def network(batch="N", shape=SHAPE, channels=2, **arguments):
    net = Classifier(shape, batch=batch, **arguments).conv(8, channels, 3, 3)
    return net.add("GlobalAveragePool").add("Flatten").dense(CLASSES, 8)


@pytest.fixture
def own(workspace, params):
    """Return a function that says what is wrong in an empty repository with a model "theirs" and arrays that fit it.

    It is given the model (a Classifier, or what was saved under WHERE already) and changes of the parameters.
    """
    save_data("data/own", SHAPE)

    def mistakes(net=None, **settings):
        if net is not None:
            net.save(WHERE)
        return list(own_mistakes(own_params(params, **settings), Path()))

    return mistakes


def test_a_model_and_data_that_fit_have_no_mistakes(own):
    assert own(network()) == []


PLAN = {"seconds": 2.0, "objective": "latency", "batch": 1, "max_drop": 0.5, "validation_images": 10, "seed": 0}


def test_a_search_needs_the_labels_of_training_images_or_to_be_told_that_there_are_none(own, params):
    network().save(WHERE)
    searched = own_params(params) | {"tune": {"theirs": PLAN}}
    Path("data/own/train-labels.npy").unlink(missing_ok=True)
    [mistake] = own_mistakes(searched, Path())
    assert mistake.startswith("`tune` judges by labels, and data/own/train-labels.npy is missing: put it there")
    command = re.search("`(python -c .*)` says so$", mistake)[1]
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True)
    assert list(own_mistakes(searched, Path())) == []
    np.save("data/own/train-labels.npy", 1 + np.arange(len(np.load("data/own/train-images.npy"))) % 5)
    assert list(own_mistakes(searched, Path())) == [
        f"data/own/train-labels.npy has labels from 1 to 5, and {WHERE} has 5 classes, 0 to 4: number the labels as the model does"
    ]


def test_a_search_times_the_batch_that_the_file_fixes(own, params):
    network(batch=4).save(WHERE)
    np.save("data/own/train-labels.npy", np.empty(0, np.int64))
    searched = own_params(params, batches=[4]) | {"tune": {"theirs": PLAN}}
    assert list(own_mistakes(searched, Path())) == [
        f"`tune.theirs.batch` is 1, and {WHERE} takes batches of 4 only: write 4, or export it with a free batch"
    ]


def test_the_check_takes_about_a_second(own, params):
    network().save(WHERE)
    code = "from stages.common.preflight.own_models import own_mistakes; from stages.common.workspace import load_params; from pathlib import Path; assert not list(own_mistakes(load_params(), Path()))"
    Path("params.yaml").write_text(yaml.safe_dump(own_params(params)))
    start = time.monotonic()
    root = Path(machine.__file__).parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(root), "PATH": ""})
    assert time.monotonic() - start < 10  # 0.6 s on a quiet machine


def test_without_a_model_of_the_users_own_onnx_is_not_imported(repository):
    code = "import sys, stages.machine; sys.exit('onnx' in sys.modules or 'onnxruntime' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=repository, check=True)


# The graph


def test_a_file_that_is_no_model_is_named(own):
    Path(WHERE).parent.mkdir(parents=True)
    Path(WHERE).write_bytes(b"version https://git-lfs.github.com/spec/v1")
    [mistake] = own()
    assert mistake.startswith(f"{WHERE} is not an ONNX model (") and mistake.endswith("): export it again")


def test_two_real_inputs_are_one_too_many_and_weights_are_none(own):
    net = network()
    net.save(WHERE, ir_version=3, opset=9, weights_as_inputs=True)
    assert own() == []
    model = onnx.load(WHERE)
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["N", 1]))
    onnx.save(model, WHERE)
    assert own() == [
        f"{WHERE} has 2 inputs ('pixels:0', 'mask'), and one is expected, a batch of images: export it with the others as constants"
    ]


@pytest.mark.parametrize(
    ("dtype", "name"), [(TensorProto.DOUBLE, "float64"), (TensorProto.FLOAT16, "float16"), (TensorProto.INT32, "int32")]
)
def test_an_input_that_is_neither_float32_nor_uint8_is_refused(own, dtype, name):
    net = (
        Classifier(SHAPE, dtype=dtype).add("Cast", to=TensorProto.FLOAT).conv(CLASSES, 2, 3, 3).add("GlobalAveragePool")
    )
    assert own(net) == [
        f"{WHERE} takes {name} (input 'pixels:0'), and float32 or uint8 is expected: export it for float32"
    ]


def test_a_model_of_pixels_needs_its_key_and_only_it(own):
    net = Classifier(SHAPE, dtype=TensorProto.UINT8).add("Cast", to=TensorProto.FLOAT).conv(CLASSES, 2, 3, 3)
    net.add("GlobalAveragePool")
    save_data("data/own", SHAPE, dtype=np.uint8)
    assert own(net, input={"dtype": "uint8"}) == []
    [mistake] = own()
    assert (
        mistake
        == f"{WHERE} takes uint8 (input 'pixels:0'), and `input.dtype` of the model is float32: write `dtype: uint8` there"
    )
    [mistake] = own(network(), input={"dtype": "uint8"})
    assert mistake == f"{WHERE} takes float32 (input 'pixels:0'), and `input.dtype` of the model is uint8: take it out"


def test_half_precision_weights_are_refused_by_type_and_name(own):
    net = Classifier(SHAPE, batch="N")
    net.add("Cast", to=TensorProto.FLOAT16)
    net.add("Conv", net.normal(CLASSES, 2, 3, 3).astype(np.float16)).add("Cast", to=TensorProto.FLOAT)
    assert own(net.add("GlobalAveragePool")) == [
        f"{WHERE} has weights in float16 ('w0'), and the baseline is float32: export it in float32"
    ]


def test_our_own_output_given_back_as_a_model_is_already_quantized(own, tmp_path):
    preprocess(network().save(tmp_path / "fp32.onnx"), tmp_path / "preprocessed.onnx")
    batch = images_like(SHAPE, 8, 0)
    ranges = collect_ranges(tmp_path / "preprocessed.onnx", lambda: [batch], method="MinMax")
    Path(WHERE).parent.mkdir(parents=True, exist_ok=True)
    for quant_format in ("QDQ", "QOperator"):
        quantize(tmp_path / "preprocessed.onnx", WHERE, ranges, **U8S8 | {"quant_format": quant_format})
        [mistake] = own()
        assert re.fullmatch(rf"{WHERE} is already quantized \(\w+ .*\): put the float32 model there", mistake)


def test_a_model_that_onnxruntime_optimized_is_refused_by_operator(own, tmp_path):
    path = network().save(tmp_path / "fp32.onnx")
    Path(WHERE).parent.mkdir(parents=True)
    open_session(path, threads=1, optimized_model_filepath=WHERE)
    mistake = own()[0]
    assert re.match(
        rf"{WHERE} is already optimized by onnxruntime \((Conv|FusedConv|Reorder\w+|FusedGemm).* of com.microsoft(\.nchwc)?\), ",
        mistake,
    )
    assert mistake.endswith("put the model there as it was exported")


def test_a_model_that_was_left_in_training_mode_is_refused_by_operator(own):
    net = Classifier(SHAPE).conv(8, 2, 3, 3).add("GlobalAveragePool").add("Flatten")
    net.add("Dropout", np.float32(0.5), np.bool_(True)).dense(CLASSES, 8)
    [mistake] = own(net)
    assert mistake.startswith(f"{WHERE} was exported in training mode (Dropout): export it in evaluation mode")
    assert own(Classifier(SHAPE).conv(CLASSES, 2, 3, 3).add("GlobalAveragePool").add("Dropout")) == []
    net = Classifier(SHAPE).conv(CLASSES, 2, 3, 3)
    ones = np.ones(CLASSES, np.float32)
    net.add("BatchNormalization", ones, 0 * ones, 0 * ones, ones, training_mode=1).add("GlobalAveragePool")
    net.nodes[-2].output.extend(["mean", "variance"])
    assert "in training mode (BatchNormalization)" in own(net)[0]


def test_an_opset_that_onnxruntime_does_not_run_or_that_cannot_be_raised_is_refused(own):
    network().save(WHERE, opset=9)
    assert own() == []
    model = onnx.load(WHERE)
    model.opset_import[0].version = 6
    onnx.save(model, WHERE)
    assert own()[0] == f"{WHERE} has opset 6, and onnxruntime runs 7 and later: export it anew"
    net = network()
    net.nodes.insert(0, helper.make_node("Upsample", ["pixels:0", "scales"], ["larger"]))
    net.nodes[1].input[0] = "larger"
    net.weights.append(numpy_helper.from_array(np.float32([1, 1, 2, 2]), "scales"))
    model = onnx.load(net.save(WHERE, opset=9))
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, WHERE)
    assert own()[0].startswith(f"{WHERE} has opset 9, quantization needs 13, and ONNX's converter cannot raise it (")


def saved_with_data_beside(name="fp32.onnx.data"):
    """Save the network with its weights in a second file."""
    model = onnx.load(network().save(WHERE))
    Path(WHERE).parent.joinpath(name).unlink(missing_ok=True)
    onnx.save(model, WHERE, save_as_external_data=True, location=name, size_threshold=0)
    return Path(WHERE).parent / name


def test_weights_in_a_second_file_are_made_one_file_by_the_command_that_is_named(own, tmp_path):
    beside = saved_with_data_beside()
    logits = open_session(WHERE, threads=1).run(None, {"pixels:0": images_like(SHAPE, 4, 0)})[0]
    [mistake] = own()
    assert mistake.startswith(
        f"{WHERE} keeps its weights in fp32.onnx.data, which DVC does not follow: make one file of both"
    )
    assert mistake.endswith("then delete fp32.onnx.data")
    run_named_command(mistake)
    beside.unlink()
    assert own() == []
    again = open_session(WHERE, threads=1).run(None, {"pixels:0": images_like(SHAPE, 4, 0)})[0]
    np.testing.assert_array_equal(again, logits)


def run_named_command(mistake):
    """Run the command between the backticks of a sentence, as a reader would."""
    command = shlex.split(re.search(r"`(python -c [^`]+)`", mistake)[1])
    subprocess.run([sys.executable, *command[1:]], check=True)


def test_a_model_that_is_a_link_into_the_cache_is_looked_at_where_it_lies(own, tmp_path):
    saved_with_data_beside()
    Path(WHERE).rename(tmp_path / "in-the-cache")
    Path(WHERE).symlink_to(tmp_path / "in-the-cache")
    [mistake] = own()
    assert "keeps its weights in fp32.onnx.data, which DVC does not follow" in mistake


def test_a_second_file_that_is_missing_or_elsewhere_is_named(own):
    saved_with_data_beside().unlink()
    [mistake] = own()
    assert re.match(
        rf"{WHERE} keeps weights \('w0'\) in fp32.onnx.data, which is not beside it: put it there, then", mistake
    )
    network().save(WHERE)
    model = onnx.load(WHERE)
    for tensor in model.graph.initializer:
        external_data_helper.set_external_data(tensor, location="../elsewhere.data")
        tensor.ClearField("raw_data")
    Path(WHERE).write_bytes(model.SerializeToString())
    [mistake] = own()
    assert mistake == (
        f"{WHERE} keeps weights ('w0') in ../elsewhere.data, outside of its folder: export it anew, as one file"
    )


def test_weights_that_are_not_finite_are_counted_and_named(own):
    net = network()
    weights = numpy_helper.to_array(net.weights[0]).copy()
    weights[0, 0] = np.nan
    net.weights[0] = numpy_helper.from_array(weights, "w0")
    assert own(net) == [f"{WHERE} has 9 non-finite values in its weights 'w0': train or export it again"]


def test_weights_in_constant_nodes_are_seen_and_folded(own, tmp_path):
    net = network()
    model = onnx.load(net.save(WHERE))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    del model.graph.initializer[:]
    for name, tensor in tensors.items():
        model.graph.node.insert(0, helper.make_node("Constant", [], [name], value=tensor))
    onnx.save(model, WHERE)
    assert own() == []
    preprocess(WHERE, tmp_path / "preprocessed.onnx")
    prepared = onnx.load(tmp_path / "preprocessed.onnx")
    assert "Constant" not in {node.op_type for node in prepared.graph.node}
    ranges = collect_ranges(tmp_path / "preprocessed.onnx", lambda: [images_like(SHAPE, 8, 0)], method="MinMax")
    assert quantize(tmp_path / "preprocessed.onnx", tmp_path / "int8.onnx", ranges, **U8S8) == (2, 2)


def test_weights_that_two_layers_share_and_nodes_without_names_are_fine(own, tmp_path):
    net = Classifier(SHAPE).conv(2, 2, 3, 3)
    net.nodes.append(helper.make_node("Conv", [net.last, *net.nodes[0].input[1:]], ["again"], pads=[1] * 4))
    net.last = "again"
    net.add("Relu").add("GlobalAveragePool").add("Flatten").dense(CLASSES, 2)
    assert own(net) == []
    preprocess(WHERE, tmp_path / "preprocessed.onnx")
    nodes = onnx.load(tmp_path / "preprocessed.onnx").graph.node
    assert len({node.name for node in nodes}) == len(nodes) and all(node.name for node in nodes)
    ranges = collect_ranges(tmp_path / "preprocessed.onnx", lambda: [images_like(SHAPE, 8, 0)], method="MinMax")
    assert quantize(tmp_path / "preprocessed.onnx", tmp_path / "int8.onnx", ranges, **U8S8) == (3, 3)


# The outputs


def test_of_several_outputs_one_has_to_be_named_and_to_be_there(own):
    net = network()
    net.save(WHERE, outputs={"scores": net.last, "features": net.nodes[-2].output[0]})
    assert own(evaluate={"output": "scores"}) == []
    assert own() == [
        f"{WHERE} has 2 outputs: write the one to judge as `evaluate.output` of the model, one of scores, features"
    ]
    assert own(evaluate={"output": "score"}) == [
        f"{WHERE} has no output 'score', which `evaluate.output` names: did you mean `scores`?"
    ]


def test_argmax_at_the_end_is_cut_off_by_the_command_that_is_named(own):
    net = network()
    net.add("ArgMax", axis=1, keepdims=0).save(WHERE, element=TensorProto.INT64)
    [mistake] = own()
    assert mistake.startswith(
        f"{WHERE} ends in ArgMax, so that its output 'scores' is a class and not a score for each"
    )
    run_named_command(mistake)
    assert own() == []


def test_classes_as_numbers_are_refused_even_as_float(own):
    net = network().add("ArgMax", axis=1, keepdims=1).add("Cast", to=TensorProto.FLOAT)
    assert "ends in ArgMax" in own(net)[0]


def test_softmax_at_the_end_is_fine(own):
    assert own(network().add("Softmax", axis=1)) == []


def test_a_single_score_has_no_classes_to_choose_from(own):
    net = Classifier(SHAPE).conv(8, 2, 3, 3).add("GlobalAveragePool").add("Flatten").dense(1, 8).add("Sigmoid")
    [mistake] = own(net)
    assert mistake.startswith(f"{WHERE} gives one number an image, which has no classes to choose from")


def test_an_output_that_is_a_map_is_no_classification(own):
    [mistake] = own(Classifier(SHAPE).conv(CLASSES, 2, 3, 3))
    assert mistake == (
        f"{WHERE} gives an output (4, 5, 6, 6) for 4 images, and (images, classes) is expected: "
        "export it with a score for each class"
    )


# The arrays


@pytest.mark.parametrize("input", [{}, {"channels": 2}, {"mean": [0.1, 0.2]}])
def test_channels_last_images_for_a_channels_first_model_are_moved_by_the_command_that_is_named(own, input):
    first = np.load("data/own/test-images.npy")
    for part in ("train", "test"):
        path = f"data/own/{part}-images.npy"
        np.save(path, np.moveaxis(np.load(path), 1, -1))
    mistakes = own(network(), input=input)
    assert len(mistakes) == 2 and mistakes[1].startswith(
        f"data/own/test-images.npy has images (6, 6, 2), and {WHERE} takes images (2, 6, 6): its channels are last and the model's first, "
    )
    for mistake in mistakes:
        run_named_command(mistake)
    assert own(input=input) == []
    np.testing.assert_array_equal(np.load("data/own/test-images.npy"), first)


def test_channels_first_images_for_a_channels_last_model_are_moved_the_other_way(own):
    net = Classifier((6, 6, 2)).add("Transpose", perm=[0, 3, 1, 2]).conv(CLASSES, 2, 3, 3).add("GlobalAveragePool")
    mistakes = own(net, input={"scale": 2})
    assert mistakes[0].endswith("moves them; then write `channels_last: true` under `models.theirs.input`")
    for mistake in mistakes:
        run_named_command(mistake)
    assert own(input={"scale": 2, "mean": [1, 2], "channels_last": True}) == []


def test_images_that_do_not_fit_are_shown_as_stored_and_as_scaled(own):
    assert own(network(shape=(2, 12, 12)), input={"repeat": 2}) == []
    mistakes = own(network(shape=(2, 12, 12)), input={"repeat": 3})
    assert mistakes == [
        f"data/own/{part}-images.npy has images (2, 6, 6), (2, 18, 18) after `models.theirs.input`, and {WHERE} takes images "
        "(2, 12, 12): store them as the model takes them, or look at `channels` and `repeat`"
        for part in ("train", "test")
    ]
    assert own(network(shape=(2, "height", "width"))) == []


@pytest.mark.parametrize("free", [None, -1, "N"])
def test_a_batch_is_free_however_an_exporter_says_so(own, free):
    model = onnx.load(network().save(WHERE))
    axis = model.graph.input[0].type.tensor_type.shape.dim[0]
    axis.Clear()
    if free is not None:
        setattr(axis, "dim_param" if free == "N" else "dim_value", free)
    onnx.save(model, WHERE)
    assert own(batches=[1, 4]) == []


def test_channels_that_do_not_match_the_scaling_are_named(own):
    [mistake, _] = own(network(), input={"mean": [1, 2, 3]})
    assert mistake == (
        "data/own/train-images.npy and `models.theirs.input` do not fit: `input.mean` has 3 numbers and the images have 2 "
        "channels: give one, or one a channel"
    )
    [mistake, _] = own(input={"channels": 3})
    assert "the images have 2 channels and `input.channels` is 3" in mistake


def test_labels_beyond_the_classes_are_refused(own):
    np.save("data/own/test-labels.npy", np.arange(50) % 7)
    assert own(network()) == [
        f"data/own/test-labels.npy has labels from 0 to 6, and {WHERE} has 5 classes, 0 to 4: number the labels as the model does"
    ]


def test_labels_that_are_missing_are_made_by_the_command_that_is_named(own):
    Path("data/own/test-labels.npy").unlink()
    [mistake] = own(network())
    assert mistake.startswith(
        "data/own/test-labels.npy is missing: put it there and run `dvc add data/own/test-labels.npy`; if there are no labels, "
    )
    run_named_command(mistake)
    assert np.load("data/own/test-labels.npy").shape == (0,) and own() == []


def test_arrays_that_are_none_and_pixels_that_are_not_finite_are_named(own):
    np.save("data/own/train-images.npy", images_like(SHAPE, 96, 0).astype(np.float64))
    images = np.load("data/own/test-images.npy")
    images[3, 1, 2, 2] = np.inf
    np.save("data/own/test-images.npy", images)
    np.save("data/own/test-labels.npy", np.zeros(50, np.int32))
    mistakes = own(network())
    assert mistakes[0].startswith(
        "data/own/train-images.npy holds float64 of shape (96, 2, 6, 6): expected images as uint8 or"
    )
    assert mistakes[1] == (
        "data/own/test-images.npy has 1 non-finite values, the first in image 3: mend or remove these images"
    )
    assert mistakes[2].startswith("data/own/test-labels.npy holds int32 of shape (50,): expected int64 of shape (50,)")
    for mistake in (mistakes[0], mistakes[2]):
        run_named_command(mistake)
    assert own() == [mistakes[1]]


def test_a_hundred_thousand_images_are_sampled_in_no_time(own):
    """Where they are used every image is looked at; here an even sample has to do."""
    images = np.lib.format.open_memmap("data/own/train-images.npy", "w+", np.float32, (100_000, *SHAPE))
    images[::25_000] = np.nan  # written nowhere else: the file is sparse
    del images
    start = time.monotonic()
    [mistake] = own(network())
    assert "the first in image 0" in mistake and time.monotonic() - start < 5


def test_the_batches_of_the_benchmark_have_to_be_the_fixed_one(own):
    assert own(network(batch=8), batches=[8]) == []
    assert own(batches=[1, 32]) == [
        f"`models.theirs.benchmark.batches` is [1, 32], and {WHERE} takes batches of 8 only: write [8], or export it with a free batch"
    ]


def test_a_model_that_fails_at_its_first_run_is_shown_in_onnxruntimes_words(own):
    net = network()
    [mistake] = own(net.add("Reshape", np.int64([-1, 7])))
    assert mistake.startswith(f"{WHERE} does not run on the first test images: [ONNXRuntimeError]")
    assert "Reshape" in mistake


# Nodes that recipes name


def naming(params, **nodes):
    """Return parameters of the model "theirs" in which the recipe static-u8s8 names nodes, by key."""
    chosen = own_params(params)
    chosen["calibrate_quantize"] = chosen["calibrate_quantize"] | {"static-u8s8": U8S8 | nodes}
    return chosen


def pooled():
    """Return a network with a MaxPool, and a MatMul and an Add that preprocessing fuses; its nodes have no names."""
    net = network().add("MatMul", np.ones((CLASSES, CLASSES), np.float32)).add("Add", np.ones(CLASSES, np.float32))
    net.nodes.insert(2, helper.make_node("MaxPool", ["t1"], ["pooled"], kernel_shape=[2, 2]))
    net.nodes[3].input[0] = "pooled"
    return net


def test_a_node_that_a_recipe_names_and_the_model_does_not_have_is_named(own, params):
    pooled().save(WHERE)
    prepared = Path("models/theirs/preprocessed.onnx")
    assert list(own_mistakes(naming(params, nodes_to_exclude=["t0"], swap_relu_maxpool=["pooled"]), Path())) == []
    assert not prepared.exists()
    wrong = naming(params, nodes_to_exclude=["t0", "pool"], swap_relu_maxpool=["t0"])
    recipe = f"`calibrate_quantize.static-u8s8` cannot be made of {WHERE}: "
    expected = [
        f"{recipe}nodes_to_exclude names 'pool', which is no node of the preprocessed model: did you mean 'pooled'?",
        f"{recipe}swap_relu_maxpool names 't0', which is no MaxPool that alone reads a ReLU: it can name pooled",
    ]
    assert list(own_mistakes(wrong, Path())) == expected
    preprocess(WHERE, prepared)
    assert list(own_mistakes(wrong, Path())) == expected  # as with the file that an earlier run left
    wrong["quantize_dynamic"]["dynamic-quint8"] = {"weight_type": "QUInt8", "nodes_to_exclude": ["pool"]}
    assert [text.split("`")[1] for text in own_mistakes(wrong, Path())] == [
        "quantize_dynamic.dynamic-quint8",
        *["calibrate_quantize.static-u8s8"] * 2,
    ]


def test_nodes_are_those_of_the_preprocessed_model(own, params):
    """Preprocessing fuses nodes and names those that have no name; a recipe names what it leaves."""
    pooled().save(WHERE)
    preprocess(WHERE, "prepared.onnx")
    last = onnx.load("prepared.onnx").graph.node[-1]
    before = onnx.load(WHERE).graph.node
    assert last.op_type == "Gemm" and last.name not in {node.name for node in before}  # what the test is about
    assert list(own_mistakes(naming(params, nodes_to_exclude=[last.name]), Path())) == []
    [fused] = [node.output[0] for node in before if node.op_type == "MatMul"]
    [mistake] = own_mistakes(naming(params, nodes_to_exclude=[fused]), Path())
    assert f"nodes_to_exclude names {fused!r}, which is no node of the preprocessed model" in mistake


def test_nodes_are_looked_for_in_the_model_that_is_there_now(own, params):
    """What an earlier run left of another model is no reason to refuse."""
    preprocess(network().save("another.onnx"), "prepared.onnx")
    pooled().save(WHERE)
    Path("prepared.onnx").rename("models/theirs/preprocessed.onnx")
    assert list(own_mistakes(naming(params, nodes_to_exclude=["pooled"]), Path())) == []


def test_every_model_has_to_have_the_nodes_of_a_recipe(own, params):
    """A recipe is made of all models: where one lacks the node, calibrate-quantize would fail."""
    pooled().save(WHERE)
    network().save(WHERE.replace("theirs", "other"))
    chosen = naming(params, nodes_to_exclude=["pooled"])
    chosen["models"] |= {"other": chosen["models"]["theirs"]}
    [mistake] = own_mistakes(chosen, Path())
    assert mistake.startswith(
        "`calibrate_quantize.static-u8s8` is made of all models, as every recipe, and cannot be made of models/other/"
    )


def test_a_recipe_that_is_given_for_one_model_has_to_fit_that_one_alone(own, params):
    pooled().save(WHERE)
    network().save(WHERE.replace("theirs", "other"))
    np.save("data/own/train-labels.npy", np.empty(0, np.int64))
    chosen = own_params(params)
    chosen["models"] |= {"other": chosen["models"]["theirs"]}
    given = PLAN | {"recipe": U8S8 | {"nodes_to_exclude": ["pooled"], "swap_relu_maxpool": ["pooled"]}}
    assert list(own_mistakes(chosen | {"tune": {"theirs": given, "other": PLAN}}, Path())) == []
    mistakes = list(own_mistakes(chosen | {"tune": {"theirs": PLAN, "other": given}}, Path()))
    cannot = "`tune.other.recipe` cannot be made of models/other/onnx/fp32.onnx: "
    assert [text.removeprefix(cannot).split(",")[0] for text in mistakes] == [
        "nodes_to_exclude names 'pooled'",
        "swap_relu_maxpool names 'pooled'",
    ]


@pytest.mark.parametrize("recipe", [None, "fp32", {"nodes_to_exclude": "t0"}, {"nodes_to_exclude": [0]}])
def test_a_given_recipe_that_is_none_is_left_to_the_check_of_params_yaml(own, params, recipe):
    network().save(WHERE)
    np.save("data/own/train-labels.npy", np.empty(0, np.int64))
    searched = own_params(params) | {"tune": {"theirs": PLAN | {"recipe": recipe}}}
    assert list(own_mistakes(searched, Path())) == []


@pytest.mark.parametrize(
    "recipes", [None, {"a": None}, {"a": {"nodes_to_exclude": "t0"}}, {"a": {"nodes_to_exclude": [0]}}]
)
def test_recipes_that_are_none_are_left_to_the_check_of_params_yaml(own, params, recipes):
    network().save(WHERE)
    assert list(own_mistakes(own_params(params) | {"calibrate_quantize": recipes}, Path())) == []


# All together


def test_all_mistakes_are_listed_at_once_with_those_of_params_yaml(own, params):
    network().save(WHERE)
    np.save("data/own/test-labels.npy", np.arange(50))
    chosen = own_params(params, batches=[1, 900])
    with pytest.raises(UserError) as error:
        check_params(chosen, Path(), further=own_mistakes)
    text = str(error.value)
    assert text.startswith(
        "params.yaml and your files have 2 mistakes:\n  - `models.theirs.benchmark.batches` is 900 and"
    )
    assert text.endswith("number the labels as the model does")


def test_a_single_mistake_in_a_file_is_not_called_one_of_params_yaml(own, params):
    network(batch=8).save(WHERE)
    with pytest.raises(UserError) as error:
        check_params(own_params(params, batches=[4]), Path(), further=own_mistakes)
    assert str(error.value).startswith("`models.theirs.benchmark.batches` is [4], and") and str(error.value).endswith(
        "."
    )


def test_files_are_looked_at_although_another_section_is_wrong(own, params):
    network(batch=8).save(WHERE)
    chosen = own_params(params, batches=[4])
    chosen["calibrate"]["seed"] = "none"
    with pytest.raises(UserError, match=r"params\.yaml and your files have 2 mistakes"):
        check_params(chosen, Path(), further=own_mistakes)


def test_what_an_experiment_lacks_is_said_to_be_untracked(own, params, monkeypatch):
    monkeypatch.setenv(IN_EXPERIMENT, "0123456")
    with pytest.raises(UserError) as error:
        check_params(own_params(params), Path(), further=own_mistakes)
    assert str(error.value) == (
        f"params.yaml: the model `theirs` is not under `train` and {WHERE} is not tracked, so that this experiment does not "
        f"have it: run `dvc add {WHERE}` in your workspace and commit {WHERE}.dvc, or add it to `train`."
    )


def test_files_that_are_not_tracked_are_named_in_time(own, params):
    network().save(WHERE)
    chosen = own_params(params)
    assert len(list(untracked(chosen, Path()))) == 4 and WHERE in untracked(chosen, Path())
    Path(f"{WHERE}.dvc").touch()
    Path("data/own.dvc").touch()  # the folder was added as a whole
    assert list(untracked(chosen, Path())) == []


def test_training_on_own_data_needs_labels(own, params):
    chosen = own_params(params) | {"train": {"theirs": params["train"]["cnn"]}}
    assert list(own_mistakes(chosen, Path())) == [
        "data/own/train-labels.npy is missing: put it there and run `dvc add data/own/train-labels.npy`"
    ]
    np.save("data/own/train-labels.npy", np.zeros(96, np.int64))
    np.save("data/own/test-labels.npy", np.empty(0, np.int64))
    [mistake] = own_mistakes(chosen, Path())
    assert mistake.startswith("data/own/test-labels.npy is empty, and `train` draws its curve with them")


def test_a_number_of_bad_values_says_how_many_images_were_looked_at(own):
    np.save("data/own/train-images.npy", np.full((500, *SHAPE), np.nan, np.float32))
    [mistake] = own(network())
    assert "has 4608 non-finite values, the first in image 0" in mistake  # 64 images of 2x6x6
    assert mistake.endswith("(64 of 500 images were looked at)")


def test_a_missing_axis_for_the_channels_is_named_with_the_command_that_adds_it(own):
    for part in ("train", "test"):
        np.save(f"data/own/{part}-images.npy", np.load(f"data/own/{part}-images.npy")[:, 0])
    mistakes = own(network(shape=(1, 6, 6), channels=1))
    assert len(mistakes) == 2 and all("an axis for the channels is missing, `python -c" in text for text in mistakes)
    for text in mistakes:
        subprocess.run([sys.executable, *shlex.split(re.search("`(python -c .*)` adds it$", text)[1])[1:]], check=True)
    assert own(network(shape=(1, 6, 6), channels=1)) == []


def test_channels_that_are_last_without_a_word_of_it_are_named(own):
    save_data("data/own", (6, 6, 3))
    mistakes = own(network(shape=(6, 6, 3), channels=6), input={"mean": [0.4, 0.5, 0.6]})
    assert len(mistakes) == 2
    assert all("write `channels_last: true` under `models.theirs.input`" in text for text in mistakes)


def test_an_empty_file_is_one_mistake(own):
    Path(WHERE).parent.mkdir(parents=True)
    Path(WHERE).touch()
    assert own() == [f"{WHERE} is an empty file: put the model there"]


PIXELS = images_like(SHAPE, 96, 0, np.uint8)
TRAIN, TEST = "data/own/train-images.npy", "data/own/test-images.npy"


def test_arrays_in_two_types_are_refused_with_both_ranges(own):
    """Calibrated on 0 to 1 and asked with 0 to 255, an int8 model loses most of its accuracy, and fp32 as well."""
    np.save(TRAIN, (PIXELS / 255).astype(np.float32))
    np.save(TEST, PIXELS[:50])
    assert own(network()) == [
        f"{TRAIN} holds float32 and {TEST} uint8 ({TRAIN} from {PIXELS.min() / 255:g} to 1, {TEST} from {PIXELS.min()} "
        "to 255): store both in one type and one unit"
    ]


@pytest.mark.parametrize(
    ("factor", "refused"), [(255, True), (30, True), (10, False), (1 / 10, False), (1 / 255, True)]
)
def test_arrays_in_two_units_are_refused_with_both_numbers(own, factor, refused):
    images = images_like(SHAPE, 500, 3)
    np.save(TRAIN, images)
    np.save(TEST, images[::10] * np.float32(factor))
    mistakes = own(network())
    assert len(mistakes) == refused
    if refused:
        train, test = (float(size) for size in re.findall(r"([\d.e+-]+) in data", mistakes[0]))
        assert test / train == pytest.approx(factor, rel=0.2)  # of other images
        assert mistakes[0].startswith("the largest value of a typical image is ")
        assert "store both in one unit" in mistakes[0]


def test_a_few_images_of_another_size_or_without_anything_are_no_other_unit(own):
    """An outlier in one part, and images of nothing but zeros in the other, are what a sample explains."""
    train, test = images_like(SHAPE, 96, 3), images_like(SHAPE, 50, 4)
    train[5] *= 1000
    test[:10] = 0
    np.save(TRAIN, train)
    np.save(TEST, test)
    assert own(network()) == []


@pytest.mark.parametrize("value", [0, 255])
def test_images_of_one_value_are_refused(own, value):
    np.save(TEST, PIXELS[:50])
    np.save(TRAIN, np.full((500, *SHAPE), value, np.uint8))
    [mistake] = own(network())
    assert mistake == (
        f"{TRAIN} has nothing but the value {value} in all images (64 of 500 were looked at): store the images anew"
    )


def test_images_that_would_be_scaled_twice_are_refused(own):
    for path, images in ((TRAIN, PIXELS), (TEST, PIXELS[:50])):
        np.save(path, (images / 255).astype(np.float32))
    [mistake] = own(network(), input={"scale": 1 / 255})
    assert (
        "to 1, and `models.theirs.input.scale` is 0.00392157, as for pixels up to 255: they would be scaled twice"
        in mistake
    )
    assert own(input={"scale": 0.05}) == own() == []
    for path, images in ((TRAIN, PIXELS), (TEST, PIXELS[:50])):
        np.save(path, images.astype(np.float32))  # pixels as numbers with a point are scaled once
    assert own(input={"scale": 1 / 255}) == []
