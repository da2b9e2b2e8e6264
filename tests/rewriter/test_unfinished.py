"""A run that is stopped between two files of a group: what it has put down, and what the next run does with that."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

import gtp_migrate.unfinished
from gtp_migrate.recipes.discover import UNFINISHED

from .conftest import read_files, run, write_files
from .test_kill import Stopped, stopped_after

#: The generation model of `child` is a copy of a policy that is half in one file, half in the other.
BASE = """\
grpo: {max_num_steps: 1}
policy:
  megatron_cfg:
    tensor_model_parallel_size: 4
    model_overrides:
      gtp_weight_remat_size: 3
  generation:
    backend: megatron
    colocated: {enabled: false}
    mcore_generation_config:
      tensor_model_parallel_size: 2
"""
CHILD = "defaults: ../base.yaml\npolicy:\n  megatron_cfg:\n    model_overrides:\n      gtp_weight_remat_size: 2\n"
FILES = {"base.yaml": BASE, "sub/child.yaml": CHILD}
#: Beside the child, which is written first.
PUT_DOWN = f"sub/{UNFINISHED}"


@pytest.fixture
def finished(tmp_path: Path) -> dict[str, Any]:
    """The files as a run leaves them that is not stopped."""
    write_files(tmp_path / "finished", FILES)
    ran = run(tmp_path / "finished", ".")
    assert (ran.code, ran.files.keys()) == (0, FILES.keys())
    return ran.files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout in which a run was stopped after the first of two files."""
    folder = tmp_path / "work"
    write_files(folder, FILES)
    (folder / ".git").mkdir()
    with stopped_after(1), pytest.raises(Stopped):
        run(folder, ".")
    assert read_files(folder).keys() == {*FILES, PUT_DOWN}
    return folder


def refused(folder: Path, *args: str, code: int = 3) -> str:
    """What a run says that writes nothing."""
    before = read_files(folder)
    ran = run(folder, *args)
    assert (ran.code, ran.files, ran.stdout) == (code, before, "")
    [line] = ran.problems
    return line


def test_the_next_run_finishes(folder: Path, finished: dict[str, Any]) -> None:
    assert read_files(folder)["sub/child.yaml"] == finished["sub/child.yaml"]
    ran = run(folder, ".")
    assert (ran.code, ran.files) == (0, finished)
    assert (
        f"{PUT_DOWN}: a run was stopped between files that belong together; wrote the 1 that it had left" in ran.stderr
    )
    assert "Nothing to migrate" in ran.stderr


def test_it_finishes_what_was_begun_whatever_is_asked_now(folder: Path, finished: dict[str, Any]) -> None:
    """The half that is written is of that kind."""
    ran = run(folder, "--style", "literal", "-q", ".")
    assert (ran.code, ran.files) == (0, finished)


@pytest.mark.parametrize(
    "paths", [["base.yaml", "sub/child.yaml"], ["sub/child.yaml", "base.yaml"], ["sub", "base.yaml"]]
)
def test_given_as_files(folder: Path, finished: dict[str, Any], paths: list[str]) -> None:
    ran = run(folder, *paths)
    assert (ran.code, ran.files) == (0, finished)


def test_one_folder_by_two_names(folder: Path, finished: dict[str, Any]) -> None:
    (folder / "link").symlink_to("sub")
    ran = run(folder, "sub/child.yaml", ".")
    assert ran.code == 0, ran.stderr
    assert not (folder / PUT_DOWN).exists()


@pytest.mark.parametrize(("arguments", "code"), [(["--dry-run"], 3), (["--check"], 1)])
def test_where_nothing_may_be_written(folder: Path, arguments: list[str], code: int) -> None:
    """Nor is anything worked out from half a tree, in a checkout or not."""
    (folder / ".git").rmdir()
    assert refused(folder, *arguments, ".", code=code) == (
        f"{PUT_DOWN}: a run was stopped between files that belong together; run it again to finish"
    )


def test_beside_others_of_the_checkout(folder: Path) -> None:
    """What is given may be a part of the same recipes."""
    assert refused(folder, "base.yaml").startswith(f"{PUT_DOWN}: a run was stopped between files")


def test_a_file_that_is_not_given(folder: Path) -> None:
    line = refused(folder, "sub")
    assert line == f"{PUT_DOWN}: a run was stopped before it had written base.yaml; give that file as well"


@pytest.mark.parametrize("content", [BASE + "# edited\n", None])
def test_a_file_that_has_changed_since(folder: Path, content: str | None) -> None:
    (folder / "base.yaml").unlink()
    if content is not None:
        (folder / "base.yaml").write_text(content)
    line = refused(folder, ".")
    assert line.startswith(f"{PUT_DOWN}: base.yaml has changed since a run was stopped that was to write it; ")


