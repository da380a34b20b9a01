"""The real pipeline on a small copy of the repository: what runs when something changes, and that results are the same.

One cold run is shared; every test works in a copy of it at a path of its own.
"""

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
import yaml

from stages.common.session.runtimes import runtime_folder
from stages.common.workspace import load_params

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("git"), reason="git is not here")]

MODELS = ("cnn", "cnn-small")
STATIC, DYNAMIC, TUNED = ("static-s8s8", "static-u8s8"), ("dynamic-qint8",), "tuned"


def small(params):
    """Return the repository's parameters, made small: tiny images that are there, one epoch, few variants, few rounds."""
    params = copy.deepcopy(params)
    params |= {"dataset": "tiny", "fetch_data": {}, "variants": [*DYNAMIC, *STATIC, TUNED]}
    for section, names in (
        ("quantize_dynamic", DYNAMIC), ("calibrate_quantize", STATIC), ("models", MODELS), ("train", MODELS),
        ("tune", MODELS),
    ):  # fmt: skip
        params[section] = {name: params[section][name] for name in names}
    for name in MODELS:
        params["models"][name] |= {"evaluate": {"images": 200}, "benchmark": {"batches": [1, 8], "seconds": 0.5}}
        params["models"][name] |= {"explain": {"images": 50, "noise_images": 8}}
        params["tune"][name] |= {"seconds": 2.0, "max_drop": 20.0, "validation_images": 100}
        params["train"][name] |= {"epochs": 1, "batch_size": 32, "threads": 1}
    params["calibrate"] |= {"images": 40, "batch_size": 20}
    params["verify_load"]["runtimes"] = []
    params["benchmark"]["rounds"] = 2
    params["explain"]["time"] = {"rounds": 7, "seconds": 0.5}
    params["sensitivity"] = {"cnn": {"variant": "static-u8s8", "images": [10, 40], "seeds": 2, "test_images": 200}}
    return params


class Project:
    """A copy of the repository in which commands are run as a user would."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.environment |= {"TMPDIR": str(self.folder.parent)}  # temporary files of its own
        self.environment.pop("PYTHONPATH", None)

    def run(self, *command, **environment):
        """Run a command; return what it printed. It has to succeed."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment | environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    def repro(self, *arguments, **environment):
        """Run `dvc repro`; return the names of the stages that ran, or came back from the run cache."""
        return ran(self.run("dvc", "repro", *arguments, **environment))

    def stages(self):
        return set(self.run("dvc", "stage", "list", "--name-only").split())

    def change(self, key, value):
        """Change a value of params.yaml."""
        path = self.folder / "params.yaml"
        params = tree = yaml.safe_load(path.read_text())
        *parts, last = key.split(".")
        for part in parts:
            tree = tree[part]
        tree[last] = value
        path.write_text(yaml.safe_dump(params, sort_keys=False))

    def commit(self, message):
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", message)

    def hashes(self):
        """Return {stage: {output: hash}} of dvc.lock, for all stages but those that measure time and what follows from them."""
        lock = yaml.load((self.folder / "dvc.lock").read_text(), yaml.CSafeLoader)["stages"]
        return {
            name: {out["path"]: out["md5"] for out in stage["outs"]}
            for name, stage in lock.items()
            if not follows_from_time(name)
        }

    def metrics(self, path):
        return json.loads((self.folder / "metrics" / path).read_text())


def follows_from_time(stage):
    """Return whether a stage measures time, or works on what a measurement chose: the recipe of the variant `tuned`."""
    timed = {"benchmark", "explain", "plot", "report", "tune", "plot-tune", "build-tuned"}
    return stage.split("@")[0] in timed or stage.endswith(f"-{TUNED}")


def ran(printed):
    """Return {stage: True if it ran, False if it came back from the run cache} of what `dvc repro` printed."""
    done = dict.fromkeys(re.findall(r"^Running stage '([^']+)'", printed, re.MULTILINE), True)
    return done | dict.fromkeys(re.findall(r"^Stage '([^']+)' is cached", printed, re.MULTILINE), False)


@pytest.fixture(scope="session")
def prepared(made_once, repository, dataset):
    """A repository in which everything has run once and is committed, and what the first `dvc repro` did."""
    folder, first = made_once("prepared", lambda folder: prepare(folder / "repository", repository, dataset))
    return Project(folder / "repository"), first


def prepare(folder, repository, dataset):
    """Make a small copy of the repository, run everything and commit it; return what `dvc repro` did."""
    project = Project(folder)
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        if name.split("/")[0] not in ("metrics", "plots", "dvc.lock", "params.yaml", "data", "models"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, folder / name)
    params = small(load_params(repository / "params.yaml"))
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    shutil.copytree(dataset, folder / "data/tiny")
    project.run("git", "init", "--quiet", "--initial-branch", "main")
    project.run("git", "config", "user.name", "A User")
    project.run("git", "config", "user.email", "user@example.com")
    project.run("dvc", "add", "--quiet", *sorted(f"data/tiny/{path.name}" for path in dataset.iterdir()))
    project.commit("Set up")
    first = project.repro()
    project.commit("Record results")
    return first


