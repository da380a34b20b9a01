"""The figure of where a call's time goes, layer by layer, in the baseline and in every variant.

How to read it: a bar is a call; a coloured piece is the same layer in all bars, so a piece that is longer than in the
fp32 bar is where a variant loses time, a shorter one where it gains; the largest such difference stands behind the
bar. Hatched pieces are conversions between types and layouts, which the fp32 model mostly does without. A bar that
would dwarf the others is cut, and says so.
"""

import numpy as np
from matplotlib.figure import Figure

from stages.common.explanation.layer_times import CONVERSIONS

# Okabe and Ito's colours, told apart by colour-blind readers, too.
LAYER_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#E69F00", "#56B4E9", "#CC79A7")
OTHER_LAYERS, CONVERSION, NO_KERNEL = "#999999", "#F0E442", "#FFFFFF"
CUT = 3.5  # times the baseline's call: a bar that is longer is cut, to so much more than the longest of the others
BEYOND = 1.25
MILLISECONDS_FROM = 10_000  # microseconds of the baseline's call
DPI = 120
NAME_LENGTHS = range(28, 45)  # characters of a layer's name: the first with which all differ and bars have room


def draw_times(path, *, model, batch, profiles):
    """Draw the figure of `figure_of` into a PNG file."""
    figure_of(model, batch, profiles).savefig(path, dpi=DPI, format="png", metadata={"Software": None})


def figure_of(model, batch, profiles):
    """Return the median time by layer as one stacked bar a variant; `profiles`: {variant: LayerTimes}, in microseconds."""
    long = _total(_pieces(profiles["fp32"], 1)) >= MILLISECONDS_FROM
    divisor, unit, digits = (1000, "ms", 1) if long else (1, "us", 0)
    pieces = {variant: _pieces(times, divisor) for variant, times in profiles.items()}
    layers = list(dict.fromkeys(layer for found in pieces.values() for layer in found["layers"]))
    coloured, names = _most_telling(layers, pieces), short_names(layers)
    totals = {variant: _total(found) for variant, found in pieces.items()}
    limit = cut_at(totals)
    figure = Figure(figsize=(11, 1.9 + 0.45 * len(pieces)), dpi=DPI, layout="constrained")
    axes, labels = figure.subplots(), []
    for place, (variant, found) in enumerate(pieces.items()):
        left = 0.0
        for width, style in _in_order(found, layers, coloured):
            shown = min(width, limit - left)
            axes.barh(place, shown, left=left, height=0.7, edgecolor="black", linewidth=0.5, **style)
            left += shown
        cut = "cut: " if totals[variant] > limit else ""
        words = f"  {cut}{totals[variant]:,.{digits}f} {unit}{_difference(found, pieces['fp32'], digits, names)} "
        labels.append(axes.text(left, place, words, va="center", fontsize=9))
    axes.set_yticks(range(len(pieces)), list(pieces))
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit} of a call by layer, medians over the rounds")
    axes.set_title(
        f"{model}, batch {batch}: where the time of a call goes, and the layer that changes most", loc="left"
    )
    axes.spines[["top", "right"]].set_visible(False)
    _legend(axes, [layer for layer in layers if layer in coloured], coloured, names)
    _make_room(axes, labels)
    return figure


def cut_at(totals):
    """Return where bars are cut, of {variant: microseconds of a call}: no bar is as long as that, or a cut one."""
    longest = CUT * totals["fp32"]
    return min(longest, BEYOND * max(total for total in totals.values() if total <= longest))


def _make_room(axes, labels):
    """Set the axis so that every bar's label ends left of the legend, which stands right of the axes."""
    for label in labels:
        label.set_in_layout(False)  # else the axes shrink for them
    axes.figure.draw_without_rendering()
    whole = axes.get_window_extent().width
    shares = [min(0.9, label.get_window_extent().width / whole) for label in labels]
    axes.set_xlim(0, max(label.get_position()[0] / (1 - share) for label, share in zip(labels, shares, strict=True)))


def short_names(layers):
    """Return {layer: name for the figure}: without what exporters write twice, and without the middle of a long one."""
    names = [_said_once(layer) for layer in layers]
    for length in NAME_LENGTHS:
        short = [_without_middle(name, length) for name in names]
        if len(set(short)) == len(layers):
            break
    return dict(zip(layers, short, strict=True))


def _said_once(path):
    """Return a path without the parts that the next one begins with: "/conv/conv.0/conv.0.1/Conv" is "conv.0.1/Conv"."""
    parts = [part for part in path.split("/") if part]
    kept = [
        part for part, following in zip(parts, [*parts[1:], ""], strict=True) if not following.startswith(f"{part}.")
    ]
    return "/".join(kept)


def _without_middle(name, length):
    return name if len(name) <= length else f"{name[: length // 2]}…{name[length // 2 + 1 - length :]}"


def _difference(found, baseline, digits, names):
    """Return the layer that differs most from the baseline, and by how much, in brackets; nothing for the baseline."""
    differences = {layer: found["layers"].get(layer, 0) - time for layer, time in baseline["layers"].items()}
    layer = max(differences, key=lambda name: abs(differences[name]), default=None)
    return f" ({names[layer]} {differences[layer]:+,.{digits}f})" if layer and differences[layer] else ""


def _pieces(times, divisor):
    def median(values):
        return float(np.median(values)) / divisor

    layers = {layer: median(value) for (layer, kind), value in times.times.items() if kind == "layer"}
    conversions = sum(median(times.total(kind)) for kind in CONVERSIONS)
    rest = max(0.0, median(times.total("other") + times.no_kernel))
    return {"layers": layers, "conversions": conversions, "rest": rest}


def _total(found):
    return sum(found["layers"].values()) + found["conversions"] + found["rest"]


def _most_telling(layers, pieces):
    """Return {layer: colour} of those that differ most from the baseline in some variant, in the order of the graph."""

    def difference(layer):
        baseline = pieces["fp32"]["layers"].get(layer, 0)
        return max(abs(found["layers"].get(layer, 0) - baseline) for found in pieces.values())

    chosen = sorted(layers, key=difference, reverse=True)[: len(LAYER_COLOURS)]
    return dict(zip([layer for layer in layers if layer in chosen], LAYER_COLOURS, strict=False))


def _in_order(found, layers, coloured):
    for layer in layers:
        if layer in coloured:
            yield found["layers"].get(layer, 0), {"color": coloured[layer]}
    yield sum(width for layer, width in found["layers"].items() if layer not in coloured), {"color": OTHER_LAYERS}
    yield found["conversions"], {"color": CONVERSION, "hatch": "////"}
    yield found["rest"], {"color": NO_KERNEL}


def _legend(axes, layers, coloured, names):
    handles = [axes.barh(0, 0, color=coloured[layer], edgecolor="black", linewidth=0.5) for layer in layers]
    handles += [axes.barh(0, 0, color=OTHER_LAYERS, edgecolor="black", linewidth=0.5)]
    handles += [axes.barh(0, 0, color=CONVERSION, hatch="////", edgecolor="black", linewidth=0.5)]
    handles += [axes.barh(0, 0, color=NO_KERNEL, edgecolor="black", linewidth=0.5)]
    words = [*(names[layer] for layer in layers), "all other layers", "quantize, dequantize, layout", "no node"]
    axes.legend(handles, words, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
