"""Train a network on the training images; the test images are only looked at to draw the curve.

Writes models/<model>/model.pt (a state dict), its accuracy, and the course of loss and accuracy for `dvc plots`. The
same parameters give the same bytes on the same machine.

    python -m stages.train cnn data/.../train-images.npy ... (see dvc.yaml)
"""

import os

# OpenMP reads these when torch is loaded. By default its threads spin while they wait: beside other work on the same
# cores, such as a second experiment, training then takes several times as long. A few microseconds of it help.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from stages.common.images import check_finite, load_images, load_labels, to_input
from stages.common.networks import ARCHITECTURES, load_published_weights
from stages.common.workspace import UserError, read_params, run_main, whole_file, write_metrics, write_table

PARTS = 10  # of an epoch, each a point of the curves


def train(train_set, test_set, scaling, *, architecture, epochs, batch_size, learning_rate, seed, threads,
          weights="none", images=None, test_images=None):  # fmt: skip
    """Train with Adam and cross-entropy; return the network in evaluation mode and a row of numbers a part.

    The learning rate falls from `learning_rate` to zero in equal steps: few images are worth the most that way.
    `train_set`, `test_set`: (images (N, C, H, W) as stored, labels (N,) int64). `scaling`: arguments of `to_input`.
    `weights`: "none" (random ones), or the name of torchvision's published ones. `images`, `test_images`: how many are
    trained on and tested, from the first on; None: all. What is behind them the network does not know.
    A row, PARTS an epoch: epochs done, train_loss, test_loss, train_accuracy, test_accuracy; the training values are
    means over the part, the test values are there at the end of an epoch and None before.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    network = ARCHITECTURES[architecture]()
    if weights != "none":
        load_published_weights(network, architecture, weights)
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    order = np.random.default_rng(seed)
    images = len(train_set[0]) if images is None else images
    batch_count = -(-images // batch_size)
    steps = epochs * batch_count
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / steps)
    test_set = tuple(part[:test_images] for part in test_set)
    history = []
    for epoch in range(1, epochs + 1):
        network.train()
        batches = np.array_split(order.permutation(images), batch_count)
        seen = [
            step(network, optimizer, schedule, *batch_of(train_set, indices, scaling))
            for indices in tqdm(batches, desc=f"epoch {epoch}/{epochs}", unit="batch", mininterval=1)
        ]
        history += course(epoch, np.array(seen), [len(batch) for batch in batches])
        history[-1][2::2] = test(network, test_set, scaling)
    return network.eval(), history


def course(epoch, seen, sizes):
    """Return the rows of an epoch, without test values, from each batch's summed loss and right answers, and its size."""
    rows = []
    for part in np.array_split(np.arange(len(seen)), min(PARTS, len(seen))):
        loss, accuracy = seen[part].sum(axis=0) / sum(sizes[batch] for batch in part)
        rows.append([epoch - 1 + (part[-1] + 1) / len(seen), loss, None, accuracy, None])
    return rows


def batch_of(dataset, indices, scaling):
    """Return the model's input and the labels of the images at `indices`, as tensors."""
    images, labels = dataset
    indices = np.sort(indices)  # a memory map is read in order; within a batch the order means nothing
    return torch.from_numpy(to_input(images[indices], **scaling)), torch.from_numpy(labels[indices])


def step(network, optimizer, schedule, inputs, labels):
    """Take one step; return the batch's summed loss and its number of right answers."""
    optimizer.zero_grad()
    logits = network(inputs)
    loss = nn.functional.cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()
    schedule.step()
    return loss.item() * len(labels), (logits.argmax(1) == labels).sum().item()


@torch.no_grad()
def test(network, dataset, scaling, batch_size=100):
    """Return mean loss and accuracy over a dataset."""
    network.eval()
    total = np.zeros(2)
    for start in range(0, len(dataset[0]), batch_size):
        inputs, labels = batch_of(dataset, np.arange(start, min(start + batch_size, len(dataset[0]))), scaling)
        logits = network(inputs)
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        total += loss.item(), (logits.argmax(1) == labels).sum().item()
    return total / len(dataset[0])


def write_curve(path, history, quantity, columns):
    """Write a quantity ("loss", "accuracy") by epochs done, for training and test images, from `columns` of the history."""
    rows = [
        [f"{row[0]:.2f}", *("" if row[column] is None else f"{row[column]:.6f}" for column in columns)]
        for row in history
    ]
    write_table(path, ["epoch", f"train_{quantity}", f"test_{quantity}"], rows)


def main(
    model, train_images, train_labels, test_images, test_labels, model_path, metrics_path, loss_path, accuracy_path
):
    params, scaling = read_params(f"train.{model}"), read_params(f"models.{model}.input")
    datasets = []
    for images_path, labels_path in ((train_images, train_labels), (test_images, test_labels)):
        images = load_images(images_path)
        for start in range(0, len(images), 1000):
            check_finite(images[start : start + 1000], images_path, range(start, len(images)))
        datasets.append((images, load_labels(labels_path, len(images))))
    for key, (stored, _) in (("batch_size", datasets[0]), ("images", datasets[0]), ("test_images", datasets[1])):
        if params.get(key, 1) > len(stored):
            raise UserError(
                f"train.{model}.{key} is {params[key]} and there are {len(stored)} {'test' if key == 'test_images' else 'training'} images: make it smaller."
            )
    network, history = train(*datasets, scaling, **params)
    with whole_file(model_path) as temporary, open(temporary, "wb") as file:
        # An open file: given a path, torch stores the file's name in the archive.
        torch.save(network.state_dict(), file)
    write_metrics(metrics_path, {model: {"test_accuracy": history[-1][-1], "epochs": params["epochs"]}})
    write_curve(loss_path, history, "loss", (1, 2))
    write_curve(accuracy_path, history, "accuracy", (3, 4))
    print(f"{model}: test accuracy {history[-1][-1]:.2%} after {params['epochs']} epochs")


if __name__ == "__main__":
    run_main(main)
