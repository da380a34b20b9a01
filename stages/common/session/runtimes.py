"""Where further onnxruntime versions live, and what they are called in metrics."""

import sys
from contextlib import contextmanager
from pathlib import Path


def runtime_folder(runtime):
    """Return the folder of an onnxruntime version ("1.20.1"), under the prefix of the running environment."""
    return Path(sys.prefix) / "runtimes" / f"onnxruntime-{runtime}"


def is_installed(runtime):
    """Return whether that onnxruntime version can be put on PYTHONPATH."""
    return (runtime_folder(runtime) / "onnxruntime" / "__init__.py").is_file()


def key_of(runtime):
    """Return the version's name in metrics, where a dot would read as a level: "1.20.1" -> "onnxruntime_1_20_1"."""
    return f"onnxruntime_{runtime.replace('.', '_')}"


@contextmanager
def install_lock(folder):
    """Hold the lock of a folder that is installed into: another process that wants the same waits, and finds it there."""
    from filelock import FileLock  # noqa: PLC0415 -- only when something has to be installed

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        yield
