"""What the benchmark says follows from its calls, and two benchmarks never run at once."""

import csv
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from stages import benchmark
from stages.common import machine_lock
from stages.common.cpu import CpuSeconds
from stages.common.workspace import UserError, write_metrics

WORKS = {"loads": 1, "runs": 1, "finite": 1}


def simulated(times, rounds=20, calls=9, seed=0):
    """Return rows of calls at batch 1: `times` are {variant: milliseconds}; noise 2 % a round and 1 % a call."""
    random = np.random.default_rng(seed)
    noise = np.exp(
        random.normal(0, 0.02, (rounds, len(times), 1)) + random.normal(0, 0.01, (rounds, len(times), calls))
    )
    return [
        [number, position, variant, 1, call, int(times[variant] * 1e6 * noise[number, position, call])]
        for number in range(rounds)
        for position, variant in enumerate(times)
        for call in range(calls)
    ]


def test_a_faster_variant_has_a_speedup_above_one_and_a_slower_one_below():
    """int8 can be slower: it is reported as it is."""
    metrics = benchmark.summarize(simulated({"fp32": 2.0, "int8": 1.0, "slow": 8.0}))
    faster, slower = metrics["int8"]["batch_1"], metrics["slow"]["batch_1"]
    assert faster["speedup_low"] < 2 < faster["speedup_high"] and faster["speedup"] == pytest.approx(2, rel=0.03)
    assert slower["speedup_low"] < 0.25 < slower["speedup_high"] < 1
    assert slower["median_ms"] == pytest.approx(8, rel=0.03)


def test_the_baseline_is_compared_with_nothing_but_its_own_copy():
    metrics = benchmark.summarize(simulated({"fp32": 2.0, "fp32-again": 2.0}))
    assert set(metrics["fp32"]["batch_1"]) == {"median_ms"}
    again = metrics["fp32-again"]["batch_1"]
    assert again["speedup_low"] < 1 < again["speedup_high"] and again["speedup"] == pytest.approx(1, rel=0.03)


def test_one_stalled_call_moves_neither_median_nor_speedup_much():
    rows = simulated({"fp32": 2.0, "int8": 1.0})
    before = benchmark.summarize(rows)["int8"]["batch_1"]
    rows[-1][-1] *= 1000
    after = benchmark.summarize(rows)["int8"]["batch_1"]
    assert after["speedup"] == pytest.approx(before["speedup"], rel=0.01)
    assert after["median_ms"] == pytest.approx(before["median_ms"], rel=0.01)


@pytest.fixture
def model(workspace, params, fp32, preprocessed, dataset, scaling, monkeypatch, tmp_path):
    """A workspace with model `cnn` of two variants, `works` and `broken`; return main's arguments."""
    variants = {"works": WORKS, "broken": {"loads": 0, "runs": 0, "finite": 0, "error": "NOT_IMPLEMENTED ConvInteger"}}
    params["variants"] = list(variants)
    params["models"]["cnn"] |= {"benchmark": {"batches": [1, 8], "seconds": 0.1}, "input": scaling}
    workspace({"benchmark.rounds": 3})
    Path("onnx").mkdir()
    for name, file in {"fp32": fp32, "works": preprocessed, "broken": fp32}.items():
        Path(f"onnx/{name}.onnx").write_bytes(file.read_bytes())
    for name, verified in variants.items():
        write_metrics(f"verified/{name}.json", {"cnn": {name: verified}})
    # A lock of its own: the tests shall not wait for a real benchmark.
    monkeypatch.setattr(benchmark, "machine_lock", partial(machine_lock.machine_lock, tmp_path / "lock"))
    return "cnn", "onnx", "verified", dataset / "test-images.npy", "metrics.json", "calls.csv"


def test_a_variant_that_does_not_load_is_left_out_and_the_rest_is_measured(model, capsys):
    benchmark.main(*model)
    metrics = json.loads(Path("metrics.json").read_text())["cnn"]
    assert list(metrics)[:3] == ["fp32", "fp32-again", "works"] and "broken" not in metrics
    assert set(metrics["works"]) == {"batch_1", "batch_8"}
    assert set(metrics["works"]["batch_8"]) == {"median_ms", "speedup", "speedup_low", "speedup_high"}
    assert metrics["rounds"] == 3 and metrics["threads"] == 1 and 0 <= metrics["cpu_steal_percent"] <= 100
    assert "calls of 3 files in 3 rounds" in capsys.readouterr().out


def test_a_model_can_have_rounds_of_its_own(model, workspace, capsys):
    """A large network whose round takes a dozen seconds."""
    workspace({"models.cnn.benchmark.rounds": 2})
    benchmark.main(*model)
    assert json.loads(Path("metrics.json").read_text())["cnn"]["rounds"] == 2
    assert "calls of 3 files in 2 rounds" in capsys.readouterr().out


def test_every_timed_call_is_kept(model):
    benchmark.main(*model)
    with open("calls.csv") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["round", "position", "variant", "batch", "call", "nanoseconds"]
    metrics = json.loads(Path("metrics.json").read_text())["cnn"]
    times = [int(row["nanoseconds"]) for row in rows if row["variant"] == "works" and row["batch"] == "8"]
    assert np.median(times) / 1e6 == metrics["works"]["batch_8"]["median_ms"] and len(times) >= 3 * 2


