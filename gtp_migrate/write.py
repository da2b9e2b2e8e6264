"""Edited texts → files: one at a time, each whole or not at all.

The new content is made durable in a temporary file beside the old one, which is then renamed over it: whoever
reads the file, also after a crash, sees all of the old or all of the new. A rename puts another file in the
place of the old one, so whatever belongs to a file beside its content (mode, owner, group, extended attributes
with access lists among them) is put on the new one first. Where that cannot be, or where a rename would part the
file from its other names, the file is left as it is, and said.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import stat
import sys
from collections.abc import Iterator

from gtp_migrate.problems import Place, Problem, ProblemError

#: The temporary file's name ends so that nothing that looks for recipes takes it for one.
_SUFFIX = ".gtp-migrate"
#: Bytes that a file name may have, on every file system in wide use.
_LONGEST_NAME = 255

#: The attributes that people and their rules give to a file (xattr(7)); what else is listed, such as `lustre.lov`,
#: is the file system's own and made anew with each file.
_KEPT = ("user.", "system.", "security.", "trusted.")
#: Of these, what the kernel computes from the file itself: a copy would be wrong.
_COMPUTED = ("security.ima", "security.evm", "trusted.overlay.")

#: FS_IOC_GETFLAGS and FS_APPEND_FL of linux/fs.h. Where the number is another one (powerpc), nothing is found.
_GET_FLAGS = 0x80086601
_APPEND_ONLY = 0x20

_WAYS_OUT = {
    errno.ENOSPC: "make room on that disk and run again",
    errno.EDQUOT: "make room within your quota there and run again",
    errno.EIO: "the disk, or the network before it, fails: have that mended and run again",
    errno.EROFS: "mount that file system writable, or run on a copy of the recipes",
    errno.EBUSY: "if it is mounted by itself, as containers do with single files, run where it comes from",
    errno.ENAMETOOLONG: "give it a shorter name and run again",
}


class WriteError(ProblemError):
    """A file that was not written."""


class _Refused(Exception):
    """Why the file at hand is not written, and the way out."""

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(what, todo)
        self.what = what
        self.todo = todo


class _Changed(_Refused):
    def __init__(self) -> None:
        super().__init__("was changed by somebody else in the meantime", "run again on what it is now")


class _OtherRun(_Refused):
    def __init__(self) -> None:
        super().__init__("is being written by another run", "run again when that has ended")


def check_writable(path: str, shown: str) -> None:
    """Goes through all of `write` that can be gone through without a new content, and leaves nothing behind.

    Args:
        path: of the file, with no symbolic link in its last part.
        shown: the file's name in messages.

    Raises:
        WriteError: the file may not be written, or could not be replaced by one that is like it in all else.
    """
    with said(shown), _opened(path, os.O_RDWR) as old, _temporary(path, old) as (_, new):
        _keep_metadata(old, new)


def check_unchanged(path: str, shown: str, expected: bytes) -> None:
    """
    Raises:
        WriteError: the file does not hold the expected bytes any more.
    """
    with said(shown), _opened(path, os.O_RDONLY) as handle:
        if _content(handle) != expected:
            raise _Changed


def write(path: str, shown: str, expected: bytes, new: bytes) -> None:
    """Replaces the content of a file, if it is still the expected one. All else about the file is kept.

    Args:
        path: of the file, with no symbolic link in its last part.
        shown: the file's name in messages.
        expected: what the file must hold.
        new: what it holds afterwards, on the disk.

    Raises:
        WriteError: the file changed, or may not be written. It is as it was, and nothing lies beside it.
    """
    with said(shown), _opened(path, os.O_RDWR) as old, _temporary(path, old) as (name, handle):
        rest = memoryview(new)
        while rest:
            rest = rest[os.write(handle, rest) :]
        _keep_metadata(old, handle)
        os.fsync(handle)
        if _content(old) != expected or not _is_at(path, old):
            raise _Changed
        os.replace(name, path)
        sync_folder(path)


@contextlib.contextmanager
def said(shown: str) -> Iterator[None]:
    """Makes a `WriteError` of whatever keeps a file of that name from being written."""
    try:
        yield
    except _Refused as refused:
        problem = Problem(Place(shown), refused.what, refused.todo)
    except OSError as error:
        todo = _WAYS_OUT.get(error.errno or 0, "mend that and run again")
        problem = Problem(Place(shown), f"could not be written ({error.strerror or error})", todo)
    else:
        return
    raise WriteError(problem)


@contextlib.contextmanager
def _opened(path: str, access: int) -> Iterator[int]:
    """The file itself: no link, pipe or folder that somebody has put in its place."""
    try:
        handle = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise _Changed from None
        if error.errno == errno.EACCES:
            verb, needed = ("written", "writable") if access == os.O_RDWR else ("read", "readable")
            raise _Refused(f"may not be {verb}", f"make it {needed} and run again") from None
        if error.errno == errno.EPERM:
            raise _Refused(
                "may not be written by anybody: it is immutable or append-only",
                "take that mark off (chattr -i -a) and run again",
            ) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _Changed
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _temporary(path: str, old: int) -> Iterator[tuple[str, int]]:
    """The temporary file beside a file, by name and open: empty, locked, and gone afterwards unless it was renamed."""
    _check_replaceable(path, os.fstat(old))
    folder, name = os.path.split(path)
    # Always the same name, so that the next run takes over what a killed one has left; cut, so that a file whose
    # name is as long as may be has one as well.
    cut = os.fsdecode(os.fsencode(name)[: _LONGEST_NAME - len(f".{_SUFFIX}")])
    temporary = os.path.join(folder, f".{cut}{_SUFFIX}")
    handle, is_new = _open_temporary(temporary)
    try:
        _take(handle, temporary, is_new, os.fstat(old).st_uid)
        try:
            os.ftruncate(handle, 0)
            yield temporary, handle
        finally:
            with contextlib.suppress(OSError):
                if _is_at(temporary, handle):
                    os.unlink(temporary)
    finally:
        # What was to be written is on the disk by now, or will not be used.
        with contextlib.suppress(OSError):
            os.close(handle)


def _check_replaceable(path: str, file: os.stat_result) -> None:
    """What stands against a rename over the file, and would be found out too late by trying."""
    if file.st_nlink > 1:
        raise _Refused(
            f"is one file under {file.st_nlink} names (hard links), which cannot all be given the new content at once",
            "give it a content of its own (copy it, and move the copy over it), or edit it by hand; then run again",
        )
    folder = os.path.dirname(path) or "."
    if _is_append_only(folder):
        raise _Refused(
            "is in a folder that is append-only, where nothing can be replaced",
            "take that mark off (chattr -a) and run again",
        )
    status = os.stat(folder)
    if status.st_mode & stat.S_ISVTX and os.geteuid() not in (0, status.st_uid, file.st_uid):
        raise _Refused(
            f"belongs to {_user(file.st_uid)}, and its folder lets only them replace it (sticky bit)",
            f"have {_user(file.st_uid)} run this, or run on a copy",
        )


def _open_temporary(name: str) -> tuple[int, bool]:
    """Opens the temporary file; tells whether it is new. What is there already is looked at later, not changed."""
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        pass
    except PermissionError as error:
        if error.errno == errno.EACCES:
            raise _Refused("is in a folder that may not be written", "make the folder writable and run again") from None
        raise _Refused(
            "is in a folder that may not be written by anybody: it is immutable",
            "take that mark off (chattr -i) and run again",
        ) from None
    try:
        return os.open(name, flags), False
    except FileNotFoundError:
        raise _OtherRun from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM):
            raise _in_the_way(name) from None
        raise


def _take(handle: int, name: str, is_new: bool, owner: int) -> None:
    """Locks the temporary file and makes sure that it is ours to write into.

    Args:
        handle: the open temporary file.
        name: its path.
        is_new: whether we have created it.
        owner: the user whom the recipe belongs to.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _OtherRun from None
    except OSError:
        # No locks here, as on Lustre without them. Then only one run can have created the file: that has to do.
        if not is_new:
            raise _Refused(
                f"has {os.path.basename(name)} beside it: another run is at work, or was killed",
                "once no run is at work, remove that and run again",
            ) from None
    if not _is_at(name, handle):
        # Whoever had the lock has renamed it since we opened it: what we have got is the recipe itself.
        raise _OtherRun
    if is_new:
        return
    status = os.fstat(handle)
    # Root gives the file to the recipe's owner before the rename, and may be killed in between.
    owners = {os.geteuid(), owner} if os.geteuid() == 0 else {os.geteuid()}
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid not in owners:
        raise _in_the_way(name)


