"""Fetch FashionMNIST into the arrays that the pipeline reads, verified by SHA-256 whatever the source.

Sources, in this order: the folder named by FASHION_MNIST_DIR, torchvision's download, Debian's package
dataset-fashion-mnist (no root needed). Writes data/fashion-mnist/{train,test}-{images,labels}.npy.

    python -m stages.fetch_data fashion-mnist data/fashion-mnist/train-images.npy ... (see dvc.yaml)
"""

import gzip
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from stages.common.workspace import UserError, read_params, run_main, whole_file

FOLDER_VARIABLE = "FASHION_MNIST_DIR"
DEBIAN_PACKAGE = "dataset-fashion-mnist"
DEBIAN_FOLDER = Path("usr/share/datasets/fashion-mnist")

# SHA-256 of the uncompressed files: the same for every way of packing them.
SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


class SourceUnavailableError(Exception):
    """This source has nothing to give here; the next one may."""


def fetch_data(*, timeout_seconds):
    """Return the four verified files as arrays: images (N, 1, 28, 28) uint8, labels (N,) int64, in the order of SHA256.

    Raises UserError if no source answers, or if the one that does gives other bytes than the published ones.
    """
    problems = []
    for source in (from_folder, from_torchvision, from_debian):
        try:
            with source(timeout_seconds) as folder:
                contents = [read_verified(folder, name) for name in SHA256]
        except SourceUnavailableError as reason:
            problems.append(str(reason))
        else:
            return [decode_idx(content) for content in contents]
    raise UserError(
        f"no source of FashionMNIST answered ({'; '.join(problems)}): download its four idx-ubyte files elsewhere and set "
        f"{FOLDER_VARIABLE} to their folder."
    )


@contextmanager
def from_folder(timeout_seconds):
    """The folder named by the environment variable; if it is set, it is the only source."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        raise SourceUnavailableError(f"{FOLDER_VARIABLE} is not set")
    if not Path(folder).is_dir():
        raise UserError(
            f"{FOLDER_VARIABLE} is {folder!r}, which is not a folder: name the one with the idx-ubyte files."
        )
    yield Path(folder)


@contextmanager
def from_torchvision(timeout_seconds):
    """torchvision's own download, into a temporary folder."""
    from torchvision.datasets import FashionMNIST  # noqa: PLC0415 -- seconds of import that the first source need not pay

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(timeout_seconds)
    try:
        with tempfile.TemporaryDirectory() as root:
            try:
                FashionMNIST(root, download=True)
            except (OSError, RuntimeError) as error:
                raise SourceUnavailableError(
                    f"torchvision could not download it: {' '.join(str(error).split())}"
                ) from None
            yield Path(root) / "FashionMNIST" / "raw"
    finally:
        socket.setdefaulttimeout(before)


@contextmanager
def from_debian(timeout_seconds):
    """Debian's package: installed already, or downloaded and unpacked into a temporary folder."""
    if (Path("/") / DEBIAN_FOLDER).is_dir():
        yield Path("/") / DEBIAN_FOLDER
        return
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise SourceUnavailableError("apt-get is not here")
    with tempfile.TemporaryDirectory() as root:
        # Package lists of our own: neither root nor the system's lists are needed.
        for folder in ("lists/partial", "archives/partial"):
            (Path(root) / folder).mkdir(parents=True)
        apt = ["apt-get", "-o", f"Dir::State::Lists={root}/lists", "-o", f"Dir::Cache={root}", "-o", "Debug::NoLocking=1",
               "-o", f"Acquire::http::Timeout={timeout_seconds}", "-o", "Acquire::Retries=0"]  # fmt: skip
        try:
            for command in ([*apt, "update"], [*apt, "download", DEBIAN_PACKAGE]):
                subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
            [package] = Path(root).glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", package, f"{root}/unpacked"], check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or ["no message"])[-1]
            raise SourceUnavailableError(f"apt-get could not download {DEBIAN_PACKAGE}: {last}") from None
        yield Path(root) / "unpacked" / DEBIAN_FOLDER


def read_verified(folder, name):
    """Return the uncompressed bytes of `name` or `name`.gz in `folder`; UserError unless they are the published ones."""
    packed, plain = folder / f"{name}.gz", folder / name
    path = plain if plain.is_file() else packed
    try:
        content = path.read_bytes() if path == plain else gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{folder} has neither {name} nor {name}.gz: put all four files there.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}): download it again.") from None
    if (found := hashlib.sha256(content).hexdigest()) != SHA256[name]:
        raise UserError(
            f"{path} is not the published file ({len(content):,} bytes, SHA-256 {found[:12]}..., expected {SHA256[name][:12]}...): "
            "download it again."
        )
    return content


def decode_idx(content):
    """Turn a verified IDX file into an array: images (N, 1, 28, 28) uint8, or labels (N,) int64."""
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", count=dimensions, offset=4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    return values[:, None] if dimensions == 3 else values.astype(np.int64)


def main(dataset, *paths):
    if dataset != "fashion-mnist":
        raise UserError(
            f"fetch_data names {dataset}, which this stage does not know: put your arrays into data/{dataset}/ and set `fetch_data: {{}}`."
        )
    arrays = fetch_data(**read_params(f"fetch_data.{dataset}"))
    for path, array in zip(paths, arrays, strict=True):
        with whole_file(path) as temporary, open(temporary, "wb") as file:
            np.save(file, array)
    print(f"{dataset}: {len(arrays[0]):,} training and {len(arrays[2]):,} test images, SHA-256 as published")


if __name__ == "__main__":
    run_main(main)
