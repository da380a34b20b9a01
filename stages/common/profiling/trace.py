"""The trace that onnxruntime's profiler writes, cut into calls: each one's nodes with their times, and its memory."""

from dataclasses import dataclass

import numpy as np

KERNEL_ENDING = "_kernel_time"
EXECUTOR = "SequentialExecutor::Execute"  # of the graph, and before its end one for every graph that an If or Loop runs
CALL = "model_run"


@dataclass(frozen=True)
class Call:
    """One call in a trace: its nodes in order (names, operator types, first input's type, microseconds) and its memory.

    A node that holds a graph of its own, as If and Loop do, has the time of that graph's nodes, which are not here.
    `activation_bytes`: the most that tensors of the call took at once, without weights, input and scratch space of
    kernels; true of the first call with an input's shape, because later ones take one block that is planned ahead.
    """

    names: list
    op_types: list
    input_types: list
    microseconds: np.ndarray
    activation_bytes: int


def parse_trace(events):
    """Return the Calls in the events of onnxruntime's trace (a list of dictionaries in the order of their ends)."""
    calls, ran, waiting, nodes = [], [], [], []  # kernels: of the call, of no executor yet, of the last executor
    for event in events:
        if event["name"].endswith(KERNEL_ENDING):
            ran.append(event)
            waiting.append(event)
        elif event["name"] == EXECUTOR:
            nodes = [kernel for kernel in waiting if kernel["ts"] >= event["ts"]]
            waiting = [kernel for kernel in waiting if kernel["ts"] < event["ts"]]
        elif event["name"] == CALL:
            calls.append(_call(nodes, ran))
            ran, waiting = [], []
    return calls


def _call(nodes, ran):
    """Return the Call of all kernels that `ran`, of which `nodes` are the graph's own."""
    arguments = [kernel["args"] for kernel in nodes]
    in_use = [int(kernel["args"].get("mem_bytes_requested_in_use", 0)) for kernel in ran]
    before = in_use[0] - int(ran[0]["args"].get("mem_requested_in_use_delta", 0)) if in_use else 0
    return Call(
        [kernel["name"].removesuffix(KERNEL_ENDING) for kernel in nodes],
        [argument["op_name"] for argument in arguments],
        [next(iter((argument.get("input_type_shape") or [{}])[0]), "") for argument in arguments],
        np.array([kernel["dur"] for kernel in nodes], dtype=float),
        max(in_use, default=0) - before,
    )


def midmean(times):
    """Return the mean of the middle half of each column of (calls, nodes).

    The trace counts whole microseconds: a median would be stuck at them where a node takes two, and a mean would
    follow a single interrupted call.
    """
    ordered = np.sort(times, axis=0)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut].mean(axis=0)
