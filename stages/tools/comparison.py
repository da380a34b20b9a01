"""What is compared and what is said of it: rows of a comparison, made from arrays, judged together."""

from dataclasses import dataclass

import numpy as np

from stages.common.statistics.multiple import SIGNIFICANCE, holm
from stages.common.statistics.paired import compare as compare_predictions
from stages.tools.significance import run_difference

BASELINE, CONTROL = "fp32", "fp32-again"
BETTER, WORSE, NO_DIFFERENCE, IDENTICAL = "better", "worse", "no difference found", "identical"
NOT_COMPARED, OTHER_MACHINE = "not compared", "other machine"


@dataclass
class Row:
    """One comparison of A with B.

    `quantity`: "accuracy", or without labels "agreement" (fractions; the difference is B - A), "speedup batch_<b>" (fp32
    time / variant time; B / A - 1), "size" (bytes; B - A), or "works" (1 or 0), where a variant does not run in A or in
    B. `low` and `high` are the difference's 95 % interval, `p` its own p-value, `adjusted_p` Holm's; `reason` says why a
    row is not compared.
    """

    model: str
    variant: str
    quantity: str
    a: float | None = None
    b: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    adjusted_p: float | None = None
    verdict: str = ""
    reason: str = ""


def judge(rows):
    """Fill in `adjusted_p` and `verdict` of the rows that have a p-value, as one family; return the rows."""
    tested = [row for row in rows if row.p is not None]
    for row, adjusted in zip(tested, holm([row.p for row in tested]), strict=True):
        row.adjusted_p, row.verdict = adjusted, NO_DIFFERENCE
        if adjusted < SIGNIFICANCE:
            row.verdict = BETTER if row.difference > 0 else WORSE
    return rows


def accuracy_row(model, variant, before, after, labels, quantity="accuracy"):
    """Compare logits of A with logits of B, both (N, classes), for labels (N,); no logits: the variant does not work."""
    if not (len(before) and len(after)):
        works = [int(len(logits) > 0) for logits in (before, after)]
        verdict = WORSE if works[1] < works[0] else BETTER if works[1] else IDENTICAL
        return Row(model, variant, "works", *works, works[1] - works[0], verdict=verdict)
    found = compare_predictions(after, before, labels)
    row = Row(model, variant, quantity, float((before.argmax(1) == labels).mean()), found["accuracy"])
    row.difference = found["accuracy_change"]
    if np.array_equal(before, after):
        row.verdict = IDENTICAL
    else:
        row.low, row.high, row.p = found["change_low"], found["change_high"], found["mcnemar_p"]
    return row


def speedup_rows(model, before, after):
    """Compare two benchmarks, each {(variant, batch): medians (rounds,)}; what only one of them has is left out."""
    rows = []
    for variant, batch in sorted(before):
        if variant not in (BASELINE, CONTROL) and (variant, batch) in after:
            logs, controls = (
                [np.log(run[BASELINE, batch] / run[name, batch]) for run in (before, after)]
                for name in (variant, CONTROL)
            )
            difference, low, high, p = run_difference(*logs, *controls)
            a, b = (float(np.exp(log.mean())) for log in logs)
            change = [float(np.expm1(value)) for value in (difference, low, high)]
            rows.append(Row(model, variant, f"speedup batch_{batch}", a, b, *change, p))
    return rows


def size_row(model, variant, before, after):
    """Compare two file sizes in bytes: a plain difference, in which there is no noise."""
    verdict = "larger" if after > before else "smaller" if after < before else IDENTICAL
    return Row(model, variant, "size", before, after, after - before, verdict=verdict)
