"""The tables of README and report: rows of cells, each with the file that its number came from."""

from typing import NamedTuple

import pandas as pd

from stages.common.chance import no_better_than_one_class
from stages.common.cpu import disturbances
from stages.common.reporting.results import BASELINE, agreement, is_labelled, verdict


class Cell(NamedTuple):
    """A table's cell: what it says, and the file behind it (relative to the repository's root; empty for words)."""

    text: str
    source: str = ""
    strong: bool = False
    words: bool = False  # a sentence, which may break, and not a number


def machine_sentence(machine):
    """Return the machine in one sentence."""
    cpu, packages = machine["cpu"], machine["packages"]
    return (
        f"{cpu['model']} ({cpu['isa']}), {cpu['usable_cores']} usable cores, {machine['os']}, "
        f"onnxruntime {packages['onnxruntime']}"
    )


def summary_rows(model, found, variants):
    """Return size, accuracy and latency of every variant: the table of the README.

    Without labels agreement with fp32 stands for accuracy.
    """
    rows, quality = [], "accuracy" if is_labelled(found) else "agreement"
    for name in [BASELINE, *variants]:
        result = found["variants"][name]
        evaluated = f"metrics/evaluate/{model}/{name}.json"
        rows.append({
            "variant": Cell(name),
            "size": Cell(f"{result['verify']['size_bytes'] / 1024:,.0f} KiB", f"metrics/verify-load/{model}/{name}.json"),
            quality: Cell(_accuracy(result["evaluate"]), evaluated),
            "changed": Cell(_number(result["evaluate"], "changed"), evaluated),
            **{f"batch {batch}": _latency(model, name, result["benchmark"].get(batch)) for batch in found["control"]},
        })  # fmt: skip
    return rows


def _accuracy(judged):
    if "images" not in judged:
        return "does not run here"
    if "accuracy" not in judged:
        return "{:.2%} ({:.2%} to {:.2%})".format(*agreement(judged)) if "changed" in judged else ""
    if "accuracy_change" not in judged:
        return f"{judged['accuracy']:.2%}"
    points = (100 * judged[key] for key in ("accuracy_change", "change_low", "change_high"))
    return "{:.2%} ({:+.2f}, {:+.2f} to {:+.2f})".format(judged["accuracy"], *points)


def _number(metrics, key):
    return f"{metrics[key]:,}" if key in metrics else ""


def _latency(model, name, cell):
    source = f"metrics/benchmark/{model}.json"
    if cell is None:
        return Cell("")
    if name == BASELINE:
        return Cell(f"{cell['median_ms']:.3g} ms", source)
    text = f"{cell['speedup']:.2f}x ({cell['speedup_low']:.2f}-{cell['speedup_high']:.2f})"
    return Cell(text, source, strong=verdict(cell) == "faster")


def prediction_rows(model, found, variants):
    """Return the paired comparison with fp32: what changed, in which direction, and whether chance explains it.

    Columns that need labels are left out without them.
    """
    formats = {
        "argmax agreement": ("argmax_agreement", "{:.2%}"),
        "changed": ("changed", "{}"),
        "lost": ("lost", "{}"),
        "gained": ("gained", "{}"),
        "neutral": ("neutral", "{}"),
        "McNemar p": ("mcnemar_p", "{:.2g}"),
        "largest logit difference": ("max_abs_logit_difference", "{:.2f}"),
        "equal largest": ("ties", "{:,}"),
        "images": ("images", "{:,}"),
    }
    return [
        {
            "variant": Cell(name),
            **{
                title: Cell(form.format(judged[key]), f"metrics/evaluate/{model}/{name}.json")
                for title, (key, form) in formats.items()
                if key in judged
            },
        }
        for name in variants
        if "changed" in (judged := found["variants"][name]["evaluate"])
    ]


def latency_rows(model, found, spread):
    """Return the calls themselves: median, 5 % and 95 % quantiles and the slowest, in milliseconds; none is left out for its time."""
    calls = f"plots/benchmark/{model}.csv"
    rows = []
    for row in spread.sort_values(["batch", "median_ms"]).itertuples():
        timed = found["variants"][row.variant]["benchmark"] if row.variant in found["variants"] else found["control"]
        cell = timed.get(row.batch, {})
        speed = "{speedup:.3f}x ({speedup_low:.3f}-{speedup_high:.3f})".format(**cell) if "speedup" in cell else ""
        rows.append({
            "batch": Cell(str(row.batch)),
            "file": Cell(row.variant),
            "median": Cell(f"{row.median_ms:.3g} ms", calls),
            "5 %": Cell(f"{row.p5_ms:.3g}", calls),
            "95 %": Cell(f"{row.p95_ms:.3g}", calls),
            "slowest": Cell(f"{row.worst_ms:.3g}", calls),
            "calls": Cell(str(row.calls), calls),
            "speed against fp32": Cell(speed, f"metrics/benchmark/{model}.json"),
        })  # fmt: skip
    return rows


