"""What a session of a model file keeps in memory: weights, packed copies of them, the graph, the arena's first block.

    python -m stages.common.profiling.session_memory model.onnx 1     prints bytes

In a process of its own, because the system's count is of the whole process, and on several sessions, because the first
one also pays for what all share. Several such processes at a time count the same.
"""

import subprocess
import sys
from itertools import pairwise
from statistics import median

import psutil

from stages.common.session.runtime import open_session

SESSIONS = 5


def session_bytes(onnx_path, *, threads):
    """Return by how many bytes of resident memory a further session of a file makes a fresh process grow."""
    command = [sys.executable, "-m", "stages.common.profiling.session_memory", str(onnx_path), str(threads)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def growth(onnx_path, threads):
    """Return the median growth, in bytes, over all sessions of this process but the first."""
    process, sessions, resident = psutil.Process(), [], []
    for _ in range(SESSIONS):
        sessions.append(open_session(onnx_path, threads=threads))
        resident.append(process.memory_info().rss)
    return int(median(after - before for before, after in pairwise(resident)))


if __name__ == "__main__":
    print(growth(sys.argv[1], int(sys.argv[2])))
