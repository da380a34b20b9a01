"""What the report says of the search follows from its files."""

import json
import re
from pathlib import Path

import pytest

from stages.common.reporting.tuning import found, recipe_entry, searched, taken, tuning_section
from stages.common.search.points import OUTCOMES
from stages.common.tuned_recipe import doubts
from stages.plot_tune import draw_figure, front, title_of
from stages.report import tuned_recipe

METRICS = {
    "objective": "latency", "batch": 1, "threads": 1, "max_drop": 0.5, "labelled": 1, "speedup": 1.68, "speedup_low": 1.67, "speedup_high": 1.69,
    "rounds": 20, "over_hand_written": {"speedup": 1.18, "speedup_low": 1.17, "speedup_high": 1.19},
    "tuned_gops": 126.1, "fp32_gops": 72.1, "int8_product_gops": 169.9, "fp32_product_gops": 64.5, "chosen": "searched-06",
    "points": {"tried": 23, "tied": 1, "behind": 15, "inaccurate": 4, "same_file": 2, "failed": 0, "not_reached": 0},
    "best_hand_written": {"name": "static-u8s8", "accuracy_change": -0.0038, "change_low": -0.0066, "shown_low": -0.0071}, "size_bytes": 406582,
    "validation": {"images": 5000, "accuracy_change": 0.0006, "change_low": -0.0008, "change_high": 0.002, "shown_low": -0.0009, "changed": 9},
    "seconds": 26.2, "other_work_percent": 1.5, "cpu_steal_percent": 0.0, "fp32_size_bytes": 1564672,
}  # fmt: skip
POINTS = 'point,origin,outcome,reason,recipe\na,searched,behind,slow,{}\nb,searched,chosen,,"{""quant_format"": ""QDQ"", ""nodes_to_exclude"": [""conv""]}"\n'
TIMES = """variant,batch,layer,kind,op_types,microseconds,calls
static-u8s8,8,conv_1,layer,QLinearConv,60.0,9
static-u8s8,8,conv_2,layer,QLinearConv,40.0,9
static-u8s8,8,input,quantize,QuantizeLinear,5.0,9
tuned,8,conv_1,layer,Conv,20.0,9
tuned,8,conv_2,layer,QLinearConv,41.0,9
tuned,8,conv_1,quantize,QuantizeLinear,2.0,9
tuned,8,,other,(no kernel),1.0,9
"""


