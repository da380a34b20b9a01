"""FashionMNIST is byte for byte the published one, or there is no array at all and a sentence that says why."""

import gzip
import hashlib
import os
import shutil
import struct
import sys
import types

import numpy as np
import pytest
from registries import apt_downloads, not_downloaded

from stages import fetch_data
from stages.common.workspace import UserError

OUTPUTS = ["train-images.npy", "train-labels.npy", "test-images.npy", "test-labels.npy"]


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder with four small IDX files that pass for the published ones, found by FASHION_MNIST_DIR."""
    folder = tmp_path / "published"
    folder.mkdir()
    for name, count in zip(fetch_data.SHA256, (7, 7, 3, 3), strict=True):
        shape = (count, 28, 28) if "images" in name else (count,)
        values = np.random.default_rng(count).integers(0, 10, shape, dtype=np.uint8)
        content = struct.pack(f">I{len(shape)}I", 0x0800 + len(shape), *shape) + values.tobytes()
        (folder / name).write_bytes(content)
        monkeypatch.setitem(fetch_data.SHA256, name, hashlib.sha256(content).hexdigest())
    monkeypatch.setenv("FASHION_MNIST_DIR", str(folder))
    return folder


@pytest.fixture
def fetch(workspace):
    """Run the stage's main; return the four arrays."""
    workspace()

    def run():
        fetch_data.main("fashion-mnist", *(f"data/{name}" for name in OUTPUTS))
        return [np.load(f"data/{name}") for name in OUTPUTS]

    return run


def pack(path, content=None):
    """Replace a file by its gzip."""
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content or path.read_bytes()))
    path.unlink()


def refusal(fetch):
    """Return what the stage says in refusal, after it has written nothing."""
    with pytest.raises(UserError) as error:
        fetch()
    assert not os.path.exists("data") or os.listdir("data") == []
    return str(error.value)


def test_images_and_labels_arrive_in_order_as_the_pipeline_wants_them(published, fetch):
    arrays = fetch()
    assert [array.shape for array in arrays] == [(7, 1, 28, 28), (7,), (3, 1, 28, 28), (3,)]
    assert [array.dtype for array in arrays] == [np.uint8, np.int64, np.uint8, np.int64]
    raw = np.frombuffer((published / "t10k-images-idx3-ubyte").read_bytes()[16:], np.uint8)
    np.testing.assert_array_equal(arrays[2].ravel(), raw)


def test_packed_and_plain_files_give_the_same_arrays(published, fetch):
    plain = fetch()
    for path in list(published.iterdir()):
        pack(path)
    for before, after in zip(plain, fetch(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_truncated_file_is_refused(published, fetch):
    path = published / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    sentence = refusal(fetch)
    assert sentence.startswith(f"{path} is not the published file (5,503 bytes, SHA-256 ")
    assert sentence.endswith("): download it again.")


@pytest.mark.parametrize("damage", ["cut", "flipped", "no gzip"])
def test_a_damaged_packed_file_is_refused(published, fetch, damage):
    path = published / "train-images-idx3-ubyte"
    pack(path)
    packed = path.with_name(f"{path.name}.gz")
    content = bytearray(packed.read_bytes())
    if damage == "flipped":
        content[30:60] = bytes(30)
    packed.write_bytes({"cut": content[:-20], "flipped": content, "no gzip": b"<html>404"}[damage])
    sentence = refusal(fetch)
    assert sentence.startswith(f"{packed} cannot be unpacked (") and sentence.endswith("): download it again.")


def test_an_altered_file_is_refused_though_it_is_packed_well(published, fetch):
    path = published / "t10k-labels-idx1-ubyte"
    pack(path, path.read_bytes()[:-1] + b"\xff")
    assert refusal(fetch).startswith(f"{path}.gz is not the published file (11 bytes, SHA-256 ")


def test_a_missing_file_is_named(published, fetch):
    (published / "t10k-labels-idx1-ubyte").unlink()
    assert refusal(fetch) == (
        f"{published} has neither t10k-labels-idx1-ubyte nor t10k-labels-idx1-ubyte.gz: put all four files there."
    )


def test_a_folder_that_is_none_is_named(fetch, monkeypatch):
    monkeypatch.setenv("FASHION_MNIST_DIR", "/none")
    assert (
        refusal(fetch) == "FASHION_MNIST_DIR is '/none', which is not a folder: name the one with the idx-ubyte files."
    )


def test_a_dataset_that_nobody_knows_is_refused(workspace):
    with pytest.raises(UserError) as error:
        fetch_data.main("birds", *OUTPUTS)
    assert str(error.value) == (
        "fetch_data names birds, which this stage does not know: put your arrays into data/birds/ and set `fetch_data: {}`."
    )


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """A machine without the variable, the Debian package, apt-get and a network."""

    def download(*_, **__):
        raise OSError("no route\nto host")

    module = types.SimpleNamespace(FashionMNIST=download)
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(datasets=module))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)
    monkeypatch.setattr(fetch_data, "DEBIAN_FOLDER", tmp_path / "not-installed")
    monkeypatch.delenv("FASHION_MNIST_DIR", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_without_any_source_one_sentence_says_what_to_do(offline, fetch):
    assert refusal(fetch) == (
        "no source of FashionMNIST answered (FASHION_MNIST_DIR is not set; torchvision could not download it: no route to host; "
        "apt-get is not here): download its four idx-ubyte files elsewhere and set FASHION_MNIST_DIR to their folder."
    )


def test_the_installed_debian_package_is_used_where_the_download_fails(published, offline, fetch, monkeypatch):
    monkeypatch.setattr(fetch_data, "DEBIAN_FOLDER", published)
    assert [len(array) for array in fetch()] == [7, 7, 3, 3]


def test_an_apt_get_that_fails_is_quoted(offline, fetch, monkeypatch, tmp_path):
    for name, script in (("apt-get", "echo reading >&2\necho 'E: no such package' >&2\nexit 100"), ("dpkg-deb", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    assert "apt-get could not download dataset-fashion-mnist: E: no such package)" in refusal(fetch)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("apt-get"), reason="apt-get is not here")
def test_the_debian_package_holds_the_published_files(tmp_path):
    """Downloaded for real, as an ordinary user would, with package lists of its own."""
    try:
        with fetch_data.from_debian(timeout_seconds=10) as folder:
            arrays = [fetch_data.decode_idx(fetch_data.read_verified(folder, name)) for name in fetch_data.SHA256]
    except fetch_data.SourceUnavailableError as reason:
        not_downloaded(f"Debian's package ({reason})", apt_downloads, tmp_path)
    assert [array.shape for array in arrays] == [(60_000, 1, 28, 28), (60_000,), (10_000, 1, 28, 28), (10_000,)]
    assert np.bincount(arrays[1]).tolist() == [6000] * 10 and np.bincount(arrays[3]).tolist() == [1000] * 10
