"""The figures show every variant, in one colour everywhere, and say where one does not run."""

import copy

import matplotlib.colors
import pytest

from stages.common.reporting.figures import (
    accuracy_figure,
    changes_figure,
    changes_finding,
    latency_figure,
    variant_colours,
)
from stages.common.reporting.results import load_results
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
    assert changes_finding(found, list(p_values)) == "10-10 labels change; net significant for 1 of 4 (Holm)"


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
