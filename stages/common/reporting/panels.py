"""What the figures of the plot stage share: style, colours, and panels side by side, one a network."""

import textwrap

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from stages.common.reporting.results import BASELINE

# Okabe and Ito's colours, which people with any common colour blindness can tell apart.
PALETTE = ["#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#8A6D00", "#6A3D9A"]

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


def panels(results, variants, row_inches=0.45):
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
