"""Figures of the test images whose prediction a variant changed.

How to read the margins: the margin is fp32's largest logit minus its second largest, how sure the baseline was. A curve
shows for which share of the images it is at most so large. Changed images belong to the left: a changed image far to
the right would be one that quantization got wrong in earnest.
"""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

ALL_COLOUR, LOST_COLOUR, GAINED_COLOUR, NEUTRAL_COLOUR = "#0072B2", "#D55E00", "#009E73", "#E69F00"
UNKNOWN_COLOUR = "#BBBBBB"
COLUMNS, MOST_IMAGES = 8, 48


def margins(logits):
    """Return the largest minus the second largest logit of each row: (N, classes) -> (N,)."""
    top = np.partition(logits, -2, axis=1)
    return top[:, -1] - top[:, -2]


def _save(figure, path):
    figure.savefig(path, dpi=110, format="png", metadata={"Software": None})


def draw_margins(path, *, model, variant, baseline, logits):
    """Draw the margins of all images and of the changed ones; `baseline`, `logits`: (N, classes) of fp32, the variant."""
    every = np.sort(margins(baseline))
    changed = np.sort(margins(baseline[baseline.argmax(1) != logits.argmax(1)]))
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.step(every, _percent(every), color=ALL_COLOUR, label=f"all {len(every):,} images", where="post")
    seen = f"{variant} changes {len(changed):,} of {len(every):,} predictions"
    if len(changed):
        axes.step(changed, _percent(changed), color=LOST_COLOUR, label=f"the {len(changed):,} changed", where="post")
        axes.plot(changed, np.full(len(changed), -3), "|", color=LOST_COLOUR, markersize=9)
        axes.axvline(changed[-1], color=LOST_COLOUR, linewidth=0.8, linestyle="--")
        below = 100 * (every <= changed[-1]).mean()
        seen += f",\nall at margins up to {changed[-1]:.3g}, where {below:.1f} % of all images are"
    axes.set_xscale("log")
    axes.set_xlim(left=max(every[0], every[-1] / 1e5))
    axes.set_xlabel("margin: fp32's largest minus its second largest logit")
    axes.set_ylabel("images with at most this margin (%)")
    axes.set_title(f"{model}: {seen}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    _save(figure, path)


def _percent(ordered):
    return np.arange(1, len(ordered) + 1) / len(ordered) * 100


def draw_changed(path, *, model, variant, images, labels, baseline, logits, channels_last=False):
    """Draw the changed images, the surest first: true label, then fp32's and the variant's with their margins.

    `images`: stored images, (N, C, H, W), or with fewer axes, which are drawn as curves; `labels`: (N,) or None, and then
    nothing is said of right and wrong.
    """
    places = np.flatnonzero(baseline.argmax(1) != logits.argmax(1))
    order = places[np.argsort(-margins(baseline[places]), kind="stable")]
    shown = order[:MOST_IMAGES]
    rows = max(1, -(-len(shown) // COLUMNS))
    figure = Figure(figsize=(1.45 * COLUMNS, 0.9 + 1.95 * rows), layout="constrained")
    cells = np.ravel(figure.subplots(rows, COLUMNS, squeeze=False))
    for cell in cells:
        cell.axis("off")
    if not len(places):
        cells[0].text(0, 0.5, f"none of {len(logits):,} images is given another label than by fp32", fontsize=11)
    for cell, place in zip(cells, shown, strict=False):
        image = np.asarray(images[place], dtype=np.float32)
        label = None if labels is None else int(labels[place])
        _draw_image(
            cell, image if channels_last else np.moveaxis(image, 0, -1), place, label, baseline[place], logits[place]
        )
    of = f"the {len(shown)} surest of " if len(shown) < len(places) else ""
    meaning = "red: lost, green: gained, orange: both wrong; " if labels is not None else ""
    figure.suptitle(
        f"{model}: {of}{len(places):,} predictions that {variant} changes ({meaning}in brackets the margin)",
        fontsize=11, x=0.01, ha="left",
    )  # fmt: skip
    _save(figure, path)


def _draw_image(cell, image, place, label, baseline, logits):
    """Draw one image with its channels last: three as colours, else the first as grey; (L, C) and (F,) as curves."""
    before, after = int(baseline.argmax()), int(logits.argmax())
    colour = LOST_COLOUR if before == label else GAINED_COLOUR if after == label else NEUTRAL_COLOUR
    colour = UNKNOWN_COLOUR if label is None else colour
    if image.ndim == 3:
        pixels = (image - image.min()) / (np.ptp(image) or 1)
        cell.imshow(pixels if pixels.shape[-1] == 3 else pixels[..., 0], cmap="gray_r", interpolation="nearest")
    else:
        cell.plot(image.reshape(len(image), -1), color="black", linewidth=0.6)
    is_label = "" if label is None else f": is {label}"
    cell.set_title(
        f"#{place}{is_label}\nfp32 {before} ({margins(baseline[None])[0]:.2g})\nint8 {after} ({margins(logits[None])[0]:.2g})",
        fontsize=8, color="black", loc="left",
    )  # fmt: skip
    cell.add_patch(
        Rectangle((0, 0), 1, 1, transform=cell.transAxes, fill=False, edgecolor=colour, linewidth=3, clip_on=False)
    )
