"""What the tests of the command share: a way to run it on files that are written out in the test."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gtp_migrate.__main__ import main

from . import oracle

Content = str | bytes


@dataclass
class Ran:
    """What a run left behind."""

    #: All files below the folder it ran in, by name: text, or bytes where it is not UTF-8.
    files: dict[str, Content]
    code: int
    stdout: str
    stderr: str

    @property
    def problems(self) -> list[str]:
        """The lines on stderr that name a place and a way out."""
        return [line for line in self.stderr.splitlines() if ": " in line and "; " in line and " │ " not in line]


Migrate = Callable[..., Ran]


def dedent(content: Content) -> Content:
    return content if isinstance(content, bytes) else text(content)


def text(indented: str) -> str:
    """A text that a test has indented, as a file would hold it."""
    return textwrap.dedent(indented).removeprefix("\n")


def write_files(folder: Path, files: dict[str, Content]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = dedent(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def read_files(folder: Path) -> dict[str, Content]:
    files: dict[str, Content] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".git" not in path.relative_to(folder).parts:
            data = path.read_bytes()
            try:
                files[path.relative_to(folder).as_posix()] = data.decode()
            except UnicodeDecodeError:
                files[path.relative_to(folder).as_posix()] = data
    return files


@contextlib.contextmanager
def _captured() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    out, err = io.BytesIO(), io.BytesIO()
    before = sys.stdout, sys.stderr
    wrapped = [
        io.TextIOWrapper(out, encoding="utf-8", newline=""),
        io.TextIOWrapper(err, encoding="utf-8", newline="", errors="backslashreplace"),
    ]
    sys.stdout, sys.stderr = wrapped
    try:
        yield out, err
    finally:
        # Or the bytes would be closed with what wraps them.
        for stream in wrapped:
            stream.flush()
            stream.detach()
        sys.stdout, sys.stderr = before


def run(folder: Path, *args: str) -> Ran:
    """Runs `gtp-migrate` with these arguments in a folder. Whatever it raises, but its exit, comes out."""
    here, argv = Path.cwd(), sys.argv
    code: object = 0
    with _captured() as (out, err):
        try:
            os.chdir(folder)
            sys.argv = ["gtp-migrate", *args]
            main()
        except SystemExit as exit_:
            code = exit_.code
        finally:
            os.chdir(here)
            sys.argv = argv
    return Ran(
        read_files(folder),
        0 if code is None else code if isinstance(code, int) else 1,
        out.getvalue().decode(errors="surrogateescape"),
        err.getvalue().decode(),
    )


#: What makes a terminal change its colour or its weight.
CODE = re.compile(r"\x1b\[[0-9;]*m")


def unstyled(said: str) -> list[str]:
    """The lines that a terminal shows."""
    return CODE.sub("", said).splitlines()


def in_a_terminal(folder: Path, *args: str, **env: str) -> str:
    """What the command writes to stdout where that is a terminal."""
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals on this system")
    ours, theirs = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-m", "gtp_migrate", *args],
        cwd=folder,
        env={**clean, "TERM": "xterm-256color", **env},
        stdout=theirs,
        stderr=theirs,
    ):
        os.close(theirs)
        said = b""
        # Linux ends it with an error, others with nothing.
        with contextlib.suppress(OSError):
            while data := os.read(ours, 65536):
                said += data
    os.close(ours)
    return said.decode()


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No NeMo-RL that is installed or imported, no terminal and no CI around the tests has a say in them."""
    monkeypatch.setitem(sys.modules, "nemo_rl", None)
    terminal = ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TERMINAL_WIDTH", "PY_COLORS")
    for name in (*terminal, "GITHUB_WORKSPACE", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch)


@pytest.fixture
def launched(request: pytest.FixtureRequest) -> Callable[[dict[str, Content]], dict[str, Content]]:
    """Puts the section of an algorithm at the end of each recipe: that of `@pytest.mark.launcher("grpo")`.

    By it the launcher is known, and so whether there are resolvers. Without the mark recipes stay as they are: no launcher
    starts them, so that nobody knows.
    """
    mark = request.node.get_closest_marker("launcher")

    def launched(files: dict[str, Content]) -> dict[str, Content]:
        if mark is None:
            return files
        return {name: _with_section(name, dedent(content), mark.args[0]) for name, content in files.items()}

    return launched


def _with_section(name: str, content: Content, algorithm: str) -> Content:
    if isinstance(content, bytes) or name.endswith(".py"):
        return content
    if content.startswith("{"):
        content = content.rstrip().removesuffix("}") + f', "{algorithm}": {{"max_num_steps": 1}}}}\n'
    else:
        content += ("" if content.endswith("\n") else "\n") + f"{algorithm}: {{max_num_steps: 1}}\n"
    return content.encode()


@pytest.fixture
def migrate(tmp_path: Path, launched: Callable[..., dict[str, Content]]) -> Migrate:
    """`migrate({name: text}, *arguments)` writes the files and runs the command on their folder.

    Paths among the arguments are names of these files; without any, the whole folder is given.
    """
    folder = tmp_path / "work"
    folder.mkdir()

    def migrate(files: dict[str, Content], *args: str, paths: tuple[str, ...] = (".",)) -> Ran:
        write_files(folder, launched(files))
        return run(folder, *args, *paths)

    return migrate


@pytest.fixture
def becomes(migrate: Migrate, tmp_path: Path, launched: Callable[..., dict[str, Content]]) -> Callable[..., Ran]:
    """`becomes(before, after, *arguments)`: a run turns the files into `after`, and a second one leaves them so.

    Files that `after` does not name stay as they are. By the tests' own reading every recipe must run as before, unless
    `proven` is false: for files of which no run could be started as they are.
    """

    def becomes(
        before: dict[str, Content],
        after: dict[str, Content],
        *args: str,
        paths: tuple[str, ...] = (".",),
        proven: bool = True,
    ) -> Ran:
        write_files(tmp_path / "before", launched(before))
        ran = migrate(before, *args, paths=paths)
        assert ran.code == 0, ran.stderr
        assert ran.files == {name: _text(content) for name, content in launched({**before, **after}).items()}
        again = migrate({}, *args, paths=paths)
        assert (again.code, again.files) == (0, ran.files), again.stderr
        if proven:
            typed = "megatron-cfg" in args
            tp = int(args[args.index("--tp") + 1]) if "--tp" in args else 6
            for name in before:
                old, new = tmp_path / "before" / name, tmp_path / "work" / name
                assert oracle.topologies(new, typed=typed, tp=tp) == oracle.topologies(old, typed=typed, tp=tp), name
                assert oracle.old_keys(new) == []
                oracle.assert_runs_as_before(old, new, typed=typed, tp=tp)
        return ran

    return becomes


@pytest.fixture
def stays(migrate: Migrate, launched: Callable[..., dict[str, Content]]) -> Callable[..., Ran]:
    """`stays(files, *arguments)`: a run exits 3 and writes nothing."""

    def stays(files: dict[str, Content], *args: str, paths: tuple[str, ...] = (".",), code: int = 3) -> Ran:
        ran = migrate(files, *args, paths=paths)
        assert ran.code == code, ran.stderr
        assert ran.files == {name: _text(content) for name, content in launched(files).items()}
        return ran

    return stays


def _text(content: Content) -> Content:
    content = dedent(content)
    if isinstance(content, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return content.decode()
    return content
