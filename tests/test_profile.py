"""A profile says where the time of a call goes, and how much of it the trace does not explain."""

import numpy as np
import onnx
import pytest
from small_models import images_for, save_plain

from stages.common.profiling import profile
from stages.common.profiling.optimized_graph import save_optimized
from stages.common.profiling.profile import measure_profiles, midmean, parse_trace


def kernel(name, start, microseconds, *, in_use=0, allocated=0):
    arguments = {
        "op_name": "Conv",
        "input_type_shape": [{"uint8": [1, 2]}, {"float": []}],
        "mem_bytes_requested_in_use": str(in_use),
        "mem_requested_in_use_delta": str(allocated),
    }
    return {"name": f"{name}_kernel_time", "ts": start, "dur": microseconds, "args": arguments}


EVENTS = [
    {"name": "session_initialization", "ts": 0, "dur": 9},
    kernel("second", 25, 3, in_use=180, allocated=50),
    kernel("first", 21, 4, in_use=150, allocated=50),
    {"name": "model_run", "ts": 20, "dur": 10},
    kernel("first", 41, 5),
    kernel("second", 47, 2),
    {"name": "model_run", "ts": 40, "dur": 10},
]


def test_a_trace_is_cut_into_calls_with_their_nodes_in_the_order_of_time():
    calls = parse_trace(EVENTS)
    assert [call.names for call in calls] == [["first", "second"]] * 2
    assert [call.microseconds.tolist() for call in calls] == [[4, 3], [5, 2]]
    assert calls[0].input_types == ["uint8", "uint8"]


def test_activation_bytes_are_the_most_in_use_beyond_what_was_there_before_the_call():
    assert parse_trace(EVENTS)[0].activation_bytes == 180 - 100


def test_the_middle_mean_is_finer_than_a_microsecond_and_forgets_an_interrupted_call():
    times = np.array([[2.0], [2.0], [3.0], [3.0], [2.0], [3.0], [2.0], [900.0]])
    assert midmean(times)[0] == pytest.approx(2.5)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = save_plain(tmp_path_factory.mktemp("profile") / "fp32.onnx", width=32)
    graph = save_optimized(path, path.with_name("optimized.onnx"), threads=1)
    inputs = {batch: images_for(path, batch) for batch in (64, 1)}
    return graph, *measure_profiles({"fp32": path}, {"fp32": graph}, inputs, rounds=3, seconds=1, threads=1)


def test_a_profile_has_a_time_for_every_node_that_runs_and_every_round(measured):
    graph, profiles, _ = measured
    assert profiles["fp32", 64].nodes.shape == (3, len(graph.graph.node))
    assert profiles["fp32", 64].wall.shape == (3,)


def test_the_profile_explains_a_call_of_large_nodes(measured):
    assert abs(measured[1]["fp32", 64].unexplained_percent) < 15


def test_a_larger_batch_holds_more_activations(measured):
    small, large = (measured[1]["fp32", batch].activation_bytes for batch in (1, 64))
    assert large > 32 * small > 0


def test_the_profilers_own_cost_is_measured_and_small(measured):
    assert 0 < measured[2] < 50


def test_the_cost_is_taken_off_so_that_a_chain_of_idle_nodes_does_not_look_dear(tmp_path):
    path = profile._save_chain(tmp_path / "chain.onnx")
    inputs = {1: np.ones((1, 1), np.float32)}
    profiles, cost = measure_profiles(
        {"fp32": path}, {"fp32": onnx.load(path)}, inputs, rounds=3, seconds=0.5, threads=1
    )
    assert np.median(profiles["fp32", 1].sums) < profile.CHAIN_NODES * cost


def test_a_trace_of_another_graph_is_refused(tmp_path):
    path = save_plain(tmp_path / "fp32.onnx")
    with pytest.raises(RuntimeError, match="the trace has nodes"):
        measure_profiles(
            {"fp32": path}, {"fp32": onnx.load(path)}, {1: images_for(path, 1)}, rounds=1, seconds=0.1, threads=1
        )
