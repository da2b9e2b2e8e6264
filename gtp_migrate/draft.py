"""Plans, edits and proves, with more and more needs, until the proof holds or asks for nothing that could help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gtp_migrate.edit import EditError, edit
from gtp_migrate.forms import Style, Target
from gtp_migrate.plan.changes import Drop, Move
from gtp_migrate.plan.needs import KeepHusk, Need, NoInterpolation, OwnNumber
from gtp_migrate.plan.own import has_size_of_its_own, needed, own_number
from gtp_migrate.plan.planner import Plan, Planned, plan
from gtp_migrate.plan.spelling import as_number, direct_uses, fixed_numbers
from gtp_migrate.plan.stock import Stock
from gtp_migrate.problems import Place, Problem, RecipeError
from gtp_migrate.proof import MODELS_OWN, Failure, Proof, same_elsewhere
from gtp_migrate.recipes.interpolation import entry_of
from gtp_migrate.recipes.survey import Progress
from gtp_migrate.recipes.tree import Tree
from gtp_migrate.recipes.values import Leaf
from gtp_migrate.runs.runs import Runs
from gtp_migrate.runs.topology import side
from gtp_migrate.shards import AXES


@dataclass(frozen=True)
class Draft:
    """A plan with its edited texts, and what the proof says of them."""

    plan: Plan
    #: By real path.
    texts: Mapping[str, str]
    unwritable: tuple[Problem, ...]
    failures: tuple[Failure, ...]
    #: The runs as they would be.
    after: Runs


def draft(stock: Stock, style: Style, progress: Progress = lambda *_: None) -> Draft:
    """The last plan: what fails in it, nothing in the files can mend.

    Args:
        stock: the settings and the runs.
        style: how new values are spelled.
        progress: called for each recipe.
    """
    needs: frozenset[Need] = frozenset()
    editor = _Editor(stock.tree)
    proof = Proof(stock.runs, stock.target, pins_copies=stock.pins_copies)
    while True:
        latest = _try(stock, plan(stock, needs, style), editor, proof, progress)
        more = frozenset(_needs(stock, latest, needs, style)) - needs
        if not more and style is Style.INTERPOLATION:
            more = frozenset(_to_follow(stock, latest)) - needs
        if not more:
            return latest
        needs |= more


def _try(stock: Stock, planned: Plan, editor: _Editor, proof: Proof, progress: Progress) -> Draft:
    texts: dict[str, str] = {}
    unwritable: list[Problem] = []
    blocked = {stock.tree.files[recipe].found.real for recipe in planned.blocked}
    for real, changes in planned.by_file().items():
        if real not in blocked:
            edited = editor.edit(real, tuple(changes))
            if isinstance(edited, Problem):
                unwritable.append(edited)
            else:
                texts[real] = edited
    after = stock.runs.on(stock.tree.with_texts(texts))
    failures: list[Failure] = []
    for done, recipe in enumerate(stock.recipes):
        progress("proving", done, len(stock.recipes))
        failures += proof.failures(recipe, after)
    return Draft(planned, texts, tuple(unwritable), tuple(failures), after)


class _Editor:
    """Edits files, each set of changes once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._edited: dict[tuple[str, str], str | Problem] = {}

    def edit(self, real: str, changes: tuple[Planned, ...]) -> str | Problem:
        """The new text of a file, or why it cannot be written."""
        known = (real, repr([planned.change for planned in changes]))
        if known not in self._edited:
            self._edited[known] = self._edit(self.tree.recipe_of[real], real, changes)
        return self._edited[known]

    def _edit(self, recipe: str, real: str, changes: tuple[Planned, ...]) -> str | Problem:
        try:
            after = edit(self.tree.text(recipe), [planned.change for planned in changes])
        except EditError as error:
            place = Place(self.tree.layers[recipe].source.shown, error.line, error.column)
            return Problem(place, f"cannot be rewritten safely: {error.what}", "migrate this file by hand")
        layer = self.tree.layers[recipe]
        try:
            new = self.tree.read_text(real, after)
            is_same = same_elsewhere(layer, new) and sorted(layer.comments) == sorted(new.comments)
        except RecipeError:
            is_same = False
        if is_same:
            return after
        what = "cannot be rewritten without changing something else in the file"
        return Problem(changes[0].place, what, "migrate this file by hand")


