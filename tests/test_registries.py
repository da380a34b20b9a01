"""A test that needs a download is skipped only where nothing can be downloaded."""

import pytest
import registries


@pytest.fixture
def unreachable(monkeypatch):
    """Give pip no registry: nobody listens on that port, and it may look nowhere else."""
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "CONFIG_FILE": "/dev/null", "RETRIES": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    for name in ("EXTRA_INDEX_URL", "FIND_LINKS"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)


def test_without_a_registry_pip_downloads_nothing_and_the_test_is_skipped(unreachable, tmp_path):
    with pytest.raises(
        pytest.skip.Exception, match=r"^the runtime cannot be had, nor can any package be downloaded here"
    ):
        registries.not_downloaded("the runtime", registries.pip_downloads, tmp_path)


def test_where_another_package_can_be_downloaded_the_test_fails(tmp_path):
    with pytest.raises(
        pytest.fail.Exception, match=r"^the runtime cannot be had, and another package can be downloaded"
    ):
        registries.not_downloaded("the runtime", lambda folder: folder == tmp_path, tmp_path)
