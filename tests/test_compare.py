"""What a comparison of two revisions promises: real differences are named, noise is not, and nothing is passed silently."""

import itertools
import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from dvc.repo import Repo
from scipy import stats

from stages.common.calibration.collection import draw_indices
from stages.common.calibration.static_quantization import calibrate, quantize
from stages.common.session.runtime import predict_images
from stages.common.statistics.intervals import mcnemar_p
from stages.common.statistics.multiple import holm
from stages.common.timing import CALL_COLUMNS, measure, round_medians
from stages.tools.compare import compare, main
from stages.tools.comparison import Row, judge, speedup_rows
from stages.tools.lockfile import difference_in_words
from stages.tools.revisions import NotStored, Revision
from stages.tools.significance import run_difference

MACHINE = {
    "cpu": {"model": "a processor", "isa": "avx2", "physical_cores": 2, "usable_cores": 2},
    "packages": {"onnxruntime": "1.32.0"},
}
INPUT = {"scale": 1 / 255, "mean": 0.0, "std": 1.0, "channels": 1, "repeat": 1}


class SmallRepository:
    """A Git and DVC repository in the current folder with predictions, labels and machine, written by hand."""

    def __init__(self):
        git("init", "-q", "-b", "main")
        git("config", "user.email", "test@example.invalid")
        git("config", "user.name", "test")
        Repo.init().close()

    def commit(self, tag, predictions, labels, *, images=None, machine=MACHINE, calls=None, copies=None):
        """Commit {variant: logits} of the model `cnn` and, if given, the calls of its benchmark; tag the commit.

        `images`: in place of the labels, which stand for them; `copies`: {variant: the one under whose name its file was
        timed}.
        """
        write("params.yaml", yaml.safe_dump({"dataset": "small"}))
        write("metrics/machine.json", json.dumps(machine))
        tracked = [
            save("data/small/test-labels.npy", labels),
            save("data/small/test-images.npy", labels if images is None else images),
        ]
        for variant, logits in predictions.items():
            tracked.append(save(f"models/cnn/predictions/{variant}.npz", logits))
            known = len(logits) and len(labels)
            accuracy = {"accuracy": float((logits.argmax(1) == labels[: len(logits)]).mean())} if known else {}
            write(f"metrics/evaluate/cnn/{variant}.json", json.dumps({"cnn": {variant: accuracy}}))
        if calls is not None:
            lines = [",".join(map(str, row)) for row in [CALL_COLUMNS, *calls]]
            write("plots/benchmark/cnn.csv", "\n".join(lines) + "\n")
            timed = {name: {"same_file_as": of} for name, of in (copies or {}).items()}
            write("metrics/benchmark/cnn.json", json.dumps({"cnn": timed | {"rounds": 20}}))
        with Repo() as repo:
            repo.add(tracked)
        git("add", ".")
        git("commit", "-q", "-m", tag)
        git("tag", tag)


def git(*arguments):
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def write(path, text):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def save(path, array):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).unlink(missing_ok=True)
    if path.endswith(".npz"):
        np.savez(path, logits=array)
    else:
        np.save(path, array)
    return path


def logits_of(predicted, classes=10):
    """Return logits whose largest is at the predicted label of each image."""
    return np.eye(classes, dtype=np.float32)[predicted]


def worsened(labels, count):
    """Return predictions that are right but for the first `count` images."""
    predicted = labels.copy()
    predicted[:count] = (predicted[:count] + 1) % 10
    return logits_of(predicted)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return SmallRepository()


@pytest.fixture(scope="module")
def labels():
    return np.random.default_rng(0).integers(0, 10, 1000)


def rows_of(a, b, **filters):
    """Return {(variant, quantity): Row} of two revisions of the small repository."""
    rows, _ = compare(Revision(a), Revision(b), **filters)
    return {(row.variant, row.quantity): row for row in rows}


