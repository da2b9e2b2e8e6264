"""Each run, before and after, as people want to know it."""

from __future__ import annotations

from collections.abc import Mapping

from gtp_migrate.draft import Draft
from gtp_migrate.outcome import ModelOutcome, RunOutcome
from gtp_migrate.plan.stock import Stock, is_pinned
from gtp_migrate.problems import Place
from gtp_migrate.recipes.interpolation import entry_of, value_of
from gtp_migrate.recipes.keys import ETP, TP
from gtp_migrate.runs.layout import layout
from gtp_migrate.runs.models import Model
from gtp_migrate.runs.runs import Resolved, Runs
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
        is_open=len({world.supplied for world in run.worlds}) > 1,
        models=tuple(
            _model(stock, (old, one), (new, other), is_changed=bool(changed))
            for one, other in zip(old.models, new.models, strict=False)
        ),
    )


def _model(
    stock: Stock, before: tuple[Resolved, Model], after: tuple[Resolved, Model], *, is_changed: bool
) -> ModelOutcome:
    old, new = before[1], after[1]
    pinned = is_pinned(old, stock.pins_copies)
    was, why = _topology(stock, old, before=True)
    is_now, why_not = _topology(stock, new, before=not is_changed)
    return ModelOutcome(
        name=old.name,
        kind=old.kind.value,
        is_on=old.is_on,
        is_pinned=pinned,
        before=was,
        after=is_now,
        unknown=why or why_not,
        layout=layout(after[0].tree, new, stock.target, before=not is_changed, is_pinned=pinned),
        tp_from=_place(old.cfg.get(TP)),
        etp_from=_place(old.cfg.get(ETP)),
        size_from=_place_of_size(old, DENSE),
        expert_size_from=_place_of_size(old, EXPERT),
        shards=_count(stock, new, DENSE),
        expert_shards=_count(stock, new, EXPERT),
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
