"""The sensitivity stage repeats what calibrate-quantize and evaluate do, and says how much the calibration draw matters."""

import hashlib
import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import yaml
from small_network import CLASSES, SCALING, write_heavy_tailed_images, write_network

from stages import calibrate_quantize, evaluate, plot_sensitivity, sensitivity
from stages.common.calibration.settings import METHODS
from stages.common.calibration.static_quantization import calibrate
from stages.common.preflight.params_check import check_params
from stages.common.reporting.explanations import draw_doubt, draw_rows, draw_spread
from stages.common.session.runtime import predict_images
from stages.common.workspace import UserError, load_params

RECIPE = {"quant_format": "QDQ", "activation_type": "QUInt8", "weight_type": "QInt8"}
CALIBRATE = {"seed": 2, "images": 50, "batch_size": 16, "method": "MinMax"}
PLAN = {"variant": "static-u8s8", "images": [20, 50, 600], "seeds": 4, "test_images": 200}
FILES = ["preprocessed.onnx", "train.npy", "test.npy", "labels.npy", "fp32.npz", "metrics.json", "draws.csv"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A folder with parameters, a network, 600 training images, 200 labelled test images and the baseline's logits."""
    folder = tmp_path_factory.mktemp("sensitivity")
    write_network(folder)
    write_heavy_tailed_images(folder / "train.npy", 600)
    write_heavy_tailed_images(folder / "test.npy", 200)
    logits = predict_images(folder / "fp32.onnx", folder / "test.npy", SCALING, images=200, batch_size=50, threads=1)
    np.savez(folder / "fp32.npz", logits=logits)
    noise = np.random.default_rng(0).normal(size=(200, CLASSES))
    np.save(folder / "labels.npy", (logits + noise).argmax(1))
    write_params(folder)
    return folder


def write_params(folder, **calibrate):
    params = {
        "calibrate": CALIBRATE | calibrate,
        "calibrate_quantize": {"static-u8s8": RECIPE},
        "evaluate": {"batch_size": 50, "threads": 1},
        "models": {"small": {"input": SCALING, "evaluate": {"images": 200}}},
        "sensitivity": {"small": PLAN},
    }
    (folder / "params.yaml").write_text(yaml.safe_dump(params))


@pytest.fixture
def draws(repository, monkeypatch):
    """The rows of the stage's table, as {(images, seed): row}, after a run in the repository's folder."""
    monkeypatch.chdir(repository)
    sensitivity.main("small", "static-u8s8", *FILES)
    table = np.genfromtxt("draws.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    return {(int(row["images"]), int(row["seed"])): row for row in table}


def test_every_draw_of_the_plan_is_a_row(draws):
    assert list(draws) == [(images, seed) for images in PLAN["images"] for seed in range(PLAN["seeds"])]


@pytest.mark.parametrize(("images", "seed"), [(20, 0), (50, 3), (600, 1)])
def test_a_draw_is_the_file_that_calibrate_quantize_makes(draws, repository, images, seed):
    """Same seed and count, same bytes, and the same accuracy as evaluate's."""
    write_params(repository, images=images, seed=seed)
    calibrate_quantize.main("small", "static-u8s8", *FILES[:2], "variant.onnx", "ranges.json")
    write_params(repository)
    digest = hashlib.sha256(Path("variant.onnx").read_bytes()).hexdigest()
    assert digest.startswith(draws[images, seed]["file_sha256"])
    logits = predict_images("variant.onnx", "test.npy", SCALING, images=200, batch_size=50, threads=1)
    expected = evaluate.compare(logits, np.load("fp32.npz")["logits"], np.load("labels.npy"))
    for key in ("accuracy", "accuracy_change", "changed", "lost", "gained"):
        assert draws[images, seed][key] == expected[key]


HOWS = [
    METHODS["MinMax"],
    METHODS["MinMax"] | {"symmetric": True},
    METHODS["MinMax"] | {"moving_average": True},
    METHODS["Percentile"],
]


@pytest.mark.parametrize("options", HOWS, ids=["MinMax", "symmetric", "moving average", "Percentile"])
def test_ranges_are_those_that_calibrate_finds(repository, options):
    """Also where many draws share what was found on single images."""
    files, sets = (repository / "preprocessed.onnx", repository / "train.npy"), [np.arange(7), np.arange(3, 40, 2)]
    how = {"method": "Percentile" if "percentile" in options else "MinMax", "batch_size": 5, "op_types": None} | options
    expected = [calibrate(*files, indices, SCALING, **how) for indices in sets]
    assert sensitivity.find_ranges(*files, sets, SCALING, **how) == expected


def test_metrics_summarize_the_table(draws):
    metrics = json.loads(Path("metrics.json").read_text())["small"]["static-u8s8"]
    for images in PLAN["images"]:
        changes = [row["accuracy_change"] for draw, row in draws.items() if draw[0] == images]
        found = metrics[f"images_{images}"]
        assert found["spread"] == pytest.approx(statistics.stdev(changes))
        assert (found["worst_change"], found["best_change"], found["seeds"]) == (min(changes), max(changes), 4)
    assert metrics["recipe"]["accuracy_change"] == draws[50, 2]["accuracy_change"]
    assert metrics["recipe"]["change_low"] < metrics["recipe"]["accuracy_change"] < metrics["recipe"]["change_high"]


def test_drawing_all_images_leaves_no_spread(draws):
    """Every seed then draws the same 600 images: one file, and nothing for the draw to change."""
    found = json.loads(Path("metrics.json").read_text())["small"]["static-u8s8"]["images_600"]
    assert (found["distinct_models"], found["spread"]) == (1, 0)
    assert json.loads(Path("metrics.json").read_text())["small"]["static-u8s8"]["available"] == 600


def test_the_same_file_is_compared_once(repository):
    ranges = sensitivity.find_ranges(
        repository / "preprocessed.onnx", repository / "train.npy", [np.arange(9), np.arange(2), np.arange(9)], SCALING,
        op_types=None, batch_size=5, method="MinMax", symmetric=False, moving_average=False,
    )  # fmt: skip
    compared = []
    results = sensitivity.compare_files(
        repository / "preprocessed.onnx", ranges, RECIPE, lambda path: compared.append(path.stem) or len(compared)
    )
    assert results[0] == results[2] != results[1]
    assert len(compared) == 2


def test_the_figure_is_the_same_every_time(draws):
    """A figure in Git changes only when what it shows does."""
    made = []
    for name in ("once.png", "again.png"):
        plot_sensitivity.main("small", "static-u8s8", "metrics.json", "draws.csv", name)
        made.append(Path(name).read_bytes())
    assert made[0] == made[1]


@pytest.mark.parametrize(("images", "expected"), [(20, 20), (10, 10 ** (1 - plot_sensitivity.WIDTH / 2))])
def test_the_recipes_own_draw_stands_on_its_tick_or_on_its_dot_in_a_column(images, expected):
    """Its seed's place in a column says nothing where there is no column."""
    draws = np.array([(10, seed, 0.01 * seed) for seed in range(3)], "i8,i8,f8")
    draws.dtype.names = ("images", "seed", "accuracy_change")
    recipe = {"images": images, "seed": 0, "accuracy_change": 0.0, "change_low": -0.01, "change_high": 0.01}
    metrics = {"recipe": recipe, "images_10": {"mean_change": 0.01}, "available": 60_000}
    [axes] = plot_sensitivity.draw_figure("a title", draws, metrics).axes
    [own] = [line for line in axes.lines if line.get_label() == "the recipe's own draw"]
    assert own.get_xdata() == pytest.approx([expected])
    assert axes.get_xticks().tolist() == sorted({10, images})


def test_the_title_says_what_the_draw_and_the_test_set_are_worth():
    counted = {
        "images_10": {"spread": 0.002, "seeds": 5},
        "images_90": {"spread": 0.001, "seeds": 5},
        "test_images": 1000,
        "available": 60_000,
    }
    recipe = {"images": 100, "change_low": -0.01, "change_high": 0.02}
    title = plot_sensitivity.title_of("cnn", "static-u8s8", counted | {"recipe": recipe})
    assert "calibration images move accuracy by ±0.20 points, other test images by ±1.50" in title
    assert "over 5 draws of 90 images" in title


def counted(recipe_images, *, available, **spreads):
    """Return sensitivity's metrics of one variant, with these spreads: images_10=0.002."""
    recipe = {"images": recipe_images, "accuracy_change": 0.0, "change_low": -0.01, "change_high": 0.02}
    keys = ("mean_change", "worst_change", "best_change")
    draws = {
        name: {"spread": spread, "seeds": 5, "distinct_models": 5} | dict.fromkeys(keys, 0.0)
        for name, spread in spreads.items()
    }
    return draws | {"recipe": recipe, "test_images": 1000, "available": available}


def test_the_spread_beside_an_accuracy_is_that_of_the_nearest_number_of_images_by_ratio():
    """200 is closer to 10 than to 500 in images, and 20 times as many: a spread falls by ratios."""
    metrics = counted(200, available=60_000, images_10=0.02, images_500=0.001)
    assert draw_spread({"v": metrics}, "v") == "0.100 (5 x 500, 1,000 tested)"
    assert draw_spread({"v": metrics}, "v", images=1000) == "0.100 (5 x 500)"
    assert "±0.20 points" in plot_sensitivity.title_of("cnn", "v", metrics)


def test_a_draw_of_all_images_is_no_measure_of_the_draw():
    """All such draws are the same, so that their spread of nothing says nothing."""
    metrics = counted(500, available=600, images_20=0.002, images_400=0.001, images_600=0.0)
    assert draw_spread({"v": metrics}, "v") == "0.100 (5 x 400 of 600, 1,000 tested)"
    assert "±0.20 points" in (title := plot_sensitivity.title_of("cnn", "v", metrics)) and "400 of 600 images" in title
    spreads = [row["spread (sd)"].text for row in draw_rows("cnn", "v", metrics)]
    assert spreads == ["0.200", "0.100", "only one draw possible"]
    assert draw_doubt(metrics) == (
        "There are 600 training images: draws of 400 have many images in common, so that their spread is small by "
        "construction, and draws of all are the same, which says nothing of what the draw does."
    )
    assert [plot_sensitivity.tick_of(count, metrics) for count in (300, 400, 600)] == [
        "300",
        "400\n(of 600)",
        "600\n(all)",
    ]


def test_of_draws_of_all_images_alone_no_spread_is_told():
    metrics = counted(600, available=600, images_600=0.0)
    assert draw_spread({"v": metrics}, "v") == ""
    assert plot_sensitivity.title_of("cnn", "v", metrics).startswith("Draws of all 600 images are the same;")


def test_small_draws_of_many_images_raise_no_doubt():
    assert draw_doubt(counted(200, available=60_000, images_10=0.02, images_30000=0.001)) == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": "static-u8s9"}, "did you mean `static-u8s8`"),
        ({"variant": "dynamic-qint8"}, r"no recipe of `calibrate_quantize`"),
        ({"seeds": 1}, r"`sensitivity\.cnn\.seeds` is 1"),
        ({"images": [10, 10]}, "names a size twice"),
        (
            {"images": [70_000]},
            r"`sensitivity\.cnn\.images` is 70000 and data/fashion-mnist/train-images.npy has 60000",
        ),
        ({"test_images": 10_001}, r"`sensitivity\.cnn\.test_images` is 10001"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(change, message):
    params = load_params()
    params["sensitivity"]["cnn"] |= change
    with pytest.raises(UserError, match=message):
        check_params(params, ".")
