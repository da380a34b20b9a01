"""The two explain stages, run whole on a small network in a workspace of their own."""

import csv
import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from small_models import U8S8, images_for, make_variants, save_plain

from stages import explain, explain_accuracy
from stages.common.preflight.params_check import check_params
from stages.common.profiling.session_memory import session_bytes
from stages.common.reporting import explanations
from stages.common.session.concurrency import map_in_order
from stages.common.session.runtime import predict_images
from stages.common.workspace import UserError, load_params

pytestmark = pytest.mark.timed

SCALING = {"scale": 1.0, "mean": 0.0, "std": 1.0, "channels": 1, "repeat": 1}
OUTPUTS = {
    "time": ["optimized", "explain.json", "causes.csv", "time.csv", "time.png"],
    "accuracy": ["accuracy.json", "layers.csv", "changed.png", "margins.png"],
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with a model, its variants, images, predictions, and what earlier stages say of them."""
    root = tmp_path_factory.mktemp("workspace")
    paths, preprocessed, ranges = make_variants(save_plain(root / "onnx" / "fp32.onnx"))
    paths["tuned"] = root / "onnx" / "tuned.onnx"
    paths["tuned"].write_bytes(paths["u8s8"].read_bytes())
    variants = [name for name in paths if name != "fp32"]
    np.save(root / "images.npy", images_for(preprocessed, 64))
    np.save(root / "labels.npy", np.arange(64) % 10)
    for name in ("fp32", "u8s8"):
        logits = predict_images(paths[name], root / "images.npy", SCALING, images=64, batch_size=32, threads=1)
        np.savez(root / f"{name}.npz", logits=logits)
    np.savez(root / "nothing.npz", logits=np.zeros((0, 10), np.float32))
    for name in variants:
        write(root / "verified" / f"{name}.json", {"small": {name: {"finite": int(name != "qoperator")}}})
    write(root / "benchmark.json", {"small": {"u8s8": {"batch_8": {"speedup": 1000.0}}}})
    bounds = {name: [float(low), float(high)] for name, (low, high) in ranges.items()}
    write(root / "ranges.json", {"ranges": bounds})
    params = {
        "models": {"small": {"input": SCALING, "evaluate": {"images": 64}, "benchmark": {"batches": [8, 1]}, "explain": {"images": 64, "noise_images": 16, "rounds": 3}}},
        "explain": {"time": {"rounds": 11, "seconds": 1.0}},
        "benchmark": {"threads": 1},
        "evaluate": {"batch_size": 32, "threads": 1},
        "variants": variants,
        "calibrate_quantize": {"u8s8": U8S8},
    }  # fmt: skip
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    return root


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def time_outputs(workspace):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path.cwd()))  # for the process that measures memory
        patch.chdir(workspace)
        explain.main("small", "onnx", "preprocessed.onnx", "verified", "benchmark.json", "images.npy", *OUTPUTS["time"])
    return workspace


def run_accuracy(workspace, predictions="u8s8.npz", prefix=""):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace)
        explain_accuracy.main("small", "u8s8", "preprocessed.onnx", "ranges.json", "images.npy", "labels.npy",
                              "fp32.npz", predictions, *(prefix + name for name in OUTPUTS["accuracy"]))  # fmt: skip


def test_metrics_have_counts_memory_and_what_is_unexplained_for_every_variant_that_runs(time_outputs):
    metrics = json.loads((time_outputs / "explain.json").read_text())["small"]
    assert [name for name in metrics if isinstance(metrics[name], dict)] == [
        "fp32",
        "u8s8",
        "s8s8",
        "convgemm",
        "dynamic",
        "tuned",
    ]
    assert (metrics["u8s8"]["integer_layers"], metrics["u8s8"]["float_layers"]) == (3, 0)
    assert metrics["u8s8"]["batch_8"]["activation_bytes"] < metrics["fp32"]["batch_8"]["activation_bytes"]
    assert {"call_us", "speedup", "unexplained_percent"} <= set(metrics["u8s8"]["batch_1"])


def test_a_model_can_have_rounds_of_its_own(time_outputs):
    """A large network whose round takes a quarter of a minute."""
    assert json.loads((time_outputs / "explain.json").read_text())["small"]["rounds"] == 3


def test_the_table_adds_up_to_the_call(time_outputs):
    rows = list(csv.DictReader((time_outputs / "time.csv").open()))
    mine = [float(row["microseconds"]) for row in rows if (row["variant"], row["batch"]) == ("fp32", "8")]
    call = json.loads((time_outputs / "explain.json").read_text())["small"]["fp32"]["batch_8"]["call_us"]
    assert sum(mine) == pytest.approx(call, rel=0.3)
    assert {row["kind"] for row in rows} <= {"layer", "quantize", "dequantize", "layout", "other"}


def test_a_file_that_two_variants_share_is_profiled_once(time_outputs):
    metrics = json.loads((time_outputs / "explain.json").read_text())["small"]
    assert metrics["tuned"]["batch_8"] == metrics["u8s8"]["batch_8"] != metrics["s8s8"]["batch_8"]


def test_the_optimized_graphs_can_be_inspected(time_outputs):
    graph = onnx.load(time_outputs / "optimized" / "u8s8.onnx").graph
    assert "QLinearConv" in {node.op_type for node in graph.node}
    assert not list(time_outputs.rglob("*.tmp"))


def test_causes_are_a_list_of_sentences_with_their_numbers(time_outputs):
    with open(time_outputs / "causes.csv", newline="") as file:
        table = csv.DictReader(file)
        assert table.fieldnames == ["variant", "batch", "microseconds", "kind", "layer", "cause"]
        assert all(float(cause["microseconds"]) and cause["cause"] for cause in table)


def test_a_benchmark_that_saw_another_speedup_is_doubted(workspace):
    cell = {"unexplained_percent": 3.0, "speedup": 1.0}
    metrics, benchmark = {"u8s8": {"batch_8": cell}}, {"u8s8": {"batch_8": {"speedup": 1.3}}}
    (doubt,) = explain.doubts(metrics, benchmark, ["u8s8"], [8])
    assert doubt == "u8s8 at batch 8: 1.00x here, 1.30x in the benchmark: one of the two was disturbed, or both"


def test_a_profile_that_leaves_much_unexplained_is_doubted():
    metrics = {"u8s8": {"batch_8": {"unexplained_percent": 16.0, "speedup": 1.0}}}
    (doubt,) = explain.doubts(metrics, {}, ["u8s8"], [8])
    assert "leaves 16 % of the call unexplained" in doubt


def test_a_profile_that_counts_more_than_the_call_is_said_to():
    """The profiler's own cost is taken off by an average, so that the nodes can add up to more than the call."""
    metrics = {"u8s8": {"batch_8": {"unexplained_percent": -35.2, "speedup": 1.0}}}
    assert list(explain.doubts(metrics, {}, ["u8s8"], [8])) == [
        "u8s8 at batch 8: the profile counts 35 % more than the call takes"
    ]
    assert explanations.doubts(metrics) == ["u8s8 at batch 8: the profile counts 35 % more than the call takes."]


def test_the_accuracy_stage_gives_the_same_bytes_twice(workspace):
    for prefix in ("one-", "two-"):
        run_accuracy(workspace, prefix=prefix)
    for name in OUTPUTS["accuracy"]:
        assert (workspace / f"one-{name}").read_bytes() == (workspace / f"two-{name}").read_bytes()


def test_a_variant_that_does_not_run_here_cannot_be_taken_apart(workspace):
    with pytest.raises(UserError, match=r"explain.layers_of is u8s8, which does not run here"):
        run_accuracy(workspace, predictions="nothing.npz", prefix="none-")
    assert not list(workspace.glob("none-*"))


def test_a_dynamic_variant_is_refused_as_the_one_to_take_apart():
    params = load_params()
    params["explain"]["layers_of"] = "dynamic-qint8"
    with pytest.raises(UserError, match=r"`explain.layers_of` is `dynamic-qint8`, which is no static recipe"):
        check_params(params, Path())


def test_a_session_takes_the_memory_of_its_weights_and_a_little_also_where_several_are_measured_at_a_time(tmp_path):
    """Not that of what opening it needs and gives back, which glibc keeps for later."""
    large = save_plain(tmp_path / "large.onnx", width=128)
    weights = large.stat().st_size
    assert weights > 1_300_000
    sizes = list(map_in_order(partial(session_bytes, threads=1), [large] * 3, 3))
    for size in sizes:
        assert weights < size < 1.3 * weights
    assert max(sizes) < 1.02 * min(sizes)
