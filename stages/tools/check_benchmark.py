"""Does the benchmark cry wolf? Time fp32 against itself many times and count the intervals that exclude 1.

With honest 95 % intervals one in twenty does by chance. More of them than such intervals would give at any batch size in
98 % of all checks mean that the intervals are too narrow on this machine (or that it was busy). Takes a few minutes.

    python -m stages.tools.check_benchmark cnn
    python -m stages.tools.check_benchmark cnn --repeats 40 --seconds 5
"""

import argparse
import sys

from scipy.stats import binom
from tqdm import tqdm

from stages.benchmark import BASELINE, CONTROL, benchmark, summarize
from stages.common.images import load_images, to_input
from stages.common.workspace import UserError, read_params
from stages.tools.arguments import check_file, check_model, positive_count, positive_seconds

CONFIDENCE = 0.98  # that a benchmark with exact 95 % intervals passes at all its batch sizes


def false_alarms(model, *, repeats, seconds):
    """Return ({batch: number of intervals that exclude 1}, {batch: mean half-width of the intervals in percent})."""
    settings, scaling = (
        read_params("benchmark") | read_params(f"models.{model}.benchmark"),
        read_params(f"models.{model}.input"),
    )
    images = load_images(f"data/{read_params('dataset')}/test-images.npy")
    inputs = {size: to_input(images[:size], **scaling) for size in settings.pop("batches")}
    paths = dict.fromkeys([BASELINE, CONTROL], f"models/{model}/onnx/fp32.onnx")
    alarms, widths = dict.fromkeys(inputs, 0), dict.fromkeys(inputs, 0.0)
    for repeat in tqdm(range(repeats), desc=f"{model} against itself", unit="benchmark"):
        rows, _ = benchmark(paths, inputs, show_progress=False, **settings | {"seconds": seconds, "seed": repeat})
        for batch in inputs:
            cell = summarize(rows)[CONTROL][f"batch_{batch}"]
            alarms[batch] += not cell["speedup_low"] <= 1 <= cell["speedup_high"]
            widths[batch] += 50 * (cell["speedup_high"] - cell["speedup_low"]) / repeats
    return alarms, widths


def allowed_alarms(repeats, sizes):
    """Return how many false alarms of `repeats` honest intervals give at most, at all of `sizes` batch sizes together."""
    return int(binom.ppf(CONFIDENCE ** (1 / sizes), repeats, 0.05))


def main(arguments=None):
    """Print the counts; exit with 1 if a batch size has more false alarms than honest intervals would give."""
    parser = argparse.ArgumentParser(prog="python -m stages.tools.check_benchmark", description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a key of `models` in params.yaml")
    parser.add_argument("--repeats", type=positive_count, default=40, help="benchmarks to run (default: 40)")
    parser.add_argument("--seconds", type=positive_seconds, default=5, help="time budget of each (default: 5)")
    arguments = parser.parse_args(arguments)
    check_model(arguments.model)
    is_exported = arguments.model in read_params("train")
    check_file(f"models/{arguments.model}/onnx/fp32.onnx", f"export@{arguments.model}" if is_exported else None)
    alarms, widths = false_alarms(arguments.model, repeats=arguments.repeats, seconds=arguments.seconds)
    allowed = allowed_alarms(arguments.repeats, len(alarms))
    for batch, count in alarms.items():
        print(
            f"batch {batch}: {count} of {arguments.repeats} intervals exclude 1, half-width {widths[batch]:.2f} % (at most {allowed} expected)"
        )
    if max(alarms.values()) > allowed:
        sys.exit(
            "the intervals are too narrow for this machine as it is now: stop other work, or raise benchmark.rounds"
        )


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
