"""Random documents and changes: the text loads as what was asked for, and all else is as it was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from hypothesis import assume, event, given
from hypothesis import strategies as st
from omegaconf._utils import get_yaml_loader

from gtp_migrate.edit import EditError, edit
from gtp_migrate.plan.changes import Add, Change, Drop, Replace, Spot

from .comments import comments
from .documents import NEW_KEYS, OVERRIDES, Composed, changes, compose, documents
from .texts import load

LOADER = get_yaml_loader()

#: What a text may be refused for that is in these documents.
REASONS = re.compile(
    "a comment stands inside it"
    "|its comments have no place to go"
    "|it shares a line with something else"
    "|its model_overrides shares a line with something else"
    "|nothing would be left around it"
    "|the text before the place to add to has no line end, and would get one"
    "|new.* comes by a merge key here"
)


def scalar(value: str) -> Any:
    return yaml.compose(value, Loader=LOADER)


def as_node(value: Any) -> Any:
    return scalar(value) if isinstance(value, str) else yaml.compose(yaml.safe_dump(value), Loader=LOADER)


def string(value: str) -> Any:
    return yaml.ScalarNode("tag:yaml.org,2002:str", value)


def apply(composed: Composed, asked: list[Change]) -> Any:
    """What the changes make of the loaded data, done on the nodes: an anchored mapping changes for all aliases."""
    spots = {key.start_mark.index: (node, key, owner) for node, key, _, owner in composed.settings}
    for change in asked:
        if isinstance(change, Add):
            continue
        node, key, owner = spots[change.spot.offset]
        value = next(value for each, value in node.value if each is key)
        if isinstance(change, Drop):
            node.value = [pair for pair in node.value if pair[0] is not key]
        else:
            new = (string(change.new_key), value if change.value is None else scalar(change.value))
            if isinstance(change, Replace):
                node.value = [new if pair[0] is key else pair for pair in node.value]
            else:
                node.value = [pair for pair in node.value if pair[0] is not key]
                owner.value.append(new)
    for change in asked:
        if isinstance(change, Add):
            add(composed, change)
    return composed.loader.construct_document(composed.root)


def add(composed: Composed, change: Add) -> None:
    node = composed.root
    for element in change.path:
        if isinstance(element, int):
            node = node.value[element]
            continue
        found = next((value for key, value in node.value if key.value == element), None)
        if found is None:
            found = yaml.MappingNode("tag:yaml.org,2002:map", [])
            node.value.append((string(element), found))
        node = found
    node.value.append((string(change.key), as_node(change.value)))


def without_husks(data: Any) -> Any:
    """Data without empty `model_overrides`: whether one stays is told by the examples."""
    if isinstance(data, dict):
        return {key: without_husks(value) for key, value in data.items() if key != OVERRIDES or value != {}}
    if isinstance(data, list):
        return [without_husks(value) for value in data]
    return data


def touched_lines(composed: Composed, asked: list[Change]) -> set[int]:
    """The lines that a change may alter."""
    touched: set[int] = set()
    homes = {key.start_mark.index: (node, home) for node, key, home, _ in composed.settings}
    for change in asked:
        if isinstance(change, Add):
            continue
        node, home = homes[change.spot.offset]
        touched.update(range(node.start_mark.line, node.end_mark.line + 1))
        if home is not None and not isinstance(change, Replace):
            touched.update(range(home.start_mark.line, node.end_mark.line + 1))
    if any(isinstance(change, Add) for change in asked):
        for _, node in composed.mappings:
            if node.flow_style:
                touched.update(range(node.start_mark.line, node.end_mark.line + 1))
    return touched


def lines_of(text: str) -> list[str]:
    return text.removeprefix("\ufeff").splitlines(keepends=True)


def is_subsequence(few: list[str], many: list[str]) -> bool:
    """Whether lines are among others in this order; the last one of a file may have no end, or get or lose it."""
    rest: Iterator[str] = iter(many)
    return all(any(is_same_line(line, other) for other in rest) for line in few)


def is_same_line(one: str, other: str) -> bool:
    bare = one.rstrip("\r\n"), other.rstrip("\r\n")
    return one == other or (bare[0] == bare[1] and (one in bare or other in bare))


@given(st.data())
def test_the_changes_and_nothing_else(data: st.DataObject) -> None:
    before = data.draw(documents())
    composed = compose(before, LOADER)
    asked = changes(data.draw, composed)  # type: ignore[arg-type]
    assume(asked)
    touched = touched_lines(composed, asked)
    refused = ""
    try:
        after = edit(before, asked)
    except EditError as error:
        refused = error.what
    if refused:
        event(f"refused: {refused}")
        assert REASONS.fullmatch(refused) or is_refused_for_an_anchor(before, refused)
        return
    event(", ".join(sorted({type(change).__name__ for change in asked})))
    wanted = without_husks(apply(composed, asked))
    assert without_husks(load(after)) == wanted
    assert comments(after) == comments(before)
    assert after.startswith("\ufeff") == before.startswith("\ufeff")
    kept = [line for number, line in enumerate(lines_of(before)) if number not in touched]
    assert is_subsequence(kept, lines_of(after))


def is_refused_for_an_anchor(before: str, what: str) -> bool:
    anchor = re.fullmatch(r"the value's anchor &(\w+) is used elsewhere", what)
    return anchor is not None and re.search(rf"\*{anchor[1]}\b", before) is not None


@given(st.data())
def test_replacing_changes_these_tokens_alone(data: st.DataObject) -> None:
    """Done once more with PyYAML's marks, from the end to the start."""
    before = data.draw(documents()).removeprefix("\ufeff")
    composed = compose(before, LOADER)
    assume(composed.settings)
    asked: list[Change] = []
    expected = before
    for node, key, _, _ in sorted(composed.settings, key=lambda each: -each[1].start_mark.index):
        value = next(value for each, value in node.value if each is key)
        new = NEW_KEYS[key.value]
        mark = key.start_mark
        asked.append(Replace(Spot(mark.index, mark.line + 1, mark.column + 1), key.value, new, "12"))
        start, end = value.start_mark.index, value.end_mark.index
        written = "12"
        if start == end:
            start = end = before.index(":", key.end_mark.index) + 1
            written = " 12"
        expected = expected[:start] + written + expected[end:]
        quote = key.style or ""
        expected = expected[: mark.index] + quote + new + quote + expected[key.end_mark.index :]
    refused = ""
    try:
        after = edit(before, asked)
    except EditError as error:
        refused = error.what
    if refused:
        assert is_refused_for_an_anchor(before, refused)
        return
    assert after == expected
