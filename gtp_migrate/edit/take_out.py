"""Entries that leave a mapping: into the one around it, or for good.

Move, with its comments, to before the `model_overrides` that it was in:

    model_overrides:                     tensor_parallel_num_weight_shards: 12  # why
      hidden_dropout: 0.0            →   model_overrides:
      gtp_weight_remat_size: 3  # why      hidden_dropout: 0.0

    model_overrides: {gtp_weight_remat_size: 3}  →  tensor_parallel_num_weight_shards: 12

Drop, its comments stay:

    a: 1                                 a: 1
    gtp_weight_remat_size: 3  # why  →   # why

A `model_overrides` that nothing is left of goes, unless its absence would mean something else: another one would come
by `<<`, an alias stands for it, or the change says so. Then `model_overrides: {}` stays, the husk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gtp_migrate.edit.nodes import Alias, Mapping, Node, Pair, Scalar, last_of
from gtp_migrate.edit.replace import spelled
from gtp_migrate.edit.source import CannotEdit, Draft
from gtp_migrate.plan.changes import Drop, Move

MODEL_OVERRIDES = "model_overrides"


@dataclass(frozen=True)
class _Leaver:
    change: Move | Drop
    pair: Pair
    #: An old null that stays beside the new one.
    is_kept: bool

    @property
    def moves(self) -> bool:
        return isinstance(self.change, Move)


@dataclass(frozen=True)
class _Moved:
    """A new entry, and the comments above and behind it."""

    above: tuple[str, ...]
    entry: str
    behind: str


def take_out(draft: Draft, changes: list[Move | Drop], *, keep_nulls: bool) -> None:
    """Makes all changes of one mapping."""
    leavers = []
    for change in sorted(changes, key=lambda change: change.spot.offset):
        draft.spot = change.spot
        pair = draft.pair(change.spot, change.old_key)
        leavers.append(_Leaver(change, pair, keep_nulls and change.is_null))
        if isinstance(change, Move):
            _check_home(draft, pair.mapping, change)
        if not (isinstance(change, Move) and change.value is None):
            draft.forget(pair.value)
    mapping = leavers[0].pair.mapping
    gone = {leaver.pair.key.start for leaver in leavers if not leaver.is_kept}
    stay = [pair for pair in mapping.entries if pair.key.start not in gone]
    if stay:
        _leave_some(draft, leavers, stay)
    elif mapping.pair is None:
        raise CannotEdit("nothing would be left around it")
    else:
        _LeaveNone(draft, leavers, mapping.pair).run()


def _check_home(draft: Draft, mapping: Mapping, change: Move) -> None:
    """Makes sure that there is a mapping around it to go to."""
    home = mapping.pair
    if home is None or home.name != MODEL_OVERRIDES:
        raise CannotEdit("it does not stand in a model_overrides itself, but is shared through an anchor")
    draft.refuse_double(home.mapping, change.new_key)


def _entry(draft: Draft, leaver: _Leaver, home: Pair) -> str:
    """The new entry, its key quoted as the old one was."""
    change, key = leaver.change, leaver.pair.key
    assert isinstance(change, Move)
    assert isinstance(key, Scalar)
    if change.value is None:
        value = _kept_value(draft, leaver.pair.value, home)
    else:
        value = spelled(leaver.pair.value, change.value, flow=home.mapping.flow)
    return f"{key.quote}{change.new_key}{key.quote}: {value}".rstrip()


def _kept_value(draft: Draft, value: Node, home: Pair) -> str:
    """The text of a value that moves as it is, with its anchor."""
    text = draft.text[value.start : value.end]
    if isinstance(value, Alias):
        if draft.document.anchors[value.name].start > home.key.start:
            raise CannotEdit(f"the anchor &{value.name} of its value stands behind the place to move to")
    elif (
        not isinstance(value, Scalar)
        or value.is_block
        or draft.source.line(value.start) != draft.source.line(value.end)
    ):
        raise CannotEdit("its value is not a scalar on one line")
    return text


# -- something stays in the mapping --------------------------------------------------------------------


def _leave_some(draft: Draft, leavers: list[_Leaver], stay: list[Pair]) -> None:
    mapping = leavers[0].pair.mapping
    moved: list[_Moved] = []
    for leaver in leavers:
        draft.spot = leaver.change.spot
        above: tuple[str, ...] = ()
        behind = ""
        if leaver.is_kept:
            pass
        elif mapping.flow:
            _remove_from_flow(draft, leaver.pair, stay)
        else:
            above, behind = _remove_lines(draft, leaver, stay)
        if leaver.moves and mapping.pair:
            moved.append(_Moved(above, _entry(draft, leaver, mapping.pair), behind))
    if moved and mapping.pair:
        _insert_before(draft, mapping.pair, moved)


def _remove_lines(draft: Draft, leaver: _Leaver, stay: list[Pair]) -> tuple[tuple[str, ...], str]:
    """Takes a block entry's lines away.

    Returns:
        The comment lines above it and the comment behind it, where they are to move along.
    """
    source, pair = draft.source, leaver.pair
    first = source.entry_start(pair)
    last = last_of(pair.value).end
    source.refuse_comments(pair.key.start, last)
    if not source.is_alone(first):
        _pull_up_the_next(draft, pair, stay)
        return (), ""
    start, end = source.line_start(first), source.line_end(last)
    comment = source.rest_of_line(last)
    if leaver.moves:
        above = source.comments_above(first)
        draft.splices.remove(*source.whole_lines(above, end))
        return tuple(source.lines(above, start)), source.gap(last) + comment if comment else ""
    if comment:
        draft.splices.replace(first, end, comment)
    else:
        draft.splices.remove(*source.whole_lines(start, end))
    return (), ""


def _pull_up_the_next(draft: Draft, pair: Pair, stay: list[Pair]) -> None:
    """Behind the dash of `- key: value`, the next entry takes its place."""
    following = next((each for each in pair.mapping.entries if each.key.start > pair.key.start), None)
    if following not in stay:
        raise CannotEdit("it shares a line with something else")
    draft.source.refuse_comments(last_of(pair.value).end, following.key.start)
    draft.splices.remove(draft.source.entry_start(pair), draft.source.entry_start(following))


def _remove_from_flow(draft: Draft, pair: Pair, stay: list[Pair]) -> None:
    """Takes an entry and one comma away."""
    entries = pair.mapping.entries
    index = entries.index(pair)
    if any(each.key.start > pair.key.start for each in stay):
        start, end = pair.key.start, entries[index + 1].key.start
    else:
        start, end = (entries[index - 1].value.end if index else pair.key.start), pair.value.end
    draft.source.refuse_comments(start, end)
    draft.splices.remove(start, end)


def _insert_before(draft: Draft, pair: Pair, moved: list[_Moved]) -> None:
    """Writes entries, with the comments above and behind each, before another entry."""
    source = draft.source
    start = source.entry_start(pair)
    if pair.mapping.flow:
        draft.splices.insert(start, "".join(f"{each.entry}, " for each in moved))
        return
    newline = source.newline(start)
    indent = " " * source.column(start)
    if not source.is_alone(start):
        if any(each.above for each in moved):
            raise CannotEdit("its comments have no place to go")
        text = "".join(f"{each.entry}{each.behind}{newline}{indent}" for each in moved)
        draft.splices.insert(start, text)
        return
    lines = [line for each in moved for line in (*map(str.strip, each.above), each.entry + each.behind)]
    draft.splices.insert(source.comments_above(start), "".join(f"{indent}{line}{newline}" for line in lines))


# -- nothing stays in the mapping ----------------------------------------------------------------------


class _LeaveNone:
    """Takes all entries out of a mapping that is the value of `home`, and `home` too, where it may."""

    def __init__(self, draft: Draft, leavers: list[_Leaver], home: Pair) -> None:
        self.draft = draft
        self.source = draft.source
        self.leavers = leavers
        self.home = home
        self.owner = home.mapping
        self.mapping = leavers[0].pair.mapping
        self.others = [pair for pair in self.owner.entries if pair is not home]
        self.start = draft.source.entry_start(home)
        self.keep_husk = self._keeps_husk()

    def _keeps_husk(self) -> bool:
        return (
            any(leaver.change.keep_husk for leaver in self.leavers)
            or self.mapping.anchor is not None
            or self.home.name != MODEL_OVERRIDES
            or self.draft.document.merge_of(self.owner, MODEL_OVERRIDES) is not None
            or not (any(leaver.moves for leaver in self.leavers) or self.others)
        )

    def run(self) -> None:
        if self.start != self.home.key.start:
            raise CannotEdit("its model_overrides is written with a `?`")
        if self.owner.flow or (self.mapping.flow and not self.source.is_alone(self.start)):
            self._within_a_line()
        elif self.mapping.flow:
            self._flow_on_its_line()
        else:
            self._block()

    def _new_entries(self) -> list[str]:
        return [_entry(self.draft, leaver, self.home) for leaver in self.leavers if leaver.moves]

    def _empty_braces(self) -> None:
        if self.draft.text[self.mapping.inside - 1] != "{":
            raise CannotEdit("the mapping around it has no braces")
        self.draft.splices.remove(self.mapping.inside, self.mapping.end - 1)

    def _within_a_line(self) -> None:
        """`a: 1, model_overrides: {gtp_weight_remat_size: 3}` → `a: 1, tensor_parallel_num_weight_shards: 12`."""
        start, end = self.home.key.start, self.mapping.end
        self.source.refuse_comments(start, end)
        separator = ", " if self.owner.flow else self.source.newline(start) + " " * self.source.column(start)
        entries = self._new_entries()
        if self.keep_husk:
            self.draft.splices.insert(start, "".join(entry + separator for entry in entries))
            self._empty_braces()
        elif entries:
            self.draft.splices.replace(start, end, separator.join(entries))
        elif self.owner.flow:
            _remove_from_flow(self.draft, self.home, self.others)
        else:
            raise CannotEdit("its model_overrides shares a line with something else")

    def _flow_on_its_line(self) -> None:
        """`model_overrides: {gtp_weight_remat_size: 3}  # why` → `tensor_parallel_num_weight_shards: 12  # why`."""
        end = self.mapping.end
        self.source.refuse_comments(self.home.key.end, end)
        comment = self.source.rest_of_line(end)
        entries = self._new_entries()
        if self.keep_husk:
            if entries:
                _insert_before(self.draft, self.home, [_Moved((), entry, "") for entry in entries])
            self._empty_braces()
            return
        if entries and comment:
            entries[-1] += self.source.gap(end) + comment
        elif comment:
            entries = [comment]
        self._write(entries)

    def _block(self) -> None:
        """The lines of what moves, and every comment, take the place of all lines."""
        key_end = self.home.key.end
        header = self.draft.text[self.start : self.source.line_end(key_end)]
        mark = re.compile(r"\s#").search(header, key_end - self.start)
        comment = header[mark.start() :].strip() if mark else ""
        header = header[: mark.start() if mark else None].rstrip()
        out = []
        if self.keep_husk:
            out.append(f"{header} {{}}" + (f"  {comment}" if comment else ""))
        elif comment:
            out.append(comment)
        position = self.source.next_line(key_end)
        for leaver in self.leavers:
            self.draft.spot = leaver.change.spot
            out += self._lines_of(leaver, position)
            position = self.source.next_line(last_of(leaver.pair.value).end)
        self._write(out)

    def _lines_of(self, leaver: _Leaver, position: int) -> list[str]:
        """The lines above an entry, and its own."""
        source = self.source
        start, end = source.entry_start(leaver.pair), last_of(leaver.pair.value).end
        if not source.is_alone(start):
            raise CannotEdit("it shares a line with something else")
        out = [line.strip() for line in source.lines(position, start)]
        if any(line and not line.startswith("#") for line in out):
            raise CannotEdit("an anchor or a tag stands on a line of its own above it")
        comment = source.rest_of_line(end)
        source.refuse_comments(leaver.pair.key.start, end)
        if leaver.moves:
            out.append(_entry(self.draft, leaver, self.home) + (source.gap(end) + comment if comment else ""))
        elif comment:
            out.append(comment)
        return out

    def _write(self, out: list[str]) -> None:
        """These lines instead of the home's."""
        source = self.source
        end = source.line_end(last_of(self.mapping).end)
        if source.is_alone(self.start):
            start, indent = source.line_start(self.start), source.indent(self.start)
            if not out:
                self.draft.splices.remove(*source.whole_lines(start, end))
                return
            lines = [indent + line if line else "" for line in out]
        else:
            # Behind a dash.
            if not out or out[0].startswith("#"):
                raise CannotEdit("its model_overrides shares a line with something else")
            start, indent = self.start, " " * source.column(self.start)
            lines = [out[0], *(indent + line if line else "" for line in out[1:])]
        self.draft.splices.replace(start, end, source.newline(self.start).join(lines))
