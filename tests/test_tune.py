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
from stages.common.reporting.tuning import disturbed, found, taken
from stages.common.search import (
    matrix_products,
    option_predictions,
    option_race,
    options_to_try,
    race,
    screening,
    search,
)
from stages.common.search.accuracy import CHANCE, Accuracy
from stages.common.search.clock import SearchClock
from stages.common.search.decision import best_by_hand, drop_behind
from stages.common.search.points import BEHIND, HAND_WRITTEN, INACCURATE, SAME_FILE, SEARCHED, Point
from stages.common.search.space import Shape
from stages.common.search.summary import final_speeds, summary
from stages.common.search.validation import draw_validation, free_images
from stages.common.session.runtime import predict_images
from stages.common.statistics.intervals import accuracy_change_interval, least_change
from stages.common.tuned_recipe import read_recipe
from stages.common.workspace import UserError

pytestmark = pytest.mark.timed

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


def no_options(*_arguments, **_settings):
    """Race no session options, in place of measure_options."""
    return {"rounds": 0}


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
    workspace(seconds=12.0)  # enough on a busy machine, too
    monkeypatch.setattr(search, "SEARCH_SHARE", 0.25)
    monkeypatch.setattr(option_race, "VISIT_SECONDS", 0.005)
    metrics, rows = run()
    options = metrics["session_options"]
    assert options["rounds"] >= option_race.FEWEST_ROUNDS and options["images"] >= option_predictions.FEWEST_IMAGES
    named = {name: one for name, one in options.items() if isinstance(one, dict)}
    assert set(named) == set(options_to_try.OPTIONS) - {"intra_op_spinning_off"}  # with one thread nobody waits
    assert metrics["chosen"] != "fp32"
    for one in named.values():
        for result in (one, one["fp32"]):
            assert result.get("same_graph") == 1 or result["speedup_low"] < result["speedup"] < result["speedup_high"]
        assert ("changed" in one) == ("speedup" in one)
    assert "session options, " in capsys.readouterr().out
    settings = {option.setting for option in options_to_try.OPTIONS.values()}
    written = Path("recipe.yaml").read_text() + "".join(row["recipe"] for row in rows)
    assert not [setting for setting in settings if setting in written]


def test_without_labels_the_condition_is_one_of_agreement_and_the_words_say_so(workspace, monkeypatch, capsys):
    np.save("none.npy", np.empty(0, np.int64))
    monkeypatch.setitem(globals(), "FILES", [*FILES[:3], "none.npy"])
    workspace(objective="size")  # by which fp32 is never taken, however busy the machine is
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


@pytest.fixture
def quick(monkeypatch):
    """Leave out session options, and most of the products that say what the machine can do."""
    monkeypatch.setattr(search, "measure_options", no_options)
    monkeypatch.setattr(matrix_products, "CALLS", 2)


def paste(entry):
    """Put lines behind the name of the model in the section `tune` of params.yaml, as a user does."""
    before, rest = Path("params.yaml").read_text().split("tune:\n  small:\n")
    Path("params.yaml").write_text(f"{before}tune:\n  small:\n{entry}{rest}")


def test_what_a_search_prints_makes_its_file_again_when_it_is_pasted_and_nothing_is_searched(
    workspace, monkeypatch, quick
):
    """Whatever becomes of the calibration settings that other recipes share."""
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


def test_a_given_recipe_is_kept_though_a_search_would_not_take_it_and_that_is_said(workspace, quick, capsys):
    """It takes what it does not say of its calibration from the shared settings, and is written with all of them."""
    workspace(seconds=1.0, max_drop=0.0, recipe=SLOW | {"calibrate": {"images": 30}})
    metrics, [row] = run()
    assert metrics["chosen"] == "given" and row["outcome"] == "chosen"
    assert "best_hand_written" not in metrics and metrics["validation"]["images"] > 0
    printed = capsys.readouterr().out
    against = "it is not faster than fp32 for certain and it may lose more than 0 points of accuracy"
    assert "small: nothing searched, `tune.small.recipe` is given: 0." in printed
    assert f"warning: `tune.small.recipe` is kept, although {against}" in printed
    assert f" It is kept, although {against}." in taken(metrics)
    settings = CALIBRATE | {"images": 30, "symmetric": False, "moving_average": False}
    assert read_recipe("recipe.yaml") == SLOW | {"calibrate": settings}


