"""Draw the figures and write the report, from other stages' outputs only.

Writes plots/{latency,accuracy,changes}.png, plots/report.md and two small tables for `dvc plots diff`.

    python -m stages.plot plots/latency.png plots/accuracy.png ... (see dvc.yaml)
"""

import csv
import io
from pathlib import Path

import matplotlib.pyplot as plt

from stages.common import figures
from stages.common.report import report
from stages.common.results import call_spread, load_results
from stages.common.workspace import read_metrics, read_params, run_main, whole_file, write_text


def latency_rows(results, variants):
    """Return rows (network, variant, batch, time_ratio): time relative to fp32, below 1 is faster."""
    return [
        [f"{model} {variant} b={batch}", model, variant, batch, round(1 / cell["speedup"], 4)]
        for model, found in results.items()
        for variant in variants
        for batch, cell in found["variants"][variant]["benchmark"].items()
    ]


def accuracy_rows(results, variants):
    """Return rows (row, model, variant, accuracy_change in percentage points, changed predictions)."""
    rows = []
    for model, found in results.items():
        for variant in variants:
            judged = found["variants"][variant]["evaluate"]
            if "accuracy_change" in judged:
                change = round(100 * judged["accuracy_change"], 4)
                rows.append([f"{model} {variant}", model, variant, change, judged["changed"]])
    return rows


def save_figure(figure, path):
    """Save a figure as PNG, with nothing in the file that depends on when it was drawn."""
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150, metadata={"Software": None})
    plt.close(figure)


def save_table(path, header, rows):
    """Save a table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_text(path, text.getvalue())


def failure_messages(folder, models, variants):
    """Return {model: lines of verify-load's text that tell of a file which fails or was not checked somewhere}."""
    lines = {}
    for model in models:
        texts = [(Path(folder) / model / f"{name}.txt").read_text(encoding="utf-8") for name in ["fp32", *variants]]
        lines[model] = [line for text in texts for line in text.splitlines() if " loads and runs " not in line]
    return lines


def main(latency_png, accuracy_png, changes_png, report_md, latency_csv, accuracy_csv):
    models, variants = list(read_params("models")), read_params("variants")
    machine = read_metrics("metrics/machine.json")
    results = load_results(".", models, variants)
    save_figure(figures.latency_figure(results, variants), latency_png)
    save_figure(figures.accuracy_figure(results, variants), accuracy_png)
    save_figure(figures.changes_figure(results, variants), changes_png)
    save_table(latency_csv, ["row", "model", "variant", "batch", "time_ratio"], latency_rows(results, variants))
    save_table(
        accuracy_csv, ["row", "model", "variant", "accuracy_change_points", "changed"], accuracy_rows(results, variants)
    )
    spreads = {model: call_spread(".", model) for model in models}
    messages = failure_messages("plots/verify-load", models, variants)
    write_text(report_md, report(results, variants, machine, spreads, messages))
    print(f"{report_md}: {len(models)} networks, {len(variants)} variants, 3 figures")


if __name__ == "__main__":
    run_main(main)
