"""Package registries that some tests download from. What cannot be had is a fault of ours where the same client gets something else."""

import subprocess
import sys

import pytest


def pip_downloads(folder):
    """Return whether pip gets a package of a few kB, asked as `stages.machine` asks for a runtime."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--retries", "1",
               "--timeout", "10", "--dest", str(folder), "iniconfig"]  # fmt: skip
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def apt_downloads(folder):
    """Return whether apt-get gets a package of a few kB that every Debian has, with package lists in `folder`."""
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True)
    apt = ["apt-get", "-o", f"Dir::State={folder}", "-o", f"Dir::Cache={folder}", "-o", "Debug::NoLocking=1",
           "-o", "Acquire::http::Timeout=10", "-o", "Acquire::Retries=0"]  # fmt: skip
    commands = ([*apt, "update"], [*apt, "download", "hostname"])
    return all(
        subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0 for command in commands
    )


def not_downloaded(what, downloads, folder):
    """End the test that needs `what`: skip it where `downloads(folder)` fails as well, and fail it where that works."""
    if downloads(folder):
        pytest.fail(f"{what} cannot be had, and another package can be downloaded")
    pytest.skip(f"{what} cannot be had, nor can any package be downloaded here")