def network(path, hidden=64, seed=0):
    """Write a network of one hidden layer that classifies 8x8 images by ten random templates; return the templates."""
    rng = np.random.default_rng(seed)
    templates = rng.integers(0, 256, (10, 64)).astype(np.float32)
    weights = {
        "spread": rng.normal(size=(64, hidden)).astype(np.float32) / 8,
        "gather": np.zeros((hidden, 10), np.float32),
    }
    activations = np.maximum((templates / 255) @ weights["spread"], 0)
    weights["gather"][:] = (activations - activations.mean(0)).T
    nodes = [
        onnx.helper.make_node("Flatten", ["image"], ["flat"]),
        onnx.helper.make_node("MatMul", ["flat", "spread"], ["sums"], name="spread"),
        onnx.helper.make_node("Relu", ["sums"], ["active"]),
        onnx.helper.make_node("MatMul", ["active", "gather"], ["logits"], name="gather"),
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "small",
        [value("image", onnx.TensorProto.FLOAT, ["N", 1, 8, 8])],
        [value("logits", onnx.TensorProto.FLOAT, ["N", 10])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10), path)
    return templates


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """Labels, and int8 predictions of one network from four calibration draws and from wrongly scaled images."""
    folder = tmp_path_factory.mktemp("quantized")
    templates = network(folder / "fp32.onnx")
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, 2000)
    noisy = templates[labels] + rng.normal(scale=220, size=(len(labels), 64))
    np.save(folder / "images.npy", noisy.clip(0, 255).astype(np.uint8).reshape(-1, 1, 8, 8))
    predictions = {}
    draws = {f"draw-{seed}": (seed, 1 / 255) for seed in range(4)}
    for name, (seed, scale) in {**draws, "wrong-scale": (0, 1 / 65025)}.items():
        indices = draw_indices(seed=seed, images=4, available=len(labels))
        scaling = {**INPUT, "scale": scale}
        ranges = calibrate(folder / "fp32.onnx", folder / "images.npy", indices, scaling, batch_size=4, method="MinMax")
        recipe = {"quant_format": "QDQ", "activation_type": "QUInt8", "weight_type": "QInt8"}
        quantize(folder / "fp32.onnx", folder / f"{name}.onnx", ranges, **recipe)
        predictions[name] = predict_images(
            folder / f"{name}.onnx", folder / "images.npy", INPUT, images=len(labels), batch_size=500, threads=1
        )
    return labels, predictions


def test_a_calibration_draw_gets_the_verdict_of_the_paired_test(repository, quantized):
    labels, predictions = quantized
    for seed in range(4):
        repository.commit(f"draw-{seed}", {"static": predictions[f"draw-{seed}"]}, labels)
    right = [predictions[f"draw-{seed}"].argmax(1) == labels for seed in range(4)]
    for seed in range(1, 4):
        row = rows_of("draw-0", f"draw-{seed}")["static", "accuracy"]
        lost, gained = int((right[0] & ~right[seed]).sum()), int((right[seed] & ~right[0]).sum())
        assert row.p == mcnemar_p(lost, gained) and lost + gained > 0
        assert (row.verdict == "no difference found") == (row.p >= 0.05)
        assert row.low < (gained - lost) / len(labels) < row.high


def test_wrongly_scaled_calibration_images_are_worse_with_their_interval(repository, quantized):
    labels, predictions = quantized
    repository.commit("right", {"static": predictions["draw-0"]}, labels)
    repository.commit("wrong", {"static": predictions["wrong-scale"]}, labels)
    row = rows_of("right", "wrong")["static", "accuracy"]
    assert row.verdict == "worse"
    assert row.low < row.difference < row.high < 0
    assert row.difference == pytest.approx(row.b - row.a)


def test_the_better_revision_is_better_seen_from_the_worse(repository, labels):
    repository.commit("poor", {"static": worsened(labels, 40)}, labels)
    repository.commit("good", {"static": worsened(labels, 10)}, labels)
    assert rows_of("poor", "good")["static", "accuracy"].verdict == "better"


def test_the_workspace_is_compared_as_it_lies_there(repository, labels):
    repository.commit("good", {"static": worsened(labels, 0)}, labels)
    save("models/cnn/predictions/static.npz", worsened(labels, 40))
    assert rows_of("HEAD", "workspace")["static", "accuracy"].verdict == "worse"