def test_labels_that_fp32_is_wrong_about_are_not_taken_for_a_condition(workspace, monkeypatch, quick, capsys):
    """From next to nothing no recipe can lose much: numbered otherwise, labels let every recipe pass."""
    workspace(seconds=1.0, recipe="fp32")
    metrics, _ = run()
    assert metrics["fp32_validation"]["accuracy"] > 0.5
    assert "fp32 itself" not in capsys.readouterr().out + disturbed(metrics)
    np.save("others.npy", np.arange(600) % 10)
    monkeypatch.setitem(globals(), "FILES", [*FILES[:3], "others.npy"])
    metrics, _ = run()
    assert metrics["fp32_validation"]["accuracy"] <= metrics["fp32_validation"]["most_frequent_share"] < 0.5
    assert "warning: fp32 itself is right on " in capsys.readouterr().out
    assert " The condition on accuracy may mean little here: fp32 itself is right on " in disturbed(metrics)


def test_fp32_can_be_given(workspace, quick, capsys):
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
    monkeypatch.setattr(search, "SEARCH_SHARE", 0.2)
    monkeypatch.setattr(option_race, "VISIT_SECONDS", 0.005)
    workspace(recipes={"slow": SLOW}, seconds=8.0)
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
    workspace(recipes={"slow": SLOW}, objective="size", seconds=1.0)
    monkeypatch.setattr(screening, "TYPES", ())
    metrics, _ = run()
    assert metrics["chosen"] == "slow" and metrics["size_bytes"] < Path("fp32.onnx").stat().st_size / 3


def test_accuracy_that_is_not_shown_to_hold_is_not_taken(workspace, capsys):
    """No loss at all is allowed, which no finite number of images can show; and that is said."""
    workspace(max_drop=0.0, seconds=1.5)
    metrics, rows = run()
    assert metrics["chosen"] == "fp32" and metrics["points"]["inaccurate"] > 0
    assert any(re.search(r"accuracy \S+ points, and it could be -\d", row["reason"]) for row in rows)
    assert (
        "validation images cannot show that no more than 0 points are lost: raise max_drop" in capsys.readouterr().out
    )


def test_a_search_without_hand_written_recipes_works(workspace):
    workspace(recipes={}, seconds=1.5)
    metrics, rows = run()
    assert "best_hand_written" not in metrics and rows[0]["origin"] == "searched"


def test_session_options_get_what_the_search_leaves_of_its_seconds(workspace, monkeypatch):
    """A fifth at least, of a search that keeps to its time."""
    spent, told, given = SearchClock.spent, [], {}
    monkeypatch.setattr(SearchClock, "spent", lambda clock: told.append(spent(clock)) or told[-1])
    monkeypatch.setattr(
        search, "measure_options", lambda *_files, **settings: given.update(settings, spent=told[-1]) or {"rounds": 0}
    )
    workspace(recipe=U8S8, seconds=1.0)
    run()
    assert given["spent"] > 0 and given["seconds"] == pytest.approx(1.0 - given["spent"])
    monkeypatch.setattr(SearchClock, "spent", lambda _clock: 1.5)
    assert SearchClock(10.0, search.SEARCH_SHARE).left() == pytest.approx(8.0 - 1.5)


def test_the_search_ends_in_time_and_says_what_it_did_not_reach(workspace, monkeypatch, capsys):
    workspace(seconds=0.5)
    start = time.monotonic()
    metrics, _ = run()
    assert metrics["points"]["not_reached"] > 0
    assert metrics["session_options"] == {"rounds": 0}
    assert "session options: left out, what the search leaves of its seconds is too little" in capsys.readouterr().out
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


