"""Write the report: one HTML page that needs nothing but itself, and the same tables as Markdown for Git's web pages.

Everything in it comes from other stages' files; what was not run is named.

    python -m stages.report plots/report.html plots/report.md
"""

import base64
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from stages.common.cpu import saturating, saturation_sentence
from stages.common.reporting import explanations, tables
from stages.common.reporting.results import call_spread, is_labelled, load_results
from stages.common.reporting.tables import Cell
from stages.common.reporting.tuning import chosen_recipe, tuning_section
from stages.common.reporting.verdict import sentence
from stages.common.workspace import UserError, read_metrics, read_params, run_main, write_text

TEMPLATES = Path(__file__).parent / "templates"
FIGURES = {  # of labelled images
    "latency": "Speed relative to fp32. Right of 1 is faster; the grey band is fp32 against itself.",
    "accuracy": "File size, and accuracy change against fp32 on the same test images with its 95 % interval.",
    "changes": "What the accuracy change hides: test images whose label is another than fp32's.",
}
UNLABELLED_FIGURES = FIGURES | {
    "accuracy": "File size, and agreement with fp32 on the test images with its 95 % interval.",
    "changes": "Test images whose label is another than fp32's.",
}


def network_section(root, model, found, variants, *, layers_of, drawn, tuned):
    """Return what the templates say of one network: its verdict, tables, messages, conditions and explanations.

    `layers_of`: the variant that explain-accuracy takes apart; `drawn` and `tuned`: the models under
    `sensitivity` and `tune`, since the file of one that was taken out stays where it is.
    """
    draws = explanations.load_metrics(root, "sensitivity", model) if model in drawn else None
    return {
        "name": model,
        "verdict": sentence(model, found, variants),
        "summary": with_spread(found, model, tables.summary_rows(model, found, variants), draws),
        "absolute": absolute_rows(root, model, found, variants),
        "predictions": tables.prediction_rows(model, found, variants),
        "latency": tables.latency_rows(model, found, call_spread(root, model)),
        "loading": tables.loading_rows(model, found, variants),
        "messages": failure_messages(root, model, variants),
        "labelled": is_labelled(found),
        "warnings": tables.conditions(found),
        "conditions": found["conditions"],
        "images": found["variants"]["fp32"]["evaluate"]["images"],
        "why": speed_section(root, model, variants, explanations.middle_batch(found)),
        "where": accuracy_section(root, model, layers_of),
        "draws": draw_section(model, draws),
        "tuning": tuning_section(root, model, explanations.middle_batch(found)) if model in tuned else None,
    }


def absolute_rows(root, model, found, variants):
    """Return the table of absolute numbers, with the convolutions that run in integers if `explain` was run."""
    rows, metrics = tables.absolute_rows(model, found, variants), explanations.load_metrics(root, "explain", model)
    names = [tables.BASELINE, *variants]
    return rows if metrics is None else [*rows, explanations.convolution_row(model, metrics, names)]


def with_spread(found, model, rows, draws):
    """Put the spread over calibration draws beside the accuracy of the variants for which it was measured."""
    for row in rows if draws else ():
        images = found["variants"][row["variant"].text]["evaluate"].get("images")
        spread = explanations.draw_spread(draws, row["variant"].text, images)
        cell = Cell(spread, f"metrics/sensitivity/{model}.json")
        at = list(row).index("size") + 2  # behind accuracy, or agreement
        items = list(row.items())
        row.clear()
        row.update([*items[:at], ("draw (sd)", cell), *items[at:]])
    return rows


def speed_section(root, model, variants, batch):
    """Return why the variants are faster or slower, or None if `explain` was not run."""
    metrics = explanations.load_metrics(root, "explain", model)
    if metrics is None:
        return None
    return {
        "batch": batch,
        "causes": explanations.cause_rows(root, model, variants, batch),
        "graph": explanations.graph_rows(model, metrics, batch),
        "doubts": explanations.doubts(metrics),
        "rounds": metrics["rounds"],
        "figure": f"plots/explain/{model}-time.png",
    }


