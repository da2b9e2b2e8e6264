"""Paths as given on the command line → the recipe files they mean."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable, Iterator
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


def discover(paths: Iterable[str], unreadable: Unreadable = lambda *_: None) -> Iterator[Found]:
    """The recipes in `paths`, each once: a file named itself, a folder's `*.yaml` and `*.yml` at any depth.

    Links are followed; a folder reached a second time, also by a loop, is not entered again.

    Raises:
        OSError: one of the paths does not exist.
    """
    seen_files: set[str] = set()
    seen_folders: set[str] = set()
    for path in paths:
        if os.path.isdir(path):
            files = _walk(path, seen_folders, unreadable)
        else:
            os.stat(path)
            files = iter([found(path, shown=os.path.normpath(path))])
        for file in files:
            if file.id not in seen_files:
                seen_files.add(file.id)
                yield file


def _walk(folder: str, seen: set[str], unreadable: Unreadable) -> Iterator[Found]:
    pending = [os.path.normpath(folder)]
    while pending:
        shown = pending.pop()
        real = os.path.realpath(shown)
        if real in seen:
            continue
        seen.add(real)
        prefix = "" if shown == "." else os.path.join(shown, "")
        try:
            with os.scandir(shown) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            unreadable(shown, error)
            continue
        folders = []
        for entry in entries:
            name = entry.name
            if entry.is_dir():
                if name != ".git":
                    folders.append(prefix + name)
            elif name.endswith(_SUFFIXES) and entry.is_file():
                identity = f"{real}/{name}"
                yield Found(identity, prefix + name, os.path.realpath(identity) if entry.is_symlink() else identity)
        pending.extend(reversed(folders))


def is_excluded(file: Found, globs: Iterable[str]) -> bool:
    """Whether a glob names the file: matched against the path as shown, its tail, and its folders."""
    shown = file.shown.replace(os.sep, "/")
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
