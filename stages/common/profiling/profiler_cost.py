"""What the profiler adds to a node's time, here and now, and what a call takes outside of its nodes: on chains of nodes.

The nodes of a chain do nothing, so that a call takes a part of its own and a little for every node: the difference of two
chains tells the two apart.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from stages.common.profiling.profiled_session import MOST_CALLS, WARMUP_CALLS, profile_session
from stages.common.profiling.trace import midmean

SHORT, LONG = 10, 40  # nodes


def profiler_cost(chains, threads, folder):
    """Return (what the profiler adds to a node's own time, what a call takes outside of its nodes), in microseconds.

    `chains`: the files of save_chains; `folder`: where the trace may lie meanwhile.
    """
    plan = {1: (np.ones((1, 1), np.float32), MOST_CALLS)}
    short, long = (profile_session(chain, plan, threads=threads, folder=folder) for chain in chains)
    seen = midmean(np.stack([call.microseconds for call in long[0][1][WARMUP_CALLS:]])).mean()
    calls = [float(np.median(timed[1])) for _, timed in (short, long)]
    node = (calls[1] - calls[0]) / (LONG - SHORT)
    return max(0.0, float(seen) - node), max(0.0, calls[0] - SHORT * node)


def save_chains(folder):
    """Save models of SHORT and LONG nodes that do next to nothing, which onnxruntime neither fuses nor drops; return the paths."""
    return [_save_chain(Path(folder) / f"chain-{nodes}.onnx", nodes) for nodes in (SHORT, LONG)]


def _save_chain(path, length):
    nodes = [
        helper.make_node("Neg", [f"tensor_{place}"], [f"tensor_{place + 1}"], f"node_{place}")
        for place in range(length)
    ]
    ends = [helper.make_tensor_value_info(f"tensor_{place}", TensorProto.FLOAT, [1, 1]) for place in (0, length)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path
