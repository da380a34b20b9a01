"""The comparison with other toolkits times what it is given in one process, and says what is missing and how to go on."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_models import images_for, make_variants, save_plain

from stages.benchmark import summarize
from stages.common.calibration.collection import draw_indices
from stages.common.session.runtime import predict_images
from stages.common.session.runtimes import install_lock
from stages.common.workspace import UserError
from stages.tools import compare_toolkits, lost_time, operator_families, profile_toolkits, time_toolkits, toolkits

SCALING = {"scale": 1.0, "mean": 0.0, "std": 1.0, "channels": 1, "repeat": 1}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Two copies of a file timed and asked for their predictions: (files, calls, {name: logits}, images)."""
    monkeypatch.setattr(time_toolkits, "machine_lock", nullcontext)
    files = {"fp32": str(save_plain(tmp_path / "fp32.onnx")), "other": str(save_plain(tmp_path / "other.onnx"))}
    np.save(tmp_path / "images.npy", images_for(files["fp32"], 40))
    plan = {
        "files": files, "stored": {}, "images": str(tmp_path / "images.npy"), "scaling": SCALING, "batches": [1, 8],
        "measure": {"rounds": 3, "seconds": 0.1, "threads": 1, "warmup_calls": 1, "seed": 0},
        "predict": {"images": 40, "batch_size": 16, "threads": 1},
    }  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    time_toolkits.main(tmp_path / "plan.json", tmp_path)
    calls = json.loads((tmp_path / "calls.json").read_text())
    return files, calls, dict(np.load(tmp_path / "predictions.npz")), tmp_path / "images.npy"


def test_all_files_are_timed_in_the_same_rounds_and_predict_the_same_images(measured):
    files, calls, logits, images = measured
    assert {(row[0], row[2], row[3]) for row in calls} == {
        (number, name, batch) for number in range(3) for name in files for batch in (1, 8)
    }
    expected = predict_images(files["fp32"], images, SCALING, images=40, batch_size=16, threads=1)
    np.testing.assert_array_equal(logits["fp32"], expected)


def test_the_table_has_a_row_a_file_with_its_speed_and_accuracy_against_fp32(measured):
    files, calls, logits, _ = measured
    labels = logits["fp32"].argmax(1)
    logits["other"] = np.roll(logits["other"], 1, axis=1)
    rows = compare_toolkits.table(files, summarize(calls), logits, labels)
    assert [row["file"].text for row in rows] == ["fp32", "other"]
    assert rows[0]["accuracy"].text == "100.00%" and rows[1]["changed"].text == "40"
    assert "ms" in rows[0]["batch 8"].text and "x (" in rows[1]["batch 8"].text


def test_the_size_of_an_openvino_model_is_that_of_both_its_files(tmp_path):
    (tmp_path / "model.xml").write_bytes(b"12345")
    (tmp_path / "model.bin").write_bytes(b"123")
    assert compare_toolkits.size_bytes(tmp_path / "model.xml") == 8


