"""dvc.yaml tells the truth: what a stage reads, imports and writes is what it declares. Else a result goes stale unseen."""

import ast
import inspect
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

ROOT = Path(__file__).parent.parent
# DVC could not draw them. It does not take such outputs from the run cache, so only what is made in a second is here.
IN_GIT_BUT_NO_PLOT = {"metrics/machine.json", "plots/report.md"}
MAY_IMPORT_TORCH = {"stages.fetch_data", "stages.train", "stages.export", "stages.common.networks"}
# machine always runs and checks the whole of params.yaml, so it has nothing to declare.
READS_EVERYTHING = "machine"


def stage_definitions():
    """Return {stage: its definition in dvc.yaml, without the foreach around it}."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    return {name: stage.get("do", stage) for name, stage in stages.items()}


STAGES = stage_definitions()
SCRIPTS = {name: re.match(r"python -m (stages\.\w+)", stage["cmd"])[1] for name, stage in STAGES.items()}


def module_path(module):
    return ROOT / f"{module.replace('.', '/')}.py"


def syntax(module):
    return ast.walk(ast.parse(module_path(module).read_text()))


def imported(module):
    """Return the names of all modules that `module` imports anywhere, or starts as a process with -m."""
    names = set()
    for node in syntax(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(re.findall(r"^stages(?:\.\w+)+$", node.value))
    return names


def followed(script):
    """Return `script` and every module of stages/ that it uses, through all steps."""
    found, rest = set(), [script]
    while rest:
        module = rest.pop()
        if module not in found:
            found.add(module)
            rest += [name for name in imported(module) if name.startswith("stages.") and module_path(name).is_file()]
    return found


def unit(module):
    """Return what a stage declares for a module: its file, or for one of a package of stages/common the whole package.

    A file each would make dvc.lock, which DVC writes anew after every stage, half as long again.
    """
    package = re.match(r"stages\.common\.\w+(?=\.)", module)
    return package[0].replace(".", "/") if package else f"{module.replace('.', '/')}.py"


def pattern(text):
    """Return a key with every template or f-string hole as a star: train.${key} and train.{model} are both train.*."""
    return re.sub(r"\$\{[^}]*\}", "*", text)


def keys_read(script):
    """Return the (file, key) pairs of all calls of read_params that `script` can reach."""
    calls = [node for module in followed(script) for node in syntax(module) if isinstance(node, ast.Call)]
    read = set()
    for call in calls:
        if getattr(call.func, "id", None) == "read_params":
            key, *file = call.args
            parts = key.values if isinstance(key, ast.JoinedStr) else [key]
            assert all(isinstance(part, ast.Constant | ast.FormattedValue) for part in parts), ast.unparse(call)
            text = "".join(part.value if isinstance(part, ast.Constant) else "*" for part in parts)
            read.add((file[0].value if file else "params.yaml", text))
    return read


def keys_declared(stage):
    declared = set()
    for entry in stage.get("params", []):
        files = {"params.yaml": [entry]} if isinstance(entry, str) else entry
        declared |= {(file, pattern(key)) for file, keys in files.items() for key in keys}
    return declared


def written(stage, *kinds):
    """Return the {path: options} that a definition declares under `kinds`."""
    entries = [entry for kind in kinds for entry in stage.get(kind, [])]
    return dict((entry, {}) if isinstance(entry, str) else next(iter(entry.items())) for entry in entries)


@pytest.fixture(scope="module")
def instances():
    """Every stage instance, its templates resolved by DVC itself."""
    with Repo(ROOT) as repo:
        return repo.index.stages


@pytest.mark.parametrize("name", STAGES)
def test_the_modules_that_a_stage_uses_are_its_python_deps(name):
    """A shared module that is not declared would be a stale result, one too many a needless rerun."""
    declared = {path for path in STAGES[name]["deps"] if path.startswith("stages/") and path != "stages/templates"}
    assert declared == {unit(module) for module in followed(SCRIPTS[name])}


@pytest.mark.parametrize("name", [name for name in STAGES if name != READS_EVERYTHING])
def test_the_parameters_that_a_stage_reads_are_those_that_it_declares(name):
    declared, read = keys_declared(STAGES[name]), keys_read(SCRIPTS[name])
    assert {key for file, key in declared if file == "params.yaml"} == {
        key for file, key in read if file == "params.yaml"
    }
    assert {pair for pair in read if pair[0] != "params.yaml"} <= declared


@pytest.mark.parametrize("name", [name for name in STAGES if name != READS_EVERYTHING])
def test_only_the_machine_stage_reads_params_yaml_as_a_whole(name):
    """A stage that takes the whole file hides from the test above what it looks at."""
    used = {node.id for node in syntax(SCRIPTS[name]) if isinstance(node, ast.Name)}
    assert not used & {"load_params", "check_params", "params_show"}


def test_the_machine_keys_that_stages_declare_are_written_by_the_machine_stage():
    content = json.loads((ROOT / "metrics/machine.json").read_text())
    for stage in STAGES.values():
        for file, key in keys_declared(stage):
            if file == "metrics/machine.json":
                section, *inner = key.split(".")
                assert section in content and (not inner or inner[0] in content[section]), key


def test_every_path_in_a_command_is_a_dep_or_an_out_and_every_out_is_in_the_command(instances):
    for stage in instances:
        if not stage.cmd:
            continue  # the .dvc file of data that somebody tracks
        outs = {str(out) for out in stage.outs}
        paths = {word for word in stage.cmd.split() if "/" in word}
        assert paths - {str(dep) for dep in stage.deps} - outs == set(), stage.addressing
        assert outs - paths == set(), stage.addressing


def paths_named(module):
    """Return the paths of files of the pipeline that `module` has in its text, with a star for every hole of an f-string."""
    found, parts = set(), set()
    for node in syntax(module):  # breadth first: an f-string comes before its parts
        if isinstance(node, ast.JoinedStr):
            parts |= set(map(id, node.values))
            found.add("".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            found.add(node.value)
    return {text for text in found if re.fullmatch(r"(data|models|metrics|plots)/\S*", text)}


def within(path, declared):
    return any(path == entry or path.startswith(f"{entry}/") for entry in declared)


@pytest.mark.parametrize("name", [name for name in STAGES if name != READS_EVERYTHING])
def test_every_path_that_a_stage_names_is_a_dep_or_an_out(name):
    """Or is written together with a dep, where a dep of its own would be a folder that is not always there."""
    outs = {other: {pattern(path) for path in written(STAGES[other], "outs", "metrics", "plots")} for other in STAGES}
    declared = {pattern(path) for path in STAGES[name]["deps"]} | {file for file, _ in keys_declared(STAGES[name])}
    for together in outs.values():
        if any(within(path, declared) for path in together):
            declared |= together
    paths = {path for module in followed(SCRIPTS[name]) for path in paths_named(module)}
    assert {path for path in paths if not within(path, declared | outs[name])} == set()


def test_a_command_gives_its_script_as_many_arguments_as_main_takes(instances):
    for stage in instances:
        if not stage.cmd:
            continue
        _, _, module, *arguments = stage.cmd.split()
        [main] = [node for node in syntax(module) if isinstance(node, ast.FunctionDef) and node.name == "main"]
        assert len(arguments) == len(main.args.args) or (main.args.vararg and len(arguments) > len(main.args.args))


@pytest.mark.parametrize("name", STAGES)
def test_every_out_path_holds_all_keys_of_its_matrix(name):
    """Two instances that write one file would overwrite each other."""
    definition = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][name]
    keys = ["${key}"] if "foreach" in definition else [f"${{item.{key}}}" for key in definition.get("matrix", {})]
    for path in written(STAGES[name], "outs", "metrics", "plots"):
        assert all(key in path for key in keys), path


def test_no_two_instances_have_the_same_name(instances):
    """DVC joins matrix keys with a hyphen and lets the last of two equal names win without a word."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    definitions = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    expected = 0
    for definition in definitions.values():
        sources = definition.get("matrix", {"key": definition["foreach"]} if "foreach" in definition else {})
        expected += len(list(itertools.product(*(params[source.strip("${}")] for source in sources.values()))))
    assert len({stage.addressing for stage in instances if stage.cmd}) == expected


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_says_in_a_sentence_what_it_does(name):
    assert re.fullmatch(r"[A-Z].{20,110}\.", STAGES[name]["desc"])


