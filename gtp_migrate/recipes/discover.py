"""Paths as given on the command line → the recipe files they mean."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple

_SUFFIXES = (".yaml", ".yml")


class Found(NamedTuple):
    """One recipe file.

    A recipe is named by the folder it is reached in: `defaults:` is relative to the link, where the file is
    a symbolic link, as it is for NeMo-RL.
    """

    #: Real path of the folder, and the name in it: one id for one recipe.
    id: str
    #: As a person would name it, relative to the current folder where it is below.
    shown: str
    #: The file itself, behind all links: what is written.
    real: str


def parent_id(folder: str, path: str, known: Container[str]) -> str:
    """The id of the recipe that one in `folder` (a real path) names by `path`.

    Args:
        folder: the real path of the folder.
        path: as written in `defaults:`.
        known: ids of recipes; asking the disk can be spared for these.
    """
    joined = os.path.join(folder, path)
    plain = os.path.normpath(joined)
    # Without a link on the way the two are one; a `..` behind a name is where it would matter.
    if plain in known and not _UP_AGAIN.search(path):
        return plain
    return recipe_id(joined)


_UP_AGAIN = re.compile(r"[^./]/+\.\./|\.\.\./")


def recipe_id(path: str) -> str:
    """The id of the recipe at `path`, which need not exist."""
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(folder), name)


def found(path: str, shown: str | None = None) -> Found:
    """The recipe at `path`."""
    identity = recipe_id(path)
    real = os.path.realpath(identity) if os.path.islink(identity) else identity
    return Found(identity, shown or shorten(identity), real)


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
    #: The folder's real path.
    real: str
    names: list[str]
    #: Those of the names that are symbolic links.
    links: set[str]

    def found(self, name: str) -> Found:
        """The recipe of this name."""
        identity = f"{self.real}/{name}"
        return Found(identity, self.prefix + name, os.path.realpath(identity) if name in self.links else identity)


def discover(paths: Iterable[str], unreadable: Unreadable = lambda *_: None) -> Iterator[Folder]:
    """The recipes in `paths`, each once: a file named itself, a folder's `*.yaml` and `*.yml` at any depth.

    Links are followed; a folder reached a second time, also by a loop, is not entered again.

    Raises:
        OSError: one of the paths does not exist.
    """
    named: set[str] = set()
    walked: set[str] = set()
    for path in paths:
        if os.path.isdir(path):
            for folder in _walk(path, walked, unreadable):
                if named:
                    folder.names[:] = [name for name in folder.names if f"{folder.real}/{name}" not in named]
                yield folder
        else:
            os.stat(path)
            folder_path, name = os.path.split(os.path.normpath(path))
            real = os.path.realpath(folder_path)
            is_walked = real in walked and name.endswith(_SUFFIXES)
            if not is_walked and f"{real}/{name}" not in named:
                named.add(f"{real}/{name}")
                prefix = os.path.join(folder_path, "") if folder_path else ""
                yield Folder(prefix, real, [name], {name} if os.path.islink(path) else set())


def _walk(folder: str, seen: set[str], unreadable: Unreadable) -> Iterator[Folder]:
    folder = os.path.normpath(folder)
    pending = [(folder, os.path.realpath(folder))]
    while pending:
        shown, real = pending.pop()
        if real in seen:
            continue
        seen.add(real)
        prefix = "" if shown == "." else os.path.join(shown, "")
        folders, names, links = [], [], set()
        try:
            with os.scandir(shown) as listing:
                for entry in listing:
                    name = entry.name
                    if entry.is_symlink() and not os.path.exists(entry.path):
                        continue
                    if entry.is_dir():
                        if name != ".git":
                            path = f"{real}/{name}"
                            folders.append((prefix + name, os.path.realpath(path) if entry.is_symlink() else path))
                    elif name.endswith(_SUFFIXES) and entry.is_file():
                        names.append(name)
                        if entry.is_symlink():
                            links.add(name)
        except OSError as error:
            unreadable(shown, error)
            continue
        names.sort()
        yield Folder(prefix, real, names, links)
        pending.extend(sorted(folders, reverse=True))


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