def test_a_toolkit_that_cannot_be_installed_leaves_nothing_and_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(toolkits.sys, "prefix", str(tmp_path))
    failed = SimpleNamespace(returncode=1, stderr="looking\nERROR: no network\n")
    monkeypatch.setattr(toolkits.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(
        UserError, match=r"^olive-ai==\S+ could not be installed \(ERROR: no network\): look at the network, or"
    ):
        toolkits.ensure_toolkit("olive")
    assert not toolkits.toolkit_folder("olive").exists()


def test_an_environment_of_a_toolkit_sees_the_project_s_packages_and_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(toolkits.sys, "prefix", str(tmp_path))
    real, commands = subprocess.run, []

    def instead_of_pip(command, **settings):
        commands.append(command)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(toolkits.subprocess, "run", instead_of_pip)
    python = toolkits.ensure_toolkit("openvino")
    assert toolkits.ensure_toolkit("openvino") == python and len(commands) == 1
    assert Path(python).is_relative_to(tmp_path)
    real([python, "-c", "import onnxruntime, numpy"], check=True)


def test_two_calls_do_not_make_an_environment_at_once(tmp_path, monkeypatch):
    """The second waits for the first, and finds the environment there."""
    monkeypatch.setattr(toolkits.sys, "prefix", str(tmp_path))
    folder, made = toolkits.toolkit_folder("olive"), []

    def make(name, folder, python):
        made.append(name)
        folder.mkdir()
        (folder / ".installed").touch()

    monkeypatch.setattr(toolkits, "install", make)
    with ThreadPoolExecutor(1) as other:
        with install_lock(folder):
            second = other.submit(toolkits.ensure_toolkit, "olive")
            with pytest.raises(TimeoutError):
                second.result(timeout=0.3)
            make("olive", folder, None)
        second.result(timeout=30)
    assert made == ["olive"]


def test_a_step_that_fails_is_named(tmp_path):
    with pytest.raises(
        UserError, match=r"^stages.tools.time_toolkits failed with exit code 1: what it printed says why\.$"
    ):
        toolkits.run_in(sys.executable, "stages.tools.time_toolkits", tmp_path / "no-plan.json", tmp_path)


def calls_of(milliseconds, rounds=20):
    """Return timed calls at batch 8 of {name: milliseconds}, with 1 % of noise, two a round."""
    random = np.random.default_rng(0)
    return [
        [number, 0, name, 8, call, time * 1e6 * np.exp(random.normal(0, 0.01))]
        for number in range(rounds)
        for name, time in milliseconds.items()
        for call in range(2)
    ]


def test_a_loss_is_named_only_where_the_interval_against_the_fastest_own_file_excludes_equality():
    rows = calls_of({"fp32": 3.0, "fp32-again": 1.0, "tuned": 2.0, "static": 1.9, "other": 1.7, "another": 1.8})
    losses = lost_time.find_losses(rows, ["fp32", "fp32-again", "tuned", "static"], ["other", "another"])
    [(own, other, (_, low, high))] = losses.values()
    assert list(losses) == [8] and (own, other) == ("static", "other") and low < 1.9 / 1.7 < high
    assert not lost_time.find_losses(calls_of({"tuned": 1.9, "other": 1.899}), ["tuned"], ["other"])


OURS = {
    "call": 100.0,
    "kernels": [
        ("QLinearConv", "uint8", 60.0),
        ("Conv", "float", 10.0),
        ("MaxPool", "uint8", 5.0),
        ("QGemm", "uint8", 8.0),
    ],
}
THEIRS = {
    "call": 80.0,
    "kernels": [("Convolution", "jit_avx2_I8", 45.0), ("MaxPool", "jit_avx2_I8", 4.0), ("Reorder", "jit_uni_I8", 3.0),
                ("FullyConnectedQuantizedLegacy", "jit_gemm_I8", 9.0), ("FakeQuantize", "jit_avx2_f32", 2.0), ("Relu", "undef", 0.0)],
}  # fmt: skip

SLOW = {"call": 90.0, "kernels": [("Convolution", "jit_avx2_I8", 69.0)]}


def test_a_loss_is_explained_by_the_family_that_makes_most_of_it_and_the_table_adds_up_to_the_call():
    text = lost_time.explain(
        8, ("tuned", "other", (1.25, 1.2, 1.3)), {"tuned": [OURS] * 3, "other": [THEIRS, THEIRS, SLOW]}
    )
    sentence, table = text.split("\n\n")
    assert sentence == (
        "At batch 8 `other` is 1.25x (1.20-1.30) as fast as `tuned`: of 20 us that it takes less in a call, convolution makes most, 25 us (70 against 45), and so it is in 2 of 3 profiled rounds."
    )
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert rows[0] == ["family", "tuned, us", "tuned ran", "other, us", "other ran"]
    found = {row[0]: row[1:] for row in rows[2:]}
    assert found["convolution"] == [
        "70",
        "QLinearConv in int8: 60, Conv in float: 10",
        "45",
        "Convolution in int8 (jit_avx2_I8)",
    ]
    assert found["quantize/dequantize"] == ["", "", "2", "FakeQuantize in float (jit_avx2_f32)"]
    for column in (0, 2):
        parts = [float(row[column] or 0) for name, row in found.items() if name not in ("timed call", "in kernels")]
        assert sum(parts) == float(found["timed call"][column])
    assert (found["in kernels"][0], found["in kernels"][2]) == ("83% of it", "79% of it")


def test_a_profile_that_does_not_show_the_loss_names_no_family():
    text = lost_time.explain(8, ("tuned", "other", (1.25, 1.2, 1.3)), {"tuned": [THEIRS], "other": [OURS]})
    assert "the profiled calls do not show it, so that no family is named" in text


def test_an_operator_s_family_is_what_it_is_at_heart_in_either_runtime():
    families = {
        "convolution": "Conv QLinearConv FusedConv ConvInteger Convolution GroupConvolution NhwcFusedConv",
        "matrix product": "Gemm QGemm FusedGemm MatMul QLinearMatMul MatMulInteger DynamicQuantizeMatMul FullyConnected FullyConnectedQuantizedLegacy",
        "pooling": "MaxPool AvgPool NhwcMaxPool GlobalAveragePool QLinearGlobalAveragePool ReduceMean",
        "quantize/dequantize": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear FakeQuantize Convert",
        "data movement": "Reorder ReorderInput ReorderOutput Transpose Reshape Flatten Concat",
        "other": "Add QLinearAdd Eltwise Relu Softmax Subgraph Input",
    }
    for family, op_types in families.items():
        assert {op_type: operator_families.family_of(op_type) for op_type in op_types.split()} == dict.fromkeys(
            op_types.split(), family
        )
    assert [operator_families.precision_of(text) for text in ("uint8", "float", "brgconv_avx2_I8", "jit_avx2_FP32", "x_BF16")] == [
        "int8", "float", "int8", "float", "bf16",
    ]  # fmt: skip


def test_a_profile_of_a_real_file_accounts_for_its_call(tmp_path, monkeypatch):
    """With onnxruntime's own profile, in which the conversions around float layers can be seen."""
    monkeypatch.setattr(profile_toolkits, "ROUNDS", 2)
    variants, _, _ = make_variants(save_plain(tmp_path / "onnx" / "fp32.onnx", width=32))
    files = {"ours": str(variants["convgemm"]), "again": str(variants["fp32"])}
    images = images_for(variants["fp32"], 32)
    profiles = profile_toolkits.profile_files(files, images, seconds=0.4, threads=1, folder=tmp_path)
    profiles = {name: rounds[0] for name, rounds in profiles.items()}
    for profile in profiles.values():
        found = lost_time.with_outside(profile)
        assert sum(time for time, _ in found.values()) == pytest.approx(profile["call"])
        assert abs(found["outside kernels"][0]) < 0.5 * profile["call"]
        assert found["convolution"][0] > 0 and found["matrix product"][0] > 0
    assert "in float" in lost_time.with_outside(profiles["again"])["convolution"][1]
    assert "in int8" in lost_time.with_outside(profiles["ours"])["convolution"][1]
    assert "quantize/dequantize" in lost_time.with_outside(profiles["ours"])


class Counters:
    """An OpenVINO session whose first calls are slow, with counters that are means over all calls, as OpenVINO's are."""

    def __init__(self, path, *, threads, profiled=False):
        self.calls = 0

    def get_inputs(self):
        return [SimpleNamespace(name="input")]

    get_outputs = get_inputs

    def run(self, outputs, feed):
        self.calls += 1

    def kernel_totals(self):
        return [("Convolution", "jit_avx2_I8", 1000.0 + 40.0 * self.calls), ("Parameter", "unknown_f32", 0.0)]


def test_the_slow_first_calls_are_taken_out_of_openvino_s_counters(monkeypatch):
    monkeypatch.setattr(profile_toolkits, "OpenVinoSession", Counters)
    kernels, call = profile_toolkits.profile_openvino("file.xml", np.zeros((1, 1)), seconds=0.001, threads=1)
    assert kernels[0] == ("Convolution", "jit_avx2_I8", pytest.approx(40.0)) and kernels[1][2] == 0 and call > 0


def test_big_files_get_fewer_rounds_and_images_but_not_too_few(measured, monkeypatch):
    files, calls, _, _ = measured
    inputs = {8: images_for(files["fp32"], 8)}
    limits = {"rounds": 20, "threads": 1}
    assert time_toolkits.affordable_rounds(files, inputs, seconds=60, **limits) == 20
    assert time_toolkits.affordable_rounds(files, inputs, seconds=1e-6, **limits) == time_toolkits.FEWEST_ROUNDS
    assert time_toolkits.affordable_images(calls, ["other"], images=10_000, seconds=1e-6) == time_toolkits.FEWEST_IMAGES
    assert time_toolkits.affordable_images(calls, ["other"], images=40, seconds=60) == 40
    assert time_toolkits.affordable_images(calls, [], images=40, seconds=0) == 40


def test_stored_predictions_are_taken_where_they_are_the_file_s_and_made_anew_where_not(measured, tmp_path):
    files, _, logits, images = measured
    settings = {"images": 40, "batch_size": 16, "threads": 1}
    for stored, taken in ((logits["fp32"], True), (logits["fp32"][::-1], False)):
        np.savez(tmp_path / "stored.npz", logits=stored)
        found = time_toolkits.stored_logits(tmp_path / "stored.npz", files["fp32"], images, SCALING, **settings)
        assert (found is not None) == taken
    assert time_toolkits.stored_logits(tmp_path / "none.npz", files["fp32"], images, SCALING, **settings) is None


@pytest.fixture
def empty_project(tmp_path, monkeypatch):
    """A working folder with params.yaml and data, of which no stage has run."""
    monkeypatch.chdir(tmp_path)
    params = {
        "dataset": "d", "models": {"net": {"input": {}}}, "variants": ["static"],
        "calibrate": {"seed": 0, "images": 10, "batch_size": 4},
    }  # fmt: skip
    Path("params.yaml").write_text(json.dumps(params))
    for part in ("train", "test"):
        (tmp_path / "data/d").mkdir(parents=True, exist_ok=True)
        np.save(f"data/d/{part}-images.npy", np.random.default_rng(0).random((20, 1, 4, 4), np.float32))
        np.save(f"data/d/{part}-labels.npy", np.zeros(20, np.int64))
    return tmp_path


def write_json(path, content):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content))


