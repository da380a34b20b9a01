"""What every stage does with the workspace: read its parameters, write its outputs whole, fail in one sentence.

The module is a dependency of every stage, so it stays small: a change here reruns the pipeline.
"""

import csv
import errno
import inspect
import io
import json
import math
import os
import re
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import yaml

try:
    from yaml import CSafeLoader as _SafeLoader  # libyaml: 13 ms instead of 100
except ImportError:
    from yaml import SafeLoader as _SafeLoader


class UserError(Exception):
    """A mistake that the user can mend. The message is one sentence that names the thing and the fix."""


# What is wrong where a file cannot be written, and what helps, by the system's number of the error.
WRITE_FAULTS = {
    errno.ENOSPC: ("cannot be written, the disk is full", "make room"),
    errno.EDQUOT: ("cannot be written, your share of the disk is used up", "make room"),
    errno.EFBIG: ("is larger than the file system or `ulimit -f` allows", "raise the limit, or use another disk"),
    errno.EROFS: ("cannot be written, the file system is read-only", "mount it writable, or work in another folder"),
    errno.EACCES: ("cannot be opened, there is no permission", "make the file and its folder yours to read and write"),
    errno.EPERM: ("cannot be changed, there is no permission", "make the file and its folder yours to read and write"),
}


class _Loader(_SafeLoader):
    """YAML 1.1 reads `1e-5` and `1.5e5` as text; DVC, which reads YAML 1.2, as numbers. This loader agrees with DVC."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def load_params(path="params.yaml"):
    """Return the whole of a parameter file as a dictionary.

    Raises UserError if the file is missing or is not YAML.
    """
    try:
        return parse_yaml(Path(path).read_bytes(), path)
    except FileNotFoundError:
        raise UserError(f"{path} is not here: run the stage from the root of the repository.") from None


def parse_yaml(content, name):
    """Return the dictionary in YAML or JSON bytes; `name` is for the UserError of what is not YAML."""
    try:
        return yaml.load(content, Loader=_Loader) or {}  # noqa: S506 -- a SafeLoader with one more number format
    except yaml.YAMLError as error:
        raise UserError(f"{name} is not valid YAML: {' '.join(str(error).split())}.") from None


def read_params(key, path="params.yaml"):
    """Return the value of a dotted `key` ("train.cnn") of params.yaml, or of another YAML or JSON file.

    A stage reads exactly the keys that it declares in dvc.yaml; a test holds the two against each other.
    """
    value = load_params(path)
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise UserError(f"{path} has no key `{key}`: add it, or take the stage that needs it out of dvc.yaml.")
        value = value[part]
    return value


@contextmanager
def whole_file(path):
    """Yield a temporary path; when the block ends without an error it becomes `path`, else nothing is left.

    The temporary file lies beside `path` (a rename does not cross file systems) and ends in .tmp, which DVC ignores.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        # A workspace file may be a link into the DVC cache: replace the link, never write through it.
        os.replace(temporary, path)
    except Exception as error:
        sentence = write_fault(error, path)
        if sentence is None:
            raise
        raise UserError(sentence) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_fault(error, path=None):
    """Return a sentence for an error that comes of a disk that cannot be written, None for any other.

    `path` is what was being written, where the error does not say. Of a disk that is full NumPy says only how much of an
    array was written; torch raises an error of its own in the course of the system's.
    """
    while isinstance(error, RuntimeError):
        error = error.__cause__ or error.__context__
    if not isinstance(error, OSError):
        return None
    if error.errno is None and re.search(r"\d+ requested and \d+ written", str(error)):
        reason, fix = "cannot be written whole, the disk is full or `ulimit -f` too small", "make room"
    elif error.errno in WRITE_FAULTS:
        reason, fix = WRITE_FAULTS[error.errno]
    else:
        return None
    named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else path
    if path is not None and named is not None and named.name.startswith(f".{path.name}."):
        named = path  # not the temporary file beside it
    return f"{named or 'a file'} {reason}: {fix}, and run it again."


@contextmanager
def scratch_folder(parent, name):
    """Yield an empty folder in `parent` that is gone when the block ends; what a killed run left there goes first.

    Its name ends in .tmp, as above. It is for work of which only one can run at a time.
    """
    folder = Path(parent) / f".{name}.tmp"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_text(path, text):
    """Write a text file (UTF-8, whole or not at all)."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_table(path, columns, rows):
    """Write rows as CSV with a header line (whole or not at all)."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    write_text(path, text.getvalue())


def write_metrics(path, metrics):
    """Write nested dictionaries of numbers and short strings as strict JSON.

    Refuses what a metrics table cannot show truly: NaN and infinity, lists, booleans, dots in keys, long strings.
    """
    _check_metrics(metrics, where=str(path))
    write_text(path, json.dumps(metrics, indent=2, allow_nan=False) + "\n")


def _check_metrics(value, where):
    if isinstance(value, dict):
        for key, inner in value.items():
            if "." in key:
                raise ValueError(f"{where}: the key {key!r} has a dot, which metrics diff reads as a level")
            _check_metrics(inner, f"{where}: {key}")
    elif isinstance(value, str):
        if len(value) > 40:
            raise ValueError(f"{where} is a string of {len(value)} characters; 40 fit into a table")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} is {value!r}; a metric is a number or a short string")
    elif not math.isfinite(value):
        raise ValueError(f"{where} is {value}; leave out a quantity that is undefined")


def read_metrics(path):
    """Return the content of a metrics file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def run_main(main):
    """Run a stage's `main` on the command line's arguments; a UserError becomes one sentence on stderr, exit code 1.

    So does a disk that cannot be written. Ctrl-C ends it with one line and exit code 130, as a shell has it. `--help`
    prints what the module says of itself.
    """
    if {"-h", "--help"} & set(sys.argv[1:]):
        return print(f"{inspect.getmodule(main).__doc__.strip()}\n\n{_usage(main)}")
    try:
        _check_arguments(main)
        main(*sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted: nothing half-written is left, the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        sentence = write_fault(error)
        if sentence is None:
            raise
        sys.exit(f"error: {sentence}")


def _usage(main):
    """Return the names of the arguments on the command line, which are those of `main`."""
    return f"arguments: {' '.join(inspect.signature(main).parameters) or 'none'}"


def _check_arguments(main):
    """Raise UserError if the command line has other arguments than `main` takes."""
    try:
        inspect.signature(main).bind(*sys.argv[1:])
    except TypeError as error:
        raise UserError(f"{error}, {_usage(main)}; dvc.yaml has the commands of the stages.") from None
