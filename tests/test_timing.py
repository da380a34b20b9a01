"""The benchmark interleaves: every round visits every variant once, in a new order, with a new session."""

import csv
import io
import time
from collections import Counter

import numpy as np
import pytest

from stages.common import timing

BATCHES = {1: np.zeros((1, 1, 28, 28), np.float32), 4: np.zeros((4, 1, 28, 28), np.float32)}
SETTINGS = {"threads": 1, "warmup_calls": 1, "seed": 0}


@pytest.fixture
def measured(fp32, preprocessed):
    """Calls of two real files in 4 rounds, and the arguments that they were measured with."""
    paths = {"fp32": fp32, "fp32-again": fp32, "int8": preprocessed}
    return timing.measure(paths, BATCHES, rounds=4, seconds=0.05, **SETTINGS)


def test_every_round_visits_every_variant_once(measured):
    for number in range(4):
        visited = {(position, variant) for round_number, position, variant, *_ in measured if round_number == number}
        assert sorted(position for position, _ in visited) == [0, 1, 2]
        assert sorted(variant for _, variant in visited) == ["fp32", "fp32-again", "int8"]


def test_a_row_is_a_call_and_calls_are_counted_from_zero(measured):
    assert all(len(row) == len(timing.CALL_COLUMNS) for row in measured)
    cells = {}
    for round_number, _, variant, batch, call, nanoseconds in measured:
        cells.setdefault((round_number, variant, batch), []).append(call)
        assert nanoseconds > 0
    assert len(cells) == 4 * 3 * 2
    assert all(calls == list(range(len(calls))) and len(calls) >= 2 for calls in cells.values())


def order_of_visits(seed, monkeypatch):
    monkeypatch.setattr(timing, "open_session", lambda path, threads: path)
    monkeypatch.setattr(timing, "time_calls", lambda session, values, count: [1000] * count)
    paths = dict.fromkeys("abcde", "file")
    rows = timing.measure(paths, {1: None}, rounds=8, seconds=1, **SETTINGS | {"seed": seed})
    return ["".join(dict.fromkeys(row[2] for row in rows if row[0] == number)) for number in range(8)]


def test_the_order_is_a_new_one_in_every_round_and_the_same_for_the_same_seed(monkeypatch):
    orders = order_of_visits(0, monkeypatch)
    assert len(set(orders)) > 4 and {"".join(sorted(order)) for order in orders} == {"abcde"}
    assert order_of_visits(0, monkeypatch) == orders != order_of_visits(1, monkeypatch)


def test_every_visit_opens_a_new_session(fp32, monkeypatch):
    """Two sessions of one file differ systematically, by their place in memory."""
    opened, real = Counter(), timing.open_session

    def count(path, *, threads):
        opened[path] += 1
        return real(path, threads=threads)

    monkeypatch.setattr(timing, "open_session", count)
    timing.measure({"fp32": fp32}, BATCHES, rounds=3, seconds=0.01, **SETTINGS)
    assert opened[fp32] == 1 + 3  # one to plan, one a round


def planned(costs, names=None, rounds=20, seconds=45):
    """Return the plan for cells that cost `costs` seconds a call; a variant a cost, one batch size."""
    names = names or [f"variant-{index}" for index in range(len(costs))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "open_session", lambda path, threads: path)
        patch.setattr(timing, "time_calls", lambda session, values, count: [session * 1e9] * count)
        paths = dict(zip(names, costs, strict=True))
        return timing.plan_calls(paths, {1: None}, rounds=rounds, seconds=seconds, threads=1)


def test_the_budget_is_shared_equally_and_kept():
    calls = planned([0.010, 0.020, 0.040], rounds=10, seconds=30)
    assert list(calls.values()) == [100, 50, 25]


def test_the_dearest_call_is_still_made():
    """Once a round, whatever the budget says: the round is the unit of repetition."""
    assert set(planned([10.0, 20.0], seconds=1).values()) == {1}


@pytest.mark.parametrize(("warmup_calls", "expected"), [(1, 1), (3, 2)])
def test_a_dear_call_is_warmed_up_twice_and_no_more(monkeypatch, warmup_calls, expected):
    """The first call of a shape plans its memory, the second gets it; cheap calls are warmed up as often as asked."""
    counts = []
    monkeypatch.setattr(timing, "open_session", lambda path, threads: path)
    monkeypatch.setattr(timing, "time_calls", lambda session, values, count: counts.append(count) or [10**10] * count)
    settings = {"rounds": 1, "seconds": 1, "threads": 1, "warmup_calls": warmup_calls, "seed": 0}
    timing.measure({"fp32": 1.0}, {1: None}, show_progress=False, **settings)
    assert counts[-2:] == [expected, 1]


def test_time_that_cheap_calls_cannot_use_is_given_to_the_dear_ones():
    cheap_first = planned([1e-5, 0.02])
    assert cheap_first["variant-1", 1] * 0.02 > 0.9 * 45 / 20


@pytest.mark.parametrize("costs", [[1e-5] * 8, [1e-5] * 4 + [0.05] * 4, [1e-6] * 24, [1e-5] * 2, [2e-4] * 40])
@pytest.mark.parametrize("name", ["v", "static-u8s8-without-first-layer"])
def test_the_calls_of_a_model_fit_into_500_kb(costs, name):
    """The file is kept in Git."""
    names = [f"{name}{index}" for index in range(len(costs))]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    most_rows = timing.rows_of_a_session(names, [256], rounds=20)
    for (variant, _), count in planned(costs, names).items():
        nanoseconds = int(costs[names.index(variant)] * 1e9)
        for number in range(20):
            calls = timing.kept(count, most_rows)
            writer.writerows([number, 11, variant, 256, call, nanoseconds] for call in calls)
    assert len(text.getvalue()) < 500_000


def test_quick_calls_are_more_than_the_file_has_room_for():
    """A session's median of the first 26 calls of 50 us is that of a millisecond, which other work may take as a whole."""
    calls = planned([5e-5] * 9 + [1e-3] * 9 + [8e-3] * 9, seconds=20)
    assert set(list(calls.values())[:9]) == {200} and list(calls.values())[-1] >= 4
    assert list(timing.kept(200, 26)) == list(range(0, 200, 8))
    assert list(timing.kept(26, 26)) == list(range(26)) and list(timing.kept(27, 26)) == list(range(0, 27, 2))


def test_the_median_of_a_round_is_taken_over_its_calls_alone():
    rows = [
        [number, 0, "fp32", 1, call, ns]
        for number, times in enumerate([[1, 2, 9], [4, 6]])
        for call, ns in enumerate(times)
    ]
    assert timing.round_medians(rows)["fp32", 1].tolist() == [2, 5]


def test_wall_clock_time_is_measured(fp32):
    """Not CPU time, which hides waiting."""

    class Slow:
        def get_inputs(self):
            return [type("Input", (), {"name": "input"})]

        get_outputs = get_inputs

        def run(self, outputs, feed):
            time.sleep(0.01)

    assert all(10_000_000 <= nanoseconds < 1e9 for nanoseconds in timing.time_calls(Slow(), None, 2))
