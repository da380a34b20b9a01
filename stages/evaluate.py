"""Predict the test images with a variant and compare it with the baseline, image by image.

Writes the predictions, the metrics that follow from them, and two tables for `dvc plots`: every changed label, and the
changes of each class. A variant that does not load has no predictions, and says so in its metrics.

    python -m stages.evaluate cnn static-u8s8 models/cnn/onnx/static-u8s8.onnx ... (see dvc.yaml)
"""

import csv
import io

import numpy as np

from stages.common.images import load_images, load_labels
from stages.common.runtime import predict_images
from stages.common.statistics import accuracy_change_interval, mcnemar_p
from stages.common.workspace import read_metrics, read_params, run_main, whole_file, write_metrics, write_text


def compare(logits, baseline, labels):
    """Return the paired comparison of a variant's logits (N, classes) with the baseline's, for labels (N,).

    `lost`: the baseline right, the variant wrong; `gained`: the reverse; `neutral`: both wrong, different labels.
    """
    predicted, expected = logits.argmax(1), baseline.argmax(1)
    right, was_right = predicted == labels, expected == labels
    lost, gained = int((was_right & ~right).sum()), int((right & ~was_right).sum())
    changed = int((predicted != expected).sum())
    change, low, high = accuracy_change_interval(
        int((right & was_right).sum()), lost, gained, int((~right & ~was_right).sum())
    )
    return {
        "accuracy": float(right.mean()),
        "accuracy_change": change,
        "change_low": low,
        "change_high": high,
        "mcnemar_p": mcnemar_p(lost, gained),
        "argmax_agreement": float((predicted == expected).mean()),
        "changed": changed,
        "lost": lost,
        "gained": gained,
        "neutral": changed - lost - gained,
        "max_abs_logit_difference": float(np.abs(logits - baseline).max()),
        "images": len(labels),
    }


def changed_table(logits, baseline, labels):
    """Return rows (image, label, fp32_label, variant_label), one a changed prediction."""
    predicted, expected = logits.argmax(1), baseline.argmax(1)
    return [
        [image, labels[image], expected[image], predicted[image]] for image in np.flatnonzero(predicted != expected)
    ]


def class_table(logits, baseline, labels):
    """Return rows (label, images, fp32_accuracy, accuracy, lost, gained, neutral), one a class."""
    rows = []
    for label in np.unique(labels):
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


def table_csv(header, rows):
    """Return a table as CSV text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([header, *rows])
    return text.getvalue()


def main(model, variant, onnx_path, images_path, labels_path, verified_path, baseline_path,
         predictions_path, metrics_path, changed_path, classes_path):  # fmt: skip
    images = read_params(f"models.{model}.evaluate")["images"]
    settings, scaling = read_params("evaluate"), read_params(f"models.{model}.input")
    verified = read_metrics(verified_path)[model][variant]
    labels = load_labels(labels_path, len(load_images(images_path)))[:images]
    baseline = np.load(baseline_path, allow_pickle=False)["logits"]
    if verified["finite"]:
        logits = predict_images(onnx_path, images_path, scaling, images=images, **settings)
        metrics = compare(logits, baseline, labels)
        summary = f"accuracy {metrics['accuracy']:.2%} ({metrics['accuracy_change']:+.2%}), {metrics['changed']} of {images:,} predictions changed"
    else:
        logits, labels, baseline = baseline[:0], labels[:0], baseline[:0]
        metrics = {key: verified[key] for key in ("loads", "runs", "finite")}
        summary = f"not evaluated, it does not work here: {verified['error']}"
    with whole_file(predictions_path) as temporary, open(temporary, "wb") as file:
        np.savez(file, logits=logits)
    write_text(
        changed_path,
        table_csv(["image", "label", "fp32_label", "variant_label"], changed_table(logits, baseline, labels)),
    )
    header = ["label", "images", "fp32_accuracy", "accuracy", "lost", "gained", "neutral"]
    write_text(classes_path, table_csv(header, class_table(logits, baseline, labels)))
    write_metrics(metrics_path, {model: {variant: metrics}})
    print(f"{model} {variant}: {summary}")


if __name__ == "__main__":
    run_main(main)
