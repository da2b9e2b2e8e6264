"""What the tests of editing share: changes that find their entry in a text by themselves."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from gtp_migrate.edit import edit
from gtp_migrate.plan.changes import Change, Drop, Move, Replace, Spot
from tests.edit.comments import comments

OLD = "gtp_weight_remat_size"
EXPERT_OLD = "expert_gtp_weight_remat_size"
NEW = "tensor_parallel_num_weight_shards"
EXPERT_NEW = "expert_tensor_parallel_num_weight_shards"

#: A change, once the text is known.
Asked = Change | Callable[[str], Change]


def text(indented: str) -> str:
    """A text that a test has indented, as a file would hold it."""
    return textwrap.dedent(indented).removeprefix("\n")


def load(content: str) -> Any:
    """A text as OmegaConf loads it."""
    return yaml.load(content.removeprefix("\ufeff"), Loader=get_yaml_loader())


def spot(content: str, key: str, nth: int = 1) -> Spot:
    """Where the nth entry with this key stands, by PyYAML's word."""
    found = []
    waiting = [yaml.compose(content.removeprefix("\ufeff"), Loader=yaml.SafeLoader)]
    seen = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            found += [each.start_mark for each, _ in node.value if each.value == key]
            waiting += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
    mark = sorted(found, key=lambda mark: mark.index)[nth - 1]
    return Spot(mark.index, mark.line + 1, mark.column + 1)


def replace(value: str | None, key: str = OLD, new: str = NEW, *, nth: int = 1, is_null: bool = False) -> Asked:
    return lambda content: Replace(spot(content, key, nth), key, new, value, is_null)


def move(value: str | None, key: str = OLD, new: str = NEW, **more: bool) -> Asked:
    return lambda content: Move(spot(content, key), key, new, value, **more)


def drop(key: str = OLD, **more: bool) -> Asked:
    return lambda content: Drop(spot(content, key), key, **more)


def edited(before: str, *asked: Asked, keep_nulls: bool = False) -> str:
    """The text with the changes made; no comment may be lost."""
    changes = [each(before) if callable(each) else each for each in asked]
    after = edit(before, changes, keep_nulls=keep_nulls)
    assert comments(after) == comments(before)
    load(after)
    return after


def becomes(before: str, after: str, *asked: Asked, keep_nulls: bool = False) -> None:
    """The changes make one text of the other, with both kinds of line ends and with a byte order mark."""
    before, after = text(before), text(after)
    assert edited(before, *asked, keep_nulls=keep_nulls) == after
    assert edited("\ufeff" + before, *asked, keep_nulls=keep_nulls) == "\ufeff" + after
    if "\n" in before:
        before, after = before.replace("\n", "\r\n"), after.replace("\n", "\r\n")
        assert edited(before, *asked, keep_nulls=keep_nulls) == after
