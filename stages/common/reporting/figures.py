"""The figures of size, accuracy and changed predictions. One function a figure; its docstring says how to read it."""

from matplotlib.ticker import FuncFormatter, MaxNLocator

from stages.common.reporting.panels import panels, plt, variant_colours, wrap_titles
from stages.common.reporting.results import BASELINE, agreement, is_labelled
from stages.common.statistics.multiple import SIGNIFICANCE, holm

LOST, GAINED, NEUTRAL = "#D55E00", "#0072B2", "#BBBBBB"


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
    figure, axes = panels(results, variants)
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