@pytest.fixture
def project(prepared, tmp_path):
    """A copy of the prepared repository."""
    shutil.copytree(prepared[0].folder, tmp_path / "copy", symlinks=True)
    return Project(tmp_path / "copy")


def named(*stages, models=MODELS, variants=(None,)):
    """Return the names of stage instances: every stage for every model, and for every variant where they have some."""
    return {
        f"{stage}@{model}-{variant}" if variant else f"{stage}@{model}"
        for stage in stages
        for model in models
        for variant in variants
    }


def test_the_first_run_runs_every_stage_once(prepared):
    project, first = prepared
    assert set(first) == project.stages() and all(first.values())
    assert named("calibrate-quantize", "verify-load", "evaluate", variants=STATIC) < set(first)


def test_the_second_run_runs_the_machine_stage_and_nothing_else(project):
    start = time.monotonic()
    assert project.repro() == {"machine": True}
    assert time.monotonic() - start < 30  # about 3 s on a quiet machine; a busy one takes several times that
    assert project.run("git", "status", "--porcelain") == ""


@pytest.fixture(scope="session")
def reseeded(prepared, made_once):
    """A copy with a second branch, `seed-1`, in which `calibrate.seed` is 1, and what `dvc repro` did there."""
    folder, done = made_once("reseeded", lambda folder: reseed(folder / "repository", prepared[0].folder))
    return Project(folder / "repository"), done


def reseed(folder, original):
    """Copy a repository and run it with another seed on a new branch; return what `dvc repro` did."""
    shutil.copytree(original, folder, symlinks=True)
    project = Project(folder)
    project.run("git", "switch", "--quiet", "--create", "seed-1")
    project.change("calibrate.seed", 1)
    done = project.repro()
    project.commit("Calibrate with seed 1")
    return done


def drawn_and_timed(project):
    """Return the stages that follow from any change of a variant: the benchmark, figures and report."""
    return named("benchmark") | {"plot", "report"}


def known(done, project):
    """Return the names of the stages in `done` that this module knows something about."""
    others = {"explain", "explain-accuracy", "sensitivity", "plot-sensitivity"}  # these have tests of their own
    others |= {"tune", "plot-tune", "build-tuned"}  # what runs after a search depends on what it finds
    return {name for name in done if name.split("@")[0] not in others and not name.endswith(f"-{TUNED}")}


def test_another_calibration_seed_reruns_the_static_variants_and_what_compares_them(reseeded):
    project, done = reseeded
    static = named("calibrate-quantize", "verify-load", "evaluate", variants=STATIC)
    assert known(done, project) == {"machine"} | static | drawn_and_timed(project)


def test_another_recipe_reruns_that_variant_and_the_old_one_comes_from_the_cache(project):
    project.change("calibrate_quantize.static-u8s8.per_channel", True)
    variant = named("calibrate-quantize", "verify-load", "evaluate", variants=["static-u8s8"])
    expected = {"machine"} | variant | drawn_and_timed(project)
    done = project.repro()
    assert known(done, project) == expected and all(done.values())
    project.run("git", "checkout", "--quiet", "params.yaml")
    done = project.repro()
    assert known(done, project) == expected
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
        assert known(stale, project) - {"machine"} == stages | named("benchmark") | {"report"}, key
        assert named("tune") < stale, "which measures"
        assert (named("build-tuned") < stale) == (stages >= CALIBRATE), "which calibrates and quantizes"


def test_a_package_that_is_updated_is_noticed_by_the_next_run(project, tmp_path):
    """A fake onnxscript of another version, seen by importlib.metadata as a real one would be."""
    (tmp_path / "site/onnxscript-0.0.1.dist-info").mkdir(parents=True)
    (tmp_path / "site/onnxscript-0.0.1.dist-info/METADATA").write_text("Name: onnxscript\nVersion: 0.0.1\n")
    assert project.repro("machine", PYTHONPATH=str(tmp_path / "site")) == {"machine": True}
    stale = set(json.loads(project.run("dvc", "status", "--json")))
    assert known(stale, project) - {"machine"} == named("export", "benchmark") | {"report"}


def test_results_of_another_processor_are_made_again_on_this_one(project):
    """Equal bytes end the rerun: calibration that finds the same ranges is not verified again."""
    pretend(project, "cpu.isa", "another")
    done = project.repro("--no-run-cache")
    assert known(done, project) >= {"machine"} | CALIBRATE | EVALUATE | named("benchmark") and all(done.values())
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
    clone.run(
        "git", "rm", "--quiet", "dvc.lock"
    )  # nothing has run here; DVC also writes it anew, whole, after every stage
    clone.commit("Forget what has run")
    clone.run("dvc", "checkout", "--quiet")
    compared = sorted(stage for stage in clone.stages() if not follows_from_time(stage))
    done = ran(clone.run("dvc", "exp", "run", "--temp", "--name", "again", *compared))
    assert set(done) == set(compared) and all(done.values())
    clone.run("dvc", "exp", "branch", "again", "made-again")
    clone.run("git", "checkout", "--quiet", "made-again", "--", "dvc.lock")
    made = clone.hashes()
    assert set(made) == set(compared) and made == original.hashes()


