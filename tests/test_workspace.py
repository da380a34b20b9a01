"""Outputs are whole or not there, metrics are strict JSON, and a mistake is one sentence."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from stages.common.workspace import (
    UserError,
    read_metrics,
    read_params,
    run_main,
    scratch_folder,
    whole_file,
    write_metrics,
    write_text,
)


def test_a_file_that_was_begun_and_failed_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), whole_file(tmp_path / "new" / "out.npy") as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert os.listdir(tmp_path / "new") == []


def test_a_failed_rewrite_keeps_the_old_content(tmp_path):
    path = tmp_path / "out.txt"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_writing_never_changes_what_the_output_is_linked_to(tmp_path, link):
    """DVC links the workspace into its cache: a write through the link would damage the cache."""
    cached = tmp_path / "cached"
    cached.write_text("old")
    link(cached, tmp_path / "out.txt")
    write_text(tmp_path / "out.txt", "new")
    assert cached.read_text() == "old" and (tmp_path / "out.txt").read_text() == "new"
    assert not (tmp_path / "out.txt").is_symlink()


def test_a_killed_writer_leaves_only_what_dvc_and_git_ignore(tmp_path, repository):
    code = "import sys, time; from stages.common.workspace import whole_file\n"
    code += "with whole_file(sys.argv[1]) as t: t.write_text('half'); print(flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "out"], cwd=repository, stdout=subprocess.PIPE
    ) as run:
        run.stdout.readline()
        run.kill()
    [left] = os.listdir(tmp_path)
    assert left.endswith(".tmp")
    assert "*.tmp" in (repository / ".dvcignore").read_text().split()
    assert "*.tmp" in (repository / ".gitignore").read_text().split()


def test_an_output_gets_the_usual_permissions(tmp_path):
    (tmp_path / "usual").touch()
    write_text(tmp_path / "out", "")
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (float("nan"), "accuracy is nan; leave out a quantity that is undefined"),
        (float("-inf"), "accuracy is -inf; leave out a quantity that is undefined"),
        (True, "accuracy is True; a metric is a number or a short string"),
        (None, "accuracy is None; a metric is a number or a short string"),
        ([0.9], r"accuracy is \[0.9\]; a metric is a number or a short string"),
        ("x" * 41, "accuracy is a string of 41 characters; 40 fit into a table"),
        ({"top.1": 0.9}, "accuracy: the key 'top.1' has a dot, which metrics diff reads as a level"),
    ],
)
def test_metrics_refuse_what_a_table_cannot_show_truly(tmp_path, value, sentence):
    with pytest.raises(ValueError, match=f"^.*m.json: cnn: {sentence}$"):
        write_metrics(tmp_path / "m.json", {"cnn": {"accuracy": value}})
    assert os.listdir(tmp_path) == []


def test_metrics_keep_every_digit_and_the_order_of_keys(tmp_path):
    metrics = {"b": {"ms": 0.1 + 0.2, "count": 7, "error": "x" * 40}, "a": {"ms": 1e-9}}
    write_metrics(tmp_path / "m.json", metrics)
    assert read_metrics(tmp_path / "m.json") == metrics and list(read_metrics(tmp_path / "m.json")) == ["b", "a"]
    assert (tmp_path / "m.json").read_text().endswith("}\n")


def test_a_parameter_is_found_in_params_yaml_and_in_metrics(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("train: {cnn: {seed: 7}}\n")
    (tmp_path / "machine.json").write_text(json.dumps({"runtimes": {"onnxruntime_1_20_1": 1}}))
    assert read_params("train.cnn") == {"seed": 7} and read_params("train.cnn.seed") == 7
    assert read_params("runtimes", "machine.json") == {"onnxruntime_1_20_1": 1}


def test_a_parameter_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("train: {cnn: {seed: 7}}\n")
    with pytest.raises(UserError, match=r"^params.yaml has no key `train.cnn-small`: add it, or take the stage"):
        read_params("train.cnn-small")


def test_a_scratch_folder_is_empty_and_gone_afterwards(tmp_path):
    """Also where a killed run left one, and where the work fails."""
    left = tmp_path / ".search.tmp" / "big.onnx"
    left.parent.mkdir()
    left.write_text("left")
    with pytest.raises(ZeroDivisionError), scratch_folder(tmp_path, "search") as folder:
        assert folder == left.parent and not list(folder.iterdir())
        (folder / "new").write_text("")
        raise ZeroDivisionError
    assert not folder.exists()


DISK = """
import resource, sys
import numpy as np
from stages.common.workspace import run_main, whole_file
def main(path):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    with whole_file(path) as temporary, open(temporary, "wb") as file:
        {write}
