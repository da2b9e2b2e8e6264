"""How a new value can be written: as a number, or as an interpolation that keeps the relation."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from gtp_migrate.plan.settings import Inventory, Setting, Use
from gtp_migrate.recipes.keys import EP, ETP, MODEL_OVERRIDES, TP, KeyPath
from gtp_migrate.recipes.layer import Layer
from gtp_migrate.shards import DENSE
from gtp_migrate.topology import effective_ep, parallel_size


def as_number(setting: Setting) -> int | None:
    """The number of shards for the mapping that the setting stands in, else the one that most recipes need.

    Raises:
        TopologyError: a number is not known.
    """
    needs = [(use, use.shards()) for use in setting.uses if use.is_complete]
    for use, need in needs:
        if use.recipe == setting.file and use.holder.overrides == setting.paths[0][:-1]:
            return need
    counted = Counter(need for _, need in needs).most_common(1)
    return counted[0][0] if counted else None


def as_interpolation(setting: Setting, size: str) -> str | None:
    """`${mul:size,${..tensor_model_parallel_size}}`, as it stands in `model_overrides`; None where no key holds
    the parallel size of all recipes."""
    if not setting.is_in_holders:
        return None
    if setting.axis is DENSE:
        return _product(size, TP)
    complete = [use for use in setting.uses if use.is_complete]
    sets_etp = {use.holder.etp_is_set for use in complete}
    if not sets_etp or sets_etp == {True}:
        return _product(size, ETP)
    if True in sets_etp or any(_is_assumed(use) for use in complete):
        return None
    # ETP is derived: 1 where EP > 1, else TP.
    spreads = {effective_ep(use.settings) > 1 for use in complete}
    if spreads == {True}:
        return size
    return _product(size, TP) if spreads == {False} else None


def _product(size: str, key: str) -> str:
    return f"${{mul:{size},${{..{key}}}}}"


def _is_assumed(use: Use) -> bool:
    """Whether the ETP is the one of `--etp`, for which no key stands."""
    derived = 1 if effective_ep(use.settings) > 1 else use.settings.tp
    return parallel_size(use.settings, use.axis) != derived


def is_right_for_all(setting: Setting) -> bool:
    """Whether one number is right for every recipe that gets it, and will stay so: the parallel size stands as
    a number in the same file, or nowhere but on the command line.

    Raises:
        TopologyError: a number is not known.
    """
    if not all(use.is_complete for use in setting.uses):
        return False
    return len({use.shards() for use in setting.uses}) == 1


def stands_beside(inventory: Inventory, setting: Setting) -> bool:
    """Whether the parallel size stands as a plain number in the setting's own file, or is only assumed."""
    layer = inventory.tree.layer(setting.file)
    return all(_stands_in(layer, path[:-2], setting, inventory) for path in setting.paths)


def _stands_in(layer: Layer, holder: KeyPath, setting: Setting, inventory: Inventory) -> bool:
    assumed = inventory.resolver.assumed
    if setting.axis is DENSE:
        return _is_number(layer, (*holder, TP)) or not any(use.holder.tp_is_set for use in setting.uses)
    if _is_number(layer, (*holder, ETP)):
        return True
    if any(use.holder.etp_is_set for use in setting.uses):
        return False
    if assumed.etp is not None:
        return True
    key = EP if any(effective_ep(use.settings) > 1 for use in setting.uses) else TP
    return _is_number(layer, (*holder, key)) or not any(use.holder.tp_is_set for use in setting.uses)


def _is_number(layer: Layer, path: KeyPath) -> bool:
    entry = layer.entries.get(path)
    return entry is not None and type(entry.value) is int


def is_one_interpolation(text: str) -> bool:
    """Whether a text is one `${…}` and nothing around it."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if char == "}" and depth == 0:
            return text.startswith("${") and index == len(text) - 1
    return False


def one_level_up(text: str) -> str:
    """An interpolation of `model_overrides`, as it must be spelled in the `megatron_cfg` around it."""

    def shorter(match: re.Match[str]) -> str:
        dots = match[1]
        return "${" + (dots[1:] if len(dots) > 1 else f".{MODEL_OVERRIDES}.")

    return re.sub(r"\$\{(\.+)", shorter, text)


def written(value: Any) -> str:
    """A loaded value as a person would write it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and "${" not in value and value != "???":
        return f'"{value}"'
    return str(value)
