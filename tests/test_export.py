"""The exported file is the trained network, for every batch size, and knows nothing of the place where it was made."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from stages import export
from stages.common.images import first_input
from stages.common.networks import ARCHITECTURES
from stages.common.session.runtime import open_session
from stages.common.workspace import UserError, read_metrics

pytestmark = pytest.mark.slow  # torch and its exporter take seconds


@pytest.fixture
def exported(workspace, params, dataset, scaling, monkeypatch):
    """Return a function that saves a network's weights and exports them by the stage's main."""
    params["models"]["cnn-small"]["input"] = scaling
    workspace()

    def run(network=None):
        torch.manual_seed(0)
        network = network or ARCHITECTURES["cnn-small"]
        monkeypatch.setitem(ARCHITECTURES, "cnn-small", network)
        torch.save(network().state_dict(), "model.pt")
        export.main("cnn-small", "model.pt", dataset / "test-images.npy", "onnx/fp32.onnx", "metrics.json")
        return Path("onnx/fp32.onnx")

    return run


def expected(inputs):
    network = ARCHITECTURES["cnn-small"]()
    network.load_state_dict(torch.load("model.pt", weights_only=True))
    with torch.no_grad():
        return network.eval()(torch.from_numpy(inputs)).numpy()


def test_the_batch_is_dynamic_and_every_size_agrees_with_pytorch(exported, dataset, scaling):
    path = exported()
    session, model = open_session(path, threads=1), onnx.load(path)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_param
    assert (session.get_inputs()[0].name, session.get_outputs()[0].name) == ("input", "logits")
    for size in (1, 2, 3, 64):
        inputs = first_input(dataset / "test-images.npy", size, **scaling)
        np.testing.assert_allclose(session.run(None, {"input": inputs})[0], expected(inputs), atol=1e-5)
    metrics = read_metrics("metrics.json")["cnn-small"]
    assert 0 <= metrics["max_abs_difference"] < 1e-5 and metrics["argmax_agreement"] == 1
    assert metrics["opset"] == 18 and metrics["size_bytes"] == path.stat().st_size
    assert os.listdir("onnx") == ["fp32.onnx"]  # one file, weights and all


def test_another_checkout_exports_the_same_bytes_and_no_path_is_in_them(exported, repository, tmp_path, dataset):
    here = exported().read_bytes()
    other = tmp_path / "another" / "checkout"
    shutil.copytree(repository / "stages", other / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("params.yaml", "model.pt"):
        shutil.copy(name, other)
    command = [sys.executable, "-m", "stages.export", "cnn-small", "model.pt", str(dataset / "test-images.npy")]
    subprocess.run([*command, "fp32.onnx", "metrics.json"], cwd=other, check=True, capture_output=True)
    assert (other / "fp32.onnx").read_bytes() == here
    for place in (repository, other, tmp_path, Path(sys.prefix), Path(torch.__file__).parent):
        assert str(place).encode() not in here
    assert b".py" not in here


@pytest.mark.parametrize("opset", [11, 13])
def test_an_opset_that_the_exporter_did_not_write_is_refused(exported, workspace, opset):
    """torch only logs that it wrote another one."""
    workspace({"export.opset": opset})
    with pytest.raises(UserError) as error:
        exported()
    assert str(error.value) == (f"export.opset is {opset} and torch's exporter wrote opset 18: set export.opset to 18.")
    assert not Path("onnx").exists() and not Path("metrics.json").exists()


def test_an_older_opset_that_can_be_written_is_the_one_in_the_file(exported, workspace):
    workspace({"export.opset": 17})
    assert [entry.version for entry in onnx.load(exported()).opset_import if entry.domain == ""] == [17]
    assert read_metrics("metrics.json")["cnn-small"]["opset"] == 17


class WithDropout(nn.Sequential):
    """A network whose training mode differs from its evaluation mode."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 10), nn.BatchNorm1d(10))


def test_dropout_and_batch_normalization_are_exported_as_in_evaluation(exported, dataset, scaling):
    path = exported(WithDropout)
    inputs = first_input(dataset / "test-images.npy", 5, **scaling)
    result = open_session(path, threads=1).run(None, {"input": inputs})[0]
    np.testing.assert_allclose(result, expected(inputs), atol=1e-5)
    assert not [node for node in onnx.load(path).graph.node if node.op_type == "Dropout"]


def test_a_file_that_differs_from_pytorch_is_refused_and_not_written(exported, monkeypatch):
    """Whatever went wrong in the export, quantization shall not start from it."""
    real = export.export

    def wrong(network, example, *, opset):
        model = real(network, example, opset=opset)
        bias = next(tensor for tensor in model.graph.initializer if list(tensor.dims) == [10])
        bias.raw_data = (np.frombuffer(bias.raw_data, np.float32) + np.float32(0.25)).tobytes()
        return model

    monkeypatch.setattr(export, "export", wrong)
    with pytest.raises(UserError) as error:
        exported()
    assert str(error.value) == (
        "onnx/fp32.onnx differs from PyTorch by up to 0.25 in its logits and export.max_abs_difference is 0.0001: "
        "the export is wrong, or raise the limit if you know why."
    )
    assert os.listdir("onnx") == [] and not Path("metrics.json").exists()


def test_images_that_are_not_finite_are_refused(exported, tmp_path, monkeypatch):
    images = np.zeros((9, 1, 28, 28), np.float32)
    images[4] = np.nan
    np.save(tmp_path / "test-images.npy", images)
    torch.save(ARCHITECTURES["cnn-small"]().state_dict(), "model.pt")
    with pytest.raises(UserError, match=r"has 784 non-finite values, the first in image 4: mend or remove"):
        export.main("cnn-small", "model.pt", tmp_path / "test-images.npy", "fp32.onnx", "metrics.json")
