"""The paired comparison of two sets of predictions of the same images: what changed, in which direction, for which class."""

import numpy as np

from stages.common.session.model_io import ties
from stages.common.statistics.intervals import accuracy_change_interval, mcnemar_p

CHANGED_COLUMNS = ["image", "label", "fp32_label", "variant_label"]
CLASS_COLUMNS = ["label", "images", "fp32_accuracy", "accuracy", "lost", "gained", "neutral"]


def compare(logits, baseline, labels):
    """Return the paired comparison of a variant's logits (N, classes) with the baseline's, for labels (N,) or None.

    `lost`: the baseline right, the variant wrong; `gained`: the reverse; `neutral`: both wrong, different labels. Without
    labels only what needs none: `argmax_agreement`, `changed`, `max_abs_logit_difference`, `ties` of the variant, `images`.
    """
    predicted, expected = logits.argmax(1), baseline.argmax(1)
    differences = {
        "argmax_agreement": float((predicted == expected).mean()),
        "changed": int((predicted != expected).sum()),
        "max_abs_logit_difference": float(np.abs(logits - baseline).max()),
        "ties": ties(logits),
        "images": len(logits),
    }
    return differences if labels is None else {**accuracy_change(predicted, expected, labels), **differences}


def accuracy_change(predicted, expected, labels):
    """Return the part of `compare` that needs labels, from the classes (N,) that variant and baseline decide for."""
    right, was_right = predicted == labels, expected == labels
    lost, gained = int((was_right & ~right).sum()), int((right & ~was_right).sum())
    change, low, high = accuracy_change_interval(
        int((right & was_right).sum()), lost, gained, int((~right & ~was_right).sum())
    )
    return {
        "accuracy": float(right.mean()),
        "accuracy_change": change,
        "change_low": low,
        "change_high": high,
        "mcnemar_p": mcnemar_p(lost, gained),
        "lost": lost,
        "gained": gained,
        "neutral": int((predicted != expected).sum()) - lost - gained,
    }


def changed_table(logits, baseline, labels):
    """Return CHANGED_COLUMNS rows, one a changed prediction; the label is blank where `labels` is None."""
    predicted, expected = logits.argmax(1), baseline.argmax(1)
    return [
        [image, "" if labels is None else labels[image], expected[image], predicted[image]]
        for image in np.flatnonzero(predicted != expected)
    ]


def class_table(logits, baseline, labels):
    """Return CLASS_COLUMNS rows, one a class; none where `labels` is None."""
    rows = []
    for label in () if labels is None else np.unique(labels):
        chosen = labels == label
        metrics = compare(logits[chosen], baseline[chosen], labels[chosen])
        before = metrics["accuracy"] - metrics["accuracy_change"]
        rows.append(
            [
                label,
                metrics["images"],
                f"{before:.4f}",
                f"{metrics['accuracy']:.4f}",
                *(metrics[key] for key in ("lost", "gained", "neutral")),
            ]
        )
    return rows