@pytest.mark.parametrize("name", STAGES)
def test_stages_are_named_after_their_scripts(name):
    script = "verify-load" if name == "verify-load-fp32" else name
    assert SCRIPTS[name] == f"stages.{script.replace('-', '_')}"
    assert re.fullmatch(r"[a-z0-9-]+", name)


def test_ls_stages_is_the_pipeline():
    assert {f"stages.{path.stem}" for path in (ROOT / "stages").glob("*.py")} == set(SCRIPTS.values())


def test_no_stage_but_train_and_export_and_fetch_data_names_torch():
    for script in set(SCRIPTS.values()) - MAY_IMPORT_TORCH:
        for module in followed(script):
            assert module not in MAY_IMPORT_TORCH
            assert not {name.split(".")[0] for name in imported(module)} & {"torch", "torchvision"}, module


def test_importing_all_other_stages_does_not_load_torch():
    """torch would cost 1.7 s and 650 MB in each of a hundred processes."""
    others = sorted(set(SCRIPTS.values()) - MAY_IMPORT_TORCH)
    code = f"import sys, {', '.join(others)}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_no_stage_imports_a_tool():
    for script in SCRIPTS.values():
        assert not [module for module in followed(script) if module.startswith("stages.tools")]


def test_metrics_and_plots_are_kept_in_git_and_other_outs_in_the_cache():
    """A metric in the cache is a dash in `dvc metrics diff` on a fresh clone."""
    for name, stage in STAGES.items():
        for kind in ("outs", "metrics", "plots"):
            for path, options in written(stage, kind).items():
                in_git = kind != "outs" or path in IN_GIT_BUT_NO_PLOT
                assert options.get("cache", True) is not in_git, f"{name}: {path}"


