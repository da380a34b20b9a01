"""A trace's nodes are found in the graph that another session saved, in whatever order a graph with branches was run."""

import pytest
from onnx import TensorProto, helper
from small_models import Network, images_for

from stages.common.profiling.optimized_graph import save_optimized
from stages.common.profiling.profile import measure_profiles
from stages.common.profiling.trace_order import places_in_trace


def graph_of(*nodes):
    """Return a GraphProto of (operator type, name, inputs, output) with the input `x`."""
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    made = [helper.make_node(op_type, inputs.split(), [output], name) for op_type, name, inputs, output in nodes]
    return helper.make_graph(made, "graph", [value], [])


# x - a -+- Reorder - left ---+- sum
#        +- b - Reorder - right
BRANCHES = graph_of(
    ("Conv", "a", "x", "a_out"),
    ("Conv", "b", "a_out", "b_out"),
    ("Reorder", "Reorder", "a_out", "a_plain"),
    ("Reorder", "Reorder", "b_out", "b_plain"),
    ("Relu", "left", "a_plain", "left_out"),
    ("Relu", "right", "b_plain", "right_out"),
    ("Add", "", "left_out right_out", "sum"),
)


def run_in_order(*places, graph=BRANCHES):
    """Return what a trace would say if the graph's nodes ran in the order of `places`."""
    return [(graph.node[place].op_type, graph.node[place].name or "Add_token_3") for place in places]


@pytest.mark.parametrize(
    "order",
    [
        (0, 1, 2, 3, 4, 5, 6),  # as saved
        (0, 2, 4, 1, 3, 5, 6),  # one branch, then the other
        (0, 2, 1, 3, 5, 4, 6),
        (0, 1, 3, 5, 2, 4, 6),  # its first Reorder could be either, and only one of them leads to `right`
    ],
)
def test_nodes_of_one_name_are_told_apart_by_what_has_run_before_them(order):
    assert places_in_trace(run_in_order(*order), BRANCHES) == [order.index(place) for place in range(7)]


def test_numbers_that_make_names_unique_and_names_that_were_not_saved_do_not_matter():
    graph = graph_of(("Conv", "a_token_7", "x", "y"), ("Relu", "", "y", "z"))
    assert places_in_trace([("Conv", "a_token_12"), ("Relu", "Relu_token_1")], graph) == [0, 1]


@pytest.mark.parametrize("order", [(0, 1), (1, 0, 2, 3, 4, 5, 6), (0, 1, 2, 3, 4, 4, 6)])
def test_a_trace_that_the_graph_cannot_make_is_refused(order):
    """Nodes that are missing, that ran before their inputs were there, and that ran twice."""
    with pytest.raises(RuntimeError, match="the trace has nodes"):
        places_in_trace(run_in_order(*order), BRANCHES)


def test_a_chain_of_equal_pairs_is_matched_without_trying_all_orders():
    """Forty nodes that are all called the same, in a random order: every choice fits, none leads to a dead end."""
    pairs = [(("Mul", "", "x", f"m{pair}"), ("Mul", "", f"m{pair}", f"n{pair}")) for pair in range(20)]
    graph = graph_of(*(node for pair in pairs for node in pair))
    places = places_in_trace([("Mul", "")] * 40, graph)
    assert sorted(places) == list(range(40)) and all(places[i] < places[i + 1] for i in range(0, 40, 2))


def squeeze_and_excite(path):
    """Save a network with three blocks that scale their own channels, as MobileNetV3 has them: every one branches."""
    network = Network(channels=8, size=12)
    tensor = "input"
    for block in range(3):
        tensor = network.conv(f"depthwise{block}", tensor, 8, 1, group=8)
        tensor = network.add("Relu", f"relu{block}", [tensor])
        scale = network.add("GlobalAveragePool", f"pool{block}", [tensor])
        scale = network.conv(f"squeeze{block}", scale, 8, 8, kernel=1)
        scale = network.add("HardSigmoid", f"gate{block}", [scale])
        tensor = network.add("Mul", f"scale{block}", [tensor, scale])
    network.add("Flatten", "flatten", [network.add("GlobalAveragePool", "pool", [tensor])])
    return network.save(path, 8)


def test_sessions_that_run_a_network_with_branches_in_orders_of_their_own_are_profiled(tmp_path):
    path = squeeze_and_excite(tmp_path / "fp32.onnx")
    graph = save_optimized(path, tmp_path / "optimized.onnx", threads=1)
    profiles, _ = measure_profiles(
        {"fp32": path}, {"fp32": graph}, {1: images_for(path, 1)}, rounds=5, seconds=0.2, threads=1
    )
    assert profiles["fp32", 1].nodes.shape == (5, len(graph.graph.node))
