"""Where the time of a call goes in files of onnxruntime and OpenVINO, kernel by kernel; runs in OpenVINO's environment.

    python -m stages.tools.profile_toolkits plan.json folder       writes profiles.json into the folder

A round profiles all files of a batch size, each in a new session.
"""

import json
from pathlib import Path

import numpy as np
from tqdm import tqdm

from stages.common.images import first_input
from stages.common.machine_lock import machine_lock
from stages.common.profiling.optimized_graph import save_optimized
from stages.common.profiling.profile import measure_profiles
from stages.common.timing import time_calls
from stages.common.workspace import run_main
from stages.tools.openvino_session import OpenVinoSession

ROUNDS = 5  # odd: the median is a round
WARMUP_CALLS, FEWEST_CALLS, MOST_CALLS = 2, 3, 200


def profile_onnxruntime(path, graph, values, *, seconds, threads):
    """Return ([(operator, type of its first input, microseconds a call)], microseconds of a call without the profiler)."""
    settings = {"rounds": 1, "seconds": seconds, "threads": threads, "show_progress": False}
    profiles, _ = measure_profiles({"file": path}, {"file": graph}, {len(values): values}, **settings)
    profile = profiles["file", len(values)]
    types, times = profile.input_types, profile.nodes[0]
    kernels = [(node.op_type, *rest) for node, *rest in zip(graph.graph.node, types, times.tolist(), strict=True)]
    return kernels, float(profile.wall[0])


def profile_openvino(path, values, *, seconds, threads):
    """Return ([(operator, kernel, microseconds a call)], microseconds of a call): means over the same calls.

    A call is timed with its counters, which cost a few microseconds: a session cannot end them, and another session
    would lie elsewhere in memory.
    """
    session = OpenVinoSession(path, threads=threads, profiled=True)
    time_calls(session, values, WARMUP_CALLS)
    one_call = min(time_calls(session, values, 2)) / 1e9
    calls = int(np.clip(seconds / one_call, FEWEST_CALLS, MOST_CALLS))
    before = session.kernel_totals()  # of the first calls, in which memory is planned
    call = float(np.mean(time_calls(session, values, calls))) / 1e3
    kernels = [
        (op_type, kernel, max(0.0, (total - start) / calls))
        for (op_type, kernel, total), (_, _, start) in zip(session.kernel_totals(), before, strict=True)
    ]
    return kernels, call


def profile_files(files, values, *, seconds, threads, folder):
    """Return {name: [{"kernels": [(operator, kernel, microseconds)], "call": microseconds}, one a round]}.

    `files`: {name: path of an .onnx or .xml}; `seconds`: of all calls.
    """
    graphs = {
        name: save_optimized(path, Path(folder) / "optimized.tmp", threads=threads)
        for name, path in files.items()
        if not path.endswith(".xml")
    }
    settings, found = {"seconds": seconds / ROUNDS / len(files), "threads": threads}, {name: [] for name in files}
    for _ in tqdm(range(ROUNDS), desc=f"profile, batch {len(values)}", unit="round", mininterval=1):
        for name, path in files.items():
            if name in graphs:
                found[name].append(profile_onnxruntime(path, graphs[name], values, **settings))
            else:
                found[name].append(profile_openvino(path, values, **settings))
    return {
        name: [dict(zip(("kernels", "call"), one, strict=True)) for one in rounds] for name, rounds in found.items()
    }


def main(plan_path, folder):
    """`plan_path`: JSON with batches {batch: {name: path}}, images, scaling, seconds (of a batch size) and threads."""
    plan = json.loads(Path(plan_path).read_text(encoding="utf-8"))
    profiles = {}
    with machine_lock():
        for batch, files in plan["batches"].items():
            values = first_input(plan["images"], int(batch), **plan["scaling"])
            settings = {"seconds": plan["seconds"], "threads": plan["threads"], "folder": folder}
            profiles[batch] = profile_files(files, values, **settings)
    (Path(folder) / "profiles.json").write_text(json.dumps(profiles), encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
