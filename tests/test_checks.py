"""The tools that check the benchmark and the calibration refuse what they cannot do, and use the images that are there."""

from pathlib import Path

import pytest

from stages.common.workspace import UserError
from stages.tools import check_benchmark, check_calibration


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--repeats", "0"], "'0' is no count: write a whole number, 1 or more"),
        (["--seconds", "-1"], "'-1' is no time: write a number of seconds, more than 0"),
        (["--seconds", "nan"], "'nan' is no time"),
    ],
)
def test_a_benchmark_is_not_checked_by_nothing(capsys, options, sentence):
    with pytest.raises(SystemExit) as end:
        check_benchmark.main(["cnn", *options])
    assert end.value.code == 2 and sentence in capsys.readouterr().err


@pytest.mark.parametrize("tool", [check_benchmark, check_calibration])
def test_a_model_that_is_not_there_is_refused_with_what_helps(workspace, params, tool):
    with pytest.raises(UserError, match=r"there is no model 'mlp': params.yaml has cnn, cnn-small, resnet18"):
        tool.main(["mlp"])
    with pytest.raises(
        UserError, match=r"models/cnn/\S+.onnx is not here: `dvc repro (export|preprocess)@cnn` makes it"
    ):
        tool.main(["cnn"])
    params["train"] = {}
    workspace()
    with pytest.raises(
        UserError, match="put your own there" if tool is check_benchmark else "dvc repro preprocess@cnn"
    ):
        tool.main(["cnn"])


@pytest.mark.parametrize(("options", "code", "sentence"), [
    ([], 2, "the following arguments are required: model"),
    (["cnn", "MinMix"], 2, "'MinMix' is no calibration method: take MinMax, Entropy, Percentile"),
    (["--help"], 0, "a key of `models` in params.yaml"),
])  # fmt: skip
def test_the_check_of_calibration_explains_its_arguments(capsys, options, code, sentence):
    with pytest.raises(SystemExit) as end:
        check_calibration.main(options)
    assert end.value.code == code and sentence in "".join(capsys.readouterr())


def test_memory_is_compared_at_as_many_images_as_there_are(
    workspace, params, dataset, preprocessed, scaling, monkeypatch, capsys
):
    params["models"]["cnn"]["input"] = scaling
    root = workspace({"dataset": "small"})
    for path, target in (("data/small", dataset), ("models/cnn/preprocessed.onnx", preprocessed)):
        Path(path).parent.mkdir(parents=True)
        (root / path).symlink_to(target)
    for name in ("MEMORY_BOUND", "TIME_BOUND"):  # the promises themselves have slow tests of their own
        monkeypatch.setattr(check_calibration, name, 100)
    monkeypatch.setattr(check_calibration, "ROUNDS", 1)
    check_calibration.main(["cnn", "MinMax"])
    said, figures = capsys.readouterr().out.splitlines()
    assert said == "there are 600 training images: memory is compared at all of them, not at 10,000"
    assert " MB at 200 images, " in figures and " MB at 600 images: " in figures


@pytest.mark.parametrize(
    ("available", "counts", "said"), [(60_000, (200, 10_000), ""), (100, (100, 100), "too few to see")]
)
def test_few_images_show_no_growth_and_it_is_said(capsys, available, counts, said):
    assert check_calibration.image_counts(available) == counts
    printed = capsys.readouterr().out
    assert said in printed if said else not printed
