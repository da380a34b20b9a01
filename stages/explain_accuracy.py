"""Explain where a static variant loses accuracy: noise by layer, the effect of each layer alone, the changed images.

One variant of the model is looked at, explain.layers_of. Nothing here depends on time, so the result is the same on
every machine with the same instruction set.

    python -m stages.explain_accuracy cnn static-u8s8 models/cnn/preprocessed.onnx ... (see dvc.yaml)
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import onnx

from stages.common.calibration.static_quantization import quantize
from stages.common.explanation.changed_figures import draw_changed, draw_margins, margins
from stages.common.explanation.layer_effects import layer_effects
from stages.common.explanation.quantization_noise import activation_noise, weight_sqnr
from stages.common.images import input_batches, labels_or_none, load_images
from stages.common.session.model_io import judged_output
from stages.common.workspace import UserError, read_params, run_main, whole_file, write_metrics, write_table

NOISE_BATCH = 4  # memory only: all activations of a batch are there at once (resnet18: 0.7 GB)
COLUMNS = ["layer", "op_type", "weight_sqnr_db", "tensor", "accumulated_sqnr_db", "rounding_sqnr_db", "low", "high",
           "scale", "zero_point", "clipped_percent", "alone_changed", "alone_logit_sqnr_db", "all_but_changed",
           "all_but_logit_sqnr_db"]  # fmt: skip


def quantization_noise(preprocessed_path, ranges, recipe, batches):
    """Return ({layer: weight SQNR in dB}, {tensor: noise}) of a recipe, in its QDQ form; see quantization_noise.py."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.onnx"
        quantize(preprocessed_path, path, ranges, **recipe | {"quant_format": "QDQ"})
        weights = weight_sqnr(onnx.load(preprocessed_path), onnx.load(path))
        return weights, activation_noise(preprocessed_path, path, batches)


def layer_table(preprocessed, weights, tensors, effects):
    """Return a dictionary a row: one for every layer with weights, and one for every other quantized tensor.

    The output of a layer is the tensor that is quantized behind it: its own, or that of the activation that follows.
    """
    rows, told = [], set()
    graph_input = preprocessed.graph.input[0].name
    if graph_input in tensors:
        rows.append({"layer": "input", "op_type": "", "tensor": graph_input, **tensors[graph_input]})
    readers = {}
    for node in preprocessed.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in preprocessed.graph.node:
        layer, tensor = node.name, node.output[0]
        if layer in effects or layer in weights:
            followers = readers.get(tensor, [])
            if tensor not in tensors and len(followers) == 1:
                tensor = followers[0].output[0]
        elif tensor not in tensors or tensor in told:
            continue
        told.add(tensor)
        row = {"layer": layer, "op_type": node.op_type, "weight_sqnr_db": weights.get(layer), "tensor": tensor}
        rows.append({**row, **tensors.get(tensor, {}), **effects.get(layer, {})})
    return rows


def layer_rows(rows):
    """Return the COLUMNS rows of the table; what is not defined for a row is left blank."""
    return [
        [f"{row[key]:.6g}" if isinstance(row.get(key), float) else row.get(key, "") for key in COLUMNS] for row in rows
    ]


def summarize(baseline, logits, effects, logit_scale=None):
    """Return the metrics: how sure fp32 was of what changed, and the layer that disturbs the logits most by itself.

    `ties`: images whose two largest logits are equal in the variant, so that the order of the classes decides;
    `changed_ties` of them changed. `changed_by_logit_scale`: how many change if nothing but fp32's logits is rounded to
    multiples of `logit_scale`, the scale of the variant's output.
    """
    every, changed, tied = margins(baseline), baseline.argmax(1) != logits.argmax(1), margins(logits) == 0
    metrics = {
        "images": len(baseline),
        "changed": int(changed.sum()),
        "ties": int(tied.sum()),
        "changed_ties": int((changed & tied).sum()),
        "median_margin": float(np.median(every)),
    }
    if changed.any():
        metrics["changed_median_margin"] = float(np.median(every[changed]))
        metrics["changed_max_margin"] = float(every[changed].max())
        metrics["images_below_max_percent"] = float(100 * (every <= every[changed].max()).mean())
    if logit_scale:
        rounded = np.rint(baseline / np.float32(logit_scale))
        metrics["changed_by_logit_scale"] = int((rounded.argmax(1) != baseline.argmax(1)).sum())
    noisiest = min(effects, key=lambda layer: effects[layer]["alone_logit_sqnr_db"] or np.inf)
    metrics |= {"noisiest_layer": noisiest[:40], "noisiest_layer_changed": effects[noisiest]["alone_changed"]}
    return metrics


def main(model, variant, preprocessed_path, ranges_path, images_path, labels_path, baseline_path, predictions_path,
         metrics_path, layers_path, changed_path, margins_path):  # fmt: skip
    recipe, batch_size = read_params(f"calibrate_quantize.{variant}"), read_params("evaluate.batch_size")
    scaling, counts = read_params(f"models.{model}.input"), read_params(f"models.{model}.explain")
    judged = read_params(f"models.{model}.evaluate").get("output")
    recipe.pop("calibrate", None)  # how the ranges were found, which are given here
    ranges = {name: np.float32(bounds) for name, bounds in json.loads(Path(ranges_path).read_text())["ranges"].items()}
    baseline, logits = (np.load(path, allow_pickle=False)["logits"] for path in (baseline_path, predictions_path))
    if len(logits) == 0:
        raise UserError(f"explain.layers_of is {variant}, which does not run here: name another static variant.")
    images = load_images(images_path)
    labels = labels_or_none(labels_path, len(images))
    batches = input_batches(images, batch_size=NOISE_BATCH, path=images_path, limit=counts["noise_images"], **scaling)
    weights, tensors = quantization_noise(preprocessed_path, ranges, recipe, batches)
    looked_at = baseline[: counts["images"]]
    effects = layer_effects(
        preprocessed_path, ranges, recipe, images_path, scaling, looked_at, output=judged, batch_size=batch_size
    )
    preprocessed = onnx.load(preprocessed_path)
    output = tensors.get(
        judged_output([value.name for value in preprocessed.graph.output], judged, preprocessed_path), {}
    )
    metrics = summarize(baseline, logits, effects, output.get("scale"))
    write_table(layers_path, COLUMNS, layer_rows(layer_table(preprocessed, weights, tensors, effects)))
    names = {"model": model, "variant": variant, "baseline": baseline, "logits": logits}
    with whole_file(changed_path) as temporary:
        draw_changed(
            temporary, images=images, labels=labels, channels_last=scaling.get("channels_last", False), **names
        )
    with whole_file(margins_path) as temporary:
        draw_margins(temporary, **names)
    write_metrics(metrics_path, {model: {variant: metrics}})
    print(
        f"{model} {variant}: {metrics['changed']} predictions changed, {metrics['changed_ties']} of them at equal logits; "
        f"of {len(effects)} layers {metrics['noisiest_layer']} alone disturbs the logits most"
    )


if __name__ == "__main__":
    run_main(main)
