"""A session option is held against the default session: what slows is found slower, what does nothing is not raced."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import U8S8, images_for, make_variants, save_plain

from stages.common.calibration.collection import collect_ranges
from stages.common.calibration.static_quantization import quantize
from stages.common.reporting.session_options import options_section
from stages.common.search import option_race, options_to_try
from stages.common.search.graph_signature import graph_signature
from stages.common.search.options_to_try import Option
from stages.common.search.session_options import measure_options
from stages.common.session.runtime import default_options, open_session

pytestmark = pytest.mark.timed

SCALING = {"scale": 1.0, "mean": 0.0, "std": 1.0, "channels": 1, "repeat": 1}
SLOW = Option("graph_optimization_level", "ORT_DISABLE_ALL")  # integers are multiplied in floating point, node by node


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with fp32.onnx, u8s8.onnx and 40 images.npy."""
    folder = tmp_path_factory.mktemp("session-options") / "onnx"
    make_variants(save_plain(folder / "fp32.onnx", width=32))
    np.save(folder / "images.npy", images_for(folder / "fp32.onnx", 40))
    return folder


def measured(folder, names=("fp32", "u8s8"), seconds=1.0, **options):
    files = dict(zip(("fp32", "tuned"), [folder / f"{name}.onnx" for name in names], strict=False))
    return measure_options(
        files, np.load(folder / "images.npy")[:8], (folder / "images.npy", 40, SCALING),
        threads=1, seconds=seconds, seed=0, folder=folder, options=options,
    )  # fmt: skip


def test_an_option_that_slows_is_found_slower_and_one_that_leaves_the_graph_is_not_raced(folder):
    idle = Option("session.enable_quant_qdq_cleanup", "1", graph=True)
    found = measured(folder, slow=SLOW, idle=idle)
    assert found["slow"]["speedup_high"] < 0.9 and found["slow"]["holm_p"] < 0.01
    assert found["slow"]["fp32"]["speedup"] < 1
    assert found["slow"]["changed"] <= 2 and found["slow"]["max_abs_logit_difference"] > 0
    same = {"same_graph": 1}
    assert found["idle"] == {"setting": idle.setting, "value": "1", **same, "fp32": same}
    assert found["images"] == 40


def test_without_a_tuned_file_fp32_alone_is_raced_and_judged(folder):
    found = measured(folder, names=["fp32"], slow=SLOW)
    assert set(found["slow"]) == {"setting", "value", "fp32"} and found["slow"]["fp32"]["changed"] == 0


def test_what_does_not_run_with_an_option_is_a_result(folder):
    found = measured(folder, slow=SLOW, no=Option("graph_optimization_level", "ORT_NO_SUCH_LEVEL"))
    assert found["no"]["loads"] == found["no"]["fp32"]["loads"] == 0 and "speedup" not in found["no"]


def test_too_little_time_leaves_the_race_out(folder):
    assert measured(folder, seconds=0.001, slow=SLOW) == {"rounds": 0}


@pytest.mark.parametrize("seconds", [0.0, -3.0])
def test_where_the_search_left_no_time_nothing_is_opened(folder, seconds):
    """Not even for a look: there are no such files, which is an error where one of them is opened."""
    assert measured(folder, names=["no-such", "file"], seconds=seconds, slow=SLOW) == {"rounds": 0}


def test_more_time_than_the_rounds_need_is_not_taken(folder, monkeypatch):
    asked, measure = [], option_race.timing.measure
    monkeypatch.setattr(
        option_race.timing,
        "measure",
        lambda *files, **plan: asked.append(plan["seconds"]) or measure(*files, **plan),
    )
    monkeypatch.setattr(option_race, "VISIT_SECONDS", 0.001)
    assert measured(folder, seconds=1000, slow=SLOW)["rounds"] == option_race.MOST_ROUNDS
    assert 0 < asked[0] < 30


def test_what_is_enough_for_all_rounds_is_enough_however_it_is_rounded(tmp_path):
    race, random = option_race.OptionRace({}, {}, threads=1, folder=tmp_path), np.random.default_rng(0)
    for opening, call in random.uniform(0.01, 3, (1000, 2)):
        race.seconds = {("fp32", option_race.DEFAULT): (opening, call)}
        assert race.affordable_rounds(race.enough_seconds()) == option_race.MOST_ROUNDS


