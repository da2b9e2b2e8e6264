"""All that knows `${…}`: what a text refers to, and what it stands for in a merged recipe.

References to a key (`${a.b}`, `${..c}`) are followed here, so that a value keeps knowing where it stands. Everything
else is evaluated by OmegaConf itself, on the part of the recipe that the text can reach.

Source: OmegaConf 2.3 (`omegaconf/base.py`, `_resolve_node_interpolation`; `grammar/`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gtp_migrate.problems import one_line
from gtp_migrate.recipes.keys import MISSING, KeyPath, dotted
from gtp_migrate.recipes.values import Leaf, plain, raw

#: What every NeMo-RL registers, and what newer ones add. By name: what each does.
RESOLVERS = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": lambda a, b: max(a, b),
    "sub": lambda a, b: a - b,
}
#: The oldest set, which every launcher that registers any has.
OLDEST_RESOLVERS = frozenset({"add", "mul", "div", "max"})
#: Resolvers that look at their arguments alone. Others may read any key of the recipe.
_PLAIN_RESOLVERS = frozenset({*RESOLVERS, "oc.env", "oc.decode"})
#: How OmegaConf calls a reference to a value that is still to be given.
MISSING_VALUE = "InterpolationToMissingValueError"
#: References that one text may go through, with all that they go through: more is a bomb.
_MOST_STEPS = 100_000

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_ONE_REFERENCE = re.compile(r"\$\{(?P<dots>\.*)(?P<name>[A-Za-z_0-9][\w\-]*(?:\.[\w\-]+|\[\w+\])*)\}")
_ESCAPED = re.compile(r"\\\$\{[^{}]*\}|\\\$\{")
_RESOLVED = "\0"


@dataclass(frozen=True)
class Unresolved:
    """What an interpolation stands for where OmegaConf would raise: why."""

    why: str

    def __repr__(self) -> str:
        return f"unknown ({self.why})"


class Reference:
    """A name in a text, relative to where the text stands."""

    __slots__ = ("dots", "keys")

    def __init__(self, dots: int, keys: tuple[str, ...]) -> None:
        self.dots = dots
        self.keys = keys

    def target(self, path: KeyPath) -> KeyPath | None:
        """What it names where the text stands at `path`; None above the root."""
        if not self.dots:
            return self.keys
        if self.dots > len(path):
            return None
        return path[: len(path) - self.dots] + self.keys


@dataclass(frozen=True)
class Parsed:
    """What can be told from the text of a value alone."""

    #: The names in it.
    references: tuple[Reference, ...]
    #: Whether it may refer to anything: a computed name, a resolver that reads the recipe.
    is_dynamic: bool
    #: The reference that it is, where it is nothing but one.
    one: Reference | None
    #: The resolvers that it calls.
    resolvers: frozenset[str]


@lru_cache(maxsize=65536)
def parse(text: str) -> Parsed:
    """What a text with interpolations refers to."""
    one = _ONE_REFERENCE.fullmatch(text)
    if one:
        reference = _reference(one["dots"] + one["name"])
        return Parsed((reference,), False, reference, frozenset())
    found: list[Reference] = []
    resolvers: set[str] = set()
    is_dynamic = False
    # An escaped one is text: what is in it calls nothing.
    remaining = _ESCAPED.sub("", text)
    while match := _INNERMOST.search(remaining):
        content = match[1].strip()
        name, colon, _ = content.partition(":")
        if colon:
            resolvers.add(name.strip())
            is_dynamic = is_dynamic or name.strip() not in _PLAIN_RESOLVERS
        elif _RESOLVED in content:
            is_dynamic = True
        else:
            found.append(_reference(content))
        remaining = remaining[: match.start()] + _RESOLVED + remaining[match.end() :]
    # What is left of a brace that does not close, or closes in a quote, only OmegaConf's grammar can tell.
    is_dynamic = is_dynamic or "${" in remaining
    return Parsed(tuple(found), is_dynamic, None, frozenset(resolvers))


def _reference(content: str) -> Reference:
    name = content.lstrip(".")
    return Reference(len(content) - len(name), tuple(key for key in re.split(r"[.\[\]]+", name) if key))


@lru_cache(maxsize=262144)
def targets(text: str, path: KeyPath) -> tuple[KeyPath, ...]:
    """The paths that a text refers to where it stands at `path`; the empty one among them where that may be
    anything."""
    parsed = parse(text)
    found = [target for reference in parsed.references if (target := reference.target(path)) is not None]
    return (*found, ()) if parsed.is_dynamic else tuple(found)


def is_one(text: str) -> bool:
    """Whether a text is one `${…}` and nothing around it."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if char == "}" and depth == 0:
            return text.startswith("${") and index == len(text) - 1
    return False


