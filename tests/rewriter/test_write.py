"""Writing: a file is replaced whole or not at all, and a group of files together."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gtp_migrate import write as writing
from gtp_migrate.recipes.discover import UNFINISHED
from gtp_migrate.write import WriteError, check_unchanged, check_writable, write

from .conftest import Migrate, Ran, run, write_files

OLD = (
    "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n"
    "    model_overrides:\n      gtp_weight_remat_size: 3\n"
)
NEW = OLD.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")
CHILD_OLD = (
    "defaults: base.yaml\npolicy:\n  megatron_cfg:\n    tensor_model_parallel_size: 8\n"
    "    model_overrides:\n      gtp_weight_remat_size: 2\n"
)
CHILD_NEW = CHILD_OLD.replace("gtp_weight_remat_size: 2", "tensor_parallel_num_weight_shards: 16")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, {"base.yaml": OLD, "child.yaml": CHILD_OLD, "other.yaml": OLD})
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


# -- one file ------------------------------------------------------------------------------------------

IS_ROOT = os.geteuid() == 0
#: Another user than the one who runs the tests, and a group that they are not in.
SOMEBODY, THEIRS = os.geteuid() + 12345, max(os.getgroups(), default=0) + 23456


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    return path


def refused(path: Path, new: bytes = b"new") -> str:
    """What `write` says of a file that it leaves: untouched, and with nothing of ours beside it."""
    before, beside = path.stat(), names(path.parent)
    with pytest.raises(WriteError) as caught:
        write(str(path), "a.yaml", b"old", new)
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)
    assert path.read_bytes() == b"old"
    assert names(path.parent) == beside
    assert str(caught.value).startswith("a.yaml: ")
    return str(caught.value).removeprefix("a.yaml: ")


def refused_at_once(path: Path) -> str:
    """The same, of a file that `check_writable` refuses as well: before the first of its group is written."""
    said = refused(path)
    beside = names(path.parent)
    with pytest.raises(WriteError) as caught:
        check_writable(str(path), "a.yaml")
    assert str(caught.value) == f"a.yaml: {said}"
    assert names(path.parent) == beside
    return said


def temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.gtp-migrate")


def failing(monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(writing.os, call, fail)


def test_write(tmp_path: Path, recipe: Path) -> None:
    write(str(recipe), "a.yaml", b"old", b"new")
    assert recipe.read_bytes() == b"new"
    assert names(tmp_path) == ["a.yaml"]


def test_a_name_alone_is_one_in_the_current_folder(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipe.parent)
    check_writable("a.yaml", "a.yaml")
    write("a.yaml", "a.yaml", b"old", b"new")
    assert recipe.read_bytes() == b"new"


def test_a_disk_that_takes_a_little_at_a_time(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(writing.os, "write", lambda handle, data: real(handle, data[:3]))
    write(str(recipe), "a.yaml", b"old", b"quite new")
    assert recipe.read_bytes() == b"quite new"


def test_a_reader_sees_all_of_the_old_or_all_of_the_new(tmp_path: Path) -> None:
    """Whoever has the file open goes on reading the old one: it is replaced, not written over."""
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old" * 1000)
    with path.open("rb") as stream:
        assert stream.read(3) == b"old"
        write(str(path), "a.yaml", b"old" * 1000, b"new")
        assert stream.read() == b"old" * 999
    assert path.read_bytes() == b"new"


def test_what_is_checked_stays_as_it_is(tmp_path: Path, recipe: Path) -> None:
    before = recipe.stat()
    check_writable(str(recipe), "a.yaml")
    check_unchanged(str(recipe), "a.yaml", b"old")
    after = recipe.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert names(tmp_path) == ["a.yaml"]


@pytest.mark.parametrize("name", ["a" * 250 + ".yaml", "é" * 125 + ".yaml", "é" * 120 + "abc.yaml"])
def test_a_name_as_long_as_may_be(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")
    write(str(path), name, b"old", b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("current", [b"other", b"", b"old and more", None, "link", "folder", "pipe"])
@pytest.mark.parametrize("call", [check_unchanged, lambda *of: write(*of, b"new")], ids=["checked", "written"])
def test_a_file_that_is_not_what_it_was(
    tmp_path: Path, current: bytes | str | None, call: Callable[[str, str, bytes], None]
) -> None:
    path = tmp_path / "a.yaml"
    if isinstance(current, bytes):
        path.write_bytes(current)
    elif current is not None:
        (tmp_path / "b.yaml").write_bytes(b"old")
        put_in_the_way(path, current, tmp_path / "b.yaml")
    before = names(tmp_path)
    with pytest.raises(WriteError, match=r"^shown\.yaml: was changed by somebody else in the meantime; run again"):
        call(str(path), "shown.yaml", b"old")
    assert names(tmp_path) == before
    if isinstance(current, bytes):
        assert path.read_bytes() == current
    elif current is not None:
        assert (tmp_path / "b.yaml").read_bytes() == b"old"
        assert path.is_symlink() == (current == "link")


@pytest.mark.parametrize("same", [True, False], ids=["with the same content", "with another content"])
def test_a_file_that_is_replaced_while_we_write(recipe: Path, monkeypatch: pytest.MonkeyPatch, same: bool) -> None:
    """Its mode and owner may be other ones as well."""
    real = os.fsync

    def meanwhile(handle: int) -> None:
        real(handle)
        theirs = recipe.with_name("theirs")
        theirs.write_bytes(b"old" if same else b"theirs")
        theirs.rename(recipe)

    monkeypatch.setattr(writing.os, "fsync", meanwhile)
    with pytest.raises(WriteError, match="was changed by somebody else"):
        write(str(recipe), "a.yaml", b"old", b"new")
    assert recipe.read_bytes() == (b"old" if same else b"theirs")
    assert names(recipe.parent) == ["a.yaml"]


def test_a_file_that_is_edited_while_we_write(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def meanwhile(handle: int) -> None:
        real(handle)
        recipe.write_bytes(b"theirs")

    monkeypatch.setattr(writing.os, "fsync", meanwhile)
    with pytest.raises(WriteError, match="was changed by somebody else"):
        write(str(recipe), "a.yaml", b"old", b"new")
    assert recipe.read_bytes() == b"theirs"
    assert names(recipe.parent) == ["a.yaml"]


def test_what_is_written_is_durable(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the new content, then the rename, which is an entry of the folder."""
    events: list[object] = []
    fsync, replace = os.fsync, os.replace

    def sync(handle: int) -> None:
        status = os.fstat(handle)
        events.append(("sync", status.st_ino, None if stat.S_ISDIR(status.st_mode) else status.st_size))
        fsync(handle)

    def rename(source: str, target: str) -> None:
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(writing.os, "fsync", sync)
    monkeypatch.setattr(writing.os, "replace", rename)
    write(str(recipe), "a.yaml", b"old", b"brand new")
    content = ("sync", recipe.stat().st_ino, len(b"brand new"))
    assert events == [content, "rename", ("sync", recipe.parent.stat().st_ino, None)]


