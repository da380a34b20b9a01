"""A revision's files (Git's and DVC's), read where they are stored, without checking anything out."""

import io
import os
from pathlib import PurePath, PurePosixPath

import numpy as np
from dvc.api import DVCFileSystem
from dvc.exceptions import DvcException
from dvc_data.index import DataIndexDirError

from stages.common.workspace import UserError, parse_yaml
from stages.tools.lockfile import Lock

WORKSPACE = "workspace"


class NotStored(Exception):
    """A file of a revision is in neither the workspace, Git, the DVC cache nor a remote; the message says what gets it."""


class Revision:
    """A branch, tag, commit or experiment by its `name`, or the workspace. `commit`: its hash, None for the workspace."""

    def __init__(self, name):
        if not name.strip():
            raise UserError(
                "a revision's name is empty: give a branch, tag, commit or experiment name; in a script, look whether its variable is set."
            )
        self.name = name
        try:
            self.files = DVCFileSystem(rev=None if name == WORKSPACE else name)
            self.commit = None if name == WORKSPACE else self.files.repo.get_rev()
            stages = {getattr(stage, "name", None) for stage in self.files.repo.index.stages}  # a .dvc file has no name
            self.lock = Lock(self._read_or_none, stages, self._files_in, self.md5)
        except DvcException as error:
            fix = "give a branch, tag, commit or experiment name, from the root of the repository"
            if name == WORKSPACE:
                fix = "`python -m stages.machine metrics/machine.json` says where, if it is params.yaml"
            raise UserError(f"{name} cannot be read ({error}): {fix}.") from None

    def read(self, path):
        """Return a file's bytes. Raises NotStored."""
        content = self._read_or_none(path)
        if content is None:
            raise NotStored(self._why_not_stored(path))
        return content

    def _read_or_none(self, path):
        try:
            return self.files.read_bytes(path)
        except (FileNotFoundError, IsADirectoryError, DataIndexDirError):
            return None

    def _files_in(self, folder):
        """Return the paths of the files in a folder, without what Python keeps there and what is being written."""
        try:
            found = self.files.find(folder, dvcfiles=True)  # DVC's own MD5 of a folder counts them, too
        except (FileNotFoundError, DataIndexDirError):  # the latter of an output that is a folder, and is not stored
            return []
        return [path for path in found if "__pycache__" not in path and not path.endswith(".tmp")]

    def read_yaml(self, path):
        """Return the content of a YAML or JSON file, an empty dictionary if there is none."""
        return parse_yaml(self._read_or_none(path) or b"", path)

    def read_array(self, path, key=None):
        """Return a stored NumPy array, or the array `key` of an .npz file. Raises NotStored."""
        loaded = np.load(io.BytesIO(self.read(path)), allow_pickle=False)
        return loaded if key is None else loaded[key]

    def outputs(self, pattern):
        """Return the paths of the pipeline's and tracked outputs that match a glob pattern and were made, stored or not.

        From DVC's index, not by walking: on its way a walk opens outputs that are folders, and fails where one is not stored.
        """
        outs = self.files.repo.index.outs
        paths = (self._path_of(out) for out in outs if out.is_in_repo and (out.hash_info or out.exists))
        return sorted(path for path in paths if PurePosixPath(f"/{path}").match(f"/{pattern}"))

    def size(self, path):
        """Return a file's size in bytes, or None if the revision has no such file."""
        return self.files.info(path)["size"] if self.files.exists(path) else None

    def md5(self, path):
        """Return the MD5 that DVC has on record for an output, stored or not, or None."""
        info = self.files.info(path).get("dvc_info") if self.files.exists(path) else None
        return info and info["entry"].hash_info and info["entry"].hash_info.value

    def _stages(self):
        """Return {output: the stage that makes it} of the pipeline; of an output that is tracked by itself, None."""
        repo = self.files.repo
        return {self._path_of(out): getattr(out.stage, "name", None) for out in repo.index.outs if out.is_in_repo}

    def _path_of(self, out):
        return PurePath(os.path.relpath(out.fs_path, self.files.repo.root_dir)).as_posix()

    def _why_not_stored(self, path):
        """Return a sentence: what became of a file that is not there, and what brings it back."""
        stages, checkout = self._stages(), f"`git checkout {self.commit[:7]}` and " if self.commit else ""
        above = map(str, (PurePosixPath(path), *PurePosixPath(path).parents))  # it may be in an output that is a folder
        out = next((part for part in above if part in stages), None)
        if out is None:
            return (
                f"{path} of {self.name} is not there, and no stage makes it: put it there, and commit or `dvc add` it"
            )
        stage, pull = stages[out], f"`dvc pull {out}`"
        if stage is None:
            return f"{path} of {self.name} is not in the cache: get it with {checkout}{pull}"
        if self.lock.maker(out) is None:
            return f"{path} was not made in {self.name}: make it with {checkout}`dvc repro {stage}`"
        return f"{path} of {self.name} is not in the cache: get it with {checkout}`dvc repro {stage}` (or {pull}, where a remote has it)"