class Lookup:
    """Follows paths in a merged recipe, through references to mappings and values."""

    def __init__(self, root: dict[Any, Any]) -> None:
        self.root = root

    def at(self, path: KeyPath) -> Any:
        """What stands at `path`, references followed: a mapping, a list, a value, a `Leaf`, or `Unresolved`."""
        return self.find(path)[1]

    def find(self, path: KeyPath) -> tuple[KeyPath, Any]:
        """The path where it really stands, and what stands there. An interpolation that is more than a reference
        is found itself."""
        seen: set[KeyPath] = set()
        while True:
            if path in seen:
                return path, Unresolved(f"{dotted(path)} refers to itself")
            seen.add(path)
            onward = self._walk(path)
            if onward[0] is None:
                return onward[1], onward[2]
            path = onward[0]

    def _walk(self, path: KeyPath) -> tuple[KeyPath | None, KeyPath, Any]:
        """Goes down to the first reference on the way: (where to go on, where it stands, what it is)."""
        node: Any = self.root
        for index, key in enumerate(path):
            key = _key_in(node, key)
            here = (*path[:index], key)
            if (isinstance(node, dict) and key in node) or (
                isinstance(node, list) and isinstance(key, int) and -len(node) <= key < len(node)
            ):
                node = node[key]
            else:
                return None, path, Unresolved(f"Interpolation key '{dotted(path)}' not found")
            if isinstance(node, Leaf) and node.is_interpolation:
                one = parse(node.value).one
                target = one.target(here) if one else None
                if one and target is None:
                    return None, path, Unresolved(f"{node.value} leads above the recipe")
                if target is not None:
                    return (*target, *path[index + 1 :]), path, None
                if index + 1 < len(path):
                    return None, path, Unresolved(f"{node.value} cannot be followed")
                return None, here, node
            if index + 1 < len(path) and not isinstance(node, (dict, list)):
                return None, path, Unresolved(f"Interpolation key '{dotted(path)}' not found")
            path = (*here, *path[index + 1 :])
        return None, path, node


def _key_in(node: Any, key: Any) -> Any:
    if isinstance(node, list) and isinstance(key, str) and key.isdigit():
        return int(key)
    return key


class Computed:
    """An interpolation in a resolved recipe: the entry that it is, and what it stands for, worked out when asked
    for."""

    __slots__ = ("_resolution", "_value", "leaf", "path")

    def __init__(self, leaf: Leaf, path: KeyPath, resolution: Resolution) -> None:
        self.leaf = leaf
        self.path = path
        self._resolution = resolution
        self._value: Any = _UNSET

    @property
    def value(self) -> Any:
        """The value, or `Unresolved`."""
        if self._value is _UNSET:
            self._value = self._resolution.evaluate(self.path, self.leaf)
        return self._value


_UNSET = object()


def entry_of(value: Any) -> Leaf | None:
    """The entry that a value of a resolved recipe is, where that is known."""
    if isinstance(value, Computed):
        return value.leaf
    return value if isinstance(value, Leaf) else None


def value_of(value: Any) -> Any:
    """What a value of a resolved recipe is; `Unresolved` where OmegaConf would raise."""
    return value.value if isinstance(value, (Computed, Leaf)) else value


