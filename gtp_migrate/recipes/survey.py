"""The first look at all given files: which of them mention a setting, and who inherits from whom.

Most runs find nothing to do, and most files of a tree matter to none: this costs little more than reading
the bytes, and imports no YAML parser.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gtp_migrate.problems import Place, Problem
from gtp_migrate.recipes.discover import Found, discover, is_excluded, recipe_id
from gtp_migrate.recipes.glance import Glance, glance
from gtp_migrate.recipes.keys import NEW_KEY_BYTES, OLD_KEY_BYTES

_CHUNK = 1 << 16

#: Called with what is being done, how much is done, and how much there is (0: not known).
Progress = Callable[[str, int, int], None]


@dataclass
class Survey:
    """What the bytes of the given files show."""

    #: Every file that could be read, with what a glance shows.
    files: list[tuple[Found, Glance]] = field(default_factory=list)
    #: The bytes of those that mention a setting, by recipe id.
    data: dict[str, bytes] = field(default_factory=dict)
    #: Files that were found but are to be left alone.
    set_aside: list[Found] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def inherits_from_outside(self) -> bool:
        """Whether a file may inherit from one that was not given: that one may hold a setting."""
        ids = {found.id for found, _ in self.files}
        return any(
            defaults is None or any(recipe_id(f"{folder}/{path}") not in ids for path in defaults)
            for folder, defaults in {(os.path.dirname(found.id), seen.defaults) for found, seen in self.files}
        )


def survey(paths: Iterable[str], exclude: tuple[str, ...] = (), progress: Progress = lambda *_: None) -> Survey:
    """Reads all files once.

    Args:
        paths: files and folders.
        exclude: globs of files to set aside.
        progress: called now and then.

    Raises:
        OSError: one of the paths does not exist.
    """
    result = Survey()

    def unreadable(folder: str, error: OSError) -> None:
        what = f"cannot be listed ({error.strerror})"
        result.problems.append(Problem(Place(folder), what, "make it readable and run again"))

    known: dict[bytes, Glance] = {}
    for found in discover(paths, unreadable):
        if exclude and is_excluded(found, exclude):
            result.set_aside.append(found)
            continue
        try:
            data = read_bytes(found.id)
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            result.problems.append(Problem(Place(found.shown), what, "make it readable and run again"))
            continue
        seen = _glance(data, known)
        if seen.old or seen.new:
            result.data[found.id] = data
        result.files.append((found, seen))
        if not len(result.files) % 500:
            progress("reading", len(result.files), 0)
    return result


def read_bytes(path: str) -> bytes:
    """All bytes of a file; about twice as fast as `open`, which is what ten thousand small files are made of.

    Raises:
        OSError: it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        data = os.read(handle, _CHUNK)
        if len(data) == _CHUNK:
            with open(handle, "rb", closefd=False) as rest:
                data += rest.read()
        return data
    finally:
        os.close(handle)


def _glance(data: bytes, known: dict[bytes, Glance]) -> Glance:
    """`glance`, with what it said of the same line `defaults: …` before.

    Recipes side by side inherit from the same file, so there are few such lines.
    """
    if OLD_KEY_BYTES in data or NEW_KEY_BYTES in data:
        return glance(data)
    start = data.find(b"defaults")
    if start < 0:
        return glance(data) if data[:1] in (b"\xff", b"\xfe") else _NOTHING
    end = data.find(b"\n", start)
    is_only_line = (
        end > 0
        and (start == 0 or data[start - 1] == 0x0A)
        and data[end + 1 : end + 2] not in (b" ", b"\t", b"-")
        and data.find(b"defaults", end) < 0
    )
    if not is_only_line:
        return glance(data)
    line = data[start:end]
    seen = known.get(line)
    if seen is None:
        seen = known[line] = glance(data)
    return seen


_NOTHING = Glance(False, False, ())