def test_validation_images_are_none_that_the_network_or_a_calibration_has_seen():
    taken = np.arange(0, 500, 2)
    free = free_images(500, trained=100, taken=taken)
    assert free.tolist() == list(range(101, 500, 2))
    drawn = draw_validation(free, seed=0, images=150).tolist()
    assert len(set(drawn)) == 150 and drawn == sorted(drawn) and set(drawn) <= set(free.tolist())
    with pytest.raises(
        UserError, match=r"^tune has no image to judge by: of 500 training images 499 are trained on and"
    ):
        free_images(500, trained=499, taken=[499])


def test_the_time_that_predictions_may_take_bounds_the_validation_images():
    plan = {"seconds": 150, "validation_images": 5000}
    assert search.affordable_images(plan, 1e-4, 5e-5, free=59_000) == 5000
    assert search.affordable_images(plan, 0.016, 0.005, free=59_000) == 1354  # 35 % of 80 % of 150 s
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


def test_the_two_best_by_hand_are_raced_however_slow_the_screening_found_them():
    by_hand = [Point(f"h{number}", HAND_WRITTEN, {}, screened=2.0 + number) for number in range(3)]
    points = [*by_hand, *(Point(f"p{number}", SEARCHED, {}, screened=0.5) for number in range(10))]
    field = search.field_of(SimpleNamespace(points=points, score=lambda one: one.screened))
    assert field[race.FIELD :] == by_hand[:2] and by_hand[2].outcome == "behind"


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


def judged(lost, gained=0, images=5000, right=4500):
    """Return the comparison of a file with fp32, as compare_file does."""
    change, low, _ = accuracy_change_interval(right - lost, lost, gained, images - right - gained)
    return {"images": images, "lost": lost, "gained": gained, "accuracy_change": change, "change_low": low}


class Stopped:
    """A clock that never runs out."""

    seconds = 1.0

    def spent(self):
        return 0.0

    def left(self, until=1.0):
        return 1.0

    def show(self, doing):
        pass


def test_a_point_whose_accuracy_may_not_hold_is_repaired_before_a_slower_one_is_taken():
    fast, slow, repaired = point("fast"), point("slow"), point("repaired")
    fast.raced, slow.raced, repaired.screened = (0.5, 0.49, 0.51), (0.7, 0.69, 0.71), 0.52
    fast.path, slow.path, repaired.path = "fast", "slow", "repaired"
    results = {"fast": judged(30, 10), "slow": judged(5, 5), "repaired": judged(9, 9)}
    found = search.first_that_holds(
        [fast, slow], Accuracy(results.__getitem__, 0.005).holds, clock=Stopped(), until=1.0,
        repair=lambda failed: [repaired] if failed is fast else [],
        rank=lambda one: one.raced[0] if one.raced else one.screened,
    )  # fmt: skip
    assert found is repaired and slow.judged is None
    assert fast.outcome == "inaccurate"
    assert fast.reason == (
        "accuracy -0.40 points, and it could be -0.72 (98.75 % confidence, as number 1 that was asked)"
    )


@pytest.mark.parametrize(
    ("images", "accuracy", "limit", "gain"), [(5000, 0.89, 0.005, 0.0035), (600, 0.72, 0.02, 0.001)]
)
def test_at_most_one_search_in_forty_takes_a_point_that_loses_too_much(images, accuracy, limit, gain):
    """All eight lose max_drop exactly. Each asked for what a 95 % interval says, one search in eight would take one."""
    random, searches, found, at_once = np.random.default_rng(0), 1000, 0, 0
    for _ in range(searches):
        right = random.binomial(images, accuracy)
        lost = random.binomial(right, (limit + gain) / accuracy, 8).tolist()
        gained = random.binomial(images - right, gain / (1 - accuracy), 8).tolist()
        results = [judged(*counts, images=images, right=right) for counts in zip(lost, gained, strict=True)]
        field = [Point("", SEARCHED, {}, path=number) for number in range(8)]
        holds = Accuracy(results.__getitem__, limit).holds
        settings = {"repair": lambda _: [], "rank": None, "clock": Stopped(), "until": 1.0}
        found += search.first_that_holds(field, holds, **settings) is not None
        at_once += any(result["change_low"] >= -limit for result in results)
    assert found / searches <= CHANCE
    assert at_once / searches > 5 * CHANCE


