"""Calibration means what it says: every method, on every image, however the images are cut into batches."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnxruntime.quantization import CalibrationMethod, create_calibrator
from onnxruntime.quantization.calibrate import HistogramCollector
from small_network import SCALING, write_heavy_tailed_images, write_network

from stages.calibrate_quantize import main
from stages.common.calibration.collection import Reader, draw_indices, open_calibrator
from stages.common.calibration.histograms import ThresholdSearch
from stages.common.calibration.settings import METHODS, calibration_settings
from stages.common.calibration.static_quantization import calibrate, quantize
from stages.common.images import load_images, to_input
from stages.common.preflight.params_check import check_params
from stages.common.preprocessing import preprocess
from stages.common.session.runtime import predict_images
from stages.common.workspace import UserError, load_params
from stages.tools.check_calibration import MEMORY_BOUND, calibrate_images, in_a_process, peak_megabytes

RECIPE = {"quant_format": "QDQ", "activation_type": "QUInt8", "weight_type": "QInt8"}
HOWS = {
    "MinMax": {"method": "MinMax"},
    "MinMax symmetric": {"method": "MinMax", "symmetric": True},
    "Entropy": {"method": "Entropy", "num_bins": 512, "num_quantized_bins": 128},
    "Percentile": {"method": "Percentile", "num_bins": 2048, "percentile": 99.9, "symmetric": True},
    "Percentile of both ends": {"method": "Percentile", "num_bins": 2048, "percentile": 99.0, "symmetric": False},
}
IMAGES = 40  # for resnet18: more than two batches
each_way = pytest.mark.parametrize("how", HOWS.values(), ids=HOWS.keys())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The paths of a preprocessed network and of 600 heavy-tailed images."""
    folder = tmp_path_factory.mktemp("small")
    return write_network(folder), write_heavy_tailed_images(folder / "train-images.npy", 600)


def ranges_of(files, *, images=540, batch_size=20, **how):
    return calibrate(*files, np.arange(images), SCALING, batch_size=batch_size, **how)


def activations(files, images=540):
    """Every calibrated tensor on all images as one batch, from a session of onnxruntime."""
    calibrator = open_calibrator(files[0], method="Percentile")
    tensors = sorted(calibrator.tensors_to_calibrate)
    batch = to_input(load_images(files[1])[:images], **SCALING)
    return dict(zip(tensors, calibrator.infer_session.run(tensors, {"input": batch}), strict=True))


def test_each_method_makes_another_file(files, tmp_path):
    """MinMax, Entropy and Percentile on heavy-tailed data are three files, not one under three names."""
    made = set()
    for name in ("MinMax", "Entropy", "Percentile"):
        quantize(files[0], tmp_path / "variant.onnx", ranges_of(files, **HOWS[name]), **RECIPE)
        made.add((tmp_path / "variant.onnx").read_bytes())
    assert len(made) == 3


def test_minmax_is_the_smallest_and_the_largest_value(files):
    ranges = ranges_of(files, method="MinMax")
    assert ranges == {tensor: (values.min(), values.max()) for tensor, values in activations(files).items()}


def test_symmetric_minmax_is_the_largest_magnitude_on_both_sides(files):
    ranges = ranges_of(files, method="MinMax", symmetric=True)
    for tensor, values in activations(files).items():
        assert ranges[tensor] == (-np.abs(values).max(), np.abs(values).max())


@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9])
def test_percentile_clips_that_share_of_magnitudes(files, percentile):
    """The threshold is the edge of the bin in which the cumulated share of magnitudes passes the percentile."""
    ranges = ranges_of(files, **HOWS["Percentile"] | {"percentile": percentile})
    for tensor, values in activations(files).items():
        counts, edges = np.histogram(np.abs(values), bins=2048)
        threshold = edges[np.searchsorted(np.cumsum(counts / counts.sum()), percentile / 100)]
        assert ranges[tensor] == (max(-threshold, values.min()), min(threshold, values.max()))


