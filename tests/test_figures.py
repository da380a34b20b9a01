"""The figures show every variant, in one colour everywhere, and say where one does not run."""

import copy
import itertools

import matplotlib.colors
import pytest

from stages.common.reporting.figures import accuracy_figure, changes_figure, changes_finding
from stages.common.reporting.latency_figure import latency_figure, marker_offsets, speed_ticks
from stages.common.reporting.panels import variant_colours
from stages.common.reporting.results import load_results
from stages.common.reporting.tables import conditions
from stages.common.workspace import read_params
from stages.plot import accuracy_rows, latency_rows, save_figure

FIGURES = (latency_figure, accuracy_figure, changes_figure)


@pytest.fixture(scope="module")
def variants(repository):
    """The variants of params.yaml."""
    return read_params("variants", repository / "params.yaml")


@pytest.fixture(scope="module")
def results(repository, variants):
    """The committed results."""
    return load_results(repository, read_params("models", repository / "params.yaml"), variants)


@pytest.fixture
def one_does_not_run(results, variants):
    """The committed results, had the first variant not loaded."""
    changed = copy.deepcopy(results)
    for found in changed.values():
        found["variants"][variants[0]] |= {"evaluate": {"loads": 0, "runs": 0, "finite": 0}, "benchmark": {}}
    return changed


def texts(figure):
    """Return everything that is written in a figure."""
    found = [text.get_text() for axis in figure.axes for text in (*axis.texts, axis.title, *axis.get_yticklabels())]
    return " ".join(
        [*found, *(axis.get_xlabel() for axis in figure.axes), *(a.get_title(loc="left") for a in figure.axes)]
    )


@pytest.mark.parametrize("draw", FIGURES)
def test_every_network_and_variant_is_named(draw, results, variants):
    written = texts(draw(results, variants))
    assert all(name in written for name in [*results, *variants])


@pytest.mark.parametrize("draw", FIGURES)
def test_a_variant_that_does_not_run_is_said_to(draw, one_does_not_run, variants):
    assert texts(draw(one_does_not_run, variants)).count("does not run here") == len(one_does_not_run)


def test_net_changes_are_called_significant_if_they_are_so_among_all_variants():
    """Of seven files of the same accuracy the luckiest has p < 0.05 in three of ten cases."""
    judged = {"accuracy": 0.9, "changed": 10, "images": 100}
    p_values = {"a": 0.004, "b": 0.02, "c": 0.03, "d": 0.5}
    cells = {name: {"evaluate": judged | {"mcnemar_p": p}} for name, p in p_values.items()}
    found = {"variants": {"fp32": {"evaluate": judged}, **cells}}
    assert changes_finding(found, list(p_values)) == "10 labels change; net significant for 1 of 4 (Holm)"


@pytest.mark.parametrize("draw", (latency_figure, accuracy_figure))
def test_a_variant_has_its_own_colour(draw, results, variants):
    figure = draw(results, variants)
    drawn = {matplotlib.colors.to_hex(artist.get_facecolor()) for axis in figure.axes for artist in axis.patches}
    drawn |= {matplotlib.colors.to_hex(line.get_color()) for axis in figure.axes for line in axis.lines}
    assert {colour.lower() for name, colour in variant_colours(variants).items() if name != "fp32"} <= drawn


def test_the_first_variants_differ_in_colour(variants):
    assert len(set(variant_colours(variants).values())) == len(variants) + 1


def test_a_variant_that_does_not_run_has_no_row_in_the_tables(one_does_not_run, variants):
    for rows in (latency_rows(one_does_not_run, variants), accuracy_rows(one_does_not_run, variants)):
        assert rows and not any(variants[0] in row for row in rows)


