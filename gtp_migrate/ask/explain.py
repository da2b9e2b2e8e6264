"""Why this number: one recipe, with each model of its run, what it gets from where, and what each form would do.

All of it is what the rewriter itself goes by: nothing is decided here a second time, and nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gtp_migrate.ask.everywhere import Everywhere
from gtp_migrate.ask.model import ModelExplained, ModelExplainer
from gtp_migrate.forms import Form
from gtp_migrate.migrate import Options, work_out
from gtp_migrate.outcome import RunOutcome
from gtp_migrate.plan.conflicts import conflicts
from gtp_migrate.plan.planner import Planned
from gtp_migrate.plan.stock import Stock
from gtp_migrate.problems import Problem
from gtp_migrate.recipes.checkout import surroundings
from gtp_migrate.recipes.discover import recipe_id, shorten
from gtp_migrate.recipes.keys import dotted
from gtp_migrate.recipes.survey import Survey, survey
from gtp_migrate.recipes.tree import read_tree
from gtp_migrate.runs.models import POLICY_CFG
from gtp_migrate.runs.nemo_rl import Choice
from gtp_migrate.unfinished import unfinished


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
        return _not_explained(path, alone.problems)
    layers = read_tree(alone, (), options.maps, always=[recipe]).orders.get(recipe, ())
    # All that may share a file with it is given: what is planned is what a run on the whole tree would plan.
    roots = surroundings([path]).roots
    here = os.path.realpath(os.getcwd())
    around = [os.curdir] if any(here == root or here.startswith(root + os.sep) for root in roots) else []
    paths = tuple(dict.fromkeys((path, *map(shorten, layers[:-1]), *around, *map(shorten, roots))))
    surveyed = survey(paths, exclude)
    if surveyed.unfinished:
        return _not_explained(path, _half_written(surveyed))
    worked = work_out(replace(options, paths=paths), surveyed, always=[recipe])
    if worked.stock is None:
        # So it is in another checkout, in which a file stands that it inherits from.
        return _not_explained(path, worked.outcome.problems)
    return _Explainer(worked.stock, recipe, bool(roots)).explain(
        worked.outcome.choice, worked.outcome.runs, worked.outcome.changes, worked.outcome.problems
    )


def _not_explained(path: str, problems: list[Problem]) -> RecipeExplained:
    return RecipeExplained(path, None, None, (), None, (), tuple(problems), "")


def _half_written(surveyed: Survey) -> list[Problem]:
    """What a tree means of which a run has written half, nobody can work out."""
    todo = "let gtp-migrate write the rest: run it on what that run was given, then ask again"
    return [replace(unfinished(path), todo=todo) for path in surveyed.unfinished]


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
        models = self.stock.runs.resolved(self.recipe, world).models
        everywhere = {model.name: Everywhere(self.stock, self.recipe, model.name) for model in models}
        found = [each for each in conflicts(self.stock) if each.use.recipe == self.recipe]
        for model, outcome in zip(models, run.models, strict=True):
            own = [each for each in found if each.use.model.name == model.name]
            training = everywhere.get(dotted(POLICY_CFG))
            yield ModelExplainer(everywhere[model.name], outcome, training, own).explain()
