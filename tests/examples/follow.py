"""Follow an example to the letter: clone this repository, run there what the example's README tells, keep what is printed.

python -m tests.examples.follow text-angle ../run      # the clone is ../run; then see record.py
"""

import os
import subprocess
import sys
from pathlib import Path

from stages.common.workspace import UserError, run_main

HERE = Path(__file__).parent


def commands(readme):
    """Return the commands of a Markdown text: the lines that begin with `$ ` in its fenced blocks."""
    found, fenced = [], False
    for line in readme.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced and line.startswith("$ "):
            found.append(line.removeprefix("$ "))
    return found


def run(command, folder):
    """Run a shell command in a folder, with this Python first on PATH; return what it printed. Raises RuntimeError with it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(  # noqa: S602 -- the README's own lines, as a reader types them into a shell
        command, cwd=folder, env=os.environ | {"PATH": path}, shell=True, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"`{command}` failed: {done.stdout}")
    return done.stdout


def main(example, folder):
    readme = HERE / example / "README.md"
    if not readme.is_file():
        raise UserError(
            f"there is no example {example!r}: take one of {', '.join(path.parent.name for path in sorted(HERE.glob('*/README.md')))}."
        )
    if Path(folder).exists():
        raise UserError(f"{folder} is there already: name a folder that is not, for a new clone.")
    subprocess.run(["git", "clone", "--quiet", str(HERE.parents[1]), folder], check=True)
    for command in commands(readme.read_text(encoding="utf-8")):
        print(f"$ {command}\n{run(command, folder)}", flush=True)


if __name__ == "__main__":
    run_main(main)
