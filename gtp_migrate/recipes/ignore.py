"""Which files patterns leave out, by the rules of gitignore: those of `--exclude`, and those of `.gitignore` files.

As in git, each folder on the way to a file is looked at first, from the top: below one that is left out, nothing can be
taken in again. The last pattern that names a file or folder decides.

Source: gitignore(5).
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pathspec import GitIgnoreSpec

_Names = tuple[str, ...]
#: Any number of folders.
_ANY = "**"


class _Pattern(NamedTuple):
    """One line."""

    text: str
    #: The names from the root to the folder that it is relative to.
    base: _Names
    #: Below it, a glob for each name; `**` for any number of them, at the end for at least one.
    globs: _Names
    takes_in: bool
    folders_only: bool

    def names(self, entry: _Names, is_folder: bool) -> bool:
        """Whether it names this file or folder itself."""
        size = len(self.base)
        if (self.folders_only and not is_folder) or entry[:size] != self.base:
            return False
        # How many of the names each glob can have reached, as they go by.
        reached = {size}
        for index, glob in enumerate(self.globs):
            if glob != _ANY:
                reached = {spot + 1 for spot in reached if spot < len(entry) and _matches(glob, entry[spot])}
            elif reached:
                reached = set(range(min(reached) + (index == len(self.globs) - 1), len(entry) + 1))
        return len(entry) in reached


def _pattern(line: str, base: _Names) -> _Pattern | None:
    """The pattern in a line of a `.gitignore` in this folder, if there is one."""
    if not line.endswith("\\ "):
        line = line.rstrip(" ")
    if line.startswith("#"):
        return None
    text = line.removeprefix("!")
    parts = tuple(text.removesuffix("/").removeprefix("/").split("/"))
    # One without a slash, but at its end, names what is so called at any depth.
    globs = parts if "/" in text[:-1] else (_ANY, *("*" if part == _ANY else part for part in parts))
    if "" in parts or not all(map(_is_glob, parts)):
        return None
    return _Pattern(line, base, globs, line.startswith("!"), text.endswith("/"))


@functools.lru_cache(maxsize=1 << 16)
def _matches(glob: str, name: str) -> bool:
    return _glob(glob).match_file(name.replace("\n", "\0"))


@functools.lru_cache(maxsize=1 << 10)
def _glob(text: str) -> GitIgnoreSpec:
    """A glob for one name. A name holds no NUL; unlike the end of a line, a glob takes that for any character."""
    escaped = re.sub(r"^(?=[!#])|(?<!\\)(?=\s\Z)", r"\\", text)
    return GitIgnoreSpec.from_lines([escaped.replace("\n", "\0")])


def _is_glob(text: str) -> bool:
    """Whether it is one: git passes over what is none, such as `[z-a]`."""
    with contextlib.suppress(ValueError, re.error):
        return _glob(text) is not None
    return False


class _LeftOut(NamedTuple):
    files: set[str]
    #: The patterns that decided about anything.
    decided: set[_Pattern]


def _left_out(files: Iterable[str], top: str, rules: Callable[[_Names], Sequence[_Pattern]]) -> _LeftOut:
    """What of the files below a folder is left out.

    Args:
        files: absolute paths.
        top: the folder.
        rules: the patterns for what is in a folder, those that count most first; asked from the top down.
    """
    folders = {_split(top): False}
    decided: set[_Pattern] = set()

    def says(entry: _Names, is_folder: bool) -> bool:
        for pattern in rules(entry[:-1]):
            if pattern.names(entry, is_folder):
                decided.add(pattern)
                return not pattern.takes_in
        return False

    def is_left_out(file: _Names) -> bool:
        known = len(file) - 1
        while file[:known] not in folders:
            known -= 1
        for end in range(known + 1, len(file)):
            folders[file[:end]] = folders[file[: end - 1]] or says(file[:end], is_folder=True)
        return folders[file[:-1]] or says(file, is_folder=False)

    return _LeftOut({file for file in files if is_left_out(_split(file))}, decided)


def _split(path: str) -> _Names:
    return tuple(name for name in path.split(os.sep) if name)


# -- --exclude -----------------------------------------------------------------------------------------


class Excluded(NamedTuple):
    """What `--exclude` comes to."""

    #: Absolute paths.
    files: set[str]
    #: The patterns that name none of the files; with a `!`, those that take in none again.
    unmatched: tuple[str, ...]


def excluded(patterns: Sequence[str], given: Iterable[str], files: Iterable[str]) -> Excluded:
    """Those of the files that `--exclude` names.

    Patterns are relative to the current folder, as in a `.gitignore` there. Beyond gitignore's rules, one that starts
    with `./` or `../` names what it names, and so does an absolute path: one whose first name is in the root and not
    in the current folder. One without a slash, which names files and folders at any depth, does so also below the
    given paths that lie outside of the current folder.

    Args:
        patterns: later ones win.
        given: the files and folders that a person named.
        files: absolute paths.
    """
    here = _split(os.getcwd())
    bases = {here: None}
    for path in map(os.path.abspath, given):
        base = _split(path if os.path.isdir(path) else os.path.dirname(path))
        if base[: len(here)] != here:
            bases[base] = None
    rules = [(text, pattern) for text in patterns for pattern in _of_option(text, here, list(bases))]
    last_first = [pattern for _, pattern in reversed(rules)]
    paths = {path: _split(path) for path in files}
    left_out, decided = _left_out(paths, os.sep, lambda _: last_first)
    folders = {path[:end] for path in {path[:-1] for path in paths.values()} for end in range(len(path) + 1)}
    matched = {text for text, pattern in rules if pattern.takes_in and pattern in decided}
    for text, pattern in rules:
        if not pattern.takes_in and text not in matched:
            names_any = any(pattern.names(folder, is_folder=True) for folder in folders)
            if names_any or any(pattern.names(path, is_folder=False) for path in paths.values()):
                matched.add(text)
    return Excluded(left_out, tuple(text for text in dict.fromkeys(patterns) if text not in matched))


def _of_option(text: str, here: _Names, bases: list[_Names]) -> Iterator[_Pattern]:
    """What a pattern of the command line says."""
    negation, path = ("!", text[1:]) if text.startswith("!") else ("", text)
    if not path.strip("/"):
        return
    parts = path.split("/")
    is_floating = parts[0] == _ANY or ("/" not in path[:-1] and parts[0] not in (".", ".."))
    starts = bases if is_floating else [() if _is_absolute(parts, here) else here]
    for start in starts:
        base, below = (start, path) if is_floating else _by_name(start, parts)
        if not below:
            yield _Pattern(text, base, (), bool(negation), folders_only=True)
        elif pattern := _pattern(negation + below, base):
            yield pattern


def _is_absolute(parts: list[str], here: _Names) -> bool:
    """Whether a pattern that starts with a `/` means the root: where the current folder has nothing of that name."""
    is_in_root = parts[0] == "" and os.path.lexists(os.sep + parts[1])
    return is_in_root and not os.path.lexists(os.path.join(os.sep, *here, parts[1]))


def _by_name(folder: _Names, parts: list[str]) -> tuple[_Names, str]:
    """The folder that a pattern starts from, and the rest of the pattern, with `.` and `..` taken by name."""
    below: list[str] = []
    for part in parts:
        if part == ".." and below:
            below.pop()
        elif part == "..":
            folder = folder[:-1]
        elif part not in ("", "."):
            below.append(part)
    is_folder = parts[-1] in ("", ".", "..")
    return folder, "/" + "/".join(below) + "/" * is_folder if below else ""


# -- .gitignore ----------------------------------------------------------------------------------------


def ignored_by_rules(root: str, files: Iterable[str]) -> set[str]:
    """Those of the files that the rules in the checkout at `root` leave out, where git cannot be asked.

    Read are its `.gitignore` files and `.git/info/exclude`; not what git is set up with elsewhere, and not its index:
    a file that is tracked all the same counts as ignored here.
    """
    top = _split(root)
    rules: dict[_Names, list[_Pattern]] = {top[:-1]: _read(os.path.join(root, ".git", "info", "exclude"), top)}

    def rules_in(folder: _Names) -> list[_Pattern]:
        if folder not in rules:
            own = _read(os.sep + os.path.join(*folder, ".gitignore"), folder)
            rules[folder] = own + rules[folder[:-1]]
        return rules[folder]

    return _left_out(files, root, rules_in).files


def _read(path: str, folder: _Names) -> list[_Pattern]:
    """The patterns in a file, the last one first."""
    if not os.path.isfile(path):
        return []
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as stream:
            lines = stream.read().split("\n")
    except OSError:
        return []
    return [pattern for line in reversed(lines) if (pattern := _pattern(line, folder))]
