"""A file that does not work is a result with its reason; what was not checked is never passed."""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from stages import verify_load
from stages.common.calibration.collection import collect_ranges
from stages.common.calibration.static_quantization import quantize
from stages.common.images import first_input
from stages.common.session.probe import short
from stages.common.workspace import UserError, read_metrics, write_metrics
from stages.quantize_dynamic import quantize_dynamic

WORKS = {"loads": 1, "runs": 1, "finite": 1}


@pytest.fixture
def batch(dataset, scaling):
    return first_input(dataset / "test-images.npy", 8, **scaling)


@pytest.fixture
def at_root(monkeypatch, repository):
    """The probe is a module of the repository, so a stage runs in its root."""
    monkeypatch.chdir(repository)


def save_operator(path, *operator, constants=(), **attributes):
    """Save a model of one operator, input (batch, 1, 28, 28) -> logits."""
    node = helper.make_node(operator[0], ["input", *operator[1:]], ["logits"], "TheNode", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 28, 28])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.fixture
def fails_at_run(tmp_path):
    """A file that loads, and fails at the first run: no batch can be cut into rows of five."""
    return save_operator(tmp_path / "m.onnx", "Reshape", "five", constants=[("five", np.array([-1, 5]))])


@pytest.fixture
def dynamic_qint8(preprocessed, tmp_path):
    quantize_dynamic(preprocessed, tmp_path / "dynamic-qint8.onnx", weight_type="QInt8")
    return tmp_path / "dynamic-qint8.onnx"


def test_dynamic_qint8_loads_here_and_is_recorded_as_not_loading_on_an_old_runtime(
    at_root, old_runtime, dynamic_qint8, batch
):
    results = verify_load.verify_load(dynamic_qint8, batch, [old_runtime])
    assert results["here"] == WORKS
    message = results[old_runtime].pop("message")
    assert results[old_runtime] == {"loads": 0, "runs": 0, "finite": 0, "error": "NOT_IMPLEMENTED ConvInteger"}
    assert "Conv0_quant" in message
    text = verify_load.as_text(dynamic_qint8, results | {old_runtime: results[old_runtime] | {"message": message}}, [])
    assert f"{dynamic_qint8} loads and runs on this onnxruntime\n" in text
    assert (
        f"{dynamic_qint8} does not load on onnxruntime {old_runtime}: [ONNXRuntimeError] : 9 : NOT_IMPLEMENTED" in text
    )


def test_the_baseline_loads_on_the_old_runtime(at_root, old_runtime, fp32, batch):
    assert verify_load.verify_load(fp32, batch, [old_runtime]) == {"here": WORKS, old_runtime: WORKS}


def test_a_file_that_fails_at_its_first_run_is_recorded_as_loading_and_not_running(at_root, fails_at_run, batch):
    result = verify_load.verify_load(fails_at_run, batch, [])["here"]
    message = result.pop("message")
    assert result == {"loads": 1, "runs": 0, "finite": 0, "error": "FAIL Reshape"}
    assert "TheNode" in message
    text = verify_load.as_text("m.onnx", {"here": result | {"message": message}}, [])
    assert text.startswith("m.onnx does not run on this onnxruntime: ") and text.count("\n") == 1


def test_outputs_that_are_not_finite_are_recorded(at_root, tmp_path, batch):
    path = save_operator(tmp_path / "m.onnx", "Log")
    result = verify_load.verify_load(path, batch, [])["here"]
    assert result == WORKS | {"finite": 0, "error": "non-finite outputs", "message": "the outputs hold NaN or infinity"}
    assert "m.onnx gives non-finite outputs on" in verify_load.as_text("m.onnx", {"here": result}, [])


def test_a_file_that_is_no_model_is_recorded(at_root, tmp_path, batch):
    (tmp_path / "m.onnx").write_bytes(b"half a model")
    result = verify_load.verify_load(tmp_path / "m.onnx", batch, [])["here"]
    assert result["loads"] == 0 and result["error"] == "INVALID_PROTOBUF"


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Return a function that puts Python code in place of onnxruntime 9.9.9."""
    monkeypatch.setattr(verify_load, "runtime_folder", lambda runtime: tmp_path / "runtime")

    def write(code):
        (tmp_path / "runtime/onnxruntime").mkdir(parents=True)
        (tmp_path / "runtime/onnxruntime/__init__.py").write_text(code)

    return write


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import os\n__version__ = '9.9.9'\ndef SessionOptions(): os.abort()", "signal 6"),
        ("import os\n__version__ = '9.9.9'\ndef SessionOptions(): os._exit(3)", "exit code 3"),
        ("import time\n__version__ = '9.9.9'\ndef SessionOptions(): time.sleep(60)", "no answer"),
    ],
)
def test_a_process_that_crashes_or_hangs_is_recorded(at_root, stand_in, monkeypatch, fp32, batch, code, error):
    monkeypatch.setattr(verify_load, "PROBE_SECONDS", 3)
    stand_in(code)
    results = verify_load.verify_load(fp32, batch, ["9.9.9"])
    assert results["here"] == WORKS
    assert results["9.9.9"].pop("message")
    assert results["9.9.9"] == {"loads": 0, "runs": 0, "finite": 0, "error": error}


def test_a_runtime_that_is_gone_is_not_passed_by_the_one_of_the_environment(at_root, stand_in, tmp_path, fp32, batch):
    """An empty folder on PYTHONPATH lets the environment's own onnxruntime answer."""
    with pytest.raises(UserError) as error:
        verify_load.verify_load(fp32, batch, ["9.9.9"])
    assert str(error.value) == (
        f"onnxruntime 9.9.9 does not start from {tmp_path}/runtime (version {version('onnxruntime')} answers): "
        "delete that folder and repeat, or take the version out of verify_load.runtimes."
    )