def test_a_point_is_asked_once_and_what_is_compared_for_the_reader_is_not_asked():
    answers = Accuracy({"a": judged(20, 10), "b": judged(20, 10)}.__getitem__, 0.005)
    first, second, third = (Point(name, SEARCHED, {}, path=path) for name, path in (("1", "a"), ("2", "b"), ("3", "a")))
    assert answers.works(third) and answers.holds(first) and answers.holds(first)
    assert not answers.holds(second)  # the same numbers, and the second has to show more
    for asked, chance in ((first, CHANCE / 2), (second, CHANCE / 6)):
        assert asked.shown_low == pytest.approx(least_change(20, 10, 5000, chance), abs=1e-9)
    assert second.shown_low < -0.005 < first.shown_low
    assert (third.outcome, third.shown_low) == ("", None) and third.judged["change_low"] > first.shown_low


def test_a_file_that_does_not_work_takes_no_confidence_from_those_after_it():
    def compare_file(path):
        if path == "broken":
            raise UserError("its logits are not finite")
        return judged(20, 10)

    answers = Accuracy(compare_file, 0.005)
    broken, first = (Point(path, SEARCHED, {}, path=path) for path in ("broken", "good"))
    assert not answers.holds(broken) and answers.holds(first)
    assert (broken.outcome, broken.shown_low) == ("failed", None)
    assert first.shown_low == pytest.approx(least_change(20, 10, 5000, CHANCE / 2), abs=1e-9)


@pytest.fixture
def screened(folder, monkeypatch, tmp_path):
    """A Search with the hand-written recipe and two of its own, as the screening leaves them; its clock stands still."""
    monkeypatch.chdir(folder)
    settings = {"batch": 8, "evaluate": {"batch_size": 50, "threads": 1}, "threads": 1}
    found = search.Search(PLAN, {"by-hand": U8S8}, CALIBRATE, FILES, SCALING, **settings)
    found.clock, found.folder = Stopped(), tmp_path
    found.open_screening()
    found.screening.try_recipe("by-hand", HAND_WRITTEN, U8S8)
    for shape in (Shape(), Shape(per_channel=True)):
        found.screening.try_shape(found.space, shape)
    return found


def test_a_repair_that_was_screened_before_and_was_only_behind_is_asked_once(screened):
    """The first repair is per-channel weights, which the screening always tries."""
    hand, _, per_channel = screened.points
    per_channel.drop(BEHIND, "1.50 times the best of the screening")
    found = screened.repaired(hand)
    assert found[0] is per_channel and len(found) > 1 and not any(point.outcome for point in found)
    assert all(point.repair_of is hand for point in found) and screened.repaired(per_channel) == []
    again = Point("again", SEARCHED, hand.recipe, shape=hand.shape)
    assert screened.repaired(again) == []  # all of them are in the queue
    per_channel.drop(INACCURATE, "accuracy")
    assert per_channel not in screened.repaired(again)


def test_a_hand_written_recipe_that_the_search_has_too_is_repaired_as_one_of_its_own(screened):
    hand, same, _ = screened.points
    assert (same.outcome, same.twin, hand.shape) == (SAME_FILE, hand, Shape())