def loading_rows(model, found, variants):
    """Return where every file loads and runs: a column a runtime, the status and operator where it does not."""
    rows = []
    for name in [BASELINE, *variants]:
        verified = found["variants"][name]["verify"]
        source = f"metrics/verify-load/{model}/{name}.json"
        others = {key: result for key, result in verified.items() if isinstance(result, dict)}
        row = {"file": Cell(name), "here": Cell(_loads(verified), source)}
        for key, result in others.items():
            row[key.replace("_", " ", 1).replace("_", ".")] = Cell(_loads(result), source)
        rows.append(row)
    return rows


def _loads(result):
    return "runs" if result["finite"] else result["error"]


def markdown(rows):
    """Return rows as a Markdown table: first column as code, strong cells bold."""
    frame = pd.DataFrame(
        [
            {
                title: f"`{cell.text}`" if place == 0 else f"**{cell.text}**" if cell.strong else cell.text
                for place, (title, cell) in enumerate(row.items())
            }
            for row in rows
        ]
    )
    return frame.fillna("").to_markdown(index=False, disable_numparse=True)


def conditions(found):
    """Return what a reader has to know about the network and the conditions of the benchmark, as sentences."""
    measured, lines, baseline = found["conditions"], [], found["variants"][BASELINE]["evaluate"]
    if no_better_than_one_class(baseline):
        lines.append(
            f"fp32 itself is right on {baseline['accuracy']:.2%} of the test images, no more often than saying the most "
            f"frequent class every time ({baseline['most_frequent_share']:.2%}): what int8 changes of that says little. "
            "Look at the model's `input` in params.yaml, and whether the labels number the classes as the model does."
        )
    if not is_labelled(found):
        lines.append("The test images have no labels: agreement with fp32 stands where accuracy would.")
    if tied := baseline.get("ties"):
        lines.append(
            f"fp32 itself has two equal largest outputs on {tied:,} test images: there the order of the classes decides, "
            "and a changed prediction means little."
        )
    for name, result in found["variants"].items():
        if same := result.get("same_file_as"):
            lines.append(f"`{name}` is the same file as `{same}`, byte for byte, and was timed with it.")
    lines += [f"The benchmark was disturbed: {disturbance}." for disturbance in disturbances(measured)]
    for batch, cell in found["control"].items():
        if verdict(cell) != "undecided":
            lines.append(
                f"At batch {batch} fp32 seems {verdict(cell)} than itself "
                f"({cell['speedup_low']:.3f}-{cell['speedup_high']:.3f}): read differences of that size as noise "
                "(one interval in twenty does this by chance)."
            )
    return lines


def absolute_rows(model, found, variants):
    """Return a row a quantity and a column a file: bytes, accuracy, changed predictions, milliseconds by batch size."""
    names = [BASELINE, *variants]
    evaluated = {name: f"metrics/evaluate/{model}/{name}.json" for name in names}
    results = found["variants"]

    def row(title, cells):
        return {"quantity": Cell(title), **dict(zip(names, cells, strict=True))}

    rows = [
        row("file size (bytes)", [
            Cell(f"{results[name]['verify']['size_bytes']:,}", f"metrics/verify-load/{model}/{name}.json") for name in names
        ]),
        row("accuracy", [
            Cell(f"{results[name]['evaluate']['accuracy']:.2%}" if "accuracy" in results[name]["evaluate"] else "", evaluated[name])
            for name in names
        ]),
        row("predictions changed", [Cell(_number(results[name]["evaluate"], "changed"), evaluated[name]) for name in names]),
    ]  # fmt: skip
    if not is_labelled(found):
        rows = [cells for cells in rows if cells["quantity"].text != "accuracy"]
    for batch in found["control"]:
        cells = [results[name]["benchmark"].get(batch) for name in names]
        source = f"metrics/benchmark/{model}.json"
        texts = [f"{cell['median_ms']:.4f} ms" if cell else "" for cell in cells]
        rows.append(row(f"batch {batch}, median", [Cell(text, source) for text in texts]))
    return rows