def _needs(stock: Stock, latest: Draft, needs: frozenset[Need], style: Style) -> Iterable[Need]:
    """What could mend the failures; only of recipes above which none fails."""
    # What is left out on purpose is not mended: what inherits from it is.
    failed = {failure.recipe for failure in latest.failures if not stock.tree.files[failure.recipe].set_aside}
    for failure in latest.failures:
        if failure.is_unknown or not failed.isdisjoint(stock.tree.orders[failure.recipe][:-1]):
            continue
        if failure.is_dangling or (failure.model is not None and failure.axis is None):
            # What refers to it misses it; or the policy's overrides come through where an empty one kept them off.
            yield from _husks(stock.tree, failure, latest.plan)
        elif failure.model is not None and failure.axis is not None:
            own = OwnNumber(failure.recipe, failure.model, failure.axis)
            if own not in needs and own_number(stock, own, style) is not None:
                yield own
                continue
        if failure.entry is not None:
            for need in _without_interpolation(failure.entry, latest.plan):
                if _may_help(stock, failure, need):
                    yield need


def _to_follow(stock: Stock, latest: Draft) -> Iterable[Need]:
    """Models made in Python that get the policy's interpolation, and have a parallel size of their own: right today, it
    would follow the policy's where somebody changes that on the command line."""
    concerned: dict[str, list[Need]] = {}
    for recipe in stock.recipes:
        resolved = latest.after.resolved(recipe, stock.runs.run(recipe).worlds[0])
        for model in resolved.models if stock.tree.files[recipe].given else ():
            for axis in AXES:
                of = side(model.cfg, axis)
                entry = entry_of(of.typed if stock.target is Target.MEGATRON_CFG else of.override)
                if (
                    entry is None
                    or not entry.is_interpolation
                    or any(entry.path[: len(own)] == own for own in MODELS_OWN)
                ):
                    continue
                if has_size_of_its_own(resolved.tree, model, axis):
                    concerned.setdefault(recipe, []).append(OwnNumber(recipe, model.name, axis))
    for recipe, needs in concerned.items():
        if concerned.keys().isdisjoint(stock.tree.orders[recipe][:-1]):
            yield from needs


def _husks(tree: Tree, failure: Failure, planned: Plan) -> Iterable[Need]:
    reals = {tree.files[layer].found.real for layer in tree.orders[failure.recipe]}
    for each in planned.changes:
        if each.real in reals and isinstance(each.change, (Move, Drop)):
            yield KeepHusk(each.real)


def _may_help(stock: Stock, failure: Failure, need: NoInterpolation) -> bool:
    """Whether the number in place of an interpolation may mend a failure. One that was not given gets no number of its
    own: where it needs another one than would be written, that number mends nothing, and breaks those that the
    interpolation is right for."""
    if stock.tree.files[failure.recipe].given or failure.model is None or failure.axis is None:
        return True
    setting = next(each for each in stock.settings if each.entry.key == need.setting)
    number = as_number(setting, fixed_numbers(direct_uses(setting)), stock)
    return needed(stock, OwnNumber(failure.recipe, failure.model, failure.axis)) == {number}


def _without_interpolation(entry: Leaf, planned: Plan) -> Iterable[NoInterpolation]:
    for each in planned.changes:
        if each.real == entry.source.real and each.is_interpolation and each.setting is not None:
            place = each.mapping if isinstance(each.change, Move) else None
            if (entry.path[:-1] == place) if place is not None else entry.path[:-2] == each.mapping:
                yield NoInterpolation(each.setting)
