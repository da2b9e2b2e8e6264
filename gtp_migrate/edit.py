"""Changes → the new text of a file. Positions come from the nodes; every byte outside a change stays.

Before → after, for each kind of change:

REPLACE  `gtp_weight_remat_size: 3  # why`  →  `tensor_parallel_num_weight_shards: 12  # why`
MOVE     the same, out of `model_overrides:` to the line before it, comments along; a `model_overrides:` that
         nothing is left of goes, unless its absence would mean something else
DROP     the line goes, its comment stays
ADD      a line after the one that sets TP, or after the last one of the mapping
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gtp_migrate.forms import Target
from gtp_migrate.nodes import Document, Node, NodesError, Pair, read
from gtp_migrate.plan.changes import Change, Kind
from gtp_migrate.problems import Problem
from gtp_migrate.recipes.keys import MEGATRON_CFG, MODEL_OVERRIDES
from gtp_migrate.recipes.layer import BOM


class EditError(Exception):
    """A change that this text cannot take. Carries the `Problem` to show."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class _CannotEdit(Exception):
    pass


def edit(text: str, changes: Iterable[Change], target: Target, *, keep_nulls: bool = False) -> str:
    """The text with all changes made.

    Args:
        text: the file's content, with its byte order mark if it has one.
        changes: all of the one file.
        target: the form that added settings are written in.
        keep_nulls: leave an old setting that is null beside the new one. An old null switches off an old
            size that it inherits and a new null a new count, so this is the text to have on the disk while
            the files around it change from one to the other.

    Raises:
        EditError: a change cannot be made in this text.
    """
    changes = list(changes)
    bom = BOM if text.startswith(BOM) else ""
    body = text[len(bom) :]
    change = changes[0]
    try:
        editor = _Editor(read(body), target)
        for change in changes:
            if change.kind is Kind.REPLACE:
                editor.replace(change)
                if keep_nulls and change.is_null:
                    editor.put_back(change)
        for group in _by_mapping(editor, [c for c in changes if c.kind in (Kind.MOVE, Kind.DROP)]):
            change = group[0]
            editor.take_out(group, keep_nulls)
        for change in changes:
            if change.kind is Kind.ADD:
                editor.add(change)
        return bom + editor.result()
    except (NodesError, _CannotEdit) as error:
        raise EditError(
            Problem(change.place, f"cannot be rewritten safely: {error}", "migrate this file by hand")
        ) from None


def _by_mapping(editor: _Editor, changes: list[Change]) -> list[list[Change]]:
    groups: dict[int, list[Change]] = {}
    for change in changes:
        groups.setdefault(editor.pair(change).mapping.start, []).append(change)
    return list(groups.values())


