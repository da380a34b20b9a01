"""What several test modules share: the repository's parameters, small real models and a tiny dataset."""

import copy
from pathlib import Path

import pytest
import yaml

from stages.common.workspace import load_params

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def repository():
    """The root of the repository."""
    return ROOT


@pytest.fixture
def params():
    """The content of params.yaml, for a test to change."""
    return copy.deepcopy(load_params(ROOT / "params.yaml"))


def set_key(tree, dotted, value):
    """Set the value of a dotted key in nested dictionaries."""
    *path, last = dotted.split(".")
    for part in path:
        tree = tree[part]
    tree[last] = value


@pytest.fixture
def workspace(tmp_path, monkeypatch, params):
    """An empty repository to run a stage's main in: returns a function that writes params.yaml with changed keys.

    `workspace({"calibrate.seed": 3})` changes a key; it can be called again.
    """
    monkeypatch.chdir(tmp_path)

    def write(changes=(), content=params):
        for key, value in dict(changes).items():
            set_key(content, key, value)
        Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return tmp_path

    write()
    return write