@each_way
def test_ranges_are_those_of_onnxruntime_on_all_images_as_one_batch(files, tmp_path, how):
    """What two passes over batches find is what onnxruntime's calibrator finds with everything in memory."""
    options = {key: value for key, value in how.items() if key != "method"}
    with contextlib.redirect_stdout(io.StringIO()):
        calibrator = create_calibrator(
            files[0], None, f"{tmp_path}/a.onnx", CalibrationMethod[how["method"]], extra_options=options
        )
        calibrator.collect_data(
            Reader(calibrator.infer_session.get_inputs()[0].name, [to_input(load_images(files[1])[:540], **SCALING)])
        )
        expected = {tensor: data.range_value for tensor, data in calibrator.compute_data().items()}
    assert ranges_of(files, **how) == {
        tensor: tuple(map(float, np.ravel(bounds))) for tensor, bounds in expected.items()
    }


@each_way
@pytest.mark.parametrize("batch_size", [1, 19, 27, 64])
def test_ranges_do_not_depend_on_the_batches(files, how, batch_size):
    assert ranges_of(files, batch_size=batch_size, **how) == ranges_of(files, batch_size=540, **how)


@each_way
def test_the_short_last_batch_counts(files, tmp_path, how):
    """Of 513 images in batches of 20, the thirteen of the last batch are used: here the last image reaches furthest."""
    images = np.array(load_images(files[1])[:513])
    images[512] *= 1000
    np.save(tmp_path / "images.npy", images)
    changed = ranges_of((files[0], tmp_path / "images.npy"), images=513, **how)
    assert changed == ranges_of((files[0], tmp_path / "images.npy"), images=513, batch_size=513, **how)
    assert changed != ranges_of((files[0], tmp_path / "images.npy"), images=512, **how)


def test_calibration_runs_on_one_thread(files):
    """With three threads or more, sums depend on how many there are and on the batch; one gives one result."""
    for method in METHODS:
        assert open_calibrator(files[0], method=method).infer_session.get_session_options().intra_op_num_threads == 1


def test_a_moving_average_follows_the_batches(files):
    """Each batch after the first moves the range by `averaging_constant` of the way to its own smallest and largest."""
    ranges = ranges_of(files, images=60, method="MinMax", moving_average=True, averaging_constant=0.25)
    for tensor, values in activations(files, 60).items():
        low, high = values[:20].min(), values[:20].max()
        for batch in (values[20:40], values[40:]):
            low, high = low + 0.25 * (batch.min() - low), high + 0.25 * (batch.max() - high)
        assert ranges[tensor] == pytest.approx((low, high), rel=1e-6)


def test_the_faster_entropy_search_finds_onnxruntimes_thresholds():
    """Same histogram, same threshold: smooth, sparse, one-sided, constant and empty in the middle."""
    draw = np.random.default_rng(0)
    for values in (draw.normal(size=5000), draw.standard_t(2, size=300), draw.exponential(size=9000) * (draw.random(9000) > 0.7),
                   np.full(50, 3.0), np.zeros(50), np.repeat([-1.0, 4.0], 99)):  # fmt: skip
        for bins, quantized in ((512, 128), (300, 32), (301, 31)):
            top = np.float32(np.abs(values).max())
            counts, edges = np.histogram(values.astype(np.float32), bins, range=(-top, top))
            histogram = (counts, edges, np.float32(values.min()), np.float32(values.max()))
            settings = {
                "symmetric": False,
                "num_bins": bins,
                "num_quantized_bins": quantized,
                "percentile": 0,
                "scenario": "",
            }
            own, theirs = (search("entropy", **settings) for search in (ThresholdSearch, HistogramCollector))
            assert own.get_entropy_threshold(histogram, quantized) == theirs.get_entropy_threshold(histogram, quantized)


def test_distribution_is_refused_because_it_is_symmetric_minmax(files, tmp_path):
    """onnxruntime's Distribution has a meaning for float8 only; its ranges are the ends of the histogram."""
    with contextlib.redirect_stdout(io.StringIO()):
        calibrator = create_calibrator(files[0], None, f"{tmp_path}/a.onnx", CalibrationMethod.Distribution)
        calibrator.collect_data(
            Reader(calibrator.infer_session.get_inputs()[0].name, [to_input(load_images(files[1])[:540], **SCALING)])
        )
        found = {tensor: data.range_value for tensor, data in calibrator.compute_data().items()}
    assert found == ranges_of(files, method="MinMax", symmetric=True)
    with pytest.raises(UserError, match=r"`calibrate\.method`: Distribution .* float8 .*MinMax"):
        check(method="Distribution")


