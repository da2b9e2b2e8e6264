"""Lines for people: in colours and wrapped where there is a terminal, plain and uncut elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TextIO

from rich.cells import cell_len

from gtp_migrate.report.table import make_console
from gtp_migrate.streams import safe_text

#: How far the rest of a line that is too long stands behind its start.
_HANGING = 4


class Styled(str):
    """A line in a style of its own."""

    __slots__ = ("style",)
    style: str

    def __new__(cls, text: str, style: str) -> Styled:
        """
        Args:
            text: the line.
            style: as rich has them: `bold`, `red`.
        """
        line = super().__new__(cls, text)
        line.style = style
        return line


def print_lines(lines: Iterable[str], stream: TextIO) -> None:
    """Prints lines; indented ones keep their indent where they are wrapped."""
    console = make_console(stream)
    for line in lines:
        style = line.style if isinstance(line, Styled) else None
        for piece in wrapped(safe_text(line), console.width):
            console.print(piece, style=style, markup=False, soft_wrap=True)


def wrapped(line: str, width: int) -> Iterator[str]:
    """A line in pieces that fit. No word is broken: a path in two pieces can be neither searched for nor opened."""
    if cell_len(line) <= width:
        yield line
        return
    indent = " " * (len(line) - len(line.lstrip(" ")))
    piece, length = indent, len(indent)
    is_empty = True
    for word in line[len(indent) :].split(" "):
        if not is_empty and length + 1 + cell_len(word) > width:
            yield piece
            piece, length, is_empty = indent + " " * _HANGING, len(indent) + _HANGING, True
        piece += word if is_empty else f" {word}"
        length += cell_len(word) + (not is_empty)
        is_empty = False
    yield piece
