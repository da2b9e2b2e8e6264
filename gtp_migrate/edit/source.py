"""Lines, indents and line ends of a text, and what is to be spliced into it."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from gtp_migrate.edit.nodes import BREAK, Alias, Document, Mapping, Node, Pair, Scalar
from gtp_migrate.plan.changes import Spot

_LAST_BREAK = re.compile(rf"(?:{BREAK.pattern})\Z")
_COMMENT = re.compile(r"(?:^|[\s,\[{])#", re.MULTILINE)


class CannotEdit(Exception):
    """A change that this text cannot take.

    Args:
        what: why, in words that can follow "cannot be rewritten safely: ".
        at: where in the text, if not at the changed entry.
    """

    def __init__(self, what: str, at: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.at = at


class Source:
    """A text by lines."""

    def __init__(self, text: str) -> None:
        self.text = text
        if text.isascii() and "\r" not in text:
            # As it nearly always is: much faster than to look for all that YAML takes for a line break.
            self._ends = list(itertools.accumulate((len(line) for line in text.split("\n")), lambda a, b: a + 1 + b))
            self._starts = [0, *(end + 1 for end in self._ends[:-1])]
            return
        breaks = list(BREAK.finditer(text))
        self._starts = [0, *(each.end() for each in breaks)]
        self._ends = [*(each.start() for each in breaks), len(text)]

    def line(self, position: int) -> int:
        """The number of a line, from 0."""
        return bisect_right(self._starts, position) - 1

    def line_start(self, position: int) -> int:
        return self._starts[self.line(position)]

    def line_end(self, position: int) -> int:
        """Where the line's ending stands, or the end of the text."""
        return self._ends[self.line(position)]

    def next_line(self, position: int) -> int:
        """Where the next line starts, or the end of the text."""
        line = self.line(position) + 1
        return self._starts[line] if line < len(self._starts) else len(self.text)

    def lines(self, start: int, end: int) -> list[str]:
        """The whole lines from one line start to another one, without their ends."""
        return [self.text[self._starts[line] : self._ends[line]] for line in range(self.line(start), self.line(end))]

    def column(self, position: int) -> int:
        """From 0."""
        return position - self.line_start(position)

    def indent(self, position: int) -> str:
        """What stands before a position on its line."""
        return self.text[self.line_start(position) : position]

    def newline(self, position: int) -> str:
        """The line ending in use around a position."""
        line = self.line(position)
        if line + 1 == len(self._starts):
            line -= 1
        ending = self.text[self._ends[line] : self._starts[line + 1]] if line >= 0 else ""
        return ending if ending in ("\r\n", "\r") else "\n"

    def is_alone(self, position: int) -> bool:
        """Whether nothing stands before a position on its line."""
        return not self.indent(position).strip()

    def entry_start(self, pair: Pair) -> int:
        """Where an entry starts: at its key, or at the `?` before it."""
        before = self.indent(pair.key.start).rstrip()
        if before.endswith("?") and not pair.mapping.flow and len(before) < self.column(pair.key.start):
            return self.line_start(pair.key.start) + len(before) - 1
        return pair.key.start

    def whole_lines(self, start: int, end: int) -> tuple[int, int]:
        """From the start of a line through the end of one, its line ending included."""
        return start, self.next_line(end)

    def rest_of_line(self, position: int) -> str:
        """The comment behind a value; nothing else may stand there."""
        rest = self.text[position : self.line_end(position)].strip()
        if rest and not rest.startswith("#"):
            raise CannotEdit("something else stands on its line")
        return rest

    def gap(self, position: int) -> str:
        """The blanks between a value and its comment."""
        rest = self.text[position : self.line_end(position)]
        return rest[: len(rest) - len(rest.lstrip())] or "  "

    def comments_above(self, position: int) -> int:
        """Where the comment lines start that stand right above a key, as deep as the key."""
        start = self.line_start(position)
        column = position - start
        while start > 0:
            before = self.line_start(start - 1)
            line = self.text[before:start]
            if not line.strip().startswith("#") or len(line) - len(line.lstrip()) != column:
                break
            start = before
        return start

    def refuse_comments(self, start: int, end: int) -> None:
        """Makes sure that nothing that looks like a comment stands there."""
        if _COMMENT.search(self.text[start:end]):
            raise CannotEdit("a comment stands inside it")