def test_a_runtime_that_cannot_be_imported_is_no_fault_of_the_model(at_root, stand_in, fp32, batch):
    stand_in("raise ImportError('built for another NumPy')")
    with pytest.raises(UserError, match=r"does not start from .* \(ImportError: built for another NumPy\): delete"):
        verify_load.verify_load(fp32, batch, ["9.9.9"])


@pytest.fixture
def verified(workspace, params, scaling, repository, dataset):
    """Return a function that runs the stage's main in a workspace; it returns metrics and text."""
    params["models"]["cnn"]["input"] = scaling
    Path("stages").symlink_to(repository / "stages")
    write_metrics("metrics/machine.json", {"runtimes": {"onnxruntime_9_9_9": 0}})

    def run(path, variant="v", runtimes=(), strict=False, images=dataset / "test-images.npy"):
        workspace({"verify_load.runtimes": list(runtimes), "verify_load.strict": strict})
        verify_load.main("cnn", variant, path, images, "metrics.json", "text.txt")
        return read_metrics("metrics.json")["cnn"][variant], Path("text.txt").read_text()

    return run


def test_metrics_hold_numbers_and_the_reason_and_the_text_the_full_message(verified, fails_at_run):
    metrics, text = verified(fails_at_run)
    size = fails_at_run.stat().st_size
    assert metrics == {"loads": 1, "runs": 0, "finite": 0, "error": "FAIL Reshape", "size_bytes": size}
    assert "TheNode" in text


def test_a_runtime_that_is_not_installed_is_left_out_and_named(verified, fp32):
    metrics, text = verified(fp32, runtimes=["9.9.9"])
    assert metrics == WORKS | {"size_bytes": fp32.stat().st_size}
    assert text == (
        f"{fp32} loads and runs on this onnxruntime\n"
        f"{fp32} was not checked on onnxruntime 9.9.9, which could not be installed\n"
    )


def test_each_further_runtime_has_its_own_numbers(verified, fp32, old_runtime):
    write_metrics("metrics/machine.json", {"runtimes": {"onnxruntime_1_20_1": 1}})
    assert verified(fp32, runtimes=[old_runtime])[0]["onnxruntime_1_20_1"] == WORKS


@pytest.mark.parametrize(
    ("variant", "strict", "why"),
    [("fp32", False, "the baseline must"), ("v", True, "verify_load.strict asks for it")],
)
def test_not_working_is_an_error_for_the_baseline_and_where_strict_asks_for_it(
    verified, fails_at_run, variant, strict, why
):
    with pytest.raises(UserError) as error:
        verified(fails_at_run, variant, strict=strict)
    assert str(error.value) == (
        f"{fails_at_run} does not load and run here (FAIL Reshape), and {why}: "
        "take the variant out of params.yaml or mend it."
    )
    assert not Path("metrics.json").exists() and not Path("text.txt").exists()


def test_an_image_that_is_not_finite_is_no_fault_of_the_file(verified, fp32, tmp_path):
    np.save(tmp_path / "nan.npy", np.full((9, 1, 28, 28), np.nan, np.float32))
    with pytest.raises(UserError, match=r"nan.npy has \d+ non-finite values, the first in image 0: mend or remove"):
        verified(fp32, images=tmp_path / "nan.npy")


def test_an_int8_file_that_is_larger_than_fp32_is_reported_as_it_is(verified, fp32, preprocessed, batch):
    """Scales and zero points cost more than 8 and 16 channels of weights save."""
    recipe = {"quant_format": "QDQ", "activation_type": "QUInt8", "weight_type": "QInt8", "per_channel": True}
    quantize(preprocessed, "int8.onnx", collect_ranges(preprocessed, lambda: [batch], method="MinMax"), **recipe)
    metrics, _ = verified(Path("int8.onnx"))
    assert metrics["size_bytes"] == Path("int8.onnx").stat().st_size > fp32.stat().st_size


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for ConvInteger(10) node with name 'x'",
            "NOT_IMPLEMENTED ConvInteger",
        ),
        (
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Reshape node. Name:'x'",
            "RUNTIME_EXCEPTION Reshape",
        ),
        ("[ONNXRuntimeError] : 10 : INVALID_GRAPH : This is an invalid model. Error in Node: x", "INVALID_GRAPH"),
        ("something else\nand more", "something else"),
        ("x" * 60, "x" * 40),
    ],
)
def test_the_reason_fits_into_a_table(message, expected):
    assert short(message) == expected
