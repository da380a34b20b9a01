"""What each layer alone does to the predictions: quantized by itself, and left out of the quantization."""

import tempfile
from pathlib import Path

import onnx
from tqdm import tqdm

from stages.common.calibration.static_quantization import quantize
from stages.common.cpu import usable_cores
from stages.common.explanation.quantization_noise import decibels, energies
from stages.common.quantization import float_layers
from stages.common.session.concurrency import map_in_order
from stages.common.session.runtime import predict_images


def layer_effects(preprocessed_path, ranges, recipe, images_path, scaling, baseline, **settings):
    """Return {layer: {alone_changed, alone_logit_sqnr_db, all_but_changed, all_but_logit_sqnr_db}}.

    For every layer with weights that `recipe` (as in params.yaml) quantizes: predictions of the first len(baseline)
    images that differ from `baseline`, fp32's logits (images, classes), when only that layer is quantized, and when
    all of the recipe's layers but that one are; with how well the logits survive. `settings`: the further arguments of
    `predict_images` but for `threads`: a file is made and predicted with on one thread, as many files at a time as
    there are cores, which changes no result.
    """
    with tempfile.TemporaryDirectory() as folder:

        def effect(job):
            _, prefix, nodes = job
            with tempfile.TemporaryDirectory(dir=folder) as own:  # deleted with its file, of which there are many
                path = Path(own) / "quantized.onnx"
                quantize(preprocessed_path, path, ranges, **recipe | nodes)
                logits = predict_images(path, images_path, scaling, images=len(baseline), threads=1, **settings)
            return {
                f"{prefix}_changed": int((logits.argmax(1) != baseline.argmax(1)).sum()),
                f"{prefix}_logit_sqnr_db": decibels(*energies(baseline, logits)),
            }

        layers = quantized_layers(preprocessed_path, ranges, recipe, Path(folder) / "recipe.onnx")
        jobs = _jobs(layers, recipe.get("nodes_to_exclude", []))
        found = tqdm(map_in_order(effect, jobs, usable_cores()), "layer effects", len(jobs), unit="file", mininterval=1)
        effects = {layer: {} for layer in layers}
        for (layer, *_), numbers in zip(jobs, found, strict=True):
            effects[layer] |= numbers
    return effects


def _jobs(layers, excluded):
    """Return (layer, prefix of its metrics, the recipe's nodes) of every file; a single layer cannot be left out."""
    jobs = [(layer, "alone", {"nodes_to_quantize": [layer]}) for layer in layers]
    if len(layers) > 1:
        jobs += [(layer, "all_but", {"nodes_to_exclude": [*excluded, layer]}) for layer in layers]
    return jobs


def quantized_layers(preprocessed_path, ranges, recipe, path):
    """Quantize by a recipe into `path`; return the layers with weights that it quantizes."""
    quantize(preprocessed_path, path, ranges, **recipe)
    left = set(float_layers(onnx.load(path)))
    return [layer for layer in float_layers(onnx.load(preprocessed_path)) if layer not in left]
