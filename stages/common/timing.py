"""Interleaved timing of several models: the measurement itself, without parameters."""

import gc
import hashlib
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from tqdm import tqdm

from stages.common.session.model_io import output_names
from stages.common.session.runtime import open_session

CALL_COLUMNS = ["round", "position", "variant", "batch", "call", "nanoseconds"]
CSV_BYTES = 480_000  # of all rows of a network, since the file is kept in Git
ROW_BYTES = 22  # of a row, beside the variant's name
MOST_CALLS = (
    200  # of a session at a batch size: 26 of 50 us are over in a millisecond, which other work may take as a whole
)
LEAST_WARMUP_CALLS = 2  # the first call of a shape plans its memory, the second gets it


def measure(paths, inputs, *, rounds, seconds, threads, warmup_calls, seed, show_progress=True, open_file=None):
    """Time every model at every batch size in interleaved rounds; return the calls as a list of CALL_COLUMNS rows.

    `paths`: {variant: file}; `inputs`: {batch size: (batch, ...) of the model's input}. A round visits all variants in a new
    random order, each with a new session: two sessions of one file differ by their place in memory, systematically, so
    the session, not the call, is the unit of repetition. `seconds` is the budget of the timed calls. A row is a call; where
    a session makes more of them than there is room for, every second, third ... is kept, whatever it took.
    `open_file(path, threads=...)` returns what runs a file, with the methods of onnxruntime's session, which is what
    None stands for.
    """
    open_file = open_file or open_session
    order = np.random.default_rng(seed)
    variants = list(paths)
    calls = plan_calls(paths, inputs, rounds=rounds, seconds=seconds, threads=threads, open_file=open_file)
    rows, most_rows = [], rows_of_a_session(paths, inputs, rounds=rounds)
    for round_number in tqdm(range(rounds), desc="benchmark", unit="round", mininterval=1, disable=not show_progress):
        for position, index in enumerate(order.permutation(len(variants))):
            variant = variants[index]
            session = open_file(paths[variant], threads=threads)
            for batch, values in inputs.items():
                time_calls(session, values, min(warmup_calls, max(LEAST_WARMUP_CALLS, calls[variant, batch])))
                times = time_calls(session, values, calls[variant, batch])
                rows += [
                    [round_number, position, variant, batch, call, times[call]] for call in kept(len(times), most_rows)
                ]
    return rows


def same_files(paths, apart=None):
    """Return {variant: another one whose file has the same bytes} of {variant: file}.

    Timing both would give two results of one file, which differ by noise and look as if they said something. `apart` is
    the variant that is a copy on purpose; the others with its bytes are said to be its copies.
    """
    first, same = {}, {}
    for variant, path in paths.items():
        digest = hashlib.sha256(Path(path).read_bytes()).digest()
        if variant == apart or digest not in first:
            first[digest] = variant
        else:
            same[variant] = first[digest]
    return same


def time_calls(session, values, count):
    """Run a session `count` times on one input, for all its outputs; return each call's wall-clock time in nanoseconds."""
    feed, outputs = {session.get_inputs()[0].name: values}, output_names(session)
    times = []
    gc.disable()
    try:
        for _ in range(count):
            start = time.perf_counter_ns()
            session.run(outputs, feed)
            times.append(time.perf_counter_ns() - start)
    finally:
        gc.enable()
    return times


def plan_calls(paths, inputs, *, rounds, seconds, threads, open_file=None):
    """Return {(variant, batch): calls a round}: share_calls of the budget, from a few calls of every cell."""
    cost, open_file = {}, open_file or open_session
    for variant, path in paths.items():
        session = open_file(path, threads=threads)
        for batch, values in inputs.items():
            time_calls(session, values, 1)
            cost[variant, batch] = min(time_calls(session, values, 3)) / 1e9
    return share_calls(cost, seconds / rounds, most=MOST_CALLS)


def share_calls(cost, seconds, *, most, least_seconds=0.0):
    """Return {cell: calls}: an equal share of the seconds for every cell of `cost`, {cell: seconds of a call}.

    A cell has one call at least, and `least_seconds` of them. Cheap ones are bounded by `most`; the time that they leave
    is given to the dear ones.
    """
    calls = {}
    for place, (cell, one_call) in enumerate(sorted(cost.items(), key=lambda item: item[1])):
        least = int(np.clip(least_seconds / one_call, 1, most))
        calls[cell] = int(np.clip(seconds / (len(cost) - place) / one_call, least, most))
        seconds -= calls[cell] * one_call
    return calls


def rows_of_a_session(paths, inputs, *, rounds):
    """Return how many rows a session can have at each batch size, so that those of all fit into the CSV file."""
    row_bytes = ROW_BYTES + sum(map(len, paths)) / len(paths)
    return max(1, int(CSV_BYTES / row_bytes / rounds / len(paths) / len(inputs)))


def kept(calls, most_rows):
    """Return the numbers of the calls that are kept, evenly spaced: spread over more time they see more of its noise."""
    return range(0, calls, -(-calls // most_rows))


def round_medians(rows):
    """Return {(variant, batch): medians (rounds,) in nanoseconds} from CALL_COLUMNS rows."""
    cells = defaultdict(lambda: defaultdict(list))
    for round_number, _, variant, batch, _, nanoseconds in rows:
        cells[variant, batch][round_number].append(nanoseconds)
    return {cell: np.array([np.median(rounds[key]) for key in sorted(rounds)]) for cell, rounds in cells.items()}
