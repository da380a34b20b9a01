"""A model of the user's own under DVC: what experiments in other folders need, and what they say if it is not there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from own_models import CLASSES, Classifier, own_params, save_data

from stages.common.workspace import load_params

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("git"), reason="git is not here")]

MODEL = "models/theirs/onnx/fp32.onnx"
ARRAYS = [f"data/own/{name}.npy" for name in ("train-images", "test-images", "test-labels")]


@pytest.fixture
def run(repository, tmp_path, monkeypatch):
    """A clone with a model, arrays and parameters of the user's own, not yet tracked; returns a function that runs commands."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        if name.split("/")[0] not in ("metrics", "plots", "dvc.lock", "params.yaml", "data", "models", "tests"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    net = Classifier((2, 6, 6)).conv(8, 2, 3, 3).add("GlobalAveragePool").add("Flatten").dense(CLASSES, 8)
    net.save(MODEL)
    save_data("data/own", (2, 6, 6))
    Path("params.yaml").write_text(yaml.safe_dump(own_params(load_params(repository / "params.yaml"))))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def command(*words):
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    for words in (["init", "-q"], ["config", "user.name", "A"], ["config", "user.email", "a@example.com"]):
        assert command("git", *words)[0] == 0
    command("git", "add", "--all")
    command("git", "commit", "-qm", "Set up")
    return command


def test_an_experiment_elsewhere_says_what_is_not_tracked_and_has_it_when_it_is(run):
    code, printed = run("dvc", "exp", "run", "--temp", "preprocess")
    assert code != 0 and "Traceback" not in printed
    for file in (MODEL, *ARRAYS):
        assert f"{file} is not tracked, so that this experiment does not have it: run `dvc add {file}`" in printed
    code, printed = run("dvc", "repro", "machine")
    assert code == 0
    for file in (MODEL, *ARRAYS):
        assert (
            f"warning: {file} is not tracked, so that no queued or --temp experiment has it: run `dvc add {file}`"
            in printed
        )
    assert run("dvc", "add", "--quiet", MODEL, *ARRAYS)[0] == 0
    run("git", "add", "--all")
    run("git", "commit", "-qm", "Bring a model and data")
    code, printed = run("dvc", "exp", "run", "--temp", "preprocess")
    assert code == 0, printed
    assert f"{MODEL}: 6 nodes, 5 after preprocessing" in printed and "not tracked" not in printed
