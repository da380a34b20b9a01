"""The machine under the numbers: cores that may be used, not cores that are there, and the best int8 instructions."""

import os
import subprocess
import sys
import time

import pytest

from stages.common import cpu


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("100000 100000", 1), ("250000 100000", 2), ("50000 100000", 1), ("400000 100000", 4), ("max 100000", 64)],
)
def test_a_container_uses_what_its_quota_allows(tmp_path, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert cpu.usable_cores(tmp_path / "cpu.max") == cores


def test_the_affinity_mask_cuts_the_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5}, raising=False)
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert cpu.usable_cores(tmp_path / "cpu.max") == 1


def test_without_a_quota_file_the_affinity_mask_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 7}, raising=False)
    assert cpu.usable_cores(tmp_path / "none") == 3


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ("sse4_1 avx avx2", "avx2"),
        ("sse4_1 avx2 avx_vnni", "avx_vnni"),
        ("sse4_1 avx2 avx512f avx512bw", "avx512"),
        ("sse4_1 avx2 avx512f", "avx2"),
        ("sse4_1 avx2 avx512f avx512bw avx512_vnni avx_vnni", "avx512_vnni"),
        ("avx2 avx512f avx512bw avx512_vnni amx_tile amx_int8", "amx_int8"),
        ("fp asimd", "neon"),
        ("fp asimd asimddp", "neon_dotprod"),
        ("fp asimd asimddp i8mm", "neon_i8mm"),
        ("sse4_1", "sse4_1"),
        ("", "unknown"),
    ],
)
def test_the_best_int8_path_follows_from_the_flags(flags, path):
    assert cpu.best_int8_path(set(flags.split())) == path


def test_products_are_exact_where_they_are_added_in_32_bits():
    """Without VNNI, u8 x s8 products are added in 16 bits and can saturate: accuracy then depends on the processor."""
    assert not {"avx2", "avx512", "sse4_1", "unknown"} & cpu.EXACT_INT8
    assert set(cpu.INT8_PATHS) > cpu.EXACT_INT8


@pytest.mark.parametrize("isa", ["avx2", "avx512", "sse4_1", "unknown"])
def test_without_vnni_signed_weights_of_the_full_range_may_saturate(isa):
    """Whatever the activations are: onnxruntime makes signed ones unsigned on x86."""
    recipes = {
        "u8s8": {"activation_type": "QUInt8", "weight_type": "QInt8"},
        "s8s8": {"activation_type": "QInt8", "weight_type": "QInt8"},
        "u8s8-reduced": {"activation_type": "QUInt8", "weight_type": "QInt8", "reduce_range": True},
        "u8u8": {"activation_type": "QUInt8", "weight_type": "QUInt8"},
    }
    assert cpu.saturating(isa, recipes) == ["u8s8", "s8s8"]
    assert "`u8s8`, `s8s8` belongs to it" in cpu.saturation_sentence(isa, ["u8s8", "s8s8"])
    assert cpu.saturating("avx512_vnni", recipes) == cpu.saturating("neon_dotprod", recipes) == []


def test_this_processor_has_a_name_and_flags():
    model, flags = cpu.cpu_model_and_flags()
    assert model and cpu.best_int8_path(flags) != "unknown"
    assert 1 <= cpu.usable_cores() <= os.cpu_count() and 1 <= cpu.physical_cores() <= os.cpu_count()


BUSY_LOOP = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


@pytest.mark.timed
def test_other_work_is_what_other_processes_do_and_not_ones_own():
    """The load average of the minute before, which this took the place of, counted the pipeline's own stages."""
    start = cpu.CpuSeconds.now()
    while (end := cpu.CpuSeconds.now()).own < start.own + 1:
        sum(range(10_000))
    assert end.busy - start.busy > 0.8  # one's own work is in all work, from which it is taken off
    other, start = subprocess.Popen([sys.executable, "-c", BUSY_LOOP]), cpu.CpuSeconds.now()
    try:
        time.sleep(1)
        beside = cpu.CpuSeconds.now().since(start)["other_work_percent"]
    finally:
        other.kill()
        other.wait()
    assert beside > 50 / os.cpu_count()  # half a core


def test_time_that_other_guests_took_is_part_of_the_time_that_passed():
    start, end = cpu.CpuSeconds(1, 10, 0, 100), cpu.CpuSeconds(11, 50, 5, 200)
    assert end.since(start) == {"other_work_percent": 30.0, "cpu_steal_percent": 5.0}
    assert start.since(start) == {"other_work_percent": 0.0, "cpu_steal_percent": 0.0}
    now = cpu.CpuSeconds.now()
    assert 0 < now.own < now.busy < now.passed and 0 <= now.stolen < now.passed


def test_a_measurement_that_little_disturbed_says_nothing():
    assert list(cpu.disturbances({"other_work_percent": 9.9, "cpu_steal_percent": 1.9})) == []
    assert list(cpu.disturbances({"other_work_percent": 41.7, "cpu_steal_percent": 2.1})) == [
        "other processes took 42 % of the CPU time meanwhile",
        "2.1 % of the CPU time went to other guests of the host meanwhile",
    ]
