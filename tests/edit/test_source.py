"""Splices and lines."""

from __future__ import annotations

import pytest

from gtp_migrate.edit.source import CannotEdit, Source, Splices


def test_splices() -> None:
    splices = Splices()
    splices.replace(1, 2, "B")
    splices.insert(3, "x")
    splices.insert(3, "y")
    splices.remove(3, 5)
    splices.insert(5, "z")
    assert splices.apply("abcdef") == "aBcxyzf"


def test_lines_that_go_may_overlap_and_others_may_not() -> None:
    splices = Splices()
    splices.remove(1, 4)
    splices.remove(2, 5)
    assert splices.apply("abcdef") == "af"
    splices.insert(3, "x")
    with pytest.raises(CannotEdit, match="two changes meet in one place"):
        splices.apply("abcdef")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r", "\x85", "\u2028", "\u2029"])
def test_lines_end_as_they_do_in_yaml(newline: str) -> None:
    source = Source(f"a{newline}bc{newline}")
    start = 1 + len(newline)
    assert (source.line_start(start + 1), source.line_end(start), source.line(start)) == (start, start + 2, 1)
    assert source.next_line(0) == start
    assert source.lines(0, len(source.text)) == ["a", "bc"]
    assert source.newline(start) == (newline if "\r" in newline else "\n")
