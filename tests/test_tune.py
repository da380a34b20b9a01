"""The search takes the fastest recipe whose accuracy holds, keeps what is simpler where nothing is gained, and stops in time."""

import csv
import json
import re
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from small_models import U8S8, images_for, save_plain

from stages import build_tuned, calibrate_quantize, plot_tune, tune
from stages.common import machine_lock
from stages.common.preprocessing import preprocess
from stages.common.reporting.tuning import found, taken
from stages.common.search import race, screening, search, session_options
from stages.common.search.points import HAND_WRITTEN, SEARCHED, Point
from stages.common.search.validation import draw_validation
from stages.common.session.runtime import predict_images
from stages.common.tuned_recipe import read_recipe
from stages.common.workspace import UserError

SCALING = {"scale": 1.0, "mean": 0.0, "std": 1.0, "channels": 1, "repeat": 1}
SLOW = {"quant_format": "QOperator", "activation_type": "QInt8", "weight_type": "QInt8"}  # no fast kernel on x86
PLAN = {"seconds": 4.0, "objective": "latency", "batch": 8, "max_drop": 5.0, "validation_images": 400, "seed": 0}
BY_HAND = {"by-hand": U8S8, "more-images": U8S8 | {"calibrate": {"images": 80, "method": "Percentile"}}}
CALIBRATE = {"seed": 2, "images": 50, "batch_size": 16, "method": "MinMax"}
FILES = ["fp32.onnx", "preprocessed.onnx", "train.npy", "labels.npy"]
OUTPUTS = ["recipe.yaml", "metrics.json", "points.csv"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a network of 32 and 64 channels, 600 images, and labels that it mostly gets right."""
    folder = tmp_path_factory.mktemp("tune")
    save_plain(folder / "fp32.onnx", width=32)
    preprocess(folder / "fp32.onnx", folder / "preprocessed.onnx")
    np.save(folder / "train.npy", images_for(folder / "fp32.onnx", 600))
    logits = predict_images(folder / "fp32.onnx", folder / "train.npy", SCALING, images=600, batch_size=50, threads=1)
    np.save(folder / "labels.npy", (logits + np.random.default_rng(0).normal(0, 0.1, logits.shape)).argmax(1))
    return folder


@pytest.fixture
def workspace(folder, monkeypatch, tmp_path):
    """The folder as the working folder; returns a function that writes params.yaml with another plan or other recipes."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(search, "machine_lock", partial(machine_lock.machine_lock, tmp_path / "lock"))

    def write(recipes=None, **plan):
        params = {
            "calibrate": CALIBRATE,
            "calibrate_quantize": BY_HAND if recipes is None else recipes,
            "evaluate": {"batch_size": 50, "threads": 1},
            "benchmark": {"threads": 1},
            "models": {"small": {"input": SCALING, "evaluate": {"images": 1}, "benchmark": {"batches": [1, 8]}}},
            "tune": {"small": PLAN | plan},
        }
        (folder / "params.yaml").write_text(yaml.safe_dump(params))

    write()
    return write


def run():
    """Run the stage; return (metrics, rows of the table)."""
    tune.main("small", *FILES, *OUTPUTS)
    with open("points.csv", encoding="utf-8", newline="") as file:
        return json.loads(Path("metrics.json").read_text())["small"], list(csv.DictReader(file))


def test_every_point_has_an_outcome_and_what_was_dropped_a_reason(workspace):
    metrics, rows = run()
    counts = metrics["points"]
    assert counts["tried"] + counts["not_reached"] == len(rows)
    assert sum(counts.values()) - counts["tried"] + (metrics["chosen"] != "fp32") == len(rows)
    assert all(row["outcome"] and (row["reason"] or row["outcome"] == "chosen") for row in rows)
    assert [row["point"] for row in rows[:2]] == list(BY_HAND)
    assert {json.loads(row["recipe"])["calibrate"]["images"] for row in rows} == {50, 80}
    assert metrics["seconds"] < 2 * PLAN["seconds"]
    recipe = read_recipe("recipe.yaml")
    assert recipe == "fp32" if metrics["chosen"] == "fp32" else recipe in [json.loads(row["recipe"]) for row in rows]
    plot_tune.main("small", "metrics.json", "points.csv", "points.png")
    assert Path("points.png").read_bytes().startswith(b"\x89PNG")


def test_session_options_are_raced_apart_and_the_file_needs_none(workspace, monkeypatch, capsys):
    """With fp32 as well: an option that helps it as much says nothing about the recipe."""
    monkeypatch.setattr(search, "OPTIONS_SHARE", 1.5)  # of a smaller budget; enough on a busy machine, too
    metrics, rows = run()
    options = metrics["session_options"]
    assert options["rounds"] >= session_options.FEWEST_ROUNDS and options["images"] >= session_options.FEWEST_IMAGES
    named = {name: one for name, one in options.items() if isinstance(one, dict)}
    assert set(named) == set(session_options.OPTIONS) - {"intra_op_spinning_off"}  # with one thread nobody waits
    assert metrics["chosen"] != "fp32"
    for one in named.values():
        for result in (one, one["fp32"]):
            assert result.get("same_graph") == 1 or result["speedup_low"] < result["speedup"] < result["speedup_high"]
        assert ("changed" in one) == ("speedup" in one)
    assert "session options, " in capsys.readouterr().out
    settings = {option.setting for option in session_options.OPTIONS.values()}
    written = Path("recipe.yaml").read_text() + "".join(row["recipe"] for row in rows)
    assert not [setting for setting in settings if setting in written]


def test_without_labels_the_condition_is_one_of_agreement_and_the_words_say_so(workspace, monkeypatch, capsys):
    np.save("none.npy", np.empty(0, np.int64))
    monkeypatch.setitem(globals(), "FILES", [*FILES[:3], "none.npy"])
    metrics, rows = run()
    assert metrics["labelled"] == 0 and metrics["chosen"] != "fp32"
    [chosen] = [row for row in rows if row["outcome"] == "chosen"]
    lost = -float(chosen["accuracy_change"]) * int(chosen["validation_images"])
    assert lost == pytest.approx(int(chosen["changed"]), abs=0.01)
    assert "agreement" in found(metrics) and ", agreement " in capsys.readouterr().out


def test_the_recipe_is_reproduced_byte_for_byte_by_build_tuned_and_as_a_variant_in_params_yaml(workspace, folder):
    """The search measures a file that was made with ranges it shares between points; the stage calibrates anew."""
    recipe = U8S8 | {
        "nodes_to_exclude": ["conv_1", "relu_1", "pool_1"],
        "swap_relu_maxpool": ["pool_1"],
        "calibrate": CALIBRATE | {"symmetric": False, "moving_average": False},
    }
    builder = search.Builder("preprocessed.onnx", "train.npy", 600, SCALING, CALIBRATE, folder)
    builder.ranges(builder.spelled_out(U8S8))
    point = Point(
        "searched-01", SEARCHED, builder.spelled_out({key: recipe[key] for key in recipe if key != "calibrate"})
    )
    builder.build(point)
    assert point.recipe == recipe
    Path("recipe.yaml").write_text(tune.recipe_text("small", point, given=None))
    for again in ("tuned", "again"):
        build_tuned.main("small", "recipe.yaml", *FILES[:3], f"{again}.onnx", f"{again}.json")
    workspace(recipes={"tuned-small": read_recipe("recipe.yaml")})
    calibrate_quantize.main("small", "tuned-small", *FILES[1:3], "pasted.onnx", "pasted.json")
    files = [Path(name).read_bytes() for name in ("tuned.onnx", "again.onnx", "pasted.onnx", point.path)]
    assert len(set(files)) == 1
    assert len({Path(name).read_text() for name in ("tuned.json", "again.json", "pasted.json")}) == 1


def paste(entry):
    """Put lines behind the name of the model in the section `tune` of params.yaml, as a user does."""
    before, rest = Path("params.yaml").read_text().split("tune:\n  small:\n")
    Path("params.yaml").write_text(f"{before}tune:\n  small:\n{entry}{rest}")


def test_what_a_search_prints_makes_its_file_again_when_it_is_pasted_and_nothing_is_searched(workspace, monkeypatch):
    """Whatever becomes of the calibration settings that other recipes share."""
    monkeypatch.setattr(search, "OPTIONS_SHARE", 0.0)
    workspace(seconds=1.0, objective="size")  # by which fp32 is never taken
    assert run()[0]["chosen"] not in ("fp32", "given")
    build_tuned.main("small", "recipe.yaml", *FILES[:3], "tuned.onnx", "tuned.json")
    printed = Path("recipe.yaml").read_text()
    monkeypatch.setitem(globals(), "CALIBRATE", {"seed": 9, "images": 70, "batch_size": 7, "method": "Percentile", "percentile": 99.0})  # fmt: skip
    workspace(seconds=1.0)
    paste(printed)
    metrics, [row] = run()
    assert (metrics["given"], metrics["chosen"], metrics["points"]["tried"]) == (1, "given", 1)
    assert (row["point"], row["origin"], row["outcome"]) == ("given", "given", "chosen")
    assert metrics["rounds"] >= race.FEWEST_ROUNDS and metrics["speedup_low"] < metrics["speedup"]
    assert float(row["time_ratio"]) == pytest.approx(1 / metrics["speedup"], abs=1e-4)
    build_tuned.main("small", "recipe.yaml", *FILES[:3], "again.onnx", "again.json")
    for made, again in (("tuned.onnx", "again.onnx"), ("tuned.json", "again.json")):
        assert Path(made).read_bytes() == Path(again).read_bytes()
    plot_tune.main("small", "metrics.json", "points.csv", "points.png")


def test_a_given_recipe_is_kept_though_a_search_would_not_take_it_and_that_is_said(workspace, monkeypatch, capsys):
    """It takes what it does not say of its calibration from the shared settings, and is written with all of them."""
    monkeypatch.setattr(search, "OPTIONS_SHARE", 0.0)
    workspace(seconds=1.0, max_drop=0.0, recipe=SLOW | {"calibrate": {"images": 30}})
    metrics, [row] = run()
    assert metrics["chosen"] == "given" and row["outcome"] == "chosen"
    assert "best_hand_written" not in metrics and metrics["validation"]["images"] > 0
    printed = capsys.readouterr().out
    against = "it is not faster than fp32 for certain and it may lose more than 0 points of accuracy"
    assert "small: nothing searched, `tune.small.recipe` is given: 0." in printed
    assert f"warning: `tune.small.recipe` is kept, although {against}" in printed
    assert taken(metrics).endswith(f" It is kept, although {against}.")
    settings = CALIBRATE | {"images": 30, "symmetric": False, "moving_average": False}
    assert read_recipe("recipe.yaml") == SLOW | {"calibrate": settings}


def test_fp32_can_be_given(workspace, monkeypatch, capsys):
    monkeypatch.setattr(search, "OPTIONS_SHARE", 0.0)
    workspace(seconds=1.0, recipe="fp32")
    metrics, rows = run()
    assert (metrics["given"], metrics["chosen"], rows) == (1, "fp32", [])
    assert "small: nothing searched, `tune.small.recipe` is given: tuned is a copy of fp32" in capsys.readouterr().out
    assert read_recipe("recipe.yaml") == "fp32"
    plot_tune.main("small", "metrics.json", "points.csv", "points.png")


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        (U8S8 | {"nodes_to_exclude": ["conv_9"]}, "cannot be used: nodes_to_exclude names 'conv_9', which is no node of"),
        (SLOW | {"weight_type": "QUInt8"}, "does not work: "),  # no kernel: preflight refuses it
    ],
)  # fmt: skip
def test_a_given_recipe_that_does_not_work_is_an_error_that_leaves_no_output(workspace, recipe, sentence):
    for name in OUTPUTS:
        Path(name).unlink(missing_ok=True)
    workspace(recipe=recipe)
    with pytest.raises(UserError, match=f"^the recipe given under `tune` {sentence}"):
        run()
    assert not [name for name in OUTPUTS if Path(name).exists()]


