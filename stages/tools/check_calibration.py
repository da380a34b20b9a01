"""Measure what calibration costs: peak memory against the number of images, and time against onnxruntime's own.

Two promises, for every method. Peak memory does not grow with the calibration set: at 10,000 images, or all if there are
fewer, at most 1.15 times that at 200, each in a process of its own. An image costs at most twice what it costs onnxruntime's calibrator, which
keeps all 200 in memory and is given them as the pipeline would: the median of ratios of interleaved runs.

    python -m stages.tools.check_calibration cnn            # all methods
    python -m stages.tools.check_calibration cnn MinMax     # one
"""

import argparse
import contextlib
import io
import resource
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from stages.common.calibration.settings import METHODS
from stages.common.workspace import UserError, read_params
from stages.tools.arguments import check_file, check_model

IMAGES, MANY_IMAGES, BATCH_SIZE = 200, 10_000, 20
ROUNDS = 3
MEMORY_BOUND, TIME_BOUND = 1.15, 2.0


def calibrate_images(preprocessed_path, images_path, scaling, *, images, method, batch_size=BATCH_SIZE):
    """Run the pipeline's calibration; return (seconds, peak resident memory of this process in MB)."""
    from stages.common.calibration.collection import draw_indices  # noqa: PLC0415
    from stages.common.calibration.static_quantization import calibrate  # noqa: PLC0415 -- the process that asks is to stay small
    from stages.common.images import load_images  # noqa: PLC0415

    indices = draw_indices(seed=0, images=images, available=len(load_images(images_path)))
    start = time.perf_counter()
    calibrate(preprocessed_path, images_path, indices, scaling, batch_size=batch_size, method=method, **METHODS[method])
    return time.perf_counter() - start, peak_megabytes()


def peak_megabytes():
    """Return this process's peak resident memory in MB; the system counts it in kB, macOS in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def onnxruntime_seconds(preprocessed_path, images_path, scaling, *, images, method):
    """Return the seconds that onnxruntime's own calibrator takes with everything in memory, same batches."""
    from onnxruntime.quantization import CalibrationMethod, create_calibrator  # noqa: PLC0415

    from stages.common.calibration.collection import Reader  # noqa: PLC0415
    from stages.common.images import load_images, to_input  # noqa: PLC0415

    inputs = to_input(load_images(images_path)[:images], **scaling)
    batches = [inputs[start : start + BATCH_SIZE] for start in range(0, images, BATCH_SIZE)]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        calibrator = create_calibrator(
            Path(preprocessed_path),
            None,
            f"{folder}/augmented.onnx",
            calibrate_method=CalibrationMethod[method],
            extra_options=METHODS[method],
        )
        calibrator.collect_data(Reader(calibrator.infer_session.get_inputs()[0].name, batches))
        calibrator.compute_data()
    return time.perf_counter() - start


def in_a_process(function, *arguments, **settings):
    """Return what a function returns in a new process, whose peak memory is its own.

    Not "spawn": Linux counts the peak of the process that calls exec as the new program's, so a large caller would hide
    what is measured. The fork server is small.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        return pool.submit(function, *arguments, **settings).result()


def check(method, files, *, few, many):
    """Print the figures of one method; return whether both bounds hold. `few`, `many`: images, of which memory is held."""
    counts = list(dict.fromkeys((few, many)))
    peaks = [in_a_process(calibrate_images, *files, images=images, method=method)[1] for images in counts]
    growth = peaks[-1] / peaks[0]
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(in_a_process(calibrate_images, *files, images=few, method=method)[0])
        theirs.append(in_a_process(onnxruntime_seconds, *files, images=few, method=method))
    ratio = statistics.median(own / other for own, other in zip(ours, theirs, strict=True))
    memory = ", ".join(f"{peak:.0f} MB at {images:,} images" for peak, images in zip(peaks, counts, strict=True))
    print(
        f"{method:10}  peak memory {memory}{f': {growth:.2f}x' if many > few else ''}"
        f"  |  {1000 * statistics.median(ours) / few:.2f} ms an image, onnxruntime's own {1000 * statistics.median(theirs) / few:.2f}: {ratio:.2f}x",
        flush=True,
    )
    return growth <= MEMORY_BOUND and ratio <= TIME_BOUND


def image_counts(available):
    """Return (few, many) images of which memory is compared; say so where there are not as many as it takes."""
    few, many = min(IMAGES, available), min(MANY_IMAGES, available)
    if few == many:
        print(
            f"there are {available:,} training images, too few to see whether memory grows: more than {IMAGES} show it"
        )
    elif many < MANY_IMAGES:
        print(f"there are {available:,} training images: memory is compared at all of them, not at {MANY_IMAGES:,}")
    return few, many


def a_method(text):
    if text not in METHODS:
        raise argparse.ArgumentTypeError(f"{text!r} is no calibration method: take {', '.join(METHODS)}")
    return text


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m stages.tools.check_calibration", description=__doc__.split("\n")[0]
    )
    parser.add_argument("model", help="a key of `models` in params.yaml")
    parser.add_argument(
        "methods",
        nargs="*",
        type=a_method,
        default=list(METHODS),
        metavar="METHOD",
        help=f"{', '.join(METHODS)}; all of them if none is given",
    )
    options = parser.parse_args(arguments)
    check_model(options.model)
    preprocessed, images = (
        f"models/{options.model}/preprocessed.onnx",
        f"data/{read_params('dataset')}/train-images.npy",
    )
    check_file(preprocessed, f"preprocess@{options.model}")
    few, many = image_counts(images_in(images))
    files = (preprocessed, images, read_params(f"models.{options.model}.input"))
    missed = [method for method in options.methods if not check(method, files, few=few, many=many)]
    if missed:
        sys.exit(f"a bound does not hold for {', '.join(missed)}: {MEMORY_BOUND}x memory, {TIME_BOUND}x time")


def images_in(path):
    """Return how many images a stored array has."""
    from stages.common.images import load_images  # noqa: PLC0415 -- as above

    return len(load_images(path))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