def test_without_labels_what_fp32_decides_stands_for_them(repository, labels):
    none, fp32 = np.empty(0, np.int64), worsened(labels, 0)
    repository.commit("close", {"fp32": fp32, "static": worsened(labels, 10)}, none)
    repository.commit("far", {"fp32": fp32, "static": worsened(labels, 40)}, none)
    rows = rows_of("close", "far")
    row = rows["static", "agreement"]
    assert row.verdict == "worse" and row.a - row.b == pytest.approx(30 / len(labels)) and row.high < 0
    assert (rows["fp32", "agreement"].a, rows["fp32", "agreement"].verdict) == (1.0, "identical")
    assert not [key for key in rows if key[1] == "accuracy"]


def test_an_experiment_is_compared_by_its_name(repository, labels):
    repository.commit("good", {"static": worsened(labels, 0)}, labels)
    save("models/cnn/predictions/static.npz", worsened(labels, 40))
    with Repo() as repo:
        repo.add("models/cnn/predictions/static.npz")
        repo.experiments.save(name="trial")
    assert rows_of("main", "trial")["static", "accuracy"].verdict == "worse"


def test_identical_predictions_are_said_to_be_identical_even_when_they_are_not_stored(repository, labels):
    for tag in ("one", "two"):
        repository.commit(tag, {"static": worsened(labels, 7), tag: worsened(labels, 1)}, labels)
    assert rows_of("one", "two")["static", "accuracy"].verdict == "identical"
    remove_from_cache("models/cnn/predictions/static.npz")
    row = rows_of("one", "two")["static", "accuracy"]
    assert (row.verdict, row.a, row.p) == ("identical", 0.993, None)


def remove_from_cache(path):
    md5 = yaml.safe_load(Path(f"{path}.dvc").read_text())["outs"][0]["md5"]
    Path(f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}").unlink()
    Path(path).unlink()


def test_predictions_that_are_not_stored_are_not_passed_silently(repository, labels, capsys):
    repository.commit("one", {"static": worsened(labels, 7)}, labels)
    remove_from_cache("models/cnn/predictions/static.npz")
    repository.commit("two", {"static": worsened(labels, 9)}, labels)
    row = rows_of("one", "two")["static", "accuracy"]
    assert row.verdict == "not compared"
    assert "models/cnn/predictions/static.npz of one is not in the cache" in row.reason
    assert "`git checkout " in row.reason and "`dvc pull models/cnn/predictions/static.npz`" in row.reason
    assert run("one", "two", "--fail-on", "worse", "--quantity", "accuracy") == 2
    assert row.reason in capsys.readouterr().out


