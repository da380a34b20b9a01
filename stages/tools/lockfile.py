"""What dvc.lock says of a result: which stage made it, and whether the revision's settings would make the same.

An experiment that ran one target has the other targets' old results beside its new parameters, and `dvc exp show` prints
them as its own. dvc.lock has the truth: the parameters and dependencies with which each stage ran.
"""

import hashlib
import json

from stages.common.workspace import parse_yaml


class Lock:
    """A revision's dvc.lock.

    `read(path)` returns the bytes of a Git-tracked file of that revision, or None; `walk(path)` the paths of the files in a
    folder. `stages` are the names of its pipeline's stages, where they are known: DVC never takes a removed stage out of
    dvc.lock.
    """

    def __init__(self, read, stages=None, walk=lambda path: [], recorded=lambda path: None):
        self._read, self._walk, self._recorded, self._parsed, self._below = read, walk, recorded, {}, {}
        locked = self._content("dvc.lock").get("stages", {})
        self.stages = {name: entry for name, entry in locked.items() if stages is None or name in stages}
        self.outs = {
            out["path"]: (stage, out.get("md5"))
            for stage, entry in self.stages.items()
            for out in entry.get("outs", [])
        }

    def _content(self, path):
        if path not in self._parsed:
            self._parsed[path] = parse_yaml(self._read(path) or b"", path)
        return self._parsed[path]

    def md5(self, path):
        """Return the MD5 of an output, or None if no stage made it."""
        return self.outs.get(path, (None, None))[1]

    def maker(self, path):
        """Return the name of the stage that made an output, or None."""
        return self.outs.get(path, (None, None))[0]

    def upstream(self, path):
        """Return the stages that an output depends on, the one that made it first."""
        found, paths = [], [path]
        while paths:
            stage = self.maker(paths.pop(0))
            if stage and stage not in found:
                found.append(stage)
                paths += [inner for dep in self._deps(stage) for inner in self._members(dep["path"])]
        return found

    def stale_because(self, path):
        """Return why an output is not what the revision's parameters make ("calibrate.seed is 4 and it ran with 0"), or None."""
        for stage in self.upstream(path):
            for file, values in self.stages[stage].get("params", {}).items():
                for key, value in values.items():
                    difference = first_difference(key, lookup(self._content(file), key), value)
                    if difference:
                        return difference_in_words(*difference)
            for dep in self._deps(stage):
                made = self._made(dep["path"])
                # A variant that was taken out leaves its files in folders that others depend on: as they are is right, too.
                if made and dep.get("md5") != made and dep.get("md5") != self._stored(dep["path"]):
                    is_folder = dep["path"] not in self.outs
                    rest = (
                        ", or holds what a variant that was taken out has left there: delete that" if is_folder else ""
                    )
                    return f"{dep['path']} is newer{rest}"
        return None

    def code_changed(self, path):
        """Return the Git-tracked dependencies of an output, direct and indirect, that changed after their stage ran."""
        changed = set()
        for stage in self.upstream(path):
            for dep in self._deps(stage):
                stored = None if self._members(dep["path"]) else self._stored(dep["path"])
                if stored and stored != dep.get("md5"):
                    changed.add(dep["path"])
        return sorted(changed)

    def _deps(self, stage):
        return self.stages[stage].get("deps", [])

    def _members(self, path):
        """Return the outputs at or below a path: a dependency may be the folder of many."""
        if path not in self._below:
            self._below[path] = (
                [path] if path in self.outs else [out for out in self.outs if out.startswith(f"{path}/")]
            )
        return self._below[path]

    def _made(self, path):
        """Return the MD5 that a dependency would have now, or None if no stage makes it. A folder's is DVC's own."""
        if path in self.outs:
            return self.md5(path)
        return folder_md5(path, {out: self.md5(out) for out in self._members(path)})

    def _stored(self, path):
        """Return the MD5 of a file, or of a folder as DVC counts it, as the revision has it; None if it is not there."""
        content = self._read(path)
        if content is not None:
            return md5_of(content)
        files = {
            file: self.md5(file) or self._recorded(file) or md5_of(self._read(file) or b"") for file in self._walk(path)
        }
        return files.get(path) or folder_md5(path, files)  # a file that is tracked and not in the cache is its own walk


def md5_of(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def folder_md5(path, files):
    """Return DVC's MD5 of a folder from {path of a file in it: its MD5}; None of an empty one."""
    entries = [{"md5": md5, "relpath": file.removeprefix(f"{path}/")} for file, md5 in files.items()]
    entries.sort(key=lambda entry: entry["relpath"].split("/"))
    return f"{md5_of(json.dumps(entries, sort_keys=True).encode())}.dir" if entries else None


def lookup(settings, key):
    """Return the value of a dotted key in nested dictionaries, or None."""
    for part in key.split("."):
        settings = settings.get(part) if isinstance(settings, dict) else None
    return settings


def difference_in_words(key, now, then):
    """Return what became of a parameter: "calibrate.seed is 4 and it ran with 0"; None is a key that is not there."""
    is_now = "is gone" if now is None else f"is {now}"
    return f"{key} {is_now} and it ran {'without it' if then is None else f'with {then}'}"


def first_difference(key, now, then):
    """Return (key, now, then) of the first leaf in which two parameter values differ, or None."""
    if isinstance(now, dict) and isinstance(then, dict):
        leaves = (first_difference(f"{key}.{name}", now.get(name), then.get(name)) for name in {**then, **now})
        return next(filter(None, leaves), None)
    return None if now == then else (key, now, then)
