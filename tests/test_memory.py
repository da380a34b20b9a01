"""Memory does not grow with the number of images, in evaluation and calibration, as processes see it."""

import numpy as np
import pytest
from own_models import CLASSES, Classifier, prediction_megabytes, save_many

from stages.common.preprocessing import preprocess
from stages.tools.check_calibration import calibrate_images, in_a_process

pytestmark = pytest.mark.slow

FEW, MANY, BOUND = 1000, 100_000, 1.2
SHAPE = (3, 16, 16)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A small network, prepared for quantization."""
    folder = tmp_path_factory.mktemp("memory")
    net = Classifier(SHAPE).add("AveragePool", kernel_shape=[4, 4], strides=[4, 4]).conv(4, 3, 3, 3)
    net.add("GlobalAveragePool").add("Flatten").dense(CLASSES, 4).save(folder / "fp32.onnx")
    preprocess(folder / "fp32.onnx", folder / "preprocessed.onnx")
    return folder / "preprocessed.onnx"


@pytest.fixture(scope="module", params=[np.uint8, np.float32], ids=["uint8", "float32"])
def images(request, tmp_path_factory):
    """{count: file} of 1,000 and 100,000 images: the latter are 77 MB of uint8, or 307 MB of float32."""
    folder = tmp_path_factory.mktemp("images")
    return {count: save_many(folder / f"{count}.npy", SHAPE, count, request.param) for count in (FEW, MANY)}


def test_a_hundred_thousand_images_are_predicted_in_the_memory_of_a_thousand(network, images):
    few, many = (in_a_process(prediction_megabytes, network, images[count], count) for count in (FEW, MANY))
    assert many < BOUND * few, f"{few:.0f} MB at {FEW:,} images, {many:.0f} MB at {MANY:,}"


@pytest.mark.parametrize("method", ["MinMax", "Percentile"])
def test_a_hundred_thousand_images_calibrate_in_the_memory_of_a_thousand(network, images, method):
    few, many = (
        in_a_process(
            calibrate_images, network, images[count], {"scale": 1 / 255}, images=count, method=method, batch_size=250
        )[1]
        for count in (FEW, MANY)
    )
    assert many < BOUND * few, f"{few:.0f} MB at {FEW:,} images, {many:.0f} MB at {MANY:,}"
