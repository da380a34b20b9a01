"""What the search for the fastest recipe found, or what the given one does, in the words and rows of the report."""

import csv
import json
from pathlib import Path

import pandas as pd

from stages.common.chance import no_better_than_one_class
from stages.common.cpu import disturbances
from stages.common.profiling.operators import runs_in_integers
from stages.common.reporting.session_options import options_section
from stages.common.tuned_recipe import FP32, GIVEN, by_chance, doubts, entry
from stages.common.workspace import read_metrics

TUNED = "tuned"
GOALS = {"latency": "fastest", "throughput": "fastest", "size": "smallest"}


def tuning_section(root, model, batch):
    """Return what the report says of a model's search: title, sentences, recipe and figure; None if it was not run.

    `batch`: the batch size that `explain` is asked about.
    """
    path = Path(root) / "metrics" / "tune" / f"{model}.json"
    if not path.is_file():
        return None
    metrics = read_metrics(path)[model]
    sentences = [given(model), taken(metrics)] if GIVEN in metrics else [searched(metrics), found(metrics)]
    explained = Path(root) / "plots" / "explain" / f"{model}.csv"
    if metrics["chosen"] != FP32 and explained.is_file():
        table = pd.read_csv(explained, keep_default_na=False)
        table = table[table["batch"] == batch]
        if TUNED in set(table["variant"]):
            sentences += [saved(table, metrics, batch), spent(table, batch)]
    return {
        "title": "The recipe that was given" if GIVEN in metrics else "The best recipe that the search found",
        "shown": "The recipe that was given" if GIVEN in metrics else "Every recipe that was tried",
        "sentences": [*filter(None, sentences), speed_of_arithmetic(metrics)],
        "recipe": recipe_entry(Path(root) / "plots" / "tune" / f"{model}.csv"),
        "given": GIVEN in metrics,
        "figure": f"plots/explain/{model}-recipes.png",
        "batch": metrics["batch"],
        "images": metrics.get("validation", {}).get("images"),
        "options": options_section(model, metrics),
    }


def searched(metrics):
    """Return what was tried and what became of it: every recipe is in one of the counts."""
    points = metrics["points"]
    what = "accuracy" if metrics["labelled"] else "agreement"
    parts = {
        "taken": "taken",
        "tied": "about as good as another",
        "behind": "behind",
        "inaccurate": f"that may lose more than {metrics['max_drop']:g} points of {what}",
        "same_file": "with the same file as another",
        "failed": "without a file that works",
    }
    counts = points | {"taken": int(metrics["chosen"] != FP32)}
    rest = ", ".join(f"{counts[key]} {words}" for key, words in parts.items() if counts[key])
    missed = f"; {points['not_reached']} more could not be reached in the time" if points["not_reached"] else ""
    goal = GOALS[metrics["objective"]]
    return f"`tune` looked for the {goal} recipe at batch {metrics['batch']} and tried {points['tried']} in {metrics['seconds']:.0f} s: {rest}{missed}.{disturbed(metrics)}"


def disturbed(metrics):
    """Return what is wrong with the measurement, as sentences that follow another; nothing if nothing is."""
    judged = metrics.get("fp32_validation", {})
    chance = (
        f" The condition on accuracy may mean little here: {by_chance(judged)}."
        if no_better_than_one_class(judged)
        else ""
    )
    return chance + "".join(f" The measurement was disturbed: {disturbance}." for disturbance in disturbances(metrics))


def found(metrics):
    """Return what was taken, with its intervals."""
    hand = metrics.get("best_hand_written")
    if metrics["chosen"] == FP32:
        return "None of them is better for certain and keeps the accuracy: `tuned` is a copy of fp32."
    speed, accuracy = measured(metrics)
    if "over_hand_written" not in metrics:
        return f"`tuned` is `{metrics['chosen']}`, {speed}, which no other static recipe beats for certain; {accuracy}."
    over = "{speedup:.2f}x ({speedup_low:.2f} to {speedup_high:.2f})".format(**metrics["over_hand_written"])
    kept = "" if hand["shown_low"] >= -metrics["max_drop"] / 100 else ", whose accuracy was not shown to hold"
    return (
        f"`tuned` is {speed} and {over} as fast as the best recipe written by hand, `{hand['name']}`{kept}; {accuracy}."
    )


