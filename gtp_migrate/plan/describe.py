"""What is multiplied with, and where it comes from, for people."""

from __future__ import annotations

from dataclasses import replace

from gtp_migrate.plan.stock import Setting, Stock
from gtp_migrate.recipes.interpolation import entry_of, value_of
from gtp_migrate.recipes.keys import ETP, TP
from gtp_migrate.runs.models import Model
from gtp_migrate.runs.runs import World
from gtp_migrate.runs.topology import TopologyError, effective_ep, parallel_size
from gtp_migrate.shards import DENSE, Axis


def parallel_of(setting: Setting, stock: Stock) -> str:
    """The parallel size in the setting's own file, and those that other recipes have instead."""
    uses = sorted(setting.all_uses, key=lambda use: (use.recipe != setting.recipe, not use.is_direct))
    if not uses:
        return ""
    own, *others = dict.fromkeys(
        describe_parallel(use.recipe, use.model, use.side.axis, stock, use.world) for use in uses
    )
    if len(others) > 1:
        sizes = {text.split(" (")[0].removeprefix(f"{setting.axis.abbreviation} ") for text in others}
        return f"{own}; {', '.join(sorted(sizes, key=lambda size: (len(size), size)))} in other recipes"
    return "; ".join([own, *others])


def describe_parallel(recipe: str, model: Model, axis: Axis, stock: Stock, world: World) -> str:
    """The parallel size of a model and where it comes from: `TP 4 (base.yaml:12)`."""
    name = axis.abbreviation
    key = TP if axis is DENSE else ETP
    entry = entry_of(model.cfg.get(key))
    is_supplied = key in model.cfg and entry is None and any(path[-1] == key for path, _ in world.supplied)
    if is_supplied and stock.runs.assumed.of(key) is not None:
        return f"{name} {value_of(model.cfg[key])} (--{name.lower()})"
    if _is_open(recipe, model, axis, stock, world):
        is_elsewhere = stock.runs.run(recipe).open_keys.get(model.path, {}).get(key) == "environment"
        return f"{name} {'from the environment' if is_elsewhere else 'not set'}"
    try:
        value = parallel_size(model.cfg, axis)
        if entry is not None and entry.value is not None:
            return f"{name} {value} ({entry.place.file_and_line})"
        if axis is not DENSE and value_of(model.cfg.get(key)) is None:
            return f"{name} {value} ({'EP > 1' if effective_ep(model.cfg) > 1 else 'as TP'})"
    except TopologyError as error:
        return str(error)
    return f"{name} {value} ({model.name})"


def _is_open(recipe: str, model: Model, axis: Axis, stock: Stock, world: World) -> bool:
    """Whether the model's parallel size is another one where other values are supplied."""
    sizes = set()
    for other in stock.runs.run(recipe).worlds:
        if replace(other, supplied=world.supplied) == world:
            found = stock.runs.resolved(recipe, other).model(model.name)
            try:
                sizes.add(parallel_size(found.cfg, axis) if found is not None else None)
            except TopologyError:
                sizes.add(None)
    return len(sizes - {None}) > 1
