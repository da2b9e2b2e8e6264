"""The text of one recipe as a tree of nodes with their exact positions, aliases and comments left in place.

Read with ruamel.yaml, another parser than the one that gives the values: where the two disagree about a text,
its positions are not to be trusted and the file is left alone.

ruamel.yaml has two parsers. The one in C (libyaml, package ruamel.yaml.clib) is some twenty times faster in making
events. It reads YAML 1.1, as PyYAML does, and refuses a few things that PyYAML takes (`[http://host]`); the one in
Python reads YAML 1.2 and takes those. So the one in C comes first, and the one in Python where that refuses, or is
not installed. The texts that they read differently (characters like U+0085 and U+2028, which end a line in YAML 1.1
alone) are therefore read as PyYAML reads them, or the places found do not fit the ones asked for. Both count
positions in characters. They differ in the place of an empty value: here it always stands behind its colon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from gtp_migrate.recipes.keys import MERGE

#: What a line ends with in YAML 1.1.
BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
#: Blanks, line ends and comments.
_BETWEEN = re.compile("(?:[ \t\n\r\x85\u2028\u2029]|#[^\n\r\x85\u2028\u2029]*)*")


class NodesError(Exception):
    """The text cannot be read, or is not what it was taken for."""


@dataclass(eq=False, slots=True)
class Node:
    """`text[start:end]` with its anchor and tag; a block mapping or list ends only with the next token."""

    start: int
    end: int
    anchor: str | None
    #: The entry whose value this is.
    pair: Pair | None = field(default=None, init=False, repr=False)


@dataclass(eq=False, slots=True)
class Scalar(Node):
    """A string, a number, null ..."""

    value: str
    #: `'`, `"`, `|`, `>`, or "" for a plain one.
    quote: str

    @property
    def is_block(self) -> bool:
        """Whether it is a text of whole lines."""
        return self.quote in ("|", ">")


@dataclass(eq=False, slots=True)
class Alias(Node):
    """`*name`."""

    name: str


@dataclass(eq=False, slots=True)
class Items(Node):
    """A list."""

    flow: bool
    items: list[Node] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Mapping(Node):
    """A mapping."""

    flow: bool
    #: Behind its `{`, where it has one.
    inside: int
    entries: list[Pair] = field(default_factory=list)

    _by_text: dict[str, list[Pair]] | None = field(default=None, init=False, repr=False)

    @property
    def by_text(self) -> dict[str, list[Pair]]:
        """The entries by the text of their keys."""
        if self._by_text is None:
            self._by_text = {}
            for pair in self.entries:
                if isinstance(pair.key, Scalar):
                    self._by_text.setdefault(pair.key.value, []).append(pair)
        return self._by_text

    def get(self, key: str | int) -> Pair | None:
        """The entry that has this key itself; of several `<<` the last one."""
        if isinstance(key, str):
            candidates = self.by_text.get(key, [])
        else:
            candidates = [pair for pair in self.entries if isinstance(pair.key, Scalar)]
        return next((pair for pair in reversed(candidates) if _loads_as(pair.key, key)), None)


@dataclass(eq=False, slots=True)
class Pair:
    """An entry of a mapping."""

    key: Node
    value: Node
    mapping: Mapping

    @property
    def name(self) -> str | None:
        """The text of its key."""
        return self.key.value if isinstance(self.key, Scalar) else None


@dataclass
class Document:
    """A text and its nodes."""

    text: str
    root: Node | None = None
    #: Where its content ends: before a `...`.
    end: int = 0
    #: By the offset of the key.
    pairs: dict[int, Pair] = field(default_factory=dict)
    anchors: dict[str, Node] = field(default_factory=dict)
    aliases: list[Alias] = field(default_factory=list)

    def merge_of(self, mapping: Mapping, key: str | int) -> Pair | None:
        """The `<<` of a mapping that brings this key."""
        for pair in mapping.by_text.get(MERGE, []):
            if any(each.get(key) for each in self._merged(pair, set())):
                return pair
        return None

    def _merged(self, merge: Pair, seen: set[int]) -> Iterator[Mapping]:
        """All mappings that a `<<` brings, each once; an alias may stand inside what it stands for."""
        waiting = [merge.value]
        while waiting:
            node = waiting.pop()
            if isinstance(node, Alias):
                node = self.anchors[node.name]
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, Items):
                waiting += node.items
            elif isinstance(node, Mapping):
                yield node
                waiting += [pair.value for pair in node.by_text.get(MERGE, [])]


def last_of(node: Node) -> Node:
    """The node that a node's text ends with: itself, or the deepest last one of what is in it."""
    while not getattr(node, "flow", True):
        if isinstance(node, Mapping) and node.entries:
            node = node.entries[-1].value
        elif isinstance(node, Items) and node.items:
            node = node.items[-1]
        else:
            break
    return node


