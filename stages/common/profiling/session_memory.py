"""What a session of a model file keeps in memory: weights, packed copies of them, the graph, the arena's first block.

    python -m stages.common.profiling.session_memory model.onnx 1     prints bytes

In a process of its own, because the system's count is of the whole process, and on several sessions, because the first
one also pays for what all share. Several such processes at a time count the same.
"""

import os
import subprocess
import sys

import psutil

from stages.common.session.runtime import open_session

SESSIONS = 9
# Opening a session takes memory that it gives back. glibc keeps even large blocks of it for later, as many as chance has
# it: processes were seen to grow by 1.5 to 2.3 times what a session keeps. With a fixed threshold every block above it
# goes back to the system at once. Other allocators ignore the variable.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": str(64 * 1024)}


def session_bytes(onnx_path, *, threads):
    """Return by how many bytes of resident memory a further session of a file makes a fresh process grow.

    A session is what is left when it is open; what opening it takes in between is not counted.
    """
    command = [sys.executable, "-m", "stages.common.profiling.session_memory", str(onnx_path), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | GIVE_BACK)
    return int(done.stdout)


def growth(onnx_path, threads):
    """Return the mean growth, in bytes, over all sessions of this process but the first."""
    process, sessions, resident = psutil.Process(), [], []
    for _ in range(SESSIONS):
        sessions.append(open_session(onnx_path, threads=threads))
        resident.append(process.memory_info().rss)
    return (resident[-1] - resident[0]) // (SESSIONS - 1)


if __name__ == "__main__":
    print(growth(sys.argv[1], int(sys.argv[2])))