def kill_at(project, target, moment):
    """Start `dvc repro target` and kill it and its stage, without a chance to clean up, as soon as `moment(printed)`."""
    with open(project.folder.parent / "printed.txt", "w+") as printed:
        running = subprocess.Popen(
            ["dvc", "repro", target], cwd=project.folder, env=project.environment, start_new_session=True,
            stdout=printed, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while running.poll() is None and not moment(Path(printed.name).read_text()):
            time.sleep(0.001)
        os.killpg(running.pid, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL, Path(printed.name).read_text()


def test_a_killed_training_leaves_nothing_and_the_next_run_completes(project):
    project.change("train.cnn-small.epochs", 500)
    kill_at(project, "train@cnn-small", lambda printed: "epoch 2/500" in printed)
    outputs = ["models/cnn-small/model.pt", "metrics/train/cnn-small.json", "plots/train/cnn-small-loss.csv"]
    assert not [path for path in outputs if (project.folder / path).exists()]
    project.run("git", "checkout", "--quiet", "params.yaml")
    project.repro()
    assert project.run("git", "status", "--porcelain") == ""
    assert all((project.folder / path).stat().st_size for path in outputs)


def test_a_quantization_killed_while_it_writes_leaves_no_half_model_and_the_next_run_completes(project):
    """Killed as soon as its temporary file is there. That file is seen by neither DVC nor Git."""
    folder = project.folder / "models/cnn/onnx"
    project.change("calibrate.seed", 7)
    kill_at(project, "calibrate-quantize@cnn-static-u8s8", lambda _: any(folder.glob(".static-u8s8.onnx.*.tmp")))
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


def test_metrics_of_two_branches_are_compared_by_model_variant_and_metric_on_a_bare_clone(reseeded, tmp_path):
    """No cache is needed: metrics are in Git."""
    clone = Project(tmp_path / "clone")
    reseeded[0].run("git", "clone", "--quiet", str(reseeded[0].folder), str(clone.folder))
    clone.run("git", "fetch", "--quiet", "origin", "main:main")
    rows = [line.split() for line in clone.run("dvc", "metrics", "diff", "main", "seed-1").splitlines()[1:]]
    evaluated = [row for row in rows if row[0].startswith("metrics/evaluate/")]
    assert evaluated and not (clone.folder / ".dvc/cache").exists()
    for path, metric, *values in evaluated:
        _, _, model, variant = path.removesuffix(".json").split("/")
        assert variant in (*STATIC, TUNED) and metric.startswith(f"{model}.{variant}.")
        assert len(values) == 3 and "-" not in values, (path, metric, values)
    assert {row[1] for row in evaluated} >= {f"{model}.static-u8s8.max_abs_logit_difference" for model in MODELS}


@pytest.fixture
def on_main(reseeded, tmp_path):
    """A copy on the branch main, whose cache knows the results of seed 1."""
    shutil.copytree(reseeded[0].folder, tmp_path / "copy", symlinks=True)
    project = Project(tmp_path / "copy")
    project.run("git", "switch", "--quiet", "main")
    project.run("dvc", "checkout", "--quiet")
    return project


def test_an_experiment_sets_a_parameter_on_the_command_line(on_main, reseeded):
    done = ran(on_main.run("dvc", "exp", "run", "--set-param", "calibrate.seed=1"))
    assert set(done) == set(reseeded[1])
    assert [name for name, anew in done.items() if anew] == ["machine", "report"]  # the rest was seen on the branch
    assert load_params(on_main.folder / "params.yaml")["calibrate"]["seed"] == 1
    assert on_main.hashes() == reseeded[0].hashes()


def test_a_parameter_that_does_not_exist_is_refused_by_the_first_stage(on_main):
    """DVC itself accepts it, and nothing would come of it."""
    command = ["dvc", "exp", "run", "--set-param", "+calibrate.metod=MinMax"]
    done = subprocess.run(
        command, cwd=on_main.folder, env=on_main.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and set(ran(done.stdout)) == {"machine"}
    sentence = "error: params.yaml: `calibrate.metod` is not a parameter: did you mean `calibrate.method`?"
    assert sentence in done.stderr + done.stdout


def test_queued_experiments_with_two_workers_all_finish(on_main):
    on_main.run("dvc", "exp", "run", "--queue", "--set-param", "calibrate.seed=range(0,2)")
    on_main.run("dvc", "queue", "start", "--jobs", "2")
    states, deadline = ["Queued"], time.monotonic() + 240
    while set(states) & {"Queued", "Running"} and time.monotonic() < deadline:
        time.sleep(1)
        states = re.findall(r"Queued|Running|Success|Failed", on_main.run("dvc", "queue", "status"))
    assert states == ["Success", "Success"]
    [baseline] = json.loads(on_main.run("dvc", "exp", "show", "--json", "--rev", "HEAD"))[1:]
    seeds = [
        experiment["revs"][0]["data"]["params"]["params.yaml"]["data"]["calibrate"]["seed"]
        for experiment in baseline["experiments"]
    ]
    assert sorted(seeds) == [0, 1]
