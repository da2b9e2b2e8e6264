"""Where a new entry goes, for people: the line of the mapping that takes it."""

from __future__ import annotations

from gtp_migrate.edit.nodes import Items, Mapping, NodesError, read
from gtp_migrate.edit.source import Source
from gtp_migrate.recipes.keys import KeyPath


def where(text: str, path: KeyPath) -> tuple[int, int]:
    """Line and column, from 1, of the last key on the path that the text itself has; 0 where it has none.

    Args:
        text: the file's content, with its byte order mark if it has one.
        path: of the new entry.
    """
    text = text.removeprefix("\ufeff")
    try:
        node = read(text).root
    except NodesError:
        return 0, 0
    position = None
    for key in path:
        if isinstance(node, Mapping) and (pair := node.get(key)) is not None:
            position, node = pair.key.start, pair.value
        elif isinstance(node, Items) and isinstance(key, int) and 0 <= key < len(node.items):
            node = node.items[key]
            position = node.start
        else:
            break
    if position is None:
        return 0, 0
    source = Source(text)
    return source.line(position) + 1, source.column(position) + 1
