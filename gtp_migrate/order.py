"""Which files stand or fall together, and the order in which they are written."""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Iterable, Mapping


class Groups:
    """Files that are layers of one recipe, directly or through others."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def find(self, path: str) -> str:
        """The file that stands for the group."""
        root = path
        while (above := self._above.get(root, root)) != root:
            root = above
        while path != root:
            self._above[path], path = root, self._above.get(path, path)
        return root

    def join(self, paths: list[str]) -> None:
        """Puts files into one group."""
        for path in paths[1:]:
            self._above[self.find(path)] = self.find(paths[0])


def without_bad(recipes: Mapping[str, list[str]], changed: set[str], bad: set[str]) -> tuple[set[str], Groups]:
    """Leaves all that is connected with a failure.

    Args:
        recipes: the files of each recipe, earliest layer first.
        changed: files that would be changed.
        bad: files that must stay as they are, changed or not.

    Returns:
        The files to write, and how they hang together.
    """
    groups = Groups()
    for paths in recipes.values():
        groups.join([path for path in paths if path in changed or path in bad])
    bad_groups = {groups.find(path) for path in bad}
    return {path for path in changed if groups.find(path) not in bad_groups}, groups


def writing_order(recipes: Iterable[list[str]], kept: set[str]) -> list[str]:
    """Later layers before earlier ones.

    A count in a later layer wins over an old size below it, so that a tree that is half written still means the same;
    the other way round it would not.
    """
    later: dict[str, set[str]] = {path: set() for path in sorted(kept)}
    for paths in recipes:
        layers = [path for path in dict.fromkeys(reversed(paths)) if path in kept]
        for one, other in itertools.pairwise(layers):
            later[other].add(one)
    try:
        return list(graphlib.TopologicalSorter(later).static_order())
    except graphlib.CycleError:
        return _order_with_circles(later)


def _order_with_circles(first: dict[str, set[str]]) -> list[str]:
    """Each after those it waits for; where some wait for each other, one of them goes first.

    That is so where one recipe inherits from two files in one order, and another in the other: none is right
    for both.
    """
    order: list[str] = []
    done: set[str] = set()
    waiting = dict.fromkeys(first)
    while waiting:
        ready = [path for path in waiting if first[path] <= done]
        if not ready:
            ready = [_in_a_circle(first, done, next(iter(waiting)))]
        for path in ready:
            del waiting[path]
        order += ready
        done.update(ready)
    return order


def _in_a_circle(first: dict[str, set[str]], done: set[str], start: str) -> str:
    """A file that waits for no file but those that wait for it, directly or through others."""
    for circle in _circles(first, done, start):
        return min(circle)
    return start


def _circles(first: dict[str, set[str]], done: set[str], start: str) -> Iterable[set[str]]:
    """The strongly connected parts of what `start` waits for, innermost first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    stack: list[tuple[str, list[str]]] = []

    def enter(node: str) -> None:
        index[node] = low[node] = len(index)
        path.append(node)
        on_path.add(node)
        stack.append((node, sorted(first[node] - done)))

    enter(start)
    while stack:
        node, onward = stack[-1]
        if onward:
            other = onward.pop()
            if other not in index:
                enter(other)
            elif other in on_path:
                low[node] = min(low[node], index[other])
            continue
        stack.pop()
        if stack:
            low[stack[-1][0]] = min(low[stack[-1][0]], low[node])
        if low[node] == index[node]:
            at = path.index(node)
            circle = set(path[at:])
            del path[at:]
            on_path -= circle
            yield circle