def run(*arguments):
    """Return the exit code of the command."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return end.value.code


def test_in_a_clone_without_the_cache_what_differs_is_not_compared_and_what_is_equal_is(repository, labels, capsys):
    """With an output beside the predictions that is a folder, of which such a clone does not know the files."""
    write("models/cnn/optimized/all.txt", "a folder")
    with Repo() as repo:
        repo.add("models/cnn/optimized")
    for tag, wrong in (("one", 7), ("two", 9)):
        repository.commit(tag, {"fp32": worsened(labels, 1), "static": worsened(labels, wrong)}, labels)
    git("clone", "-q", ".", "clone")
    os.chdir("clone")
    assert run("one", "two", "--quantity", "accuracy", "--fail-on", "worse") == 2
    printed = capsys.readouterr().out
    assert re.search(r"cnn +fp32 +accuracy +99.90% +99.90% +\+0.00 points +identical", printed)
    assert (
        "not compared: cnn static accuracy\n  models/cnn/predictions/static.npz of one is not in the cache" in printed
    )
    with pytest.raises(NotStored, match=r"all.txt of one is not in the cache: .* `dvc pull models/cnn/optimized`$"):
        Revision("one").read("models/cnn/optimized/all.txt")
    assert run() == 0  # HEAD and a workspace in which nothing was checked out
    assert rows_of("HEAD", "workspace")["static", "accuracy"].verdict == "identical"


def test_in_a_clone_without_the_cache_other_labels_are_seen_though_predictions_are_equal(repository, labels):
    """fp32 is right on other images then, and the file of its predictions is the same."""
    for tag, truth in (("one", labels), ("relabelled", (labels + 1) % 10)):
        repository.commit(tag, {"fp32": worsened(labels, 1)}, truth, images=labels)
    git("clone", "-q", ".", "clone")
    os.chdir("clone")
    row = rows_of("one", "relabelled")["fp32", "accuracy"]
    assert (row.verdict, row.difference) == ("not compared", None)
    assert row.reason == "the test labels of one and relabelled are not the same"
    assert run("one", "relabelled", "--quantity", "accuracy", "--fail-on", "worse") == 2


def test_a_model_that_is_tracked_by_itself_makes_no_result_out_of_date(repository, labels):
    """DVC counts its .dvc file as one of the folder that it lies in; in a clone without the cache the model is not there."""
    repository.commit("data", {"fp32": worsened(labels, 1)}, labels)
    write("models/cnn/onnx/fp32.onnx", "a model of the user's own")
    stages = {
        "quantize": {"cmd": "true", "deps": ["models/cnn/onnx/fp32.onnx"], "outs": ["models/cnn/onnx/static.onnx"]},
        "benchmark": {
            "cmd": "true",
            "deps": ["models/cnn/onnx"],
            "outs": [{"plots/benchmark/cnn.csv": {"cache": False}}],
        },
    }
    with Repo() as repo:
        repo.add("models/cnn/onnx/fp32.onnx")
        write("dvc.yaml", yaml.safe_dump({"stages": stages}))
    write("models/cnn/onnx/static.onnx", "made of it")
    write("plots/benchmark/cnn.csv", "times")
    for _ in range(2):  # the first writes a .gitignore, which is one of the folder's files, too
        with Repo() as repo:
            repo.commit(force=True)
    git("add", ".")
    git("commit", "-q", "-m", "all")
    outs = ("models/cnn/onnx/static.onnx", "plots/benchmark/cnn.csv")
    assert [Revision("HEAD").lock.stale_because(out) for out in outs] == [None, None]
    git("clone", "-q", ".", "clone")
    os.chdir("clone")
    assert [Revision("HEAD").lock.stale_because(out) for out in outs] == [None, None]


def test_a_benchmark_that_was_never_run_is_said_not_to_have_been_made(repository, labels):
    plots = [{"plots/benchmark/${item}.csv": {"cache": False}}]
    stage = {"foreach": ["cnn"], "do": {"cmd": "true", "plots": plots}}
    write("dvc.yaml", yaml.safe_dump({"stages": {"benchmark": stage}}))
    repository.commit("one", {"fp32": worsened(labels, 1)}, labels)
    row = rows_of("one", "workspace")["all variants", "speedup"]
    commit = Revision("one").commit[:7]
    sentence = (
        "plots/benchmark/cnn.csv was not made in one: make it with `git checkout {}` and `dvc repro benchmark@cnn`"
    )
    assert (row.verdict, row.reason) == ("not compared", sentence.format(commit))
    write("dvc.yaml", yaml.safe_dump({"stages": {}}))
    assert "no stage makes it" in rows_of("workspace", "one")["all variants", "speedup"].reason


def test_identical_sizes_are_counted_and_others_listed(repository, labels, capsys):
    for tag in ("one", "two"):
        write("models/cnn/onnx/fp32.onnx", "equal")
        write("models/cnn/onnx/static.onnx", f"size {tag * (1 + (tag == 'two'))}")
        repository.commit(tag, {"fp32": worsened(labels, 1), "static": worsened(labels, 2)}, labels)
    assert run("one", "one", "--quantity", "size") == 0
    assert capsys.readouterr().out.endswith("\n\nidentical sizes: 2 of 2\n")
    assert run("one", "two", "--quantity", "size") == 0
    printed = capsys.readouterr().out
    assert re.search(r"cnn +static +size +8 +11 +\+3 bytes +larger\n\nidentical sizes: 1 of 2\n$", printed)


def test_other_images_or_labels_are_not_paired(repository, labels):
    repository.commit("one", {"static": worsened(labels, 7)}, labels)
    repository.commit("fewer", {"static": worsened(labels, 7)[:500]}, labels)
    repository.commit("other", {"static": worsened(labels, 9)}, (labels + 1) % 10)
    fewer, other = (rows_of("one", tag)["static", "accuracy"] for tag in ("fewer", "other"))
    assert fewer.verdict == other.verdict == "not compared"
    assert "1,000 images were evaluated in one and 500 in fewer" in fewer.reason
    assert "test images" in other.reason


def test_a_variant_that_stops_working_is_worse(repository, labels):
    repository.commit("one", {"static": worsened(labels, 7)}, labels)
    repository.commit("two", {"static": worsened(labels, 7)[:0]}, labels)
    assert rows_of("one", "two")["static", "works"].verdict == "worse"
    assert rows_of("two", "one")["static", "works"].verdict == "better"


def test_variants_of_one_revision_only_are_named(repository, labels, capsys):
    repository.commit("one", {"fp32": worsened(labels, 1), "old": worsened(labels, 7)}, labels)
    Path("models/cnn/predictions/old.npz.dvc").unlink()
    repository.commit("two", {"fp32": worsened(labels, 1), "new": worsened(labels, 7)}, labels)
    assert run("one", "two") == 0
    printed = capsys.readouterr().out
    assert "only in one: cnn/old" in printed and "only in two: cnn/new" in printed


def calls_of(medians, rounds=20):
    """Return calls of a benchmark in which each variant takes its nanoseconds, give or take a percent."""
    rng = np.random.default_rng(sum(medians.values()))
    return [
        [round_number, 0, variant, 1, call, int(time * rng.normal(1, 0.01))]
        for round_number in range(rounds)
        for variant, time in medians.items()
        for call in range(3)
    ]


def test_speedups_of_different_machines_are_refused_by_the_key_and_accuracy_is_still_compared(repository, labels):
    other = {**MACHINE, "cpu": {**MACHINE["cpu"], "isa": "avx512_vnni"}}
    calls = calls_of({"fp32": 90_000, "fp32-again": 90_001, "static": 50_000})
    repository.commit("here", {"static": worsened(labels, 0)}, labels, calls=calls)
    repository.commit("there", {"static": worsened(labels, 40)}, labels, calls=calls, machine=other)
    rows = rows_of("here", "there")
    assert rows["all variants", "speedup"].verdict == "other machine"
    assert "cpu.isa is avx2 in here and avx512_vnni in there" in rows["all variants", "speedup"].reason
    assert rows["static", "accuracy"].verdict == "worse"


def test_a_gate_does_not_pass_over_speedups_that_were_refused(repository, labels):
    other = {**MACHINE, "cpu": {**MACHINE["cpu"], "revision": "25/17/1"}}
    calls = calls_of({"fp32": 90_000, "fp32-again": 90_001, "static": 50_000})
    for tag, machine in (
        ("here", {**MACHINE, "cpu": {**MACHINE["cpu"], "revision": "25/1/1"}}),
        ("there", other),
        ("old", MACHINE),
    ):
        repository.commit(tag, {"static": worsened(labels, 7)}, labels, calls=calls, machine=machine)  # fmt: skip
    assert run("here", "there", "--fail-on", "worse") == 2
    assert run("here", "there", "--fail-on", "worse", "--quantity", "accuracy") == 0
    # which processor of that name it was is not known
    assert run("here", "old", "--fail-on", "worse", "--quantity", "speedup") == 0


def test_a_variant_that_was_timed_under_another_name_is_compared(repository, labels):
    """`tuned` may be a recipe's very file in one revision and one of its own in the other."""
    predictions = {"tuned": worsened(labels, 0)}
    once = calls_of({"fp32": 90_000, "fp32-again": 90_001, "static": 50_000})
    repository.commit("copy", predictions, labels, calls=once, copies={"tuned": "static"})
    own = calls_of({"fp32": 90_002, "fp32-again": 90_003, "static": 50_000, "tuned": 60_000})
    repository.commit("own", predictions, labels, calls=own)
    rows = rows_of("copy", "own")
    assert rows["tuned", "speedup batch_1"].verdict == "worse"
    assert rows["static", "speedup batch_1"].verdict == "no difference found"


