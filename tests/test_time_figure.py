"""The figure of where a call's time goes can be read, however long bars, cuts and names are."""

import numpy as np
import pytest

from stages.common.explanation.layer_times import LayerTimes
from stages.common.explanation.time_figure import cut_at, figure_of, short_names
from stages.common.profiling.optimized_graph import Node
from stages.common.profiling.profile import Profile

SHORT = [f"node_Conv_{place}" for place in range(8)]
LONG = [f"/model/features.{place}/convolutions/a-block/depthwise-and-pointwise/Conv_output" for place in range(8)]


def times(microseconds, names):
    """Return LayerTimes of a file whose layers all take that long."""
    nodes = [Node(name, "Conv", "layer", name, "", None) for name in names]
    values = np.full((3, len(nodes)), float(microseconds))
    sums = values.sum(axis=1)
    profile = Profile(values, sums, sums, sums.min(), sums.min(), ["float"] * len(nodes), 0, 1)
    return LayerTimes(profile, nodes, {name: name for name in names})


@pytest.fixture(params=[SHORT, LONG], ids=["short names", "long names"])
def axes(request):
    """The axes, once all is laid out; the bar of `close` is just not cut, that of `cut` is."""
    durations = {"fp32": 100, "faster": 60, "close": 349, "cut": 900}
    profiles = {name: times(duration, request.param) for name, duration in durations.items()}
    figure = figure_of("net", 8, profiles)
    figure.draw_without_rendering()
    [axes] = figure.axes
    return axes


def test_no_label_of_a_bar_runs_into_the_legend(axes):
    legend, edge = axes.get_legend().get_window_extent(), axes.get_window_extent().x1
    assert edge <= legend.x0
    assert [label.get_text().split()[0] for label in axes.texts] == ["800", "480", "2,792", "cut:"]
    assert all(label.get_window_extent().x1 <= edge + 1 for label in axes.texts)


def test_no_label_covers_a_bar_and_bars_are_most_of_the_figure_s_width(axes):
    ends = {}
    for bar in axes.patches:
        if bar.get_width():
            place = round(bar.get_y() + bar.get_height() / 2)
            ends[place] = max(ends.get(place, 0), bar.get_x() + bar.get_width())
    assert [label.get_position()[0] for label in axes.texts] == pytest.approx([ends[place] for place in range(4)])
    assert ends[3] == pytest.approx(3.5 * 800), "cut there"
    assert ends[3] > 0.35 * axes.get_xlim()[1]


def test_a_bar_that_is_cut_leaves_the_others_most_of_the_room():
    """One variant of four times fp32's time made all the others a third of the figure."""
    assert cut_at({"fp32": 100, "slower": 140, "cut": 450}) == 1.25 * 140
    assert cut_at({"fp32": 100, "close": 349, "cut": 900}) == 350
    assert cut_at({"fp32": 100, "faster": 60}) == 125


def test_every_layer_has_a_name_of_its_own_in_the_legend(axes):
    names = [text.get_text() for text in axes.get_legend().get_texts()][:6]
    assert len(set(names)) == 6 and all(len(name) < 45 for name in names)


def test_a_long_name_loses_what_it_says_twice_and_then_its_middle():
    blocks = [f"/features/features.{place}/conv/conv.0/conv.0.0/Conv" for place in (3, 12)]
    assert list(short_names(blocks).values()) == ["features.3/conv.0.0/Conv", "features.12/conv.0.0/Conv"]
    assert short_names(["a" * 30 + "b" * 30]) == {"a" * 30 + "b" * 30: "a" * 14 + "…" + "b" * 13}
    close = [f"{'a' * 14}{place}{'b' * 40}" for place in "xy"]
    assert len(set(short_names(close).values())) == 2
    assert short_names(["node_Conv_1", "fc"]) == {"node_Conv_1": "node_Conv_1", "fc": "fc"}
