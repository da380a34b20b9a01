"""DVC's queue of experiments: what it says of the tasks that started from a commit, and whether their processes live.

`dvc exp show` knows as much and more, but reads every experiment whole for it, seconds each; by then a process that it saw
has ended. Here what a task is said to be and whether its process is there are asked within one moment.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from stages.common.workspace import UserError

QUEUED, RUNNING, FAILED, SUCCESS = "Queued", "Running", "Failed", "Success"  # DVC's words
RUNS = ".dvc/tmp/exps/run"  # where DVC keeps process and output of a task


@dataclass
class Task:
    """An entry of the queue. `revision`: the start of the commit in which it is stashed, params.yaml as it was asked for.

    `log`: its output, None if it has none; `lives`: of a running one, that it has not ended without telling DVC; of a
    queued one, that a worker is there to take it.
    """

    revision: str
    name: str
    status: str
    log: Path | None = None
    lives: bool = True


def tasks_of(head):
    """Return the Tasks whose experiments started from the commit `head`, in the queue's order, the newest first."""
    answer = ask("dvc", "queue", "status")
    working = "Worker status: 0 active, 0 idle" not in answer
    tasks = []
    for line in answer.splitlines():
        revision, name, *_, status = line.split() or ["", "", ""]
        if status in (QUEUED, RUNNING, FAILED, SUCCESS) and git("rev-parse", f"{revision}^1") == f"{head}\n".encode():
            folder = next(Path(root(), RUNS).glob(f"{revision}*"), None)
            log = folder and folder / f"{folder.name}.out"
            lives = working and (status != RUNNING or has_process(folder))
            tasks.append(Task(revision, name, status, log, lives))
    return tasks


def has_process(folder):
    """Return whether the process of a task is there, is about to be, or has ended and its worker has not said so yet.

    DVC calls a task running for good when its process and the one that waits for it were killed.
    """
    try:
        process = json.loads((folder / f"{folder.name}.json").read_text())
    except (AttributeError, OSError, ValueError):  # it is just being started
        return True
    return process.get("returncode") is not None or psutil.pid_exists(process["pid"])


def last_words(log):
    """Return the error in the output of a failed run: a stage's own sentence if there is one, else DVC's first."""
    lines = log.read_text(errors="replace").splitlines() if log and log.exists() else []
    errors = [line for line in lines if line.lower().startswith("error")]
    return min(errors, key=lambda line: line.startswith("ERROR"), default="no error in its output, it was killed")


def root():
    """Return the root of the repository."""
    return (git("rev-parse", "--show-toplevel") or b".").decode().strip()


def git(*arguments):
    """Return what a Git command prints, as bytes, or None if it fails."""
    result = subprocess.run(["git", *arguments], capture_output=True, check=False)
    return result.stdout if result.returncode == 0 else None


def ask(*command):
    """Return what a command prints. Raises UserError with its last line if it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise UserError(f"`{' '.join(command)}` failed: {(result.stderr.strip().splitlines() or ['no message'])[-1]}")
    return result.stdout
