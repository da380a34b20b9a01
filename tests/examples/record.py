"""Keep what a followed example measured: its metrics, and the tables of them in the README files here.

python -m tests.examples.follow text-angle ../run
python -m tests.examples.record text-angle ../run
"""

import json
import shutil
from datetime import date
from pathlib import Path

import onnx

from stages.common.model_file import opset_of
from stages.common.quantization import float_layers
from stages.common.reporting.results import load_results
from stages.common.reporting.tables import Cell, machine_sentence, markdown, summary_rows
from stages.common.reporting.verdict import sentence
from stages.common.workspace import UserError, read_metrics, read_params, run_main, write_text
from stages.tools.update_readme import with_results

HERE = Path(__file__).parent
EXAMPLES = ("text-angle", "page-angle", "digits")


def facts(run, example):
    """Return what a run tells of a network and the day: opset, layers with weights, depthwise ones, packages."""
    model = onnx.load(run / "models" / example / "onnx" / "fp32.onnx")
    prepared = onnx.load(run / "models" / example / "preprocessed.onnx")
    groups = [
        attribute.i
        for node in prepared.graph.node
        for attribute in node.attribute
        if node.op_type == "Conv" and attribute.name == "group"
    ]
    measured = (run / "metrics" / "benchmark" / f"{example}.json").stat().st_mtime
    return {
        "opset": opset_of(model),
        "layers": len(float_layers(prepared)),
        "depthwise": sum(group > 1 for group in groups),
        "date": date.fromtimestamp(measured).isoformat(),
    }


def example_section(example):
    """Return the results of one example in Markdown, from the metrics that are kept beside its README."""
    root = HERE / example
    variants = read_params("variants", root / "params.yaml")
    network, machine = read_metrics(root / "metrics" / "network.json"), read_metrics(root / "metrics" / "machine.json")
    [(_, found)] = load_results(root, [example], variants).items()
    explained = read_metrics(root / "metrics" / "explain" / f"{example}.json")[example]
    rows = summary_rows(example, found, variants)
    for row in rows:
        row["in fp32"] = Cell(f"{explained[row['variant'].text]['float_layers']} of {network['layers']}")
    packages = ", ".join(f"{name} {machine['packages'][name]}" for name in ("onnx", "numpy"))
    conditions = found["conditions"]
    return "\n\n".join([
        f"Measured on {network['date']}, {machine_sentence(machine)}, {packages}: "
        f"{found['variants']['fp32']['evaluate']['images']:,} test images, {conditions['rounds']} interleaved rounds, "
        f"{conditions['threads']} thread; other processes took {conditions['other_work_percent']:.0f} % of the CPU time.",
        sentence(example, found, variants),
        markdown(rows),
    ])  # fmt: skip


def overview():
    """Return one point an example, in Markdown: what the network is, and what int8 does to it."""
    points = []
    for example in EXAMPLES:
        root = HERE / example
        network, variants = read_metrics(root / "metrics/network.json"), read_params("variants", root / "params.yaml")
        [(_, found)] = load_results(root, [example], variants).items()
        points.append(
            f"- [{example}]({example}/README.md): opset {network['opset']}, {network['layers']} layers with weights, "
            f"{network['depthwise']} of them depthwise; fp32 is right on "
            f"{found['variants']['fp32']['evaluate']['accuracy']:.1%}. {sentence(example, found, variants)}"
        )
    return "\n".join(points)


def write_readmes():
    """Write the kept results into the README files, between their markers."""
    sections = {HERE / "README.md": overview()}
    sections |= {HERE / example / "README.md": example_section(example) for example in EXAMPLES}
    for path, section in sections.items():
        write_text(path, with_results(path.read_text(encoding="utf-8"), section))


def main(example, run):
    if example not in EXAMPLES:
        raise UserError(f"there is no example {example!r}: take one of {', '.join(EXAMPLES)}.")
    if not Path(run, "metrics").is_dir():
        raise UserError(f"{run} has no metrics: name the clone in which the example was followed.")
    target = HERE / example / "metrics"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(Path(run) / "metrics", target, ignore=shutil.ignore_patterns(".gitignore"))
    write_text(target / "network.json", json.dumps(facts(Path(run), example), indent=2) + "\n")
    if all((HERE / name / "metrics").is_dir() for name in EXAMPLES):
        write_readmes()
    print(f"tests/examples/{example}/metrics: kept")


if __name__ == "__main__":
    run_main(main)
