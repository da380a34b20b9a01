"""Predict the test images with a variant and compare it with the baseline, image by image.

Writes the predictions, the metrics that follow from them, and two tables for `dvc plots`: every changed label, and the
changes of each class. A variant that does not load has no predictions, and says so in its metrics.

    python -m stages.evaluate cnn static-u8s8 models/cnn/onnx/static-u8s8.onnx ... (see dvc.yaml)
"""

import numpy as np

from stages.common.images import labels_or_none, load_images
from stages.common.session.model_io import tied
from stages.common.session.runtime import predict_images
from stages.common.statistics.paired import CHANGED_COLUMNS, CLASS_COLUMNS, changed_table, class_table, compare
from stages.common.workspace import read_metrics, read_params, run_main, whole_file, write_metrics, write_table


def main(model, variant, onnx_path, images_path, labels_path, verified_path, baseline_path,
         predictions_path, metrics_path, changed_path, classes_path):  # fmt: skip
    wanted = read_params(f"models.{model}.evaluate")
    settings, scaling = read_params("evaluate"), read_params(f"models.{model}.input")
    verified = read_metrics(verified_path)[model][variant]
    labels = labels_or_none(labels_path, len(load_images(images_path)))
    labels = labels if labels is None else labels[: wanted["images"]]
    baseline = np.load(baseline_path, allow_pickle=False)["logits"]
    if verified["finite"]:
        logits = predict_images(onnx_path, images_path, scaling, **wanted, **settings)
        metrics = compare(logits, baseline, labels)
        summary = f"{metrics['changed']} of {metrics['images']:,} predictions changed{tied(metrics['ties'])}"
        if labels is not None:
            summary = f"accuracy {metrics['accuracy']:.2%} ({metrics['accuracy_change']:+.2%}), {summary}"
    else:
        logits, labels, baseline = baseline[:0], None, baseline[:0]
        metrics = {key: verified[key] for key in ("loads", "runs", "finite")}
        summary = f"not evaluated, it does not work here: {verified['error']}"
    with whole_file(predictions_path) as temporary, open(temporary, "wb") as file:
        np.savez(file, logits=logits)
    write_table(changed_path, CHANGED_COLUMNS, changed_table(logits, baseline, labels))
    write_table(classes_path, CLASS_COLUMNS, class_table(logits, baseline, labels))
    write_metrics(metrics_path, {model: {variant: metrics}})
    print(f"{model} {variant}: {summary}")


if __name__ == "__main__":
    run_main(main)
