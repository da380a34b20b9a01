"""Repeat calibrate, quantize and evaluate over many draws of the calibration set: how much of a change is the draw?

A variant is one draw of calibration images. This stage makes the same recipe from other draws, of several sizes, and
compares each with the baseline. The spread over seeds is what the draw alone does to accuracy; beside it stands the
interval of the recipe's own change, which is what the test set leaves open for a single draw.

    python -m stages.sensitivity cnn static-u8s8 models/cnn/preprocessed.onnx ... (see dvc.yaml)
"""

import hashlib
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from stages.common.calibration.collection import draw_indices
from stages.common.calibration.image_ranges import minmax_of_sets
from stages.common.calibration.settings import calibration_settings
from stages.common.calibration.static_quantization import calibrate, quantize
from stages.common.cpu import usable_cores
from stages.common.images import labels_or_none, load_images
from stages.common.session.runtime import predict_images
from stages.common.statistics.intervals import wilson_interval
from stages.common.statistics.paired import compare
from stages.common.workspace import read_params, run_main, write_metrics, write_table

COLUMNS = [
    "images",
    "seed",
    "accuracy",
    "accuracy_change",
    "changed",
    "lost",
    "gained",
    "argmax_agreement",
    "file_sha256",
]
QUANTITIES = {"change": "accuracy", "agreement": "agreement with fp32"}


def find_ranges(preprocessed_path, images_path, sets, scaling, *, op_types, method, batch_size, **options):
    """Return the ranges of every set of image indices, as `calibrate` finds them; MinMax runs each image once only."""
    files, how = (preprocessed_path, images_path), {"op_types": op_types, "batch_size": batch_size}
    if method == "MinMax" and not options["moving_average"]:
        return minmax_of_sets(*files, sets, scaling, symmetric=options["symmetric"], **how)
    every = tqdm(sets, "ranges", disable=None)
    return [calibrate(*files, indices, scaling, method=method, **how, **options) for indices in every]


def compare_files(preprocessed_path, all_ranges, recipe, compare_file):
    """Quantize with each of the ranges; return [(first digits of the file's SHA-256, what `compare_file(path)` returns)].

    A file that was there before is not compared again. Files are made in groups, so that few lie on the disk at a time.
    """
    digests, compared = [], {}
    cores = usable_cores()
    with ThreadPoolExecutor(cores) as pool, tqdm(total=len(all_ranges), desc="draws", disable=None) as bar:
        for start in range(0, len(all_ranges), 4 * cores):
            with tempfile.TemporaryDirectory() as folder:
                group = [
                    quantized(preprocessed_path, folder, ranges, recipe)
                    for ranges in all_ranges[start : start + 4 * cores]
                ]
                new = {path.stem: path for path in group if path.stem not in compared}
                compared |= zip(new, pool.map(compare_file, new.values()), strict=True)
            digests += [path.stem for path in group]
            bar.update(len(group))
    return [(digest, compared[digest]) for digest in digests]


def quantized(preprocessed_path, folder, ranges, recipe):
    """Return the path of a quantized file in `folder`, named by the first digits of its SHA-256."""
    path = Path(folder) / "draw.onnx"
    quantize(preprocessed_path, path, ranges, **recipe)
    return path.rename(path.with_name(hashlib.sha256(path.read_bytes()).hexdigest()[:12] + ".onnx"))


def summarize(rows):
    """Return {images_<n>: {mean_change, spread, worst_change, best_change, seeds, distinct_models}} from the table's rows.

    Changes are of accuracy, as a fraction; `spread` is their standard deviation over seeds. Without labels it is the
    agreement with fp32 instead: mean_agreement, worst_agreement, best_agreement.
    """
    what, column = ("agreement", "argmax_agreement") if rows[0][3] == "" else ("change", "accuracy_change")
    metrics, column = {}, COLUMNS.index(column)
    for images in dict.fromkeys(row[0] for row in rows):
        changes = [row[column] for row in rows if row[0] == images]
        metrics[f"images_{images}"] = {
            f"mean_{what}": statistics.fmean(changes),
            "spread": statistics.stdev(changes),
            f"worst_{what}": min(changes),
            f"best_{what}": max(changes),
            "seeds": len(changes),
            "distinct_models": len({row[-1] for row in rows if row[0] == images}),
        }
    return metrics


def interval_of(comparison):
    """Return a comparison's accuracy change and its interval; without labels its agreement with fp32 and Wilson's."""
    if "accuracy_change" in comparison:
        return {key: comparison[key] for key in ("accuracy_change", "change_low", "change_high")}
    low, high = wilson_interval(comparison["images"] - comparison["changed"], comparison["images"])
    return {"argmax_agreement": comparison["argmax_agreement"], "agreement_low": low, "agreement_high": high}


def main(
    model, variant, preprocessed_path, train_path, test_path, labels_path, baseline_path, metrics_path, draws_path
):
    plan, scaling = read_params(f"sensitivity.{model}"), read_params(f"models.{model}.input")
    settings = read_params("evaluate") | {"threads": 1}  # several files are predicted with at a time
    recipe = read_params(f"calibrate_quantize.{variant}")
    own, how = calibration_settings(read_params("calibrate"), recipe.pop("calibrate", {}))
    count, wanted = plan["test_images"], read_params(f"models.{model}.evaluate")
    labels = labels_or_none(labels_path, len(load_images(test_path)))
    labels = labels if labels is None else labels[:count]
    baseline = np.load(baseline_path, allow_pickle=False)["logits"][:count]

    def compare_file(path):
        return compare(
            predict_images(path, test_path, scaling, **wanted | {"images": count}, **settings), baseline, labels
        )

    available = len(load_images(train_path))
    draws = [{"images": images, "seed": seed} for images in plan["images"] for seed in range(plan["seeds"])]
    sets = [draw_indices(**draw, available=available) for draw in [*draws, own]]
    op_types = recipe.get("op_types_to_quantize")
    ranges = find_ranges(preprocessed_path, train_path, sets, scaling, op_types=op_types, **how)
    *results, (_, of_recipe) = compare_files(preprocessed_path, ranges, recipe, compare_file)
    rows = [
        [draw["images"], draw["seed"], *(comparison.get(key, "") for key in COLUMNS[2:-1]), digest]
        for draw, (digest, comparison) in zip(draws, results, strict=True)
    ]
    interval = interval_of(of_recipe)
    metrics = summarize(rows) | {"recipe": own | interval, "test_images": count, "available": available}
    write_metrics(metrics_path, {model: {variant: metrics}})
    write_table(draws_path, COLUMNS, rows)
    what = "agreement" if labels is None else "change"
    for name, of_draws in summarize(rows).items():
        mean = f"{of_draws['mean_agreement']:.3%}" if labels is None else f"{of_draws['mean_change']:+.3%}"
        print(f"{model} {variant}, {name}: {QUANTITIES[what]} {mean} on average, spread {of_draws['spread']:.3%}")
    low, high = interval[f"{what}_low"], interval[f"{what}_high"]
    ends = f"{low:.2%} to {high:.2%}" if labels is None else f"{low:+.2%} to {high:+.2%}"
    print(f"{model} {variant}, test set: {ends} for the recipe's draw")


if __name__ == "__main__":
    run_main(main)
