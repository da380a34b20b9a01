"""Where the time of a call goes, node by node: onnxruntime's profiler, held against calls without it.

The profiler is not free. A node's time holds a microsecond or two of its own bookkeeping, which is as much as a small
node takes; what that costs here and now is measured (see profiler_cost.py), and taken off: more in a file of many quick
nodes, which otherwise would take longer than the call that they make up. And whole calls are timed in the same rounds
without the profiler, so that what the profile leaves unexplained is a number.
"""

import tempfile
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from stages.common.profiling.profiled_session import MOST_CALLS, WARMUP_CALLS, profile_session
from stages.common.profiling.profiler_cost import profiler_cost, save_chains
from stages.common.profiling.trace import midmean
from stages.common.profiling.trace_order import places_in_trace
from stages.common.session.runtime import open_session
from stages.common.timing import share_calls, time_calls

LEAST_SECONDS = 0.005  # of a session at a batch size, whatever the budget: one call of a microsecond says nothing
LONG_CALL_SECONDS = 0.1  # two of them are enough to know what such a call takes
MOST_COST = (
    4  # times the cost in the chain, whose few nodes stay in the caches; twice that was seen in networks of hundreds
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
        chains = save_chains(folder)
        for _ in tqdm(range(rounds), desc="profile", unit="round", mininterval=1, disable=not show_progress):
            costs.append(profiler_cost(chains, threads, folder))
            for variant in order.permutation(list(paths)):
                plan = {size: (inputs[size], calls[variant, size]) for size in sizes}
                profiled, timed = profile_session(paths[variant], plan, threads=threads, folder=folder)
                for size in sizes:
                    traces.setdefault((variant, size), []).append(profiled[size])
                    walls.setdefault((variant, size), []).append(timed[size])
    cost, outside = map(float, np.median(costs, axis=0))
    profiles = {
        (variant, size): _profile(found, walls[variant, size], graphs[variant], cost, outside)
        for (variant, size), found in traces.items()
    }
    return profiles, cost


def _plan_calls(paths, inputs, *, seconds, threads):
    """Return {(variant, batch): calls a session} for a round of `seconds`: as many again without the profiler, and warm-up."""
    cost = {}
    for variant, path in paths.items():
        session = open_session(path, threads=threads)
        for size, values in inputs.items():
            [first] = time_calls(session, values, 1)
            cost[variant, size] = min(time_calls(session, values, 1 if first > LONG_CALL_SECONDS * 1e9 else 2)) / 1e9
    left = (seconds - (WARMUP_CALLS + 1) * sum(cost.values())) / 2
    return share_calls(cost, left, most=MOST_CALLS, least_seconds=LEAST_SECONDS)


def _profile(traces, walls, graph, cost, outside):
    orders = [_order(calls[-1], graph) for calls in traces]  # of the graph's nodes in each session's calls
    times = [
        np.stack([call.microseconds[order] for call in calls[WARMUP_CALLS:]])
        for calls, order in zip(traces, orders, strict=True)
    ]
    means = np.stack([midmean(calls) for calls in times])
    cost = fitting_cost(means, np.array([np.median(calls) for calls in walls]) - outside, cost)
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


def fitting_cost(means, room, chain):
    """Return the profiler's cost a node in a file: the chain's, or as much more as its nodes need to fit into its calls.

    `means`: (rounds, nodes) microseconds with that cost; `room`: (rounds,) what calls without it have for their nodes. What
    would take more than MOST_COST times the chain's is no cost of the profiler's.
    """

    def too_long(cost):
        return np.median(np.maximum(means - cost, 0).sum(axis=1) - room) > 0

    low, high = chain, MOST_COST * chain
    if not too_long(low) or too_long(high):
        return chain
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if too_long(middle) else (low, middle)
    return high


def _quick(rounds):
    """Return the lower quartile of the calls in the round where it is least: in the very quickest call the profiler, too,
    was quicker than its cost on average, which is taken off.
    """
    return float(min(np.quantile(calls, 0.25) for calls in rounds))


def _order(call, graph):
    """Return the places of the graph's nodes in a Call. Raises RuntimeError if it is a call of another graph."""
    return places_in_trace(list(zip(call.op_types, call.names, strict=True)), graph.graph)