@pytest.fixture(scope="module")
def one_axis(tmp_path_factory):
    """A file of conv, LeakyRelu, MaxPool and conv over one axis, the first three of them in floating point."""
    folder, random = tmp_path_factory.mktemp("one-axis"), np.random.default_rng(0)
    weights = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in (("w_1", (8, 3, 3)), ("w_2", (8, 8, 3)))}  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["input", "w_1"], ["conv_1_out"], "conv_1"),
        helper.make_node("LeakyRelu", ["conv_1_out"], ["relu_out"], "relu"),
        helper.make_node("MaxPool", ["relu_out"], ["pool_out"], "pool", kernel_shape=[2], strides=[2]),
        helper.make_node("Conv", ["pool_out", "w_2"], ["conv_2_out"], "conv_2"),
        helper.make_node("GlobalMaxPool", ["conv_2_out"], ["logits"], "most"),
    ]
    ends = (
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 8, 1])],
    )
    graph = helper.make_graph(nodes, "one-axis", *ends, [numpy_helper.from_array(values, name) for name, values in weights.items()])  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), folder / "fp32.onnx"
    )
    images = random.random((16, 3, 32), dtype=np.float32)
    ranges = collect_ranges(folder / "fp32.onnx", lambda: [images], method="MinMax")
    quantize(folder / "fp32.onnx", folder / "mixed.onnx", ranges, **U8S8, nodes_to_exclude=["conv_1", "relu", "pool"])
    return folder


def optimized(folder, option):
    options_to_try.open_with_option(
        option, folder / "mixed.onnx", threads=1, optimized_model_filepath=str(folder / "optimized.onnx")
    )
    return onnx.load(folder / "optimized.onnx")


def test_a_graph_with_a_node_in_another_place_is_another_graph(one_axis):
    """The same nodes: without the optimizer that moves it, the QuantizeLinear is behind the pool, not before it."""
    default = optimized(one_axis, None)
    moved = optimized(one_axis, options_to_try.OPTIONS["qdq_propagation_off"])
    idle = optimized(one_axis, options_to_try.OPTIONS["qdq_cleanup_on"])
    kinds = [sorted(node.op_type for node in graph.graph.node) for graph in (default, moved)]
    assert kinds[0] == kinds[1]
    order = [[node.op_type for node in graph.graph.node if node.op_type in ("MaxPool", "QuantizeLinear")] for graph in (default, moved)]  # fmt: skip
    assert order == [["QuantizeLinear", "MaxPool"], ["MaxPool", "QuantizeLinear"]]
    signature = graph_signature(default)
    assert signature == graph_signature(idle) != graph_signature(moved)


def test_a_graph_with_the_same_nodes_in_another_order_is_another_graph():
    """Though all tensors are of one type."""

    def chain(*op_types):
        nodes = [helper.make_node(op_type, [str(place)], [str(place + 1)]) for place, op_type in enumerate(op_types)]
        ends = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])] for name in ("0", str(len(nodes))))
        return graph_signature(helper.make_model(helper.make_graph(nodes, "chain", *ends)))

    assert chain("Relu", "Sigmoid", "Exp") == chain("Relu", "Sigmoid", "Exp") != chain("Sigmoid", "Relu", "Exp")


def test_names_are_no_part_of_a_graph(one_axis):
    default = optimized(one_axis, None)
    renamed = onnx.ModelProto.FromString(default.SerializeToString())
    for node in renamed.graph.node:
        node.name = f"other {node.name}"
        for names in (node.input, node.output):
            names[:] = [f"other {name}" for name in names]
    for kind in ("input", "output", "value_info", "initializer"):
        for one in getattr(renamed.graph, kind):
            one.name = f"other {one.name}"
    assert graph_signature(default) == graph_signature(renamed)


def test_where_the_time_is_enough_for_one_file_it_is_the_tuned_one(folder, monkeypatch):
    """A large network: fp32 only tells whether an option has to do with the recipe."""
    monkeypatch.setattr(
        option_race, "_cost", lambda opened, *_: (5.0, 1.0) if "fp32" in str(opened.args) else (0.001, 0.0005)
    )
    found = measured(folder, slow=SLOW)
    assert found["rounds"] >= option_race.FEWEST_ROUNDS and found["slow"]["speedup"] > 0
    assert "speedup" not in found["slow"]["fp32"] and "changed" in found["slow"]


