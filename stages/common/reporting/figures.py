"""The figures of the plot stage. One function a figure; its docstring says how to read it."""

import math
import textwrap

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from stages.common.reporting.results import BASELINE, agreement, is_labelled, verdict
from stages.common.statistics.multiple import SIGNIFICANCE, holm

# Okabe and Ito's colours, which people with any common colour blindness can tell apart.
PALETTE = ["#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#8A6D00", "#6A3D9A"]
LOST, GAINED, NEUTRAL = "#D55E00", "#0072B2", "#BBBBBB"
MARKERS = "osD^vP*X<>ph"
STEP, REACH = 0.22, 0.35  # rows: between two markers of a row, and from its middle to the outermost, which stays in it
MOST_TICKS = 8  # that can be read side by side below a panel

plt.rcParams.update({
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "axes.axisbelow": True,
    "svg.hashsalt": "fixed",
})  # fmt: skip


def variant_colours(variants):
    """Return {variant: colour}, by the place in params.yaml's list: the same colour in every figure. fp32 is black."""
    return {BASELINE: "black", **{name: PALETTE[place % len(PALETTE)] for place, name in enumerate(variants)}}


def latency_figure(results, variants):
    """Speed against fp32: a panel a network, a row a variant, a marker a batch size, a line its 95 % interval.

    Right of the line at 1 is faster than fp32, left of it slower; an interval that crosses 1 decides nothing. The grey
    band is the control, fp32 timed against itself: a difference no larger than it is this machine's noise.
    """
    most = max(len(found["control"]) for found in results.values())
    figure, axes = _panels(results, variants, row_inches=max(0.45, 0.12 + 0.11 * most))
    colours = variant_colours(variants)
    batches = sorted({batch for found in results.values() for batch in found["control"]})
    for axis, (model, found) in zip(axes, results.items(), strict=True):
        control, offsets = found["control"].values(), marker_offsets(found["control"])
        axis.axvspan(
            min(cell["speedup_low"] for cell in control),
            max(cell["speedup_high"] for cell in control),
            color="#CCCCCC",
            lw=0,
        )
        axis.axvline(1, color="black", lw=1)
        for row, variant in enumerate(variants):
            cells = found["variants"][variant]["benchmark"]
            if not cells:
                axis.text(1, row, " does not run here", va="center", color="#666666", style="italic")
            for batch, cell in cells.items():
                y, marker = row + offsets[batch], MARKERS[batches.index(batch) % len(MARKERS)]
                axis.plot([cell["speedup_low"], cell["speedup_high"]], [y, y], color=colours[variant], lw=2)
                axis.plot(cell["speedup"], y, marker, color=colours[variant], ms=6)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator(speed_ticks(*axis.get_xlim())))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xlabel("speed relative to fp32 (log scale; right of 1 is faster)")
        axis.set_title(f"{model}: {latency_finding(found, variants)}")
    handles = [
        plt.Line2D([], [], marker=MARKERS[place % len(MARKERS)], color="#444444", ls="", label=f"batch {batch}")
        for place, batch in enumerate(batches)
    ]
    handles.append(plt.Rectangle((0, 0), 1, 1, color="#CCCCCC", label="fp32 against itself"))
    columns = min(len(handles), int(figure.get_figwidth() / 1.4))  # inches of an entry
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
    wrap_titles(axes)
    return figure


def marker_offsets(batches):
    """Return {batch: offset from the middle of a row, in rows}: side by side, the smallest on top, none outside of it."""
    ordered = sorted(batches)
    step = min(STEP, 2 * REACH / max(1, len(ordered) - 1))
    return {batch: step * (place - (len(ordered) - 1) / 2) for place, batch in enumerate(ordered)}