def test_what_has_not_run_is_named_with_the_command_that_makes_it(empty_project):
    def compare():
        compare_toolkits.compare_toolkits("net", seconds=1, without=[])

    with pytest.raises(UserError, match=r"^metrics/machine\.json is not here.*: `dvc repro machine`\.$"):
        compare()
    write_json("metrics/machine.json", {})
    with pytest.raises(
        UserError, match=r"^metrics/verify-load/net/static\.json is not here.*: `dvc repro verify-load`\.$"
    ):
        compare()
    write_json("metrics/verify-load/net/static.json", {"net": {"static": {"finite": 1}}})
    with pytest.raises(
        UserError, match=r"^models/net/onnx/fp32\.onnx is not here: `dvc checkout .*`dvc repro verify-load`"
    ):
        compare()


def test_own_files_that_the_benchmark_found_slower_at_every_batch_size_are_left_out(empty_project):
    names = ["quick", "slow", "unknown"]
    Path("params.yaml").write_text(json.dumps({"variants": names}))
    for name in ["fp32", *names]:
        Path("models/net/onnx").mkdir(parents=True, exist_ok=True)
        Path(f"models/net/onnx/{name}.onnx").touch()
        write_json(f"metrics/verify-load/net/{name}.json", {"net": {name: {"finite": 1}}})
    assert compare_toolkits.own_files("net")[1] == []
    slow = {"batch_1": {"speedup_high": 0.9}, "batch_8": {"speedup_high": 0.8}}
    quick = {"batch_1": {"speedup_high": 0.9}, "batch_8": {"speedup_high": 1.2}}
    write_json("metrics/benchmark/net.json", {"net": {"fp32": {}, "fp32-again": slow, "quick": quick, "slow": slow}})
    files, left_out = compare_toolkits.own_files("net")
    assert list(files) == ["fp32", "fp32-again", "quick", "unknown"] and left_out == ["slow"]


def test_the_toolkits_get_all_calibration_images_of_the_draw_whatever_the_batch_size(empty_project):
    compare_toolkits.save_calibration("calibration.npy", "net")
    stored = np.load("data/d/train-images.npy")
    expected = stored[draw_indices(seed=0, images=10, available=20)]
    np.testing.assert_array_equal(np.load("calibration.npy"), expected)
