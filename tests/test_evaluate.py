"""A variant is compared with its baseline image by image, and a variant that does not work has no predictions."""

import csv
import re
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from stages import evaluate, evaluate_fp32
from stages.common.session.runtime import open_session, predict_images
from stages.common.workspace import UserError, read_metrics, write_metrics

WORKS = {"loads": 1, "runs": 1, "finite": 1}


def logits_of(*predicted, classes=4):
    """Return logits whose argmax is `predicted`."""
    return np.eye(classes, dtype=np.float32)[list(predicted)]


# Right and kept, lost, gained, wrong and kept, wrong otherwise.
LABELS = np.array([0, 1, 2, 3, 0])
BASELINE = logits_of(0, 1, 3, 2, 1)
VARIANT = logits_of(0, 2, 2, 2, 3)


def test_lost_gained_and_neutral_are_counted_image_by_image():
    metrics = evaluate.compare(VARIANT, BASELINE, LABELS)
    counted = {key: metrics[key] for key in ("lost", "gained", "neutral", "changed", "images")}
    assert counted == {"lost": 1, "gained": 1, "neutral": 1, "changed": 3, "images": 5}
    assert metrics["accuracy"] == 0.4 and metrics["accuracy_change"] == 0.0
    assert metrics["argmax_agreement"] == 0.4 and metrics["max_abs_logit_difference"] == 1.0


def test_a_net_change_of_nothing_can_hide_many_changes():
    """Accuracy alone would call these two models equal."""
    labels = np.zeros(100, np.int64)
    baseline, variant = logits_of(*[0] * 50, *[1] * 50), logits_of(*[1] * 50, *[0] * 50)
    metrics = evaluate.compare(variant, baseline, labels)
    assert metrics["accuracy_change"] == 0 and metrics["argmax_agreement"] == 0 and metrics["changed"] == 100
    assert metrics["mcnemar_p"] == 1 and metrics["change_low"] < -0.1 < 0.1 < metrics["change_high"]


def test_a_variant_that_is_the_baseline_differs_in_nothing():
    metrics = evaluate.compare(BASELINE, BASELINE, LABELS)
    assert metrics["changed"] == metrics["max_abs_logit_difference"] == 0 and metrics["argmax_agreement"] == 1
    assert metrics["change_low"] < 0 < metrics["change_high"]


def test_the_sign_of_a_change_is_the_variant_s():
    metrics = evaluate.compare(logits_of(1, 1), logits_of(0, 0), np.array([0, 0]))
    assert metrics["accuracy_change"] == -1 and metrics["lost"] == 2 and metrics["change_high"] < 0


def test_every_changed_label_is_listed_and_each_class_is_summed_up():
    changed = [[int(value) for value in row] for row in evaluate.changed_table(VARIANT, BASELINE, LABELS)]
    assert changed == [[1, 1, 1, 2], [2, 2, 3, 2], [4, 0, 1, 3]]
    classes = [[str(value) for value in row] for row in evaluate.class_table(VARIANT, BASELINE, LABELS)]
    assert classes[0] == ["0", "2", "0.5000", "0.5000", "0", "0", "1"]
    assert classes[1] == ["1", "1", "1.0000", "0.0000", "1", "0", "0"]


@pytest.fixture
def stage(workspace, params, scaling, fp32, dataset, preprocessed):
    """Return a function that runs evaluate on a file; the baseline's predictions are there."""
    params["models"]["cnn"] |= {"input": scaling, "evaluate": {"images": 150}}
    workspace()
    images, labels = dataset / "test-images.npy", dataset / "test-labels.npy"
    evaluate_fp32.main("cnn", fp32, images, labels, "fp32.npz", "fp32.json")

    def run(path=preprocessed, verified=WORKS, images=images, labels=labels):
        write_metrics("verified.json", {"cnn": {"v": verified}})
        outputs = ("v.npz", "v.json", "changed.csv", "classes.csv")
        evaluate.main("cnn", "v", path, images, labels, "verified.json", "fp32.npz", *outputs)
        return read_metrics("v.json")["cnn"]["v"], np.load("v.npz")["logits"]

    return run


def test_predictions_are_the_logits_of_the_images_that_are_asked_for(stage, fp32, dataset, scaling):
    metrics, logits = stage()
    assert logits.shape == (150, 10) and logits.dtype == np.float32 and metrics["images"] == 150
    expected = predict_images(fp32, dataset / "test-images.npy", scaling, images=150, batch_size=7, threads=1)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    labels = np.load(dataset / "test-labels.npy")[:150]
    share = max(np.mean(labels == label) for label in range(10))
    accuracy = np.mean(expected.argmax(1) == labels)
    assert read_metrics("fp32.json") == {
        "cnn": {"fp32": {"accuracy": accuracy, "most_frequent_share": share, "ties": 0, "images": 150}}
    }


def test_a_baseline_that_is_no_better_than_one_class_for_all_is_doubted(stage, dataset, fp32, capsys):
    """Images that are scaled otherwise than in training, or labels in another order, look like this."""
    files = ("fp32.npz", "fp32.json")
    evaluate_fp32.main("cnn", fp32, dataset / "test-images.npy", dataset / "test-labels.npy", *files)
    doubt = "warning: cnn is right no more often than saying the most frequent class every time ("
    assert doubt in capsys.readouterr().out
    right = np.load("fp32.npz")["logits"].argmax(1)
    np.save("labels.npy", np.concatenate([right, np.zeros(50, np.int64)]))
    evaluate_fp32.main("cnn", fp32, dataset / "test-images.npy", "labels.npy", *files)
    assert capsys.readouterr().out == "cnn fp32: accuracy 100.00% on 150 images\n"


