"""Why this number: one recipe, with each model of its run, what it gets from where, and what each form would do.

All of it is what the rewriter itself goes by: nothing is decided here a second time, and nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from gtp_migrate.forms import Form, Target
from gtp_migrate.migrate import Options, work_out
from gtp_migrate.outcome import ModelOutcome, RunOutcome
from gtp_migrate.plan.describe import describe_parallel
from gtp_migrate.plan.planner import Planned
from gtp_migrate.plan.stock import Stock
from gtp_migrate.problems import Place, Problem
from gtp_migrate.recipes.checkout import surroundings
from gtp_migrate.recipes.discover import recipe_id, shorten
from gtp_migrate.recipes.interpolation import Computed, Unresolved, entry_of, value_of
from gtp_migrate.recipes.keys import EP, ETP, MODEL_OVERRIDES, TP
from gtp_migrate.recipes.survey import survey
from gtp_migrate.recipes.tree import read_tree
from gtp_migrate.runs.models import Kind, Model
from gtp_migrate.runs.nemo_rl import Choice
from gtp_migrate.runs.runs import Resolved
from gtp_migrate.runs.topology import Topology, TopologyError, gtp_size, parallel_size, side, topology
from gtp_migrate.shards import AXES, EXPERT, Axis, shards_from_size


@dataclass(frozen=True)
class Entry:
    """A key that a model gets, and where it stands."""

    #: Below its `megatron_cfg`: `tensor_model_parallel_size`, `model_overrides.gtp_weight_remat_size`.
    key: str
    value: str
    #: None where no file says it: it comes with the run, or NeMo-RL fills it in.
    place: Place | None
    #: Whether another file than the recipe's own says it.
    is_inherited: bool


#: What a NeMo-RL that takes one form does with those that it does not hand over.
_NOT_HANDED_OVER = {
    Target.MODEL_OVERRIDES: {Form.TYPED: "never reads it: GTP off, silently"},
    Target.MEGATRON_CFG: {Form.OVERRIDE: "rejects it: ValueError"},
}


class Bridge(Enum):
    """The two Bridges that a recipe may meet."""

    #: 0.6.2 and older: takes the old size.
    RELEASED = "released Bridge"
    #: Takes shard counts alone, and derives the size from them.
    NEW = "new Bridge"


@dataclass(frozen=True)
class FormEffect:
    """What a model's GTP would look like in one form, and what would become of it."""

    form: Form
    #: What there would be to write, below `megatron_cfg`.
    entries: tuple[str, ...]
    #: On each Bridge, once NeMo-RL hands it over.
    released: str
    new: str
    #: What the NeMo-RL that was found does with it, and whether Bridge gets to see it.
    nemo_rl: str
    is_handed_over: bool
    #: Whether the recipe says it this way now, and whether the rewriter writes it this way.
    is_now: bool
    is_right: bool


@dataclass(frozen=True)
class ModelExplained:
    """One model of the run."""

    #: Sizes before and after, and the layout.
    outcome: ModelOutcome
    #: TP and ETP with where they come from.
    parallel: tuple[str, str]
    entries: tuple[Entry, ...]
    #: None where GTP is not set: there is nothing to write.
    forms: tuple[FormEffect, ...]


@dataclass(frozen=True)
class RecipeExplained:
    """One recipe."""

    recipe: str
    choice: Choice | None
    #: None where NeMo-RL could not load it: the problems say why.
    run: RunOutcome | None
    models: tuple[ModelExplained, ...]
    #: Recipes that inherit from it; None where there is no checkout around it to look for some.
    heirs: tuple[str, ...] | None
    #: What the rewriter would change in the files that it is made of, and which of them are whose.
    changes: tuple[Planned, ...]
    #: What needs a person: of it, and of recipes that share a file with it.
    problems: tuple[Problem, ...]
    #: Why nothing is to be changed, where that is so.
    why_nothing: str


def explain_recipe(options: Options, exclude: tuple[str, ...] = ()) -> RecipeExplained:
    """Explains the recipe that `options.paths` names, as a run on all of its checkout would see it.

    Args:
        options: of that run.
        exclude: patterns of files to set aside.

    Raises:
        OSError: the file cannot be read.
        UndecidedError: nobody can tell which form to write.
    """
    (path,) = options.paths
    recipe = recipe_id(path)
    alone = survey([path])
    if not alone.count and alone.problems:
        return RecipeExplained(path, None, None, (), None, (), tuple(alone.problems), "")
    layers = read_tree(alone, (), options.maps, always=[recipe]).orders.get(recipe, ())
    # All that may share a file with it is given: what is planned is what a run on the whole tree would plan.
    roots = surroundings([path]).roots
    here = os.path.realpath(os.getcwd())
    around = [os.curdir] if any(here == root or here.startswith(root + os.sep) for root in roots) else []
    paths = tuple(dict.fromkeys((path, *map(shorten, layers[:-1]), *around, *map(shorten, roots))))
    surveyed = survey(paths, exclude)
    worked = work_out(replace(options, paths=paths), surveyed, always=[recipe])
    assert worked.stock is not None
    return _Explainer(worked.stock, recipe, bool(roots)).explain(
        worked.outcome.choice, worked.outcome.runs, worked.outcome.changes, worked.outcome.problems
    )


