"""Training gives the same bytes for the same parameters, and a file that does not know its own name."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from stages import train
from stages.common.networks import ARCHITECTURES, load_published_weights
from stages.common.workspace import UserError, read_metrics

pytestmark = pytest.mark.slow  # torch alone takes seconds to import


@pytest.fixture
def trained(workspace, params, dataset, scaling):
    """Return a function that trains cnn-small on the tiny dataset and returns the bytes of its file."""
    params["models"]["cnn-small"]["input"] = scaling
    del params["train"]["cnn-small"]["images"]
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
    assert [row["epoch"] for row in loss] == [row["epoch"] for row in accuracy]
    assert len(loss) == 3 * 10 and [row["epoch"] for row in loss if row["test_loss"]] == ["1.00", "2.00", "3.00"]
    assert float(loss[-1]["train_loss"]) < float(loss[0]["train_loss"])
    assert float(accuracy[-1]["test_accuracy"]) == pytest.approx(metrics["test_accuracy"], abs=1e-6)


def test_the_curve_of_an_epoch_adds_up_to_it():
    """Batches differ in size by one; an epoch of a few batches has a point for each."""
    seen, sizes = np.array([[6.0, 1], [4.0, 2], [2.0, 2]]), [3, 2, 2]
    rows = train.course(2, seen, sizes)
    assert [row[0] for row in rows] == pytest.approx([4 / 3, 5 / 3, 2])
    assert sum(row[1] * size for row, size in zip(rows, sizes, strict=True)) == pytest.approx(12)
    assert [row[3] for row in rows] == pytest.approx([1 / 3, 1, 1])


def test_the_learning_rate_falls_to_zero_in_equal_steps(trained, monkeypatch):
    """600 images in batches of 32 for two epochs are 38 steps."""
    rates, step = [], train.step

    def recording(network, optimizer, *arguments):
        rates.append(optimizer.param_groups[0]["lr"])
        return step(network, optimizer, *arguments)

    monkeypatch.setattr(train, "step", recording)
    trained(changes={"train.cnn-small.epochs": 2, "train.cnn-small.learning_rate": 0.001})
    assert rates == pytest.approx(np.linspace(0.001, 0, 39)[:-1])


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


@pytest.mark.parametrize(
    ("name", "weights", "shape"),
    [
        ("cnn", 390_410, (1, 28, 28)),
        ("cnn-small", 105_866, (1, 28, 28)),
        ("resnet18", 11_181_642, (3, 224, 224)),
    ],
)
def test_the_networks_are_those_of_the_two_articles(name, weights, shape):
    """The sizes of the small ones follow from the sizes of the published files."""
    network = ARCHITECTURES[name]()
    assert sum(parameter.numel() for parameter in network.parameters()) == weights
    assert network(torch.zeros(2, *shape)).shape == (2, 10)


def test_of_fewer_training_images_the_first_are_seen_in_every_epoch_and_no_other(trained, monkeypatch):
    seen, batch_of = [], train.batch_of
    monkeypatch.setattr(train, "batch_of", lambda data, at, how: seen.append(at) or batch_of(data, at, how))
    trained(changes={"train.cnn-small.epochs": 2, "train.cnn-small.images": 64, "train.cnn-small.test_images": 50})
    first, second = ({*np.concatenate(seen[at : at + 2])} for at in (0, 3))  # two batches of 32, then the test images
    assert first == second == set(range(64))
    assert [len(at) for at in seen] == [32, 32, 50] * 2


@pytest.mark.parametrize(("key", "what"), [("images", "600 training"), ("test_images", "200 test")])
def test_more_images_than_there_are_is_refused_before_training(trained, key, what):
    with pytest.raises(UserError, match=f"train.cnn-small.{key} is 601 and there are {what} images: make it smaller"):
        trained(changes={f"train.cnn-small.{key}": 601})


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The folder in which torchvision keeps its downloads, an empty one; nothing answers at the network's addresses."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    folder = tmp_path / "torch/hub/checkpoints"
    folder.mkdir(parents=True)
    return folder


def test_published_weights_are_taken_from_torchvisions_folder_all_but_the_last_layer(hub):
    """With a file of that name there, torchvision's own loading code runs without a network."""
    published = torchvision.models.resnet18()  # random, with the 1000 classes of the published ones
    torch.save(published.state_dict(), hub / "resnet18-f37072fd.pth")
    network = ARCHITECTURES["resnet18"]()
    last = network.fc.weight.clone()
    load_published_weights(network, "resnet18", "IMAGENET1K_V1")
    assert torch.equal(network.conv1.weight, published.conv1.weight)
    assert torch.equal(network.layer4[1].bn2.running_var, published.layer4[1].bn2.running_var)
    assert torch.equal(network.fc.weight, last)


def test_published_weights_that_cannot_be_fetched_are_named_with_the_place_to_put_them(hub):
    with pytest.raises(UserError) as error:
        load_published_weights(ARCHITECTURES["resnet18"](), "resnet18", "IMAGENET1K_V1")
    assert f"put that file into {hub}, or set the model's `weights` to none." in str(error.value)
    assert "resnet18-f37072fd.pth cannot be fetched (" in str(error.value)