def test_where_all_that_can_be_tried_is_slower_the_answer_is_fp32_itself(workspace, monkeypatch, capsys):
    """The space is cut down to files with no fast kernels."""
    monkeypatch.setattr(search, "OPTIONS_SHARE", 1.5)
    workspace(recipes={"slow": SLOW})
    monkeypatch.setattr(screening, "TYPES", ())
    metrics, _ = run()
    assert metrics["chosen"] == "fp32" and "speedup" not in metrics
    options = [one for one in metrics["session_options"].values() if isinstance(one, dict)]
    assert options and all(set(one) == {"setting", "value", "fp32"} for one in options)
    assert "none is better than fp32 at batch 8: tuned is a copy of fp32" in capsys.readouterr().out
    text = Path("recipe.yaml").read_text()
    assert text.startswith("# No static recipe for small meets the condition and beats fp32 on this machine")
    build_tuned.main("small", "recipe.yaml", *FILES[:3], "tuned.onnx", "tuned.json")
    assert Path("tuned.onnx").read_bytes() == Path("fp32.onnx").read_bytes()
    assert json.loads(Path("tuned.json").read_text()) == {"copy_of": "fp32", "ranges": {}}
    plot_tune.main("small", "metrics.json", "points.csv", "points.png")


def test_by_size_a_smaller_file_is_taken_even_if_it_is_slower(workspace, monkeypatch):
    workspace(recipes={"slow": SLOW}, objective="size")
    monkeypatch.setattr(screening, "TYPES", ())
    metrics, _ = run()
    assert metrics["chosen"] == "slow" and metrics["size_bytes"] < Path("fp32.onnx").stat().st_size / 3