class _Explainer:
    def __init__(self, stock: Stock, recipe: str, is_in_checkout: bool) -> None:
        self.stock = stock
        self.tree = stock.tree
        self.recipe = recipe
        self.is_in_checkout = is_in_checkout
        self.real = self.tree.files[recipe].found.real

    def explain(
        self, choice: Choice | None, runs: list[RunOutcome], changes: list[Planned], problems: list[Problem]
    ) -> RecipeExplained:
        by_recipe = dict(zip(self.stock.recipes, runs, strict=True))
        run = by_recipe.get(self.recipe)
        own = {self.tree.files[layer].found.real for layer in self.tree.orders.get(self.recipe, (self.recipe,))}
        changes = [each for each in changes if each.real in own]
        related = self._related(own)
        found = [each for each in problems if each.place.path in related]
        if not found and not changes and self._has_old(own):
            found = problems  # whatever keeps its files from being changed is among them
        return RecipeExplained(
            recipe=self.tree.shown(self.recipe),
            choice=choice,
            run=run,
            models=tuple(self._models(run)) if run is not None else (),
            heirs=tuple(self._heirs()) if self.is_in_checkout else None,
            changes=tuple(sorted(changes, key=lambda each: each.place)),
            problems=tuple(found),
            why_nothing="" if changes or found or run is None else self._why_nothing(own, choice),
        )

    def _heirs(self) -> Iterator[str]:
        for recipe in self.tree.recipes:
            if self.recipe in self.tree.orders.get(recipe, ())[:-1]:
                yield self.tree.shown(recipe)

    def _related(self, own: set[str]) -> set[str]:
        """The names of its files, and of all that share one with a setting with it."""
        concerned = {self.real} | {real for real in own if any(layer.settings for layer in self._layers(real))}
        names = {layer.source.shown for real in own for layer in self._layers(real)} | {self.tree.shown(self.recipe)}
        for recipe in self.tree.recipes:
            if not concerned.isdisjoint(self._made_of(recipe)):
                names.add(self.tree.shown(recipe))
        broken = self.tree.broken.get(self.recipe)
        return names | ({broken.place.path} if broken is not None else set())

    def _made_of(self, recipe: str) -> Iterator[str]:
        """The files that a recipe is made of, as far as a glance can tell where it cannot be loaded."""
        seen = {*self.tree.orders.get(recipe, (recipe,))}
        waiting = [recipe] if recipe not in self.tree.orders else []
        while waiting:
            here = waiting.pop()
            for path in self.tree.files[here].glance.defaults or () if here in self.tree.files else ():
                parent = recipe_id(os.path.join(os.path.dirname(here), path))
                if parent not in seen:
                    seen.add(parent)
                    waiting.append(parent)
        return (self.tree.files[each].found.real for each in seen if each in self.tree.files)

    def _has_old(self, own: set[str]) -> bool:
        return any(each.form is Form.SIZE and each.entry.source.real in own for each in self.stock.settings)

    def _layers(self, real: str) -> Iterator[Any]:
        return (layer for layer in self.tree.layers.values() if layer.source.real == real)

    def _why_nothing(self, own: set[str], choice: Choice | None) -> str:
        settings = [setting for setting in self.stock.settings if setting.entry.source.real in own]
        if not settings:
            return "no file of it sets anything of GTP"
        assert choice is not None
        return f"all that it sets of GTP is in the form that is right already ({choice.why})"

    # -- models ----------------------------------------------------------------------------------------

    def _models(self, run: RunOutcome) -> Iterator[ModelExplained]:
        world = self.stock.runs.run(self.recipe).worlds[0]
        resolved = self.stock.runs.resolved(self.recipe, world)
        for model, outcome in zip(resolved.models, run.models, strict=True):
            tp, etp = (describe_parallel(self.recipe, model, axis, self.stock, world) for axis in AXES)
            yield ModelExplained(
                outcome=outcome,
                parallel=(tp, etp),
                entries=tuple(self._entries(model)),
                forms=() if outcome.is_pinned else tuple(self._forms(model, resolved, (tp, etp))),
            )

    def _entries(self, model: Model) -> Iterator[Entry]:
        overrides = value_of(model.cfg.get(MODEL_OVERRIDES))
        found = [(key, model.cfg[key]) for key in (TP, ETP, EP) if key in model.cfg]
        for axis in AXES:
            if axis.num_weight_shards in model.cfg:
                found.append((axis.num_weight_shards, model.cfg[axis.num_weight_shards]))
        for key, value in overrides.items() if isinstance(overrides, dict) else ():
            if any(key in (axis.gtp_size, axis.num_weight_shards) for axis in AXES):
                found.append((f"{MODEL_OVERRIDES}.{key}", value))
        for key, value in found:
            entry = entry_of(value)
            is_inherited = entry is not None and entry.source.real != self.real
            yield Entry(key, _text(value), entry.place if entry is not None else None, is_inherited)

    def _forms(self, model: Model, resolved: Resolved, parallel: tuple[str, str]) -> Iterator[FormEffect]:
        """What each form would do, with the GTP that the model has."""
        sides = [side(model.cfg, axis) for axis in AXES]
        if all(each.is_silent for each in sides):
            return
        # A copy gets the counts of the training model, whatever its own TP.
        whose = resolved.model("policy.megatron_cfg") if model.kind is Kind.COPY else model
        assert whose is not None
        try:
            wanted = {axis: self._wanted(whose.cfg, axis) for axis in AXES if not side(whose.cfg, axis).is_silent}
        except TopologyError:
            return
        not_handed_over = _NOT_HANDED_OVER[self.stock.target]
        right = Form.TYPED if self.stock.target is Target.MEGATRON_CFG else Form.OVERRIDE
        now = {form for each in sides for form, value in _said(each) if value is not None}
        for form in Form:
            yield FormEffect(
                form=form,
                entries=tuple(
                    _written(form, axis, *wanted[axis], _is_open(text))
                    for axis, text in zip(AXES, parallel, strict=True)
                    if axis in wanted
                ),
                released=_effect(model.cfg, form, wanted, Bridge.RELEASED),
                new=_effect(model.cfg, form, wanted, Bridge.NEW),
                nemo_rl=not_handed_over.get(form, "hands it to Bridge"),
                is_handed_over=form not in not_handed_over,
                is_now=form in now,
                is_right=form is right,
            )

    def _wanted(self, cfg: dict[Any, Any], axis: Axis) -> tuple[int, int]:
        """The GTP size that is meant, and the parallel size beside it."""
        # A count that this NeMo-RL never reads was meant all the same.
        of = side(cfg, axis)
        target = Target.MEGATRON_CFG if value_of(of.typed) is not None else self.stock.target
        size = gtp_size(cfg, axis, target, before=True)
        if size is None:
            raise TopologyError("still to be given")
        return size, parallel_size(cfg, axis)


