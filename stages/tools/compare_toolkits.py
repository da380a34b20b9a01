"""What other toolkits make of a model on this machine: OpenVINO with NNCF, and Olive, beside the pipeline's own files.

Each toolkit quantizes fp32.onnx by its defaults with the calibration images of `calibrate`, in an environment of its own
that is made at the first call (some hundred MB; never a dependency of the project). All files are then timed in the same
interleaved rounds, as `benchmark` does, and predict the same test images.

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
from stages.common.images import labels_or_none, load_images, to_input
from stages.common.reporting.tables import Cell, machine_sentence, markdown
from stages.common.statistics.paired import compare
from stages.common.workspace import UserError, read_metrics, read_params
from stages.tools.toolkits import PACKAGES, ensure_toolkit, run_in

MADE = {"openvino": ("openvino-fp32.xml", "openvino-nncf.xml"), "olive": ("olive-static.onnx",)}


def make_files(model, folder, without):
    """Quantize with every toolkit that is wanted; return {name: file}."""
    calibrate, scaling = read_params("calibrate"), read_params(f"models.{model}.input")
    images = load_images(f"data/{read_params('dataset')}/train-images.npy")
    indices = draw_indices(seed=calibrate["seed"], images=calibrate["images"], available=len(images))
    np.save(folder / "calibration.npy", to_input(images[indices], **scaling))
    files = {}
    for toolkit in PACKAGES:
        if toolkit not in without:
            arguments = f"models/{model}/onnx/fp32.onnx", folder / "calibration.npy", folder
            run_in(ensure_toolkit(toolkit), f"stages.tools.quantize_{toolkit}", *arguments)
            files |= {Path(name).stem: folder / name for name in MADE[toolkit]}
    return files


def measure_files(model, files, folder, *, seconds):
    """Time and predict with all files in one process; return (summary as the benchmark's, {name: logits})."""
    settings, evaluate = read_params("benchmark"), read_params("evaluate")
    plan = {
        "files": {name: str(path) for name, path in files.items()},
        "images": f"data/{read_params('dataset')}/test-images.npy",
        "scaling": read_params(f"models.{model}.input"),
        "batches": read_params(f"models.{model}.benchmark.batches"),
        "measure": {**settings, "seconds": seconds},
        "predict": {**evaluate, **read_params(f"models.{model}.evaluate")},
    }
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    run_in(ensure_toolkit("openvino"), "stages.tools.time_toolkits", folder / "plan.json", folder)
    rows = json.loads((folder / "calls.json").read_text(encoding="utf-8"))
    return summarize(rows), dict(np.load(folder / "predictions.npz", allow_pickle=False))


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


def heading(model, without):
    """Return what the table was measured on and how."""
    packages = [package for name in PACKAGES if name not in without for package in PACKAGES[name]]
    rounds, threads = read_params("benchmark.rounds"), read_params("benchmark.threads")
    return (
        f"{machine_sentence(read_metrics('metrics/machine.json'))}, {', '.join(packages)}\n"
        f"{model}: speed is the time of onnxruntime's fp32 / the time of the file, {rounds} interleaved rounds, {threads} "
        f"thread(s); `{CONTROL}` is the control"
    )


def compare_toolkits(model, *, seconds, without):
    """Return the table of a model's files and those that the toolkits make of it, as Markdown under a heading."""
    if model not in read_params("models"):
        raise UserError(f"there is no model {model!r}: params.yaml has {', '.join(read_params('models'))}.")
    onnx_folder, verified, data = (
        Path(f"models/{model}/onnx"),
        Path(f"metrics/verify-load/{model}"),
        Path("data") / read_params("dataset"),
    )
    own = files_to_time(onnx_folder, verified, model, read_params("variants"))
    with tempfile.TemporaryDirectory() as folder:
        files = own | make_files(model, Path(folder), without)
        summary, logits = measure_files(model, files, Path(folder), seconds=seconds)
        labels = labels_or_none(data / "test-labels.npy", len(load_images(data / "test-images.npy")))
        rows = table(files, summary, logits, labels if labels is None else labels[: len(logits[BASELINE])])
    return f"{heading(model, without)}\n\n{markdown(rows)}"


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a key of `models` in params.yaml")
    parser.add_argument("--seconds", type=float, default=60, help="time budget of the timed calls (default: 60)")
    parser.add_argument("--without", choices=["olive"], action="append", default=[], help="leave a toolkit out")
    arguments = parser.parse_args()
    print(compare_toolkits(arguments.model, seconds=arguments.seconds, without=arguments.without))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
