"""Where the time of a call goes, node by node: onnxruntime's profiler, held against calls without it.

The profiler is not free. A node's time holds a microsecond or two of its own bookkeeping, which is as much as a small
node takes; what that costs here and now is measured on a chain of nodes that do nothing, and taken off. And whole
calls are timed in the same rounds without the profiler, so that what the profile leaves unexplained is a number.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from tqdm import tqdm

from stages.common.profiling.trace_order import places_in_trace
from stages.common.session.runtime import open_session
from stages.common.timing import time_calls

KERNEL_ENDING = "_kernel_time"
EXECUTOR = "SequentialExecutor::Execute"  # of the graph, and before its end one for every graph that an If or Loop runs
CALL = "model_run"
MOST_CALLS = 50  # of a session at a batch size; 50 calls of 100 nodes are 4 MB of trace
LEAST_SECONDS = 0.005  # of a session at a batch size, whatever the budget: one call of a microsecond says nothing
WARMUP_CALLS = 2  # the first call of a shape plans its memory, the second gets it
CHAIN_NODES = 40
LONG_CALL_SECONDS = 0.1  # two of them are enough to know what such a call takes


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


@dataclass
class Profile:
    """What was measured of one file at one batch size; a row is a round, with a new session.

    `nodes`: (rounds, nodes) microseconds, averaged over the calls, the profiler's cost taken off; `sums`: (rounds,) of all
    nodes of a call, median over the calls, as much taken off; `wall`: (rounds,) of a call without the profiler, median
    over the calls; `least_sum` and `least_wall`: those of a quick call (see _quick); `input_types`: of each node's first
    input; `activation_bytes` as in Call; `calls`: how many were profiled, and as many again timed.
    """

    nodes: np.ndarray
    sums: np.ndarray
    wall: np.ndarray
    least_sum: float
    least_wall: float
    input_types: list
    activation_bytes: int
    calls: int

    @property
    def unexplained_percent(self):
        """The part of a call that no node accounts for; negative if the profile counts more than a call takes.

        Of quick calls: the question is what the trace misses, not what else the machine did meanwhile.
        """
        return 100 * (1 - self.least_sum / self.least_wall)


def measure_profiles(paths, graphs, inputs, *, rounds, seconds, threads, seed=0, show_progress=True):
    """Return ({(variant, batch): Profile}, the profiler's cost in microseconds a node).

    `paths`: {variant: file}; `graphs`: {variant: optimized ModelProto}; `inputs`: {batch: (batch, ...) of the model's input}. A
    round visits the files in random order, each with a new session. `seconds` is the budget of all calls.
    """
    calls = _plan_calls(paths, inputs, seconds=seconds / rounds, threads=threads)
    sizes, order = sorted(inputs), np.random.default_rng(seed)
    walls, traces, costs = {}, {}, []
    with tempfile.TemporaryDirectory() as folder:
        chain = _save_chain(Path(folder) / "chain.onnx")
        for _ in tqdm(range(rounds), desc="profile", unit="round", mininterval=1, disable=not show_progress):
            costs.append(_profiler_cost(chain, threads, folder))
            for variant in order.permutation(list(paths)):
                plan = {size: (inputs[size], calls[variant, size]) for size in sizes}
                profiled, timed = profile_session(paths[variant], plan, threads=threads, folder=folder)
                for size in sizes:
                    traces.setdefault((variant, size), []).append(profiled[size])
                    walls.setdefault((variant, size), []).append(timed[size])
    cost = float(np.median(costs))
    profiles = {
        (variant, size): _profile(found, walls[variant, size], graphs[variant], cost)
        for (variant, size), found in traces.items()
    }
    return profiles, cost


def profile_session(path, plan, *, threads, folder):
    """Return ({batch: Calls, the warm-up ones first}, {batch: (calls,) microseconds without the profiler}).

    `plan`: {batch: (input, number of calls)}. Both come from one new session, whose profiler is ended in between: two
    sessions of one file differ by their place in memory, which would look like time that the profile does not explain.
    """
    session = open_session(path, threads=threads, enable_profiling=True, profile_file_prefix=f"{folder}/trace")
    for values, calls in plan.values():
        time_calls(session, values, WARMUP_CALLS + calls)
    trace = Path(session.end_profiling())
    found, by_size = parse_trace(json.loads(trace.read_bytes())), {}
    trace.unlink()
    for size, (_, calls) in plan.items():
        by_size[size], found = found[: WARMUP_CALLS + calls], found[WARMUP_CALLS + calls :]
    timed = {}
    for size, (values, calls) in plan.items():
        time_calls(session, values, min(1, calls - 1))  # the caches are cold now, which a long call does not notice
        timed[size] = np.array(time_calls(session, values, calls)) / 1e3
    return by_size, timed


def _profile(traces, walls, graph, cost):
    orders = [_order(calls[-1], graph) for calls in traces]  # of the graph's nodes in each session's calls
    times = [
        np.stack([call.microseconds[order] for call in calls[WARMUP_CALLS:]])
        for calls, order in zip(traces, orders, strict=True)
    ]
    means = np.stack([midmean(calls) for calls in times])
    # A single time, of whole microseconds, can be less than the cost; cut at zero before the mean it would count too much.
    nodes = np.maximum(means - cost, 0)
    # What interrupts a call hits another node each time: the means of the nodes forget it, a whole call does not, and is
    # held against whole calls.
    totals = [calls.sum(axis=1) - taken for calls, taken in zip(times, (means - nodes).sum(axis=1), strict=True)]
    return Profile(
        nodes=nodes,
        sums=np.array([np.median(calls) for calls in totals]),
        wall=np.array([np.median(calls) for calls in walls]),
        least_sum=_quick(totals),
        least_wall=_quick(walls),
        input_types=[traces[0][-1].input_types[place] for place in orders[0]],
        activation_bytes=max(calls[0].activation_bytes for calls in traces),
        calls=sum(map(len, times)),
    )


def _quick(rounds):
    """Return the lower quartile of the calls in the round where it is least: in the very quickest call the profiler, too,
    was quicker than its cost on average, which is taken off.
    """
    return float(min(np.quantile(calls, 0.25) for calls in rounds))


def _order(call, graph):
    """Return the places of the graph's nodes in a Call. Raises RuntimeError if it is a call of another graph."""
    return places_in_trace(list(zip(call.op_types, call.names, strict=True)), graph.graph)


def midmean(times):
    """Return the mean of the middle half of each column of (calls, nodes).

    The trace counts whole microseconds: a median would be stuck at them where a node takes two, and a mean would
    follow a single interrupted call.
    """
    ordered = np.sort(times, axis=0)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut].mean(axis=0)


def _plan_calls(paths, inputs, *, seconds, threads):
    """Return {(variant, batch): calls a session} for a round of `seconds`: as many again without the profiler, and warm-up."""
    cost = {}
    for variant, path in paths.items():
        session = open_session(path, threads=threads)
        for size, values in inputs.items():
            [first] = time_calls(session, values, 1)
            cost[variant, size] = min(time_calls(session, values, 1 if first > LONG_CALL_SECONDS * 1e9 else 2)) / 1e9
    calls, left = {}, (seconds - (WARMUP_CALLS + 1) * sum(cost.values())) / 2
    for cells_left, (cell, one_call) in zip(
        range(len(cost), 0, -1), sorted(cost.items(), key=lambda item: item[1]), strict=True
    ):
        least = int(np.clip(LEAST_SECONDS / one_call, 1, MOST_CALLS))
        calls[cell] = int(np.clip(left / cells_left / one_call, least, MOST_CALLS))
        left -= calls[cell] * one_call
    return calls


def _save_chain(path):
    """Save a model of CHAIN_NODES nodes that do next to nothing, none of which onnxruntime can fuse or drop."""
    nodes = [
        helper.make_node("Neg", [f"tensor_{place}"], [f"tensor_{place + 1}"], f"node_{place}")
        for place in range(CHAIN_NODES)
    ]
    ends = [helper.make_tensor_value_info(f"tensor_{place}", TensorProto.FLOAT, [1, 1]) for place in (0, CHAIN_NODES)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def _profiler_cost(chain, threads, folder):
    """Return what the profiler adds to a node's own time, in microseconds: nodes of the chain with and without it."""
    plan = {1: (np.ones((1, 1), np.float32), MOST_CALLS)}
    profiled, timed = profile_session(chain, plan, threads=threads, folder=folder)
    seen = midmean(np.stack([call.microseconds for call in profiled[1][WARMUP_CALLS:]])).mean()
    return max(0.0, float(seen - np.median(timed[1]) / CHAIN_NODES))
