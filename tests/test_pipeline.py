"""The real pipeline on a small copy of the repository: what runs when something changes, and that results are the same.

One cold run is shared; every test works in a copy of it at a path of its own.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import onnx
import pytest
import yaml
from small_repository import (
    DYNAMIC,
    MODELS,
    STATIC,
    TUNED,
    Project,
    drawn_and_timed,
    follows_from_time,
    known,
    named,
    ran,
)

from stages.common.session.runtimes import runtime_folder

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("git"), reason="git is not here")]


@pytest.fixture
def project(prepared, tmp_path):
    """A copy of the prepared repository."""
    shutil.copytree(prepared[0].folder, tmp_path / "copy", symlinks=True)
    return Project(tmp_path / "copy")


def test_the_first_run_runs_every_stage_once(prepared):
    project, first = prepared
    assert set(first) == project.stages() and all(first.values())
    assert named("calibrate-quantize", "verify-load", "evaluate", variants=STATIC) < set(first)


def test_the_second_run_runs_the_machine_stage_and_nothing_else(project):
    start = time.monotonic()
    assert project.repro() == {"machine": True}
    assert time.monotonic() - start < 30  # about 3 s on a quiet machine; a busy one takes several times that
    assert project.run("git", "status", "--porcelain") == ""


def test_another_recipe_reruns_that_variant_and_the_old_one_comes_from_the_cache(project):
    project.change("calibrate_quantize.static-u8s8.per_channel", True)
    variant = named("calibrate-quantize", "verify-load", "evaluate", variants=["static-u8s8"])
    expected = {"machine"} | variant | drawn_and_timed()
    done = project.repro()
    assert known(done) == expected and all(done.values())
    project.run("git", "checkout", "--quiet", "params.yaml")
    done = project.repro()
    assert known(done) == expected
    assert [name for name, anew in done.items() if anew] == [
        "machine",
        "report",
    ]  # the report is no output for the run cache
    assert project.run("git", "status", "--porcelain") == ""


def test_a_new_recipe_by_hand_is_searched_against_and_a_recipe_that_stays_changes_nothing_behind_it(project):
    recipe = project.folder / "models/cnn/tuned-recipe.yaml"
    before = recipe.read_bytes()
    project.change("tune.cnn.seed", 1)
    done = project.repro("build-tuned")
    assert {"tune@cnn"} <= set(done) <= {"machine", "tune@cnn", "build-tuned@cnn"}
    assert ("build-tuned@cnn" in done) == (recipe.read_bytes() != before)
    project.change("calibrate_quantize.static-u8s8.per_channel", True)
    assert named("tune") < set(project.repro("tune"))


def test_the_tuned_variant_is_built_again_byte_for_byte(project):
    """From the recipe alone: the search need not run."""
    made = project.folder / "models/cnn/onnx/tuned.onnx"
    before = made.read_bytes()
    done = project.repro("--single-item", "--force", "--no-run-cache", "build-tuned@cnn")
    assert done == {"build-tuned@cnn": True} and made.read_bytes() == before
    assert project.run("git", "status", "--porcelain") == ""


def test_without_a_search_there_is_no_tuned_variant(project):
    """A user who does not want it writes `tune: {}` and takes `tuned` out of the list, and deletes what it had made."""
    project.change("tune", {})
    project.change("variants", [*DYNAMIC, *STATIC])
    command = ["dvc", "repro", "machine"]
    done = subprocess.run(
        command, cwd=project.folder, env=project.environment, capture_output=True, text=True, check=False
    )
    assert "models/cnn/onnx/tuned.onnx is made by no stage" in done.stderr + done.stdout
    for model in MODELS:
        (project.folder / f"models/{model}/onnx/tuned.onnx").unlink()
    done = project.repro()
    assert not [name for name in project.stages() if "tune" in name] and {"report", "plot"} <= set(done)
    assert "tuned" not in (project.folder / "plots/report.md").read_text()


QUANTIZE = named("preprocess") | named("quantize-dynamic", variants=DYNAMIC)
CALIBRATE = named("calibrate-quantize", variants=STATIC)
EVALUATE = named("evaluate-fp32") | named("evaluate", variants=[*DYNAMIC, *STATIC])
VERIFY = named("verify-load-fp32") | named("verify-load", variants=[*DYNAMIC, *STATIC])
DECLARED = {
    "cpu.isa": CALIBRATE | EVALUATE,
    "packages.torch": named("train", "export"),
    "packages.onnx": named("export") | QUANTIZE | CALIBRATE,
    "packages.onnxscript": named("export"),
    "packages.onnxruntime": named("export") | QUANTIZE | CALIBRATE | VERIFY | EVALUATE,
    "packages.numpy": named("train", "export") | QUANTIZE | CALIBRATE | EVALUATE,
}


def pretend(project, key, value):
    """Change in dvc.lock what a result was made with: the machine of today differs from it then."""
    lock = yaml.load((project.folder / "dvc.lock").read_text(), yaml.CSafeLoader)
    section, name = key.split(".")
    for stage in lock["stages"].values():
        made_with = stage.get("params", {}).get("metrics/machine.json", {})
        for whole in (made_with, made_with.get(section, {})):
            whole |= {part: value for part in whole if part in (key, name)}
    (project.folder / "dvc.lock").write_text(yaml.safe_dump(lock, sort_keys=False))


def test_another_machine_makes_stale_exactly_what_declared_the_difference(project):
    lock = (project.folder / "dvc.lock").read_text()
    for key, stages in DECLARED.items():
        (project.folder / "dvc.lock").write_text(lock)
        pretend(project, key, "another")
        stale = set(json.loads(project.run("dvc", "status", "--json")))
        assert known(stale) - {"machine"} == stages | named("benchmark") | {"report"}, key
        assert named("tune") < stale, "which measures"
        assert (named("build-tuned") < stale) == (stages >= CALIBRATE), "which calibrates and quantizes"


def test_a_package_that_is_updated_is_noticed_by_the_next_run(project, tmp_path):
    """A fake onnxscript of another version, seen by importlib.metadata as a real one would be."""
    (tmp_path / "site/onnxscript-0.0.1.dist-info").mkdir(parents=True)
    (tmp_path / "site/onnxscript-0.0.1.dist-info/METADATA").write_text("Name: onnxscript\nVersion: 0.0.1\n")
    assert project.repro("machine", PYTHONPATH=str(tmp_path / "site")) == {"machine": True}
    stale = set(json.loads(project.run("dvc", "status", "--json")))
    assert known(stale) - {"machine"} == named("export", "benchmark") | {"report"}


def test_results_of_another_processor_are_made_again_on_this_one(project):
    """Equal bytes end the rerun: calibration that finds the same ranges is not verified again."""
    pretend(project, "cpu.isa", "another")
    done = project.repro("--no-run-cache")
    assert known(done) >= {"machine"} | CALIBRATE | EVALUATE | named("benchmark") and all(done.values())
    assert not set(done) & (VERIFY | QUANTIZE | named("train", "export"))


def test_a_clone_and_a_temporary_experiment_give_the_same_hashes(prepared, tmp_path):
    """Everything that does not follow from times is made again, at another path: in the folder that DVC makes in a clone."""
    original, _ = prepared
    clone = Project(tmp_path / "quite" / "another" / "place")
    clone.folder.parent.mkdir(parents=True)
    original.run("git", "clone", "--quiet", str(original.folder), str(clone.folder))
    clone.run("git", "config", "user.name", "Another User")
    clone.run("git", "config", "user.email", "another@example.com")
    shutil.copytree(original.folder / ".dvc/cache/files", clone.folder / ".dvc/cache/files")
    clone.run("git", "rm", "--quiet", "dvc.lock")  # which DVC writes anew after every stage, whole
    clone.commit("Forget what has run")
    clone.run("dvc", "checkout", "--quiet", *(str(path) for path in clone.folder.glob("data/tiny/*.dvc")))
    compared = sorted(stage for stage in clone.stages() if not follows_from_time(stage))
    done = ran(clone.run("dvc", "exp", "run", "--temp", "--name", "again", *compared))
    assert set(done) == set(compared) and all(done.values())
    clone.run("dvc", "exp", "branch", "again", "made-again")
    clone.run("git", "checkout", "--quiet", "made-again", "--", "dvc.lock")
    made = clone.hashes()
    assert set(made) == set(compared) and made == original.hashes()


def kill_at(project, target, moment):
    """Start `dvc repro target` and kill it and its stage, without a chance to clean up, as soon as `moment(printed)`.

    Return whether it came to that before the stage was done.
    """
    with open(project.folder.parent / "printed.txt", "w+") as printed:
        running = subprocess.Popen(
            ["dvc", "repro", target], cwd=project.folder, env=project.environment, start_new_session=True,
            stdout=printed, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while running.poll() is None:
            if moment(Path(printed.name).read_text()):
                os.killpg(running.pid, signal.SIGKILL)
                return running.wait() == -signal.SIGKILL
            time.sleep(0.001)
    assert running.returncode == 0, Path(printed.name).read_text()
    return False


def test_a_killed_training_leaves_nothing_and_the_next_run_completes(project):
    project.change("train.cnn-small.epochs", 500)
    assert kill_at(project, "train@cnn-small", lambda printed: "epoch 2/500" in printed)
    outputs = ["models/cnn-small/model.pt", "metrics/train/cnn-small.json", "plots/train/cnn-small-loss.csv"]
    assert not [path for path in outputs if (project.folder / path).exists()]
    project.run("git", "checkout", "--quiet", "params.yaml")
    project.repro()
    assert project.run("git", "status", "--porcelain") == ""
    assert all((project.folder / path).stat().st_size for path in outputs)


def test_a_quantization_killed_while_it_writes_leaves_no_half_model_and_the_next_run_completes(project):
    """Killed as soon as its temporary file is there. That file is seen by neither DVC nor Git."""
    folder = project.folder / "models/cnn/onnx"

    def killed(seed):
        project.change("calibrate.seed", seed)
        return kill_at(
            project, "calibrate-quantize@cnn-static-u8s8", lambda _: any(folder.glob(".static-u8s8.onnx.*.tmp"))
        )

    assert any(killed(seed) for seed in range(7, 10)), "on a busy machine a look can come too late, not three"
    if (folder / "static-u8s8.onnx").exists():  # renamed between the look and the kill
        onnx.checker.check_model(folder / "static-u8s8.onnx")
    else:
        assert list(folder.glob(".static-u8s8.onnx.*.tmp"))
    project.run("git", "checkout", "--quiet", "params.yaml")
    assert not set(project.repro()) & named("benchmark")
    assert project.run("git", "status", "--porcelain") == ""
    assert (folder / "static-u8s8.onnx").exists()


def test_a_variant_that_does_not_load_is_recorded_and_the_rest_goes_on(project, old_runtime):
    """On onnxruntime 1.20.1, which has no kernel for what the dynamic variant needs."""
    model, variants = ["cnn-small"], [*DYNAMIC, *STATIC, TUNED]
    targets = named("verify-load-fp32", "evaluate-fp32", "benchmark", models=model)
    targets |= named("verify-load", "evaluate", models=model, variants=variants)
    order = [name for name in project.run("dvc", "stage", "list", "--name-only").split() if name in targets]
    done = project.repro("--single-item", "machine", *order, PYTHONPATH=str(runtime_folder(old_runtime)))
    assert set(done) == {"machine", *targets}
    assert project.metrics("machine.json")["packages"]["onnxruntime"] == old_runtime
    verified = project.metrics("verify-load/cnn-small/dynamic-qint8.json")["cnn-small"]["dynamic-qint8"]
    assert (verified["loads"], verified["error"]) == (0, "NOT_IMPLEMENTED ConvInteger")
    assert project.metrics("evaluate/cnn-small/dynamic-qint8.json") == {
        "cnn-small": {"dynamic-qint8": {"loads": 0, "runs": 0, "finite": 0}}
    }
    assert project.metrics("evaluate/cnn-small/static-u8s8.json")["cnn-small"]["static-u8s8"]["images"] == 200
    timed = project.metrics("benchmark/cnn-small.json")["cnn-small"]
    assert {"fp32", "fp32-again", *STATIC} <= set(timed) and "dynamic-qint8" not in timed
    assert project.run("dvc", "metrics", "show", "--json")
