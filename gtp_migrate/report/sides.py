"""A changed file, before and after side by side, with what differs within each line marked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from gtp_migrate.outcome import Edited
from gtp_migrate.streams import safe_text

#: Lines around a change that are shown with it.
_AROUND = 3
#: A longer line is not looked into.
_LONGEST = 2_000
_TOKEN = re.compile(r"\w+|\s+|.", re.S)


@dataclass(frozen=True)
class Line:
    """A line of one side: its number from 1, and its text in pieces: every second piece is what has changed."""

    number: int
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """What stands side by side; None where the other side has no such line."""

    before: Line | None
    after: Line | None

    @property
    def is_changed(self) -> bool:
        """Whether the two sides differ."""
        return self.before is None or self.after is None or len(self.before.pieces) + len(self.after.pieces) > 2


def hunks(edited: Edited) -> list[list[Row]]:
    """The changed places of a file, each with a few lines around it."""
    before, after = _lines(edited.before), _lines(edited.after)
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    return [
        [row for tag, *span in opcodes for row in _rows(tag, before, after, *span)]
        for opcodes in matcher.get_grouped_opcodes(_AROUND)
    ]


def _lines(data: bytes) -> list[str]:
    lines = data.decode("utf-8", "backslashreplace").removeprefix("\ufeff").split("\n")
    if not lines[-1]:
        lines.pop()
    return [safe_text(line.removesuffix("\r").expandtabs()) for line in lines]


def _rows(
    tag: str, before: list[str], after: list[str], start: int, end: int, other_start: int, other_end: int
) -> Iterator[Row]:
    for offset in range(max(end - start, other_end - other_start)):
        old = before[start + offset] if start + offset < end else None
        new = after[other_start + offset] if other_start + offset < other_end else None
        if tag == "equal" or old is None or new is None:
            pieces: tuple[tuple[str, ...], tuple[str, ...]] = ((old or "",), (new or "",))
        else:
            pieces = _marked(old, new)
        yield Row(
            None if old is None else Line(start + offset + 1, pieces[0]),
            None if new is None else Line(other_start + offset + 1, pieces[1]),
        )


def _marked(old: str, new: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if max(len(old), len(new)) > _LONGEST:
        return ("", old), ("", new)
    sides = _TOKEN.findall(old), _TOKEN.findall(new)
    pieces: tuple[list[str], list[str]] = ([""], [""])
    opcodes = SequenceMatcher(None, *sides, autojunk=False).get_opcodes()
    for number, (tag, *spans) in enumerate(opcodes):
        common = "".join(sides[0][spans[0] : spans[1]])
        # A number that stays, in the middle of an expression that is new, is a part of what is new.
        is_crumb = 0 < number < len(opcodes) - 1 and len(common) < 3 and not any(map(str.isspace, common))
        is_changed = tag != "equal" or is_crumb
        for side, texts, (start, end) in zip(pieces, sides, (spans[:2], spans[2:]), strict=True):
            text = "".join(texts[start:end])
            if (len(side) % 2 == 0) == is_changed:
                side[-1] += text
            elif text:
                side.append(text)
    return tuple(pieces[0]), tuple(pieces[1])