@pytest.fixture
def root(tmp_path):
    for path, text in {
        "metrics/tune/net.json": json.dumps({"net": METRICS}),
        "plots/tune/net.csv": POINTS,
        "plots/explain/net.csv": TIMES,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_the_section_says_what_was_searched_what_won_why_and_what_holds_it_back(root):
    section = tuning_section(root, "net", 8)
    assert section["sentences"] == [
        "`tune` looked for the fastest recipe at batch 1 and tried 23 in 26 s: 1 taken, 1 about as good as another, 15 behind, 4 that may lose more than 0.5 points of accuracy, 2 with the same file as another.",
        "`tuned` is 3.8x smaller than fp32, 1.68x as fast (1.67 to 1.69) and 1.18x (1.17 to 1.19) as fast as the best recipe written by hand, `static-u8s8`, whose accuracy was not shown to hold; on 5,000 validation images its accuracy changes by +0.06 points (-0.08 to +0.20).",
        "At batch 8 it saves 41 us a call against `static-u8s8`, most in conv_1 (38 us: Conv in place of QLinearConv, with the conversions around it).",
        "Its call at batch 8 is 64 % convolutions and matrix products in integers, 31 % other layers, 3 % conversions between types and layouts, 2 % no kernel.",
        "In billions of operations a second `tuned` reaches 126 at batch 1, fp32 72, a large matrix product 170 in integers and 64 in floating point.",
    ]


def test_the_recipe_of_the_chosen_point_is_an_entry_for_params_yaml(root):
    assert recipe_entry(root / "plots/tune/net.csv") == (
        "    recipe:\n      quant_format: QDQ\n      nodes_to_exclude:\n      - conv\n"
    )


GIVEN = {key: METRICS[key] for key in METRICS if key not in ("over_hand_written", "best_hand_written")}
GIVEN |= {"given": 1, "chosen": "given"}


def test_a_recipe_that_was_given_is_not_said_to_be_found(root):
    (root / "metrics/tune/net.json").write_text(json.dumps({"net": GIVEN}))
    section = tuning_section(root, "net", 8)
    assert section["title"] == section["shown"] == "The recipe that was given"
    assert section["sentences"][:2] == [
        "The recipe of `tuned` is given in params.yaml (`tune.net.recipe`), so that nothing was searched.",
        "`tuned` is 3.8x smaller than fp32, 1.68x as fast (1.67 to 1.69) at batch 1; on 5,000 validation images its accuracy changes by +0.06 points (-0.08 to +0.20).",
    ]
    assert len(section["sentences"]) == 4  # and where its time goes, and the speed of arithmetic
    title = "net: nothing was searched, params.yaml gives the recipe"
    assert title_of("net", [], GIVEN) == f"{title}; tuned takes 0.595 of fp32's time (95 % interval 0.592 to 0.599)"
    assert title_of("net", [], GIVEN | {"chosen": "fp32"}) == f"{title}, which is fp32: tuned is a copy of it"


def test_fp32_alone_lies_within_the_figure():
    """It is the only point where fp32 is given, and matplotlib finds no limits around one on a logarithmic axis."""
    for axes in draw_figure("net", [], GIVEN | {"chosen": "fp32"}).axes:
        low, high = axes.get_xlim()
        assert low < 1 < high


def test_what_a_search_would_have_turned_a_given_recipe_down_for_is_said():
    slow, lossy = (
        {"speedup_low": 0.99},
        {"validation": GIVEN["validation"] | {"change_low": -0.0049, "shown_low": -0.0051}},
    )
    assert doubts(GIVEN) == doubts(METRICS | slow | lossy) == doubts(GIVEN | slow | {"chosen": "fp32"}) == []
    assert doubts(GIVEN | slow) == ["it is not faster than fp32 for certain"]
    assert doubts(GIVEN | lossy) == ["it may lose more than 0.5 points of accuracy"]
    assert doubts(GIVEN | lossy | {"labelled": 0}) == ["it may lose more than 0.5 points of agreement with fp32"]
    assert doubts(GIVEN | slow | {"objective": "size"}) == []
    large = {"objective": "size", "size_bytes": GIVEN["fp32_size_bytes"]}
    assert doubts(GIVEN | large) == ["it is no smaller than fp32"]


def test_a_tuned_file_that_may_saturate_is_warned_of_as_any_other(root, monkeypatch):
    monkeypatch.chdir(root)
    recipe = '"{""weight_type"": ""QInt8""}"'
    Path("plots/tune/net.csv").write_text(f"point,outcome,recipe\na,behind,{{}}\nb,chosen,{recipe}\n")
    assert tuned_recipe(["net"], "avx2") == {"tuned": {"weight_type": "QInt8"}}
    assert tuned_recipe(["net"], "avx512_vnni") == tuned_recipe(["another"], "avx2") == {}


@pytest.mark.parametrize(
    ("times", "title"),
    [
        ([1.2], "net: the only int8 file is not faster than fp32: tuned is a copy of fp32"),
        ([1.2, 1.3], "net: none of 2 int8 files is faster than fp32: tuned is a copy of fp32"),
        ([0.9, 1.3], "net: 1 of 2 int8 files is faster than fp32, not for certain and with its accuracy: tuned is a copy of fp32"),
        ([0.9, 0.8], "net: 2 of 2 int8 files are faster than fp32, none of them for certain and with its accuracy: tuned is a copy of fp32"),
    ],
)  # fmt: skip
def test_the_title_of_a_search_that_found_nothing_says_no_more_than_that(times, title):
    assert title_of("net", [{"time": time} for time in times], METRICS | {"chosen": "fp32"}) == title


@pytest.mark.parametrize("chosen", ["searched-06", "fp32"])
def test_what_became_of_the_recipes_adds_up_to_those_that_were_tried(chosen):
    counts = {outcome.replace("-", "_"): count for count, outcome in enumerate(OUTCOMES[1:], 2)}
    tried = sum(counts.values()) - counts["not_reached"] + (chosen != "fp32")
    said = searched(METRICS | {"chosen": chosen, "points": counts | {"tried": tried}})
    numbers, missed = re.search(r" in 26 s: (.*); (\d+) more could not be reached in the time\.", said).groups()
    assert sum(int(part.split()[0]) for part in numbers.split(", ")) == tried and int(missed) == counts["not_reached"]


def test_a_hand_written_recipe_is_said_to_hold_by_the_limit_that_it_was_judged_by():
    """Not by that of the 95 % interval, which is asked of a single recipe."""
    hand = METRICS["best_hand_written"] | {"change_low": -0.0048}
    assert "not shown to hold" in found(METRICS | {"best_hand_written": hand | {"shown_low": -0.0052}})
    assert "not shown to hold" not in found(METRICS | {"best_hand_written": hand | {"shown_low": -0.0049}})


def test_a_search_on_a_busy_machine_says_so():
    assert "disturbed" not in taken(GIVEN)
    assert taken(GIVEN | {"other_work_percent": 41.7}).endswith(" took 42 % of the CPU time meanwhile.")
    assert searched(METRICS).endswith("2 with the same file as another.")
    assert searched(METRICS | {"other_work_percent": 41.7}).endswith(
        " The measurement was disturbed: other processes took 42 % of the CPU time meanwhile."
    )


def test_a_model_that_was_not_searched_has_no_section(tmp_path):
    assert tuning_section(tmp_path, "net", 8) is None


def test_a_copy_of_fp32_is_said_to_be_one(root):
    fp32 = {
        key: METRICS[key]
        for key in METRICS
        if key not in ("over_hand_written", "tuned_gops", "validation", "size_bytes")
    }
    (root / "metrics/tune/net.json").write_text(json.dumps({"net": fp32 | {"chosen": "fp32"}}))
    section = tuning_section(root, "net", 8)
    assert (
        section["sentences"][1]
        == "None of them is better for certain and keeps the accuracy: `tuned` is a copy of fp32."
    )
    assert len(section["sentences"]) == 3


def test_a_recipe_by_hand_that_nothing_beats_is_named():
    metrics = {key: METRICS[key] for key in METRICS if key != "over_hand_written"} | {"chosen": "static-u8s8"}
    assert found(metrics).startswith(
        "`tuned` is `static-u8s8`, 3.8x smaller than fp32, 1.68x as fast (1.67 to 1.69), which nothing else beats for certain;"
    )


def test_the_front_of_time_and_size_has_what_no_other_point_beats_in_both():
    points = [{"time": time, "size_kib": size} for time, size in ((2, 1), (1, 3), (1.5, 4), (3, 2))]
    assert front(points) == [(1, 3), (2, 1)]
