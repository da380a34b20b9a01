"""Summarize the experiments of the current commit: a table for every variant, what is missing, and a figure.

    python -m stages.tools.sweep                                     plots/sweep.png, which Git ignores
    python -m stages.tools.sweep --model cnn --variant static-u8s8 --figure seeds.png

A point is shown with a variant's numbers only if its own parameters made them: an experiment that ran one target has the
other variants' old results in its commit, and `dvc exp show` prints them beside the new parameters. The spread below a
table is that of points which differ in nothing but seeds. Points that failed, that were lost with their worker, that
were queued twice, and points whose files are the same bytes are named.
"""

import argparse
import math
import statistics
from pathlib import Path

from stages.common.workspace import UserError
from stages.tools.comparison_report import aligned
from stages.tools.output import print_to_reader
from stages.tools.parameter_values import value_of
from stages.tools.sweep_figure import draw
from stages.tools.sweep_points import FAILED, FINISHED, LOST, RUNNING, WAITING, collect, distinct, repeated, varying

ADVICE = {
    LOST: "the worker ended: `dvc queue kill {name}`, and queue it again",
    WAITING: "not started, `dvc queue start -j 2` starts it",
    RUNNING: "not finished yet",
}


def summarize(points, models=(), variants=()):
    """Return the summary of Points as text."""
    if len(points) == 1:
        return (
            "no experiments of this commit: queue some, `dvc exp run --queue -S 'calibrate.seed=range(0,8)' evaluate`"
        )
    finished = [point for point in points if point.state == FINISHED]
    keys, unchanged, unswept = varying(finished), [], []
    text = [state_line(points[1:]), *missing(points), *doubles(points)]
    for model, variant in dict.fromkeys(pair for point in finished for pair in point.results):
        if model in (models or [model]) and variant in (variants or [variant]):
            own = [point for point in finished if (model, variant) in point.results]
            if len(distinct(own)) == 1:
                unswept.append(f"{model} {variant}")
            elif len({point.md5[model, variant] for point in own}) == 1:
                unchanged.append(f"{model} {variant}")
            else:
                text.append(block(own, keys, (model, variant)))
    text += [f"\nthe same file in every point: {', '.join(unchanged)}"] if unchanged else []
    text += [f"\nevaluated in one point only: {', '.join(unswept)}"] if unswept else []
    return "\n".join(text)


def state_line(experiments):
    """Return how many experiments there are and what became of them."""
    counts = {
        state: sum(point.state == state for point in experiments)
        for state in (FINISHED, FAILED, LOST, RUNNING, WAITING)
    }
    return f"{len(experiments)} experiments of this commit: " + ", ".join(
        f"{count} {state}" for state, count in counts.items()
    )


def missing(points):
    """Return a line for every point without a result."""
    keys = varying(points)
    return [
        f"  {point.state}: {point.name} ({settings(point, keys)}): {point.reason or ADVICE[point.state].format(name=point.name)}"
        for point in points
        if point.state != FINISHED
    ]


def doubles(points):
    """Return a line for every group of points that ask for the same."""
    return [f"  the same point: {', '.join(names)}" for names in repeated(points)]


def settings(point, keys):
    """Return a point's varying parameters as text."""
    return " ".join(f"{key}={value_of(point.parameters, key)}" for key in keys) or "no parameter differs"


def block(points, keys, pair):
    """Return the table of one variant over its finished points, with the spread and equal files below."""
    own = sorted(points, key=lambda point: [order(value_of(point.parameters, key)) for key in keys])
    lines = [("  point", *keys, "accuracy", "change [95 %]", "changed")]
    for point in own:
        cells = [str(value_of(point.parameters, key)) for key in keys]
        lines.append((f"  {point.name}", *cells, *numbers(point.results[pair])))
    return "\n".join([f"\n{' '.join(pair)}", aligned(lines), *spread(own, keys, pair), *same_bytes(own, pair)])


