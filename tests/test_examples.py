"""The examples are what they say: their parameters hold, their tables are what was measured, their commands work."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from examples import follow, record
from registries import not_downloaded, pip_downloads

from stages.common.preflight.params_check import check_params
from stages.common.workspace import UserError, load_params, read_metrics
from stages.tools.update_readme import with_results

EXAMPLES = Path(record.__file__).parent


@pytest.mark.parametrize("example", record.EXAMPLES)
def test_the_parameters_of_an_example_pass_the_check(example, tmp_path):
    for file in (
        f"models/{example}/onnx/fp32.onnx",
        *(f"data/{example}/{part}-images.npy" for part in ("train", "test")),
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{file}.dvc").touch()
    check_params(load_params(EXAMPLES / example / "params.yaml"), tmp_path)


@pytest.mark.parametrize("example", record.EXAMPLES)
def test_the_commands_of_an_example_name_files_that_are_here(example, repository):
    text = "\n".join(follow.commands((EXAMPLES / example / "README.md").read_text()))
    for file in re.findall(r"tests/examples/\S+", text):
        assert (repository / file).is_file()
    for module in re.findall(r"-m (stages\.\S+)", text):
        assert (repository / f"{module.replace('.', '/')}.py").is_file()


def test_the_tables_of_the_examples_are_those_of_the_metrics_that_are_kept():
    sections = {name: record.example_section(name) for name in record.EXAMPLES}
    for folder, section in {".": record.overview(), **sections}.items():
        text = (EXAMPLES / folder / "README.md").read_text()
        assert text == with_results(text, section), "run `python -m tests.examples.record`"


def copy_of(repository, folder):
    """Return a copy of what Git tracks, as it lies there, committed in a repository of its own."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repository / name, folder / name)
    for command in ("init --quiet", "config user.name User", "config user.email user@example.com", "add --all"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    subprocess.run(["git", "commit", "--quiet", "--message", "Set up"], cwd=folder, check=True)
    return folder


def make_small(path):
    """Rewrite an example's params.yaml: two variants and calls enough to see that all of it works."""
    params = load_params(path)
    [model] = params["models"].values()
    model |= {"evaluate": {"images": 60}, "benchmark": {"batches": [1], "seconds": 1}}
    model["explain"] = {"images": 10, "noise_images": 4}
    kept = {"calibrate_quantize": "static-u8s8-channels", "quantize_dynamic": "dynamic-quint8"}
    params |= {section: {name: params[section][name]} for section, name in kept.items()}
    params |= {"variants": list(kept.values())}
    params["calibrate"] |= {"images": 40}
    params["verify_load"]["runtimes"] = []
    params["benchmark"]["rounds"] = 2
    params["explain"] = {"layers_of": kept["calibrate_quantize"], "time": {"rounds": 7, "seconds": 1}}
    path.write_text(yaml.safe_dump(params, sort_keys=False))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("git"), reason="git is not here")
def test_the_worked_example_works_word_by_word(repository, tmp_path, monkeypatch):
    """Fewer lines of text and fewer variants; what is deterministic is printed as its README says."""
    folder = copy_of(repository, tmp_path / "clone")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # temporary files of its own
    monkeypatch.delenv("PYTHONPATH", raising=False)
    readme, printed = (EXAMPLES / "text-angle" / "README.md").read_text(), []
    for command in follow.commands(readme):
        try:
            printed.append(follow.run(command.replace("lines 2000", "lines 120"), folder))
        except RuntimeError as error:
            if command.startswith("pip download"):
                not_downloaded(str(error), pip_downloads, tmp_path / "any-package")
            raise
        if "params.yaml" in command:
            make_small(folder / "params.yaml")
    metrics = folder / "metrics"
    results = {name: read_metrics(metrics / f"evaluate/text-angle/{name}.json")["text-angle"][name]
               for name in ("fp32", "dynamic-quint8", "static-u8s8-channels")}  # fmt: skip
    assert results["fp32"]["accuracy"] > 0.85  # chance is a half
    assert all(result["images"] == 60 and result["accuracy"] > 0.7 for result in results.values())
    explained = read_metrics(metrics / "explain/text-angle.json")["text-angle"]
    layers = {
        entry["integer_layers"] + entry["float_layers"] for entry in explained.values() if isinstance(entry, dict)
    }
    assert layers == {read_metrics(EXAMPLES / "text-angle/metrics/network.json")["layers"]}
    assert "## text-angle" in (folder / "plots/report.md").read_text()
    [prepared] = re.findall(r"^models/\S+: \d+ nodes, .*$", readme, re.MULTILINE)
    assert prepared in os.linesep.join(printed).splitlines()


@pytest.mark.parametrize("tool", [follow, record])
def test_a_mistake_in_following_an_example_touches_nothing(tool, tmp_path):
    kept = sorted(EXAMPLES.rglob("metrics/*"))
    with pytest.raises(UserError, match=r"there is no example 'textangle': take one of .*text-angle"):
        tool.main("textangle", tmp_path / "run")
    with pytest.raises(UserError, match="is there already" if tool is follow else "has no metrics"):
        tool.main("text-angle", tmp_path)
    assert kept == sorted(EXAMPLES.rglob("metrics/*")) and not list(tmp_path.iterdir())
