"""One recipe file, parsed: the part of it that can reach a `megatron_cfg`, and where that stands in the text.

Values are made by OmegaConf's own YAML rules (PyYAML with its resolvers), on libyaml's parser where there is
one. What cannot reach a `megatron_cfg` is dropped before anything is merged: merging is what costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import yaml

from gtp_migrate.problems import Place, Problem, RecipeError, one_line
from gtp_migrate.recipes.keys import (
    LAYOUT_PATHS,
    MEGATRON_CFG,
    MEGATRON_KEYS,
    MODEL_OVERRIDES,
    OLD_KEYS,
    OVERRIDE_KEYS,
    OVERRIDE_MARKER,
    KeyPath,
)

BOM = "\ufeff"


class UnknownParentsError(RecipeError):
    """A recipe that NeMo-RL may load, but of which it cannot be told here what it inherits."""


#: PyYAML's scanner, the fast one where there is one.
SCANNER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

#: More mappings than any recipe has: reached only by aliases that multiply.
_MOST_MAPPINGS = 20_000
_DEEPEST = 200

_STRING_TAG = "tag:yaml.org,2002:str"
_MERGE_TAG = "tag:yaml.org,2002:merge"
_DROPPED: Any = object()


class Entry(NamedTuple):
    """A key and its scalar value as they stand in the text of one file."""

    #: Offset of the key in the file's text, in characters, a byte order mark not counted.
    offset: int
    #: Of the key, from 1.
    line: int
    column: int
    #: The value as OmegaConf loads it, interpolations unresolved.
    value: Any
    #: Whether the value is a mapping or a list.
    is_container: bool = False


@dataclass
class Layer:
    """What one file adds to a recipe."""

    #: The file's content, without what cannot reach a `megatron_cfg`. Empty containers stand for dropped ones.
    data: dict[Any, Any] = field(default_factory=dict)
    #: Where each kept value stands.
    entries: dict[KeyPath, Entry] = field(default_factory=dict)
    #: What is named `megatron_cfg`, and the interpolations that stand for one, or for a mapping around one.
    holders: set[KeyPath] = field(default_factory=set)
    #: What the kept interpolations refer to.
    references: set[KeyPath] = field(default_factory=set)
    #: The files this one inherits from, as written.
    defaults: tuple[str, ...] = ()


def decode(data: bytes, shown: str) -> str:
    """The text of a file, a byte order mark included.

    Raises:
        RecipeError: the file is not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1
        raise RecipeError(
            Problem(
                Place(shown, line, column),
                "is not UTF-8, which is all that NeMo-RL reads",
                "save the file as UTF-8 and run again",
            )
        ) from None


def read_layer(
    text: str,
    shown: str,
    wanted: frozenset[KeyPath] = LAYOUT_PATHS,
    around: frozenset[KeyPath] = frozenset(),
    everything: bool = False,
) -> Layer:
    """Parses the text of one recipe.

    Args:
        text: the file's content.
        shown: the file's name in messages.
        wanted: paths outside any `megatron_cfg` to keep, with all that is below them.
        around: paths of a `megatron_cfg`, or of a mapping around one, in whatever file: an interpolation that
            refers to one of these is kept.
        everything: keep all there is.

    Raises:
        RecipeError: the text is not YAML that OmegaConf would load, or not a mapping.
    """
    arguments = (shown, wanted, around, everything)
    try:
        return _read(_loader_class(), text, *arguments)
    except yaml.YAMLError as error:
        # The pure parser is the one that NeMo-RL reads with; libyaml refuses a few things that it takes.
        try:
            return _read(_rules(), text, *arguments)
        except (yaml.YAMLError, RecursionError):
            raise _yaml_error(shown, error) from None
    except RecursionError:
        raise _error(shown, None, "is nested too deeply", "correct it and run again") from None


def _read(
    loader_class: Any,
    text: str,
    shown: str,
    wanted: frozenset[KeyPath],
    around: frozenset[KeyPath],
    everything: bool,
) -> Layer:
    loader = loader_class(text.removeprefix(BOM))
    try:
        root = loader.get_single_node()
        if root is None:
            return Layer()
        if not isinstance(root, yaml.MappingNode):
            raise _error(shown, root.start_mark, "is not a mapping", "a recipe starts with `key: value` lines")
        return _Pruner(loader, text, shown, wanted, around, everything).layer(root)
    finally:
        loader.dispose()