def test_the_same_figure_has_the_same_bytes(results, variants, tmp_path):
    for name in ("a.png", "b.png"):
        save_figure(changes_figure(results, variants), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def network(batches, changed=3):
    """Return the results of a network with two variants, whose speeds lie far apart, timed at these batch sizes."""
    cells = {batch: {"speedup": 1.0, "speedup_low": 0.99, "speedup_high": 1.01} for batch in batches}
    far = {batch: {"speedup": 0.01, "speedup_low": 0.009, "speedup_high": 64.0} for batch in batches}
    judged = {"images": 100, "changed": changed, "lost": changed, "gained": 0, "neutral": 0, "mcnemar_p": 0.5}
    judged |= {"accuracy_change": -changed / 100, "change_low": -0.1, "change_high": 0.1, "accuracy": 0.6}
    one = {"verify": {"size_bytes": 900}, "evaluate": judged}
    fp32 = {"evaluate": {"images": 100, "accuracy": 0.6, "most_frequent_share": 0.6}, "verify": {"size_bytes": 4000}}
    variants = {"fp32": fp32 | {"benchmark": cells}, "a": one | {"benchmark": cells}, "b": one | {"benchmark": far}}
    return {"variants": variants, "control": cells, "conditions": {"other_work_percent": 0.0, "cpu_steal_percent": 0.0}}


TWO = {"a-network-of-a-long-name": network([1, 32, 256]), "cnn": network([1, 4, 8, 16, 300])}


def test_markers_stay_in_the_row_of_their_variant_whatever_batch_sizes_other_networks_have():
    for axis, batches in zip(latency_figure(TWO, ["a", "b"]).axes, (3, 5), strict=True):
        heights = [line.get_ydata()[0] for line in axis.lines if line.get_marker() != "None"]
        rows = {round(height): [y for y in heights if round(y) == round(height)] for height in heights}
        assert {row: len(found) for row, found in rows.items()} == {0: batches, 1: batches}
        assert all(abs(y - row) <= 0.35 + 1e-9 for row, found in rows.items() for y in found)
        assert all(sum(found) / batches == pytest.approx(row) for row, found in rows.items()), "around the middle"


def test_the_markers_of_a_row_are_in_the_order_of_batch_sizes():
    assert marker_offsets([300, 1, 16]) == pytest.approx({1: -0.22, 16: 0, 300: 0.22})
    assert marker_offsets([8]) == {8: 0}


@pytest.mark.parametrize(("low", "high"), [(0.93, 1.08), (0.5, 3), (0.001, 900), (0.4, 0.9), (1e-6, 1e6)])
def test_an_axis_of_speed_has_a_few_ticks_with_one_among_them(low, high):
    ticks = speed_ticks(low, high)
    assert 3 <= len(ticks) <= 8 and all(low <= tick <= high for tick in ticks)
    assert 1 in [round(tick, 9) for tick in ticks] or not low < 1 < high


@pytest.mark.parametrize(("low", "high"), [(0.75, 1.8), (0.85, 1.35), (0.93, 1.97), (0.5, 1.01), (0.99, 1.02)])
def test_the_line_that_decides_has_a_tick_in_narrow_ranges_too(low, high):
    ticks = speed_ticks(low, high)
    assert 1 in ticks and 2 <= len(ticks) <= 8 and ticks == sorted(ticks)
    assert min(after - tick for tick, after in itertools.pairwise(ticks)) > 0.02 * (high - low)


def test_speeds_above_1_have_a_tick_beyond_it():
    assert speed_ticks(0.2, 1.8) == [0.25, 0.5, 1, 1.5] and speed_ticks(0.2, 1.35) == [0.25, 0.5, 1, 1.2]
    assert speed_ticks(0.2, 1.05) == [0.25, 0.5, 1]


@pytest.mark.parametrize("draw", FIGURES)
def test_titles_are_no_wider_than_their_panel(draw):
    figure = draw(TWO, ["a", "b"])
    figure.draw_without_rendering()
    for axis in figure.axes:
        [title] = [text for text in axis.get_children() if getattr(text, "get_text", str)() == axis.get_title("left")]
        assert axis.get_title("left") and title.get_window_extent().width <= axis.get_window_extent().width + 1


def test_there_are_no_half_images_on_an_axis():
    [axis, _] = changes_figure({name: network([1], changed=1) for name in ("n", "m")}, ["a"]).axes
    assert all(tick == round(tick) for tick in axis.get_xticks())


@pytest.mark.parametrize(
    ("changed", "words"),
    [(0, "none of 100 labels changes"), (1, "1 label changes; net"), (7, "7 labels change; net")],
)
def test_a_range_of_one_number_is_that_number(changed, words):
    assert changes_finding(network([1], changed), ["a", "b"]).startswith(words)


def test_a_network_that_knows_nothing_is_warned_of_in_the_report():
    """Its changes and their intervals look as clean as any."""
    found = copy.deepcopy(TWO["cnn"])
    [line] = conditions(found)
    assert line.startswith("fp32 itself is right on 60.00% of the test images, no more often than saying the most freq")
    found["variants"]["fp32"]["evaluate"]["accuracy"] = 0.61
    assert conditions(found) == []
    found["variants"]["fp32"]["evaluate"] = {"images": 100}
    assert conditions(found) == ["The test images have no labels: agreement with fp32 stands where accuracy would."]
