"""A profile says where the time of a call goes, and how much of it the trace does not explain."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import Network, images_for, save_choice, save_plain

from stages.common.profiling import profile, profiler_cost
from stages.common.profiling.optimized_graph import save_optimized
from stages.common.profiling.profile import measure_profiles
from stages.common.profiling.trace import Call, midmean, parse_trace
from stages.common.session.runtime import open_session
from stages.common.timing import time_calls

INPUT = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1])


def kernel(name, start, microseconds, *, in_use=0, allocated=0):
    arguments = {
        "op_name": "Conv",
        "input_type_shape": [{"uint8": [1, 2]}, {"float": []}],
        "mem_bytes_requested_in_use": str(in_use),
        "mem_requested_in_use_delta": str(allocated),
    }
    return {"name": f"{name}_kernel_time", "ts": start, "dur": microseconds, "args": arguments}


def executor(start, microseconds):
    return {"name": "SequentialExecutor::Execute", "ts": start, "dur": microseconds}


EVENTS = [
    {"name": "session_initialization", "ts": 0, "dur": 9},
    kernel("first", 21, 4, in_use=150, allocated=50),
    kernel("second", 25, 3, in_use=180, allocated=50),
    executor(21, 8),
    {"name": "model_run", "ts": 20, "dur": 10},
    kernel("first", 41, 5),
    kernel("second", 47, 2),
    executor(41, 9),
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


@pytest.mark.timed
def test_the_profile_explains_a_call_of_large_nodes(measured):
    assert abs(measured[1]["fp32", 64].unexplained_percent) < 15


def test_a_larger_batch_holds_more_activations(measured):
    small, large = (measured[1]["fp32", batch].activation_bytes for batch in (1, 64))
    assert large > 32 * small > 0


@pytest.mark.timed
def test_the_profilers_own_cost_is_measured_and_small(measured):
    assert 0 < measured[2] < 50


@pytest.mark.timed
def test_what_a_call_takes_outside_of_its_nodes_is_no_cost_of_a_node(tmp_path):
    """A chain of ten nodes that do nothing has as much of it as one of forty."""
    chains = profiler_cost.save_chains(tmp_path)
    values = np.ones((1, 1), np.float32)
    short, long = (min(time_calls(open_session(chain, threads=1), values, 500)[100:]) / 1e3 for chain in chains)
    found = [profiler_cost.profiler_cost(chains, 1, tmp_path) for _ in range(3)]
    cost, outside = np.median(found, axis=0)
    assert cost > 0 and outside > 0
    assert 0.3 * (short - (long - short) / 3) < outside < short


@pytest.mark.timed
def test_many_small_nodes_take_as_long_in_the_profile_as_without_the_profiler(tmp_path):
    """Its own cost is several times what such a node takes; it is measured on nodes of another type."""
    net = Network(size=2)
    tensor = "input"
    for place in range(60):
        tensor = net.add("Softmax", f"node_{place}", [tensor])
    net.add("Flatten", "flatten", [tensor])
    path = net.save(tmp_path / "small.onnx", 4)
    profiles, cost = measure_profiles(
        {"fp32": path}, {"fp32": onnx.load(path)}, {1: images_for(path, 1)}, rounds=5, seconds=0.5, threads=1
    )
    found = profiles["fp32", 1]
    assert abs(found.sums.min() - found.wall.min()) / found.nodes.shape[1] < cost / 2


def test_the_cost_is_taken_off_the_mean_and_not_off_a_single_call():
    """Of a node that the trace gives 1, 3, 1, 3 ... microseconds, 2 are left; cut at zero call by call it would be 2.25."""
    calls = [Call(["node"], ["Neg"], ["float"], np.array([time]), 0) for time in [9.0, 9.0, *[1.0, 3.0] * 4]]
    graph = helper.make_graph([helper.make_node("Neg", ["input"], ["output"], "node")], "one", [INPUT], [])
    found = profile._profile([calls], [np.full(8, 0.6)], helper.make_model(graph), 1.5, 0.1)
    assert (found.nodes.tolist(), found.sums.tolist()) == ([[0.5]], [0.5])


@pytest.mark.parametrize(
    ("nodes", "wall", "cost"),
    [
        ([5.0] * 100, 400.0, 2.0),  # they fit with the chain's cost
        ([5.0] * 100, 250.0, 2.5),
        ([1.0] * 50 + [5.0] * 50, 100.0, 3.0),  # a node takes no less than nothing
        ([5.0] * 100 + [500.0], 100.0, 2.0),  # what is still too long at four times the cost is not the profiler's
    ],
)
def test_the_nodes_of_a_file_take_no_longer_than_its_calls(nodes, wall, cost):
    means, room = np.tile(nodes, (3, 1)), np.full(3, wall)
    room[0] *= 10  # a disturbed round
    assert profile.fitting_cost(means, room, 2.0) == pytest.approx(cost, abs=1e-4)


def test_calls_that_are_interrupted_at_one_node_or_another_do_not_look_as_if_time_were_outside_of_all_nodes():
    """The interrupted time is in every call, with the profiler and without, and in the mean of no node."""
    times = np.full((14, 4), 10.0)
    times[np.arange(14), np.arange(14) % 4] += 1000
    names = [f"node_{place}" for place in range(4)]
    calls = [Call(names, ["Neg"] * 4, ["float"] * 4, row, 0) for row in times]
    nodes = [helper.make_node("Neg", [f"{name}_in"], [f"{name}_out"], name) for name in names]
    inputs = [helper.make_tensor_value_info(f"{name}_in", TensorProto.FLOAT, [1]) for name in names]
    model = helper.make_model(helper.make_graph(nodes, "four", inputs, []))
    found = profile._profile([calls], [np.full(12, 1032.0)], model, 2.0, 0.0)
    assert (found.nodes.tolist(), found.sums.tolist()) == ([[8] * 4], [1032])
    assert found.unexplained_percent == 0


def test_a_node_that_holds_a_graph_has_the_time_of_that_graph_s_nodes(tmp_path):
    path = save_choice(tmp_path / "fp32.onnx")
    graph = save_optimized(path, tmp_path / "optimized.onnx", threads=1)
    profiles, _ = measure_profiles(
        {"fp32": path}, {"fp32": graph}, {4: images_for(path, 4)}, rounds=2, seconds=0.1, threads=1
    )
    place = [node.op_type for node in graph.graph.node].index("If")
    assert profiles["fp32", 4].nodes.shape == (2, len(graph.graph.node))
    assert profiles["fp32", 4].nodes[:, place].min() > 0


def test_nodes_within_a_node_are_left_out_and_their_memory_is_not():
    """Of Ifs in each other; times are whole microseconds, so that a node can begin when the one before it ends."""
    events = [
        kernel("before", 20, 0, in_use=100),
        kernel("inner", 22, 1, in_use=170),
        kernel("innermost", 24, 0, in_use=190),
        executor(24, 1),
        kernel("inner_if", 23, 2, in_use=100),
        executor(21, 5),
        kernel("if", 20, 6, in_use=100),
        kernel("after", 26, 0, in_use=100),
        executor(20, 7),
        {"name": "model_run", "ts": 19, "dur": 12},
    ]
    [call] = parse_trace(events)
    assert call.names == ["before", "if", "after"]
    assert call.activation_bytes == 90


@pytest.mark.parametrize(("seconds", "calls"), [(0.2, [1, 1]), (0.001, [1, 2])])
def test_a_long_call_is_planned_from_two_of_them(monkeypatch, tmp_path, seconds, calls):
    made = []
    monkeypatch.setattr(profile, "time_calls", lambda _, __, count: made.append(count) or [seconds * 1e9] * count)
    path = save_plain(tmp_path / "fp32.onnx")
    profile._plan_calls({"fp32": path}, {1: None}, seconds=1, threads=1)
    assert made == calls


def test_a_trace_of_another_graph_is_refused(tmp_path):
    path = save_plain(tmp_path / "fp32.onnx")
    with pytest.raises(RuntimeError, match="the trace has nodes"):
        measure_profiles(
            {"fp32": path}, {"fp32": onnx.load(path)}, {1: images_for(path, 1)}, rounds=1, seconds=0.1, threads=1
        )