def _yaml_error(shown: str, error: yaml.YAMLError) -> RecipeError:
    mark, what = None, one_line(error)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        what = one_line(error.problem or error.context or "cannot be parsed")
    return _error(shown, mark, f"is not YAML that NeMo-RL can load ({what})", "correct it and run again")


def _error(shown: str, mark: Any, what: str, todo: str) -> RecipeError:
    place = Place(shown, mark.line + 1, mark.column + 1) if mark else Place(shown)
    return RecipeError(Problem(place, what, todo))


@lru_cache(maxsize=1)
def _rules() -> Any:
    """OmegaConf's own loader, on PyYAML's pure parser."""
    from omegaconf._utils import get_yaml_loader

    return get_yaml_loader()


@lru_cache(maxsize=1)
def _loader_class() -> Any:
    rules = _rules()
    if not yaml.__with_libyaml__:
        return rules
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    class Loader(CParser, rules):  # type: ignore[misc, valid-type]
        """OmegaConf's loader, on libyaml's parser."""

        def __init__(self, stream: str) -> None:
            CParser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return Loader


class _Pruner:
    def __init__(
        self,
        loader: Any,
        text: str,
        shown: str,
        wanted: frozenset[KeyPath],
        around: frozenset[KeyPath],
        everything: bool,
    ) -> None:
        self.loader = loader
        self.text = text
        self.shown = shown
        self.wanted = wanted
        self.around = around
        self.names_around = {str(path[-1]) for path in around}
        self.everything = everything
        # Of the paths that are always wanted none has anything below it.
        self.below_wanted = not wanted <= LAYOUT_PATHS
        self.on_the_way = {path[:length] for path in wanted for length in range(1, len(path))}
        self.result = Layer()
        self.holds: dict[int, bool] = {}
        self.mappings = 0

    def layer(self, root: yaml.MappingNode) -> Layer:
        self._survey(root)
        self.result.data = self._mapping(root, ())
        self.result.defaults = self._defaults()
        return self.result

    def _survey(self, node: yaml.Node) -> bool:
        """Checks every mapping for duplicate keys, and notes which nodes hold a `megatron_cfg`, be it by an
        interpolation."""
        known = self.holds.get(id(node))
        if known is not None:
            return known
        self.holds[id(node)] = False
        holds = False
        if isinstance(node, yaml.MappingNode):
            keys = set()
            for key, value in node.value:
                if key.tag == _STRING_TAG and isinstance(key, yaml.ScalarNode):
                    if key.value in keys:
                        raise _error(
                            self.shown,
                            key.start_mark,
                            f"has the key {key.value} twice in one mapping, which NeMo-RL rejects",
                            "remove one of them and run again",
                        )
                    keys.add(key.value)
                if self._survey(value) or key.value == MEGATRON_CFG:
                    holds = True
        elif isinstance(node, yaml.SequenceNode):
            for value in node.value:
                if self._survey(value):
                    holds = True
        elif node.value.startswith("${") and node.value.strip("${.}").rpartition(".")[2] in self.names_around:
            holds = True
        self.holds[id(node)] = holds
        return holds

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[Any, Any]:
        self.mappings += 1
        if self.mappings > _MOST_MAPPINGS or len(path) > _DEEPEST:
            raise _error(
                self.shown,
                node.start_mark,
                "has aliases that expand to more than can be loaded",
                "write the values out and run again",
            )
        if any(key.tag == _MERGE_TAG for key, _ in node.value):
            self.loader.flatten_mapping(node)
        data: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if key_node.tag == _STRING_TAG else self.loader.construct_object(key_node, True)
            if isinstance(key, (list, dict, set)):
                raise _error(
                    self.shown,
                    key_node.start_mark,
                    "has a key that is a list or a mapping, which NeMo-RL rejects",
                    "correct it and run again",
                )
            child = (*path, key)
            if key == MEGATRON_CFG:
                self.result.holders.add(child)
            value = self._value(value_node, child)
            if value is _DROPPED:
                continue
            data[key] = value
            mark = key_node.start_mark
            self.result.entries[child] = Entry(
                mark.index,
                mark.line + 1,
                mark.column + 1,
                None if isinstance(value, (dict, list)) else value,
                isinstance(value, (dict, list)),
            )
        return data

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        kept = self._keeps(path, node)
        if not kept:
            return _DROPPED
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            if len(path) > _DEEPEST:
                return []
            if path == ("defaults",):
                return self.loader.construct_object(node, True)
            items = [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
            return [None if item is _DROPPED else item for item in items]
        value = self.loader.construct_object(node, True)
        if isinstance(value, str) and "${" in value:
            targets = set(references(value, path))
            self.result.references.update(targets)
            if targets & self.around:
                self.result.holders.add(path)
        return value

    def _keeps(self, path: KeyPath, node: yaml.Node) -> bool:
        if self.everything or len(path) == 1 or self.holds.get(id(node)):
            return True
        key, inside = path[-1], path[-2]
        if inside == MEGATRON_CFG and (key == MODEL_OVERRIDES or key in MEGATRON_KEYS):
            return True
        if inside == MODEL_OVERRIDES and key in OVERRIDE_KEYS:
            return True
        if key == MEGATRON_CFG or (key == OVERRIDE_MARKER and len(path) == 2):
            return True
        if path in self.wanted or path in self.on_the_way:
            return True
        return self.below_wanted and any(path[:length] in self.wanted for length in range(len(path)))

    def _defaults(self) -> tuple[str, ...]:
        if "defaults" not in self.result.data:
            return ()
        value = self.result.data.pop("defaults")
        if "${" in str(value) and not any(isinstance(path, dict) for path in value):
            value = self._resolved_defaults(value)
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list):
            return tuple(str(path) for path in value)
        raise self._defaults_error(
            RecipeError, "has `defaults:` that are not a path or a list of paths", "name the files to inherit from"
        )

    def _resolved_defaults(self, value: Any) -> Any:
        """NeMo-RL resolves interpolations in `defaults:` within the file itself."""
        from omegaconf import OmegaConf

        try:
            config = OmegaConf.create(load_everything(self.text))
            defaults = config["defaults"]
            return OmegaConf.to_container(defaults, resolve=True) if OmegaConf.is_config(defaults) else defaults
        except Exception as error:  # a resolver may raise anything
            raise self._defaults_error(
                UnknownParentsError,
                f"inherits from {value}, which cannot be told ({one_line(error)})",
                "set what it needs, or leave this file out with --exclude",
            ) from None

    def _defaults_error(self, kind: type[RecipeError], what: str, todo: str) -> RecipeError:
        entry = self.result.entries[("defaults",)]
        return kind(Problem(Place(self.shown, entry.line, entry.column), what, todo))


