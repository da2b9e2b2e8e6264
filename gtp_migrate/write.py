"""Edited texts → files: one at a time, each whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile

from gtp_migrate.problems import Place, Problem


class WriteError(Exception):
    """A file that was not written. Carries the `Problem` to show."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def check_writable(path: str, shown: str) -> None:
    """
    Raises:
        WriteError: the file, or the folder that a temporary file is made in, may not be written.
    """
    for what, target in (("", path), ("is in a folder that ", os.path.dirname(path))):
        if not os.access(target, os.W_OK):
            raise WriteError(
                Problem(Place(shown), f"{what}may not be written", "give yourself the right to and run again")
            )


def check_unchanged(path: str, shown: str, expected: bytes) -> None:
    """
    Raises:
        WriteError: the file does not hold the expected bytes any more.
    """
    try:
        with open(path, "rb") as stream:
            current: bytes | None = stream.read()
    except OSError:
        current = None
    if current != expected:
        raise WriteError(
            Problem(Place(shown), "was changed by somebody else in the meantime", "run again on what it is now")
        )


def write(path: str, shown: str, expected: bytes, new: bytes) -> None:
    """Replaces the content of a file, if it is still the expected one.

    The new content is made durable beside the file and then renamed over it, so that whoever reads the file,
    also after a crash, sees all of the old or all of the new. Its mode is kept.

    Raises:
        WriteError: the file changed, or may not be written. It is as it was.
    """
    folder, name = os.path.split(path)
    temporary = None
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".gtp-migrate", dir=folder)
        with os.fdopen(handle, "wb") as stream:
            stream.write(new)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            _keep_owner(stream.fileno(), path)
            os.fsync(stream.fileno())
        check_unchanged(path, shown, expected)
        os.replace(temporary, path)
        temporary = None
        _sync_folder(folder)
    except OSError as error:
        raise WriteError(
            Problem(Place(shown), f"could not be written ({error.strerror or error})", "mend that and run again")
        ) from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _keep_owner(handle: int, path: str) -> None:
    before = os.stat(path)
    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(OSError):
            os.fchown(handle, before.st_uid, before.st_gid)


def _sync_folder(folder: str) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
