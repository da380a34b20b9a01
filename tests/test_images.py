"""One function turns stored images into a model's input, exactly, in bounded memory, and refuses what is no image."""

import tracemalloc
from functools import partial

import numpy as np
import pytest

from stages.common.images import (
    check_finite,
    first_input,
    input_batches,
    labels_or_none,
    load_images,
    load_labels,
    to_input,
)
from stages.common.workspace import UserError

AS_STORED = {"scale": 1, "mean": 0, "std": 1, "channels": 1, "repeat": 1}


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves an array as images.npy and returns its path."""

    def save(array):
        np.save(tmp_path / "images.npy", array)
        return tmp_path / "images.npy"

    return save


def test_pixels_are_scaled_then_normalized():
    images = np.array([[[[0, 51, 255]]]], np.uint8)
    values = to_input(images, scale=1 / 255, mean=0.2, std=0.5, channels=1, repeat=1)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, [[[[-0.4, 0.0, 1.6]]]], atol=1e-6)


def test_each_channel_has_its_own_mean_and_std():
    images = np.full((2, 3, 1, 1), 10, np.uint8)
    values = to_input(images, scale=1, mean=[1, 2, 3], std=[1, 2, 7], channels=3, repeat=1)
    np.testing.assert_array_equal(values[:, :, 0, 0], [[9, 4, 1], [9, 4, 1]])


def test_a_grey_image_is_copied_to_the_channels_that_are_asked_for():
    images = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2)
    values = to_input(images, **AS_STORED | {"channels": 3})
    assert values.shape == (2, 3, 2, 2) and (values == images).all()


def test_pixels_are_repeated_exactly_in_both_directions():
    images = np.array([[[[1, 2], [3, 4]]]], np.uint8)
    values = to_input(images, **AS_STORED | {"repeat": 2})
    assert values.tolist() == [[[[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]]]


def test_the_input_does_not_depend_on_the_cut_into_batches_and_the_images_stay_as_they_are():
    images = np.random.default_rng(0).normal(size=(7, 1, 3, 3)).astype(np.float32)
    before, scaling = images.copy(), {"scale": 2.0, "mean": 0.1, "std": 0.3, "channels": 1, "repeat": 2}
    batches = list(input_batches(images, batch_size=3, path="", **scaling))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    np.testing.assert_array_equal(np.concatenate(batches), to_input(images, **scaling))
    np.testing.assert_array_equal(images, before)


def test_no_more_images_are_taken_than_the_limit_says():
    images = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1)
    batches = input_batches(images, batch_size=4, path="", limit=6, **AS_STORED)
    assert np.concatenate(list(batches)).ravel().tolist() == [0, 1, 2, 3, 4, 5]


def test_colour_images_do_not_fit_a_grey_model():
    with pytest.raises(UserError, match=r"^the images have 3 channels and `input.channels` is 1: make them equal"):
        to_input(np.zeros((1, 3, 2, 2), np.uint8), **AS_STORED)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_pixel_that_is_not_finite_is_refused_with_file_image_and_count(saved, value):
    images = np.zeros((5, 1, 2, 2), np.float32)
    images[0, 0, 1, 1], images[3] = value, value
    path = saved(images)
    with pytest.raises(UserError) as error:
        list(input_batches(load_images(path), batch_size=5, path=path, **AS_STORED))
    assert str(error.value) == f"{path} has 5 non-finite values, the first in image 0: mend or remove these images."


def test_the_image_that_is_not_finite_is_named_by_its_place_in_the_file(saved):
    images = np.zeros((9, 1, 2, 2), np.float32)
    images[7, 0, 0, 0] = np.nan
    path = saved(images)
    for run in (
        lambda: list(input_batches(load_images(path), batch_size=2, path=path, **AS_STORED)),
        lambda: check_finite(images[[2, 7, 8]], path, np.array([2, 7, 8])),
    ):
        with pytest.raises(UserError, match="has 1 non-finite values, the first in image 7:"):
            run()


def test_the_first_images_are_taken_or_all_if_there_are_fewer_and_have_to_be_finite(saved):
    images = np.arange(5, dtype=np.float32).reshape(5, 1, 1, 1)
    assert first_input(saved(images), 3, **AS_STORED).ravel().tolist() == [0, 1, 2]
    assert len(first_input(saved(images), 9, **AS_STORED)) == 5
    images[2] = np.nan
    with pytest.raises(UserError, match="has 1 non-finite values, the first in image 2:"):
        first_input(saved(images), 3, **AS_STORED)


def test_memory_does_not_grow_with_the_number_of_images(saved):
    path = saved(np.zeros((4000, 1, 32, 32), np.float32))  # 16 MB
    tracemalloc.start()
    for _ in input_batches(load_images(path), batch_size=50, path=path, **AS_STORED):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((2, 1, 2, 2)), "holds float64 of shape (2, 1, 2, 2)"),
        (np.zeros(4, np.uint8), "holds uint8 of shape (4,)"),
        (np.zeros((2, 1, 2, 2), np.int64), "holds int64 of shape (2, 1, 2, 2)"),
    ],
)
def test_an_array_that_holds_no_images_is_refused(saved, array, sentence):
    path = saved(array)
    with pytest.raises(UserError) as error:
        load_images(path)
    assert (
        str(error.value)
        == f"{path} {sentence}: expected images as uint8 or float32 of shape (N, C, H, W), (N, C, L) or (N, F)."
    )


def test_labels_have_to_match_the_images(saved):
    path = saved(np.zeros(3, np.int64))
    assert load_labels(path, 3).tolist() == [0, 0, 0]
    with pytest.raises(
        UserError, match=r"holds int64 of shape \(3,\): expected int64 of shape \(4,\), a label an image"
    ):
        load_labels(path, 4)
    with pytest.raises(UserError, match=r"holds uint8 of shape \(3,\): expected int64"):
        load_labels(saved(np.zeros(3, np.uint8)), 3)


def test_an_array_that_is_missing_or_cut_short_is_named(saved, tmp_path):
    with pytest.raises(
        UserError, match=r"none.npy is missing: run `dvc repro fetch-data`, or put your own array there"
    ):
        load_images(tmp_path / "none.npy")
    path = saved(np.zeros((9, 1, 2, 2), np.uint8))
    path.write_bytes(path.read_bytes()[:-1])
    again = "fetch it again, or write your own anew with `numpy.save`"
    with pytest.raises(UserError, match=rf"images.npy is not a complete NumPy array \(.+\): {again}\.$"):
        load_images(path)
    path.write_text("image,pixel\n0,255\n")
    with pytest.raises(
        UserError, match=rf"images.npy is not a complete NumPy array \(it does not begin as one\): {again}"
    ):
        load_images(path)


def test_an_archive_of_arrays_is_no_array(tmp_path):
    path = tmp_path / "images.npy"
    with open(path, "wb") as file:
        np.savez(file, np.zeros((9, 1, 2, 2), np.uint8))
    for load in (load_images, partial(labels_or_none, count=9)):
        with pytest.raises(
            UserError, match=r"images.npy holds several arrays, as `numpy.savez` writes them: write one"
        ):
            load(path)


def test_an_empty_array_of_images_is_said_to_be_empty(saved):
    with pytest.raises(UserError, match=r"images.npy is empty, shape \(0, 1, 2, 2\): put images into it\.$"):
        load_images(saved(np.zeros((0, 1, 2, 2), np.uint8)))


def test_no_code_is_run_from_an_array(saved):
    """A pickle runs what it likes when it is loaded."""
    with pytest.raises(UserError, match="is not a complete NumPy array"):
        load_images(saved(np.array([object()], dtype=object)))
