"""Write the result tables into README.md, between the `results` markers, from the committed metrics.

python -m stages.tools.update_readme
"""

import re
from pathlib import Path

from stages.common.reporting.results import load_results
from stages.common.reporting.tables import machine_sentence, markdown, summary_rows
from stages.common.reporting.verdict import sentence
from stages.common.workspace import UserError, read_metrics, read_params, run_main, write_text

MARKED = re.compile(r"(<!-- results: .*? -->\n).*?(<!-- end of results -->)", re.DOTALL)


def results_section(root):
    """Return the section between the markers: the machine, and a verdict and a table a network.

    Raises UserError if a result is not there.
    """
    root = Path(root)
    models = list(read_params("models", root / "params.yaml"))
    variants = read_params("variants", root / "params.yaml")
    missing = [path for path in result_files(models, variants) if not (root / path).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise UserError(f"{missing[0]}{more} is not here, and the tables show all results: `dvc repro` measures them.")
    parts = [f"Measured on: {machine_sentence(read_metrics(root / 'metrics' / 'machine.json'))}."]
    for model, found in load_results(root, models, variants).items():
        conditions = found["conditions"]
        images = found["variants"]["fp32"]["evaluate"]["images"]
        parts.append(sentence(model, found, variants))
        parts.append(
            f"**{model}**, {images:,} test images, {conditions['rounds']} interleaved rounds, {conditions['threads']} thread:"
        )
        parts.append(markdown(summary_rows(model, found, variants)))
    return "\n\n".join(parts)


def result_files(models, variants):
    """Return the paths of the metrics that the tables are made of."""
    files = [
        f"{stage}/{model}/{variant}.json"
        for model in models
        for variant in ["fp32", *variants]
        for stage in ("verify-load", "evaluate")
    ]
    return [f"metrics/{file}" for file in ["machine.json", *files, *(f"benchmark/{model}.json" for model in models)]]


def with_results(text, section):
    """Return a README's text with `section` between its markers. Raises UserError if the markers are gone."""
    if not MARKED.search(text):
        raise UserError(
            "README.md has lost its `<!-- results: ... -->` and `<!-- end of results -->` markers: put them back."
        )
    return MARKED.sub(lambda found: f"{found[1]}\n{section}\n\n{found[2]}", text)


def main():
    """Rewrite README.md in place."""
    readme = Path("README.md")
    write_text(readme, with_results(readme.read_text(encoding="utf-8"), results_section(".")))
    print("README.md: results written from metrics/")


if __name__ == "__main__":
    run_main(main)
