"""One layer over another, on plain data, as OmegaConf merges for NeMo-RL.

Nothing is changed in place and nothing is copied that stays the same: what two recipes inherit from one file is one
object in both, so that comparing them costs only what differs.

Source: `merge_with_override` in NeMo-RL (`nemo_rl/utils/config.py`); `BaseContainer._map_merge` in OmegaConf 2.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gtp_migrate.recipes.interpolation import Lookup, Unresolved, parse
from gtp_migrate.recipes.keys import MISSING, OVERRIDE_MARKER, KeyPath, dotted
from gtp_migrate.recipes.values import Landmarks, Leaf, at, landmarks, raw


class MergeError(Exception):
    """Two layers that OmegaConf would not merge. The message says why."""


@dataclass(frozen=True)
class Merged:
    """A recipe with all that it inherits, interpolations as they are."""

    root: dict[Any, Any]
    landmarks: Landmarks


def merge_with_override(base: Merged, child: Merged) -> Merged:
    """`child` over `base`; a mapping at the top of `child` that is marked `_override_` replaces the base's.

    Raises:
        MergeError: OmegaConf would not merge them.
    """
    root = dict(base.root)
    own = child.root
    for key, value in child.root.items():
        section = _section(child.root, key, value)
        if isinstance(section, dict) and _is_marked(section, key):
            root.pop(key, None)
            if isinstance(value, dict):
                if own is child.root:
                    own = dict(child.root)
                own[key] = {name: inner for name, inner in value.items() if name != OVERRIDE_MARKER}
    copies: list[KeyPath] = []
    _merge_into(root, own, (), root, copies)
    if copies:
        return Merged(root, landmarks(root))
    return Merged(root, _still_there(root, base.landmarks, child.root, child.landmarks))


def _still_there(root: dict[Any, Any], base: Landmarks, child: dict[Any, Any], own: Landmarks) -> Landmarks:
    """The landmarks of both that are left after a merge; what the child has nothing of is as it was."""
    holes = {path: leaf for path, leaf in base.holes if path[0] not in child or at(root, path) is leaf}
    holes.update((path, leaf) for path, leaf in own.holes if at(root, path) is leaf)
    mappings = [path for path in base.mappings if path[0] not in child or type(at(root, path)) is dict]
    more = [path for path in own.mappings if type(at(root, path)) is dict]
    return Landmarks(tuple(holes.items()), tuple(dict.fromkeys((*mappings, *more))))


def _section(child: dict[Any, Any], key: Any, value: Any) -> Any:
    """A value at the top as NeMo-RL looks at it: it resolves interpolations within the file."""
    if isinstance(value, Leaf) and value.is_interpolation:
        found = Lookup(child).at((key,))
        if isinstance(found, Unresolved):
            raise MergeError(f"{key} cannot be resolved within its own file: {found.why}")
        return found
    return value


def _is_marked(section: dict[Any, Any], key: Any) -> bool:
    marker = raw(section.get(OVERRIDE_MARKER, False))
    if isinstance(marker, str) and "${" in marker:
        raise MergeError(f"{key}.{OVERRIDE_MARKER} is an interpolation")
    return bool(marker) and marker != MISSING


def _merge_into(
    target: dict[Any, Any], child: dict[Any, Any], path: KeyPath, root: dict[Any, Any], copies: list[KeyPath]
) -> None:
    """Merges `child` into `target`, a mapping of our own at `path` of `root`; notes where a copy took the place of what
    refers to it."""
    for key, value in child.items():
        if key not in target:
            target[key] = value
            continue
        here = (*path, key)
        existing = target[key]
        if isinstance(existing, Leaf) and existing.is_interpolation:
            # OmegaConf puts a copy of the mapping or list that the interpolation stands for in its place.
            behind = Lookup(root).at(here)
            if _may_be_a_mapping(behind) and isinstance(value, (dict, list)):
                raise MergeError(f"{dotted(here)} is merged over {behind.value}, which may stand for anything")
            if isinstance(behind, (dict, list)):
                existing = target[key] = behind
                copies.append(here)
        if isinstance(existing, dict) and isinstance(value, dict):
            inner = dict(existing)
            target[key] = inner
            _merge_into(inner, value, here, root, copies)
        elif (
            isinstance(existing, (dict, list)) and isinstance(value, (dict, list)) and type(existing) is not type(value)
        ):
            raise MergeError(f"{dotted(here)} is a mapping in one file and a list in another")
        elif raw(value) != MISSING or isinstance(value, (dict, list)):
            target[key] = value


def _may_be_a_mapping(value: Any) -> bool:
    """Whether it is an interpolation that may stand for anything."""
    return isinstance(value, Leaf) and value.is_interpolation and parse(value.value).is_dynamic
