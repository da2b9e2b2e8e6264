"""Paths as given on the command line → the recipe files they mean."""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

_SUFFIXES = (".yaml", ".yml")


class Found(NamedTuple):
    """One recipe file.

    A recipe is named by the path it is reached by, `..` taken by name, as OmegaConf opens files: a file that is
    reached through a link to it or to its folder is another recipe, whose `defaults:` are relative to the link.
    """

    #: Absolute and normalized by name.
    id: str
    #: As a person would name it, relative to the current folder where it is below.
    shown: str
    #: The file itself, behind all links: what is written.
    real: str


def recipe_id(path: str) -> str:
    """The id of the recipe at `path`, which need not exist.

    Source: `OmegaConf.load`, which opens `os.path.abspath(path)`.
    """
    return os.path.abspath(path)


def found(path: str) -> Found:
    """The recipe at `path`."""
    identity = recipe_id(path)
    return Found(identity, shorten(identity), os.path.realpath(identity))


def shorten(path: str) -> str:
    """`path` relative to the current folder where it is below it, else as it is."""
    here = os.getcwd()
    return path[len(here) + 1 :] if path.startswith(here + os.sep) else path


#: Called with a folder that cannot be listed, and why.
Unreadable = Callable[[str, OSError], None]


class Folder(NamedTuple):
    """The recipe files of one folder."""

    #: What stands before a name to show it to a person: the folder as it was reached, with a `/`, or nothing.
    prefix: str
    #: The folder by name, and behind all links.
    path: str
    real: str
    names: list[str]
    #: Those of the names that are symbolic links.
    links: set[str]

    def found(self, name: str) -> Found:
        """The recipe of this name."""
        real = f"{self.real}/{name}"
        return Found(f"{self.path}/{name}", self.prefix + name, os.path.realpath(real) if name in self.links else real)


#: Folders that hold no recipes of one's own.
_NOT_OURS = frozenset({".git", ".venv", "node_modules", "site-packages"})


def discover(
    paths: Iterable[str], unreadable: Unreadable = lambda *_: None, stay_inside: bool = False
) -> Iterator[Folder]:
    """The recipes in `paths`, each once: a file named itself, a folder's `*.yaml` and `*.yml` at any depth.

    Links are followed, but not into a folder that they are in themselves.

    Args:
        paths: files and folders.
        unreadable: told what cannot be listed.
        stay_inside: follow no link to a folder that leads out of the given one.

    Raises:
        OSError: one of the paths does not exist.
    """
    named: set[str] = set()
    walked: set[str] = set()
    for path in paths:
        if os.path.isdir(path):
            for folder in _walk(path, walked, unreadable, stay_inside):
                if named:
                    folder.names[:] = [name for name in folder.names if f"{folder.path}/{name}" not in named]
                yield folder
        else:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise OSError(errno.EINVAL, "neither a file nor a folder", path)
            above, name = os.path.split(os.path.normpath(path))
            absolute = os.path.abspath(above)
            is_walked = absolute in walked and name.endswith(_SUFFIXES)
            if not is_walked and f"{absolute}/{name}" not in named:
                named.add(f"{absolute}/{name}")
                prefix = os.path.join(above, "") if above else ""
                yield Folder(
                    prefix, absolute, os.path.realpath(absolute), [name], {name} if os.path.islink(path) else set()
                )


def _walk(folder: str, walked: set[str], unreadable: Unreadable, stay_inside: bool) -> Iterator[Folder]:
    folder = os.path.normpath(folder)
    inside = os.path.join(os.path.realpath(folder), "")
    pending = [(folder, os.path.abspath(folder), os.path.realpath(folder), frozenset[str]())]
    while pending:
        shown, path, real, around = pending.pop()
        if path in walked:
            continue
        walked.add(path)
        prefix = "" if shown == "." else os.path.join(shown, "")
        folders, names, links = [], [], set()
        try:
            with os.scandir(shown) as listing:
                for entry in listing:
                    name = entry.name
                    is_link = entry.is_symlink()
                    if is_link and not os.path.exists(entry.path):
                        continue
                    if entry.is_dir():
                        if name not in _NOT_OURS:
                            behind = os.path.realpath(entry.path) if is_link else f"{real}/{name}"
                            folders.append((prefix + name, f"{path}/{name}", behind))
                    elif name.endswith(_SUFFIXES) and entry.is_file():
                        names.append(name)
                        if is_link:
                            links.add(name)
        except OSError as error:
            unreadable(shown, error)
            continue
        names.sort()
        yield Folder(prefix, path, real, names, links)
        for name, below, behind in sorted(folders, reverse=True):
            # A link that leads up leads round in a circle.
            leads_out = stay_inside and not behind.startswith(inside)
            if not leads_out and behind != real and behind not in around and not real.startswith(behind + os.sep):
                pending.append((name, below, behind, around | {real}))


def is_excluded(shown: str, globs: Iterable[str]) -> bool:
    """Whether a glob names the file: matched against the path as shown, its tail, and its folders."""
    shown = shown.replace(os.sep, "/")
    parts = shown.split("/")
    for glob in globs:
        pattern = glob.rstrip("/")
        for start in range(len(parts)):
            for stop in range(start + 1, len(parts) + 1):
                if fnmatch.fnmatchcase("/".join(parts[start:stop]), pattern):
                    return True
    return False


def surroundings(paths: Iterable[str]) -> list[str]:
    """Folders in which other recipes may inherit from the ones given: the git checkouts around them, else
    the folders that hold the files named."""
    roots: dict[str, None] = {}
    for path in paths:
        real = os.path.realpath(path)
        folder = real if os.path.isdir(real) else os.path.dirname(real)
        root = folder
        while not os.path.exists(os.path.join(root, ".git")):
            above = os.path.dirname(root)
            if above == root:
                root = folder
                break
            root = above
        roots[root] = None
    return list(roots)