def test_a_slower_variant_is_worse_and_the_same_calls_are_identical(repository, labels):
    predictions = {"static": worsened(labels, 0)}
    repository.commit(
        "fast", predictions, labels, calls=calls_of({"fp32": 90_000, "fp32-again": 90_001, "static": 50_000})
    )
    repository.commit(
        "slow", predictions, labels, calls=calls_of({"fp32": 90_002, "fp32-again": 90_003, "static": 60_000})
    )
    row = rows_of("fast", "slow")["static", "speedup batch_1"]
    assert row.verdict == "worse" and row.low < 5 / 6 - 1 < row.high < 0
    assert rows_of("fast", "fast")["all variants", "speedup"].verdict == "identical"


def test_a_benchmark_without_its_control_is_not_compared(repository, labels):
    repository.commit(
        "one", {"static": worsened(labels, 0)}, labels, calls=calls_of({"fp32": 90_000, "static": 50_000})
    )
    row = rows_of("one", "workspace")["all variants", "speedup"]
    assert row.verdict == "not compared" and "fp32-again" in row.reason


def test_json_is_strict_and_has_every_row(repository, labels, capsys):
    for tag, count in (("one", 7), ("two", 9)):
        calls = calls_of({"fp32": 90_000 + count, "fp32-again": 90_001, "static": 50_000})
        repository.commit(tag, {"fp32": worsened(labels, 1), "static": worsened(labels, count)}, labels, calls=calls)
    assert run("one", "two", "--json", "--quantity", "accuracy", "--quantity", "speedup") == 0
    content = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [row["quantity"] for row in content["rows"]] == ["accuracy", "accuracy", "speedup batch_1"]
    assert content["a"]["name"] == "one" and len(content["b"]["commit"]) == 40