run_main(main)
"""


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        ("np.save(file, np.zeros(100_000))", "cannot be written whole, the disk is full or `ulimit -f` too small: make room"),
        ("file.write(bytes(200_000))", "is larger than the file system or `ulimit -f` allows: raise the limit, or use another disk"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_one_sentence_and_leaves_nothing(tmp_path, repository, write, sentence):
    code, path = DISK.format(write=write), tmp_path / "big.npy"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=repository, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, f"error: {path} {sentence}, and run it again.\n")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_cannot_be_written_is_named_wherever_it_shows(tmp_path, monkeypatch, code):
    """In a file that is being written, by its own name; elsewhere by the one that the system says."""
    path = tmp_path / "out.npy"
    with pytest.raises(UserError, match=f"^{path} cannot be .*: .*, and run it again"), whole_file(path) as temporary:
        raise OSError(code, "said by the system", str(temporary))

    other = path.with_name("images.npy")  # in the folder of the output: what a stage reads
    with pytest.raises(UserError, match=f"^{other} cannot be "), whole_file(path):
        raise OSError(code, "said by the system", str(other))

    def main():
        raise OSError(code, "said by the system", "/somewhere")

    monkeypatch.setattr(sys, "argv", ["stage"])
    with pytest.raises(SystemExit, match=r"^error: /somewhere cannot be "):
        run_main(main)


def test_an_error_that_is_no_disk_s_stays_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["stage"])
    for error in (FileNotFoundError(errno.ENOENT, "no such file", "x"), RuntimeError("a bug"), OSError("no number")):
        with pytest.raises(type(error)) as seen:
            run_main(lambda error=error: (_ for _ in ()).throw(error))
        assert seen.value is error
        with pytest.raises(type(error)), whole_file(tmp_path / "out"):
            raise error


def test_a_stage_that_is_asked_for_help_writes_nothing(tmp_path, repository):
    """`--help` is not the name of its output."""
    command = [sys.executable, "-m", "stages.machine"]
    settings = {
        "cwd": tmp_path,
        "env": {**os.environ, "PYTHONPATH": str(repository)},
        "capture_output": True,
        "text": True,
    }
    helped = subprocess.run([*command, "--help"], **settings, check=True)
    assert helped.stdout.startswith("Write down the machine: ")
    assert helped.stdout.endswith("\n\narguments: metrics_path\n")
    done = subprocess.run([*command, "a.json", "b.json"], **settings, check=False)
    assert (done.returncode, done.stderr) == (
        1, "error: too many positional arguments, arguments: metrics_path; dvc.yaml has the commands of the stages.\n",
    )  # fmt: skip
    assert os.listdir(tmp_path) == []


def test_a_stage_that_is_interrupted_ends_with_one_line_and_exit_code_130(tmp_path, repository):
    code = (
        # in the background of a script, where tests may run, SIGINT is ignored, and children inherit that
        "import signal, time; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from stages.common.workspace import run_main; print('begun', flush=True); "
        "run_main(lambda: (print('works', flush=True), time.sleep(60)))"
    )
    stage = subprocess.Popen(
        [sys.executable, "-c", code], cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert [stage.stdout.readline(), stage.stdout.readline()] == ["begun\n", "works\n"]
    stage.send_signal(signal.SIGINT)
    _, said = stage.communicate(timeout=30)
    assert stage.returncode == 130
    assert said == "interrupted: nothing half-written is left, the same command goes on from here\n"
