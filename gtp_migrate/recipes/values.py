"""Values of recipes: plain data, of which what matters knows where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gtp_migrate.problems import Place
from gtp_migrate.recipes.keys import MEGATRON_CFG, MISSING, KeyPath

#: More than any recipe has: reached only by aliases that multiply.
_MOST_LANDMARKS = 100_000


@dataclass(frozen=True)
class Source:
    """The file that a value stands in."""

    #: The file itself, behind all links; its name for people.
    real: str
    shown: str


class Leaf:
    """A value that knows where it stands: a setting, a parallel size, or a text with an interpolation in it.

    A leaf is shared, never copied, by all that merging and aliases make of its file: whatever recipe it ends up in,
    it is
    this entry of this file.
    """

    __slots__ = ("column", "is_interpolation", "line", "offset", "path", "source", "value")

    def __init__(self, value: Any, source: Source, mark: Any, path: KeyPath) -> None:
        self.value = value
        self.source = source
        #: Of its key, or of itself in a list: an offset in characters, a byte order mark not counted; line and column
        #: from 1.
        self.offset: int = mark.index
        self.line: int = mark.line + 1
        self.column: int = mark.column + 1
        #: Where it stands in its file, for a setting; empty for others.
        self.path = path
        #: Whether OmegaConf would look for a `${…}` in it.
        self.is_interpolation: bool = type(value) is str and "${" in value

    @property
    def place(self) -> Place:
        """Where it stands, for people."""
        return Place(self.source.shown, self.line, self.column)

    @property
    def key(self) -> tuple[str, int]:
        """What tells this entry from all others."""
        return self.source.real, self.offset

    def __repr__(self) -> str:
        return f"{self.value!r} ({self.place.file_and_line})"


def raw(value: Any) -> Any:
    """A value itself, without its place."""
    return value.value if isinstance(value, Leaf) else value


_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"0", "false", "f", "no", "n", "off"})


def truth(value: Any) -> bool | None:
    """What NeMo-RL's config classes make of a value where they want a boolean. Of one that they refuse, what Python
    does: so it is where nothing checks the recipe. None where there is no value.

    Source: pydantic's table of conversions, in its lax mode.
    """
    text = value.lower() if isinstance(value, str) else str(int(value)) if value in (0, 1) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    is_there = isinstance(value, (int, float, str, list, dict)) and value != MISSING
    return bool(value) if is_there else None


def written(value: Any) -> str:
    """A loaded value as a person would write it, on one line."""
    value = raw(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, str) and "${" not in value and value != MISSING:
        return f'"{value}"'
    return str(value)


@dataclass(frozen=True)
class Landmarks:
    """What is looked for in a recipe again and again."""

    #: The interpolations.
    holes: tuple[tuple[KeyPath, Leaf], ...] = ()
    #: The mappings named `megatron_cfg`.
    mappings: tuple[KeyPath, ...] = ()


def landmarks(data: Any) -> Landmarks:
    """Finds them below a mapping or a list; what aliases share is looked at once.

    Raises:
        OverflowError: aliases multiply them beyond all measure.
    """
    holes, mappings = _landmarks(data, {})
    return Landmarks(tuple(holes), tuple(mappings))


_Found = tuple[list[tuple[KeyPath, Leaf]], list[KeyPath]]


def _landmarks(node: Any, known: dict[int, _Found]) -> _Found:
    if id(node) in known:
        return known[id(node)]
    holes: list[tuple[KeyPath, Leaf]] = []
    mappings: list[KeyPath] = []
    for key, value in node.items() if type(node) is dict else enumerate(node):
        if type(value) is Leaf:
            if value.is_interpolation:
                holes.append(((key,), value))
        elif type(value) is dict or type(value) is list:
            if key == MEGATRON_CFG and type(value) is dict:
                mappings.append((key,))
            inner = _landmarks(value, known)
            holes += [((key, *path), leaf) for path, leaf in inner[0]]
            mappings += [(key, *path) for path in inner[1]]
            if len(holes) > _MOST_LANDMARKS or len(mappings) > _MOST_LANDMARKS:
                raise OverflowError
    known[id(node)] = (holes, mappings)
    return holes, mappings


def graft(old: Any, new: Any) -> Any:
    """`new`, with the very objects of `old` wherever both say the same: what is shared need not be compared again."""
    if isinstance(old, dict) and isinstance(new, dict):
        grafted = {key: graft(old[key], value) if key in old else value for key, value in new.items()}
        is_same = old.keys() == grafted.keys() and all(grafted[key] is value for key, value in old.items())
        return old if is_same and list(old) == list(grafted) else grafted
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        items = [graft(a, b) for a, b in zip(old, new, strict=True)]
        return old if all(a is b for a, b in zip(old, items, strict=True)) else items
    if isinstance(old, (dict, list)) or isinstance(new, (dict, list)):
        return new
    return old if same(old, new) and isinstance(old, Leaf) == isinstance(new, Leaf) else new


def is_one_entry(value: Any, other: Any) -> bool:
    """Whether it makes no difference which of two values is taken: entries that say the same are two all the same."""
    if value is other:
        return True
    return not isinstance(value, (dict, list, Leaf)) and same(value, other)


def plain(value: Any) -> Any:
    """Data without places, as OmegaConf takes it. Aliases are written out."""
    if isinstance(value, Leaf):
        return value.value
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value


def same(one: Any, other: Any) -> bool:
    """Whether two values of a recipe are the same, types included; NaN is itself."""
    if one is other:
        return True
    one, other = raw(one), raw(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other) or one != one


def at(root: Any, path: KeyPath) -> Any:
    """What stands at `path`, nothing followed; None where there is nothing."""
    node = root
    for key in path:
        if type(node) is dict:
            node = node.get(key)
        elif type(node) is list and type(key) is int and key < len(node):
            node = node[key]
        else:
            return None
    return node


def mapping_at(root: Any, path: KeyPath) -> dict[Any, Any] | None:
    """The mapping at `path`, nothing followed; None where there is none."""
    node = at(root, path)
    return node if isinstance(node, dict) else None
