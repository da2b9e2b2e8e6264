"""Edited texts → files: one at a time, each whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

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
    # Always the same name, so that the next run takes over what a killed one has left.
    temporary = os.path.join(folder, f".{name}.gtp-migrate")
    is_ours = False
    try:
        status = os.stat(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "wb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
            os.ftruncate(stream.fileno(), 0)
            stream.write(new)
            stream.flush()
            _keep_owner(stream.fileno(), status)
            os.fchmod(stream.fileno(), stat.S_IMODE(status.st_mode))
            os.fsync(stream.fileno())
            check_unchanged(path, shown, expected)
            os.replace(temporary, path)
            is_ours = False
        _sync_folder(folder)
    except BlockingIOError:
        raise WriteError(
            Problem(Place(shown), "is being written by another run", "run again when that has ended")
        ) from None
    except OSError as error:
        raise WriteError(
            Problem(Place(shown), f"could not be written ({error.strerror or error})", "mend that and run again")
        ) from None
    finally:
        if is_ours:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _keep_owner(handle: int, before: os.stat_result) -> None:
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