def test_a_folder_that_cannot_be_synced(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems cannot. The file is written."""
    real = os.fsync

    def sync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(handle)

    monkeypatch.setattr(writing.os, "fsync", sync)
    write(str(recipe), "a.yaml", b"old", b"new")
    assert recipe.read_bytes() == b"new"


# -- what else belongs to a file -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o664, 0o755, 0o666, *([0o444, 0o000] if IS_ROOT else [])], ids=oct)
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000], ids=oct)
def test_the_mode_is_kept(recipe: Path, mode: int, umask: int) -> None:
    recipe.chmod(mode)
    before = os.umask(umask)
    try:
        write(str(recipe), "a.yaml", b"old", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(recipe.stat().st_mode) == mode


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a file to somebody else")
@pytest.mark.parametrize("mode", [0o640, 0o4755], ids=oct)
def test_owner_and_group_are_kept(recipe: Path, mode: int) -> None:
    os.chown(recipe, SOMEBODY, THEIRS)
    recipe.chmod(mode)
    write(str(recipe), "a.yaml", b"old", b"new")
    status = recipe.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (SOMEBODY, THEIRS, mode)
    assert recipe.read_bytes() == b"new"


@pytest.fixture
def somebody_elses(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe that another user and group have, for whoever runs the tests, and the right to give files away."""
    inode, real = recipe.stat().st_ino, os.fstat
    given: dict[int, tuple[int, int]] = {}

    def fstat(handle: int) -> os.stat_result:
        status = real(handle)
        ids = (SOMEBODY, THEIRS) if status.st_ino == inode else given.get(status.st_ino, (status.st_uid, status.st_gid))
        return os.stat_result((*status[:4], *ids, *status[6:10]))

    def fchown(handle: int, owner: int, group: int) -> None:
        given[real(handle).st_ino] = (owner, group)

    monkeypatch.setattr(writing.os, "fstat", fstat)
    monkeypatch.setattr(writing.os, "fchown", fchown)
    return recipe


def test_the_new_file_is_given_to_the_owner(somebody_elses: Path) -> None:
    write(str(somebody_elses), "a.yaml", b"old", b"new")
    assert somebody_elses.read_bytes() == b"new"


@pytest.mark.parametrize("silently", [False, True], ids=["with an error", "silently"])
def test_a_file_that_cannot_be_given_to_its_owner(
    somebody_elses: Path, monkeypatch: pytest.MonkeyPatch, silently: bool
) -> None:
    def fchown(*_: object) -> None:
        if not silently:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(writing.os, "fchown", fchown)
    said = refused_at_once(somebody_elses)
    assert said.startswith(
        f"belongs to user {SOMEBODY} and the group {THEIRS}, and your copy of it would not; have user"
    )


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path) if name != "security.selinux"}


