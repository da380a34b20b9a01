"""A second branch of the small repository, on which all has run with another seed, and experiments that know its results."""

import json
import re
import shutil
import subprocess
import time

import pytest
from small_repository import MODELS, STATIC, TUNED, Project, drawn_and_timed, known, named, ran

from stages.common.workspace import load_params

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("git"), reason="git is not here")]


@pytest.fixture(scope="module")
def reseeded(prepared, tmp_path_factory):
    """A copy with a second branch, `seed-1`, in which `calibrate.seed` is 1, and what `dvc repro` did there."""
    project = Project(tmp_path_factory.mktemp("reseeded") / "repository")
    shutil.copytree(prepared[0].folder, project.folder, symlinks=True)
    project.run("git", "switch", "--quiet", "--create", "seed-1")
    project.change("calibrate.seed", 1)
    done = project.repro()
    project.commit("Calibrate with seed 1")
    return project, done


def test_another_calibration_seed_reruns_the_static_variants_and_what_compares_them(reseeded):
    _, done = reseeded
    static = named("calibrate-quantize", "verify-load", "evaluate", variants=STATIC)
    assert known(done) == {"machine"} | static | drawn_and_timed()


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