class Resolution:
    """A merged recipe with all interpolations resolved, as far as they are looked at."""

    def __init__(self, root: dict[Any, Any], holes: Iterable[tuple[KeyPath, Leaf]], resolvers: frozenset[str]) -> None:
        """
        Args:
            root: the merged recipe.
            holes: its interpolations, by their paths.
            resolvers: the names that the launcher registers, beside OmegaConf's own.
        """
        self.root = root
        self.holes = tuple(holes)
        self.resolvers = resolvers
        #: Mappings and lists that stand in place of an interpolation in the tree, by their paths.
        self.placed: list[tuple[KeyPath, Any]] = []
        self.lookup = Lookup(root)
        self._wanted: Callable[[KeyPath], bool] = lambda _: True
        self._trees: dict[tuple[KeyPath, bool], Any] = {}
        self._steps: dict[KeyPath, int] = {}

    def tree(self, wanted: Callable[[KeyPath], bool] = lambda _: True) -> dict[Any, Any]:
        """The recipe; what no interpolation is in, is the very same object.

        Args:
            wanted: whether the value at a path will be looked at. What stands for a mapping or a list always is
                resolved; other values that nobody looks at are left as they are.
        """
        self._wanted = wanted
        tree = self._tree(self.root, (), whole=False)
        assert isinstance(tree, dict)
        return tree

    def _tree(self, node: Any, path: KeyPath, *, whole: bool) -> Any:
        """A mapping or a list with all below it resolved: only what is around an interpolation is copied.

        What is referred to is resolved as a whole: it will be looked at where the reference stands.
        """
        holes = self._below(path)
        if not holes:
            return node
        known = (path, whole)
        if known in self._trees:
            return self._trees[known]
        self._trees[known] = Unresolved(f"{dotted(path)} refers to itself")
        built = node.copy()
        copies: dict[KeyPath, Any] = {(): built}
        for full, leaf in holes:
            where = full[len(path) :]
            if not whole and not self._wanted(full) and self._is_plainly_a_value(leaf, full):
                continue
            target = built
            for length in range(1, len(where)):
                above = where[:length]
                if above not in copies:
                    copies[above] = target[where[length - 1]] = target[where[length - 1]].copy()
                target = copies[above]
            value = target[where[-1]] = self._leaf(leaf, full)
            if not path and (type(value) is dict or type(value) is list):
                self.placed.append((full, value))
        self._trees[known] = built
        return built

    def _below(self, path: KeyPath) -> tuple[tuple[KeyPath, Leaf], ...]:
        """The interpolations at `path` and below it."""
        return tuple(each for each in self.holes if each[0][: len(path)] == path) if path else self.holes

    def _leaf(self, leaf: Leaf, path: KeyPath) -> Any:
        parsed = parse(leaf.value)
        if parsed.one is not None:
            if self._is_plainly_a_value(leaf, path):
                return Computed(leaf, path, self)
            real, found = self.lookup.find(path)
            if isinstance(found, (dict, list)):
                return self._tree(found, real, whole=True)
        elif parsed.is_dynamic and is_one(leaf.value):
            # It may stand for a mapping.
            value = self.evaluate(path, leaf)
            if isinstance(value, (dict, list)):
                return value
        return Computed(leaf, path, self)

    def _is_plainly_a_value(self, leaf: Leaf, path: KeyPath) -> bool:
        """Whether an interpolation surely stands for no mapping and no list: most do, and need not be followed."""
        parsed = parse(leaf.value)
        if parsed.one is None:
            return not parsed.is_dynamic
        node: Any = self.root
        for key in parsed.one.target(path) or ():
            if type(node) is not dict or key not in node:
                return False
            node = node[key]
        return type(node) is not dict and type(node) is not list and type(node) is not Leaf

    def touched(self, changed: list[KeyPath]) -> Iterator[tuple[KeyPath, Leaf]]:
        """The interpolations that may stand for something else where what stands at these paths is another."""
        waiting = self.holes
        found = list(changed)
        while found:
            # Most share not even their first key.
            heads = {path[:1] for path in found}
            is_open = () in heads
            now = [
                (path, leaf)
                for path, leaf in waiting
                if path in found
                or any(
                    any(_meet(target, each) for each in found)
                    for target in targets(leaf.value, path)
                    if is_open or not target or target[:1] in heads
                )
            ]
            yield from now
            found = [path for path, _ in now]
            reached = set(found)
            waiting = tuple(each for each in waiting if each[0] not in reached)

    def evaluate(self, path: KeyPath, leaf: Leaf) -> Any:
        """What the interpolation at `path` stands for; `Unresolved` where OmegaConf would raise."""
        if parse(leaf.value).one is not None:
            real, found = self.lookup.find(path)
            if isinstance(found, Leaf) and found.is_interpolation:
                return self._by_omegaconf(real)
            found = raw(found)
            if isinstance(found, str) and found == MISSING:
                return Unresolved(f"{MISSING_VALUE}: {dotted(real)} is still to be given")
            return found if not isinstance(found, (dict, list)) else plain(found)
        return self._by_omegaconf(path)

    def _by_omegaconf(self, path: KeyPath) -> Any:
        part = self._part(path)
        if isinstance(part, Unresolved):
            return part
        return _evaluate(part, path, self.resolvers)

    def reach(self, path: KeyPath) -> Iterator[KeyPath]:
        """All that the interpolation at `path` refers to, directly or through others; the empty path where that may
        be anything."""
        seen: set[KeyPath] = set()
        pending = [path]
        while pending:
            here = pending.pop()
            for where, leaf in self._below(here):
                for target in targets(leaf.value, where):
                    if target not in seen:
                        seen.add(target)
                        yield target
                        if target:
                            pending += [target, *self._on_the_way(target)]

    def _on_the_way(self, target: KeyPath) -> Iterator[KeyPath]:
        """References that stand for a mapping on the way to `target`, and where that leads."""
        for length in range(1, len(target)):
            node = _raw_at(self.root, target[:length])
            if isinstance(node, Leaf) and node.is_interpolation:
                yield target[:length]
                yield self.lookup.find(target)[0]

    def _part(self, path: KeyPath) -> Any:
        """The part of the recipe that the interpolation at `path` can reach, as plain data; all where that is open."""
        if self._count(path, frozenset()) > _MOST_STEPS:
            return Unresolved("it refers to more than can be worked out")
        wanted = [path]
        for target in self.reach(path):
            if not target:
                return plain(self.root)
            wanted.append(target)
        part: dict[Any, Any] = {}
        for each in sorted(set(wanted), key=len):
            _put(part, self.root, each)
        return part

    def _count(self, path: KeyPath, below: frozenset[KeyPath]) -> int:
        """How many values OmegaConf goes through for the value at `path`."""
        if path in below or len(below) > 200:
            return 1
        if path not in self._steps:
            total = 1
            for where, leaf in self._below(path):
                for target in targets(leaf.value, where):
                    if target and total <= _MOST_STEPS:
                        total += self._count(target, below | {path})
            self._steps[path] = total
        return self._steps[path]


