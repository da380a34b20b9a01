"""The networks that are trained here. A new one is a function in ARCHITECTURES and its name in the parameter check."""

from torch import nn


def convolution_block(inputs, outputs):
    """3x3 convolution that keeps the size, ReLU, max-pool that halves it."""
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)


def cnn():
    """Three convolutions (32, 64, 128), hidden layer of 256: (N, 1, 28, 28) -> (N, 10). 390,410 weights."""
    return nn.Sequential(
        *convolution_block(1, 32),
        *convolution_block(32, 64),
        *convolution_block(64, 128),
        nn.Flatten(),
        nn.Linear(128 * 3 * 3, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def cnn_small():
    """Two convolutions (16, 32), hidden layer of 64: (N, 1, 28, 28) -> (N, 10). 105,866 weights."""
    return nn.Sequential(
        *convolution_block(1, 16),
        *convolution_block(16, 32),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


ARCHITECTURES = {"cnn": cnn, "cnn-small": cnn_small}
