"""One benchmark at a time on a machine, whichever checkout, experiment or process starts it."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

# Not TMPDIR, which differs between the users and jobs of a machine.
LOCK_FOLDER = Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())  # noqa: S108 -- all know the name
LOCK_PATH = LOCK_FOLDER / "onnxruntime-benchmark.lock"


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