#: u::rw- u:1234:r-- g::r-- m::rw- o::r--, as the kernel holds it: version 2, then tag, rights and id of each entry.
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, rights, number)
    for tag, rights, number in [
        (0x01, 6, 0xFFFFFFFF),
        (0x02, 4, 1234),
        (0x04, 4, 0xFFFFFFFF),
        (0x10, 6, 0xFFFFFFFF),
        (0x20, 4, 0xFFFFFFFF),
    ]
)
ATTRIBUTES = {"user.note": b"\0 ours", "user.empty": b"", "system.posix_acl_access": ACL}


@pytest.fixture
def with_attributes(recipe: Path) -> Path:
    try:
        for name, value in {**ATTRIBUTES, **({"security.note": b"s"} if IS_ROOT else {})}.items():
            os.setxattr(recipe, name, value)
    except OSError as error:
        pytest.skip(f"the file system under {recipe.parent} has no {name}: {error.strerror}")
    return recipe


def test_extended_attributes_and_access_lists_are_kept(with_attributes: Path) -> None:
    before, mode = attributes(with_attributes), with_attributes.stat().st_mode
    assert before.keys() >= ATTRIBUTES.keys()
    write(str(with_attributes), "a.yaml", b"old", b"new")
    assert attributes(with_attributes) == before
    assert with_attributes.stat().st_mode == mode
    assert with_attributes.read_bytes() == b"new"


def test_a_file_gets_no_attributes_that_it_had_not(with_attributes: Path) -> None:
    """Those of a left-over, say."""
    with_attributes.rename(temporary(with_attributes))
    with_attributes.write_bytes(b"old")
    with_attributes.chmod(0o640)
    write(str(with_attributes), "a.yaml", b"old", b"new")
    assert attributes(with_attributes) == {}
    assert stat.S_IMODE(with_attributes.stat().st_mode) == 0o640
    assert names(with_attributes.parent) == ["a.yaml"]


def test_an_access_list_that_the_folder_gives_to_new_files(recipe: Path) -> None:
    try:
        os.setxattr(recipe.parent, "system.posix_acl_default", ACL)
    except OSError as error:
        pytest.skip(f"the file system under {recipe.parent} has no access lists: {error.strerror}")
    write(str(recipe), "a.yaml", b"old", b"new")
    assert attributes(recipe) == {}


def fake_attributes(monkeypatch: pytest.MonkeyPatch, recipe: Path, name: str, error: int) -> None:
    """The recipe has the attribute, the temporary file none, and none can be set."""
    inode = recipe.stat().st_ino
    monkeypatch.setattr(writing.os, "listxattr", lambda handle: [name] if os.fstat(handle).st_ino == inode else [])
    monkeypatch.setattr(writing.os, "getxattr", lambda handle, name: b"1")
    failing(monkeypatch, "setxattr", OSError(error, os.strerror(error)))


