"""Draw the figures, from other stages' outputs only.

Writes plots/{latency,accuracy,changes}.png and two small tables for `dvc plots diff`.

    python -m stages.plot plots/latency.png plots/accuracy.png ... (see dvc.yaml)
"""

import matplotlib.pyplot as plt

from stages.common.reporting import figures, latency_figure
from stages.common.reporting.results import load_results
from stages.common.workspace import read_params, run_main, whole_file, write_table


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


def main(latency_png, accuracy_png, changes_png, latency_csv, accuracy_csv):
    models, variants = list(read_params("models")), read_params("variants")
    results = load_results(".", models, variants)
    save_figure(latency_figure.latency_figure(results, variants), latency_png)
    save_figure(figures.accuracy_figure(results, variants), accuracy_png)
    save_figure(figures.changes_figure(results, variants), changes_png)
    write_table(latency_csv, ["row", "model", "variant", "batch", "time_ratio"], latency_rows(results, variants))
    write_table(
        accuracy_csv, ["row", "model", "variant", "accuracy_change_points", "changed"], accuracy_rows(results, variants)
    )
    print(f"plots/: {len(models)} networks, {len(variants)} variants, 3 figures")


if __name__ == "__main__":
    run_main(main)
