"""What other toolkits make of a model on this machine: OpenVINO with NNCF, and Olive, beside the pipeline's own files.

Each toolkit quantizes fp32.onnx by its defaults with the calibration images of `calibrate`, in an environment of its own
that is made at the first call (some hundred MB; never a dependency of the project). All files are then timed in the same
interleaved rounds, as `benchmark` does, and predict the same test images. Where a toolkit's file is faster than the
pipeline's fastest, both are profiled, and a second table says which operators make the difference.

The time grows with the network: --seconds bounds the timed calls, the predictions and each profile, and if a round of
all files is long, fewer are made, five at least.

    python -m stages.tools.compare_toolkits cnn
    python -m stages.tools.compare_toolkits cnn --seconds 30 --without olive
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from stages.benchmark import BASELINE, CONTROL, files_to_time, summarize
from stages.common.calibration.collection import draw_indices
from stages.common.images import input_batches, labels_or_none, load_images
from stages.common.reporting.tables import Cell, machine_sentence, markdown
from stages.common.statistics.paired import compare
from stages.common.workspace import UserError, read_metrics, read_params
from stages.tools.arguments import check_model, positive_seconds
from stages.tools.lost_time import NOTHING_LOST, explain, find_losses
from stages.tools.toolkits import PACKAGES, ensure_toolkit, run_in

MADE = {"openvino": ("openvino-fp32.xml", "openvino-nncf.xml"), "olive": ("olive-static.onnx",)}
MACHINE = Path("metrics/machine.json")


def own_files(model):
    """Return ({name: file} of the pipeline's own, [names that are left out]): what the benchmark found slower than fp32
    at every batch size is no file to beat, and the slowest to time."""
    onnx_folder, verified = Path(f"models/{model}/onnx"), Path(f"metrics/verify-load/{model}")
    files, known = (
        files_to_time(onnx_folder, verified, model, read_params("variants")),
        Path(f"metrics/benchmark/{model}.json"),
    )
    speeds = read_metrics(known)[model] if known.is_file() else {}
    slower = [name for name in files if name not in (BASELINE, CONTROL) and _slower(speeds.get(name, {}))]
    return {name: path for name, path in files.items() if name not in slower}, slower


def _slower(cells):
    return bool(cells) and all(cell["speedup_high"] < 1 for cell in cells.values())


def save_calibration(path, model):
    """Save the calibration images of `calibrate` as the model's input, (images, C, H, W), batch by batch."""
    calibrate, scaling = read_params("calibrate"), read_params(f"models.{model}.input")
    stored_path = f"data/{read_params('dataset')}/train-images.npy"
    images = load_images(stored_path)
    indices = draw_indices(seed=calibrate["seed"], images=calibrate["images"], available=len(images))
    saved, end = None, 0
    for batch in input_batches(images[indices], batch_size=calibrate["batch_size"], path=stored_path, **scaling):
        if saved is None:
            shape = (len(indices), *batch.shape[1:])
            saved = np.lib.format.open_memmap(path, mode="w+", dtype=batch.dtype, shape=shape)
        saved[end : end + len(batch)] = batch
        end += len(batch)
    saved.flush()


def make_files(model, folder, without):
    """Quantize with every toolkit that is wanted; return {name: file}."""
    save_calibration(folder / "calibration.npy", model)
    files = {}
    for toolkit in PACKAGES:
        if toolkit not in without:
            arguments = f"models/{model}/onnx/fp32.onnx", folder / "calibration.npy", folder
            run_in(ensure_toolkit(toolkit), f"stages.tools.quantize_{toolkit}", *arguments)
            files |= {Path(name).stem: folder / name for name in MADE[toolkit]}
    return files


def measure_files(model, files, folder, *, seconds):
    """Time and predict with all files in one process; return (timed calls, {name: logits})."""
    settings, evaluate = read_params("benchmark"), read_params("evaluate")
    own = read_params(f"models.{model}.benchmark")
    plan = {
        "files": {name: str(path) for name, path in files.items()},
        "stored": {name: f"models/{model}/predictions/{name.removesuffix('-again')}.npz" for name in files},
        "images": f"data/{read_params('dataset')}/test-images.npy",
        "scaling": read_params(f"models.{model}.input"),
        "batches": own["batches"],
        "measure": {**settings, "rounds": own.get("rounds", settings["rounds"]), "seconds": seconds},
        "predict": {**evaluate, **read_params(f"models.{model}.evaluate")},
    }
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    run_in(ensure_toolkit("openvino"), "stages.tools.time_toolkits", folder / "plan.json", folder)
    rows = json.loads((folder / "calls.json").read_text(encoding="utf-8"))
    return rows, dict(np.load(folder / "predictions.npz", allow_pickle=False))


def explain_losses(model, files, losses, folder, *, seconds):
    """Profile the two files of every loss; return what they say as text."""
    if not losses:
        return NOTHING_LOST
    plan = {
        "batches": {batch: {name: str(files[name]) for name in names} for batch, (*names, _) in losses.items()},
        "images": f"data/{read_params('dataset')}/test-images.npy",
        "scaling": read_params(f"models.{model}.input"),
        "threads": read_params("benchmark.threads"),
        "seconds": seconds,
    }
    (folder / "profile-plan.json").write_text(json.dumps(plan), encoding="utf-8")
    run_in(ensure_toolkit("openvino"), "stages.tools.profile_toolkits", folder / "profile-plan.json", folder)
    profiles = json.loads((folder / "profiles.json").read_text(encoding="utf-8"))
    return "\n\n".join(explain(batch, loss, profiles[str(batch)]) for batch, loss in losses.items())


def table(files, summary, logits, labels):
    """Return the rows of the table: size, what the accuracy does, speed relative to onnxruntime's fp32 by batch size."""
    rows = []
    for name, path in files.items():
        judged = compare(logits[name], logits[BASELINE], labels)
        row = {
            "file": Cell(name),
            "size": Cell(f"{size_bytes(path) / 1024:,.0f} KiB"),
            "accuracy": Cell(accuracy(name, judged)),
            "changed": Cell("" if name == BASELINE else f"{judged['changed']}"),
        }
        for batch, cell in summary[name].items():
            speed = (
                "{speedup:.2f}x ({speedup_low:.2f}-{speedup_high:.2f})".format(**cell)
                if "speedup" in cell
                else f"{cell['median_ms']:.3g} ms"
            )
            row[batch.replace("_", " ")] = Cell(speed, strong=cell.get("speedup_low", 0) > 1)
        rows.append(row)
    return rows


def accuracy(name, judged):
    """Return the accuracy with its change, nothing where there are no labels."""
    if "accuracy" not in judged:
        return ""
    change = [100 * judged[key] for key in ("accuracy_change", "change_low", "change_high")]
    return f"{judged['accuracy']:.2%}" + ("" if name == BASELINE else " ({:+.2f}, {:+.2f} to {:+.2f})".format(*change))


def size_bytes(path):
    """Return the size of a model: of an .xml with the weights beside it."""
    return sum(part.stat().st_size for part in (Path(path), Path(path).with_suffix(".bin")) if part.is_file())


def heading(model, without, left_out, *, rounds, images):
    """Return what the table was measured on and how."""
    packages = [package for name in PACKAGES if name not in without for package in PACKAGES[name]]
    slower = (
        f"; left out, since the benchmark found them slower at every batch size: {', '.join(left_out)}"
        if left_out
        else ""
    )
    return (
        f"{machine_sentence(read_metrics(MACHINE))}, {', '.join(packages)}\n"
        f"{model}: speed is the time of onnxruntime's fp32 / the time of the file, {rounds} interleaved rounds, "
        f"{read_params('benchmark.threads')} thread(s), {images:,} test images; `{CONTROL}` is the control{slower}"
    )


def compare_toolkits(model, *, seconds, without):
    """Return the table of a model's files and those that the toolkits make of it, as Markdown under a heading, and what
    explains each batch size at which a toolkit's is the fastest."""
    check_model(model)
    if not MACHINE.is_file():
        raise UserError(f"{MACHINE} is not here, so there is nothing to say what was measured on: `dvc repro machine`.")
    data = Path("data") / read_params("dataset")
    labels = labels_or_none(data / "test-labels.npy", len(load_images(data / "test-images.npy")))
    own, left_out = own_files(model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        others = make_files(model, folder, without)
        files = own | others
        calls, logits = measure_files(model, files, folder, seconds=seconds)
        images, rounds = len(logits[BASELINE]), len({row[0] for row in calls})
        rows = table(files, summarize(calls), logits, labels if labels is None else labels[:images])
        lost = explain_losses(model, files, find_losses(calls, list(own), list(others)), folder, seconds=seconds)
    return f"{heading(model, without, left_out, rounds=rounds, images=images)}\n\n{markdown(rows)}\n\n{lost}"


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m stages.tools.compare_toolkits", description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a key of `models` in params.yaml")
    parser.add_argument(
        "--seconds",
        type=positive_seconds,
        default=60,
        help="time budget of the timed calls, of the predictions, and of each profile (default: 60)",
    )
    parser.add_argument("--without", choices=["olive"], action="append", default=[], help="leave a toolkit out")
    arguments = parser.parse_args()
    print(compare_toolkits(arguments.model, seconds=arguments.seconds, without=arguments.without))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
