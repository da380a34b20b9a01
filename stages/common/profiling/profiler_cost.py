"""What the profiler itself adds to a node's time, here and now: measured on a chain of nodes that do nothing."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from stages.common.profiling.profiled_session import MOST_CALLS, WARMUP_CALLS, profile_session
from stages.common.profiling.trace import midmean

CHAIN_NODES = 40


def profiler_cost(chain, threads, folder):
    """Return what the profiler adds to a node's own time, in microseconds: nodes of the chain with and without it.

    `chain`: the file of save_chain; `folder`: where the trace may lie meanwhile.
    """
    plan = {1: (np.ones((1, 1), np.float32), MOST_CALLS)}
    profiled, timed = profile_session(chain, plan, threads=threads, folder=folder)
    seen = midmean(np.stack([call.microseconds for call in profiled[1][WARMUP_CALLS:]])).mean()
    return max(0.0, float(seen - np.median(timed[1]) / CHAIN_NODES))


def save_chain(path):
    """Save a model of CHAIN_NODES nodes that do next to nothing, none of which onnxruntime can fuse or drop; return `path`."""
    nodes = [
        helper.make_node("Neg", [f"tensor_{place}"], [f"tensor_{place + 1}"], f"node_{place}")
        for place in range(CHAIN_NODES)
    ]
    ends = [helper.make_tensor_value_info(f"tensor_{place}", TensorProto.FLOAT, [1, 1]) for place in (0, CHAIN_NODES)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path