def _meet(one: KeyPath, other: KeyPath) -> bool:
    """Whether one of two paths leads to or through the other."""
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def _raw_at(root: Any, path: KeyPath) -> Any:
    node = root
    for key in path:
        key = _key_in(node, key)
        if (isinstance(node, dict) and key in node) or (
            isinstance(node, list) and isinstance(key, int) and -len(node) <= key < len(node)
        ):
            node = node[key]
        else:
            return node if isinstance(node, Leaf) else None
    return node


def _put(part: dict[Any, Any], root: dict[Any, Any], path: KeyPath) -> None:
    """Copies what stands at `path` into the part, with the mappings around it; of a list all."""
    source: Any = root
    target: Any = part
    for index, key in enumerate(path):
        key = _key_in(source, key)
        if not isinstance(source, dict) or key not in source:
            return
        source = source[key]
        is_last = index + 1 == len(path)
        if is_last or not isinstance(source, dict):
            if not (key in target and is_last and isinstance(target[key], dict) and not source):
                target[key] = plain(source)
            return
        if not isinstance(target.get(key), dict):
            target[key] = {}
        target = target[key]


_evaluated: dict[Any, Any] = {}


def _evaluate(part: dict[Any, Any], path: KeyPath, resolvers: frozenset[str]) -> Any:
    known = (repr(part), path, resolvers)
    # What the environment says, or a clock, may be another the next time.
    if known in _evaluated and "oc.env" not in known[0]:
        return _evaluated[known]
    from omegaconf import OmegaConf

    register(resolvers)
    try:
        node: Any = OmegaConf.create(part)
        for key in path:
            node = node[key]
        if OmegaConf.is_config(node):
            node = OmegaConf.to_container(node, resolve=True)
        result = node
    except RecursionError:
        result = Unresolved("an interpolation that refers to itself")
    except Exception as error:  # a resolver may raise anything
        result = Unresolved(one_line(error))
    if len(_evaluated) > 100_000:
        _evaluated.clear()
    _evaluated[known] = result
    return result


def register(names: Iterable[str]) -> None:
    """Makes OmegaConf know these of the resolvers, and none of the others."""
    from omegaconf import OmegaConf

    names = frozenset(names)
    for name, resolver in RESOLVERS.items():
        if name in names:
            OmegaConf.register_new_resolver(name, resolver, replace=True)
        elif OmegaConf.has_resolver(name):
            OmegaConf.clear_resolver(name)
