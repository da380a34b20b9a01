"""What the other stages measured, gathered from their files for figures, report and README table."""

from pathlib import Path

import pandas as pd

from stages.common.statistics.intervals import wilson_interval
from stages.common.workspace import read_metrics

BASELINE, CONTROL = "fp32", "fp32-again"


def load_results(root, models, variants):
    """Return {model: {variant: {verify, evaluate, benchmark}}} with the baseline first, then `variants` in order.

    `benchmark` is {batch: {median_ms, speedup, speedup_low, speedup_high}} with integer batch sizes, empty where the
    variant was not timed; `same_file_as` is there where another variant's file has the same bytes and was timed for both.
    Also under each model: `conditions`, the benchmark's other numbers, and its control.
    """
    root = Path(root)
    return {model: _load_model(root, model, variants) for model in models}


def _load_model(root, model, variants):
    timed = read_metrics(root / "metrics" / "benchmark" / f"{model}.json")[model]
    found = {}
    for variant in [BASELINE, *variants]:
        found[variant] = {
            "verify": read_metrics(root / "metrics" / "verify-load" / model / f"{variant}.json")[model][variant],
            "evaluate": read_metrics(root / "metrics" / "evaluate" / model / f"{variant}.json")[model][variant],
            "benchmark": _by_batch(timed.get(variant, {})),
        }
        if same := timed.get(variant, {}).get("same_file_as"):
            found[variant]["same_file_as"] = BASELINE if same == CONTROL else same
    conditions = {key: value for key, value in timed.items() if not isinstance(value, dict)}
    return {"variants": found, "control": _by_batch(timed[CONTROL]), "conditions": conditions}


def _by_batch(cells):
    return {int(name.removeprefix("batch_")): cell for name, cell in cells.items() if name.startswith("batch_")}


def is_labelled(found):
    """Return whether the test images of a network's results have labels; else it has agreement and no accuracy."""
    return "accuracy" in found["variants"][BASELINE]["evaluate"]


def agreement(judged):
    """Return (share, low, high) of a variant's predictions that are fp32's, with Wilson's 95 % interval."""
    same = judged["images"] - judged["changed"]
    return same / judged["images"], *wilson_interval(same, judged["images"])


def call_spread(root, model):
    """Return a table of the timed calls: variant, batch, calls, p5_ms, median_ms, p95_ms, worst_ms."""
    calls = pd.read_csv(Path(root) / "plots" / "benchmark" / f"{model}.csv")
    groups = calls.groupby(["variant", "batch"], sort=False)["nanoseconds"]
    table = groups.quantile([0.05, 0.5, 0.95]).unstack() / 1e6
    table.columns = ["p5_ms", "median_ms", "p95_ms"]
    return table.assign(worst_ms=groups.max() / 1e6, calls=groups.size()).reset_index()


def verdict(cell):
    """Return "faster", "slower" or "undecided" for a benchmark cell: undecided where the interval holds 1."""
    if cell["speedup_low"] > 1:
        return "faster"
    return "slower" if cell["speedup_high"] < 1 else "undecided"
