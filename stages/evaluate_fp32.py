"""Predict the test images with the baseline, for every variant to be compared with.

python -m stages.evaluate_fp32 cnn models/cnn/onnx/fp32.onnx ... (see dvc.yaml)
"""

import numpy as np

from stages.common.chance import no_better_than_one_class, right_and_by_chance
from stages.common.images import labels_or_none, load_images
from stages.common.session.model_io import tied, ties
from stages.common.session.runtime import predict_images
from stages.common.workspace import read_params, run_main, whole_file, write_metrics


def main(model, onnx_path, images_path, labels_path, predictions_path, metrics_path):
    wanted = read_params(f"models.{model}.evaluate")
    settings, scaling = read_params("evaluate"), read_params(f"models.{model}.input")
    labels = labels_or_none(labels_path, len(load_images(images_path)))
    logits = predict_images(onnx_path, images_path, scaling, **wanted, **settings)
    with whole_file(predictions_path) as temporary, open(temporary, "wb") as file:
        np.savez(file, logits=logits)
    metrics, summary = {"ties": ties(logits), "images": len(logits)}, "no labels, so no accuracy,"
    if labels is not None:
        judged = labels[: len(logits)]
        metrics = right_and_by_chance(logits, judged) | metrics
        summary = f"accuracy {metrics['accuracy']:.2%}"
        if no_better_than_one_class(metrics):
            print(
                f"warning: {model} is right no more often than saying the most frequent class every time ({metrics['most_frequent_share']:.2%}): "
                f"look at `models.{model}.input`, and whether the labels number the classes as the model does"
            )
    write_metrics(metrics_path, {model: {"fp32": metrics}})
    print(f"{model} fp32: {summary} on {len(logits):,} images{tied(metrics['ties'])}")


if __name__ == "__main__":
    run_main(main)
