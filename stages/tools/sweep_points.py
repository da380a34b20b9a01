"""The points of a sweep: what `dvc exp show`, `dvc queue status` and each experiment's dvc.lock know of them."""

import json
import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from stages.common.workspace import UserError, parse_yaml
from stages.tools.lockfile import Lock

LOOKS, LOOK_SECONDS = 3, 2.0  # how often what seems lost is looked at, and the time in between
FINISHED, FAILED, LOST, RUNNING, WAITING = "finished", "failed", "lost", "running", "waiting"


@dataclass
class Point:
    """One experiment, or the commit that they all start from. `parameters`: {dotted key: value}, all of params.yaml.

    `results`: {(model, variant): metrics of the evaluation}, only those that the point's own parameters made;
    `md5`: the same for the bytes of the ONNX files. `reason`: why it failed, in the log's own words.
    """

    name: str
    state: str
    parameters: dict
    results: dict = field(default_factory=dict)
    md5: dict = field(default_factory=dict)
    reason: str = ""


def collect():
    """Return the Points of the current commit, the commit itself first, then its experiments, oldest first.

    While workers run, an experiment can end between two questions, and then seems lost, or takes its folder away while
    DVC reads it: what seems so is asked again.
    """
    for _ in range(LOOKS - 1):
        with suppress(UserError):
            points = points_now()
            if not any(point.state == LOST for point in points):
                return points
        time.sleep(LOOK_SECONDS)
    return points_now()


def points_now():
    """Return the Points as they seem in one look."""
    *_, commit = json.loads(ask("dvc", "exp", "show", "--json"))
    queue = ask("dvc", "queue", "status")
    working = "Worker status: 0 active, 0 idle" not in queue
    points = [finished_point(f"{commit['name'] or commit['rev'][:7]} (HEAD)", commit["rev"], commit["data"])]
    shown = {}
    for experiment in commit["experiments"] or []:
        shown.setdefault(experiment["name"], point_of(experiment, working))
    return points + list(shown.values())[::-1] + lost_points(queue, set(shown), commit["rev"])


def point_of(experiment, working):
    """Return the Point of an experiment of `dvc exp show --json`; `working`: is there a queue worker?

    DVC calls an experiment running for good when its process was killed.
    """
    last, executor = experiment["revs"][0], experiment["executor"] or {"state": "success"}
    if executor["state"] == "success":
        return finished_point(experiment["name"], last["rev"], last["data"])
    process = executor["local"] or {}
    state = {"failed": FAILED, "queued": WAITING, "running": RUNNING}[executor["state"]]
    if state == RUNNING and not (working and psutil.pid_exists(process.get("pid") or os.getpid())):
        state = LOST
    reason = last_words(process.get("log")) if state == FAILED else ""
    asked = parse_yaml(show_file(last["rev"], "params.yaml") or b"", "params.yaml")  # what the queue has in its stash
    return Point(experiment["name"] or last["rev"][:7], state, dict(flatten(asked)), reason=reason)


def finished_point(name, revision, data):
    """Return the Point of a commit. Results that are older than its parameters belong to another point: left out."""
    point = Point(name, FINISHED, parameters_of(data))
    lock = Lock(lambda path: show_file(revision, path))
    for path, content in data["metrics"].items():
        if path.startswith("metrics/evaluate/") and not lock.stale_because(path):
            for model, variants in content.get("data", {}).items():
                for variant, metrics in variants.items():
                    point.results[model, variant] = metrics
                    point.md5[model, variant] = lock.md5(f"models/{model}/onnx/{variant}.onnx")
    return point


def parameters_of(data):
    """Return {dotted key: value} of params.yaml in `dvc exp show`'s data; lists are values."""
    return dict(flatten(data["params"]["params.yaml"]["data"]))


def flatten(value, key=""):
    """Yield (dotted key, leaf) of nested dictionaries."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flatten(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def lost_points(queue, shown, head):
    """Return Points of tasks of this commit that the queue calls successful and of which no experiment is left."""
    points = []
    for line in queue.splitlines():
        task, name, *_, status = line.split() or ["", "", ""]
        if status == "Success" and name not in shown and git("rev-parse", f"{task}^1") == f"{head}\n".encode():
            points.append(Point(name, LOST, {}))
    return points


def last_words(log):
    """Return the error in the output of a failed run: a stage's own sentence if there is one, else DVC's first."""
    lines = Path(log).read_text(errors="replace").splitlines() if log and Path(log).exists() else []
    errors = [line for line in lines if line.lower().startswith("error")]
    return min(errors, key=lambda line: line.startswith("ERROR"), default="no error in its output, it was killed")


def show_file(revision, path):
    """Return the bytes of a Git-tracked file at a revision, or None."""
    return git("show", f"{revision}:{path}")


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


def varying(points):
    """Return the dotted keys of the parameters in which points differ."""
    known = [point.parameters for point in points if point.parameters]
    keys = dict.fromkeys(key for parameters in known for key in parameters)
    return [key for key in keys if len({json.dumps(parameters.get(key)) for parameters in known}) > 1]


def repeated(points):
    """Return lists of the names of points with equal parameters."""
    groups = {}
    for point in points:
        if point.parameters:
            groups.setdefault(json.dumps(point.parameters, sort_keys=True), []).append(point.name)
    return [names for names in groups.values() if len(names) > 1]


def distinct(points):
    """Return the points without those that have the parameters of an earlier one."""
    first = {}
    for point in points:
        first.setdefault(json.dumps(point.parameters, sort_keys=True), point)
    return list(first.values())
