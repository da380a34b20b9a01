"""Training gives the same bytes for the same parameters, and a file that does not know its own name."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from stages import train
from stages.common.networks import ARCHITECTURES
from stages.common.workspace import UserError, read_metrics

pytestmark = pytest.mark.slow  # torch alone takes seconds to import


@pytest.fixture
def trained(workspace, params, dataset, scaling):
    """Return a function that trains cnn-small on the tiny dataset and returns the bytes of its file."""
    params["models"]["cnn-small"]["input"] = scaling
    workspace({"train.cnn-small.epochs": 1, "train.cnn-small.batch_size": 32, "train.cnn-small.threads": 1})
    paths = [dataset / f"{name}.npy" for name in ("train-images", "train-labels", "test-images", "test-labels")]

    def run(name="model.pt", changes=(), images=paths[0]):
        workspace(changes)
        train.main("cnn-small", images, *paths[1:], name, "metrics.json", "loss.csv", "accuracy.csv")
        return Path(name).read_bytes()

    return run


def test_the_same_parameters_give_the_same_bytes_under_another_name(trained):
    """Given a path instead of an open file, torch would store the file's name in it."""
    assert trained("a.pt") == trained("b.pt")


def test_another_seed_gives_other_weights(trained):
    assert trained() != trained(changes={"train.cnn-small.seed": 1})


def test_a_network_learns_and_the_curve_says_how(trained):
    trained(changes={"train.cnn-small.epochs": 3})
    metrics = read_metrics("metrics.json")["cnn-small"]
    assert metrics["test_accuracy"] > 0.5 and metrics["epochs"] == 3
    loss, accuracy = (
        list(csv.DictReader(Path(name).read_text().splitlines())) for name in ("loss.csv", "accuracy.csv")
    )
    assert [row["epoch"] for row in loss] == [row["epoch"] for row in accuracy] == ["1", "2", "3"]
    assert float(loss[2]["train_loss"]) < float(loss[0]["train_loss"])
    assert float(accuracy[2]["test_accuracy"]) == pytest.approx(metrics["test_accuracy"], abs=1e-6)


def test_the_file_holds_weights_and_no_code(trained):
    trained()
    weights = torch.load("model.pt", weights_only=True)
    ARCHITECTURES["cnn-small"]().load_state_dict(weights)


def test_images_that_are_not_finite_are_refused_before_training(trained, tmp_path):
    images = np.zeros((600, 1, 28, 28), np.float32)
    images[599, 0, 0, 0] = np.inf
    np.save(tmp_path / "inf.npy", images)
    with pytest.raises(UserError, match=r"inf.npy has 1 non-finite values, the first in image 599: mend or remove"):
        trained(images=tmp_path / "inf.npy")
    assert not Path("model.pt").exists()


def test_a_batch_larger_than_the_dataset_is_refused(trained):
    with pytest.raises(UserError) as error:
        trained(changes={"train.cnn-small.batch_size": 601})
    assert str(error.value) == ("train.cnn-small.batch_size is 601 and there are 600 training images: make it smaller.")


@pytest.mark.parametrize(("name", "weights"), [("cnn", 390_410), ("cnn-small", 105_866)])
def test_the_networks_are_those_of_the_two_articles(name, weights):
    """Their sizes follow from the sizes of the published files."""
    network = ARCHITECTURES[name]()
    assert sum(parameter.numel() for parameter in network.parameters()) == weights
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
