"""Search the static recipes for the fastest (or smallest) whose accuracy holds, by measurement on this machine.

Every point that was tried is a row of the table, with the reason why it was dropped. What is written is a recipe, as it
could stand under `calibrate_quantize`; `build-tuned` makes the variant `tuned` from it. Validation images are training
images that no calibration has seen; the test set is not looked at. The search holds the machine's lock. What a session
option would bring is measured at the end and reported apart: no file that is written needs one.

    python -m stages.tune cnn models/cnn/onnx/fp32.onnx models/cnn/preprocessed.onnx ... (see dvc.yaml)
"""

import logging
from pathlib import Path

import yaml

from stages.common.search.points import COLUMNS
from stages.common.search.search import Search
from stages.common.search.session_options import sentence as options_sentence
from stages.common.workspace import read_params, run_main, write_metrics, write_table, write_text


def recipe_text(model, chosen):
    """Return the recipe file: YAML that can be pasted under `calibrate_quantize`, or `fp32` where nothing is better."""
    if chosen is None:
        return f"# No static recipe for {model} meets the condition and beats fp32 on this machine: `tuned` is a copy of fp32.\ntuned-{model}: fp32\n"
    entry = yaml.safe_dump({f"tuned-{model}": chosen.recipe}, sort_keys=False)
    return (
        f"# What `tune` found for {model}. To keep it as a variant that no search changes, paste it under `calibrate_quantize`\n"
        "# in params.yaml and add its name to `variants`: the file will be the same, byte for byte.\n" + entry
    )


def main(model, fp32_path, preprocessed_path, images_path, labels_path, recipe_path, metrics_path, points_path):
    logging.getLogger().setLevel(logging.ERROR)  # the quantizer's advice on recipes, some of which are here to be timed
    plan = read_params(f"tune.{model}")
    evaluate = read_params("evaluate") | {"output": read_params(f"models.{model}.evaluate").get("output")}
    hand_written, shared = read_params("calibrate_quantize"), read_params("calibrate")
    scaling, threads = read_params(f"models.{model}.input"), read_params("benchmark.threads")
    batches = read_params(f"models.{model}.benchmark.batches")
    batch = max(batches) if plan["objective"] == "throughput" else plan["batch"]
    files = (fp32_path, preprocessed_path, images_path, labels_path)
    found = Search(plan, hand_written, shared, files, scaling, batch=batch, evaluate=evaluate, threads=threads)
    found.run()
    settings = {"objective": plan["objective"], "batch": batch, "threads": threads, "max_drop": plan["max_drop"]}
    metrics = settings | found.metrics | {"fp32_size_bytes": Path(fp32_path).stat().st_size}
    write_table(points_path, COLUMNS, [point.row() for point in found.points])
    write_text(recipe_path, recipe_text(model, found.chosen))
    write_metrics(metrics_path, {model: metrics})
    print(sentence(model, metrics))
    print(options_sentence(metrics["session_options"]))


def sentence(model, metrics):
    """Return the result in a line."""
    tried = f"{metrics['points']['tried']} recipes in {metrics['seconds']:.0f} s"
    if metrics["chosen"] == "fp32":
        return f"{model}: {tried}, none is better than fp32 at batch {metrics['batch']}: tuned is a copy of fp32"
    speed = "{speedup:.2f}x ({speedup_low:.2f}-{speedup_high:.2f})".format(**metrics)
    if metrics["objective"] == "size":
        speed = f"{metrics['size_bytes']:,} bytes of {metrics['fp32_size_bytes']:,}, {speed}"
    over = metrics.get("over_hand_written")
    words = (
        f", {over['speedup']:.2f}x ({over['speedup_low']:.2f}-{over['speedup_high']:.2f}) of {metrics['best_hand_written']['name']}"
        if over
        else ""
    )
    change, what = 100 * metrics["validation"]["accuracy_change"], "accuracy" if metrics["labelled"] else "agreement"
    return f"{model}: {tried}, tuned is {metrics['chosen']}: {speed} of fp32 at batch {metrics['batch']}{words}, {what} {change:+.2f} points"


if __name__ == "__main__":
    run_main(main)
