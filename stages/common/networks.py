"""The networks that are trained here. A new one is a function in ARCHITECTURES and its name in the parameter check."""

from urllib.error import URLError

import torch
from torch import nn

from stages.common.workspace import UserError


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


def resnet18():
    """torchvision's ResNet-18 for 10 classes: (N, 3, H, W) -> (N, 10), made for 224x224. 11,181,642 weights."""
    from torchvision.models import resnet18 as build  # noqa: PLC0415 -- the other networks need not pay its second

    return build(num_classes=10)


ARCHITECTURES = {"cnn": cnn, "cnn-small": cnn_small, "resnet18": resnet18}


def load_published_weights(network, architecture, weights):
    """Load torchvision's published weights (`weights`: "IMAGENET1K_V1") into a network, all but its last layer, in place.

    torchvision keeps the download; a file that is in its folder already is taken without a network. Raises UserError
    if it is in neither place.
    """
    from torchvision.models import get_model_weights  # noqa: PLC0415 -- as above

    published = get_model_weights(architecture)[weights]
    try:
        state = published.get_state_dict(progress=False, check_hash=True, map_location="cpu")
    except (URLError, OSError) as error:
        folder = f"{torch.hub.get_dir()}/checkpoints"
        raise UserError(
            f"{published.url} cannot be fetched ({error}): put that file into {folder}, or set the model's `weights` to none."
        ) from None
    own = network.state_dict()
    fits = {name: value for name, value in state.items() if value.shape == own[name].shape}
    network.load_state_dict(own | fits)
