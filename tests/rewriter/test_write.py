"""Writing: a file is replaced whole or not at all, and a group of files together."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gtp_migrate import write as writing
from gtp_migrate.write import WriteError, write

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


def test_write(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    write(str(path), "a.yaml", b"old", b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a.yaml"]


def test_a_reader_sees_all_of_the_old_or_all_of_the_new(tmp_path: Path) -> None:
    """Whoever has the file open goes on reading the old one: it is replaced, not written over."""
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old" * 1000)
    with path.open("rb") as stream:
        assert stream.read(3) == b"old"
        write(str(path), "a.yaml", b"old" * 1000, b"new")
        assert stream.read() == b"old" * 999
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o664, 0o755, 0o444])
def test_the_mode_is_kept(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    path.chmod(mode)
    write(str(path), "a.yaml", b"old", b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_the_mode_is_kept_under_any_umask(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    path.chmod(0o666)
    before = os.umask(0o077)
    try:
        write(str(path), "a.yaml", b"old", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


@pytest.mark.parametrize("current", [b"other", None], ids=["changed", "gone"])
def test_a_file_that_is_not_what_it_was(tmp_path: Path, current: bytes | None) -> None:
    path = tmp_path / "a.yaml"
    if current is not None:
        path.write_bytes(current)
    with pytest.raises(WriteError) as caught:
        write(str(path), "shown.yaml", b"old", b"new")
    assert str(caught.value).startswith("shown.yaml: ")
    assert names(tmp_path) == ([] if current is None else ["a.yaml"])
    assert current is None or path.read_bytes() == current


@pytest.mark.parametrize("call", ["fsync", "replace", "fchmod", "stat"])
def test_an_error_leaves_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    with monkeypatch.context() as patched:
        patched.setattr(writing.os, call, fail)
        with pytest.raises(WriteError) as caught:
            write(str(path), "a.yaml", b"old", b"new")
    assert "No space left on device" in str(caught.value)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.yaml"]


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    with monkeypatch.context() as patched:
        patched.setattr(writing.os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write(str(path), "a.yaml", b"old", b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.yaml"]


def test_the_temporary_file_is_beside_the_target_and_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename is whole only within one file system; a left-over must not be taken for a recipe."""
    seen: list[list[str]] = []
    replace = os.replace

    def look(source: str, target: str) -> None:
        seen.append(names(tmp_path))
        replace(source, target)

    path = tmp_path / "a.yaml"
    path.write_bytes(b"old")
    monkeypatch.setattr(writing.os, "replace", look)
    write(str(path), "a.yaml", b"old", b"new")
    (during,) = seen
    assert len(during) == 2
    assert sum(name.endswith((".yaml", ".yml")) for name in during) == 1


def test_a_left_over_of_a_killed_run_does_not_matter(folder: Path) -> None:
    (folder / ".base.yaml.abcdefgh.gtp-migrate").write_text("half")
    ran = run(folder, ".")
    assert ran.code == 0
    assert ran.files["base.yaml"] == NEW


# -- the files of a run --------------------------------------------------------------------------------


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
    """Names of files that may not be written, whoever runs the tests."""
    names: set[str] = set()
    access = os.access

    def check(path: str, mode: int, **more: bool) -> bool:
        return access(path, mode, **more) and not (mode & os.W_OK and Path(path).name in names)

    monkeypatch.setattr(writing.os, "access", check)
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


def test_hard_links_are_two_files(migrate: Migrate, tmp_path: Path) -> None:
    work = tmp_path / "work"
    write_files(work, {"a.yaml": OLD})
    os.link(work / "a.yaml", work / "b.yaml")
    ran = migrate({})
    assert ran.code == 0, ran.stderr
    assert ran.files == {"a.yaml": NEW, "b.yaml": NEW}