def test_every_option_is_known_to_onnxruntime_and_changes_something(folder):
    """A misspelt config entry is accepted without a word."""
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("onnxruntime_pybind11_state*")).read_bytes()
    default = default_options(threads=2)
    for option in options_to_try.OPTIONS.values():
        opened = options_to_try.open_with_option(option, folder / "u8s8.onnx", threads=2).get_session_options()
        if "." in option.setting:
            assert option.setting.encode() in library
            assert opened.get_session_config_entry(option.setting) == option.value
        elif option.setting == "disabled_optimizers":
            assert option.value.encode() in library
        else:
            assert getattr(opened, option.setting) != getattr(default, option.setting)


def test_a_session_without_an_option_is_the_default_one(folder):
    own, usual = (
        options_to_try.open_with_option(None, folder / "u8s8.onnx", threads=1),
        open_session(folder / "u8s8.onnx", threads=1),
    )
    for name in ("enable_cpu_mem_arena", "enable_mem_pattern", "graph_optimization_level", "intra_op_num_threads"):
        assert getattr(own.get_session_options(), name) == getattr(usual.get_session_options(), name)


def test_denormals_are_decided_by_the_first_session_of_a_process(folder):
    """Which is why the option that flushes them is not raced: within one process it does nothing, or to all of them."""
    tiny = helper.make_graph(
        [helper.make_node("Mul", ["value", "value"], ["square"])], "tiny",
        [helper.make_tensor_value_info("value", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("square", TensorProto.FLOAT, [1])],
    )  # fmt: skip
    onnx.save(helper.make_model(tiny, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), folder / "tiny.onnx")
    feed = {"value": np.array([1e-20], np.float32)}  # whose square is below the smallest normal number
    for option in (None, Option("session.set_denormal_as_zero", "1")):
        [square] = options_to_try.open_with_option(option, folder / "tiny.onnx", threads=1).run(None, feed)
        assert square[0] > 0


RACED = {"speedup": 0.8, "speedup_low": 0.79, "speedup_high": 0.81, "holm_p": 1e-6}
FASTER = {"speedup": 1.05, "speedup_low": 1.03, "speedup_high": 1.07, "holm_p": 0.01}
OPTIONS = {
    "rounds": 20, "images": 600,
    "prepacking_off": {"setting": "session.disable_prepacking", "value": "1", **RACED, "changed": 3, "fp32": FASTER},
    "nhwc_off": {"setting": "disabled_optimizers", "value": "NhwcTransformer", "loads": 0, "fp32": {"same_graph": 1}},
}  # fmt: skip


def section(options, chosen="searched-01"):
    return options_section("net", {"batch": 1, "chosen": chosen, "session_options": options})


def test_the_report_says_what_an_option_would_bring_and_to_which_file():
    found = section(OPTIONS)
    assert found["sentence"] == (
        "No file here needs a session option. Apart from the recipe, `tune` tried 2 of them, each alone against the default "
        "session (20 rounds at batch 1, Holm's correction): `session.disable_prepacking=1` makes `fp32` 1.05x as fast (1.03 to 1.07)."
    )
    assert [[cell.text for cell in row.values()] for row in found["rows"]] == [
        ["session.disable_prepacking=1", "0.80x (0.79-0.81)", "1.05x (1.03-1.07)", "3"],
        ["disabled_optimizers=NhwcTransformer", "does not run", "the same graph", ""],
    ]


def test_what_chance_explains_is_not_called_faster():
    doubtful = {**OPTIONS["prepacking_off"], "fp32": FASTER | {"holm_p": 0.06}}
    assert section({**OPTIONS, "prepacking_off": doubtful})["sentence"].endswith(
        "none makes a file faster for certain."
    )


def test_a_race_that_was_left_out_and_metrics_from_before_there_was_one_are_no_error():
    assert (
        section({"rounds": 0})["sentence"].startswith("Session options were not raced")
        and not section({"rounds": 0})["rows"]
    )
    assert options_section("net", {"batch": 1, "chosen": "fp32"}) is None


def test_where_tuned_is_fp32_there_is_one_column():
    alone = {"rounds": 5, "images": 8, "slow": {"setting": "a", "value": "1", "fp32": RACED | {"changed": 0}}}
    [row] = section(alone, chosen="fp32")["rows"]
    assert list(row) == ["session option", "fp32", "changed, of 8"] and row["changed, of 8"].text == "0"