def test_fail_on_worse_is_for_gates(repository, labels, capsys):
    repository.commit("good", {"static": worsened(labels, 0)}, labels)
    repository.commit("poor", {"static": worsened(labels, 40)}, labels)
    gate = ["--fail-on", "worse", "--quantity", "accuracy"]
    assert run("good", "poor", *gate) == 1
    assert run("poor", "good", *gate) == 0
    assert run("good", "poor") == 0
    assert run("good", "nowhere", *gate) == 2
    assert "nowhere cannot be read" in capsys.readouterr().err
    assert run("good", "poor", *gate, "--variant", "statik") == 2


def test_an_empty_name_is_no_revision(repository, labels, capsys):
    """As a script gives it whose variable is not set; Git's libraries take it for HEAD."""
    repository.commit("good", {"static": worsened(labels, 0)}, labels)
    for names in (("",), ("good", ""), ("  ", "good")):
        assert run(*names) == 2
        assert "a revision's name is empty" in capsys.readouterr().err


def test_results_that_are_older_than_their_parameters_are_not_compared(repository, labels):
    write("dvc.yaml", yaml.safe_dump({"stages": {"evaluate": stage_of("models/cnn/predictions/static.npz")}}))
    repository_parameters(seed=0)
    save("models/cnn/predictions/static.npz", worsened(labels, 7))
    with Repo() as repo:
        repo.commit(force=True)
    git("add", ".")
    git("commit", "-q", "-m", "seed 0")
    assert Revision("HEAD").lock.stale_because("models/cnn/predictions/static.npz") is None
    repository_parameters(seed=4)
    row = rows_of("HEAD", "workspace")["static", "accuracy"]
    assert row.verdict == "not compared"
    assert "out of date in workspace" in row.reason and "calibrate.seed is 4 and it ran with 0" in row.reason