def test_the_best_by_hand_is_the_best_of_the_race_and_one_that_cannot_be_judged_is_passed_over():
    def refuse(path):
        if path == "bad":
            raise UserError("not finite")
        return judged(100 if path == "lossy" else 5)

    def by_hand(**paths):
        points = [Point(name, HAND_WRITTEN, {}, path=path, screened=0.5) for name, path in paths.items()]
        points[0].raced, points[-1].raced = (0.6, 0.5, 0.7), (0.4, 0.3, 0.5)
        settings = {"by_size": False, "clock": Stopped(), "until": 1.0}
        return best_by_hand(points, Accuracy(refuse, 0.005), **settings)

    assert by_hand(slow="good", fast="good").name == "fast"
    assert by_hand(slow="good", fast="bad").name == by_hand(slow="good", fast="lossy").name == "slow"
    assert by_hand(slow="lossy", fast="lossy").name == "fast"
    assert by_hand(slow="good", unraced="good", fast="lossy").name == "slow"
    assert by_hand(slow="bad", fast="bad") is None
    assert "best_hand_written" not in summary([], None, by_hand(slow="bad", fast="bad"))


def test_what_is_left_over_is_called_by_what_is_known_of_it():
    best, near, far, screened, quick = (Point(name, SEARCHED, {}, size_bytes=100, screened=0.5) for name in "abcdg")
    best.raced, near.raced, far.raced = (0.5, 0.4, 0.6), (0.495, 0.4, 0.6), (0.58, 0.4, 0.7)
    screened.screened, quick.screened = 0.6, 0.45
    for one, outcome, reason in (
        (near, "tied", "0.99 times a in the race, which is about as fast"),
        (far, "behind", "1.16 times a in the race"),
        (screened, "behind", "1.20 times a in the screening"),
        (quick, "behind", "0.90 times a in the screening, but a was shown to keep its accuracy before"),
    ):
        drop_behind(one, best, by_size=False)
        assert (one.outcome, one.reason) == (outcome, reason)
    large, same = Point("e", SEARCHED, {}, size_bytes=1200), Point("f", SEARCHED, {}, size_bytes=100)
    assert [drop_behind(one, best, by_size=True).outcome for one in (large, same)] == ["behind", "tied"]
    assert large.reason == "1,200 bytes, a has 100"


def test_what_is_reported_of_the_chosen_file_holds_though_it_was_chosen_by_its_time():
    """The rounds by which it was found faster flatter it: by them the truth is outside one interval in six."""
    random, hand, winner, truth = np.random.default_rng(0), point("by-hand", HAND_WRITTEN), point(), 1.03
    held, flattered = [], []
    for _ in range(1000):
        medians = {name: time * np.exp(random.normal(0, 0.05, 20)) for name, time in (("fp32", 3 * truth), ("by-hand", truth), ("searched-01", 1.0))}  # fmt: skip
        deciding, reported = race.halves(medians)
        if search.decide(winner, hand, deciding, by_size=False) is winner:
            for covered, rounds_of in ((held, reported), (flattered, deciding)):
                over = final_speeds(winner, hand, rounds_of)["over_hand_written"]
                covered.append(over["speedup_low"] <= truth <= over["speedup_high"])
    assert len(held) > 100 and np.mean(held) > 0.93 and np.mean(flattered) < 0.87


def test_the_end_of_a_search_is_decided_by_half_of_its_rounds_and_reported_by_the_other(screened, monkeypatch):
    """In every second round all files but fp32 take a tenth less of the time; the rounds that decide are the others."""
    winner, hand = screened.points[2], screened.points[0]
    medians = {"fp32": [2.0, 2.0], winner.name: [0.8, 0.72], "by-hand": [1.0, 0.9]}
    asked = {}
    monkeypatch.setattr(search, "timed_rounds", lambda *_files, **settings: asked.update(settings) or {
        name: np.array(times * 4) for name, times in medians.items()
    })  # fmt: skip
    screened.accuracy = Accuracy(lambda _: judged(5), 0.005)
    screened.choose(winner, hand)
    assert screened.chosen is winner and screened.metrics["rounds"] == 4
    assert screened.metrics["speedup"] == pytest.approx(2 / 0.72) and asked["fewest"] == race.FEWEST_LAST_ROUNDS
    assert screened.metrics["over_hand_written"]["speedup"] == pytest.approx(0.9 / 0.72)
