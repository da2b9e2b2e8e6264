"""New entries, with the mappings on the way to them that are not there yet.

Behind another entry, or the last one:

    tensor_model_parallel_size: 8  # wide  →  tensor_model_parallel_size: 8  # wide
    a: 1                                      tensor_parallel_num_weight_shards: 24
                                              a: 1

    {tensor_model_parallel_size: 8}  →  {tensor_model_parallel_size: 8, tensor_parallel_num_weight_shards: 24}

In flow style where there is no such entry, at the front:

    {hidden_dropout: 0.0}  →  {tensor_parallel_num_weight_shards: 24, hidden_dropout: 0.0}

In the place of an alias, where the new entry is a whole mapping:

    model_overrides: *SHARED  →  model_overrides: {tensor_parallel_num_weight_shards: 8}

In a file that has nothing on the way, at its end:

    defaults: base.yaml                    →  defaults: base.yaml
                                              policy:
                                                megatron_cfg:
                                                  tensor_parallel_num_weight_shards: 24
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gtp_migrate.edit.nodes import Alias, Items, Mapping, Node, Pair, Scalar, is_null, last_of
from gtp_migrate.edit.source import CannotEdit, Draft
from gtp_migrate.edit.spell import CannotSpell, Written, lines, one_line
from gtp_migrate.plan.changes import Add
from gtp_migrate.recipes.keys import KeyPath


@dataclass
class _Group:
    """What comes behind one entry of a mapping; no entry is the end of it."""

    after: Pair | None
    entries: dict[Any, Any] = field(default_factory=dict)


@dataclass
class _Place:
    """What comes into one mapping; no mapping is an empty file."""

    mapping: Mapping | None
    depth: int
    groups: list[_Group] = field(default_factory=list)

    def group_for(self, after: str | None) -> _Group:
        """Where an entry goes that is to follow the one of this name."""
        for group in self.groups:
            if after is not None and after in group.entries:
                return group
        pair = self.mapping.get(after) if self.mapping and after is not None else None
        for group in self.groups:
            if group.after is pair:
                return group
        self.groups.append(_Group(pair))
        return self.groups[-1]


def add(draft: Draft, changes: Iterable[Add]) -> None:
    """Makes all changes of a file, so that those that share a missing mapping share it in the text too."""
    places: dict[int, _Place] = {}
    for change in changes:
        _collect(draft, change, places)
    # What ends in the same place as the mapping around it has to come first.
    for place in sorted(places.values(), key=lambda place: -place.depth):
        # The end of a mapping comes after what follows its last entry.
        for group in sorted(place.groups, key=lambda group: group.after is None):
            try:
                _write(draft, place.mapping, group)
            except CannotSpell as error:
                raise CannotEdit(str(error)) from None


def _collect(draft: Draft, change: Add, places: dict[int, _Place]) -> None:
    mapping, depth = _find(draft, change.path)
    missing = change.path[depth:]
    if mapping is not None and not missing and _put_for_an_alias(draft, mapping, change):
        return
    place = places.setdefault(id(mapping), _Place(mapping, depth))
    if missing:
        _refuse_fresh(draft, mapping, missing, change.path[: depth + 1])
        into = _fresh(place, missing, change)
    else:
        _refuse_present(draft, mapping, change.key)
        into = place.group_for(change.after).entries
    siblings = [into] if missing else [group.entries for group in place.groups]
    if any(change.key in entries for entries in siblings):
        raise CannotEdit(f"{dotted((*change.path, change.key))} is added twice")
    value = Written(change.value) if isinstance(change.value, str) else _copied(change.value)
    _put(into, change.key, value, change.after)


def _put_for_an_alias(draft: Draft, mapping: Mapping, change: Add) -> bool:
    """Writes a mapping in the place of an alias; False where there is none."""
    pair = mapping.get(change.key)
    if pair is None or not isinstance(pair.value, Alias) or not isinstance(change.value, dict):
        return False
    try:
        text = one_line(change.value)
    except CannotSpell as error:
        raise CannotEdit(str(error)) from None
    draft.forget(pair.value)
    draft.splices.replace(pair.value.start, pair.value.end, text)
    return True


def _fresh(place: _Place, missing: KeyPath, change: Add) -> dict[Any, Any]:
    """The innermost of the mappings that are not there yet; another change may have brought them."""
    group = next((group for group in place.groups if missing[0] in group.entries), None)
    into = (group or place.group_for(None)).entries
    for key in missing:
        into = into.setdefault(key, {})
        if not isinstance(into, dict):
            raise CannotEdit(f"{dotted(change.path)} is added as something that is not a mapping")
    return into


def _copied(data: dict[Any, Any]) -> dict[Any, Any]:
    """Its mappings anew: another change may add to them."""
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in data.items()}


def _put(entries: dict[Any, Any], key: str, value: Any, after: str | None) -> None:
    """Puts an entry behind another one, or at the end."""
    behind = list(entries.items())
    index = list(entries).index(after) + 1 if after in entries else len(behind)
    behind.insert(index, (key, value))
    entries.clear()
    entries.update(behind)


def dotted(path: KeyPath) -> str:
    """For people: `policy.teachers[0].megatron_cfg`."""
    text = ""
    for element in path:
        text += f"[{element}]" if isinstance(element, int) else f".{element}" if text else element
    return text


# -- the place -----------------------------------------------------------------------------------------


def _find(draft: Draft, path: KeyPath) -> tuple[Mapping | None, int]:
    """The mapping that a path leads to, or the last one on the way, and how many elements lead there.

    No mapping is an empty file.
    """
    node = draft.document.root
    if node is None or (node.start == node.end and is_null(node)):
        return None, 0
    if not isinstance(node, Mapping):
        raise CannotEdit("it is not a mapping", node.start)
    mapping: Node = node
    for depth, element in enumerate(path):
        found = _step(mapping, element, path[:depth])
        if found is None:
            assert isinstance(mapping, Mapping)
            return mapping, depth
        _refuse_unwritten(found, path[: depth + 1], is_last=depth + 1 == len(path))
        mapping = found
    assert isinstance(mapping, Mapping)
    return mapping, len(path)


def _step(node: Node, element: str | int, shown: KeyPath) -> Node | None:
    if isinstance(node, Items):
        if not isinstance(element, int):
            raise CannotEdit(f"{dotted(shown)} is a list here", node.start)
        if not 0 <= element < len(node.items):
            raise CannotEdit(f"{dotted((*shown, element))} is not there", node.start)
        return node.items[element]
    assert isinstance(node, Mapping)
    pair = node.get(element)
    return None if pair is None else pair.value


def _refuse_unwritten(node: Node, shown: KeyPath, *, is_last: bool) -> None:
    """Makes sure that a mapping stands there itself, or a list on the way to one."""
    if isinstance(node, Mapping) or (isinstance(node, Items) and not is_last):
        return
    if isinstance(node, Items):
        what = "a list here"
    elif isinstance(node, Alias):
        what = "written as an alias here"
    elif is_null(node):
        what = "null here"
    elif isinstance(node, Scalar) and "${" in node.value:
        what = "an interpolation here"
    else:
        what = "not a mapping here"
    raise CannotEdit(f"{dotted(shown)} is {what}", node.pair.key.start if node.pair else node.start)


def _refuse_present(draft: Draft, mapping: Mapping | None, key: str) -> None:
    """Makes sure that a mapping does not have a key itself; one that comes by a merge key may be set anew."""
    pair = mapping.get(key) if mapping else None
    if pair is not None and pair.key.start not in draft.leaving:
        raise CannotEdit(f"{key} stands there already", pair.key.start)


def _refuse_fresh(draft: Draft, mapping: Mapping | None, missing: KeyPath, shown: KeyPath) -> None:
    """Makes sure that fresh mappings on the way are right: they must not hide one that comes by a merge key."""
    merge = draft.document.merge_of(mapping, missing[0]) if mapping else None
    if merge is not None:
        raise CannotEdit(f"{dotted(shown)} comes by a merge key here", merge.key.start)
    if any(isinstance(key, int) for key in missing):
        raise CannotEdit(f"{dotted((*shown, *missing[1:]))} is not there", mapping.start if mapping else None)


# -- the text ------------------------------------------------------------------------------------------


def _write(draft: Draft, mapping: Mapping | None, group: _Group) -> None:
    if mapping is None:
        _write_at_the_end(draft, group, "  ")
    elif mapping.flow:
        _write_flow(draft, mapping, group)
    elif group.after is None and mapping is draft.document.root:
        _write_at_the_end(draft, group, _step_of(draft, mapping))
    else:
        _write_block(draft, mapping, group)


def _write_flow(draft: Draft, mapping: Mapping, group: _Group) -> None:
    """`{a: 1}` → `{b: 2, a: 1}`: at the front, as a comment may stand behind the last entry."""
    text = draft.text
    if text[mapping.inside - 1] != "{":
        raise CannotEdit("the mapping to add to has no braces", mapping.start)
    json = bool(mapping.entries) and isinstance(key := mapping.entries[0].key, Scalar) and key.quote == '"'
    new = [f"{one_line(key, json=json)}: {one_line(value, json=json)}" for key, value in group.entries.items()]
    if group.after is not None:
        _write_behind_entry(draft, group.after, new)
        return
    first = mapping.entries[0].key.start if mapping.entries else mapping.end - 1
    if text[mapping.inside : first].strip():
        first = mapping.inside
    if mapping.entries:
        separator = _separator(draft, first)
        draft.splices.insert(first, "".join(entry + separator for entry in new))
    else:
        draft.splices.replace(mapping.inside, first, ", ".join(new))


def _write_behind_entry(draft: Draft, after: Pair, new: list[str]) -> None:
    """`{a: 1, c: 3}` → `{a: 1, b: 2, c: 3}`."""
    end = after.value.end
    has_comment = "#" in draft.text[end : draft.source.line_end(end)]
    separator = ", " if has_comment else _separator(draft, after.key.start)
    gap = " " if after.value.start == end else ""
    draft.splices.insert(end, gap + "".join(separator + entry for entry in new))


def _separator(draft: Draft, neighbour: int) -> str:
    """A comma, and a new line where the neighbour has one of its own."""
    if not draft.source.is_alone(neighbour):
        return ", "
    return "," + draft.source.newline(neighbour) + draft.source.indent(neighbour)


def _write_block(draft: Draft, mapping: Mapping, group: _Group) -> None:
    source = draft.source
    start = source.entry_start(mapping.entries[0])
    block = _block(group, " " * source.column(start), _step_of(draft, mapping))
    last = last_of((group.after or mapping.entries[-1]).value)
    if isinstance(last, Scalar) and last.is_block:
        _write_behind_text(draft, last.end, block)
    else:
        _write_behind_line(draft, last.end, block)


def _block(group: _Group, indent: str, step: str) -> list[str]:
    return [
        indent + line for key, value in group.entries.items() for line in lines(one_line(key, flow=False), value, step)
    ]


def _write_behind_line(draft: Draft, position: int, block: list[str]) -> None:
    newline = draft.source.newline(position)
    draft.splices.insert(draft.source.line_end(position), "".join(newline + line for line in block))


def _write_behind_text(draft: Draft, position: int, block: list[str]) -> None:
    """Behind a block scalar, which ends where the next line starts."""
    if draft.source.column(position):
        raise CannotEdit("the text before the place to add to has no line end, and would get one", position)
    newline = draft.source.newline(position)
    draft.splices.insert(position, "".join(line + newline for line in block))


def _write_at_the_end(draft: Draft, group: _Group, step: str) -> None:
    """Behind the last line of the file that is not blank, be it a comment; before a `...`."""
    source = draft.source
    indent = ""
    root = draft.document.root
    if isinstance(root, Mapping):
        indent = " " * source.column(source.entry_start(root.entries[0]))
    block = _block(group, indent, step)
    end = len(draft.text[: draft.document.end].rstrip())
    last = last_of(root) if root is not None else None
    if isinstance(last, Scalar) and last.is_block and last.end >= end:
        _write_behind_text(draft, last.end, block)
    elif end == 0:
        newline = source.newline(0)
        draft.splices.insert(0, "".join(line + newline for line in block))
    else:
        _write_behind_line(draft, end, block)


def _step_of(draft: Draft, mapping: Mapping) -> str:
    """One more level of indent, as the text around has it."""
    source = draft.source

    def column(of: Mapping) -> int:
        return source.column(source.entry_start(of.entries[0]))

    for pair in mapping.entries:
        if isinstance(pair.value, Mapping) and not pair.value.flow:
            return " " * max(column(pair.value) - column(mapping), 1)
    if mapping.pair is not None and not mapping.pair.mapping.flow:
        return " " * max(column(mapping) - column(mapping.pair.mapping), 1)
    for pair in draft.document.pairs.values():
        if isinstance(pair.value, Mapping) and not pair.value.flow and not pair.mapping.flow:
            return " " * max(column(pair.value) - column(pair.mapping), 1)
    return "  "
