"""What explain, explain-accuracy and sensitivity found, as the rows of the report. A part that was not run is None."""

from pathlib import Path

import pandas as pd

from stages.common.draws import drawn_counts, nearest_count, share_of_pool
from stages.common.profiling.wording import unexplained
from stages.common.reporting.tables import Cell
from stages.common.workspace import read_metrics

CAUSES_SHOWN = 4  # a variant: the rest is in the file
DOUBTFUL_PERCENT = 15  # of a call that the profile leaves unexplained


def load_metrics(root, stage, model):
    """Return a stage's metrics of one model, or None if the stage was not run for it."""
    path = Path(root) / "metrics" / stage / f"{model}.json"
    return read_metrics(path)[model] if path.is_file() else None


def middle_batch(found):
    """Return the batch size that the explanations show: the middle one of those that were timed."""
    batches = sorted(found["control"])
    return batches[len(batches) // 2]


def cause_rows(root, model, variants, batch):
    """Return the largest causes of every variant at one batch size, as `explain` found and ranked them, or None."""
    source = f"plots/explain/{model}-causes.csv"
    if not (Path(root) / source).is_file():
        return None
    table = pd.read_csv(Path(root) / source)
    rows = []
    for name in variants:
        chosen = table[(table["variant"] == name) & (table["batch"] == batch)]
        for cause in chosen.head(CAUSES_SHOWN).itertuples():
            rows.append({
                "variant": Cell(name),
                "microseconds": Cell(f"{cause.microseconds:+,.0f}", source),
                "cause": Cell(cause.cause, source, words=True),
            })  # fmt: skip
    return rows


def graph_rows(model, metrics, batch):
    """Return what onnxruntime makes of every file: layers in integers and in float, conversions left, memory."""
    source = f"metrics/explain/{model}.json"
    rows = []
    for name, found in metrics.items():
        if isinstance(found, dict):
            cell = found[f"batch_{batch}"]
            rows.append({
                "file": Cell(name),
                "layers in integers": Cell(share(found, "layers"), source),
                "convolutions in integers": Cell(share(found, "convolutions"), source),
                "Q/DQ pairs left": Cell(str(found["quantize_pairs_left"]), source),
                "layout changes": Cell(str(found["layout_changes"]), source),
                "session memory": Cell(f"{found['session_bytes'] / 1024:,.0f} KiB", source),
                f"activations, batch {batch}": Cell(f"{cell['activation_bytes'] / 1024:,.0f} KiB", source),
                "not in the profile": Cell(f"{cell['unexplained_percent']:+.1f} %", source),
            })  # fmt: skip
    return rows


def share(found, what):
    """Return how many of a file's "layers" or "convolutions" run in integers after optimization: "9 of 20"."""
    return f"{found[f'integer_{what}']} of {found[f'integer_{what}'] + found[f'float_{what}']}"


def convolution_row(model, metrics, names):
    """Return the row "convolutions in integers" of the table with a column a file."""
    cells = {
        name: Cell(share(metrics[name], "convolutions") if name in metrics else "", f"metrics/explain/{model}.json")
        for name in names
    }
    return {"quantity": Cell("convolutions in integers"), **cells}


def doubts(metrics):
    """Return a sentence for every call of which the profile leaves more unexplained than it should."""
    return [
        f"{name} at {size.replace('_', ' ')}: {unexplained(cell['unexplained_percent'])}."
        for name, found in metrics.items()
        if isinstance(found, dict)
        for size, cell in found.items()
        if isinstance(cell, dict) and abs(cell["unexplained_percent"]) > DOUBTFUL_PERCENT
    ]


def layer_rows(root, model):
    """Return the noise of every tensor, and what every layer alone does to the predictions, or None."""
    source = f"plots/explain/{model}-layers.csv"
    if not (Path(root) / source).is_file():
        return None
    columns = {
        "weights (dB)": ("weight_sqnr_db", "{:.1f}"),
        "output so far (dB)": ("accumulated_sqnr_db", "{:.1f}"),
        "rounding of the output (dB)": ("rounding_sqnr_db", "{:.1f}"),
        "clipped": ("clipped_percent", "{:.2f} %"),
        "changed by it alone": ("alone_changed", "{:.0f}"),
        "changed by all but it": ("all_but_changed", "{:.0f}"),
    }
    return [
        {
            "layer": Cell(row["layer"]),
            "op type": Cell("" if pd.isna(row["op_type"]) else row["op_type"]),
            **{
                title: Cell("" if pd.isna(row[key]) else form.format(row[key]), source)
                for title, (key, form) in columns.items()
            },
        }
        for _, row in pd.read_csv(Path(root) / source).iterrows()
    ]


def accuracy_sentence(variant, found):
    """Return where the changed predictions come from, in words."""
    if not found["changed"]:
        return f"`{variant}` changes none of {found['images']:,} predictions."
    parts = [
        f"`{variant}` changes {found['changed']} of {found['images']:,} predictions, all where fp32's two largest logits "
        f"differ by {found['changed_max_margin']:.2g} at most, as {found['images_below_max_percent']:.1f} % of all do "
        f"(median difference {found['median_margin']:.2g})."
    ]
    if found["changed_ties"]:
        rounded = ": its output is rounded to 8 bits, too" if "changed_by_logit_scale" in found else ""
        parts.append(
            f"In {found['changed_ties']} of them the variant's two largest logits are equal, so that the order of the "
            f"classes decides{rounded}."
        )
    if "changed_by_logit_scale" in found:
        parts.append(f"Rounding nothing but fp32's logits to that scale changes {found['changed_by_logit_scale']}.")
    return " ".join(parts)


def draws_are_of_accuracy(found):
    """Return whether `sensitivity` measured a variant's accuracy change; without labels it is the agreement with fp32."""
    return "accuracy_change" in found["recipe"]


def draw_rows(model, variant, found):
    """Return the spread of the accuracy change over calibration draws, a row a number of calibration images.

    Without labels it is the spread of the agreement with fp32.
    """
    source = f"metrics/sensitivity/{model}.json"
    rows, what, form = [], "change", "{:+.2f}"
    if not draws_are_of_accuracy(found):
        what, form = "agreement", "{:.2f}"
    for count in drawn_counts(found):
        cell = found[f"images_{count}"]
        points = [form.format(100 * cell[f"{which}_{what}"]) for which in ("mean", "worst", "best")]
        spread = f"{100 * cell['spread']:.3f}" if share_of_pool(found, count) < 1 else "only one draw possible"
        rows.append({
            "calibration images": Cell(str(count)),
            "draws": Cell(str(cell["seeds"]), source),
            f"mean {what}": Cell(points[0], source),
            "spread (sd)": Cell(spread, source),
            "worst": Cell(points[1], source),
            "best": Cell(points[2], source),
            "different files": Cell(str(cell["distinct_models"]), source),
        })  # fmt: skip
    return rows


def draw_doubt(found):
    """Return for which numbers of images the spread is small by construction, as a sentence; "" if for none."""
    shares = {count: share_of_pool(found, count) for count in drawn_counts(found)}
    words = []
    if most := [f"{count:,}" for count, share in shares.items() if 0.5 < share < 1]:
        words.append(
            f"draws of {' or '.join(most)} have many images in common, so that their spread is small by construction"
        )
    if 1 in shares.values():
        words.append("draws of all are the same, which says nothing of what the draw does")
    return f"There are {found['available']:,} training images: {', and '.join(words)}." if words else ""


def draw_spread(metrics, variant, images=None):
    """Return the spread over draws (sd, in points) of the size nearest to the recipe's own, with its sample; "" if unknown.

    The size is that of `nearest_count`, and is told, as is where it is more than half of what there is. The sample can
    be smaller than the `images` of the accuracy beside it, which is told, too: the spread then is larger than that
    accuracy's.
    """
    found = (metrics or {}).get(variant)
    nearest = nearest_count(found) if found else None
    if nearest is None:
        return ""
    cell = found[f"images_{nearest}"]
    of = f" of {found['available']:,}" if share_of_pool(found, nearest) > 0.5 else ""
    tested = "" if found["test_images"] == images else f", {found['test_images']:,} tested"
    return f"{100 * cell['spread']:.3f} ({cell['seeds']} x {nearest:,}{of}{tested})"
