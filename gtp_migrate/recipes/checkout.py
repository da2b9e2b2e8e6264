"""The git checkouts around files: what else lies in them, and which of their files git ignores."""

from __future__ import annotations

import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Surroundings(NamedTuple):
    """Folders in which other recipes may inherit from the ones given."""

    #: The git checkouts around the given paths, behind all links.
    roots: tuple[str, ...]
    #: Those of them that are submodules → the checkout around that one, in which nobody looks.
    outer: dict[str, str]


def surroundings(paths: Iterable[str]) -> Surroundings:
    """The git checkouts around the given paths; nothing for a path outside of any.

    A checkout that is all of somebody's home folder, or of the machine, holds their dotfiles: it counts only
    for what it tracks.
    """
    roots: dict[str, None] = {}
    too_wide = {os.path.realpath(os.path.expanduser("~")), os.sep}
    for path in dict.fromkeys(map(os.path.realpath, paths)):
        root = _Roots().around(path if os.path.isdir(path) else os.path.dirname(path))
        if root and (root not in too_wide or _is_tracked(root, path)):
            roots[root] = None
    outer = {root: above for root in roots if _is_submodule(root) and (above := _Roots().around(os.path.dirname(root)))}
    return Surroundings(tuple(roots), outer)


def ignored(files: Iterable[str], given: Iterable[str]) -> set[str]:
    """Those of the files that git ignores, by its own word where it can be asked, else by the rules it reads.

    A file that git tracks is not ignored, whatever the rules say. A checkout inside another one is ignored with all
    that is in it where the outer one ignores it, but only when one of the folders given is around it.

    Args:
        files: absolute paths, the folders behind all links.
        given: the folders that a person named.
    """
    files = list(files)
    roots = _Roots()
    inside = tuple(os.path.join(os.path.realpath(folder), "") for folder in given)

    def asks(file: str) -> Iterator[tuple[str, str]]:
        """Whom to ask about what, to know it of the file."""
        what, root = file, roots.around(os.path.dirname(file))
        while root:
            yield root, what
            if not root.startswith(inside):
                return
            what, root = root, roots.around(os.path.dirname(root))

    questions: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for file in files:
        for root, what in asks(file):
            questions[root][what] = None
    answers = {what for root, asked in questions.items() for what in _ignored_in(root, list(asked))}
    return {file for file in files if any(what in answers for _, what in asks(file))}


class _Roots:
    """The checkouts that folders are in; each folder is looked at once."""

    def __init__(self) -> None:
        self._of: dict[str, str | None] = {}

    def around(self, folder: str) -> str | None:
        """The root of the innermost checkout, which may be the folder itself."""
        passed: list[str] = []
        root: str | None = folder
        while root and root not in self._of:
            passed.append(root)
            if os.path.exists(os.path.join(root, ".git")):
                self._of[root] = root
            else:
                above = os.path.dirname(root)
                root = above if above != root else None
        answer = self._of[root] if root else None
        self._of.update(dict.fromkeys(passed, answer))
        return answer


def _is_submodule(root: str) -> bool:
    """Whether what git knows of a checkout is kept in the one around it.

    Source: gitrepository-layout(5): `.git` is a file that names a folder below the outer `.git/modules`.
    """
    path = os.path.join(root, ".git")
    if not os.path.isfile(path):
        return False
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return re.match(r"gitdir: .*/modules/", stream.read(1 << 16)) is not None
    except OSError:
        return False


# -- asking git ----------------------------------------------------------------------------------------

#: What a hook or an alias sets for the checkout that it runs in, which need not be the one that is asked about.
_OF_ONE_CHECKOUT = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX")


def _ignored_in(root: str, paths: list[str]) -> set[str]:
    answer = _git(root, "check-ignore", "-z", "--stdin", data=b"".join(os.fsencode(path) + b"\0" for path in paths))
    # 1: none of them.
    if answer is not None and answer.returncode in (0, 1):
        return {os.fsdecode(path) for path in answer.stdout.split(b"\0") if path}
    from gtp_migrate.recipes.ignore import ignored_by_rules

    return ignored_by_rules(root, paths)


def _is_tracked(root: str, path: str) -> bool:
    """Whether git tracks the file, or one in the folder; yes where git cannot be asked."""
    answer = _git(root, "--literal-pathspecs", "ls-files", "-z", "--", path)
    return answer is None or answer.returncode != 0 or bool(answer.stdout)


def _git(root: str, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes] | None:
    """Asks git about this checkout and none around it; None where there is no git."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ONE_CHECKOUT}
    environment["GIT_CEILING_DIRECTORIES"] = os.path.dirname(root)
    command = ["git", "-C", root, "-c", "core.fsmonitor=false", *arguments]
    try:
        return subprocess.run(command, input=data, capture_output=True, env=environment, check=False)
    except OSError:
        return None