@pytest.mark.parametrize("name", ["security.SMACK64", "user.note", "system.nfs4_acl", "trusted.note"])
def test_an_attribute_that_cannot_be_kept(recipe: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fake_attributes(monkeypatch, recipe, name, errno.EPERM)
    assert refused_at_once(recipe).startswith(f"has an extended attribute {name} that you may not set on another")


@pytest.mark.parametrize("name", ["lustre.lov", "security.ima", "security.evm", "trusted.overlay.origin"])
def test_an_attribute_that_is_the_systems_own(recipe: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fake_attributes(monkeypatch, recipe, name, errno.EPERM)
    write(str(recipe), "a.yaml", b"old", b"new")
    assert recipe.read_bytes() == b"new"


def test_no_room_for_an_attribute(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_attributes(monkeypatch, recipe, "user.note", errno.ENOSPC)
    assert refused_at_once(recipe).startswith("could not be written (No space left on device); make room on that disk")


def test_a_file_system_without_attributes(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "listxattr", OSError(errno.ENOTSUP, "Operation not supported"))
    write(str(recipe), "a.yaml", b"old", b"new")
    assert recipe.read_bytes() == b"new"


def test_a_file_with_several_names(recipe: Path) -> None:
    os.link(recipe, recipe.with_name("b.yaml"))
    os.link(recipe, recipe.with_name("c.yaml"))
    said = refused_at_once(recipe)
    assert said.startswith("is one file under 3 names (hard links), ")
    assert "; give it a content of its own (copy it, and move the copy over it)" in said


# -- what may not be written ---------------------------------------------------------------------------

#: Imports all it needs, gives root's rights away, and writes: who is not root, is left as they are.
AS_A_USER = """
import os, sys
from gtp_migrate.write import WriteError, check_writable, write
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(12345)
    os.setuid(12345)
for call in (lambda: check_writable("a.yaml", "a.yaml"), lambda: write("a.yaml", "a.yaml", b"old", b"new")):
    try:
        call()
        print("done")
    except WriteError as error:
        print(error)
"""


def as_a_user(folder: Path) -> str:
    """What `check_writable` and `write` say to somebody who is not root, whose the recipe and its folder are."""
    if IS_ROOT:
        for path in (folder, *folder.iterdir()):
            os.chown(path, 12345, 12345)
    command = [sys.executable, "-c", AS_A_USER]
    first, second = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()
    assert first == second
    assert (folder / "a.yaml").read_bytes() == (b"new" if first == "done" else b"old")
    assert names(folder) == ["a.yaml"]
    return first


def test_an_ordinary_user(recipe: Path) -> None:
    assert as_a_user(recipe.parent) == "done"


def test_a_read_only_file(recipe: Path) -> None:
    recipe.chmod(0o444)
    assert as_a_user(recipe.parent) == "a.yaml: may not be written; make it writable and run again"


def test_a_read_only_folder(recipe: Path) -> None:
    recipe.parent.chmod(0o555)
    try:
        said = as_a_user(recipe.parent)
    finally:
        recipe.parent.chmod(0o755)
    assert said == "a.yaml: is in a folder that may not be written; make the folder writable and run again"


def test_a_file_of_others_in_a_folder_where_only_they_may_replace_it(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe.parent.chmod(0o1777)
    monkeypatch.setattr(writing.os, "geteuid", lambda: SOMEBODY)
    said = refused_at_once(recipe)
    assert said.startswith("belongs to ")
    assert "and its folder lets only them replace it (sticky bit); have " in said


@pytest.fixture
def marked() -> Iterator[Callable[[Path, str], None]]:
    """`chattr`, undone at the end."""
    done: list[tuple[Path, str]] = []

    def mark(path: Path, flag: str) -> None:
        if not shutil.which("chattr"):
            pytest.skip("no chattr on this machine")
        tried = subprocess.run(["chattr", f"+{flag}", path], capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"chattr +{flag} may not be used here: {tried.stderr.strip()}")
        done.append((path, flag))

    yield mark
    for path, flag in done:
        subprocess.run(["chattr", f"-{flag}", path], check=True)


@pytest.mark.parametrize("flag", ["i", "a"])
def test_a_marked_file(recipe: Path, marked: Callable[[Path, str], None], flag: str) -> None:
    marked(recipe, flag)
    assert refused_at_once(recipe) == (
        "may not be written by anybody: it is immutable or append-only; take that mark off (chattr -i -a) and run again"
    )


@pytest.mark.parametrize(("flag", "what"), [("i", "immutable"), ("a", "append-only")])
def test_a_marked_folder(recipe: Path, marked: Callable[[Path, str], None], flag: str, what: str) -> None:
    """In an append-only one a temporary file could be made, but never taken off again."""
    marked(recipe.parent, flag)
    said = refused_at_once(recipe)
    assert what in said
    assert said.endswith(f"; take that mark off (chattr -{flag}) and run again")


def test_a_marked_folder_wherever_the_tests_run(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing.fcntl, "ioctl", lambda *_: (0x80020).to_bytes(4, sys.byteorder) + bytes(4))
    assert refused_at_once(recipe).startswith("is in a folder that is append-only")


# -- disks that fail -----------------------------------------------------------------------------------

CAUSES = {
    errno.ENOSPC: "make room on that disk and run again",
    errno.EDQUOT: "make room within your quota there and run again",
    errno.EIO: "the disk, or the network before it, fails: have that mended and run again",
    errno.EROFS: "mount that file system writable, or run on a copy of the recipes",
    errno.EBUSY: "if it is mounted by itself, as containers do with single files, run where it comes from",
    errno.EINTR: "mend that and run again",
}
CALLS = ["ftruncate", "write", "fchmod", "fsync", "replace"]


@pytest.mark.parametrize("cause", CAUSES, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", CALLS)
def test_an_error_leaves_the_file_and_nothing_else(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, call: str, cause: int
) -> None:
    failing(monkeypatch, call, OSError(cause, os.strerror(cause)))
    assert refused(recipe) == f"could not be written ({os.strerror(cause)}); {CAUSES[cause]}"
    assert names(recipe.parent) == ["a.yaml"]


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_leaves_no_temporary_file(recipe: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    failing(monkeypatch, call, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        write(str(recipe), "a.yaml", b"old", b"new")
    assert recipe.read_bytes() == b"old"
    assert names(recipe.parent) == ["a.yaml"]


def test_a_disk_that_is_full_after_half_of_it(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, real = [5], os.write

    def put(handle: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = real(handle, data[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(writing.os, "write", put)
    assert refused(recipe, b"longer than that").startswith("could not be written (No space left on device)")


@pytest.fixture
def mounted() -> Iterator[Callable[..., None]]:
    """`mount`, undone at the end."""
    done: list[Path] = []

    def mount(target: Path, *arguments: object) -> None:
        if not IS_ROOT:
            pytest.skip("only root can mount")
        tried = subprocess.run(["mount", *map(str, arguments), str(target)], capture_output=True, text=True)
        if tried.returncode:
            pytest.skip(f"cannot mount here: {tried.stderr.strip()}")
        done.append(target)

    yield mount
    for target in reversed(done):
        subprocess.run(["umount", target], check=True)


def test_a_disk_that_is_really_full(tmp_path: Path, mounted: Callable[..., None]) -> None:
    mounted(tmp_path, "-t", "tmpfs", "-o", "size=64k", "tmpfs")
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    said = refused(path, b"x" * 100_000)
    assert said == "could not be written (No space left on device); make room on that disk and run again"
    write(str(path), "a.yaml", b"old", b"new")
    assert path.read_bytes() == b"new"


def test_a_disk_that_is_really_read_only(tmp_path: Path, mounted: Callable[..., None]) -> None:
    mounted(tmp_path, "-t", "tmpfs", "tmpfs")
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
    assert refused_at_once(path).startswith("could not be written (Read-only file system); mount that file system writ")


def test_a_file_that_is_mounted_by_itself(tmp_path: Path, recipe: Path, mounted: Callable[..., None]) -> None:
    source = tmp_path / "elsewhere.yaml"
    source.write_bytes(b"old")
    mounted(recipe, "--bind", source)
    assert refused(recipe).startswith("could not be written (Device or resource busy); if it is mounted by itself")
    assert source.read_bytes() == b"old"


# -- the temporary file --------------------------------------------------------------------------------


def test_the_temporary_file_is_beside_the_target_and_no_recipe(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename is whole only within one file system; a left-over must not be taken for a recipe."""
    seen: list[list[str]] = []
    replace = os.replace

    def look(source: str, target: str) -> None:
        seen.append(names(recipe.parent))
        replace(source, target)

    monkeypatch.setattr(writing.os, "replace", look)
    write(str(recipe), "a.yaml", b"old", b"new")
    assert seen == [[temporary(recipe).name, "a.yaml"]]
    assert not temporary(recipe).name.endswith((".yaml", ".yml"))


def test_nobody_else_reads_what_is_not_yet_the_recipe(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    real = os.write

    def look(handle: int, data: bytes) -> int:
        modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        return real(handle, data)

    monkeypatch.setattr(writing.os, "write", look)
    write(str(recipe), "a.yaml", b"old", b"new")
    assert modes == [0o600]


def test_what_a_killed_run_has_left_is_taken_over(recipe: Path) -> None:
    """It is longer than what is written now."""
    temporary(recipe).write_bytes(b"the half of something long")
    write(str(recipe), "a.yaml", b"old", b"new")
    assert recipe.read_bytes() == b"new"
    assert names(recipe.parent) == ["a.yaml"]


@pytest.mark.skipif(not IS_ROOT, reason="only root gives its temporary file to the recipe's owner")
def test_what_a_killed_run_of_root_has_left_is_taken_over(recipe: Path) -> None:
    temporary(recipe).write_bytes(b"the half of something long")
    for path in (recipe, temporary(recipe)):
        os.chown(path, SOMEBODY, THEIRS)
    write(str(recipe), "a.yaml", b"old", b"new")
    assert recipe.read_bytes() == b"new"
    assert recipe.stat().st_uid == SOMEBODY


def test_the_temporary_file_of_the_next_run_stays(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be there as soon as ours has become the recipe."""
    replace = os.replace

    def rename(source: str, target: str) -> None:
        replace(source, target)
        temporary(recipe).write_bytes(b"the next run")

    monkeypatch.setattr(writing.os, "replace", rename)
    write(str(recipe), "a.yaml", b"old", b"new")
    assert recipe.read_bytes() == b"new"
    assert temporary(recipe).read_bytes() == b"the next run"


def put_in_the_way(path: Path, what: str, victim: Path) -> None:
    if what == "link":
        path.symlink_to(victim)
    elif what == "link to nothing":
        path.symlink_to(victim.with_name("nothing"))
    elif what == "hard link":
        os.link(victim, path)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)


@pytest.mark.parametrize(
    "what", ["link", "link to nothing", "hard link", "pipe", "pipe with a reader", "folder", "socket"]
)
def test_something_else_under_the_temporary_name(recipe: Path, tmp_path: Path, what: str) -> None:
    """Nothing is written into it, or waited for, and it stays."""
    victim = tmp_path / "victim.yaml"
    victim.write_bytes(b"not ours")
    put_in_the_way(temporary(recipe), what.removesuffix(" with a reader"), victim)
    before = temporary(recipe).lstat()
    reader = os.open(temporary(recipe), os.O_RDONLY | os.O_NONBLOCK) if what == "pipe with a reader" else None
    said = refused_at_once(recipe)
    assert said == (
        "has .a.yaml.gtp-migrate beside it, which is no left-over of yours but stands where it would be written; "
        "move that away and run again"
    )
    after = temporary(recipe).lstat()
    assert (after.st_ino, after.st_mode, after.st_nlink) == (before.st_ino, before.st_mode, before.st_nlink)
    assert victim.read_bytes() == b"not ours"
    if reader is not None:
        os.close(reader)


def test_a_file_of_somebody_else_under_the_temporary_name(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has it open could go on writing into what would become the recipe."""
    temporary(recipe).write_bytes(b"theirs")
    monkeypatch.setattr(writing.os, "geteuid", lambda: SOMEBODY)
    assert refused_at_once(recipe).startswith("has .a.yaml.gtp-migrate beside it, which is no left-over of yours")
    assert temporary(recipe).read_bytes() == b"theirs"


def test_a_file_system_without_locks(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(writing.fcntl, "flock", fail)
    temporary(recipe).write_bytes(b"who knows")
    assert refused_at_once(recipe).startswith("has .a.yaml.gtp-migrate beside it: another run is at work, or was")
    assert temporary(recipe).read_bytes() == b"who knows"
    temporary(recipe).unlink()
    write(str(recipe), "a.yaml", b"old", b"new")
    assert recipe.read_bytes() == b"new"


# -- two runs at once ----------------------------------------------------------------------------------

#: Writes, and stops before each of the calls that it is given until a line arrives on its stdin.
A_RUN = """
import fcntl, os, sys
from gtp_migrate.write import WriteError, write

def stop_at(module, name):
    real = getattr(module, name)
    def stopped(*args):
        print(name, flush=True)
        sys.stdin.readline()
        return real(*args)
    setattr(module, name, stopped)

path, new, *stops = sys.argv[1:]
for name in stops:
    stop_at(fcntl if name == "flock" else os, name)
try:
    write(path, "a.yaml", b"old", new.encode())
    print("written")
except WriteError as error:
    print(error)
"""


class AnotherRun:
    """A process that writes a recipe, and stands still at a call once this is made."""

    def __init__(self, path: Path, new: str, stop: str | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", A_RUN, path, new, *([stop] if stop else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        if stop:
            assert self.process.stdout.readline().strip() == stop

    def end(self) -> str:
        """Lets it go on to its end; returns what it says."""
        return self.process.communicate("\n")[0].strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


OTHER_RUN = "a.yaml: is being written by another run; run again when that has ended"


def test_two_runs_at_once(recipe: Path) -> None:
    """The second leaves it to the first."""
    first = AnotherRun(recipe, "first", "replace")
    assert AnotherRun(recipe, "second").end() == OTHER_RUN
    with pytest.raises(WriteError, match="is being written by another run"):
        check_writable(str(recipe), "a.yaml")
    assert recipe.read_bytes() == b"old"
    assert first.end() == "written"
    assert recipe.read_bytes() == b"first"
    assert names(recipe.parent) == ["a.yaml"]


def test_two_runs_in_turn(recipe: Path) -> None:
    """The second has opened the first one's temporary file, and gets its lock when that has become the recipe."""
    first = AnotherRun(recipe, "first", "replace")
    second = AnotherRun(recipe, "second", "flock")
    assert first.end() == "written"
    assert second.end() == OTHER_RUN
    assert recipe.read_bytes() == b"first"
    assert names(recipe.parent) == ["a.yaml"]


def test_two_runs_of_which_the_first_gives_up(recipe: Path) -> None:
    """The second has opened a temporary file that is gone."""
    first = AnotherRun(recipe, "first", "replace")
    second = AnotherRun(recipe, "second", "flock")
    recipe.rename(recipe.with_name("b.yaml"))
    recipe.mkdir()
    assert first.end() == "a.yaml: could not be written (Is a directory); mend that and run again"
    assert second.end() == OTHER_RUN
    assert names(recipe.parent) == ["a.yaml", "b.yaml"]


@pytest.mark.parametrize("moment", ["ftruncate", "fsync", "replace"])
def test_a_run_after_one_that_was_killed(recipe: Path, moment: str) -> None:
    AnotherRun(recipe, "something quite long", moment).kill()
    assert recipe.read_bytes() == b"old"
    assert names(recipe.parent) == [temporary(recipe).name, "a.yaml"]
    assert AnotherRun(recipe, "short").end() == "written"
    assert recipe.read_bytes() == b"short"
    assert names(recipe.parent) == ["a.yaml"]


# -- the files of a run --------------------------------------------------------------------------------


def test_a_left_over_of_a_killed_run_does_not_matter(folder: Path) -> None:
    (folder / ".base.yaml.gtp-migrate").write_text(NEW * 2)
    ran = run(folder, ".")
    assert ran.code == 0
    assert ran.files == {"base.yaml": NEW, "child.yaml": CHILD_NEW, "other.yaml": NEW}


def test_modes_are_kept_in_a_run(folder: Path) -> None:
    (folder / "base.yaml").chmod(0o640)
    (folder / "child.yaml").chmod(0o755)
    run(folder, ".")
    assert [stat.S_IMODE((folder / name).stat().st_mode) for name in ("base.yaml", "child.yaml")] == [0o640, 0o755]


def test_nothing_is_touched_that_does_not_change(folder: Path) -> None:
    (folder / "plain.yaml").write_text("defaults: base.yaml\n")
    before = (folder / "plain.yaml").stat()
    assert run(folder, ".").code == 0
    after = (folder / "plain.yaml").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("option", ["--dry-run", "--check"])
def test_nothing_is_touched_where_nothing_is_to_be_written(folder: Path, option: str) -> None:
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}
    run(folder, option, ".")
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()} == before


def test_children_are_written_before_parents(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    replace = os.replace

    def look(source: str, target: str) -> None:
        order.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(writing.os, "replace", look)
    run(folder, ".")
    assert sorted(order) == ["base.yaml", "child.yaml", "other.yaml"]
    assert order.index("child.yaml") < order.index("base.yaml")


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of files and folders that may not be written, whoever runs the tests."""
    names: set[str] = set()
    real = os.open

    def check(path: str, flags: int, *more: int) -> int:
        what = Path(path).parent if flags & os.O_CREAT else Path(path)
        if flags & (os.O_WRONLY | os.O_RDWR) and what.name in names:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, *more)

    monkeypatch.setattr(writing.os, "open", check)
    return names


@pytest.mark.parametrize("name", ["base.yaml", "child.yaml"])
def test_a_group_is_not_written_by_half(folder: Path, denied: set[str], name: str) -> None:
    denied.add(name)
    ran = run(folder, ".")
    assert ran.code == 3
    assert ran.files == {"base.yaml": OLD, "child.yaml": CHILD_OLD, "other.yaml": NEW}
    assert [line.split(": ")[0] for line in ran.problems] == [name]
    assert "may not be written" in ran.problems[0]
    assert "1 setting in 1 file migrated" in ran.stderr


def test_a_folder_that_may_not_be_written(tmp_path: Path, denied: set[str]) -> None:
    write_files(tmp_path, {"locked/a.yaml": OLD, "open/a.yaml": OLD})
    denied.add("locked")
    ran = run(tmp_path, ".")
    assert ran.code == 3
    assert ran.files == {"locked/a.yaml": OLD, "open/a.yaml": NEW}
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("locked/a.yaml: ")


def failing_at(monkeypatch: pytest.MonkeyPatch, name: str, error: OSError) -> None:
    replace = os.replace

    def fail(source: str, target: str) -> None:
        if Path(target).name == name:
            raise error
        replace(source, target)

    monkeypatch.setattr(writing.os, "replace", fail)


def test_a_disk_that_fills_up_in_the_middle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is written, its parent cannot be: that means the same, and a second run finishes it."""
    with monkeypatch.context() as patched:
        failing_at(patched, "base.yaml", OSError(28, "No space left on device"))
        ran = run(folder, ".")
    assert ran.code == 3
    assert ran.files.pop(UNFINISHED)
    assert ran.files == {"base.yaml": OLD, "child.yaml": CHILD_NEW, "other.yaml": NEW}
    assert [line for line in ran.problems if line.startswith("base.yaml: ")] == ran.problems
    assert "2 settings in 2 files migrated" in ran.stderr
    again: Ran = run(folder, ".")
    assert again.code == 0, again.stderr
    assert again.files == {"base.yaml": NEW, "child.yaml": CHILD_NEW, "other.yaml": NEW}


def test_a_file_that_changes_while_we_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody else wrote is never overwritten."""
    open_file = writing.os.open

    def meanwhile(path: str, flags: int, *args: int) -> int:
        if flags & writing.os.O_CREAT:
            (folder / "other.yaml").write_text("mine: 1\n")
        return open_file(path, flags, *args)

    monkeypatch.setattr(writing.os, "open", meanwhile)
    ran = run(folder, ".")
    assert ran.code == 3
    assert ran.files == {"base.yaml": NEW, "child.yaml": CHILD_NEW, "other.yaml": "mine: 1\n"}
    assert len(ran.problems) == 1
    assert ran.problems[0].startswith("other.yaml: was changed by somebody else")


# -- symbolic links ------------------------------------------------------------------------------------


def test_a_link_stays_a_link(migrate: Migrate, tmp_path: Path) -> None:
    work = tmp_path / "work"
    write_files(work, {"store/a.yaml": OLD})
    (work / "recipes").mkdir()
    (work / "recipes" / "a.yaml").symlink_to("../store/a.yaml")
    ran = migrate({}, paths=("recipes",))
    assert ran.code == 0, ran.stderr
    assert (work / "recipes" / "a.yaml").readlink() == Path("../store/a.yaml")
    assert not (work / "store" / "a.yaml").is_symlink()
    assert ran.files == {"store/a.yaml": NEW, "recipes/a.yaml": NEW}
    assert names(work / "store") == ["a.yaml"]


def test_a_target_is_written_once(migrate: Migrate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    write_files(work, {"a.yaml": OLD})
    (work / "b.yaml").symlink_to("a.yaml")
    (work / "c.yaml").symlink_to("b.yaml")
    written: list[str] = []
    replace = os.replace

    def look(source: str, target: str) -> None:
        written.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(writing.os, "replace", look)
    ran = migrate({})
    assert ran.code == 0, ran.stderr
    assert written == ["a.yaml"]
    assert "1 setting in 1 file migrated" in ran.stderr
    assert (work / "b.yaml").is_symlink()
    assert (work / "c.yaml").is_symlink()
    assert migrate({}).code == 0
    assert written == ["a.yaml"]


def test_a_link_to_a_folder(migrate: Migrate, tmp_path: Path) -> None:
    work = tmp_path / "work"
    write_files(work, {"store/a.yaml": OLD})
    (work / "recipes").mkdir()
    (work / "recipes" / "linked").symlink_to("../store", target_is_directory=True)
    ran = migrate({}, paths=("recipes", "store"))
    assert ran.code == 0, ran.stderr
    assert (work / "store" / "a.yaml").read_text() == NEW
    assert (work / "recipes" / "linked").is_symlink()


def test_a_file_with_two_names_is_left(migrate: Migrate, tmp_path: Path) -> None:
    work = tmp_path / "work"
    write_files(work, {"a.yaml": OLD, "c.yaml": OLD})
    os.link(work / "a.yaml", work / "b.yaml")
    ran = migrate({})
    assert ran.code == 3
    assert ran.files == {"a.yaml": OLD, "b.yaml": OLD, "c.yaml": NEW}
    (problem,) = ran.problems
    assert problem.startswith("a.yaml: is one file under 2 names (hard links), which cannot all be given")
    assert "(so do 1 more: b.yaml)" in problem