@each_way
def test_a_nan_pixel_is_refused(files, tmp_path, how):
    images = np.array(load_images(files[1])[:60])
    images[37, 0, 2, 2] = np.nan
    np.save(tmp_path / "images.npy", images)
    with pytest.raises(UserError, match=r"images\.npy has 1 non-finite values, the first in image 37"):
        ranges_of((files[0], tmp_path / "images.npy"), images=60, **how)


@each_way
def test_a_tensor_that_overflows_is_refused_by_name(files, tmp_path, how):
    """Finite images, infinite activations: no range."""
    np.save(tmp_path / "images.npy", np.full((4, 1, 8, 8), 3e38, np.float32))
    with pytest.raises(UserError, match=r"tensor '.*' is not finite"):
        ranges_of((files[0], tmp_path / "images.npy"), images=4, **how)


def test_a_second_quantization_equals_one_in_a_fresh_process(files, tmp_path):
    """Nothing is left over from the first: neither images that were read nor ranges."""
    script = """if True:
        import sys, numpy as np
        sys.path.insert(0, "tests")
        from test_calibration import HOWS, RECIPE, quantize, ranges_of
        for how in sys.argv[4:]:
            quantize(sys.argv[1], sys.argv[3], ranges_of(sys.argv[1:3], **HOWS[how]), **RECIPE)"""
    for name, hows in (("first", ["Percentile"]), ("second", ["MinMax", "Entropy", "Percentile"])):
        arguments = [*map(str, files), str(tmp_path / name), *hows]
        subprocess.run([sys.executable, "-c", script, *arguments], check=True)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_the_stage_keeps_settings_images_and_ranges(files, tmp_path, monkeypatch):
    """The ranges artifact says how a recipe with a method of its own was calibrated, on which images, and the result."""
    shared, own = {"seed": 1, "images": 50, "batch_size": 20, "method": "MinMax"}, HOWS["Percentile of both ends"]
    recipes = {"static-u8s8": RECIPE | {"calibrate": own}}
    params = {"calibrate": shared, "calibrate_quantize": recipes, "models": {"small": {"input": SCALING}}}
    (tmp_path / "params.yaml").write_text(json.dumps(params))
    monkeypatch.chdir(tmp_path)
    main("small", "static-u8s8", *files, "variant.onnx", "ranges.json")
    kept, indices = json.loads(Path("ranges.json").read_text()), draw_indices(seed=1, images=50, available=600)
    assert kept["calibrate"] == shared | own
    assert kept["image_indices"] == indices.tolist()
    assert kept["ranges"] == {
        tensor: list(bounds) for tensor, bounds in calibrate(*files, indices, SCALING, batch_size=20, **own).items()
    }


def check(recipe=None, **calibrate_section):
    """Check this repository's parameters with a changed `calibrate` section or an overriding recipe."""
    params = load_params()
    params["calibrate"] |= calibrate_section
    params["calibrate_quantize"]["static-u8s8"]["calibrate"] = recipe or {}
    check_params(params, ".")


@pytest.mark.parametrize("percentile", [0, 101, -1, "99.9"])
def test_a_percentile_outside_its_range_is_refused(percentile):
    with pytest.raises(UserError, match=r"`calibrate\.percentile` is"):
        check(method="Percentile", percentile=percentile)


@pytest.mark.parametrize(
    ("method", "key", "value"),
    [("MinMax", "percentile", 99.9), ("MinMax", "num_bins", 512), ("Entropy", "symmetric", True), ("Entropy", "percentile", 99.9),
     ("Percentile", "num_quantized_bins", 128), ("Percentile", "moving_average", True)],
)  # fmt: skip
def test_a_parameter_that_the_method_does_not_use_is_refused(method, key, value):
    with pytest.raises(UserError, match=rf"`calibrate\.{key}` is no parameter of {method}"):
        check(method=method, **{key: value})
    with pytest.raises(
        UserError, match=rf"`calibrate_quantize\.static-u8s8\.calibrate\.{key}` is no parameter of {method}"
    ):
        check(recipe={"method": method, key: value})


def test_an_entropy_search_without_a_choice_is_refused():
    """128 bins of 128: onnxruntime's default, which gives MinMax's ranges under another name."""
    with pytest.raises(UserError, match="one threshold, and that is MinMax"):
        check(method="Entropy", num_bins=128, num_quantized_bins=128)


