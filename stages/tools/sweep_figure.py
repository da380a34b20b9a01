"""Draw a sweep: the accuracy change of every variant against the parameter that was swept.

How to read it: a dot is a point of the sweep; its bar is the 95 % interval of the change against fp32 (Newcombe, paired),
which is what this many test images can tell. The grey line is no change. Dots that scatter less than the bars are long
differ by nothing that the test set can show; all points use the same images, so for two of them ask
`python -m stages.tools.compare`. A hollow dot is the commit itself.
"""

import json
import math

from stages.common.workspace import UserError, whole_file
from stages.tools.sweep_points import FINISHED, distinct, varying

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito's, for every kind of eye
COLUMNS = 3


def draw(points, path, parameter=None, models=(), variants=()):
    """Write the figure of Points to `path`; return a sentence about it. Raises UserError for a parameter that is constant."""
    keys = varying(points)
    if parameter is not None and parameter not in keys:
        raise UserError(
            f"`{parameter}` is the same in all points: sweep it, or take one of {', '.join(keys) or 'none'}."
        )
    parameter = parameter or most_values(points, keys)
    if parameter is None:
        return "no parameter varies: no figure"
    chosen = along(points, parameter, keys)
    panels = {
        pair: [point for point in chosen if "accuracy_change" in point.results.get(pair, {})]
        for pair in dict.fromkeys(pair for point in chosen for pair in point.results)
        if pair[0] in (models or [pair[0]]) and pair[1] in (variants or [pair[1]])
    }
    panels = {
        pair: own for pair, own in panels.items() if len({point.md5[pair] for point in own}) > 1
    }  # a file that no point changed is a row of equal dots
    if not panels:
        return "no variant differs between points: no figure"
    save(panels, parameter, path)
    left_out = sum(point.state == FINISHED for point in distinct(points)) - len(chosen)
    return f"\n{path}: {len(panels)} panel{'s' * (len(panels) > 1)} against {parameter}" + (
        f"; {left_out} points that differ from the commit in other parameters are left out" if left_out else ""
    )


def most_values(points, keys):
    """Return the key with the most different values, or None."""
    counts = {key: len({json.dumps(point.parameters.get(key)) for point in points}) for key in keys}
    return max(counts, key=counts.get, default=None)


def along(points, parameter, keys):
    """Return the different finished points that equal the first, the commit, in all but one parameter."""
    others = [key for key in keys if key != parameter]
    same = [
        point for point in points if all(point.parameters.get(key) == points[0].parameters.get(key) for key in others)
    ]
    return [point for point in distinct(same) if point.state == FINISHED]


def positions(values):
    """Return x positions and tick labels: numbers where all values are numbers, else their order."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return list(values), None
    names = list(dict.fromkeys(map(str, values)))
    return [names.index(str(value)) for value in values], names


def save(panels, parameter, path):
    """Draw a panel a variant, all on one scale, and write the file whole."""
    import matplotlib  # noqa: PLC0415 -- half a second that a table without a figure need not pay

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415 -- as above

    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(1 + 3.6 * columns, 1 + 2.4 * rows), sharex=True, sharey=True, squeeze=False, dpi=150
    )
    variants = list(dict.fromkeys(variant for _, variant in panels))
    for axis, ((model, variant), own) in zip(axes.flat, panels.items(), strict=False):
        panel(axis, own, (model, variant), parameter, COLORS[variants.index(variant) % len(COLORS)])
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for column in range(columns):  # below a column that ends early, the last visible panel has the ticks
        last = [row for row in range(rows) if row * columns + column < len(panels)][-1]
        axes[last, column].set_xlabel(parameter)
        axes[last, column].tick_params(labelbottom=True)
    for axis in axes[:, 0]:
        axis.set_ylabel("change, points")
    figure.suptitle("Accuracy change against fp32\n95 % interval of the test set; hollow: the commit", fontsize=9)
    figure.tight_layout()
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png")
    pyplot.close(figure)


def panel(axis, own, pair, parameter, color):
    """Draw one variant's points, the commit (the first point of a sweep) hollow."""
    results = [point.results[pair] for point in own]
    x, names = positions([point.parameters[parameter] for point in own])
    change = [100 * result["accuracy_change"] for result in results]
    reach = [
        [100 * (result["accuracy_change"] - result["change_low"]) for result in results],
        [100 * (result["change_high"] - result["accuracy_change"]) for result in results],
    ]
    axis.axhline(0, color="0.6", linewidth=1, zorder=0)
    axis.errorbar(x, change, yerr=reach, fmt="none", ecolor=color, elinewidth=1.2, alpha=0.6)
    faces = ["white" if point.name.endswith("(HEAD)") else color for point in own]
    axis.scatter(x, change, s=28, facecolors=faces, edgecolors=color, zorder=3)
    axis.set_title(" ".join(pair), fontsize=9)
    axis.tick_params(labelsize=8)
    if names is not None:
        axis.set_xticks(range(len(names)), names)
    elif all(isinstance(value, int) for value in x):
        axis.xaxis.get_major_locator().set_params(integer=True)
