"""Search the static recipes for the fastest (or smallest) whose accuracy holds, by measurement on this machine.

Every point that was tried is a row of the table, with the reason why it was dropped. What is written is a recipe;
`build-tuned` makes the variant `tuned` from it. Given in params.yaml as `tune.<model>.recipe`, it is the only point, is
measured in the same way, and is kept whatever comes out. Validation images are training images that neither training
nor calibration has seen; the test set is not looked at. The search holds the machine's lock. What a session option
would bring is measured at the end, within `tune.<model>.seconds`, and reported apart: no file that is written needs one.

    python -m stages.tune cnn models/cnn/onnx/fp32.onnx models/cnn/preprocessed.onnx ... (see dvc.yaml)
"""

import logging
from pathlib import Path

from stages.common.chance import no_better_than_one_class
from stages.common.search.given import GivenRecipe
from stages.common.search.points import COLUMNS
from stages.common.search.search import Search
from stages.common.search.session_options import sentence as options_sentence
from stages.common.tuned_recipe import FP32, GIVEN, by_chance, doubts, entry
from stages.common.workspace import read_params, run_main, write_metrics, write_table, write_text

PASTE = """\
# To keep it, and search no more, paste these lines as they are under the model's name in the section `tune` of
# params.yaml: the file will be the same, byte for byte. Under `calibrate_quantize` they would be a variant of every model.
"""


def recipe_text(model, chosen, *, given):
    """Return the recipe file: YAML that can be pasted under `tune.<model>`; `chosen` is a Point, None for fp32."""
    if given:
        words = f"# The recipe that params.yaml gives for {model}, with all settings of its calibration.\n"
    elif chosen is None:
        words = f"# No static recipe for {model} meets the condition and beats fp32 on this machine: `tuned` is a copy of fp32.\n"
    else:
        words = f"# What `tune` found for {model}.\n"
    return words + ("" if given else PASTE) + entry(FP32 if chosen is None else chosen.recipe)


def main(model, fp32_path, preprocessed_path, images_path, labels_path, recipe_path, metrics_path, points_path):
    logging.getLogger().setLevel(logging.ERROR)  # the quantizer's advice on recipes, some of which are here to be timed
    plan = read_params(f"tune.{model}")
    evaluate = read_params("evaluate") | {"output": read_params(f"models.{model}.evaluate").get("output")}
    shared, given = read_params("calibrate"), plan.get("recipe")
    hand_written = read_params("calibrate_quantize") if given is None else {} if given == FP32 else {GIVEN: given}
    scaling, threads = read_params(f"models.{model}.input"), read_params("benchmark.threads")
    batches = read_params(f"models.{model}.benchmark.batches")
    batch = max(batches) if plan["objective"] == "throughput" else plan["batch"]
    files = (fp32_path, preprocessed_path, images_path, labels_path)
    search = GivenRecipe if given else Search
    found = search(plan, hand_written, shared, files, scaling, batch=batch, evaluate=evaluate, threads=threads)
    found.run()
    settings = {"objective": plan["objective"], "batch": batch, "threads": threads, "max_drop": plan["max_drop"]}
    metrics = settings | ({GIVEN: 1} if given else {}) | found.metrics
    metrics["fp32_size_bytes"] = Path(fp32_path).stat().st_size
    write_table(points_path, COLUMNS, [point.row() for point in found.points])
    write_text(recipe_path, recipe_text(model, found.chosen, given=given))
    write_metrics(metrics_path, {model: metrics})
    if no_better_than_one_class(metrics["fp32_validation"]):
        print(f"warning: {by_chance(metrics['fp32_validation'])}")
    print(sentence(model, metrics))
    if against := doubts(metrics):
        print(f"warning: `tune.{model}.recipe` is kept, although {' and '.join(against)}")
    print(options_sentence(metrics["session_options"]))


def sentence(model, metrics):
    """Return the result in a line."""
    count = metrics["points"]["tried"]
    tried = f"{count} recipe{'s' * (count != 1)} in {metrics['seconds']:.0f} s"
    if GIVEN in metrics:
        tried = f"nothing searched, `tune.{model}.recipe` is given"
    elif metrics["chosen"] == FP32:
        tried += f", none is better than fp32 at batch {metrics['batch']}"
    if metrics["chosen"] == FP32:
        return f"{model}: {tried}: tuned is a copy of fp32"
    speed = "{speedup:.2f}x ({speedup_low:.2f}-{speedup_high:.2f})".format(**metrics)
    if metrics["objective"] == "size":
        speed = f"{metrics['size_bytes']:,} bytes of {metrics['fp32_size_bytes']:,}, {speed}"
    if GIVEN not in metrics:
        tried += f", tuned is {metrics['chosen']}"
    over = metrics.get("over_hand_written")
    words = (
        f", {over['speedup']:.2f}x ({over['speedup_low']:.2f}-{over['speedup_high']:.2f}) of {metrics['best_hand_written']['name']}"
        if over
        else ""
    )
    change, what = 100 * metrics["validation"]["accuracy_change"], "accuracy" if metrics["labelled"] else "agreement"
    return f"{model}: {tried}: {speed} of fp32 at batch {metrics['batch']}{words}, {what} {change:+.2f} points"


if __name__ == "__main__":
    run_main(main)
