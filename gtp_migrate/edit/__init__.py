"""Changes → the new text of a file. Positions come from the nodes; every byte outside a change stays.

`nodes` reads a text, `source` knows its lines and splices it, `spell` writes values. There is one module a kind of
edit: `replace`, `take_out` (out of a mapping, into the one around it or for good), `add`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace as replaced

from gtp_migrate.edit.add import add
from gtp_migrate.edit.nodes import NodesError, read
from gtp_migrate.edit.replace import replace
from gtp_migrate.edit.source import CannotEdit, Draft
from gtp_migrate.edit.take_out import take_out
from gtp_migrate.plan.changes import Add, Change, Drop, Move, Replace

__all__ = ["EditError", "edit"]

_BOM = "\ufeff"


class EditError(Exception):
    """A change that a text cannot take.

    Attributes:
        line: where, from 1; 0 where it is about the file.
        column: the same.
        what: why, in words that can follow "cannot be rewritten safely: ".
    """

    def __init__(self, line: int, column: int, what: str) -> None:
        super().__init__(what)
        self.line = line
        self.column = column
        self.what = what


def edit(text: str, changes: Iterable[Change], *, keep_nulls: bool = False) -> str:
    """The text with all changes made.

    Args:
        text: the file's content, with its byte order mark if it has one.
        changes: all of the one file.
        keep_nulls: leave an old setting that is null beside the new one. An old null switches off an old size that it
            inherits and a new null a new count, so this is the text to have on the disk while the files around it
            change from one to the other.

    Raises:
        EditError: a change cannot be made in this text.
    """
    bom = _BOM if text.startswith(_BOM) else ""
    text = text[len(bom) :]
    additions: list[Add] = []
    others: list[Replace | Move | Drop] = []
    for change in changes:
        if isinstance(change, Add):
            additions.append(change)
        else:
            others.append(change)
    if additions:
        # First, as a mapping may be about to go that they add to; it stays then.
        draft = _draft(text, others, keep_nulls)
        text = _run(draft, lambda: add(draft, additions))
        shift = draft.splices.shift()
        others = [replaced(each, spot=replaced(each.spot, offset=shift(each.spot.offset))) for each in others]
    if others:
        draft = _draft(text, others, keep_nulls)
        text = _run(draft, lambda: _change(draft, others, keep_nulls))
    return bom + text


def _draft(text: str, changes: list[Replace | Move | Drop], keep_nulls: bool) -> Draft:
    try:
        document = read(text)
    except NodesError as error:
        raise EditError(0, 0, str(error)) from None
    kept = {change.spot.offset for change in changes if keep_nulls and change.is_null}
    return Draft(document, frozenset(change.spot.offset for change in changes) - kept)


def _run(draft: Draft, work: Callable[[], None]) -> str:
    """The text that a draft becomes by some work."""
    try:
        work()
        return draft.result()
    except CannotEdit as error:
        line, column = (draft.spot.line, draft.spot.column) if draft.spot else (0, 0)
        if error.at is not None:
            line, column = draft.source.line(error.at) + 1, draft.source.column(error.at) + 1
        raise EditError(line, column, error.what) from None


def _change(draft: Draft, changes: list[Replace | Move | Drop], keep_nulls: bool) -> None:
    by_mapping: dict[int, list[Move | Drop]] = {}
    for change in changes:
        draft.spot = change.spot
        if isinstance(change, Replace):
            replace(draft, change, keep_nulls=keep_nulls)
        else:
            mapping = draft.pair(change.spot, change.old_key).mapping
            by_mapping.setdefault(id(mapping), []).append(change)
    for group in by_mapping.values():
        take_out(draft, group, keep_nulls=keep_nulls)
