"""Draw the change of accuracy against the number of calibration images, one dot a calibration draw.

How to read it. Each dot is the same recipe calibrated on other images; the dots of a column differ in nothing else, so
their height is what the draw alone does to accuracy, and a bar is their mean. The band is the test set's own doubt about
the recipe as it is in params.yaml (the diamond), Newcombe's 95 % interval: a difference between two variants that is
smaller than the dots scatter may be the draw, and one that is smaller than the band cannot be told from none on this test
set. Columns that get narrower from left to right say that more calibration images steady the result; columns of the same
height say that they do not. A column of more than half of all training images (which its tick then counts) is narrow by
construction, and of all of them there is one draw only. A column that lies lower costs accuracy. Without labels the height is the agreement with
fp32: the share of predictions that are its own.

    python -m stages.plot_sensitivity cnn static-u8s8 metrics/sensitivity/cnn.json ... (see dvc.yaml)
"""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from stages.common.draws import nearest_count, share_of_pool
from stages.common.workspace import read_metrics, run_main, whole_file

BLUE, SKY_BLUE, VERMILION, GREY = (
    "#0072B2",
    "#56B4E9",
    "#D55E00",
    "#666666",
)  # Okabe and Ito's; grey for what is not data
WIDTH = 0.16  # of a column, in decades of the number of images


ACCURACY = {
    "column": "accuracy_change",
    "keys": ("change_low", "change_high"),
    "mean": "mean_change",
    "axis": "change of accuracy from fp32\n(percentage points)",
    "band": "95 % interval of the recipe's change (test set)",
}
AGREEMENT = {
    "column": "argmax_agreement",
    "keys": ("agreement_low", "agreement_high"),
    "mean": "mean_agreement",
    "axis": "predictions that are fp32's\n(%)",
    "band": "95 % interval of the recipe's agreement (test set)",
}


def quantity_of(metrics):
    """Return what was measured over the draws: the accuracy change, or without labels the agreement with fp32."""
    return ACCURACY if "change_low" in metrics["recipe"] else AGREEMENT


def draw_figure(title, draws, metrics):
    """Return the figure. `draws`: fields images, seed, and what is measured; `metrics`: those of the variant."""
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    recipe, counts, quantity = metrics["recipe"], np.unique(draws["images"]), quantity_of(metrics)
    low, high = (100 * recipe[key] for key in quantity["keys"])
    axes.axhspan(low, high, color=SKY_BLUE, alpha=0.2, linewidth=0, label=quantity["band"])
    axes.axhline(0 if quantity is ACCURACY else 100, color=GREY, linewidth=0.8)
    last = draws["seed"].max()

    def place(images, seed):
        """Return where a draw of a column stands: side by side, in the order of seeds."""
        return images * 10 ** (WIDTH * (np.minimum(seed / last, 1) - 0.5))

    changes = 100 * draws[quantity["column"]]
    axes.scatter(
        place(draws["images"], draws["seed"]),
        changes,
        s=18,
        color=BLUE,
        alpha=0.7,
        linewidth=0,
        label="one calibration draw",
    )
    means = [100 * metrics[f"images_{count}"][quantity["mean"]] for count in counts]
    edges = counts * 10 ** (-WIDTH / 2), counts * 10 ** (WIDTH / 2)
    axes.hlines(means, *edges, color="black", linewidth=1.5, label="mean of the draws")
    own = recipe["images"] if recipe["images"] not in counts else place(recipe["images"], recipe["seed"])
    axes.plot(own, 100 * recipe[quantity["column"]], "D", color=VERMILION, markersize=6, label="the recipe's own draw")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(np.union1d(counts, recipe["images"])))
    axes.set_xlim(right=max(axes.get_xlim()[1], recipe["images"] * 10**WIDTH))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda images, _: tick_of(images, metrics)))
    axes.set_xlabel("calibration images (log scale)")
    axes.set_ylabel(quantity["axis"])
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def tick_of(images, metrics):
    """Return a number of images for the axis, with how many there are where it is most of them: draws then are alike."""
    share = share_of_pool(metrics, images)
    return f"{images:,.0f}" + ("\n(all)" if share == 1 else f"\n(of {metrics['available']:,})" if share > 0.5 else "")


def title_of(model, variant, metrics):
    """Return what is seen, the draw's share beside the test set's, and below it what these two numbers are."""
    nearest = nearest_count(metrics)
    low, high = (metrics["recipe"][key] for key in quantity_of(metrics)["keys"])
    half, what = (high - low) / 2, "accuracy" if quantity_of(metrics) is ACCURACY else "agreement"
    if nearest is None:
        return (
            f"Draws of all {metrics['available']:,} images are the same; other test images move {what} by ±{100 * half:.2f} points\n"
            f"{model} {variant}: 95 % interval from {metrics['test_images']:,}"
        )
    of_draws = metrics[f"images_{nearest}"]
    of = f" of {metrics['available']:,}" if share_of_pool(metrics, nearest) > 0.5 else ""
    return (
        f"Other calibration images move {what} by ±{200 * of_draws['spread']:.2f} points, other test images by ±{100 * half:.2f}\n"
        f"{model} {variant}: two standard deviations over {of_draws['seeds']} draws of {nearest:,}{of} images; 95 % interval from {metrics['test_images']:,}"
    )


def main(model, variant, metrics_path, draws_path, figure_path):
    metrics = read_metrics(metrics_path)[model][variant]
    columns = ("images", "seed", quantity_of(metrics)["column"])
    draws = np.genfromtxt(draws_path, delimiter=",", names=True, usecols=columns, dtype=None)
    figure = draw_figure(title_of(model, variant, metrics), draws, metrics)
    with whole_file(figure_path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})
    print(f"{figure_path}: {len(draws)} draws")


if __name__ == "__main__":
    run_main(main)
