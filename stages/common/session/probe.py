"""Load a model file and run it on a batch, in a process of its own, under whichever onnxruntime is on the path.

    python -m stages.common.session.probe model.onnx batch.npy     prints the version of onnxruntime, then a line of JSON

A process of its own, because an older runtime cannot share one with the current one, and because a crash is a result.
"""

import json
import re
import sys

import numpy as np

from stages.common.session.model_io import output_names, run
from stages.common.session.runtime import open_session


def probe(model_path, batch):
    """Return {loads, runs, finite} as 1 or 0, with `error` (status and operator) and `message` where one is 0."""
    result = {"loads": 0, "runs": 0, "finite": 0}
    try:
        session = open_session(model_path, threads=1)
        result["loads"] = 1
        outputs = [output for found in run(session, batch, output_names(session)) for output in found]
        result["runs"] = 1
    except Exception as error:  # onnxruntime has a class for every status; all of them are results here
        return {**result, "error": short(str(error)), "message": str(error)}
    if all(np.isfinite(output).all() for output in outputs if output.dtype.kind == "f"):
        return {**result, "finite": 1}
    return {**result, "error": "non-finite outputs", "message": "the outputs hold NaN or infinity"}


def short(message):
    """Return the status and the operator of an onnxruntime message, at most 40 characters.

    "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for ConvInteger(10) node ..." becomes
    "NOT_IMPLEMENTED ConvInteger".
    """
    status = re.search(r"\[ONNXRuntimeError\] : \d+ : (\w+)", message)
    operator = re.search(r"for (\w+)\(\d+\) node|running (\w+) node|Op type: ?(\w+)|Fatal error: ([\w.:]+)\(", message)
    parts = [
        status[1] if status else message.split("\n")[0],
        next((group for group in operator.groups() if group), "") if operator else "",
    ]
    return " ".join(part for part in parts if part)[:40]


if __name__ == "__main__":
    import onnxruntime

    print(onnxruntime.__version__, flush=True)  # at once: what happens from here on is the model's doing
    print(json.dumps(probe(sys.argv[1], np.load(sys.argv[2], allow_pickle=False))))
