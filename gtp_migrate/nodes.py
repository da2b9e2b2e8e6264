"""The text of one recipe as a tree of nodes with their exact positions, aliases and comments left in place.

Read with ruamel.yaml, another parser than the one that gives the values: where the two disagree about a text,
its positions are not to be trusted and the file is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, MappingStartEvent, NodeEvent, ScalarEvent, SequenceStartEvent


class NodesError(Exception):
    """The text cannot be read, or is not what it was taken for."""


@dataclass
class Node:
    """A mapping, a list, a scalar or an alias; `text[start:end]` with its anchor and tag."""

    kind: str
    start: int
    end: int
    anchor: str | None = None
    #: Of a scalar: `'`, `"`, `|`, `>` or None for a plain one.
    quote: str | None = None
    value: str = ""
    flow: bool = False
    entries: list[Pair] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    #: The entry whose value this is, and the mapping or list it is in.
    pair: Pair | None = None
    parent: Node | None = None

    def get(self, key: str) -> Pair | None:
        return next((pair for pair in self.entries if pair.key.value == key), None)

    @property
    def content_end(self) -> int:
        """Where its last character stands: a block mapping ends only with the next token."""
        if self.kind == "mapping" and not self.flow and self.entries:
            return self.entries[-1].value.content_end
        if self.kind == "list" and not self.flow and self.items:
            return self.items[-1].content_end
        return self.end


@dataclass
class Pair:
    """A key and its value."""

    key: Node
    value: Node
    mapping: Node


@dataclass
class Document:
    """A text and its nodes."""

    text: str
    root: Node | None
    pairs: dict[int, Pair]
    anchors: dict[str, Node]
    aliases: list[Node]

    def behind(self, node: Node) -> Node:
        """The node that an alias stands for, any other node itself."""
        while node.kind == "alias":
            node = self.anchors[node.value]
        return node

    def has_key(self, mapping: Node, key: str) -> bool:
        """Whether a mapping has a key, be it through `<<`."""
        return any(
            pair.key.value == key
            or (pair.key.value == "<<" and any(self.has_key(each, key) for each in self._merged(pair.value)))
            for pair in mapping.entries
        )

    def _merged(self, node: Node) -> Iterator[Node]:
        node = self.behind(node)
        if node.kind == "list":
            for item in node.items:
                yield from self._merged(item)
        else:
            yield node


def read(text: str) -> Document:
    """The nodes of a text without a byte order mark.

    Raises:
        NodesError: it cannot be parsed, or redefines an anchor.
    """
    document = Document(text, None, {}, {}, [])
    stack: list[Node] = []
    keys: list[Node | None] = []
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            if isinstance(event, NodeEvent):
                _enter(document, stack, keys, event)
            elif stack and type(event).__name__ in ("MappingEndEvent", "SequenceEndEvent"):
                node = stack.pop()
                keys.pop()
                node.end = event.end_mark.index
    except YAMLError as error:
        raise NodesError(f"ruamel.yaml cannot read it ({str(error).splitlines()[0]})") from None
    except RecursionError:
        raise NodesError("it is nested too deeply") from None
    return document


def _enter(document: Document, stack: list[Node], keys: list[Node | None], event: Any) -> None:
    start, end = event.start_mark.index, event.end_mark.index
    if isinstance(event, AliasEvent):
        node = Node("alias", start, end, value=event.anchor)
        if event.anchor not in document.anchors:
            raise NodesError(f"the alias *{event.anchor} has no anchor")
        document.aliases.append(node)
    elif isinstance(event, ScalarEvent):
        if start == end and keys and keys[-1] is not None:
            # An empty value has the place of the next token; it stands behind its colon.
            start = end = document.text.find(":", keys[-1].end, start + 1) + 1 or keys[-1].end
        node = Node("scalar", start, end, event.anchor, event.style, event.value)
    else:
        kind = "mapping" if isinstance(event, MappingStartEvent) else "list"
        assert isinstance(event, (MappingStartEvent, SequenceStartEvent))
        node = Node(kind, start, end, event.anchor, flow=bool(event.flow_style))
    if node.anchor:
        if node.anchor in document.anchors:
            raise NodesError(f"the anchor &{node.anchor} is defined twice")
        document.anchors[node.anchor] = node
    if not stack:
        document.root = node
    else:
        parent = stack[-1]
        node.parent = parent
        if parent.kind == "list":
            parent.items.append(node)
        elif keys[-1] is None:
            keys[-1] = node
        else:
            key = keys[-1]
            pair = Pair(key, node, parent)
            node.pair = pair
            parent.entries.append(pair)
            document.pairs[key.start] = pair
            keys[-1] = None
    if node.kind in ("mapping", "list"):
        stack.append(node)
        keys.append(None)
