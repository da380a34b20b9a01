"""The real pipeline on a small copy of the repository, and what its commands print."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from stages.common.workspace import load_params

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
        params["tune"][name] |= {"seconds": 2.0, "max_drop": 20.0, "trained_images": 400, "validation_images": 100}
        params["train"][name] |= {"images": 400, "epochs": 1, "batch_size": 32, "threads": 1}
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


def named(*stages, models=MODELS, variants=(None,)):
    """Return the names of stage instances: every stage for every model, and for every variant where they have some."""
    return {
        f"{stage}@{model}-{variant}" if variant else f"{stage}@{model}"
        for stage in stages
        for model in models
        for variant in variants
    }


def drawn_and_timed():
    """Return the stages that follow from any change of a variant: the benchmark, figures and report."""
    return named("benchmark") | {"plot", "report"}


def known(done):
    """Return the names of the stages in `done` that are the same after every run, whatever is measured."""
    others = {"explain", "explain-accuracy", "sensitivity", "plot-sensitivity"}  # these have tests of their own
    others |= {"tune", "plot-tune", "build-tuned"}  # what runs after a search depends on what it finds
    return {name for name in done if name.split("@")[0] not in others and not name.endswith(f"-{TUNED}")}
