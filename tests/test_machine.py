"""The machine stage writes facts that do not waver, and a runtime that is not there is said to be not there."""

import subprocess
from pathlib import Path

import pytest

from stages import machine
from stages.common.session import runtimes
from stages.common.workspace import write_metrics


def test_the_facts_are_the_same_every_time_and_fit_into_metrics(tmp_path):
    """Else every `dvc repro` would run everything that declares one of them."""
    facts = machine.machine(runtimes=[])
    assert facts == machine.machine(runtimes=[])
    write_metrics(tmp_path / "machine.json", facts)
    assert set(facts["cpu"]) == {"model", "revision", "isa", "physical_cores", "usable_cores"}
    assert set(facts["packages"]) == {"onnxruntime", "onnx", "onnxscript", "torch", "torchvision", "numpy"}


def test_a_build_tag_is_no_part_of_a_version_and_a_missing_package_is_said_to_be_missing(monkeypatch):
    monkeypatch.setattr(machine, "version", lambda name: "2.14.1+cpu")
    assert machine.package_version("torch") == "2.14.1"
    monkeypatch.undo()
    assert machine.package_version("no-such-package") == "missing"


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Return a function that puts an outcome in place of pip's, and gives a list of the folders it was run for."""
    monkeypatch.setattr(runtimes.sys, "prefix", str(tmp_path))

    def stand_in(returncode=0, stderr=""):
        called = []

        def run(command, **options):
            target = Path(command[command.index("--target") + 1])
            called.append(target)
            if returncode is None:
                raise subprocess.TimeoutExpired(command, options["timeout"])
            (target / "onnxruntime").mkdir(parents=True)
            (target / "onnxruntime/__init__.py").touch()
            return subprocess.CompletedProcess(command, returncode, "", stderr)

        monkeypatch.setattr(machine.subprocess, "run", run)
        return called

    return stand_in


def test_a_runtime_is_installed_once_under_the_prefix_of_the_environment(pip, tmp_path):
    called = pip()
    assert not runtimes.is_installed("1.20.1")
    assert machine.machine(runtimes=["1.20.1"])["runtimes"] == {"onnxruntime_1_20_1": 1}
    assert machine.ensure_runtime("1.20.1") and len(called) == 1
    assert (tmp_path / "runtimes/onnxruntime-1.20.1/onnxruntime/__init__.py").is_file()
    assert called[0].name.endswith(".tmp") and not called[0].exists()  # renamed when it was whole


@pytest.mark.parametrize(
    ("returncode", "reason"), [(1, "ERROR: No matching distribution"), (None, "no answer in 120 s")]
)
def test_a_runtime_that_cannot_be_installed_is_a_warning_and_tried_again(pip, tmp_path, capsys, returncode, reason):
    called = pip(returncode, f"looking ...\n{reason}\n")
    assert machine.machine(runtimes=["1.20.1"])["runtimes"] == {"onnxruntime_1_20_1": 0}
    assert capsys.readouterr().out.endswith(
        f"warning: onnxruntime 1.20.1 could not be installed ({reason}); loading there is not checked\n"
    )
    assert not list((tmp_path / "runtimes").glob("*/"))
    assert not machine.ensure_runtime("1.20.1") and len(called) == 2


def test_half_a_folder_is_replaced(pip, tmp_path):
    (tmp_path / "runtimes/onnxruntime-1.20.1/onnxruntime").mkdir(parents=True)
    (tmp_path / "runtimes/onnxruntime-1.20.1/onnxruntime/half").touch()
    pip()
    assert machine.ensure_runtime("1.20.1") and runtimes.is_installed("1.20.1")
    assert not (tmp_path / "runtimes/onnxruntime-1.20.1/onnxruntime/half").exists()
