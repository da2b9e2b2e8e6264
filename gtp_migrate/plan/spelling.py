"""How a new value can be written: as a number, or as an interpolation that keeps the relation."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from gtp_migrate.plan.stock import Setting, Stock, Use
from gtp_migrate.recipes.interpolation import value_of
from gtp_migrate.recipes.keys import EP, ETP, MODEL_OVERRIDES, TP, KeyPath
from gtp_migrate.recipes.values import at, raw
from gtp_migrate.runs.topology import effective_ep
from gtp_migrate.shards import DENSE


def direct_uses(setting: Setting) -> list[Use]:
    """The models in whose own mapping the setting stands; all where there are none."""
    return [use for use in setting.all_uses if use.is_direct] or setting.all_uses


def fixed_numbers(uses: list[Use]) -> dict[tuple[str, str], int | None]:
    """What each model of each recipe needs; None where that differs from world to world.

    Raises:
        TopologyError: a number is not known.
    """
    needs: dict[tuple[str, str], set[int | None]] = {}
    for use in uses:
        needs.setdefault((use.recipe, use.model.name), set()).add(use.shards())
    return {model: each.copy().pop() if len(each) == 1 else None for model, each in needs.items()}


def as_number(setting: Setting, fixed: dict[tuple[str, str], int | None], stock: Stock) -> int | None:
    """The number of shards for the mapping that the setting stands in, else the one that most models need."""
    beside = raw(at(stock.tree.layers[setting.recipe].data, (*setting.entry.path[:-2], setting.axis.parallel_size)))
    if type(beside) is int and type(setting.entry.value) is int and setting.entry.value * beside in fixed.values():
        return setting.entry.value * beside
    for use in direct_uses(setting):
        is_own = use.recipe == setting.recipe and use.overrides == setting.entry.path[:-1]
        need = fixed.get((use.recipe, use.model.name))
        if is_own and need is not None:
            return need
    # The file's own recipe first: whatever inherits from it says itself what it changes.
    own = [need for (recipe, _), need in fixed.items() if recipe == setting.recipe and need is not None]
    counted = Counter(own or [need for need in fixed.values() if need is not None]).most_common(1)
    return counted[0][0] if counted else None


def as_interpolation(setting: Setting, size: str, stock: Stock) -> str | None:
    """`${mul:size,${..tensor_model_parallel_size}}`, as it stands in `model_overrides`; None where no key holds
    the parallel size of all models.

    Raises:
        TopologyError: EP is not known.
    """
    uses = [use for use in setting.all_uses if use.is_direct]
    if not uses or setting.entry.path[-2:-1] != (MODEL_OVERRIDES,):
        return None
    if setting.axis is DENSE:
        return _product(size, TP)
    assumed = stock.runs.assumed
    sets_etp = {value_of(use.model.cfg.get(ETP)) is not None for use in uses}
    if sets_etp == {True}:
        is_assumed = assumed.etp is not None and any(use.is_supplied(ETP) for use in uses)
        return None if is_assumed else _product(size, ETP)
    if True in sets_etp:
        return None
    # ETP is derived: 1 where EP > 1, else TP.
    spreads = {effective_ep(use.model.cfg) > 1 for use in uses}
    if spreads == {True}:
        return size
    return _product(size, TP) if spreads == {False} else None


def _product(size: str, key: str) -> str:
    return f"${{mul:{size},${{..{key}}}}}"


def stands_beside(setting: Setting, stock: Stock) -> bool:
    """Whether the parallel size stands as a plain number in the setting's own file, or is only assumed: a number
    beside it will be seen by whoever changes it."""
    data = stock.tree.layers[setting.recipe].data
    holder = setting.entry.path[:-2]
    uses = direct_uses(setting)
    assumed = stock.runs.assumed
    if setting.axis is DENSE:
        is_assumed = assumed.tp is not None and all(use.is_supplied(TP) for use in uses)
        return _is_number(data, (*holder, TP)) or is_assumed
    if _is_number(data, (*holder, ETP)):
        return True
    if any(value_of(use.model.cfg.get(ETP)) is not None and not use.is_supplied(ETP) for use in uses):
        return False
    if assumed.etp is not None or (assumed.ep is not None and assumed.ep > 1):
        return True
    key = EP if any(effective_ep(use.model.cfg) > 1 for use in uses) else TP
    return _is_number(data, (*holder, key)) or (assumed.tp is not None and all(use.is_supplied(TP) for use in uses))


def _is_number(data: Any, path: KeyPath) -> bool:
    return type(raw(at(data, path))) is int


def one_level_up(text: str) -> str:
    """An interpolation of `model_overrides`, as it must be spelled in the mapping around it."""

    def shorter(match: re.Match[str]) -> str:
        dots = match[1]
        return "${" + (dots[1:] if len(dots) > 1 else f".{MODEL_OVERRIDES}.")

    return re.sub(r"\$\{(\.+)", shorter, text)
