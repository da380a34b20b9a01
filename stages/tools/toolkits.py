"""Environments of other quantization toolkits: made once, beside the project's own, and never a dependency of it.

Each sees the packages of the project's environment and has what it needs beyond them to itself.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from stages.common.session.runtimes import install_lock
from stages.common.workspace import UserError

PACKAGES = {
    "openvino": ("openvino==2026.4.0", "nncf==3.4.0"),
    "olive": ("olive-ai==0.13.0",),
}
INSTALL_SECONDS = 600  # 250 MB; a slow line needs minutes


def toolkit_folder(name):
    """Return the folder of a toolkit's environment, under the prefix of the running one."""
    return Path(sys.prefix) / "toolkits" / "-".join(PACKAGES[name]).replace("==", "-")


def ensure_toolkit(name):
    """Return the Python of a toolkit's environment; make the environment if it is not there.

    Raises UserError if the packages cannot be installed.
    """
    folder = toolkit_folder(name)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if (folder / ".installed").is_file():
        return python
    with install_lock(folder):
        if not (folder / ".installed").is_file():
            install(name, folder, python)
    return python


def install(name, folder, python):
    """Make the environment of a toolkit in `folder`; its mark is set last, so that a killed install is not taken for whole."""
    print(f"installing {' and '.join(PACKAGES[name])} in {folder} ...", flush=True)
    shutil.rmtree(folder, ignore_errors=True)  # what was left half
    venv.create(folder, with_pip=False)
    own = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    (Path(own) / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES[name]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        message = (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else ""
    except subprocess.TimeoutExpired:
        message = f"no answer in {INSTALL_SECONDS} s"
    if message:
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(
            f"{' and '.join(PACKAGES[name])} could not be installed ({message}): look at the network, or leave {name} out with --without {name}."
        )
    (folder / ".installed").touch()


def run_in(python, module, *arguments):
    """Run a module of this repository with another Python, its output as it comes. Raises UserError if it fails."""
    done = subprocess.run([python, "-m", module, *map(str, arguments)], check=False)
    if done.returncode:
        raise UserError(f"{module} failed with exit code {done.returncode}: what it printed says why.")