def is_null(node: Node) -> bool:
    """Whether a node is a plain null."""
    return isinstance(node, Scalar) and not node.quote and node.value in ("", "~", "null", "Null", "NULL")


def _loads_as(key: Node, wanted: str | int) -> bool:
    assert isinstance(key, Scalar)
    loaded: Any = key.value
    if not key.quote and not key.value[:1].isalpha():
        try:
            loaded = yaml.safe_load(key.value)
        except (yaml.YAMLError, ValueError):
            loaded = key.value
        if not isinstance(loaded, (int, float)):
            loaded = key.value
    return type(loaded) is type(wanted) and bool(loaded == wanted)


def read(text: str) -> Document:
    """The nodes of a text without a byte order mark.

    Raises:
        NodesError: it cannot be parsed, holds several documents, or redefines an anchor.
    """
    try:
        try:
            return _Reader(text).document(pure=False)
        except (YAMLError, UnicodeEncodeError):
            return _Reader(text).document(pure=True)
    except YAMLError as error:
        raise NodesError(f"ruamel.yaml cannot read it ({str(error).splitlines()[0]})") from None
    except RecursionError:
        raise NodesError("it is nested too deeply") from None


class _Reader:
    def __init__(self, text: str) -> None:
        self.result = Document(text, end=len(text))
        #: The open mappings and lists, and for each mapping the key that waits for its value.
        self.stack: list[Mapping | Items] = []
        self.keys: list[Node | None] = []
        self.has_document = False

    def document(self, *, pure: bool) -> Document:
        for event in YAML(typ="safe", pure=pure).parse(self.result.text):
            kind = type(event)
            start, end = event.start_mark.index, event.end_mark.index
            if kind is ScalarEvent:
                self.scalar(event, start, end)
            elif kind is MappingStartEvent:
                self.open(Mapping(start, end, event.anchor, bool(event.flow_style), end))
            elif kind is SequenceStartEvent:
                self.open(Items(start, end, event.anchor, bool(event.flow_style)))
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                self.stack.pop().end = end
                self.keys.pop()
            elif kind is AliasEvent:
                self.alias(Alias(start, end, None, event.anchor))
            elif kind is DocumentStartEvent:
                if self.has_document:
                    raise NodesError("it holds several documents")
                self.has_document = True
            elif kind is DocumentEndEvent and event.explicit:
                self.result.end = start
        return self.result

    def scalar(self, event: Any, start: int, end: int) -> None:
        if start == end and self.keys and self.keys[-1] is not None:
            start = end = self.behind_colon(self.keys[-1].end)
        self.enter(Scalar(start, end, event.anchor, event.value, event.style or ""))

    def behind_colon(self, position: int) -> int:
        """Where an empty value stands: its event has the place of the next token, or another one."""
        match = _BETWEEN.match(self.result.text, position)
        colon = match.end() if match else position
        return colon + 1 if self.result.text[colon : colon + 1] == ":" else position

    def alias(self, node: Alias) -> None:
        if node.name not in self.result.anchors:
            raise NodesError(f"the alias *{node.name} has no anchor")
        self.result.aliases.append(node)
        self.enter(node)

    def open(self, node: Mapping | Items) -> None:
        self.enter(node)
        self.stack.append(node)
        self.keys.append(None)

    def enter(self, node: Node) -> None:
        """Puts a node where it belongs."""
        if node.anchor:
            if node.anchor in self.result.anchors:
                raise NodesError(f"the anchor &{node.anchor} is defined twice")
            self.result.anchors[node.anchor] = node
        if not self.stack:
            self.result.root = node
            return
        parent = self.stack[-1]
        if isinstance(parent, Items):
            parent.items.append(node)
            return
        key = self.keys[-1]
        if key is None:
            self.keys[-1] = node
            return
        pair = Pair(key, node, parent)
        node.pair = pair
        parent.entries.append(pair)
        self.result.pairs[key.start] = pair
        self.keys[-1] = None
