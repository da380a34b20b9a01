"""Say which differences between two revisions are real.

    python -m stages.tools.compare                       HEAD with the workspace
    python -m stages.tools.compare main my-branch        branches, tags, commits, experiment names
    python -m stages.tools.compare --quantity accuracy --fail-on worse --json main

Accuracy: the stored predictions of a variant in A and in B for the same test images; exact McNemar test, Newcombe's
interval. Without labels what fp32 decides in A stands for them, and the row is one of agreement. Speedup: the per-round
ratios of the two benchmarks, on one machine only, with an interval as wide as what fp32 against itself seemed to change
(stages/tools/significance.py). The fp32 time itself is not compared: nothing in a run tells a slower model from a slower
hour. File size: the plain difference.

All p-values of a call are one family for Holm's correction: where nothing is really different, 5 % of calls print any
`better` or `worse`, as far as a control can know. `--quantity`, `--model` and `--variant` make the family smaller. The
intervals are for one row alone. A result that is older than its revision's parameters is not compared. Exit code with
`--fail-on worse`: 1 if a row is worse; 2 if one could not be compared, or for an error.
"""

import argparse
import csv
import io
import sys
from pathlib import PurePosixPath

import numpy as np

from stages.common.timing import round_medians
from stages.common.workspace import UserError
from stages.tools import comparison_report
from stages.tools.comparison import (
    BASELINE,
    CONTROL,
    IDENTICAL,
    NOT_COMPARED,
    OTHER_MACHINE,
    Row,
    accuracy_row,
    judge,
    size_row,
    speedup_rows,
)
from stages.tools.lockfile import lookup
from stages.tools.revisions import WORKSPACE, NotStored, Revision

MACHINE_KEYS = (
    "cpu.model",
    "cpu.revision",
    "cpu.isa",
    "cpu.physical_cores",
    "cpu.usable_cores",
    "packages.onnxruntime",
)
QUANTITIES = ("accuracy", "speedup", "size")


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
        if a.md5(path) == b.md5(path):  # one file: nothing has to be read but the metrics
            key, metrics = f"{model}.{variant}.accuracy", f"metrics/evaluate/{model}/{variant}.json"
            values = [lookup(revision.read_yaml(metrics), key) for revision in (a, b)]
            return Row(model, variant, "accuracy", *values, 0.0, verdict=IDENTICAL)
        reason = str(missing)
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
    sizes = [revision.size(f"models/{model}/onnx/{variant}.onnx") for revision in (a, b)]
    if None in sizes:
        return Row(model, variant, "size", *sizes, verdict=NOT_COMPARED, reason="one revision has no such ONNX file")
    return size_row(model, variant, *sizes)


def variants_of(revision):
    """Return the (model, variant) pairs of a Revision that have predictions."""
    paths = map(PurePosixPath, revision.outputs("models/*/predictions/*.npz"))
    return {(path.parts[1], path.stem) for path in paths}


def compare(a, b, *, models=(), variants=(), quantities=QUANTITIES):
    """Compare two Revisions; return (judged rows, (names only in A, names only in B)). Empty filters mean everything."""
    in_a, in_b = (
        {
            (model, variant)
            for model, variant in variants_of(revision)
            if model in (models or [model]) and variant in (variants or [variant])
        }
        for revision in (a, b)
    )
    rows, both = [], sorted(in_a & in_b, key=lambda pair: (pair[0], pair[1] != BASELINE, pair[1]))
    for model in dict.fromkeys(model for model, _ in both):
        names = [variant for of, variant in both if of == model]
        if "accuracy" in quantities:
            rows += [compare_accuracy(a, b, model, variant) for variant in names]
        if "speedup" in quantities:
            found = compare_speedups(a, b, model)
            rows += [row for row in found if not variants or row.variant in variants or row.b is None]
        if "size" in quantities:
            rows += [compare_sizes(a, b, model, variant) for variant in names]
    return judge(rows), tuple(sorted(map("/".join, only)) for only in (in_a - in_b, in_b - in_a))


def code_changes(revision, rows):
    """Return the files in Git that changed after the compared predictions of a Revision were made."""
    pairs = {(row.model, row.variant) for row in rows}
    paths = [f"models/{model}/predictions/{variant}.npz" for model, variant in pairs]
    return sorted({file for path in paths for file in revision.lock.code_changed(path)})


def exit_code(rows, fail_on):
    """Return 1 if a row has the verdict to fail on, 2 if one could not be compared or was refused, else 0."""
    verdicts = {row.verdict for row in rows}
    if fail_on is None:
        return 0
    return 1 if fail_on in verdicts else 2 if verdicts & {NOT_COMPARED, OTHER_MACHINE} else 0


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m stages.tools.compare", description=__doc__.split("\n")[0])
    parser.add_argument("a", nargs="?", default="HEAD", metavar="REV_A", help="branch, tag, commit or experiment; HEAD")
    parser.add_argument(
        "b", nargs="?", default=WORKSPACE, metavar="REV_B", help="the same, or `workspace`, the default"
    )
    parser.add_argument("--model", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--variant", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--quantity", action="append", choices=QUANTITIES, help="only this one; may be repeated")
    parser.add_argument("--json", action="store_true", help="print strict JSON, not a table")
    parser.add_argument("--fail-on", choices=["worse"], help="exit code 1 if any row has this verdict")
    options = parser.parse_args(arguments)
    try:
        a, b = Revision(options.a), Revision(options.b)
        filters = {"models": options.model, "variants": options.variant, "quantities": options.quantity or QUANTITIES}
        rows, only = compare(a, b, **filters)
        if not rows:
            known = ", ".join(sorted("/".join(pair) for pair in {*variants_of(a)} & {*variants_of(b)})) or "nothing"
            raise UserError(f"{a.name} and {b.name} have nothing of what was asked in common: both have {known}.")
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    write = comparison_report.as_json if options.json else comparison_report.report
    print(write(a, b, rows, only, (code_changes(a, rows), code_changes(b, rows))))
    sys.exit(exit_code(rows, options.fail_on))


if __name__ == "__main__":
    main()
