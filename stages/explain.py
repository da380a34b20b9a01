"""Explain why a variant is faster or slower: what runs in integers, where the time goes, and the causes in words.

Writes the graphs that onnxruntime runs (models/<model>/optimized/), the causes, time by original layer as a table and
a figure, and counts, memory and the largest cause as metrics. It profiles alone on the machine.

    python -m stages.explain cnn models/cnn/onnx models/cnn/preprocessed.onnx ... (see dvc.yaml)
"""

import math
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from stages.common.cpu import usable_cores
from stages.common.explanation.causes import find_causes
from stages.common.explanation.layer_times import LayerTimes
from stages.common.explanation.time_figure import draw_times
from stages.common.images import load_images, to_input
from stages.common.machine_lock import machine_lock
from stages.common.profiling.optimized_graph import Original, count_graph, group_layers, map_nodes, save_optimized
from stages.common.profiling.profile import measure_profiles
from stages.common.profiling.session_memory import session_bytes
from stages.common.profiling.wording import unexplained
from stages.common.quantization import float_layers
from stages.common.session.concurrency import map_in_order
from stages.common.timing import same_files
from stages.common.workspace import read_metrics, read_params, run_main, whole_file, write_metrics, write_table

BASELINE = "fp32"
CAUSE_COLUMNS = ["variant", "batch", "microseconds", "kind", "layer", "cause"]
COLUMNS = ["variant", "batch", "layer", "kind", "op_types", "microseconds", "calls"]
UNEXPLAINED_PERCENT = 15.0  # above it the profile does not tell where the time of the call goes
SPEEDUP_RATIO = 1.15  # between this run and the benchmark; above it one of them was disturbed, or both


def optimize(paths, folder, *, threads):
    """Save every file's optimized graph to `folder`; return {variant: ModelProto}."""
    graphs = {}
    for variant, path in paths.items():
        with whole_file(folder / f"{variant}.onnx") as temporary:
            graphs[variant] = save_optimized(path, temporary, threads=threads)
    return graphs


def explain(paths, graphs, preprocessed, inputs, *, rounds, seconds, threads):
    """Return ({batch: {variant: LayerTimes}}, causes, metrics) of all variants.

    `paths`: {variant: file} with "fp32" first; `graphs`: {variant: optimized ModelProto}; `preprocessed`: the ModelProto
    whose nodes are the layers; `inputs`: {batch: (batch, ...) of the model's input}.
    """
    original, weighted = Original.of(preprocessed), float_layers(preprocessed)
    nodes = {variant: map_nodes(graph, original) for variant, graph in graphs.items()}
    layers = group_layers(original, nodes.values())
    same = same_files(paths)
    with machine_lock():
        files = {variant: path for variant, path in paths.items() if variant not in same}
        profiles, cost = measure_profiles(files, graphs, inputs, rounds=rounds, seconds=seconds, threads=threads)
    profiles |= {(variant, batch): profiles[same[variant], batch] for variant in same for batch in inputs}
    # in processes of their own, which do not disturb each other's memory as they would each other's time
    memory = map_in_order(partial(session_bytes, threads=threads), paths.values(), usable_cores())
    memory = dict(zip(paths, memory, strict=True))
    metrics = {
        variant: {**count_graph(nodes[variant], graph, weighted, original), "session_bytes": memory[variant]}
        for variant, graph in graphs.items()
    }
    times, causes = {}, []
    for batch in inputs:
        times[batch] = {variant: LayerTimes(profiles[variant, batch], nodes[variant], layers) for variant in paths}
        for variant in paths:
            found = find_causes(variant, batch, times[batch], original, weighted)
            causes += found
            metrics[variant][f"batch_{batch}"] = batch_metrics(profiles[variant, batch], times[batch][BASELINE], found)
    return times, causes, {**metrics, "rounds": rounds, "threads": threads, "profiler_us_per_node": round(cost, 3)}


def batch_metrics(profile, baseline, causes):
    """Return the metrics of a variant at one batch size; the largest cause only where the profile shows one."""
    metrics = {
        "call_us": round(float(np.median(profile.wall)), 3),
        "speedup": round(float(np.median(baseline.wall / profile.wall)), 4),
        "unexplained_percent": round(profile.unexplained_percent, 2),
        "activation_bytes": profile.activation_bytes,
    }
    if causes:
        metrics |= {
            "top_cause_us": causes[0]["microseconds"],
            "top_cause": (causes[0]["layer"] or causes[0]["kind"])[:40],
        }
    return metrics


def doubts(metrics, benchmark, variants, batches):
    """Yield a sentence for every number that does not bear its explanation."""
    for variant in variants:
        for batch in batches:
            cell = metrics[variant][f"batch_{batch}"]
            if abs(cell["unexplained_percent"]) > UNEXPLAINED_PERCENT:
                yield f"{variant} at batch {batch}: {unexplained(cell['unexplained_percent'])}"
            seen = benchmark.get(variant, {}).get(f"batch_{batch}", {}).get("speedup")
            if seen and abs(math.log(cell["speedup"] / seen)) > math.log(SPEEDUP_RATIO):
                yield f"{variant} at batch {batch}: {cell['speedup']:.2f}x here, {seen:.2f}x in the benchmark: one of the two was disturbed, or both"


def time_rows(times):
    """Return the COLUMNS rows of the time by layer."""
    return [
        [*row[:5], f"{row[5]:.2f}", row[6]]
        for batch, profiles in times.items()
        for variant, found in profiles.items()
        for row in found.rows(variant, batch)
    ]


def main(model, onnx_folder, preprocessed_path, verified_folder, benchmark_path, images_path,
         optimized_folder, metrics_path, causes_path, table_path, figure_path):  # fmt: skip
    batches, scaling = read_params(f"models.{model}.benchmark.batches"), read_params(f"models.{model}.input")
    threads, plan = read_params("benchmark.threads"), read_params("explain.time")
    plan["rounds"] = read_params(f"models.{model}.explain").get("rounds", plan["rounds"])  # a model can have its own
    paths = {BASELINE: Path(onnx_folder) / f"{BASELINE}.onnx"}
    for variant in read_params("variants"):
        if read_metrics(Path(verified_folder) / f"{variant}.json")[model][variant]["finite"]:
            paths[variant] = Path(onnx_folder) / f"{variant}.onnx"
    images = load_images(images_path)
    inputs = {batch: to_input(images[:batch], **scaling) for batch in sorted(batches)}
    graphs = optimize(paths, Path(optimized_folder), threads=threads)
    times, causes, metrics = explain(paths, graphs, onnx.load(preprocessed_path), inputs, threads=threads, **plan)
    write_table(causes_path, CAUSE_COLUMNS, [[cause[column] for column in CAUSE_COLUMNS] for cause in causes])
    write_metrics(metrics_path, {model: metrics})
    write_table(table_path, COLUMNS, time_rows(times))
    shown = sorted(batches)[len(batches) // 2]
    with whole_file(figure_path) as temporary:
        draw_times(temporary, model=model, batch=shown, profiles=times[shown])
    for doubt in doubts(metrics, read_metrics(benchmark_path)[model], paths, inputs):
        print(f"warning: {doubt}")
    print(f"{model}: {len(causes)} causes; the largest at batch {shown}:")
    for variant in paths:
        first = next((cause for cause in causes if (cause["variant"], cause["batch"]) == (variant, shown)), None)
        if first:
            print(f"  {variant}: {first['cause']}")


if __name__ == "__main__":
    run_main(main)