def _text(value: Any) -> str:
    """A value as it is, and as it is written where that is an interpolation."""
    is_computed = isinstance(value, Computed)
    entry, value = entry_of(value), value_of(value)
    shown = f"? ({value.why})" if isinstance(value, Unresolved) else "null" if value is None else str(value)
    return f"{shown} ({entry.value})" if is_computed and entry is not None else shown


def _said(of: Any) -> Iterator[tuple[Form, Any]]:
    for form, value in ((Form.SIZE, of.size), (Form.OVERRIDE, of.override), (Form.TYPED, of.typed)):
        found = value_of(value)
        yield form, None if isinstance(found, Unresolved) and found.why == "not set" else found


def _is_open(parallel: str) -> bool:
    return parallel.endswith(("not set", "from the environment"))


def _key(form: Form, axis: Axis) -> str:
    return axis.gtp_size if form is Form.SIZE else axis.num_weight_shards


def _written(form: Form, axis: Axis, size: int, parallel: int, is_open: bool) -> str:
    prefix = "" if form is Form.TYPED else f"{MODEL_OVERRIDES}."
    value = f"{size}" if form is Form.SIZE else f"{size} × {axis.abbreviation}" if is_open else None
    return f"{prefix}{_key(form, axis)}: {value or shards_from_size(size, parallel)}"


def _in_form(cfg: dict[Any, Any], form: Form, wanted: dict[Axis, tuple[int, int]]) -> dict[Any, Any]:
    """A model's mapping with its GTP written in this form and no other."""
    ours = {key for axis in AXES for key in (axis.gtp_size, axis.num_weight_shards)}
    overrides = value_of(cfg.get(MODEL_OVERRIDES))
    overrides = (
        {key: value for key, value in overrides.items() if key not in ours} if isinstance(overrides, dict) else {}
    )
    changed = {key: value for key, value in cfg.items() if key not in ours}
    where = changed if form is Form.TYPED else overrides
    for axis, (size, parallel) in wanted.items():
        where[_key(form, axis)] = size if form is Form.SIZE else shards_from_size(size, parallel)
    return {**changed, MODEL_OVERRIDES: overrides}


def _effect(cfg: dict[Any, Any], form: Form, wanted: dict[Axis, tuple[int, int]], bridge: Bridge) -> str:
    """What a Bridge makes of a form, once NeMo-RL hands it over."""
    if form is Form.SIZE and bridge is Bridge.NEW:
        return "every worker crashes: no such field"
    target = Target.MEGATRON_CFG if form is Form.TYPED else Target.MODEL_OVERRIDES
    try:
        sizes = topology(_in_form(cfg, form, wanted), target, before=bridge is Bridge.RELEASED)
    except TopologyError as error:
        return f"ValueError: {error}"
    return _sizes(sizes, with_expert=EXPERT in wanted)


def _sizes(sizes: Topology, *, with_expert: bool) -> str:
    """`GTP 3`, `GTP off, expert GTP 2`."""
    dense = f"GTP {_size(sizes.gtp)}"
    return f"{dense}, expert GTP {_size(sizes.expert_gtp)}" if with_expert else dense


def _size(size: int | None) -> str:
    return "???" if size is None else "off" if size == 1 else str(size)
