"""Old and new setting for one model: they agree, or the new one is the later word, or nobody can say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gtp_migrate.forms import Form, Target
from gtp_migrate.plan.stock import Setting, Stock, Use
from gtp_migrate.problems import Problem
from gtp_migrate.recipes.interpolation import entry_of, value_of
from gtp_migrate.recipes.keys import MEGATRON_CFG
from gtp_migrate.recipes.values import Leaf, written
from gtp_migrate.runs.topology import TopologyError, old_size


@dataclass(frozen=True)
class Conflict:
    """A setting that nobody can tell what to make of."""

    setting: Setting
    problem: Problem
    #: Recipes that keep the files they are made of from being changed.
    blocked: frozenset[str]
    #: The model that gets both.
    use: Use


def conflicts(stock: Stock) -> Iterator[Conflict]:
    """All that a given file has a part in, one a model of a recipe."""
    files, orders = stock.tree.files, stock.tree.orders
    by_key = {setting.entry.key: setting for setting in stock.settings}
    ours = {recipe for recipe in stock.recipes if any(files[layer].given for layer in orders[recipe])}
    seen: set[tuple[str, str, str]] = set()
    for setting in stock.settings:
        for use in (*setting.uses, *setting.overruled) if setting.form is Form.SIZE else ():
            known = (use.recipe, use.model.name, use.side.axis.name)
            if use.recipe in ours and known not in seen:
                seen.add(known)
                conflict = _compare(stock, by_key, use)
                if conflict is not None:
                    yield conflict


def _compare(stock: Stock, by_key: dict[tuple[str, int], Setting], use: Use) -> Conflict | None:
    of = use.side
    old = entry_of(of.size)
    try:
        size = old_size(of)
    except TopologyError:
        return None  # said where the setting itself is decided
    if old is None or size is None:
        return None
    needed = _needed(stock, use)
    override, typed = entry_of(of.override), entry_of(of.typed)
    counts = typed if stock.target is Target.MEGATRON_CFG and typed else override
    for new, value in ((override, of.override), (typed, of.typed)):
        if new is None:
            continue
        is_later = _is_later(stock, use.recipe, new, old)
        if new.value is None:
            if new is typed and stock.target is Target.MODEL_OVERRIDES:
                return _typed_null(by_key[old.key], use, new)
            # Core takes the size where the count is null; whoever wrote null over a size meant off.
            agree = not is_later
        else:
            agree = (needed is not None and value_of(value) == needed) or (new is counts and is_later)
        if not agree:
            recipes = {use.recipe, by_key[old.key].recipe}
            if new.key in by_key:
                recipes.add(by_key[new.key].recipe)
            return Conflict(by_key[old.key], _problem(stock, use, old, new, size), frozenset(recipes), use)
    return None


def _needed(stock: Stock, use: Use) -> int | None:
    """The count that would say the same as the old size; None where that is open."""
    if use.world.supplied and stock.runs.run(use.recipe).is_open:
        return None
    try:
        return use.shards()
    except TopologyError:
        return None


def _is_later(stock: Stock, recipe: str, one: Leaf, other: Leaf) -> bool:
    """Whether `one` stands in a later layer of the recipe than `other`, so that it has the last word."""
    reals = [stock.tree.files[layer].found.real for layer in stock.tree.orders[recipe]][::-1]
    return reals.index(one.source.real) < reals.index(other.source.real)


def _problem(stock: Stock, use: Use, old: Leaf, new: Leaf, size: int) -> Problem:
    where = f"line {new.line}" if old.source.real == new.source.real else new.place.file_and_line
    is_own = old.source.real == stock.tree.files[use.recipe].found.real
    shards = value_of(use.side.typed if new is entry_of(use.side.typed) else use.side.override)
    what = (
        f"the old setting (size {size}) and the new one ({written(shards)} shards, {where}) "
        f"say different things{'' if is_own else f' in {stock.tree.shown(use.recipe)}'}"
    )
    return Problem(old.place, what, "keep the one that is right and run again")


def _typed_null(setting: Setting, use: Use, new: Leaf) -> Conflict:
    where = new.place.file_and_line
    what = (
        f"cannot become model_overrides.{setting.axis.num_weight_shards}: {where} has the same key in {MEGATRON_CFG}, "
        "and NeMo-RL rejects the one beside the other"
    )
    todo = f"remove the null of {where}, or give --target {Target.MEGATRON_CFG.value}"
    return Conflict(setting, Problem(setting.entry.place, what, todo), frozenset({use.recipe, setting.recipe}), use)