def order(value):
    """Return a sort key for parameters of any type: numbers by size, then everything else by its text."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (0, value, "") if number else (1, 0, str(value))


def spread(points, keys, pair):
    """Return a line about how much the change differs between points that differ in nothing but seeds.

    One for every group of them: what other parameters change is no spread. Nothing can be said of fewer than three.
    """
    different = {tuple(str(value_of(point.parameters, key)) for key in keys): point for point in reversed(points)}
    groups, lines = {}, []
    for point in reversed(different.values()):
        others = [key for key in keys if key.rpartition(".")[2] != "seed"]
        groups.setdefault(" ".join(f"{key}={value_of(point.parameters, key)}" for key in others), []).append(point)
    for name, group in groups.items():
        changes = [100 * point.results[pair].get("accuracy_change", math.nan) for point in group]
        if len(changes) > 2 and not any(map(math.isnan, changes)):
            lines.append(
                f"  {f'{name}: ' if name else ''}{len(changes)} different points: change {statistics.mean(changes):+.3f} on average, "
                f"standard deviation {statistics.stdev(changes):.3f}, from {min(changes):+.2f} to {max(changes):+.2f} points"
            )
    return lines


def figure_path(text):
    """Return the path of a figure that can be written there, of a command line's text."""
    path = Path(text)
    if path.suffix != ".png":
        raise argparse.ArgumentTypeError(f"{text} is no name of a PNG, which is what is drawn: let it end in .png")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} is not there: make it, or name another")
    return path


def numbers(metrics):
    """Return the cells of an evaluation; fp32 has no change, a variant that does not work nothing."""
    if "images" not in metrics:
        return "does not work here", "", ""
    if "accuracy" not in metrics:  # no labels
        share = f"{metrics['argmax_agreement']:.2%} agree" if "changed" in metrics else "no labels"
        return share, "", str(metrics.get("changed", ""))
    if "accuracy_change" not in metrics:
        return f"{metrics['accuracy']:.2%}", "", ""
    change, low, high = (100 * metrics[key] for key in ("accuracy_change", "change_low", "change_high"))
    return f"{metrics['accuracy']:.2%}", f"{change:+.2f} [{low:+.2f}, {high:+.2f}]", str(metrics["changed"])


def same_bytes(points, pair):
    """Return a line for every group of different points that made the same file: no difference can be read into them."""
    groups = {}
    for point in distinct(points):
        groups.setdefault(point.md5[pair], []).append(point.name)
    return [f"  the same file, byte for byte: {', '.join(names)}" for names in groups.values() if len(names) > 1]


def check_names(points, models, variants):
    """Raise UserError if a model or variant is asked for that no point knows."""
    pairs = {pair for point in points for pair in point.results}
    keys = {key for point in points for key in point.parameters}
    listed = {name for point in points for name in point.parameters.get("variants") or []}
    known_models = {model for model, _ in pairs} | {key.split(".")[1] for key in keys if key.startswith("models.")}
    for what, asked, known in (
        ("model", models, known_models),
        ("variant", variants, {variant for _, variant in pairs} | listed),
    ):
        for name in asked:
            if name not in known:
                raise UserError(f"no point has the {what} `{name}`: take one of {', '.join(sorted(known)) or 'none'}.")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m stages.tools.sweep", description=__doc__.split("\n")[0])
    parser.add_argument("--model", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--variant", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--parameter", help="the figure's x axis; the parameter with the most values if not given")
    parser.add_argument(
        "--figure",
        type=figure_path,
        default=Path("plots/sweep.png"),
        help="plots/sweep.png, which Git ignores, if not given",
    )
    options = parser.parse_args(arguments)
    try:
        points = collect()
        check_names(points, options.model, options.variant)
        print_to_reader(summarize(points, options.model, options.variant))
        print_to_reader(draw(points, options.figure, options.parameter, options.model, options.variant))
    except UserError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