def _in_the_way(name: str) -> _Refused:
    return _Refused(
        f"has {os.path.basename(name)} beside it, which is no left-over of yours but stands where it would be written",
        "move that away and run again",
    )


def _keep_metadata(old: int, new: int) -> None:
    """Puts mode, owner, group and extended attributes of the old file on the new one."""
    before, now = os.fstat(old), os.fstat(new)
    owner = before.st_uid if before.st_uid != now.st_uid else -1
    group = before.st_gid if before.st_gid != now.st_gid else -1
    with contextlib.suppress(OSError):
        # First, since it takes off some bits of the mode. Whether it worked is looked at below.
        if (owner, group) != (-1, -1):
            os.fchown(new, owner, group)
    now = os.fstat(new)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        owner_name = _user(before.st_uid)
        raise _Refused(
            f"belongs to {owner_name} and the group {_group(before.st_gid)}, and your copy of it would not",
            f"have {owner_name} run this, or make it your own (copy it, and move the copy over it) and run again",
        )
    _keep_attributes(old, new)
    # Last, since access lists have a say in it.
    os.fchmod(new, stat.S_IMODE(before.st_mode))


def _keep_attributes(old: int, new: int) -> None:
    """Gives the new file the extended attributes of the old one, and takes off what it got from its folder."""
    if not hasattr(os, "listxattr"):
        return
    wanted, found = _attributes(old), _attributes(new)
    for name in sorted(wanted.keys() | found.keys()):
        try:
            if name not in wanted:
                os.removexattr(new, name)
            elif wanted[name] != found.get(name):
                os.setxattr(new, name, wanted[name])
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            raise _Refused(
                f"has an extended attribute {name} that you may not set on another file"
                if name in wanted
                else f"has no extended attribute {name}, which every new file in its folder gets",
                f"have {_user(os.fstat(old).st_uid)} or root run this, or edit it by hand",
            ) from None


def _attributes(handle: int) -> dict[str, bytes]:
    try:
        names = os.listxattr(handle)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):
            return {}
        raise
    kept = (name for name in names if name.startswith(_KEPT) and not name.startswith(_COMPUTED))
    return {name: os.getxattr(handle, name) for name in kept}


def _content(handle: int) -> bytes:
    os.lseek(handle, 0, os.SEEK_SET)
    with open(handle, "rb", closefd=False) as stream:
        return stream.read()


def _is_at(path: str, handle: int) -> bool:
    """Whether the open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _is_append_only(folder: str) -> bool:
    """Whether files can be created in a folder but not renamed or removed (`chattr +a`)."""
    with contextlib.suppress(OSError), _folder(folder) as handle:
        flags = fcntl.ioctl(handle, _GET_FLAGS, bytes(8))
        return bool(int.from_bytes(flags[:4], sys.byteorder) & _APPEND_ONLY)
    return False


def sync_folder(path: str) -> None:
    """Makes a rename durable, where the file system can be asked to. The file is written either way."""
    with contextlib.suppress(OSError), _folder(os.path.dirname(path) or ".") as handle:
        os.fsync(handle)


@contextlib.contextmanager
def _folder(path: str) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