class Splices:
    """What is put into a text, and what is taken out."""

    def __init__(self) -> None:
        self._splices: list[tuple[int, int, str]] = []

    def insert(self, position: int, text: str) -> None:
        """Puts a text in; behind what was put in at the same place before."""
        self._splices.append((position, position, text))

    def replace(self, start: int, end: int, text: str) -> None:
        self._splices.append((start, end, text))

    def remove(self, start: int, end: int) -> None:
        self._splices.append((start, end, ""))

    def shift(self) -> Callable[[int], int]:
        """From where a character is in the old text, one that is not taken out, to where it is in the new one."""
        in_order = sorted(self._splices, key=lambda splice: splice[1])
        ends = [end for _, end, _ in in_order]
        moved = [0, *accumulate(len(new) - (end - start) for start, end, new in in_order)]
        return lambda offset: offset + moved[bisect_right(ends, offset)]

    def apply(self, text: str) -> str:
        pieces: list[str] = []
        done, was_removal = 0, False
        for start, end, new in sorted(self._splices, key=lambda splice: splice[:2]):
            is_removal = not new
            if start < done and not (is_removal and was_removal):
                raise CannotEdit("two changes meet in one place")
            pieces += [text[done:start], new]
            done, was_removal = max(done, end), is_removal
        result = "".join([*pieces, text[done:]])
        if was_removal and done == len(text) and not _LAST_BREAK.search(text):
            # The line that is the last one now ends as the last one did.
            result = _LAST_BREAK.sub("", result)
        return result


class Draft:
    """A text that is being edited."""

    def __init__(self, document: Document, leaving: frozenset[int] = frozenset()) -> None:
        self.document = document
        self.text = document.text
        self.source = Source(document.text)
        self.splices = Splices()
        #: The change that is being made.
        self.spot: Spot | None = None
        #: Offsets of the keys that go.
        self.leaving = leaving
        self._gone_aliases: set[int] = set()
        self._gone_anchors: dict[str, Spot | None] = {}

    def pair(self, spot: Spot, old_key: str) -> Pair:
        """The entry at a place."""
        pair = self.document.pairs.get(spot.offset)
        if pair is None:
            raise CannotEdit("two YAML parsers read it differently")
        if isinstance(pair.key, Alias):
            raise CannotEdit("its key is an alias")
        if not isinstance(pair.key, Scalar) or pair.key.value != old_key:
            raise CannotEdit("two YAML parsers read it differently")
        if pair.key.anchor or pair.key.is_block:
            raise CannotEdit("its key has an anchor or a block style")
        return pair

    def forget(self, value: Node) -> None:
        """Notes that a value's text goes, with its anchor or alias."""
        if isinstance(value, Alias):
            self._gone_aliases.add(value.start)
        elif not isinstance(value, Scalar):
            raise CannotEdit("its value is not a scalar")
        elif value.is_block:
            raise CannotEdit("its value is a block scalar")
        elif value.anchor:
            self._gone_anchors[value.anchor] = self.spot

    def refuse_double(self, mapping: Mapping, key: str) -> None:
        """Makes sure that a key that is written is not there already."""
        pair = mapping.get(key)
        if pair is not None and pair.key.start not in self.leaving:
            raise CannotEdit(f"{key} stands there already (line {self.source.line(pair.key.start) + 1})")

    def result(self) -> str:
        """The new text."""
        for alias in self.document.aliases:
            if alias.name in self._gone_anchors and alias.start not in self._gone_aliases:
                self.spot = self._gone_anchors[alias.name]
                raise CannotEdit(f"the value's anchor &{alias.name} is used elsewhere")
        return self.splices.apply(self.text)