def accuracy_section(root, model, variant):
    """Return where the accuracy of one variant goes, or None if `explain-accuracy` was not run."""
    metrics = explanations.load_metrics(root, "explain-accuracy", model)
    if metrics is None or variant not in metrics:
        return None
    return {
        "variant": variant,
        "sentence": explanations.accuracy_sentence(variant, metrics[variant]),
        "layers": explanations.layer_rows(root, model),
        "figures": {
            f"plots/explain/{model}-margins.png": "How sure fp32 was of the predictions that change.",
            f"plots/explain/{model}-changed.png": "The changed test images: true label, fp32's and int8's label, each with its margin.",
        },
    }


def draw_section(model, draws):
    """Return what the calibration draw is worth, or None if `sensitivity` was not run."""
    if not draws:
        return None
    [(variant, found)] = draws.items()
    labelled = explanations.draws_are_of_accuracy(found)
    return {
        "variant": variant,
        "quantity": "Accuracy change" if labelled else "Agreement with fp32",
        "unit": "in percentage points" if labelled else "in percent of the test images",
        "rows": explanations.draw_rows(model, variant, found),
        "doubt": explanations.draw_doubt(found),
        "figure": f"plots/explain/{model}-draws.png",
    }


def failure_messages(root, model, variants):
    """Return the lines of verify-load's text about files that fail, or were not checked, on some runtime."""
    folder = Path(root) / "plots" / "verify-load" / model
    texts = [(folder / f"{name}.txt").read_text(encoding="utf-8") for name in ["fp32", *variants]]
    return [line for text in texts for line in text.splitlines() if " loads and runs " not in line]


def embedded(path):
    """Return a PNG file as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(Path(path).read_bytes()).decode('ascii')}"


def code(text):
    """Return text as HTML with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 -- escaped just before


def render(template, context):
    """Fill a template of stages/templates/; a name that is missing from the context is an error, not a blank."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"markdown_table": tables.markdown, "embedded": embedded, "code": code}
    return environment.get_template(template).render(context)


def tuned_recipe(tuned, isa):
    """Return {"tuned": a recipe that `tune` found for one of the `tuned` models and that may saturate}, else {}."""
    found = [chosen_recipe(f"plots/tune/{model}.csv") for model in tuned]
    return next(({"tuned": recipe} for recipe in found if recipe and saturating(isa, {"tuned": recipe})), {})


def refuse_old(results):
    """Raise UserError if a benchmark was written before the pipeline measured what other processes do."""
    for model, found in results.items():
        if "other_work_percent" not in found["conditions"]:
            raise UserError(
                f"metrics/benchmark/{model}.json is from an older version of the pipeline: `dvc repro` makes it anew."
            )


def main(html_path, markdown_path):
    models, variants = list(read_params("models")), read_params("variants")
    machine = read_metrics("metrics/machine.json")
    isa = machine["cpu"]["isa"]
    recipes = read_params("calibrate_quantize") | tuned_recipe(read_params("tune"), isa)
    saturated = [name for name in saturating(isa, recipes) if name in variants]
    explained = {
        "layers_of": read_params("explain.layers_of"),
        "drawn": read_params("sensitivity"),
        "tuned": read_params("tune"),
    }
    results = load_results(".", models, variants)
    refuse_old(results)
    context = {
        "machine": machine,
        "machine_sentence": tables.machine_sentence(machine),
        "networks": [network_section(".", model, results[model], variants, **explained) for model in models],
        "saturation": saturation_sentence(isa, saturated) if saturated else "",
        "figures": FIGURES if is_labelled(next(iter(results.values()))) else UNLABELLED_FIGURES,
    }
    for template, path in (("report.html.j2", html_path), ("report.md.j2", markdown_path)):
        write_text(path, render(template, context))
    for network in context["networks"]:
        print(network["verdict"])


if __name__ == "__main__":
    run_main(main)