def test_accuracy_that_is_not_shown_to_hold_is_not_taken(workspace, capsys):
    """No loss at all is allowed, which no finite number of images can show; and that is said."""
    workspace(max_drop=0.0)
    metrics, rows = run()
    assert metrics["chosen"] == "fp32" and metrics["points"]["inaccurate"] > 0
    assert any(re.search(r"accuracy \S+ points, and it could be -\d", row["reason"]) for row in rows)
    assert (
        "validation images cannot show that no more than 0 points are lost: raise max_drop" in capsys.readouterr().out
    )


def test_a_search_without_hand_written_recipes_works(workspace):
    workspace(recipes={})
    metrics, rows = run()
    assert "best_hand_written" not in metrics and rows[0]["origin"] == "searched"


def test_the_search_ends_in_time_and_says_what_it_did_not_reach(workspace, monkeypatch, capsys):
    monkeypatch.setattr(search, "OPTIONS_SHARE", 0.0)  # a quarter of half a second is enough on a fast machine
    workspace(seconds=0.5)
    start = time.monotonic()
    metrics, _ = run()
    assert metrics["points"]["not_reached"] > 0
    assert metrics["session_options"] == {"rounds": 0}
    assert "session options: left out, a quarter of the search's seconds is too little" in capsys.readouterr().out
    assert time.monotonic() - start < 10


