"""Each run, before and after, as people want to know it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

from gtp_migrate.draft import Draft
from gtp_migrate.outcome import Inherits, ModelOutcome, RunOutcome
from gtp_migrate.plan.stock import Stock, is_pinned
from gtp_migrate.problems import Place, Problem
from gtp_migrate.recipes.discover import shorten
from gtp_migrate.recipes.interpolation import entry_of, value_of
from gtp_migrate.recipes.keys import ETP, TP
from gtp_migrate.recipes.tree import Tree
from gtp_migrate.runs.gpus import are_open
from gtp_migrate.runs.layout import Layout, LayoutError, in_all_worlds, layout
from gtp_migrate.runs.models import Model
from gtp_migrate.runs.runs import Resolved, Runs, World, is_built
from gtp_migrate.runs.topology import Topology, TopologyError, topology
from gtp_migrate.runs.topology import side as side_of
from gtp_migrate.shards import DENSE, EXPERT, Axis


def account(stock: Stock, latest: Draft, changed: Mapping[str, set[str]], after: Runs) -> list[RunOutcome]:
    """All runs that can be loaded.

    Args:
        stock: the settings and the runs as they were.
        latest: the plan, with what the proof says of it.
        changed: the files that are changed for each recipe, by real path.
        after: the runs as they are now.
    """
    failed = {failure.recipe for failure in latest.failures}
    return [_run(stock, recipe, changed[recipe], after, recipe in failed) for recipe in stock.recipes]


def unread(stock: Stock, orders: Mapping[str, Iterable[str]]) -> list[RunOutcome]:
    """The given recipes that cannot be loaded.

    Args:
        stock: the runs.
        orders: the layers of each recipe, as far as they can be told.
    """
    tree = stock.tree
    return [
        cannot_be_loaded(tree.shown(recipe), error.problem, [_name(tree, layer) for layer in orders[recipe]])
        for recipe, error in stock.broken.items()
        if tree.files[recipe].given
    ]


def cannot_be_loaded(recipe: str, problem: Problem, layers: Iterable[str]) -> RunOutcome:
    """A given recipe that has no models, as it cannot be loaded."""
    return RunOutcome(
        recipe=recipe,
        layers=tuple(dict.fromkeys(layers)),
        changed=frozenset(),
        is_given=True,
        is_proven=False,
        is_open=False,
        models=(),
        problem=problem,
    )


def inheritance(tree: Tree, layers: Iterable[str]) -> dict[str, Inherits]:
    """What files inherit from, by name: as far as they can be read."""
    return {
        _name(tree, layer): Inherits(
            tuple(_name(tree, parent) for parent in tree.parents.get(layer, ())), tree.layers[layer].defaults_place
        )
        for layer in layers
        if layer in tree.layers
    }


def _name(tree: Tree, recipe: str) -> str:
    return tree.layers[recipe].source.shown if recipe in tree.layers else shorten(recipe)


def _run(stock: Stock, recipe: str, changed: set[str], after: Runs, has_failed: bool) -> RunOutcome:
    tree, run = stock.tree, stock.runs.run(recipe)
    old = stock.runs.resolved(recipe, run.worlds[0])
    new = after.resolved(recipe, run.worlds[0])
    names = {tree.files[layer].found.real: tree.layers[layer].source.shown for layer in tree.orders[recipe]}
    return RunOutcome(
        recipe=tree.shown(recipe),
        layers=tuple(names.values()),
        changed=frozenset(changed),
        is_given=tree.files[recipe].given,
        is_proven=bool(changed) and not has_failed,
        is_open=run.is_open,
        models=tuple(
            _model(stock, recipe, one, (after, other), is_changed=bool(changed))
            for one, other in zip(old.models, new.models, strict=False)
        ),
    )


def _model(stock: Stock, recipe: str, old: Model, after: tuple[Runs, Model], *, is_changed: bool) -> ModelOutcome:
    new = after[1]
    pinned = is_pinned(old, stock.pins_copies)
    was, why = _topology(stock, old, before=True)
    is_now, why_not = _topology(stock, new, before=not is_changed)
    if not is_built(stock.runs.run(recipe), old):
        why = "what inherits from it decides"
    is_open = _open(stock, recipe, old)
    written = _as_written(stock, recipe, old)
    places = {key: _place(written.cfg.get(key)) for key in (TP, ETP)}
    found, no_layout = _layout(stock, recipe, after, before=not is_changed, is_pinned=pinned)
    return ModelOutcome(
        name=old.name,
        kind=old.kind.value,
        is_on=old.is_on,
        is_pinned=pinned,
        before=was,
        after=is_now,
        unknown=why or why_not,
        open=is_open,
        layout=found,
        no_layout=no_layout or _what_comes(is_open, has_etp=places[ETP] is not None),
        tp_from=places[TP],
        etp_from=places[ETP],
        size_from=_place_of_size(written, DENSE),
        expert_size_from=_place_of_size(written, EXPERT),
        shards=_count(stock, new, DENSE),
        expert_shards=_count(stock, new, EXPERT),
    )


def _as_written(stock: Stock, recipe: str, model: Model) -> Model:
    """A model with nothing supplied: what is supplied stands nowhere."""
    return _plain(stock, recipe).model(model.name) or model


def _plain(stock: Stock, recipe: str) -> Resolved:
    first = stock.runs.run(recipe).worlds[0]
    return stock.runs.resolved(recipe, World(first.other_reading, first.as_launched))


def _layout(
    stock: Stock, recipe: str, after: tuple[Runs, Model], *, before: bool, is_pinned: bool
) -> tuple[Layout | None, str]:
    """The layout, as far as it is the same whatever comes with the run; or why there is none."""
    runs, model = after
    # How a teacher is made when no launcher makes it, no run shows.
    worlds = [runs.resolved(recipe, world) for world in stock.runs.run(recipe).worlds if world.as_launched]
    same = [(world, other) for world in worlds if (other := world.model(model.name)) is not None]
    try:
        layouts = [layout(world, other, stock.target, before=before, is_pinned=is_pinned) for world, other in same]
        found = in_all_worlds(layouts)
    except LayoutError as error:
        return None, str(error)
    return (found.without_gpus() if are_open(_plain(stock, recipe)) else found), ""


def _what_comes(is_open: frozenset[str], *, has_etp: bool) -> str:
    """What comes with the run, where something does: the GTP sizes follow from TP and ETP, and ETP from TP where
    nothing is said of it."""
    names = {"tp": "TP"} if "tp" in is_open and not has_etp else {"tp": "TP", "etp": "ETP"}
    found = [name for field, name in names.items() if field in is_open] or (["GTP"] if is_open else [])
    return f"{' and '.join(found)} {'comes' if len(found) == 1 else 'come'} with the run" if found else ""


def _open(stock: Stock, recipe: str, model: Model) -> frozenset[str]:
    """The sizes of a model that are others in other worlds."""
    worlds = stock.runs.run(recipe).worlds
    if len(worlds) == 1:
        return frozenset()
    others = (stock.runs.resolved(recipe, world).model(model.name) for world in worlds)
    known = [sizes for other in others if other is not None and (sizes := _topology(stock, other, before=True)[0])]
    return frozenset(
        field.name for field in fields(Topology) if len({getattr(sizes, field.name) for sizes in known}) > 1
    )


def _topology(stock: Stock, model: Model, *, before: bool) -> tuple[Topology | None, str]:
    try:
        return topology(model.cfg, stock.target, before=before), ""
    except TopologyError as error:
        return None, str(error)


def _place(value: object) -> Place | None:
    entry = entry_of(value)
    return entry.place if entry is not None else None


def _place_of_size(model: Model, axis: Axis) -> Place | None:
    of = side_of(model.cfg, axis)
    return _place(of.override) or _place(of.typed) or _place(of.size)


def _count(stock: Stock, model: Model, axis: Axis) -> int | None:
    of = side_of(model.cfg, axis)
    for value in (of.typed, of.override):
        count = value_of(value)
        if type(count) is int:
            return count
    return None