def test_an_averaging_constant_without_a_moving_average_is_refused():
    with pytest.raises(UserError, match="averaging_constant` is used by a moving average only"):
        check(averaging_constant=0.1)


@pytest.mark.parametrize("method", METHODS)
def test_every_parameter_of_a_method_is_accepted(method):
    """Also by a recipe whose method is not the shared one."""
    parameters = METHODS[method] | ({"moving_average": True} if method == "MinMax" else {})
    check(method=method, **parameters)
    check(recipe={"method": method, "images": 50, "seed": 3, **parameters})


def test_a_recipe_overrides_what_it_names():
    shared = {"seed": 0, "images": 200, "batch_size": 20, "method": "Percentile", "percentile": 99.0}
    assert calibration_settings(shared, {})[1]["percentile"] == 99.0
    draw, how = calibration_settings(shared, {"method": "Entropy", "images": 50})
    assert draw == {"seed": 0, "images": 50}
    assert how == {"batch_size": 20, "method": "Entropy", "num_bins": 2048, "num_quantized_bins": 128}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_memory_does_not_grow_with_the_calibration_set(tmp_path, method):
    """The peak at 10,000 images is at most 1.15 times that at 200, each in a process of its own."""
    files = write_network(tmp_path), write_heavy_tailed_images(tmp_path / "images.npy", 40_000)
    few, many = (in_a_process(calibrate_images, *files, SCALING, images=n, method=method)[1] for n in (200, 10_000))
    assert many <= MEMORY_BOUND * few


@pytest.fixture(scope="module")
def resnet18(tmp_path_factory):
    """The paths of a preprocessed resnet18, exported in a process of its own, and of `IMAGES` images."""
    folder = tmp_path_factory.mktemp("resnet18")
    script = """if True:
        import sys, torch, torchvision
        torch.manual_seed(0)
        torch.onnx.export(
            torchvision.models.resnet18(weights=None).eval(), (torch.zeros(2, 3, 224, 224),), sys.argv[1], dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},), external_data=False, verbose=False)"""
    subprocess.run([sys.executable, "-c", script, f"{folder}/fp32.onnx"], check=True, capture_output=True)
    preprocess(folder / "fp32.onnx", folder / "preprocessed.onnx")
    np.save(folder / "images.npy", np.random.default_rng(0).integers(0, 256, (IMAGES, 1, 28, 28), dtype=np.uint8))
    return folder / "preprocessed.onnx", folder / "images.npy"


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_resnet18_calibrates_within_one_and_a_half_gigabytes(resnet18, method, params):
    """11 M weights at 224x224, in the batches of params.yaml; more images take more time, not more memory."""
    scaling = {"scale": 1 / 255, "mean": 0.3, "std": 0.4, "channels": 3, "repeat": 8}
    batch_size = params["calibrate"]["batch_size"]
    assert batch_size < IMAGES
    _, megabytes = in_a_process(
        calibrate_images, *resnet18, scaling, images=IMAGES, method=method, batch_size=batch_size
    )
    assert megabytes <= 1500


def predict_and_weigh(onnx_path, images_path, scaling, settings):
    """Predict all images; return the peak resident memory of this process in MB."""
    predict_images(onnx_path, images_path, scaling, images=IMAGES, **settings)
    return peak_megabytes()


@pytest.mark.slow
@pytest.mark.parametrize("activation_type", ["float", "QInt8", "QUInt8"])
def test_resnet18_is_evaluated_within_one_and_a_half_gigabytes(resnet18, activation_type, params, tmp_path):
    """In the batches of params.yaml. Signed activations leave layers in floating point, and both copies of a tensor."""
    scaling = {"scale": 1 / 255, "mean": 0.3, "std": 0.4, "channels": 3, "repeat": 8}
    path, images_path = resnet18
    if activation_type != "float":
        ranges = calibrate(*resnet18, np.arange(4), scaling, batch_size=4, method="MinMax")
        path = tmp_path / "int8.onnx"
        quantize(resnet18[0], path, ranges, **RECIPE | {"activation_type": activation_type})
    settings = params["evaluate"]
    assert settings["batch_size"] * settings["threads"] < IMAGES, "else the memory of fewer is measured"
    assert in_a_process(predict_and_weigh, path, images_path, scaling, settings) <= 1500
