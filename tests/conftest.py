"""What several test modules share: a workspace to run stages in, small real models, and a dataset that can be learned."""

import copy
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from filelock import FileLock
from onnx import TensorProto, helper, numpy_helper
from registries import not_downloaded, pip_downloads
from small_repository import Project, prepare

from stages.common.preprocessing import preprocess
from stages.common.session.runtimes import is_installed
from stages.common.workspace import load_params
from stages.machine import ensure_runtime

OLD_RUNTIME = "1.20.1"  # has no kernel for ConvInteger with int8 weights; 1.24.1 is the first that has
ROOT = Path(__file__).parent.parent


def pytest_collection_modifyitems(config, items):
    """Let two processes begin with the module that takes half of the time: one has enough to do with it alone."""
    if is_one_of_several(config):
        items.sort(key=lambda item: item.path.name != "test_pipeline.py")


def is_one_of_several(config):
    """Return whether this process is one of those between which xdist divides the tests."""
    return hasattr(config, "workerinput")


@pytest.fixture(scope="session")
def repository():
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, request, repository, dataset):
    """A repository in which everything has run once and is committed, and what the first `dvc repro` did.

    One of several processes makes it, and the others wait.
    """
    root = tmp_path_factory.getbasetemp()
    if is_one_of_several(request.config):
        root = root.parent
    record = root / "prepared.json"
    with FileLock(root / "prepared.lock"):
        if not record.exists():
            folder = tmp_path_factory.mktemp("prepared") / "repository"
            record.write_text(json.dumps([str(folder), prepare(folder, repository, dataset)]))
    folder, first = json.loads(record.read_text())
    return Project(folder), first


@pytest.fixture
def params():
    """The content of params.yaml, for a test to change."""
    return copy.deepcopy(load_params(ROOT / "params.yaml"))


@pytest.fixture
def workspace(tmp_path, monkeypatch, params):
    """An empty repository to run a stage's main in: returns a function that writes params.yaml with changed keys.

    `workspace({"calibrate.seed": 3})` changes a key of `params`; it can be called again.
    """
    monkeypatch.chdir(tmp_path)

    def write(changes=(), content=params):
        for key, value in dict(changes).items():
            set_key(content, key, value)
        Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return tmp_path

    write()
    return write


@pytest.fixture
def scaling():
    """Arguments of `to_input` that fit `dataset` and the networks here."""
    return {"scale": 1 / 255, "mean": 0.3, "std": 0.35, "channels": 1, "repeat": 1}


def set_key(tree, dotted, value):
    """Set the value of a dotted key in nested dictionaries."""
    *path, last = dotted.split(".")
    for part in path:
        tree = tree[part]
    tree[last] = value


def bright_bands(count, seed):
    """Return images (count, 1, 28, 28) uint8 and labels (count,) int64: the label is where a bright band lies."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count)
    images = random.integers(0, 90, (count, 1, 28, 28))
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * label + 4 : 2 * label + 7] += random.integers(40, 160)
    return images.astype(np.uint8), labels


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """A folder with {train,test}-{images,labels}.npy: 600 and 200 images that a network can learn."""
    folder = tmp_path_factory.mktemp("data")
    for part, count, seed in (("train", 600, 0), ("test", 200, 1)):
        for kind, array in zip(("images", "labels"), bright_bands(count, seed), strict=True):
            np.save(folder / f"{part}-{kind}.npy", array)
    return folder


def build_network(path, channels=(8, 16), opset=18, seed=0):
    """Save a CNN with random weights, (batch, 1, 28, 28) -> (batch, 10): 3x3 convolutions, global pooling, one Gemm."""
    random = np.random.default_rng(seed)
    nodes, weights, name, inputs = [], [], "input", 1
    for index, outputs in enumerate(channels):
        weights.append(("conv", index, random.normal(0, (9 * inputs) ** -0.5, (outputs, inputs, 3, 3))))
        weights.append(("bias", index, random.normal(0, 0.1, outputs)))
        conv = helper.make_node(
            "Conv", [name, f"conv{index}", f"bias{index}"], [f"sum{index}"], f"Conv{index}", pads=[1] * 4
        )
        relu = helper.make_node("Relu", [f"sum{index}"], [f"relu{index}"], f"Relu{index}")
        pool = helper.make_node(
            "MaxPool", [f"relu{index}"], [f"pool{index}"], f"MaxPool{index}", kernel_shape=[2, 2], strides=[2, 2]
        )
        nodes += [conv, relu, pool]
        name, inputs = f"pool{index}", outputs
    weights += [("head", "", random.normal(0, 1, (10, inputs))), ("head_bias", "", random.normal(0, 0.1, 10))]
    nodes += [
        helper.make_node("GlobalAveragePool", [name], ["mean"], "GlobalAveragePool"),
        helper.make_node("Flatten", ["mean"], ["features"], "Flatten"),
        helper.make_node("Gemm", ["features", "head", "head_bias"], ["logits"], "Gemm", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "cnn",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 28, 28])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(array.astype(np.float32), f"{kind}{index}") for kind, index, array in weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


@pytest.fixture
def save_network():
    """The function that builds a CNN with random weights and saves it: path, channels, opset, seed."""
    return build_network


@pytest.fixture(scope="session")
def fp32(tmp_path_factory):
    """A CNN of 8 and 16 channels."""
    return build_network(tmp_path_factory.mktemp("fp32") / "fp32.onnx")


@pytest.fixture(scope="session")
def preprocessed(fp32, tmp_path_factory):
    """The same CNN, prepared for quantization."""
    path = tmp_path_factory.mktemp("preprocessed") / "preprocessed.onnx"
    preprocess(fp32, path)
    return path


@pytest.fixture(scope="session")
def other_preprocessed(tmp_path_factory):
    """Another CNN of three convolutions, prepared for quantization."""
    folder = tmp_path_factory.mktemp("other")
    preprocess(build_network(folder / "fp32.onnx", channels=(4, 4, 4), seed=1), folder / "preprocessed.onnx")
    return folder / "preprocessed.onnx"


@pytest.fixture(scope="session")
def old_runtime(tmp_path_factory):
    """An onnxruntime version on which dynamic QInt8 does not load, installed as the machine stage does it."""
    if not is_installed(OLD_RUNTIME) and sys.version_info >= (3, 14):
        pytest.skip(f"onnxruntime {OLD_RUNTIME} was made for Python 3.10 to 3.13")
    if not (is_installed(OLD_RUNTIME) or ensure_runtime(OLD_RUNTIME)):
        not_downloaded(f"onnxruntime {OLD_RUNTIME}", pip_downloads, tmp_path_factory.mktemp("any-package"))
    return OLD_RUNTIME
