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
`better` or `worse` of accuracy. Of speedups more do, since the control, one file, is all that is known of the noise: 9 %
on a busy machine (significance.py). `--quantity`, `--model` and `--variant` make the family smaller. The
intervals are for one row alone. A result that is older than its revision's parameters is not compared. Exit code with
`--fail-on worse`: 1 if a row is worse; 2 if one could not be compared, or for an error.
"""

import argparse
import sys
from pathlib import PurePosixPath

from stages.common.workspace import UserError
from stages.tools import comparison_report
from stages.tools.compared_results import compare_accuracy, compare_sizes, compare_speedups
from stages.tools.comparison import BASELINE, NOT_COMPARED, OTHER_MACHINE, judge
from stages.tools.output import print_to_reader
from stages.tools.revisions import WORKSPACE, Revision

QUANTITIES = ("accuracy", "speedup", "size")


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
    parser.add_argument(
        "--fail-on", choices=["worse"], help="exit code 1 if any row has this verdict, 2 if one could not be compared"
    )
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
    print_to_reader(write(a, b, rows, only, (code_changes(a, rows), code_changes(b, rows))))
    sys.exit(exit_code(rows, options.fail_on))


if __name__ == "__main__":
    main()
