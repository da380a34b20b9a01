"""Predict the test images with the baseline, for every variant to be compared with.

python -m stages.evaluate_fp32 cnn models/cnn/onnx/fp32.onnx ... (see dvc.yaml)
"""

import numpy as np

from stages.common.images import load_images, load_labels
from stages.common.runtime import predict_images
from stages.common.workspace import read_params, run_main, whole_file, write_metrics


def main(model, onnx_path, images_path, labels_path, predictions_path, metrics_path):
    images = read_params(f"models.{model}.evaluate")["images"]
    settings, scaling = read_params("evaluate"), read_params(f"models.{model}.input")
    labels = load_labels(labels_path, len(load_images(images_path)))[:images]
    logits = predict_images(onnx_path, images_path, scaling, images=images, **settings)
    with whole_file(predictions_path) as temporary, open(temporary, "wb") as file:
        np.savez(file, logits=logits)
    accuracy = float((logits.argmax(1) == labels).mean())
    write_metrics(metrics_path, {model: {"fp32": {"accuracy": accuracy, "images": images}}})
    print(f"{model} fp32: accuracy {accuracy:.2%} on {images:,} images")


if __name__ == "__main__":
    run_main(main)
