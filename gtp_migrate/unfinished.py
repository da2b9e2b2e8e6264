"""Files that are written as a group, also by a run that is killed between two of them.

No order of writing keeps every recipe as it was in between, and what a half-written tree has meant cannot be worked out
from it. So what is to be written is put down first, in a file beside the first of the group, which goes when the last
one is written. A run that finds such a file writes the rest before it looks at anything else.

It is JSON, a list: of each file its path from there, the SHA-256 of what it may hold on the way, what it is to hold.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gtp_migrate.outcome import Edited
from gtp_migrate.problems import Place, Problem
from gtp_migrate.recipes.discover import UNFINISHED, shorten
from gtp_migrate.recipes.survey import read_bytes
from gtp_migrate.write import WriteError, said, sync_folder, write


class _Entry(NamedTuple):
    """One file of a group."""

    #: Relative to the folder that this is put down in.
    path: str
    #: SHA-256 of what it holds before, and perhaps until all others are written.
    passed: list[str]
    #: What it holds in the end.
    after: str


class _Left(NamedTuple):
    """A file that is not written yet."""

    path: str
    content: bytes
    after: bytes


@contextlib.contextmanager
def put_down(group: Sequence[Edited]) -> Iterator[None]:
    """Whatever ends the block, the next run writes what it has left half written.

    Args:
        group: the files, as they are before.

    Raises:
        WriteError: it could not be put down, or another run is at work in that folder.
    """
    shown = group[0].shown
    folder = os.path.dirname(group[0].path)
    path = os.path.join(folder, UNFINISHED)
    data = json.dumps([_entry(each, folder) for each in group]).encode()
    with said(shown):
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            what = f"was not written: another run has put {UNFINISHED} beside it"
            raise _refused(shown, what, "run again when that has ended") from None
    with open(handle, "wb", buffering=0) as stream:
        try:
            with said(shown):
                _lock(handle)
                rest = memoryview(data)
                while rest:
                    rest = rest[stream.write(rest) :]
                os.fsync(handle)
                sync_folder(path)
            yield
        except BaseException:
            if all(_content(each.path) == each.before for each in group):
                os.unlink(path)
            raise
        os.unlink(path)


def finish(shown: str, given: Mapping[str, str]) -> int:
    """Writes what a run that was stopped has left half written.

    Args:
        shown: the file in which that run has put it down.
        given: the files that may be written: the real path → its name in messages.

    Returns:
        How many files were written.

    Raises:
        WriteError: not all of it was written. What was put down is still there.
    """
    with said(shown), _opened(shown) as handle:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise _refused(shown, "was put down by a run of somebody else, which was stopped", "have them run it again")
        if not _lock(handle):
            raise _refused(shown, "is of a run that is at work", "run again when that has ended")
        with open(handle, "rb", closefd=False) as stream:
            left = _left(shown, stream.read())
        if outside := [shorten(each.path) for each in left if each.path not in given]:
            raise _refused(shown, f"a run was stopped before it had written {outside[0]}", "give that file as well")
        for each in left:
            write(each.path, given[each.path], each.content, each.after)
        os.unlink(shown)
        sync_folder(shown)
    return len(left)


def unfinished(shown: str) -> Problem:
    """What to say of it where nothing is written."""
    return Problem(Place(shown), "a run was stopped between files that belong together", "run it again to finish")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _entry(edited: Edited, folder: str) -> _Entry:
    states = [state for state in (edited.before, edited.meanwhile) if state is not None]
    return _Entry(os.path.relpath(edited.path, folder), [*map(_digest, states)], edited.after.decode())


def _left(shown: str, data: bytes) -> list[_Left]:
    """Nothing where no file has been written: then all can be worked out anew."""
    folder = os.path.dirname(os.path.realpath(shown))
    left = []
    is_begun = False
    for entry in _entries(shown, data):
        path = os.path.normpath(os.path.join(folder, entry.path))
        content, after = _content(path), entry.after.encode()
        digest = _digest(content)
        is_begun |= digest != entry.passed[0]
        if content != after:
            if digest not in entry.passed:
                what = f"{shorten(path)} has changed since a run was stopped that was to write it"
                raise _refused(shown, what, "write it by hand, remove this file and run again")
            left.append(_Left(path, content, after))
    return left if is_begun else []


def _entries(shown: str, data: bytes) -> list[_Entry]:
    """None where the run was stopped while it put them down, before it wrote the first file."""
    try:
        return [_Entry(str(path), [*passed], str(after)) for path, passed, after in json.loads(data)]
    except json.JSONDecodeError:
        return []
    except (ValueError, TypeError):
        raise _refused(shown, "is not what a run puts down that is stopped", "remove it and run again") from None


def _content(path: str) -> bytes:
    """What a file holds; nothing, which no recipe with a setting holds, where there is none."""
    try:
        return read_bytes(path)
    except OSError:
        return b""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _lock(handle: int) -> bool:
    """False where another run holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # No locks here, as on Lustre without them: then each file's own temporary one has to do.
        pass
    return True


def _refused(shown: str, what: str, todo: str) -> WriteError:
    return WriteError(Problem(Place(shown), what, todo))