class _Editor:
    def __init__(self, document: Document, target: Target) -> None:
        self.document = document
        self.text = document.text
        self.target = target
        self.splices: list[tuple[int, int, str]] = []
        self.replaced_aliases: set[int] = set()
        self.removed_anchors: set[str] = set()

    def result(self) -> str:
        for alias in self.document.aliases:
            if alias.value in self.removed_anchors and alias.start not in self.replaced_aliases:
                raise _CannotEdit(f"the value's anchor &{alias.value} is used elsewhere")
        text = self.text
        last = len(text) + 1
        for start, end, new in sorted(self.splices, key=lambda splice: splice[:2], reverse=True):
            if end > last:
                raise _CannotEdit("two changes meet in one place")
            text = text[:start] + new + text[end:]
            last = start
        return text

    def splice(self, start: int, end: int, new: str) -> None:
        for index, (at, until, other) in enumerate(self.splices):
            if start == end == at == until:
                self.splices[index] = (at, until, other + new)
                return
        self.splices.append((start, end, new))

    def pair(self, change: Change) -> Pair:
        pair = self.document.pairs.get(change.offset if change.offset is not None else -1)
        if pair is None or change.old_key != pair.key.value:
            raise _CannotEdit("two YAML parsers read it differently")
        if pair.key.anchor or pair.key.quote in ("|", ">"):
            raise _CannotEdit("its key has an anchor or a block style")
        return pair

    # -- REPLACE ---------------------------------------------------------------------------------------

    def replace(self, change: Change) -> None:
        pair = self.pair(change)
        key = pair.key
        quote = key.quote or ""
        start = self.text.index(key.value, key.start) if not quote else key.start
        self.splice(start, key.end, quote + change.key + quote)
        if not change.keeps_value:
            new = self.spell(change.value, pair.value, pair.mapping.flow)
            gap = " " if pair.value.start == pair.value.end else ""
            self.splice(pair.value.start, pair.value.end, gap + new)
            self.forget(pair.value)

    def put_back(self, change: Change) -> None:
        """Writes the old null behind the new one."""
        pair = self.pair(change)
        old = f"{pair.key.value}: null"
        if pair.mapping.flow:
            self.splice(pair.value.end, pair.value.end, f", {old}")
        else:
            end = self.line_end(pair.value.content_end)
            self.splice(end, end, self.newline(pair.key.start) + " " * self.column(pair.key.start) + old)

    def forget(self, value: Node) -> None:
        """Notes that a value's text goes, with its anchor or alias."""
        if value.kind == "alias":
            self.replaced_aliases.add(value.start)
        elif value.kind != "scalar":
            raise _CannotEdit("its value is not a scalar")
        elif value.anchor:
            self.removed_anchors.add(value.anchor)
        if value.quote in ("|", ">"):
            raise _CannotEdit("its value is a block scalar")

    @staticmethod
    def spell(value: str, like: Node | None, flow: bool) -> str:
        """A scalar as YAML, quoted as the one it replaces was, or where it has to be."""
        if "$" not in value:
            return value
        quote = like.quote if like is not None and like.quote in ("'", '"') else ""
        if not quote and (flow or ": " in value or " #" in value or "\n" in value or value.endswith(":")):
            quote = '"'
        if quote == '"':
            value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        elif quote:
            value = value.replace("'", "''")
        return quote + value + quote

    # -- MOVE and DROP ---------------------------------------------------------------------------------

    def take_out(self, changes: list[Change], keep_nulls: bool) -> None:
        """Takes entries out of one `model_overrides`; what moves goes before it."""
        pairs = [self.pair(change) for change in changes]
        mapping = pairs[0].mapping
        kept = {change.offset for change in changes if keep_nulls and change.is_null}
        leaving = {pair.key.start for pair in pairs} - kept
        stay = [pair for pair in mapping.entries if pair.key.start not in leaving]
        for pair in pairs:
            self.forget(pair.value)
        home = mapping.pair
        moves = any(change.kind is Kind.MOVE for change in changes)
        if moves and not (
            home
            and home.key.value == MODEL_OVERRIDES
            and home.mapping.pair
            and home.mapping.pair.key.value == MEGATRON_CFG
        ):
            raise _CannotEdit("it does not stand in a megatron_cfg itself, but is shared through an anchor")
        if stay or home is None:
            if not stay:
                raise _CannotEdit("nothing would be left around it")
            self.leave_some(changes, pairs, mapping, stay)
        else:
            self.leave_none(changes, pairs, mapping, home)

    def leave_some(self, changes: list[Change], pairs: list[Pair], mapping: Node, stay: list[Pair]) -> None:
        moved = []
        for change, pair in zip(changes, pairs, strict=True):
            comments, comment = "", ""
            if pair in stay:
                pass
            elif mapping.flow:
                self.remove_from_flow(pair, mapping, stay)
            else:
                comments, comment = self.remove_line(pair, mapping, keep=change.kind is Kind.DROP)
            if change.kind is Kind.MOVE:
                moved.append((comments, self.entry(change, pair, mapping.pair), comment))
        if moved and mapping.pair:
            self.insert_before(mapping.pair, moved)

    def leave_none(self, changes: list[Change], pairs: list[Pair], mapping: Node, home: Pair) -> None:
        """Nothing is left of a `model_overrides`: it goes too."""
        owner = home.mapping
        others = [pair for pair in owner.entries if pair is not home]
        moves = [change.kind is Kind.MOVE for change in changes]
        leaks = any(
            pair.key.value == "<<" and self.document.has_key(Node("mapping", 0, 0, entries=[pair]), MODEL_OVERRIDES)
            for pair in others
        )
        keep_husk = leaks or mapping.anchor is not None or not (any(moves) or others)
        lines = [
            self.entry(change, pair, home)
            for change, pair in zip(changes, pairs, strict=True)
            if change.kind is Kind.MOVE
        ]
        if owner.flow or (mapping.flow and not self.is_alone(home.key)):
            self.refuse_comments(home.key.start, mapping.end)
            separator = ", " if owner.flow else self.newline(home.key.start) + " " * self.column(home.key.start)
            if keep_husk:
                self.splice(home.key.start, home.key.start, "".join(line + separator for line in lines))
                self.splice(self.opening(mapping) + 1, mapping.end - 1, "")
            elif lines:
                self.splice(home.key.start, mapping.end, separator.join(lines))
            elif owner.flow:
                self.remove_from_flow(home, owner, others)
            else:
                raise _CannotEdit("its model_overrides shares a line with something else")
            return
        if not self.is_alone(home.key):
            raise _CannotEdit("its model_overrides shares a line with something else")
        indent = self.indent(home.key.start)
        newline = self.newline(home.key.start)
        out: list[str] = []
        if mapping.flow:
            self.refuse_comments(self.opening(mapping), mapping.end)
            comment = self.rest_of_line(mapping.end)
            if keep_husk:
                self.insert_before(home, [("", line, "") for line in lines])
                self.splice(self.opening(mapping) + 1, mapping.end - 1, "")
                return
            if lines:
                out = [*lines[:-1], lines[-1] + (f"  {comment}" if comment else "")]
            elif comment:
                out = [comment]
        else:
            header = self.text[home.key.start : self.line_end(home.key.end)]
            header, comment = self.split_comment(home.key.end, header, home.key.start)
            if keep_husk:
                out.append(f"{header.rstrip()} {{}}" + (f"  {comment}" if comment else ""))
            elif comment:
                out.append(comment)
            out += self.lines_of(changes, pairs, home)
        start = self.line_start(home.key.start)
        end = self.line_end(mapping.content_end)
        text = newline.join(indent + line if line else "" for line in out)
        if out:
            self.splice(start, end, text)
        else:
            self.splice(*self.whole_lines(start, end), "")

    def lines_of(self, changes: list[Change], pairs: list[Pair], home: Pair) -> list[str]:
        """The lines of a block mapping that loses all its entries: what moves, and every comment."""
        out: list[str] = []
        position = self.next_line(home.key.end)
        by_start = {pair.key.start: (change, pair) for change, pair in zip(changes, pairs, strict=True)}
        for start in sorted(by_start):
            change, pair = by_start[start]
            if not self.is_alone(pair.key):
                raise _CannotEdit("it shares a line with something else")
            out += [line.strip() for line in self.text[position : self.line_start(start)].splitlines()]
            comment = self.rest_of_line(pair.value.content_end)
            self.refuse_comments(pair.key.start, pair.value.content_end)
            if change.kind is Kind.MOVE:
                line = self.entry(change, pair, home)
                out.append(line + (f"{self.gap(pair.value.content_end)}{comment}" if comment else ""))
            elif comment:
                out.append(comment)
            position = self.next_line(pair.value.content_end)
        return out

    def entry(self, change: Change, pair: Pair, home: Pair | None) -> str:
        """The new entry, its key quoted as the old one was."""
        quote = pair.key.quote or ""
        return f"{quote}{change.key}{quote}: {self.value_of(change, pair, home)}"

    def value_of(self, change: Change, pair: Pair, home: Pair | None) -> str:
        raw = self.text[pair.value.start : pair.value.end]
        if change.keeps_value and raw and "$" not in raw and pair.value.kind == "scalar" and not pair.value.anchor:
            return raw
        return self.spell(change.value, pair.value, flow=home is not None and home.mapping.flow)

    def remove_line(self, pair: Pair, mapping: Node, keep: bool) -> tuple[str, str]:
        """Takes a block entry's lines away.

        Args:
            keep: leave its comments where they are.

        Returns:
            The comment lines above it and the comment behind it, where they are not kept.
        """
        self.refuse_comments(pair.key.start, pair.value.content_end)
        if not self.is_alone(pair.key):
            # `- key: value` or `? key`: the next entry takes its place.
            after = [each for each in mapping.entries if each.key.start > pair.key.start]
            if not after:
                raise _CannotEdit("it shares a line with something else")
            self.refuse_comments(pair.value.content_end, after[0].key.start)
            self.splice(pair.key.start, after[0].key.start, "")
            return "", ""
        start, end = self.line_start(pair.key.start), self.line_end(pair.value.content_end)
        comment = self.rest_of_line(pair.value.content_end)
        if keep:
            if comment:
                self.splice(pair.key.start, end, comment)
            else:
                self.splice(*self.whole_lines(start, end), "")
            return "", ""
        above = self.comments_above(pair.key.start)
        comments = self.text[above:start]
        self.splice(*self.whole_lines(above, end), "")
        return comments, (self.gap(pair.value.content_end) + comment) if comment else ""

    def remove_from_flow(self, pair: Pair, mapping: Node, stay: list[Pair]) -> None:
        """Takes an entry and one comma away."""
        after = [each for each in stay if each.key.start > pair.key.start]
        if after:
            following = next(each for each in mapping.entries if each.key.start > pair.key.start)
            self.refuse_comments(pair.key.start, following.key.start)
            self.splice(pair.key.start, following.key.start, "")
            return
        index = mapping.entries.index(pair)
        start = pair.key.start if index == 0 else mapping.entries[index - 1].value.end
        self.refuse_comments(start, pair.value.end)
        self.splice(start, pair.value.end, "")

    def insert_before(self, pair: Pair, moved: list[tuple[str, str, str]]) -> None:
        """Writes entries, with the comments above and behind each, before another entry."""
        if not moved:
            return
        start = pair.key.start
        if pair.mapping.flow:
            self.splice(start, start, "".join(f"{line}, " for _, line, _ in moved))
            return
        newline = self.newline(start)
        if not self.is_alone(pair.key):
            indent = " " * self.column(start)
            text = "".join(f"{line}{comment}{newline}{indent}" for _, line, comment in moved)
            if any(comments for comments, _, _ in moved):
                raise _CannotEdit("its comments have no place to go")
            self.splice(start, start, text)
            return
        indent = self.indent(start)
        at = self.comments_above(start)
        text = ""
        for comments, line, comment in moved:
            for above in comments.splitlines():
                text += indent + above.strip() + newline
            text += indent + line + comment + newline
        self.splice(at, at, text)

    # -- ADD -------------------------------------------------------------------------------------------

    def add(self, change: Change) -> None:
        keys = [*change.holder, *([MODEL_OVERRIDES] if self.target is Target.MODEL_OVERRIDES else [])]
        node = self.document.root
        if node is None or node.kind != "mapping":
            raise _CannotEdit("it holds no mapping to add to")
        depth = 0
        for key in keys:
            if isinstance(key, int):
                if node.kind != "list" or key >= len(node.items):
                    raise _CannotEdit("the place to add to is not written out in it")
                node = node.items[key]
            else:
                pair = node.get(key) if node.kind == "mapping" else None
                if pair is None:
                    break
                node = pair.value
            depth += 1
        missing = keys[depth:]
        if node.kind != "mapping" or any(not isinstance(key, str) for key in missing):
            raise _CannotEdit("the place to add to is shared through an anchor, or empty")
        if missing and self.document.has_key(node, str(missing[0])):
            raise _CannotEdit("the place to add to comes from a merge key")
        if node.flow:
            quote = (node.entries[0].key.quote or "") if node.entries else ""
            text = f"{quote}{change.key}{quote}: {self.spell(change.value, None, True)}"
            for key in reversed(missing):
                text = f"{quote}{key}{quote}: {{{text}}}"
            at = self.opening(node) + 1
            self.splice(at, at, text + (", " if node.entries else ""))
            return
        lines = [*(f"{key}:" for key in missing), f"{change.key}: {self.spell(change.value, None, False)}"]
        after = node.get(change.axis.parallel_size)
        if after is None or after.value.kind != "scalar" or after.value.quote in ("|", ">"):
            after = node.entries[-1]
        indent = " " * self.column(node.entries[0].key.start)
        newline = self.newline(node.entries[0].key.start)
        step = self.step(node)
        block = [indent + step * level + line for level, line in enumerate(lines)]
        end = after.value.content_end
        if after.value.kind == "scalar" and after.value.quote in ("|", ">"):
            self.splice(end, end, "".join(line + newline for line in block))
            return
        end = self.line_end(end)
        self.splice(end, end, "".join(newline + line for line in block))

    def step(self, node: Node) -> str:
        """One more level of indentation, as the text around has it."""
        for pair in node.entries:
            if pair.value.kind == "mapping" and not pair.value.flow and pair.value.entries:
                inner = self.column(pair.value.entries[0].key.start)
                return " " * max(inner - self.column(pair.key.start), 1)
        if node.pair is not None:
            return " " * max(self.column(node.entries[0].key.start) - self.column(node.pair.key.start), 1)
        return "  "

    # -- lines -----------------------------------------------------------------------------------------

    def line_start(self, position: int) -> int:
        return self.text.rfind("\n", 0, position) + 1

    def line_end(self, position: int) -> int:
        """Where the line's ending stands, or the end of the text."""
        end = self.text.find("\n", position)
        if end < 0:
            return len(self.text)
        return end - 1 if end > position and self.text[end - 1] == "\r" else end

    def next_line(self, position: int) -> int:
        """Where the next line starts, or the end of the text."""
        return self.text.find("\n", position) + 1 or len(self.text)

    def column(self, position: int) -> int:
        return position - self.line_start(position)

    def indent(self, position: int) -> str:
        return self.text[self.line_start(position) : position]

    def newline(self, position: int) -> str:
        """The line ending in use around a position."""
        end = self.text.find("\n", position)
        if end < 0:
            end = self.text.find("\n")
        return "\r\n" if end > 0 and self.text[end - 1] == "\r" else "\n"

    def is_alone(self, key: Node) -> bool:
        return not self.indent(key.start).strip()

    def whole_lines(self, start: int, end: int) -> tuple[int, int]:
        """From the start of a line through the end of one, with one line ending."""
        after = self.next_line(end)
        if after > end:
            return start, after
        if start > 0:
            start -= 1
            if self.text[start - 1 : start] == "\r":
                start -= 1
        return start, end

    def rest_of_line(self, position: int) -> str:
        """The comment behind a value; nothing else may stand there."""
        rest = self.text[position : self.line_end(position)].strip()
        if rest and not rest.startswith("#"):
            raise _CannotEdit("something else stands on its line")
        return rest

    def gap(self, position: int) -> str:
        """The blanks between a value and its comment."""
        rest = self.text[position : self.line_end(position)]
        return rest[: len(rest) - len(rest.lstrip())] or "  "

    def split_comment(self, position: int, header: str, start: int) -> tuple[str, str]:
        """A line `key: &anchor  # comment` without its comment, and the comment."""
        mark = header.find(" #", position - start)
        if mark < 0:
            return header.rstrip(), ""
        return header[:mark].rstrip(), header[mark:].strip()

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

    def opening(self, mapping: Node) -> int:
        """Where the `{` of a flow mapping stands, behind its anchor and tag."""
        return self.text.index("{", mapping.start)

    def refuse_comments(self, start: int, end: int) -> None:
        if re.search(r"(?:^|\s)#", self.text[start:end], re.M):
            raise _CannotEdit("a comment stands inside it")