def test_the_same_predictions_are_the_same_bytes_on_another_day(stage, monkeypatch):
    """A zip archive can hold the time of day; DVC would rerun all that depends on it."""
    stage()
    before = [Path(name).read_bytes() for name in ("v.npz", "v.json", "changed.csv", "classes.csv")]
    tomorrow = time.time() + 86_400
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    stage()
    assert [Path(name).read_bytes() for name in ("v.npz", "v.json", "changed.csv", "classes.csv")] == before


def test_a_variant_that_does_not_load_has_flags_and_no_predictions(stage, capsys):
    flags = {"loads": 0, "runs": 0, "finite": 0}
    metrics, logits = stage("none.onnx", flags | {"error": "NOT_IMPLEMENTED ConvInteger", "size_bytes": 9})
    assert metrics == flags and logits.shape == (0, 10)
    for name in ("changed", "classes"):
        with open(f"{name}.csv") as file:
            assert len(list(csv.reader(file))) == 1  # the header
    assert capsys.readouterr().out.endswith(
        "cnn v: not evaluated, it does not work here: NOT_IMPLEMENTED ConvInteger\n"
    )


def test_logits_that_are_not_finite_are_refused_by_image(stage, tmp_path, preprocessed, dataset, scaling):
    """Verification runs a few images only."""
    model = onnx.load(preprocessed)
    [gemm] = [node for node in model.graph.node if node.op_type == "Gemm"]
    gemm.output[0] = "unbounded"
    model.graph.node.append(helper.make_node("Sqrt", ["unbounded"], ["logits"], "Sqrt"))
    onnx.save(model, tmp_path / "sqrt.onnx")
    with pytest.raises(UserError) as error:
        stage(tmp_path / "sqrt.onnx")
    found = re.fullmatch(
        r".*sqrt.onnx gives non-finite logits for (\d+) of 150 images, the first is (\d+): make verify_load.images at "
        r"least (\d+) to record it as not working, or take it out of params.yaml\.",
        str(error.value),
    )
    assert 1 <= int(found[1]) <= 150 and int(found[3]) == int(found[2]) + 1
    assert not Path("v.json").exists() and not Path("v.npz").exists()


@pytest.mark.parametrize("images", [0, 201])
def test_no_images_and_more_than_there_are_are_refused(stage, workspace, images):
    workspace({"models.cnn.evaluate.images": images})
    with pytest.raises(UserError) as error:
        stage()
    assert str(error.value).startswith(f"evaluate.images of the model is {images} and ")
    assert str(error.value).endswith("test-images.npy has 200 images: ask for 1 to 200.")


def test_a_pixel_that_is_not_finite_is_refused_in_evaluation_as_in_calibration(stage, tmp_path):
    images = np.zeros((200, 1, 28, 28), np.float32)
    images[0, 0, 2, 2] = np.nan
    np.save(tmp_path / "nan.npy", images)
    with pytest.raises(UserError, match=r"nan.npy has 1 non-finite values, the first in image 0: mend or remove"):
        stage(images=tmp_path / "nan.npy")


def test_labels_of_another_dataset_are_refused(stage, tmp_path):
    np.save(tmp_path / "labels.npy", np.zeros(199, np.int64))
    with pytest.raises(UserError, match=r"labels.npy holds int64 of shape \(199,\): expected int64 of shape \(200,\)"):
        stage(labels=tmp_path / "labels.npy")


def test_predictions_do_not_depend_on_the_batch_size(fp32, dataset, scaling):
    settings = {"images": 100, "threads": 1}
    path = dataset / "test-images.npy"
    one, many = (predict_images(fp32, path, scaling, batch_size=size, **settings) for size in (1, 64))
    np.testing.assert_allclose(one, many, atol=1e-5)


@pytest.mark.parametrize("model", ["fp32", "dynamic"])
def test_predictions_do_not_depend_on_the_number_of_threads(model, fp32, dataset, scaling, tmp_path):
    """Bit for bit: a call has one thread, whatever the number of calls at a time; also a dynamic variant, scaled by call."""
    path = fp32
    if model == "dynamic":
        path = tmp_path / "dynamic.onnx"
        quantize_dynamic(fp32, path, weight_type=QuantType.QUInt8)
    settings = {"images": 150, "batch_size": 7}
    one, four = (
        predict_images(path, dataset / "test-images.npy", scaling, threads=threads, **settings) for threads in (1, 4)
    )
    assert (one == four).all()


def test_all_sessions_of_all_stages_have_the_same_recorded_options(fp32, repository):
    """A model verified with one set of optimizations and timed with another is two models.

    Calibration alone has a session of its own, without optimizations, so that every tensor exists. And the end of the
    search holds other options against these, in sessions from which no other result comes.
    """
    sources = {path.name: path.read_text() for path in (repository / "stages").rglob("*.py")}
    assert sorted(name for name, text in sources.items() if "InferenceSession(" in text) == [
        "collection.py",
        "runtime.py",
    ]
    assert [name for name, text in sources.items() if "default_options(" in text and name != "runtime.py"] == [
        "options_to_try.py"
    ]
    options = open_session(fp32, threads=3).get_session_options()
    assert options.intra_op_num_threads == 3 and options.inter_op_num_threads == 1
    assert options.graph_optimization_level.name == "ORT_ENABLE_ALL"
    assert options.execution_mode.name == "ORT_SEQUENTIAL"