def speed_ticks(low, high):
    """Return at most MOST_TICKS ticks of a logarithmic axis: powers of two, 1 among them, or finer where few are in it."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    if last - first < 2:
        ticks = [tick for tick in MaxNLocator(MOST_TICKS - 2).tick_values(low, high) if low <= tick <= high]
        if not low < 1 < high or not ticks:
            return ticks
        apart = (ticks[-1] - ticks[0]) / max(1, len(ticks) - 1) / 2
        return sorted([1.0, *(tick for tick in ticks if abs(tick - 1) > apart)])
    step = math.ceil((last - first + 1) / MOST_TICKS)
    ticks = [2.0**power for power in range(first, last + 1) if power % step == 0]
    # a tick beyond 1, where there are speeds but no power of two
    return ticks + [tick for tick in (1.5, 1.2) if last == 0 and tick <= high][:1]


def latency_finding(found, variants):
    """Return in a few words what the panel shows: how many variants are faster or slower at every batch size."""
    verdicts = [{verdict(cell) for cell in found["variants"][name]["benchmark"].values()} for name in variants]
    timed = [seen for seen in verdicts if seen]
    faster, slower = timed.count({"faster"}), timed.count({"slower"})
    rest = len(timed) - faster - slower
    words = [
        f"{faster} of {len(timed)} int8 file{' is' if len(timed) == 1 else 's are'} faster than fp32",
        f"{slower} slower",
    ]
    doubtful = "depends on the batch or is undecided" if rest == 1 else "depend on the batch or are undecided"
    return ", ".join(words + ([f"{rest} {doubtful}"] if rest else []))


def accuracy_figure(results, variants):
    """Size beside accuracy: a row a variant; left its file size, right its accuracy change with the 95 % interval.

    Without labels the right side is the share of predictions that are fp32's, with Wilson's interval.

    The change is in percentage points against fp32 on the same test images (Newcombe's interval for paired
    proportions). An interval that crosses 0 shows no loss and no gain; its width is what the test set can resolve.
    """
    figure, axes = plt.subplots(
        len(results), 2, figsize=(11, 1.1 + len(results) * (0.9 + 0.33 * len(variants))), layout="constrained",
        squeeze=False, width_ratios=[2, 3],
    )  # fmt: skip
    colours = variant_colours(variants)
    rows = range(len(variants))
    for (size_axis, change_axis), (model, found) in zip(axes, results.items(), strict=True):
        whole = found["variants"][BASELINE]["verify"]["size_bytes"]
        sizes = [found["variants"][name]["verify"]["size_bytes"] for name in variants]
        size_axis.barh(
            rows, [100 * size / whole for size in sizes], color=[colours[name] for name in variants], height=0.6
        )
        for row, size in zip(rows, sizes, strict=True):
            size_axis.text(100 * size / whole, row, f" {size / 1024:,.0f} KiB", va="center")
        size_axis.set_title(f"{model}: size, fp32 is {whole / 1024:,.0f} KiB")
        size_axis.set_xlabel("file size (% of fp32)")
        size_axis.set_xlim(0, max(100 * size / whole for size in sizes) * 1.35)
        size_axis.set_yticks(rows, variants)
        labelled, base = is_labelled(found), found["variants"][BASELINE]["evaluate"]
        nothing = 0 if labelled else 100
        change_axis.axvline(nothing, color="black", lw=1)
        for row, name in zip(rows, variants, strict=True):
            judged = found["variants"][name]["evaluate"]
            if "images" not in judged:
                side = "left" if labelled else "right"
                change_axis.text(
                    nothing, row, " does not run here ", va="center", ha=side, color="#666666", style="italic"
                )
                continue
            keys = ("accuracy_change", "change_low", "change_high")
            value, low, high = [judged[key] for key in keys] if labelled else agreement(judged)
            change_axis.plot([100 * low, 100 * high], [row, row], color=colours[name], lw=2.5)
            change_axis.plot(100 * value, row, "o", color=colours[name], ms=7)
        if labelled:
            change_axis.set_title(f"{model}: accuracy, fp32 is {base['accuracy']:.2%} of {base['images']:,} images")
            change_axis.set_xlabel("accuracy change against fp32 (percentage points, 95 % interval)")
        else:
            change_axis.set_title(f"{model}: agreement with fp32 on {base['images']:,} images without labels")
            change_axis.set_xlabel("predictions that are fp32's (%, 95 % interval)")
        change_axis.set_yticks(rows, [])
        for axis in (size_axis, change_axis):
            axis.set_ylim(len(variants) - 0.5, -0.5)
            axis.grid(axis="y", visible=False)
    wrap_titles(axes.flat)
    return figure


def changes_figure(results, variants):
    """Changed predictions: a panel a network, a row a variant; what the accuracy change hides.

    Left (orange) are images that fp32 had right and the variant has wrong, right (blue) the reverse; grey are images
    with another wrong label. The accuracy change is blue minus orange; all of it changed for somebody. Beside a bar is
    its own p-value (exact McNemar); the title counts those that hold up among all variants. Without labels all are grey.
    """
    figure, axes = _panels(results, variants)
    for axis, (model, found) in zip(axes, results.items(), strict=True):
        most = 1
        for row, variant in enumerate(variants):
            judged = found["variants"][variant]["evaluate"]
            if "images" not in judged:
                axis.text(0, row, " does not run here", va="center", color="#666666", style="italic")
                continue
            if "lost" not in judged:
                axis.barh(row, judged["changed"], color=NEUTRAL, height=0.6)
                axis.text(judged["changed"], row, f" {judged['changed']}", va="center")
                most = max(most, judged["changed"])
                continue
            lost, gained, neutral = judged["lost"], judged["gained"], judged["neutral"]
            axis.barh(row, -lost, color=LOST, height=0.6)
            axis.barh(row, gained, color=GAINED, height=0.6)
            axis.barh(row, neutral, left=gained, color=NEUTRAL, height=0.6)
            axis.text(-lost, row, f"{lost} ", ha="right", va="center")
            axis.text(gained + neutral, row, f" {gained} + {neutral}  (p = {judged['mcnemar_p']:.2g})", va="center")
            most = max(most, lost, gained + neutral)
        axis.axvline(0, color="black", lw=1)
        axis.set_xlim(-most * 1.25 if is_labelled(found) else 0, most * 2.1)
        axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True))  # there are no half images
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{abs(value):g}"))
        axis.set_xlabel("test images with another label than fp32")
        axis.set_title(f"{model}: {changes_finding(found, variants)}")
    kinds = {
        LOST: "lost: fp32 right, int8 wrong",
        GAINED: "gained: fp32 wrong, int8 right",
        NEUTRAL: "neutral: both wrong",
    }
    if not all(map(is_labelled, results.values())):
        kinds = {NEUTRAL: "changed; there are no labels to say which is right"}
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour, label=label) for colour, label in kinds.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    wrap_titles(axes)
    return figure


def changes_finding(found, variants):
    """Return in a few words how many labels change, and for how many variants the net change is significant.

    The p-values of all variants are corrected together: of twenty copies of chance one would be significant by itself.
    """
    judged = [found["variants"][name]["evaluate"] for name in variants]
    judged = [metrics for metrics in judged if "changed" in metrics]
    if not judged:
        return "no variant runs here"
    least, most = (pick(metrics["changed"] for metrics in judged) for pick in (min, max))
    counts = f"{least:,}" if least == most else f"{least:,}-{most:,}"
    if not is_labelled(found):
        return f"{counts} of {judged[0]['images']:,} predictions change"
    if not most:
        return f"none of {judged[0]['images']:,} labels changes"
    real = sum(p < SIGNIFICANCE for p in holm([metrics["mcnemar_p"] for metrics in judged]))
    words = f"{counts} label{'s change' if most > 1 else ' changes'}"
    return f"{words}; net significant for {real} of {len(judged)} (Holm)"


def wrap_titles(axes):
    """Break every panel's title into lines that are no wider than the panel, which is known once all else is laid out."""
    axes = list(axes)
    axes[0].figure.draw_without_rendering()
    for axis in axes:
        words, width = axis.get_title(loc="left"), axis.get_window_extent().width
        for characters in range(len(words), 8, -1):
            title = axis.set_title(textwrap.fill(words, characters, break_on_hyphens=False))
            if title.get_window_extent().width <= width:
                break


def _panels(results, variants, row_inches=0.45):
    """Return a figure with a panel a network side by side, rows labelled with the variants, first one on top."""
    figure, axes = plt.subplots(
        1, len(results), figsize=(max(7.5, 5.9 * len(results)), 1.6 + row_inches * len(variants)), layout="constrained",
        sharey=True, squeeze=False,
    )  # fmt: skip
    axes = list(axes[0])
    axes[0].set_yticks(range(len(variants)), variants)
    axes[0].set_ylim(len(variants) - 0.5, -0.5)
    for axis in axes:
        axis.grid(axis="y", visible=False)
    return figure, axes
