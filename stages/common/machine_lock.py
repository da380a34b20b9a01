"""One benchmark at a time on a machine, whichever checkout, experiment or process starts it."""

import tempfile
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_PATH = Path(tempfile.gettempdir()) / "onnxruntime-benchmark.lock"


@contextmanager
def machine_lock(path=LOCK_PATH):
    """Hold the machine's benchmark lock for the block; say so if another process has it first.

    The operating system releases the lock when its process ends, however it ends.
    """
    lock = FileLock(path, mode=0o666)  # other users of the machine wait for it, too
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"another benchmark is running on this machine: waiting for {path} ...", flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
