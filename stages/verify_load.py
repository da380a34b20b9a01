"""Load a file and run it on a real batch, here and on every further runtime it must ship to.

That a variant does not load is a result, and is recorded as one; with verify_load.strict it is an error. The baseline
not loading here always is.

    python -m stages.verify_load cnn dynamic-qint8 models/cnn/onnx/dynamic-qint8.onnx ... (see dvc.yaml)
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from stages.common.images import first_input
from stages.common.session.runtimes import key_of, runtime_folder
from stages.common.workspace import UserError, read_params, run_main, write_metrics, write_text

HERE = "here"
PROBE_SECONDS = 120  # a large model needs some; a runtime that hangs must not hang the pipeline


def verify_load(onnx_path, batch, runtimes):
    """Return {runtime: result of the probe} for the environment's own runtime ("here") and the further ones.

    `batch` is the model's input, (N, ...). A runtime that is not installed is left out: not checked.
    """
    with tempfile.TemporaryDirectory() as folder:
        batch_path = f"{folder}/batch.npy"
        np.save(batch_path, batch)
        return {runtime: probe_with(runtime, onnx_path, batch_path) for runtime in [HERE, *runtimes]}


def probe_with(runtime, onnx_path, batch_path):
    """Run the probe in a process of its own under one runtime; a process that dies is a result, too.

    Raises UserError if another version answers than the one that was asked for, or none: then nothing was checked.
    """
    environment = dict(os.environ)
    if runtime != HERE:
        environment["PYTHONPATH"] = str(runtime_folder(runtime))
    command = [sys.executable, "-m", "stages.common.session.probe", str(onnx_path), batch_path]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"loads": 0, "runs": 0, "finite": 0, "error": "no answer", "message": f"no answer in {PROBE_SECONDS} s"}
    version = done.stdout.partition("\n")[0]
    if runtime not in (HERE, version):
        why = f"version {version} answers" if version else (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"onnxruntime {runtime} does not start from {runtime_folder(runtime)} ({why}): delete that folder and repeat, "
            "or take the version out of verify_load.runtimes."
        )
    if done.returncode != 0:
        error = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return {"loads": 0, "runs": 0, "finite": 0, "error": error, "message": done.stderr.strip() or error}
    return json.loads(done.stdout.splitlines()[-1])


def as_metrics(results, size_bytes):
    """Return the metrics of one variant: the numbers of this runtime, and the same per further runtime."""
    short = {
        runtime: {key: value for key, value in result.items() if key != "message"}
        for runtime, result in results.items()
    }
    return {
        **short.pop(HERE),
        "size_bytes": size_bytes,
        **{key_of(runtime): result for runtime, result in short.items()},
    }


def as_text(onnx_path, results, not_checked):
    """Return what a person reads: a line a runtime, with onnxruntime's full message where something failed."""
    lines = []
    for runtime, result in results.items():
        where = "on this onnxruntime" if runtime == HERE else f"on onnxruntime {runtime}"
        if "error" not in result:
            lines.append(f"{onnx_path} loads and runs {where}")
        else:
            verb = (
                "gives non-finite outputs" if result["runs"] else "does not run" if result["loads"] else "does not load"
            )
            lines.append(f"{onnx_path} {verb} {where}: {' '.join(result['message'].split())}")
    lines += [
        f"{onnx_path} was not checked on onnxruntime {runtime}, which could not be installed" for runtime in not_checked
    ]
    return "\n".join(lines) + "\n"


def main(model, variant, onnx_path, images_path, metrics_path, text_path):
    settings = read_params("verify_load")
    installed = read_params("runtimes", "metrics/machine.json")
    runtimes = [runtime for runtime in settings["runtimes"] if installed.get(key_of(runtime))]
    batch = first_input(images_path, settings["images"], **read_params(f"models.{model}.input"))
    results = verify_load(onnx_path, batch, runtimes)
    text = as_text(onnx_path, results, [runtime for runtime in settings["runtimes"] if runtime not in runtimes])
    print(text, end="")
    if "error" in results[HERE] and (variant == "fp32" or settings["strict"]):
        why = "the baseline must" if variant == "fp32" else "verify_load.strict asks for it"
        raise UserError(
            f"{onnx_path} does not load and run here ({results[HERE]['error']}), and {why}: take the variant out of params.yaml or mend it."
        )
    write_metrics(metrics_path, {model: {variant: as_metrics(results, Path(onnx_path).stat().st_size)}})
    write_text(text_path, text)


if __name__ == "__main__":
    run_main(main)
