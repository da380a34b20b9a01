"""Draw a sweep: the accuracy change of every variant against the parameter that was swept.

How to read it: a dot is a point of the sweep; its bar is the 95 % interval of the change against fp32 (Newcombe, paired),
which is what this many test images can tell. Where points differ in further parameters, too, each combination of those has
a colour and a form, named below, and its dots stand a little beside their value on the axis. The grey line is no change. Dots that scatter less than the bars are long
differ by nothing that the test set can show; all points use the same images, so for two of them ask
`python -m stages.tools.compare`. A hollow dot is the commit itself.
"""

import itertools
import json
import math

import numpy as np

from stages.common.workspace import UserError, whole_file
from stages.tools.parameter_values import value_of
from stages.tools.sweep_points import FINISHED, distinct, varying

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito's, for every kind of eye
STYLES = [(color, marker) for marker in "os" for color in COLORS]
MOST_SERIES = len(STYLES)
WIDTH = 0.4  # of the least distance of two values: where the dots of all groups lie
COLUMNS = 3


def draw(points, path, parameter=None, models=(), variants=()):
    """Write the figure of Points to `path`; return a sentence about it. Raises UserError for a parameter that is no axis."""
    keys = varying(points)
    if parameter is not None and parameter not in keys:
        what = (
            f"`{parameter}` is the same in all points: sweep it"
            if any(parameter in point.parameters for point in points)
            else f"no point has a parameter `{parameter}`: look at its name in params.yaml"
        )
        instead = f", or take one of {', '.join(keys)}" if keys else ""
        raise UserError(f"{what}{instead}.")
    parameter = parameter or most_values(points, keys)
    if parameter is None:
        return "no parameter varies: no figure"
    finished = [point for point in distinct(points) if point.state == FINISHED]
    panels = {
        pair: [point for point in finished if "accuracy_change" in point.results.get(pair, {})]
        for pair in dict.fromkeys(pair for point in finished for pair in point.results)
        if pair[0] in (models or [pair[0]]) and pair[1] in (variants or [pair[1]])
    }
    panels = {pair: own for pair, own in panels.items() if len(own) > 1}
    if not panels:
        return "no variant has an accuracy change in two different points: no figure"
    panels = {
        pair: own for pair, own in panels.items() if len({point.md5[pair] for point in own}) > 1
    }  # a file that no point changed is a row of equal dots
    if not panels:
        return "every variant has the same file in all points: no figure"
    drawn = points_of(panels)
    groups = series(drawn, [key for key in varying(drawn) if key != parameter])
    largest = sorted(groups, key=lambda name: -len(groups[name]))[:MOST_SERIES]
    shown = {name: group for name, group in groups.items() if name in largest}
    save(panels, shown, parameter, path)
    left_out = len(drawn) - sum(map(len, shown.values()))
    return f"\n{path}: {len(panels)} panel{'s' * (len(panels) > 1)} against {parameter}" + (
        f"; {left_out} of {len(drawn)} points are left out, since their other parameters have more than {MOST_SERIES} combinations"
        if left_out
        else ""
    )


def most_values(points, keys):
    """Return the key with the most different values, or None."""
    counts = {key: len({json.dumps(value_of(point.parameters, key)) for point in points}) for key in keys}
    return max(counts, key=counts.get, default=None)


def series(points, others):
    """Return {what they have in common: points} of points that are equal in all parameters but the one on the axis.

    `others`: the further parameters in which points differ.
    """
    groups = {}
    for point in points:
        groups.setdefault(" ".join(f"{key}={value_of(point.parameters, key)}" for key in others), []).append(point)
    return groups


def points_of(panels):
    """Return the Points of all panels, each once."""
    return list({id(point): point for own in panels.values() for point in own}.values())


def positions(values):
    """Return x positions and tick labels: numbers where all values are numbers, else their order."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return list(values), None
    names = list(dict.fromkeys(map(str, values)))
    return [names.index(str(value)) for value in values], names


def save(panels, groups, parameter, path):
    """Draw a panel a variant, all on one scale, and write the file whole. `groups`: as `series` returns them."""
    import matplotlib  # noqa: PLC0415 -- half a second that a table without a figure need not pay

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415 -- as above

    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    legend = 0.25 * (len(groups) if len(groups) > 1 else 0)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(1 + 3.6 * columns, 1 + 2.4 * rows + legend), sharex=True, sharey=True, squeeze=False,
        dpi=150, layout="constrained",
    )  # fmt: skip
    drawn = points_of(panels)
    places, names = positions([value_of(point.parameters, parameter) for point in drawn])  # the panels share their axis
    place_of = {id(point): place for point, place in zip(drawn, places, strict=True)}
    for axis, (pair, own) in zip(axes.flat, panels.items(), strict=False):
        panel(axis, {id(point): place_of[id(point)] for point in own}, pair, groups)
        if names is not None:
            axis.set_xticks(range(len(names)), names)
        elif all(isinstance(value, int) for value in places):
            axis.xaxis.get_major_locator().set_params(integer=True)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for column in range(columns):  # below a column that ends early, the last visible panel has the ticks
        last = [row for row in range(rows) if row * columns + column < len(panels)][-1]
        axes[last, column].set_xlabel(parameter)
        axes[last, column].tick_params(labelbottom=True)
    for axis in axes[:, 0]:
        axis.set_ylabel("change, points")
    figure.suptitle("Accuracy change against fp32\n95 % interval of the test set; hollow: the commit", fontsize=9)
    if len(groups) > 1:
        marks = [
            pyplot.Line2D([], [], color=color, marker=marker, linestyle="", label=name)
            for name, (color, marker) in zip(groups, STYLES, strict=False)
        ]
        figure.legend(handles=marks, loc="outside lower center", fontsize=7, frameon=False)
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png")
    pyplot.close(figure)


def panel(axis, place_of, pair, groups):
    """Draw one variant's points, a colour and a form for each group, the commit (the first point of a sweep) hollow.

    `place_of`: {id of a Point: where on the axis} of those that have the variant.
    """
    gaps = [right - left for left, right in itertools.pairwise(sorted(set(place_of.values())))]
    axis.axhline(0, color="0.6", linewidth=1, zorder=0)
    for number, (group, (color, marker)) in enumerate(zip(groups.values(), STYLES, strict=False)):
        here = [point for point in group if id(point) in place_of]
        if not here:
            continue
        shift = min(gaps, default=0) * WIDTH * ((number + 0.5) / len(groups) - 0.5)  # bars side by side
        x = [place_of[id(point)] + shift for point in here]
        low, middle, high = (
            [100 * point.results[pair][key] for point in here]
            for key in ("change_low", "accuracy_change", "change_high")
        )
        reach = [np.subtract(middle, low), np.subtract(high, middle)]
        axis.errorbar(x, middle, yerr=reach, fmt="none", ecolor=color, elinewidth=1.2, alpha=0.6)
        faces = ["white" if point.name.endswith("(HEAD)") else color for point in here]
        axis.scatter(x, middle, s=28, marker=marker, facecolors=faces, edgecolors=color, zorder=3)
    axis.set_title(" ".join(pair), fontsize=9)
    axis.tick_params(labelsize=8)
