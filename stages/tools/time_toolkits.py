"""Time files of onnxruntime and OpenVINO in the same interleaved rounds; runs in OpenVINO's environment of toolkits.py.

python -m stages.tools.time_toolkits plan.json folder       writes calls.json and predictions.npz into the folder
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from stages.common.images import first_input, input_batches, load_images
from stages.common.machine_lock import machine_lock
from stages.common.session.model_io import as_logits, judged_output, output_names, run
from stages.common.session.runtime import open_session
from stages.common.timing import measure


class OpenVinoSession:
    """A compiled OpenVINO model with the methods of an onnxruntime session; its input and output share memory."""

    def __init__(self, path, *, threads):
        import openvino  # noqa: PLC0415 -- only in OpenVINO's environment, and only for its files

        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
        settings["INFERENCE_PRECISION_HINT"] = "f32"  # else float layers run in bfloat16 where the processor can
        core = openvino.Core()
        self.compiled = core.compile_model(core.read_model(path), "CPU", settings)
        self.request = self.compiled.create_infer_request()

    def get_inputs(self):
        [value] = self.compiled.inputs
        batch = value.partial_shape[0]
        return [SimpleNamespace(name=value.any_name, shape=[batch.get_length() if batch.is_static else "batch"])]

    def get_outputs(self):
        return [SimpleNamespace(name=value.any_name) for value in self.compiled.outputs]

    def run(self, outputs, feed):
        found = self.request.infer(list(feed.values()), share_inputs=True, share_outputs=True)
        return [found[name] for name in outputs]


def open_file(path, *, threads):
    """Return what runs a file: OpenVINO for .xml, onnxruntime for .onnx."""
    return (OpenVinoSession if str(path).endswith(".xml") else open_session)(path, threads=threads)


def predict(path, images_path, scaling, *, images, batch_size, threads, output=None):
    """Return the logits (images, classes) float32 of the first stored images, as runtime.predict_images does."""
    session = open_file(path, threads=threads)
    judged = judged_output(output_names(session), output, path)
    batches = input_batches(load_images(images_path), batch_size=batch_size, path=images_path, limit=images, **scaling)
    return np.concatenate(
        [np.array(as_logits(found)) for batch in batches for [found] in run(session, batch, [judged])]
    )


def main(plan_path, folder):
    """`plan_path`: JSON with files {name: path}, images, scaling, batches, measure and predict (keyword arguments)."""
    plan = json.loads(Path(plan_path).read_text(encoding="utf-8"))
    inputs = {batch: first_input(plan["images"], batch, **plan["scaling"]) for batch in plan["batches"]}
    with machine_lock():
        rows = measure(plan["files"], inputs, open_file=open_file, **plan["measure"])
    logits = {
        name: predict(path, plan["images"], plan["scaling"], **plan["predict"]) for name, path in plan["files"].items()
    }
    (Path(folder) / "calls.json").write_text(json.dumps(rows, default=int), encoding="utf-8")
    np.savez(Path(folder) / "predictions.npz", **logits)


if __name__ == "__main__":
    main(*sys.argv[1:])