def test_a_search_that_is_stopped_leaves_no_output(workspace, monkeypatch):
    def stop(*_arguments, **_settings):
        raise KeyboardInterrupt

    for name in OUTPUTS:
        Path(name).unlink(missing_ok=True)
    monkeypatch.setattr(search, "race", stop)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert not [name for name in OUTPUTS if Path(name).exists()]


def test_the_search_holds_the_lock_of_the_machine(workspace, monkeypatch):
    taken = []

    def lock():
        taken.append(True)
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "machine_lock", lock)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert taken


def test_validation_images_are_no_calibration_images():
    taken = np.arange(0, 500, 2)
    drawn = draw_validation(seed=0, images=200, available=500, taken=taken)
    assert len(set(drawn.tolist())) == 200 and not set(drawn.tolist()) & set(taken.tolist())
    with pytest.raises(
        UserError, match=r"^tune asks for 251 validation images, and of 500 training images 250 are left"
    ):
        draw_validation(seed=0, images=251, available=500, taken=taken)


def test_the_time_that_predictions_may_take_bounds_the_validation_images():
    plan = {"seconds": 150, "validation_images": 5000}
    assert search.affordable_images(plan, 1e-4, 5e-5, free=59_000) == 5000
    assert search.affordable_images(plan, 0.016, 0.005, free=59_000) == 1693
    assert search.affordable_images(plan, 10.0, 5.0, free=59_000) == search.FEWEST_IMAGES
    assert search.affordable_images(plan, 1e-4, 5e-5, free=80) == 80


def point(name="searched-01", origin=SEARCHED, size=100, **recipe):
    return Point(name, origin, recipe, size_bytes=size)


def rounds(**milliseconds):
    """Return {name: medians of 20 rounds} with 1 % of noise."""
    random = np.random.default_rng(0)
    return {name.replace("_", "-"): time * np.exp(random.normal(0, 0.01, 20)) for name, time in milliseconds.items()}


def test_the_winner_has_to_beat_the_hand_written_recipe_for_certain():
    hand, winner = point("by-hand", HAND_WRITTEN), point()
    medians = rounds(fp32=2.0, by_hand=1.0, searched_01=0.999)
    assert search.decide(winner, hand, medians, by_size=False) is hand
    assert winner.reason == "not faster than by-hand for certain, which is written by hand"
    hand, winner = point("by-hand", HAND_WRITTEN), point()
    assert search.decide(winner, hand, rounds(fp32=2.0, by_hand=1.0, searched_01=0.9), by_size=False) is winner


def test_what_is_not_faster_than_fp32_for_certain_is_not_taken():
    hand, winner = point("by-hand", HAND_WRITTEN), point()
    assert search.decide(winner, hand, rounds(fp32=1.0, by_hand=1.4, searched_01=0.999), by_size=False) is None
    assert search.decide(point(), None, rounds(fp32=1.0, searched_01=0.5), by_size=False) is not None
    assert search.decide(None, None, rounds(fp32=1.0), by_size=False) is None


