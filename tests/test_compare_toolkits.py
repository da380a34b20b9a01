"""The comparison with other toolkits times what it is given in one process, and says what is missing and how to go on."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_models import images_for, save_plain

from stages.benchmark import summarize
from stages.common.session.runtime import predict_images
from stages.common.workspace import UserError
from stages.tools import compare_toolkits, time_toolkits, toolkits

SCALING = {"scale": 1.0, "mean": 0.0, "std": 1.0, "channels": 1, "repeat": 1}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Two copies of a file timed and asked for their predictions: (files, calls, {name: logits}, images)."""
    monkeypatch.setattr(time_toolkits, "machine_lock", nullcontext)
    files = {"fp32": str(save_plain(tmp_path / "fp32.onnx")), "other": str(save_plain(tmp_path / "other.onnx"))}
    np.save(tmp_path / "images.npy", images_for(files["fp32"], 40))
    plan = {
        "files": files, "images": str(tmp_path / "images.npy"), "scaling": SCALING, "batches": [1, 8],
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


def test_a_step_that_fails_is_named(tmp_path):
    with pytest.raises(
        UserError, match=r"^stages.tools.time_toolkits failed with exit code 1: what it printed says why\.$"
    ):
        toolkits.run_in(sys.executable, "stages.tools.time_toolkits", tmp_path / "no-plan.json", tmp_path)
