"""The text of one recipe → plain data, from the events of a YAML parser, by OmegaConf's own rules.

Aliases are shared, never copied, so that no file costs more than its length; what they expand to is counted.

Source: `get_yaml_loader` in OmegaConf 2.3 (`omegaconf/_utils.py`); PyYAML's composer and `flatten_mapping`.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import yaml

from gtp_migrate.problems import Place, Problem, RecipeError, one_line
from gtp_migrate.recipes.keys import MERGE, OLD_KEY_TEXT, PLACED_KEYS, SETTINGS, KeyPath
from gtp_migrate.recipes.values import Leaf, Source, at, is_one_entry, plain, raw

#: Deeper than OmegaConf itself gets within Python's recursion limit.
_DEEPEST = 200
#: More values than any recipe has: reached only by aliases that multiply.
_MOST_VALUES = 1_000_000

_STRING = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
_CONTAINER_TAGS = frozenset({None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
_PRIMITIVES = (str, int, float, bool, bytes, type(None), PurePath)


_WITH_A_DEFAULT = re.compile(r"\$\{\s*oc\.env\s*:\s*([^\s,}]+)\s*,")


class UnknownParentsError(RecipeError):
    """A recipe that NeMo-RL may load, but of which it cannot be told here what it inherits."""


def problem_at(source: Source, mark: Any, what: str, todo: str = "correct it and run again") -> Problem:
    place = Place(source.shown, mark.line + 1, mark.column + 1) if mark else Place(source.shown)
    return Problem(place, what, todo)


@lru_cache(maxsize=1)
def pure_loader() -> Any:
    """OmegaConf's own loader, on PyYAML's pure parser."""
    from omegaconf._utils import get_yaml_loader

    return get_yaml_loader()


@lru_cache(maxsize=1)
def fast_loader() -> Any:
    """OmegaConf's loader, on libyaml's parser where there is one."""
    rules = pure_loader()
    if not yaml.__with_libyaml__:
        return rules
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    class Loader(CParser, rules):  # type: ignore[misc, valid-type]
        def __init__(self, stream: str) -> None:
            CParser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return Loader


#: What a plain scalar is by OmegaConf's rules, by its text: few texts are not seen again and again.
_tags: dict[str, str] = {}
#: What it stands for.
_values: dict[str, Any] = {}
_UNKNOWN = object()


class _Frame:
    """A mapping or a list that is being read."""

    __slots__ = ("anchor", "data", "is_mapping", "key", "merged", "path", "size", "strings")

    def __init__(self, data: Any, path: KeyPath, anchor: str | None) -> None:
        self.data = data
        self.is_mapping = type(data) is dict
        self.path = path
        self.anchor = anchor
        #: Of a mapping: the key that waits for its value, with its mark; all keys that are texts.
        self.key: tuple[Any, Any] | None = None
        self.strings: set[str] = set()
        #: What `<<` brings in, in the order of the text.
        self.merged: dict[Any, Any] | None = None
        self.size = 1

    def put_down(self, scalar: Any) -> bool:
        """Takes a scalar that needs no more than to be put down; False for any other."""
        if self.key is None or self.key[0] in _SPECIAL or not self.is_mapping:
            return False
        self.data[self.key[0]] = scalar
        self.key = None
        return True


_MERGE_KEY = object()
_RECURSIVE = object()
_SPECIAL = SETTINGS | {_MERGE_KEY}


class Reader:
    """Builds the data of one text from its events, with a stack of its own: no depth is too deep for it."""

    def __init__(self, loader_class: Any, text: str, source: Source, *, later_wins: bool) -> None:
        """
        Args:
            loader_class: makes events and values.
            text: without a byte order mark.
            source: of the text.
            later_wins: in `<<: [*A, *B]`, B's value counts where both have a key.
        """
        self.loader = loader_class(text)
        self.source = source
        self.later_wins = later_wins
        self.is_ambiguous = False
        self.settings: list[Leaf] = []
        self.mentions: list[Place] = []
        self.merged_keys: dict[KeyPath, frozenset[Any]] = {}
        self.anchors: dict[str, Any] = {}
        self.sizes: dict[int, int] = {}
        self.defaults_mark: Any = None
        self.shadowed: list[tuple[Leaf, Leaf]] = []
        #: Where scalars stand in the text.
        self.spans: list[tuple[int, int]] = []
        self.has_comments = "#" in text

    def read(self) -> dict[Any, Any]:
        """The root mapping.

        Raises:
            RecipeError, yaml.YAMLError: OmegaConf would not load it.
        """
        try:
            root = None
            documents = 0
            while True:
                event = self.loader.get_event()
                kind = type(event)
                if event is None or kind is yaml.StreamEndEvent:
                    break
                if kind is yaml.DocumentStartEvent:
                    documents += 1
                    if documents > 1:
                        raise self._error(event.start_mark, "holds several documents, which NeMo-RL rejects")
                    root = self._document()
            if root is None:
                return {}
            if not isinstance(root, dict):
                todo = "a recipe starts with `key: value` lines"
                raise RecipeError(problem_at(self.source, self.root_mark, "is not a mapping", todo))
            return root
        finally:
            self.loader.dispose()

    def _document(self) -> Any:
        stack: list[_Frame] = []
        root: Any = None
        self.root_mark: Any = None
        next_event = self.loader.get_event
        while True:
            event = next_event()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                top = stack[-1] if stack else None
                if top is not None and top.is_mapping and top.key is None:
                    self._key(top, event)
                    continue
                value = self._scalar(event, top)
                if top is not None and top.put_down(value):
                    continue
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                value = self._close(stack.pop())
            elif kind is yaml.AliasEvent:
                value = self._alias(event)
                if stack and stack[-1].is_mapping and stack[-1].key is None:
                    self._alias_key(stack[-1], event, value)
                    continue
            elif kind is yaml.DocumentEndEvent:
                return root
            else:
                self._open(event, stack)
                continue
            if stack:
                self._take(stack[-1], value, event)
            else:
                root = value
                self.root_mark = self.root_mark or event.start_mark

    # -- containers ------------------------------------------------------------------------------------

    def _open(self, event: Any, stack: list[_Frame]) -> None:
        if not stack:
            self.root_mark = event.start_mark
        if len(stack) >= _DEEPEST:
            raise self._error(event.start_mark, "is nested too deeply for OmegaConf")
        if event.tag not in _CONTAINER_TAGS:
            raise self._error(event.start_mark, f"has the tag {event.tag}, which NeMo-RL cannot load here")
        path: KeyPath = ()
        if stack:
            above = stack[-1]
            if above.is_mapping:
                if above.key is None:
                    raise self._error(event.start_mark, "has a key that is a list or a mapping, which NeMo-RL rejects")
                path = (*above.path, MERGE if above.key[0] is _MERGE_KEY else above.key[0])
            else:
                path = (*above.path, len(above.data))
        self._anchor(event)
        if event.anchor:
            self.anchors[event.anchor] = _RECURSIVE
        stack.append(_Frame({} if type(event) is yaml.MappingStartEvent else [], path, event.anchor))

    def _anchor(self, event: Any) -> None:
        if event.anchor and event.anchor in self.anchors:
            raise self._error(event.start_mark, f"is not YAML that NeMo-RL can load (duplicate anchor &{event.anchor})")

    def _close(self, frame: _Frame) -> Any:
        data = frame.data
        if frame.merged is not None:
            only_merged = frozenset(key for key in frame.merged if key not in data)
            for key in data.keys() & SETTINGS & frame.merged.keys():
                pair = (frame.merged[key], data[key])
                if isinstance(pair[0], Leaf) and isinstance(pair[1], Leaf):
                    self.shadowed.append(pair)
            data = {**frame.merged, **data}
            self.merged_keys[frame.path] = only_merged
        self.sizes[id(data)] = frame.size
        frame.data = data
        if frame.anchor:
            self.anchors[frame.anchor] = data
        return data

    def _take(self, frame: _Frame, value: Any, event: Any) -> None:
        """Puts a value into the mapping or the list it stands in."""
        frame.size += self.sizes.get(id(value), 1) if isinstance(value, (dict, list)) else 1
        if frame.size > _MOST_VALUES:
            todo = "write the values out and run again"
            raise RecipeError(
                problem_at(self.source, event.start_mark, "has aliases that expand to more than can be loaded", todo)
            )
        if isinstance(frame.data, list):
            frame.data.append(value)
            return
        assert frame.key is not None
        key, mark = frame.key
        frame.key = None
        if key is _MERGE_KEY:
            self._merge(frame, value, mark)
            return
        if key in SETTINGS:
            setting = value
            if not isinstance(value, Leaf) or value.offset != mark.index:
                # A container, or an alias of another entry's value: this entry stands for itself.
                setting = Leaf(raw(value), self.source, mark, (*frame.path, key))
            self.settings.append(setting)
            if not isinstance(value, (dict, list)):
                value = setting
        frame.data[key] = value

    def _merge(self, frame: _Frame, value: Any, mark: Any) -> None:
        """What `<<` brings in: of several the later one counts, but within a list PyYAML's versions differ."""
        merged = frame.merged if frame.merged is not None else {}
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(each, dict) for each in values):
            raise self._error(mark, "merges something that is not a mapping, which NeMo-RL rejects")
        brought: dict[Any, Any] = {}
        for each in values if self.later_wins else reversed(values):
            for key, inner in each.items():
                if key in brought and not is_one_entry(brought[key], inner):
                    self.is_ambiguous = True
                brought[key] = inner
        for key, inner in brought.items():
            merged[key] = inner
        frame.merged = merged

    # -- keys and scalars ------------------------------------------------------------------------------

    def _key(self, frame: _Frame, event: Any) -> None:
        tag = self._tag(event)
        mark = event.start_mark
        if self.has_comments:
            self.spans.append((mark.index, event.end_mark.index))
        if tag == _MERGE:
            frame.key = (_MERGE_KEY, mark)
            return
        key: Any = event.value
        if tag == _STRING or tag == "tag:yaml.org,2002:value":
            if key in frame.strings:
                todo = "remove one of them and run again"
                what = f"has the key {key} twice in one mapping, which NeMo-RL rejects"
                raise RecipeError(problem_at(self.source, mark, what, todo))
            frame.strings.add(key)
            if OLD_KEY_TEXT in key and key not in SETTINGS:
                self._mention(mark)
        else:
            key = self._construct(tag, event)
            if key is None or not isinstance(key, (str, int, float, bytes)):
                raise self._error(mark, f"has the key {event.value}, of a kind that NeMo-RL rejects")
        if key == "defaults" and not frame.path:
            self.defaults_mark = mark
        if event.anchor:
            self._anchor(event)
            self.anchors[event.anchor] = key
        frame.key = (key, mark)

    def _alias_key(self, frame: _Frame, event: Any, value: Any) -> None:
        value = raw(value)
        if not isinstance(value, (str, int, float, bytes)):
            raise self._error(event.start_mark, "has a key that is a list or a mapping, which NeMo-RL rejects")
        if isinstance(value, str):
            if value in frame.strings:
                what = f"has the key {value} twice in one mapping, which NeMo-RL rejects"
                raise RecipeError(problem_at(self.source, event.start_mark, what, "remove one of them and run again"))
            frame.strings.add(value)
        frame.key = (value, event.start_mark)

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self.anchors:
            raise self._error(event.start_mark, f"is not YAML that NeMo-RL can load (undefined alias *{event.anchor})")
        value = self.anchors[event.anchor]
        if value is _RECURSIVE:
            raise self._error(event.start_mark, f"is not YAML that NeMo-RL can load (alias *{event.anchor} of itself)")
        return value

    def _scalar(self, event: Any, frame: _Frame | None) -> Any:
        if self.has_comments:
            self.spans.append((event.start_mark.index, event.end_mark.index))
        value = self._value(event)
        key, mark = None, event.start_mark
        if frame is not None and frame.is_mapping and frame.key is not None:
            key, mark = frame.key
        is_hole = False
        if type(value) is str:
            is_hole = "${" in value
            if OLD_KEY_TEXT in value and not (is_hole and key in SETTINGS):
                self._mention(mark if is_hole else event.start_mark)
        if is_hole or key in PLACED_KEYS:
            path = (*frame.path, key) if frame is not None and key in SETTINGS else ()
            value = Leaf(value, self.source, mark, path)
        if event.anchor:
            self._anchor(event)
            self.anchors[event.anchor] = value
        return value

    def _value(self, event: Any) -> Any:
        tag = self._tag(event)
        if tag == _STRING:
            return event.value
        if event.tag is not None:
            return self._construct(tag, event)
        known = _values.get(event.value, _UNKNOWN)
        if known is _UNKNOWN:
            if len(_values) > 100_000:
                _values.clear()
            known = _values[event.value] = self._construct(tag, event)
        return known

    def _tag(self, event: Any) -> str:
        tag = event.tag
        if tag is not None and tag != "!":
            return str(tag)
        if not event.implicit[0]:
            return _STRING
        tag = _tags.get(event.value)
        if tag is None:
            if len(_tags) > 100_000:
                _tags.clear()
            tag = _tags[event.value] = str(self.loader.resolve(yaml.ScalarNode, event.value, event.implicit))
        return tag

    def _construct(self, tag: str, event: Any) -> Any:
        if tag == _STRING:
            return event.value
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark, style=event.style)
        try:
            value = self.loader.construct_object(node, deep=True)
        except yaml.YAMLError:
            raise
        except Exception as error:  # `!!int abc` and the like raise whatever Python does
            what = f"has a value that is no {tag.rpartition(':')[2]} ({one_line(error)})"
            raise self._error(event.start_mark, what) from None
        if not isinstance(value, _PRIMITIVES):
            raise self._error(event.start_mark, f"has the tag {tag}, which NeMo-RL cannot load here")
        return value

    def _mention(self, mark: Any) -> None:
        self.mentions.append(Place(self.source.shown, mark.line + 1, mark.column + 1))

    def _error(self, mark: Any, what: str) -> RecipeError:
        return RecipeError(problem_at(self.source, mark, what))

    # -- what it inherits from -------------------------------------------------------------------------

    def take_defaults(self, data: dict[Any, Any]) -> tuple[tuple[str, ...], Place | None]:
        """Takes `defaults:` out of the data.

        Raises:
            RecipeError: it is no path and no list of paths.
        """
        if "defaults" not in data:
            return (), None
        mark = self.defaults_mark
        place = Place(self.source.shown, mark.line + 1, mark.column + 1) if mark else Place(self.source.shown)
        value = plain(data["defaults"])
        if "${" in str(value) and not (isinstance(value, list) and any(isinstance(each, dict) for each in value)):
            value = self._resolved(data, value, place)
        del data["defaults"]
        if isinstance(value, str):
            return (value,), place
        if isinstance(value, list):
            return tuple(str(path) for path in value), place
        what = "has `defaults:` that are not a path or a list of paths"
        raise RecipeError(Problem(place, what, "name the files to inherit from"))

    @staticmethod
    def _resolved(data: dict[Any, Any], value: Any, place: Place) -> Any:
        """NeMo-RL resolves interpolations in `defaults:` within the file itself. What the environment says where the
        command runs is a person's word; where it says nothing, a default is only what may be."""
        from omegaconf import OmegaConf

        told = ""
        try:
            if name := _unset(data, value):
                told = f"the environment may set {name}"
            defaults = OmegaConf.create(plain(data))["defaults"]
            defaults = OmegaConf.to_container(defaults, resolve=True) if OmegaConf.is_config(defaults) else defaults
        except Exception as error:  # a resolver may raise anything
            told = told or one_line(error)
        if not told:
            return defaults
        what = f"inherits from {value}, which cannot be told ({told})"
        todo = "set what it needs, or leave this file out with --exclude"
        raise UnknownParentsError(Problem(place, what, todo)) from None


def _unset(data: dict[Any, Any], value: Any) -> str | None:
    """A variable of the environment that is not set, but would have a say in `defaults:` if it were."""
    from gtp_migrate.recipes.interpolation import targets

    texts = list(enumerate(value)) if isinstance(value, list) else [(0, value)]
    pending: list[tuple[KeyPath, Any]] = [(("defaults", index), text) for index, text in texts]
    seen: set[KeyPath] = set()
    while pending:
        path, text = pending.pop()
        if path in seen or not isinstance(text, str):
            continue
        seen.add(path)
        for name in _WITH_A_DEFAULT.findall(text):
            if name not in os.environ:
                return str(name)
        pending += [(target, raw(at(data, target))) for target in targets(text, path)]
    return None