_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
#: Resolvers that look at their arguments alone. Others may read any key of the recipe.
_PLAIN_RESOLVERS = frozenset({"add", "sub", "mul", "div", "max", "oc.env", "oc.decode"})
_RESOLVED = "\0"


def references(text: str, path: KeyPath) -> Iterator[KeyPath]:
    """What the interpolations in `text` refer to, where the text stands at `path` of a recipe.

    A name that is itself computed (`${a.${b}}`) and a resolver like `oc.select` may refer to anything, which is the
    empty path.
    """
    found = True
    while found:
        found = False
        for match in _INNERMOST.finditer(text):
            found = True
            content = match[1].strip()
            if ":" in content:
                if content.partition(":")[0].strip() not in _PLAIN_RESOLVERS:
                    yield ()
                continue
            if _RESOLVED in content:
                yield ()
                continue
            name = content.lstrip(".")
            dots = len(content) - len(name)
            keys: KeyPath = tuple(int(part) if part.isdigit() else part for part in re.split(r"[.\[\]]+", name) if part)
            yield path[: max(len(path) - dots, 0)] + keys if dots else keys
        text = _INNERMOST.sub(_RESOLVED, text)


def mentions_old_key(value: Any) -> bool:
    """Whether a value is an interpolation that refers to an old key."""
    return isinstance(value, str) and "${" in value and any(key in value for key in OLD_KEYS)


def load_everything(text: str) -> Any:
    """All that OmegaConf's YAML rules make of a text, aliases shared.

    Raises:
        RecipeError: the text is not YAML that OmegaConf would load.
    """
    loader = _loader_class()(text.removeprefix(BOM))
    try:
        return loader.get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        raise _error("the edited text", None, f"is not YAML ({one_line(error)})", "report this") from None
    finally:
        loader.dispose()
