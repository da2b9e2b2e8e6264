"""The changes as a unified diff that `git apply` and `patch -p1` take."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator

from gtp_migrate.outcome import Edited

_NO_NEWLINE = b"\\ No newline at end of file\n"


def base_folder(edited: Iterable[Edited], paths: Iterable[str]) -> str:
    """The folder that the names in the diff are relative to: the current one where all files are below it,
    else the one around all given paths."""
    here = os.path.realpath(os.getcwd())
    if all(each.path.startswith(here + os.sep) for each in edited):
        return here
    files = [each.path for each in edited]
    folders = [os.path.dirname(os.path.realpath(path)) for path in paths]
    return os.path.commonpath([*folders, *(os.path.dirname(file) for file in files)])


def unified_diff(edited: Iterable[Edited], base: str) -> Iterator[bytes]:
    """The diff, file by file."""
    for each in sorted(edited, key=lambda each: each.path):
        name = os.path.relpath(each.path, base).replace(os.sep, "/")
        before, after = _lines(each.before), _lines(each.after)
        lines = difflib.diff_bytes(
            difflib.unified_diff, before, after, _name("a/", name), _name("b/", name), lineterm=b"\n"
        )
        out = []
        for line in lines:
            out.append(line if line.endswith(b"\n") else line + b"\n" + _NO_NEWLINE)
        yield b"".join(out)


def _lines(data: bytes) -> list[bytes]:
    """Lines end with a line feed and nothing else: whatever YAML makes of other characters, git does not."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _name(prefix: str, name: str) -> bytes:
    name = prefix + name
    if any(char in '"\\' or ord(char) < 0x20 for char in name):
        quoted = "".join(
            f"\\{char}" if char in '"\\' else f"\\{ord(char):03o}" if ord(char) < 0x20 else char for char in name
        )
        return os.fsencode(f'"{quoted}"')
    # As git does: a tab ends a name that has blanks in it.
    return os.fsencode(name + ("\t" if " " in name else ""))
