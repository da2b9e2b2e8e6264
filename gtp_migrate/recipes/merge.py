"""One layer over another, on plain data, as OmegaConf merges for NeMo-RL.

Nothing is changed in place and nothing is copied that stays the same: what two recipes inherit from one file is one object
in both, so that comparing them costs only what differs.

Source: `merge_with_override` in NeMo-RL (`nemo_rl/utils/config.py`); `BaseContainer._map_merge` in OmegaConf 2.3.
"""

from __future__ import annotations

from typing import Any

from gtp_migrate.recipes.interpolation import Lookup, Unresolved
from gtp_migrate.recipes.keys import MISSING, OVERRIDE_MARKER, KeyPath, dotted
from gtp_migrate.recipes.layer import Leaf, raw


class MergeError(Exception):
    """Two layers that OmegaConf would not merge. The message says why."""


def merge_with_override(base: dict[Any, Any], child: dict[Any, Any]) -> dict[Any, Any]:
    """`child` over `base`; a mapping at the top of `child` that is marked `_override_` replaces the base's.

    Raises:
        MergeError: OmegaConf would not merge them.
    """
    root = dict(base)
    own = child
    for key, value in child.items():
        section = _section(child, key, value)
        if isinstance(section, dict) and _is_marked(section, key):
            root.pop(key, None)
            if isinstance(value, dict):
                if own is child:
                    own = dict(child)
                own[key] = {name: inner for name, inner in value.items() if name != OVERRIDE_MARKER}
    _merge_into(root, own, (), root)
    return root


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


def _merge_into(target: dict[Any, Any], child: dict[Any, Any], path: KeyPath, root: dict[Any, Any]) -> None:
    """Merges `child` into `target`, a mapping of our own at `path` of `root`."""
    for key, value in child.items():
        if key not in target:
            target[key] = value
            continue
        here = (*path, key)
        existing = target[key]
        if isinstance(existing, Leaf) and existing.is_interpolation:
            # OmegaConf puts a copy of the mapping or list that the interpolation stands for in its place.
            behind = Lookup(root).at(here)
            if isinstance(behind, (dict, list)):
                existing = target[key] = behind
        if isinstance(existing, dict) and isinstance(value, dict):
            inner = dict(existing)
            target[key] = inner
            _merge_into(inner, value, here, root)
        elif isinstance(existing, (dict, list)) and isinstance(value, (dict, list)) and type(existing) is not type(value):
            raise MergeError(f"{dotted(here)} is a mapping in one file and a list in another")
        elif raw(value) != MISSING or isinstance(value, (dict, list)):
            target[key] = value
