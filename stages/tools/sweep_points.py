"""The points of a sweep: what Git, `dvc queue status` and each experiment's dvc.lock know of them.

Not `dvc exp show`: it loads the whole pipeline of every experiment, a second or two each.
"""

import json
import time
from dataclasses import dataclass, field

from stages.common.workspace import UserError, parse_yaml
from stages.tools.experiment_queue import FAILED as FAILED_TASK
from stages.tools.experiment_queue import QUEUED, SUCCESS, ask, git, last_words, tasks_of
from stages.tools.experiment_queue import RUNNING as RUNNING_TASK
from stages.tools.lockfile import Lock
from stages.tools.parameter_values import value_of

LOOKS, LOOK_SECONDS = 3, 2.0  # how often what seems lost is looked at, and the time in between
TAKEN = "a worker takes it when it is done with those before"
FINISHED, FAILED, LOST, RUNNING, WAITING = "finished", "failed", "lost", "running", "waiting"


@dataclass
class Point:
    """One experiment, or the commit that they all start from. `parameters`: {dotted key: value}, all of params.yaml.

    `results`: {(model, variant): metrics of the evaluation}, only those that the point's own parameters made;
    `md5`: the same for the bytes of the ONNX files. `reason`: why it has no result, of a failure in the log's own words.
    """

    name: str
    state: str
    parameters: dict
    results: dict = field(default_factory=dict)
    md5: dict = field(default_factory=dict)
    reason: str = ""


def collect():
    """Return the Points of the current commit, the commit itself first, then its experiments, oldest first.

    While workers run, an experiment can end between two questions, and then seems lost: what seems so is asked again,
    and is called lost only if it seemed so every time.
    """
    seemed = None
    for look in range(LOOKS):
        time.sleep(LOOK_SECONDS if look else 0)
        try:
            points = points_now()
        except UserError:  # what DVC was just reading went away
            if look == LOOKS - 1:
                raise
            continue
        lost = {point.name for point in points if point.state == LOST}
        seemed = lost if seemed is None else lost & seemed
        if not seemed:
            break
    for point in points:
        if point.state == LOST and point.name not in seemed:
            point.state = RUNNING
    return points


def points_now():
    """Return the Points as they seem in one look. Raises UserError outside of a repository."""
    head = ask("git", "rev-parse", "HEAD").strip()
    branch = git("symbolic-ref", "--short", "-q", "HEAD") or head[:7].encode()
    tasks = tasks_of(head)  # before the experiments: a task that has just ended has made one
    finished = dict(experiments(head))
    points = [finished_point(f"{branch.decode().strip()} (HEAD)", head)]
    points += [finished_point(name, revision) for name, revision in finished.items()]
    return points + [point_of(task) for task in reversed(tasks) if task.name not in finished]


def experiments(head):
    """Yield (name, commit) of the experiments that started from the commit `head`, oldest first."""
    listing = ask(
        "git",
        "for-each-ref",
        "--sort=creatordate",
        "--format=%(objectname) %(refname)",
        f"refs/exps/{head[:2]}/{head[2:]}",
    )
    for line in listing.splitlines():
        revision, reference = line.split()
        yield reference.rpartition("/")[2], revision


def point_of(task):
    """Return the Point of a Task of which there is no experiment: what it was asked for, and why it is not there."""
    state = {FAILED_TASK: FAILED, QUEUED: WAITING, RUNNING_TASK: RUNNING if task.lives else LOST, SUCCESS: LOST}[
        task.status
    ]
    reason = last_words(task.log) if state == FAILED else TAKEN if state == WAITING and task.lives else ""
    asked = parse_yaml(show_file(task.revision, "params.yaml") or b"", "params.yaml")
    return Point(task.name, state, dict(flatten(asked)), reason=reason)


def finished_point(name, revision):
    """Return the Point of a commit. Results that are older than its parameters belong to another point: left out."""
    params = parse_yaml(show_file(revision, "params.yaml") or b"", "params.yaml")
    point = Point(name, FINISHED, dict(flatten(params)))
    lock = Lock(lambda path: show_file(revision, path))
    for path in lock.outs:
        if path.startswith("metrics/evaluate/") and is_asked_for(path, params) and not lock.stale_because(path):
            for model, variants in parse_yaml(show_file(revision, path) or b"", path).items():
                for variant, metrics in variants.items():
                    point.results[model, variant] = metrics
                    point.md5[model, variant] = lock.md5(f"models/{model}/onnx/{variant}.onnx")
    return point


def is_asked_for(path, params):
    """Return whether parameters ask for the evaluation in `path`: DVC never takes a removed stage out of dvc.lock."""
    *_, model, file = path.split("/")
    variants = params.get("variants")
    return model in params.get("models", [model]) and (
        variants is None or file.removesuffix(".json") in ["fp32", *variants]
    )


def flatten(value, key=""):
    """Yield (dotted key, leaf) of nested dictionaries."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flatten(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def show_file(revision, path):
    """Return the bytes of a Git-tracked file at a revision, or None."""
    return git("show", f"{revision}:{path}")


def varying(points):
    """Return the dotted keys of the parameters in which points differ."""
    known = [point.parameters for point in points if point.parameters]
    keys = dict.fromkeys(key for parameters in known for key in parameters)
    return [key for key in keys if len({json.dumps(value_of(parameters, key)) for parameters in known}) > 1]


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