def test_no_out_lies_in_the_folder_of_shippable_files_but_onnx_files(instances):
    """The benchmark depends on models/<model>/onnx as a whole."""
    outs = [str(out) for stage in instances for out in stage.outs]
    assert all(path.endswith(".onnx") for path in outs if re.match(r"models/[^/]+/onnx/", path) and ".dvc" not in path)


def test_params_yaml_has_no_anchors():
    """`dvc exp run -S` on an anchored block changes nothing, silently."""
    tokens = yaml.scan((ROOT / "params.yaml").read_text())
    assert not [token for token in tokens if isinstance(token, yaml.AnchorToken | yaml.AliasToken)]


def test_every_value_in_params_yaml_has_its_reason_on_the_line():
    for line in (ROOT / "params.yaml").read_text().splitlines():
        if re.match(r" *[\w-]+: *[^ #]", line):
            assert re.search(r" # \S.{5,}", line), line


def test_names_in_params_yaml_are_made_of_a_to_z_digits_and_hyphens():
    """Names are paths, stage names and keys of metrics; `u8/s8`, `None` and `1e-05` would break one of them."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    sections = ("fetch_data", "models", "train", "quantize_dynamic", "calibrate_quantize", "variants")
    for name in [params["dataset"], *(name for section in sections for name in params[section])]:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)


def test_dvc_lock_stays_short():
    """DVC writes it anew after every stage, at 0.13 ms a line; a network with seven variants needs about 2,500."""
    assert len((ROOT / "dvc.lock").read_text().splitlines()) < 2600 * len(
        yaml.safe_load((ROOT / "params.yaml").read_text())["models"]
    )


@pytest.mark.parametrize("script", sorted(set(SCRIPTS.values())))
def test_a_script_explains_itself_and_runs_only_when_it_is_run(script):
    tree = ast.parse(module_path(script).read_text())
    assert f"python -m {script} " in inspect.cleandoc(ast.get_docstring(tree))
    allowed = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef | ast.Assign | ast.Expr | ast.If
    assert all(isinstance(node, allowed) for node in tree.body)
    assert ast.unparse(tree.body[-1]) == "if __name__ == '__main__':\n    run_main(main)"