def test_two_variants_with_the_same_bytes_are_timed_once(model, params, workspace, capsys):
    """`tuned` is often a recipe that was there before, or fp32: other times for the same file would be noise."""
    for name, file in {"copy": "works", "tuned": "fp32"}.items():
        Path(f"onnx/{name}.onnx").write_bytes(Path(f"onnx/{file}.onnx").read_bytes())
        write_metrics(f"verified/{name}.json", {"cnn": {name: WORKS}})
    workspace({"variants": ["works", "copy", "tuned", "broken"], "benchmark.rounds": 3})
    benchmark.main(*model)
    metrics, printed = json.loads(Path("metrics.json").read_text())["cnn"], capsys.readouterr().out
    assert metrics["copy"] == metrics["works"] | {"same_file_as": "works"}
    assert metrics["tuned"] == metrics["fp32-again"] | {"same_file_as": "fp32-again"}
    with open("calls.csv") as file:
        assert {row["variant"] for row in csv.DictReader(file)} == {"fp32", "fp32-again", "works"}
    assert "calls of 3 files in 3 rounds" in printed and "the same file as works" in printed


def test_a_file_that_no_stage_makes_is_refused(model):
    Path("onnx/mine.onnx").touch()
    with pytest.raises(UserError) as error:
        benchmark.main(*model)
    assert str(error.value) == (
        "onnx/mine.onnx is made by no stage: delete it or move it away, the benchmark depends on its folder."
    )


def test_fewer_than_two_rounds_are_refused_by_the_parameter_s_name(model, workspace):
    workspace({"benchmark.rounds": 1})
    with pytest.raises(UserError, match=r"^benchmark.rounds is 1: an interval needs at least 2, and 20 give an honest"):
        benchmark.main(*model)


def test_a_batch_larger_than_the_dataset_is_refused(model, workspace):
    workspace({"models.cnn.benchmark.batches": [1, 201]})
    with pytest.raises(
        UserError, match=r"^models.cnn.benchmark.batches asks for 201 images and .* has 200: ask for fewer"
    ):
        benchmark.main(*model)


def test_images_that_are_not_finite_are_refused_before_anything_is_timed(model, tmp_path):
    """NaN and denormal numbers take other times than images do."""
    np.save(tmp_path / "nan.npy", np.full((9, 1, 28, 28), np.nan, np.float32))
    with pytest.raises(UserError, match=r"nan.npy has \d+ non-finite values, the first in image 0: mend or remove"):
        benchmark.main(*model[:3], tmp_path / "nan.npy", *model[4:])


HOLD = """
import sys, time
from stages.common.machine_lock import machine_lock
with machine_lock(sys.argv[1]):
    print("holds", flush=True)
    time.sleep(float(sys.argv[2]))
    print(time.monotonic(), flush=True)
"""


@pytest.fixture
def holder(repository, tmp_path):
    """Return a function that starts a process which takes the lock and holds it for some seconds."""
    started = []

    def start(seconds):
        command = [sys.executable, "-c", HOLD, str(tmp_path / "lock"), str(seconds)]
        started.append(subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_second_benchmark_says_that_it_waits_and_then_waits(holder, tmp_path):
    first = holder(1)
    assert first.stdout.readline() == "holds\n"
    second = holder(0)
    assert (
        second.stdout.readline() == f"another benchmark is running on this machine: waiting for {tmp_path}/lock ...\n"
    )
    assert second.stdout.readline() == "holds\n"
    assert float(second.stdout.readline()) > float(first.stdout.readline())


def test_the_benchmark_takes_the_lock_of_the_machine(model, holder, monkeypatch):
    """The other holds it until the benchmark says that it waits, however long that takes."""
    said, other = [], holder(60)
    assert other.stdout.readline() == "holds\n"

    def listen(text, **_options):
        said.append(text)
        other.kill()

    monkeypatch.setattr(machine_lock, "print", listen, raising=False)
    benchmark.main(*model)
    [text] = said
    assert text.startswith("another benchmark is running on this machine: waiting") and Path("metrics.json").exists()


def test_the_lock_is_one_for_all_users_and_jobs_of_the_machine(tmp_path):
    """TMPDIR differs between them."""
    ask = [sys.executable, "-c", "from stages.common.machine_lock import LOCK_PATH; print(LOCK_PATH)"]
    found = {
        subprocess.run(ask, env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True, check=True).stdout
        for folder in (tmp_path, Path.cwd())
    }
    assert found == {f"{machine_lock.LOCK_PATH}\n"}


def test_a_killed_benchmark_releases_the_lock(holder):
    first = holder(60)
    assert first.stdout.readline() == "holds\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert holder(0).stdout.readline() == "holds\n"


def test_a_busy_machine_is_said_to_be_busy(model, monkeypatch, capsys):
    seconds = iter([CpuSeconds(1, 10, 0, 100), CpuSeconds(11, 50, 5, 200)])
    monkeypatch.setattr(benchmark.CpuSeconds, "now", lambda: next(seconds))
    benchmark.main(*model)
    printed = capsys.readouterr().out
    assert "warning: other processes took 30 % of the CPU time meanwhile, which slows the calls" in printed
    assert "warning: 5.0 % of the CPU time went to other guests of the host meanwhile, which slows" in printed
    metrics = json.loads(Path("metrics.json").read_text())["cnn"]
    assert (metrics["other_work_percent"], metrics["cpu_steal_percent"]) == (30.0, 5.0)