def test_a_hand_written_recipe_that_is_no_faster_than_fp32_does_not_stand_in_the_way():
    hand, winner = point("by-hand", HAND_WRITTEN), point()
    medians = rounds(fp32=1.0, by_hand=0.999, searched_01=0.98)
    assert search.decide(winner, hand, medians, by_size=False) is winner


def test_of_those_that_tie_the_smaller_and_then_the_simpler_is_tried_first_and_the_rest_by_time():
    """A big layer left in fp32 for one percent of time would triple the file."""
    simple, elaborate, slow = point("a", x=1), point("b", x=1, y=["c", "d"]), point("c", x=1)
    big = point("big", size=300)
    elaborate.raced, simple.raced, slow.raced = (0.500, 0.49, 0.51), (0.505, 0.49, 0.52), (0.6, 0.59, 0.61)
    big.raced = (0.499, 0.498, 0.5)
    assert race.by_simplicity([big, elaborate, slow, simple]) == [simple, elaborate, big, slow]


def test_of_two_formats_that_tie_qdq_is_the_simpler():
    qdq, older = point("a", quant_format="QDQ"), point("b", quant_format="QOperator")
    qdq.raced, older.raced = (0.505, 0.49, 0.52), (0.500, 0.49, 0.51)
    assert race.by_simplicity([older, qdq]) == [qdq, older]


def test_the_field_has_what_is_close_and_a_few_more_whatever_the_screening_says():
    screened = {"a": 0.3, "b": 0.5, "c": 0.6, "d": 0.7, "e": 0.8, "lost": None}
    points = [Point(name, SEARCHED, {}, screened=time) for name, time in screened.items()]
    points[-1].drop("failed", "does not work")
    seen = SimpleNamespace(points=points, score=lambda one: one.screened)
    assert [one.name for one in search.field_of(seen)] == ["a", "b", "c", "d"]
    assert (points[4].outcome, points[4].reason) == ("behind", "2.67 times the best of the screening")
    close = [Point(f"p{number}", SEARCHED, {}, screened=0.5 + number / 1000) for number in range(10)]
    assert len(search.field_of(SimpleNamespace(points=close, score=lambda one: one.screened))) == race.FIELD


def test_a_race_finds_the_fastest_and_says_how_far_behind_the_others_were(monkeypatch):
    milliseconds = {"fp32": 1.0, "a": 0.5, "b": 0.6, "c": 0.7, "d": 0.505}
    points, heats = [point(name) for name in "cbad"], []

    def simulate(field, *_files, seed, **_settings):
        heats.append(len(field))
        random = np.random.default_rng(seed)
        return {
            name: milliseconds[name] * np.exp(random.normal(0, 0.002, 10))
            for name in ["fp32", *(one.name for one in field)]
        }

    monkeypatch.setattr(race, "timed_rounds", simulate)
    left = race.race(points, "fp32.onnx", np.zeros((1, 1)), clock=Stopped(), threads=1)
    assert [one.name for one in left] == ["a", "d"] and heats == [4, 2]
    assert left[0].raced[1] < 0.5 < left[0].raced[2]


def accuracy(change, low):
    return {"accuracy_change": change, "change_low": low, "change_high": 0.01, "changed": 3, "images": 400}


class Stopped:
    """A clock that never runs out."""

    seconds = 1.0

    def spent(self):
        return 0.0

    def left(self, until):
        return 1.0

    def show(self, doing):
        pass


def test_a_point_whose_accuracy_may_not_hold_is_repaired_before_a_slower_one_is_taken():
    fast, slow, repaired = point("fast"), point("slow"), point("repaired")
    fast.raced, slow.raced, repaired.screened = (0.5, 0.49, 0.51), (0.7, 0.69, 0.71), 0.52
    fast.path, slow.path, repaired.path = "fast", "slow", "repaired"
    results = {"fast": accuracy(-0.004, -0.009), "slow": accuracy(0, -0.001), "repaired": accuracy(0, -0.002)}
    found = search.first_that_holds(
        [fast, slow], search.Accuracy(results.__getitem__, 0.005).holds, clock=Stopped(), until=1.0,
        repair=lambda failed: [repaired] if failed is fast else [],
        rank=lambda one: one.raced[0] if one.raced else one.screened,
    )  # fmt: skip
    assert found is repaired and slow.judged is None
    assert (fast.outcome, fast.reason) == ("inaccurate", "accuracy -0.40 points, and it could be -0.90")
