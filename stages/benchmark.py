"""Time all variants of a model against its baseline, interleaved, one benchmark at a time on the machine.

The timed calls are in plots/benchmark/<model>.csv, of very quick ones every few. `fp32-again` is the baseline's
file once more: what it seems to gain or lose is what this machine's noise can do.

    python -m stages.benchmark cnn models/cnn/onnx metrics/verify-load/cnn ... (see dvc.yaml)
"""

from pathlib import Path

import numpy as np

from stages.common.cpu import CpuSeconds, disturbances
from stages.common.images import first_input, load_images
from stages.common.machine_lock import machine_lock
from stages.common.statistics.intervals import ratio_interval
from stages.common.timing import CALL_COLUMNS, measure, round_medians, same_files
from stages.common.workspace import UserError, read_metrics, read_params, run_main, write_metrics, write_table

BASELINE, CONTROL = "fp32", "fp32-again"


def files_to_time(folder, verified_folder, model, variants):
    """Return {variant: file} of the baseline, its second copy and every variant that verify-load saw working here."""
    paths = {BASELINE: folder / f"{BASELINE}.onnx", CONTROL: folder / f"{BASELINE}.onnx"}
    for variant in variants:
        verified = verified_folder / f"{variant}.json"
        if not verified.is_file():
            raise UserError(
                f"{verified} is not here, so it is not known whether {variant} works: `dvc repro verify-load`."
            )
        if read_metrics(verified)[model][variant]["finite"]:
            paths[variant] = folder / f"{variant}.onnx"
    for file in paths.values():
        if not file.is_file():
            raise UserError(
                f"{file} is not here: `dvc checkout {file}` brings what was made, `dvc repro verify-load` makes it."
            )
    for file in sorted(folder.glob("*.onnx")):
        if file.stem not in {BASELINE, *variants}:
            raise UserError(
                f"{file} is made by no stage: delete it or move it away, the benchmark depends on its folder."
            )
    return paths


def summarize(rows):
    """Return {variant: {batch_<b>: {median_ms, speedup, speedup_low, speedup_high}}} from the calls.

    `median_ms` is over all calls that are kept; `speedup` = fp32 time / variant time is the geometric mean of the per-round ratios of
    medians, with its 95 % t-interval. The baseline has `median_ms` only.
    """
    calls = {}
    for _, _, variant, batch, _, nanoseconds in rows:
        calls.setdefault((variant, batch), []).append(nanoseconds)
    medians, metrics = round_medians(rows), {}
    for (variant, batch), times in calls.items():
        cell = metrics.setdefault(variant, {}).setdefault(
            f"batch_{batch}", {"median_ms": float(np.median(times)) / 1e6}
        )
        if variant != BASELINE:
            speedup, low, high = ratio_interval(medians[BASELINE, batch] / medians[variant, batch])
            cell |= {"speedup": speedup, "speedup_low": low, "speedup_high": high}
    return metrics


def benchmark(paths, inputs, **settings):
    """Measure under the machine's lock; return (rows of calls, {other_work_percent, cpu_steal_percent})."""
    with machine_lock():
        start = CpuSeconds.now()
        rows = measure(paths, inputs, **settings)
        conditions = CpuSeconds.now().since(start)
    for disturbance in disturbances(conditions):
        print(f"warning: {disturbance}, which slows the calls and widens the intervals")
    return rows, conditions


def main(model, onnx_folder, verified_folder, images_path, metrics_path, calls_path):
    plan = read_params("benchmark") | read_params(f"models.{model}.benchmark")  # a model can have rounds of its own
    variants, scaling = read_params("variants"), read_params(f"models.{model}.input")
    if plan["rounds"] < 2:
        raise UserError(
            f"benchmark.rounds is {plan['rounds']}: an interval needs at least 2, and 20 give an honest one."
        )
    paths = files_to_time(Path(onnx_folder), Path(verified_folder), model, variants)
    images = load_images(images_path)
    if max(plan["batches"]) > len(images):
        raise UserError(
            f"models.{model}.benchmark.batches asks for {max(plan['batches'])} images and {images_path} has {len(images)}: ask for fewer."
        )
    inputs = {batch: first_input(images_path, batch, **scaling) for batch in plan.pop("batches")}
    same = same_files(paths, apart=CONTROL)  # a copy of fp32 has its second timing
    rows, conditions = benchmark({name: path for name, path in paths.items() if name not in same}, inputs, **plan)
    summary = summarize(rows)
    summary |= {variant: {**summary[timed], "same_file_as": timed} for variant, timed in same.items()}
    ordered = {variant: summary[variant] for variant in paths}
    write_metrics(
        metrics_path, {model: {**ordered, **conditions, "rounds": plan["rounds"], "threads": plan["threads"]}}
    )
    write_table(calls_path, CALL_COLUMNS, rows)
    print(f"{model}: {len(rows):,} calls of {len(paths) - len(same)} files in {plan['rounds']} rounds")
    for variant, cells in ordered.items():
        print(f"  {variant:24}  {f'the same file as {same[variant]}' if variant in same else times_in_words(cells)}")


def times_in_words(cells):
    """Return a variant's times at every batch size."""
    return "  ".join(
        f"{name} {cell['median_ms']:8.3f} ms {cell.get('speedup', 1):5.2f}x" for name, cell in cells.items()
    )


if __name__ == "__main__":
    run_main(main)
