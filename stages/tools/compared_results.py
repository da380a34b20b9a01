"""Results of two revisions, brought together where they may be: the rows of a comparison, from files as they are stored.

What is older than its parameters, of other images or of another machine becomes a row that says so.
"""

import csv
import io

import numpy as np

from stages.common.timing import round_medians
from stages.common.workspace import UserError
from stages.tools.comparison import (
    BASELINE,
    CONTROL,
    IDENTICAL,
    NOT_COMPARED,
    OTHER_MACHINE,
    Row,
    accuracy_row,
    size_row,
    speedup_rows,
)
from stages.tools.lockfile import lookup
from stages.tools.revisions import NotStored

MACHINE_KEYS = (
    "cpu.model",
    "cpu.revision",
    "cpu.isa",
    "cpu.physical_cores",
    "cpu.usable_cores",
    "packages.onnxruntime",
)


def compare_accuracy(a, b, model, variant):
    """Return the Row of a variant's accuracy in two Revisions, from predictions, labels and images as they are stored."""
    path = f"models/{model}/predictions/{variant}.npz"
    data = [f"data/{revision.read_yaml('params.yaml').get('dataset')}" for revision in (a, b)]
    try:
        refuse_stale(a, b, path)
        if a.md5(f"{data[0]}/test-images.npy") != b.md5(f"{data[1]}/test-images.npy"):
            raise UserError(f"the test images of {a.name} and {b.name} are not the same")
        before, after = a.read_array(path, "logits"), b.read_array(path, "logits")
        labels, other_labels = (
            revision.read_array(f"{folder}/test-labels.npy") for revision, folder in zip((a, b), data, strict=True)
        )
        if len(before) and len(after) and len(before) != len(after):
            raise UserError(f"{len(before):,} images were evaluated in {a.name} and {len(after):,} in {b.name}")
        if not np.array_equal(labels, other_labels):
            raise UserError(f"the test labels of {a.name} and {b.name} are not the same")
        quantity = "accuracy"
        if len(labels) == 0 and len(before):  # not known: what fp32 says in A stands for them
            quantity, labels = (
                "agreement",
                a.read_array(f"models/{model}/predictions/{BASELINE}.npz", "logits").argmax(1),
            )
        return accuracy_row(model, variant, before, after, labels[: len(before)], quantity)
    except NotStored as missing:
        labels = [revision.md5(f"{folder}/test-labels.npy") for revision, folder in zip((a, b), data, strict=True)]
        if a.md5(path) == b.md5(path) and labels[0] == labels[1]:  # nothing has to be read but the metrics
            key, metrics = f"{model}.{variant}.accuracy", f"metrics/evaluate/{model}/{variant}.json"
            values = [lookup(revision.read_yaml(metrics), key) for revision in (a, b)]
            quantity = "agreement" if None in values else "accuracy"
            return Row(model, variant, quantity, *values, 0.0, verdict=IDENTICAL)
        same = a.md5(path) == b.md5(path)
        reason = f"the test labels of {a.name} and {b.name} are not the same" if same else str(missing)
    except UserError as error:
        reason = str(error)
    return Row(model, variant, "accuracy", verdict=NOT_COMPARED, reason=reason)


def compare_speedups(a, b, model):
    """Return the Rows of a model's benchmark in two Revisions, or one Row with the reason why they are not comparable."""
    path, row = f"plots/benchmark/{model}.csv", Row(model, "all variants", "speedup")
    row.reason = different_machine(a, b)
    if row.reason:
        row.verdict = OTHER_MACHINE
        return [row]
    try:
        refuse_stale(a, b, path)
        before, after = read_calls(a, path), read_calls(b, path)
        medians = [with_copies(round_medians(calls), of, model) for calls, of in ((before, a), (after, b))]
    except (UserError, NotStored) as error:
        row.verdict, row.reason = NOT_COMPARED, str(error)
        return [row]
    if before == after:
        row.verdict = IDENTICAL
        return [row]
    return speedup_rows(model, *medians)


def with_copies(medians, revision, model):
    """Return a benchmark's medians with those of variants whose file was timed under another variant's name."""
    metrics = revision.read_yaml(f"metrics/benchmark/{model}.json").get(model, {})
    copies = {
        (name, batch): times
        for name, found in metrics.items()
        if isinstance(found, dict)
        for (timed, batch), times in medians.items()
        if found.get("same_file_as") == timed
    }
    return medians | copies


def read_calls(revision, path):
    """Return the calls of a benchmark as `round_medians` wants them. Raises UserError if noise cannot be told from them."""
    lines = list(csv.reader(io.StringIO(revision.read(path).decode("utf-8"))))[1:]
    rows = [
        (int(round_number), int(position), variant, int(batch), int(call), int(nanoseconds))
        for round_number, position, variant, batch, call, nanoseconds in lines
    ]
    for needed in (BASELINE, CONTROL):
        if len({row[0] for row in rows if row[2] == needed}) < 2:
            raise UserError(f"{path} of {revision.name} has not two rounds of {needed}, without which noise is unknown")
    return rows


def refuse_stale(a, b, path):
    """Raise UserError if the file is not what one of the Revisions' parameters would make."""
    for revision in (a, b):
        reason = revision.lock.stale_because(path)
        if reason:
            raise UserError(f"out of date in {revision.name}, `dvc repro` there makes it again: {reason}")


def different_machine(a, b):
    """Return the first key of metrics/machine.json in which two Revisions differ, in words, or an empty string."""
    facts = [revision.read_yaml("metrics/machine.json") for revision in (a, b)]
    for key in MACHINE_KEYS:
        before, after = (lookup(fact, key) for fact in facts)
        unknown = key == "cpu.revision" and None in (before, after)  # results from before it was written down
        if not unknown and (before != after or before is None):
            return f"{key} is {before} in {a.name} and {after} in {b.name}: a speedup belongs to its machine"
    return ""


def compare_sizes(a, b, model, variant):
    """Return the Row of a variant's file size in two Revisions."""
    try:
        refuse_stale(a, b, f"models/{model}/onnx/{variant}.onnx")
    except UserError as error:
        return Row(model, variant, "size", verdict=NOT_COMPARED, reason=str(error))
    sizes = [revision.size(f"models/{model}/onnx/{variant}.onnx") for revision in (a, b)]
    if None in sizes:
        return Row(model, variant, "size", *sizes, verdict=NOT_COMPARED, reason="one revision has no such ONNX file")
    return size_row(model, variant, *sizes)
