"""Draw every recipe that the search tried, by time, size and accuracy.

How to read it. A dot is a recipe, left of the line at 1 it is faster than fp32, and lower is smaller; the stepped line
joins those that no other beats in both. Blue dots keep the accuracy on the validation images, vermilion ones may not,
open ones were too slow to be asked. The star is what `tuned` is. On the right are those whose predictions were compared,
by the change of their accuracy: the bar ends where its 95 % interval does, and has to end above the dashed line. A
vermilion bar that does is of a point that was asked among others, and had to show it with more confidence, as the table
says.
A square was written by hand. Where params.yaml gives the recipe, there is no other dot.

    python -m stages.plot_tune cnn metrics/tune/cnn.json plots/tune/cnn.csv plots/explain/cnn-recipes.png
"""

import csv
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from stages.common.workspace import read_metrics, run_main, whole_file

HOLDS, FAILS, GREY = "#0072B2", "#D55E00", "#666666"  # Okabe and Ito's; grey for what was not compared

TICKS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.5, 2, 3, 4, 6, 10, 20)
FINE_TICKS = tuple(tenths / 10 for tenths in range(3, 25))  # where no point is twice as slow as another


def read_points(path):
    """Return the timed points of the table: {name, hand_written, chosen, time, size_kib, change, low, inaccurate}, in its order.

    `time`: relative to fp32, of the rounds where there were some, else of the screening; `change` and `low` in points,
    None where predictions were not compared.
    """
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["screened_time_ratio"]]
    return [
        {
            "name": row["point"],
            "hand_written": row["origin"] == "hand-written",
            "chosen": row["outcome"] == "chosen",
            "time": float(row["time_ratio"] or row["screened_time_ratio"]),
            "size_kib": int(row["size_bytes"]) / 1024,
            "change": 100 * float(row["accuracy_change"]) if row["accuracy_change"] else None,
            "low": 100 * float(row["change_low"]) if row["change_low"] else None,
            "inaccurate": row["outcome"] == "inaccurate",
        }
        for row in rows
    ]


def front(points):
    """Return the (time, size) of points that no other beats in both, from the fastest to the smallest."""
    found = []
    for time, size in sorted((point["time"], point["size_kib"]) for point in points):
        if not found or size < found[-1][1]:
            found.append((time, size))
    return found


def ticks(points):
    """Return the ticks of the axis of time, which fp32's 1 is always on."""
    times = [1.0, *(point["time"] for point in points)]
    return FINE_TICKS if points and max(times) < 2 * min(times) else TICKS


def draw_figure(model, points, metrics):
    """Return the figure; `metrics` are tune's of the model."""
    figure = Figure(figsize=(11, 4.6), dpi=150, layout="constrained")
    sizes, changes = figure.subplots(1, 2, sharex=True)
    most = -metrics["max_drop"]
    for point in points:
        colour = (
            GREY if point["change"] is None else HOLDS if point["low"] >= most and not point["inaccurate"] else FAILS
        )
        style = {"marker": "*" if point["chosen"] else "s" if point["hand_written"] else "o", "color": colour, "ls": ""}
        style |= {"ms": 17 if point["chosen"] else 7, "zorder": 4 if point["chosen"] else 3}
        style |= {"mec": "white" if point["chosen"] else colour, "mfc": "none" if point["change"] is None else colour}
        sizes.plot(point["time"], point["size_kib"], **style)
        if point["change"] is not None:
            changes.plot([point["time"]] * 2, [point["change"], point["low"]], color=colour, lw=1)
            changes.plot(point["time"], point["change"], **style)
    if points:
        sizes.step(*zip(*front(points), strict=True), where="post", color=GREY, lw=1)
    sizes.plot(1, metrics["fp32_size_bytes"] / 1024, "D", color="black", ms=7)
    sizes.annotate(
        "fp32", (1, metrics["fp32_size_bytes"] / 1024), (8, 0), textcoords="offset points", va="center", fontsize=9
    )
    changes.plot(1, 0, "D", color="black", ms=7)
    changes.axhline(most, color=GREY, ls="--", lw=1)
    changes.axhline(0, color=GREY, lw=0.6)
    for axes in (sizes, changes):
        axes.axvline(1, color="black", lw=0.8)
        axes.set_xscale("log")
        if not points:  # of fp32 alone matplotlib makes no limits
            axes.set_xlim(0.5, 2)
        axes.xaxis.set_major_locator(FixedLocator(ticks(points)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(f"time relative to fp32 at batch {metrics['batch']} (log scale)")
        axes.spines[["top", "right"]].set_visible(False)
    sizes.set_ylabel("file size (KiB)")
    sizes.set_ylim(bottom=0)
    what = "accuracy change" if metrics["labelled"] else "agreement with fp32, change"
    changes.set_ylabel(f"{what} on validation images\n(percentage points)")
    figure.suptitle(title_of(model, points, metrics), x=0.01, ha="left", fontsize=10)
    figure.legend(handles=_legend(figure), loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def _legend(figure):
    axes = figure.axes[0]
    entries = [
        ("o", HOLDS, HOLDS, "accuracy holds"),
        ("o", FAILS, FAILS, "accuracy may not hold"),
        ("o", GREY, "none", "not compared"),
        ("s", GREY, "none", "written by hand"),
        ("*", HOLDS, HOLDS, "tuned"),
        ("D", "black", "black", "fp32"),
    ]
    handles = []
    for marker, colour, face, label in entries:
        [handle] = axes.plot([], [], marker, color=colour, mfc=face, label=label, ms=11 if marker == "*" else 7)
        handles.append(handle)
    return handles


def title_of(model, points, metrics):
    """Return what is seen: how many recipes are faster than fp32, and what was taken or given."""
    faster = sum(point["time"] < 1 for point in points)
    of_them = f"{faster or 'none'} of {len(points)} int8 files {'are' if faster > 1 else 'is'} faster than fp32"
    if len(points) == 1:
        of_them = f"the only int8 file is {'' if faster else 'not '}faster than fp32"
    seen = f"{model}: {of_them}"
    if "given" in metrics:
        seen = f"{model}: nothing was searched, params.yaml gives the recipe"
    if metrics["chosen"] == "fp32" and "given" in metrics:
        return f"{seen}, which is fp32: tuned is a copy of it"
    if metrics["chosen"] == "fp32":
        none = (
            "not for certain and with its accuracy" if faster == 1 else "none of them for certain and with its accuracy"
        )
        return f"{seen}{f', {none}' if faster else ''}: tuned is a copy of fp32"
    low, high = 1 / metrics["speedup_high"], 1 / metrics["speedup_low"]
    return f"{seen}; tuned takes {1 / metrics['speedup']:.3f} of fp32's time (95 % interval {low:.3f} to {high:.3f})"


def main(model, metrics_path, points_path, figure_path):
    metrics, points = read_metrics(metrics_path)[model], read_points(Path(points_path))
    figure = draw_figure(model, points, metrics)
    with whole_file(figure_path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})
    print(f"{figure_path}: {len(points)} recipe{'s' * (len(points) != 1)}")


if __name__ == "__main__":
    run_main(main)