def measured(metrics):
    """Return (size and speed, accuracy) of the file in words, with their intervals."""
    smaller = metrics["fp32_size_bytes"] / metrics["size_bytes"]
    speed = (
        f"{smaller:.1f}x smaller than fp32, "
        + "{speedup:.2f}x as fast ({speedup_low:.2f} to {speedup_high:.2f})".format(**metrics)
    )
    judged = metrics["validation"]
    change, low, high = (100 * judged[key] for key in ("accuracy_change", "change_low", "change_high"))
    what = "accuracy" if metrics["labelled"] else "agreement with fp32"
    return (
        speed,
        f"on {judged['images']:,} validation images its {what} changes by {change:+.2f} points ({low:+.2f} to {high:+.2f})",
    )


def given(model):
    """Return that the recipe is the user's."""
    return f"The recipe of `tuned` is given in params.yaml (`tune.{model}.recipe`), so that nothing was searched."


def taken(metrics):
    """Return what the given recipe does, with its intervals, and what a search would have turned it down for."""
    if metrics["chosen"] == FP32:
        return "It is `fp32`: `tuned` is a copy of it."
    speed, accuracy = measured(metrics)
    against = doubts(metrics)
    kept = f" It is kept, although {' and '.join(against)}." if against else ""
    return f"`tuned` is {speed} at batch {metrics['batch']}; {accuracy}.{kept}{disturbed(metrics)}"


def saved(table, metrics, batch):
    """Return where the time goes that is saved against the best hand-written recipe, None if nothing is."""
    name = metrics.get("best_hand_written", {}).get("name")
    if "over_hand_written" not in metrics or name not in set(table["variant"]):
        return None
    own, other = (table[table["variant"] == variant] for variant in (TUNED, name))
    times, others = (part.groupby("layer")["microseconds"].sum() for part in (own, other))
    whole = others.sum() - times.sum()
    gains = others.sub(times, fill_value=0)
    layer = gains.idxmax()
    if whole <= 0 or not layer:
        return None
    before, after = (
        " ".join(part[(part["layer"] == layer) & (part["kind"] == "layer")]["op_types"]) for part in (other, own)
    )
    return (
        f"At batch {batch} it saves {whole:,.0f} us a call against `{name}`, most in {layer} ({gains[layer]:,.0f} us: "
        f"{after or 'nothing'} in place of {before or 'nothing'}, with the conversions around it)."
    )


def spent(table, batch):
    """Return where the call's time goes, which is what holds it back."""
    own = table[table["variant"] == TUNED]
    integer = own["op_types"].map(lambda types: any(runs_in_integers(name) for name in types.split()))
    layer = own["kind"] == "layer"
    parts = {
        "convolutions and matrix products in integers": layer & integer,
        "other layers": layer & ~integer,
        "conversions between types and layouts": own["kind"].isin(["quantize", "dequantize", "layout"]),
    }
    total = own["microseconds"].sum()
    shares = {name: 100 * own[chosen]["microseconds"].sum() / total for name, chosen in parts.items()}
    shares["no kernel"] = 100 - sum(shares.values())
    listed = ", ".join(f"{share:.0f} % {name}" for name, share in shares.items() if share >= 0.5)
    return f"Its call at batch {batch} is {listed}."


def speed_of_arithmetic(metrics):
    """Return how the speed of the file compares with what large matrix products reach on this machine."""
    products = f"a large matrix product {metrics['int8_product_gops']:,.0f} in integers and {metrics['fp32_product_gops']:,.0f} in floating point"
    if "tuned_gops" not in metrics:
        return f"In billions of operations a second, {products} on this machine."
    return (
        f"In billions of operations a second `tuned` reaches {metrics['tuned_gops']:,.0f} at batch {metrics['batch']}, "
        f"fp32 {metrics['fp32_gops']:,.0f}, {products}."
    )


def chosen_recipe(points_path):
    """Return the chosen recipe from the table of points; None if it is fp32, or if there was no search."""
    if not Path(points_path).is_file():
        return None
    with open(points_path, encoding="utf-8", newline="") as file:
        return next((json.loads(row["recipe"]) for row in csv.DictReader(file) if row["outcome"] == "chosen"), None)


def recipe_entry(points_path):
    """Return the chosen recipe as YAML for `tune.<model>`; None if it is fp32."""
    recipe = chosen_recipe(points_path)
    return entry(recipe) if recipe else None