def test_all_put_back(folder: Path, finished: dict[str, Any]) -> None:
    """As by `git checkout`: nothing is half written, and all is worked out anew."""
    write_files(folder, FILES)
    ran = run(folder, "--style", "literal", ".")
    assert (ran.code, ran.files.keys()) == (0, FILES.keys())
    assert ran.files != finished
    assert "mul" not in ran.files["sub/child.yaml"]


def test_stopped_while_it_was_put_down(folder: Path, finished: dict[str, Any]) -> None:
    write_files(folder, FILES)
    (folder / PUT_DOWN).write_bytes((folder / PUT_DOWN).read_bytes()[:-20])
    ran = run(folder, ".")
    assert (ran.code, ran.files) == (0, finished)


def test_another_run_is_at_work(folder: Path) -> None:
    with (folder / PUT_DOWN).open() as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert refused(folder, ".").startswith(f"{PUT_DOWN}: is of a run that is at work; ")


def test_another_run_has_begun_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After this one has looked."""
    write_files(tmp_path, FILES)
    check = gtp_migrate.write_all.check_writable

    def slow(path: str, shown: str) -> None:
        check(path, shown)
        (tmp_path / PUT_DOWN).write_text("[]")

    monkeypatch.setattr(gtp_migrate.write_all, "check_writable", slow)
    ran = run(tmp_path, ".")
    assert (ran.code, ran.files) == (3, {**FILES, PUT_DOWN: "[]"})
    assert f"sub/child.yaml: was not written: another run has put {UNFINISHED} beside it; " in ran.stderr


def test_of_somebody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert refused(folder, ".").startswith(f"{PUT_DOWN}: was put down by a run of somebody else")


@pytest.mark.parametrize("text", ["1", "[1]", '[["base.yaml"]]', '{"base.yaml": 1}', '[["base.yaml", 1, ""]]', "null"])
def test_something_else_of_that_name(folder: Path, text: str) -> None:
    (folder / PUT_DOWN).write_text(text)
    assert refused(folder, ".") == f"{PUT_DOWN}: is not what a run puts down that is stopped; remove it and run again"


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_no_file_of_that_name(folder: Path, kind: str) -> None:
    (folder / PUT_DOWN).unlink()
    if kind == "folder":
        (folder / PUT_DOWN).mkdir()
    elif kind == "link":
        (folder / PUT_DOWN).symlink_to("nowhere")
    else:
        os.mkfifo(folder / PUT_DOWN)
    ran = run(folder, "sub/child.yaml", "base.yaml")
    assert ran.code == 3
    assert PUT_DOWN in ran.stderr


def test_nobody_s_text_writes_elsewhere(folder: Path) -> None:
    """A checkout may come with such a file: it can only say what its own recipes are to hold."""
    victim = folder.parent / "victim"
    victim.write_text("mine")
    digests = [hashlib.sha256(b"").hexdigest(), hashlib.sha256(b"mine").hexdigest()]
    (folder / PUT_DOWN).write_text(json.dumps([["../../victim", digests, "theirs"], ["../base.yaml", [""], BASE]]))
    assert "give that file as well" in refused(folder, ".")
    assert victim.read_text() == "mine"


def test_a_disk_that_is_full_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written, and nothing stays behind."""
    write_files(tmp_path, FILES)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gtp_migrate.unfinished.os, "fsync", full)
    ran = run(tmp_path, ".")
    assert (ran.code, ran.files) == (3, FILES)
    assert "make room on that disk" in ran.stderr


def test_it_is_on_the_disk_before_the_first_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, FILES)
    done: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda handle: (done.append(os.readlink(f"/proc/self/fd/{handle}")), fsync(handle))[1]
    )
    monkeypatch.setattr(os, "replace", lambda *names: (done.append(f"→ {names[1]}"), replace(*names))[1])
    assert run(tmp_path, ".").code == 0
    assert done[:2] == [str(tmp_path / PUT_DOWN), str(tmp_path / "sub")]
    assert done.index(f"→ {tmp_path}/sub/child.yaml") > 1


def test_one_file_alone_needs_none(tmp_path: Path) -> None:
    """A file is replaced whole or not at all."""
    write_files(tmp_path, {"base.yaml": BASE})
    with stopped_after(0), pytest.raises(Stopped):
        run(tmp_path, ".")
    assert read_files(tmp_path) == {"base.yaml": BASE}
