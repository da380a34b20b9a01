"""Time files of onnxruntime and OpenVINO in the same interleaved rounds; runs in OpenVINO's environment of toolkits.py.

python -m stages.tools.time_toolkits plan.json folder       writes calls.json and predictions.npz into the folder
"""

import json
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from stages.common.images import first_input, input_batches, load_images
from stages.common.machine_lock import machine_lock
from stages.common.session.model_io import as_logits, judged_output, output_names, run
from stages.common.timing import LEAST_WARMUP_CALLS, measure, round_medians, time_calls
from stages.common.workspace import run_main
from stages.tools.openvino_session import open_file

FEWEST_ROUNDS = 5
REST = 2  # times the budget of the timed calls: what opening and warming up may take besides, in all rounds
FEWEST_IMAGES = 100
TOLERANCE = 1e-3  # of logits: sums depend on the size of the batch in their last bits


def affordable_rounds(files, inputs, *, rounds, seconds, threads):
    """Return how many of `rounds` there is time for, at least FEWEST_ROUNDS: big files take seconds to open and to call."""
    for path in {Path(path).suffix: path for path in files.values()}.values():
        open_file(path, threads=threads)  # the first one of a runtime loads its library
    start = time.monotonic()
    for path in files.values():
        session = open_file(path, threads=threads)
        for values in inputs.values():
            time_calls(session, values, LEAST_WARMUP_CALLS + 1)
    return int(np.clip(REST * seconds / (time.monotonic() - start), FEWEST_ROUNDS, rounds))


def affordable_images(rows, names, *, images, seconds):
    """Return how many of `images` the files `names` can predict in a number of seconds, by their timed calls."""
    medians = round_medians(rows)
    batch = max(batch for _, batch in medians)
    an_image = sum(np.median(medians[name, batch]) for name in names) / batch / 1e9
    return int(min(images, max(FEWEST_IMAGES, seconds / an_image))) if names else images


def predict(path, images_path, scaling, *, images, batch_size, threads, output=None):
    """Return the logits (images, classes) float32 of the first stored images, as runtime.predict_images does.

    A call has one thread, as there, and calls are made one by one whatever `threads` says: OpenVINO's share their memory.
    """
    session = open_file(path, threads=1)
    judged = judged_output(output_names(session), output, path)
    batches = input_batches(load_images(images_path), batch_size=batch_size, path=images_path, limit=images, **scaling)
    return np.concatenate(
        [np.array(as_logits(found)) for batch in batches for [found] in run(session, batch, [judged])]
    )


def stored_logits(stored_path, path, images_path, scaling, **settings):
    """Return the logits that `evaluate` stored of a file, None where they are not there or not the file's.

    The first batch tells. It is a whole one, because what a dynamic file predicts depends on what else is in the batch.
    """
    if not Path(stored_path).is_file():
        return None
    stored, checked = (
        np.load(stored_path, allow_pickle=False)["logits"],
        min(settings["batch_size"], settings["images"]),
    )
    own = predict(path, images_path, scaling, **settings | {"images": checked})
    same = stored[:checked].shape == own.shape and np.allclose(stored[:checked], own, rtol=TOLERANCE, atol=TOLERANCE)
    return stored if same else None


def all_logits(plan, rows, *, seconds):
    """Return {name: logits (images, classes)} of the same first images, of as many as there is time for."""
    arguments, found = (plan["images"], plan["scaling"]), {}
    for name, path in plan["files"].items():
        if name in plan["stored"]:
            logits = stored_logits(plan["stored"][name], path, *arguments, **plan["predict"])
            if logits is not None:
                found[name] = logits
    missing = [name for name in plan["files"] if name not in found]
    images = affordable_images(rows, missing, images=plan["predict"]["images"], seconds=seconds)
    for name in tqdm(missing, desc=f"predict {images} images", unit="file", mininterval=1):
        found[name] = predict(plan["files"][name], *arguments, **plan["predict"] | {"images": images})
    return {name: logits[:images] for name, logits in found.items()}


def main(plan_path, folder):
    """`plan_path`: JSON with files {name: path}, stored {name: predictions of it}, images, scaling, batches, measure and
    predict (keyword arguments)."""
    plan = json.loads(Path(plan_path).read_text(encoding="utf-8"))
    inputs = {batch: first_input(plan["images"], batch, **plan["scaling"]) for batch in plan["batches"]}
    settings = plan["measure"]
    with machine_lock():
        budget = {key: settings[key] for key in ("rounds", "seconds", "threads")}
        rounds = affordable_rounds(plan["files"], inputs, **budget)
        rows = measure(plan["files"], inputs, open_file=open_file, **settings | {"rounds": rounds})
    logits = all_logits(plan, rows, seconds=settings["seconds"])
    (Path(folder) / "calls.json").write_text(json.dumps(rows, default=int), encoding="utf-8")
    np.savez(Path(folder) / "predictions.npz", **logits)


if __name__ == "__main__":
    run_main(main)
