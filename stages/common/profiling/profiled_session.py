"""A session's calls on given inputs: with onnxruntime's profiler, and then as many without it."""

import json
from pathlib import Path

import numpy as np

from stages.common.profiling.trace import parse_trace
from stages.common.session.runtime import open_session
from stages.common.timing import time_calls

MOST_CALLS = 50  # of a session at a batch size; 50 calls of 100 nodes are 4 MB of trace
WARMUP_CALLS = 2  # the first call of a shape plans its memory, the second gets it


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
