"""Write down the machine: processor, instruction sets, cores, package versions, further runtimes. Refuse bad parameters.

Always runs; DVC reruns downstream only what declared a key of metrics/machine.json that changed. It is upstream of
everything, so this is also where a mistake in params.yaml, or in a model that you brought, is named before any long work.
Further onnxruntime versions that verify-load asks for are installed under the environment's prefix if they are not there
yet.

    python -m stages.machine metrics/machine.json
"""

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stages.common.cpu import (
    best_int8_path,
    cpu_model_and_flags,
    cpu_revision,
    physical_cores,
    saturating,
    saturation_sentence,
    usable_cores,
)
from stages.common.preflight.own_models import own_mistakes, untracked
from stages.common.preflight.params_check import check_params
from stages.common.preflight.recipes import given_recipes
from stages.common.session.runtimes import is_installed, key_of, runtime_folder
from stages.common.workspace import load_params, run_main, write_metrics

PACKAGES = ("onnxruntime", "onnx", "onnxscript", "torch", "torchvision", "numpy")
INSTALL_SECONDS = 120  # 42 MB; a slow line may need a minute


def machine(*, runtimes):
    """Return the content of metrics/machine.json: {cpu, packages, os, runtimes}."""
    model, flags = cpu_model_and_flags()
    return {
        "cpu": {
            "model": model[:40],
            "revision": cpu_revision(),
            "isa": best_int8_path(flags),
            "physical_cores": physical_cores(),
            "usable_cores": usable_cores(),
        },
        "packages": {name: package_version(name) for name in PACKAGES},
        "os": f"{platform.system()} {platform.machine()} Python {platform.python_version()}"[:40],
        "runtimes": {key_of(runtime): int(ensure_runtime(runtime)) for runtime in runtimes},
    }


def package_version(name):
    """Return an installed package's version without its build tag: `2.14.1+cpu` and `2.14.1` are the same code."""
    try:
        return version(name).split("+")[0]
    except PackageNotFoundError:
        return "missing"


def ensure_runtime(runtime):
    """Install an onnxruntime version beside the environment's own if it is not there; return whether it is there now."""
    if is_installed(runtime):
        return True
    from filelock import FileLock  # noqa: PLC0415 -- only when something has to be installed

    folder = runtime_folder(runtime)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if is_installed(runtime):
            return True
        print(f"installing onnxruntime {runtime} for verify-load ...", flush=True)
        return install(runtime, folder)


def install(runtime, folder):
    """Run pip into a temporary folder and rename it, so that a killed install is not taken for a whole one."""
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--retries", "1", "--timeout", "10",
               "--target", str(temporary), f"onnxruntime=={runtime}"]  # fmt: skip
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        message = (result.stderr.strip().splitlines() or ["no message"])[-1]
    except subprocess.TimeoutExpired:
        result, message = None, f"no answer in {INSTALL_SECONDS} s"
    if result is None or result.returncode != 0:
        print(f"warning: onnxruntime {runtime} could not be installed ({message}); loading there is not checked")
        shutil.rmtree(temporary, ignore_errors=True)
        return False
    shutil.rmtree(folder, ignore_errors=True)  # what another tool left half
    os.replace(temporary, folder)
    return True


def main(metrics_path):
    params = load_params()
    check_params(params, Path(), further=own_mistakes)
    for file in untracked(params, Path()):
        print(f"warning: {file} is not tracked, so that no queued or --temp experiment has it: run `dvc add {file}`")
    facts = machine(runtimes=params["verify_load"]["runtimes"])
    write_metrics(metrics_path, facts)
    if names := saturating(facts["cpu"]["isa"], params["calibrate_quantize"] | given_recipes(params)):
        print(f"warning: {saturation_sentence(facts['cpu']['isa'], names)}")
    print(
        f"{facts['cpu']['model']}, {facts['cpu']['isa']}, {facts['cpu']['usable_cores']} usable cores, onnxruntime {facts['packages']['onnxruntime']}"
    )


if __name__ == "__main__":
    run_main(main)
