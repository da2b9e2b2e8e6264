"""Paths as given on the command line → the recipe files they mean."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

_SUFFIXES = (".yaml", ".yml")
#: What a run puts down beside the first file of a group, until it has written the last one.
UNFINISHED = ".gtp-migrate-unfinished"


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
#: Called with a link to a folder, and where it leads.
NotFollowed = Callable[[str, str], None]
#: Called with what a run has put down that was stopped.
Unfinished = Callable[[str], None]


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
    paths: Iterable[str],
    unreadable: Unreadable = lambda *_: None,
    not_followed: NotFollowed = lambda *_: None,
    unfinished: Unfinished = lambda *_: None,
) -> Iterator[Folder]:
    """The recipes in `paths`, each once: a file named itself, a folder's `*.yaml` and `*.yml` at any depth.

    A link to a folder is followed once, and only to where it leads into the folders that are given. Of `paths`
    themselves, all links are followed.

    Args:
        paths: files and folders.
        unreadable: told what cannot be listed.
        not_followed: told of links to folders that lead out of the given ones.
        unfinished: told of every :data:`UNFINISHED` in a folder that is given, or that a given file is in.

    Raises:
        OSError: one of the paths does not exist.
    """
    is_folder = {path: os.path.isdir(path) for path in paths}
    inside = tuple(os.path.join(os.path.realpath(path), "") for path in is_folder if is_folder[path])
    walk = _Walk(inside, unreadable, not_followed, unfinished)
    looked_at: set[str] = set()
    named: set[str] = set()
    for path in is_folder:
        if is_folder[path]:
            for folder in walk.below(path):
                if named:
                    folder.names[:] = [name for name in folder.names if f"{folder.path}/{name}" not in named]
                yield folder
        else:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise OSError(errno.EINVAL, "neither a file nor a folder", path)
            above, name = os.path.split(os.path.normpath(path))
            absolute = os.path.abspath(above)
            is_walked = absolute in walk.done and name.endswith(_SUFFIXES)
            if not is_walked and f"{absolute}/{name}" not in named:
                named.add(f"{absolute}/{name}")
                prefix = os.path.join(above, "") if above else ""
                if absolute not in looked_at and absolute not in walk.done and os.path.lexists(prefix + UNFINISHED):
                    unfinished(prefix + UNFINISHED)
                looked_at.add(absolute)
                yield Folder(
                    prefix, absolute, os.path.realpath(absolute), [name], {name} if os.path.islink(path) else set()
                )


class _Below(NamedTuple):
    """A folder to walk."""

    #: How a person would name it.
    shown: str
    #: By name, and behind all links.
    path: str
    real: str
    #: The real folders that hold the links on the way to it.
    around: tuple[str, ...]


class _Walk:
    def __init__(
        self, inside: tuple[str, ...], unreadable: Unreadable, not_followed: NotFollowed, unfinished: Unfinished
    ) -> None:
        self.inside = inside
        self.unreadable = unreadable
        self.not_followed = not_followed
        self.unfinished = unfinished
        #: Folders walked, by name.
        self.done: set[str] = set()
        #: Links followed, by where they really are: links to each other would lead to more names than can be walked.
        self.links: set[str] = set()

    def below(self, folder: str) -> Iterator[Folder]:
        folder = os.path.normpath(folder)
        pending = [_Below(folder, os.path.abspath(folder), os.path.realpath(folder), ())]
        while pending:
            each = pending.pop()
            if each.path in self.done:
                continue
            self.done.add(each.path)
            prefix = "" if each.shown == "." else os.path.join(each.shown, "")
            found = Folder(prefix, each.path, each.real, [], set())
            folders: list[_Below] = []
            try:
                with os.scandir(each.shown) as listing:
                    for entry in listing:
                        if entry.is_symlink():
                            self._look_behind(entry, found, folders, each)
                        elif entry.is_dir():
                            if entry.name not in _NOT_OURS:
                                name = entry.name
                                below = f"{each.path}/{name}", f"{each.real}/{name}"
                                folders.append(_Below(prefix + name, *below, each.around))
                        elif entry.name.endswith(_SUFFIXES) and entry.is_file():
                            found.names.append(entry.name)
                        elif entry.name == UNFINISHED:
                            self.unfinished(prefix + UNFINISHED)
            except OSError as error:
                self.unreadable(each.shown, error)
                continue
            found.names.sort()
            yield found
            pending.extend(sorted(folders, reverse=True))

    def _look_behind(self, link: os.DirEntry[str], found: Folder, folders: list[_Below], each: _Below) -> None:
        try:
            mode = os.stat(link.path).st_mode
        except OSError as error:
            # One that leads nowhere, or in a circle, is nobody's recipe.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self.unreadable(found.prefix + link.name, error)
            return
        if stat.S_ISREG(mode) and link.name.endswith(_SUFFIXES):
            found.names.append(link.name)
            found.links.add(link.name)
        elif stat.S_ISDIR(mode) and link.name not in _NOT_OURS:
            behind = os.path.realpath(link.path)
            if not os.path.join(behind, "").startswith(self.inside):
                self.not_followed(found.prefix + link.name, behind)
                return
            around = (*each.around, each.real)
            leads_round = any(os.path.join(real, "").startswith(os.path.join(behind, "")) for real in around)
            if not leads_round and f"{each.real}/{link.name}" not in self.links:
                self.links.add(f"{each.real}/{link.name}")
                folders.append(_Below(found.prefix + link.name, f"{each.path}/{link.name}", behind, around))