def test_the_size_of_a_file_that_is_older_than_its_parameters_is_not_compared(repository, labels):
    repository.commit("data", {"static": worsened(labels, 1)}, labels)
    write("dvc.yaml", yaml.safe_dump({"stages": {"quantize": stage_of("models/cnn/onnx/static.onnx")}}))
    repository_parameters(seed=0)
    write("models/cnn/onnx/static.onnx", "made with seed 0")
    with Repo() as repo:
        repo.commit(force=True)
    git("add", ".")
    git("commit", "-q", "-m", "seed 0")
    assert rows_of("HEAD", "workspace")["static", "size"].verdict == "identical"
    repository_parameters(seed=4)
    row = rows_of("HEAD", "workspace")["static", "size"]
    assert row.verdict == "not compared" and "calibrate.seed is 4 and it ran with 0" in row.reason


def stage_of(path):
    return {"cmd": "true", "deps": ["code.py"], "params": ["calibrate"], "outs": [path]}


def repository_parameters(seed):
    write("params.yaml", yaml.safe_dump({"dataset": "small", "calibrate": {"seed": seed, "images": 200}}))
    write("code.py", "pass\n")


def test_a_parameter_that_is_gone_or_new_is_said_to_be_that():
    assert (
        difference_in_words("tune.cnn.trained_images", 9, None) == "tune.cnn.trained_images is 9 and it ran without it"
    )
    assert difference_in_words("tune.cnn.batch", None, 1) == "tune.cnn.batch is gone and it ran with 1"


def test_holm_is_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]


def test_one_family_of_rows_is_corrected_together():
    alone = judge([Row("cnn", "static", "accuracy", difference=0.1, p=0.03)])
    together = judge([Row("cnn", "static", "accuracy", difference=0.1, p=0.03) for _ in range(2)])
    assert [row.verdict for row in alone] == ["better"]
    assert [row.verdict for row in together] == ["no difference found"] * 2


def test_with_a_silent_control_the_difference_of_runs_is_welchs():
    rng = np.random.default_rng(0)
    before, after = rng.normal(0, 1, 20), rng.normal(1, 2, 15)
    difference, low, high, p = run_difference(before, after, np.zeros(20), np.zeros(15))
    expected = stats.ttest_ind(after, before, equal_var=False)
    assert p == pytest.approx(expected.pvalue)
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval()))
    assert difference == pytest.approx(after.mean() - before.mean())


def test_what_fp32_against_itself_seems_to_change_is_not_claimed():
    steady = np.random.default_rng(0).normal(0, 0.001, 20)
    claimed = run_difference(steady, steady + 0.02, steady, steady)
    moved = run_difference(steady, steady + 0.02, steady, steady - 0.03)
    assert claimed[3] < 1e-6 and claimed[1] > 0
    assert moved[3] == 1.0 and moved[1] < 0 < moved[2]


@pytest.mark.slow
@pytest.mark.timed
def test_fp32_against_itself_over_twenty_real_runs_is_different_in_at_most_three(tmp_path):
    """Nominal 5 % of calls: more than 3 of 20 have a probability of 0.016 even if that were exact; it is conservative."""
    network(tmp_path / "fp32.onnx", hidden=512)
    network(tmp_path / "slower.onnx", hidden=4096)
    paths = dict.fromkeys(("fp32", "fp32-again", "itself"), tmp_path / "fp32.onnx")
    inputs = {batch: np.random.default_rng(0).random((batch, 1, 8, 8), np.float32) for batch in (1, 32)}
    settings = {"rounds": 20, "seconds": 0.5, "threads": 1, "warmup_calls": 3}
    runs = [round_medians(measure(paths, inputs, seed=seed, **settings)) for seed in range(21)]
    verdicts = [judge(speedup_rows("cnn", *pair)) for pair in itertools.pairwise(runs)]
    different = [rows for rows in verdicts if {row.verdict for row in rows} & {"better", "worse"}]
    assert len(different) <= 3
    slower = measure({**paths, "itself": tmp_path / "slower.onnx"}, inputs, seed=0, **settings)
    assert "worse" in {row.verdict for row in judge(speedup_rows("cnn", runs[0], round_medians(slower)))}
