"""What is written and what stays as it is: files that share a recipe stand or fall together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gtp_migrate.account import account, inheritance, unread
from gtp_migrate.draft import Draft
from gtp_migrate.edit import edit
from gtp_migrate.edit.where import where
from gtp_migrate.order import Groups, without_bad, writing_order
from gtp_migrate.outcome import Edited, Outcome
from gtp_migrate.plan.changes import Add
from gtp_migrate.plan.planner import Plan, Planned
from gtp_migrate.plan.stock import Stock
from gtp_migrate.problems import Problem
from gtp_migrate.proof import Failure
from gtp_migrate.recipes.interpolation import entry_of, value_of
from gtp_migrate.recipes.keys import EP, ETP, OLD_KEY_TEXT, OLD_KEYS, TP, dotted
from gtp_migrate.recipes.tree import Tree
from gtp_migrate.recipes.values import Leaf
from gtp_migrate.runs.models import TEACHER_OVERRIDES, Kind
from gtp_migrate.runs.runs import Runs
from gtp_migrate.runs.topology import side
from gtp_migrate.shards import AXES


def settle(outcome: Outcome, stock: Stock, latest: Draft, more: Iterable[Failure] = ()) -> None:
    """Leaves the files that are connected with a failure as they are, and keeps the rest.

    Args:
        outcome: where all is put down.
        stock: the settings and the runs.
        latest: the plan, and what the proof says of it.
        more: what another judge says of it.
    """
    tree, planned = stock.tree, latest.plan
    real = {recipe: tree.files[recipe].found.real for recipe in tree.files}
    orders = {recipe: _order(tree, recipe) for recipe in tree.recipes}
    layers = {recipe: [real[layer] for layer in order] for recipe, order in orders.items()}
    by_file = planned.by_file()
    blocked = {real[recipe] for recipe in planned.blocked}
    bad = blocked | (by_file.keys() - latest.texts.keys())
    if any(recipe in tree.unknown_parents and tree.files[recipe].given for recipe in planned.blocked):
        bad |= by_file.keys()
    outcome.problems += [*planned.problems, *latest.unwritable, *_held_up(stock, latest, layers)]
    for failure in (*latest.failures, *more):
        paths = [path for path in layers[failure.recipe] if path in latest.texts]
        is_set_aside = tree.files[failure.recipe].set_aside
        if not is_set_aside:
            bad.update(paths)
        if blocked.isdisjoint(layers[failure.recipe]) and paths and not _is_said(outcome, failure):
            outcome.problems.append(_problem(stock, failure, is_set_aside))
    kept, groups = without_bad(layers, set(latest.texts), bad)
    after = (
        latest.after
        if len(kept) == len(latest.texts)
        else stock.runs.on(tree.with_texts({path: latest.texts[path] for path in kept}))
    )
    _keep(outcome, tree, by_file, {path: latest.texts[path] for path in kept}, layers, groups)
    outcome.left = outcome.left or _is_left(stock, planned, kept)
    _say_outside(outcome, stock, layers, kept, after)
    outcome.runs = account(stock, latest, {recipe: set(paths) & kept for recipe, paths in layers.items()}, after)
    outcome.unread += unread(stock, orders)
    outcome.inherits = inheritance(tree, dict.fromkeys(layer for order in orders.values() for layer in order))


def _held_up(stock: Stock, latest: Draft, layers: Mapping[str, list[str]]) -> Iterable[Problem]:
    """Recipes that were not given and cannot be loaded, where files that would be changed stay as they are for them."""
    for recipe in sorted(latest.plan.blocked & stock.broken.keys()):
        if not stock.tree.files[recipe].given and not latest.texts.keys().isdisjoint(layers[recipe]):
            problem = stock.broken[recipe].problem
            yield Problem(problem.place, problem.what, f"{problem.todo}; or leave it out with --exclude")


def _order(tree: Tree, recipe: str) -> tuple[str, ...]:
    """The layers of a recipe, as far as they can be told where it cannot be loaded."""
    if recipe in tree.orders:
        return tree.orders[recipe]
    seen: dict[str, None] = {}
    pending = [recipe]
    while pending:
        here = pending.pop()
        if here not in seen and here in tree.files:
            seen[here] = None
            pending += (*tree.parents.get(here, ()), *tree.suspects.get(here, ()))
    return tuple(reversed(seen))


def _is_of_a_copy(stock: Stock, failure: Failure) -> bool:
    if failure.model is None or failure.axis is None:
        return False
    model = stock.runs.resolved(failure.recipe, stock.runs.run(failure.recipe).worlds[0]).model(failure.model)
    return model is not None and model.kind is Kind.COPY


def _is_said(outcome: Outcome, failure: Failure) -> bool:
    """Whether an old key that a model would still have is named where it stands, with what helps."""
    entry = failure.entry
    if entry is None or not entry.path or entry.path[-1] not in OLD_KEYS:
        return False
    return any(problem.place == entry.place for problem in outcome.problems)


def _problem(stock: Stock, failure: Failure, is_set_aside: bool) -> Problem:
    todo = failure.todo or "nothing that is connected with it was changed; migrate it by hand"
    if is_set_aside:
        todo = "it is left out on purpose and was not looked after; give it its own number by hand"
    elif not stock.tree.files[failure.recipe].given:
        todo = "nothing that is connected with it was changed; give this file too"
    elif not failure.todo and (other := _other_half(stock.tree, failure.recipe)):
        todo = f"nothing that is connected with it was changed; give {other} too"
    elif not failure.todo and _is_of_a_copy(stock, failure):
        todo = (
            "nothing that is connected with it was changed; give --target megatron-cfg for a NeMo-RL that types the "
            "fields, or --runtime-shim where these runs install the shim: both keep this copy's weights whole"
        )
    elif not failure.todo and (alias := _alias_without_sizes(stock, failure)):
        todo = (
            "nothing that is connected with it was changed; its launcher gives it none of default_teacher_cfg's sizes, "
            "as it has an entry of its own: write the sizes that it shall have into "
            f"{dotted(TEACHER_OVERRIDES)}.{alias} and run again"
        )
    return Problem(failure.place, failure.what, todo)


def _alias_without_sizes(stock: Stock, failure: Failure) -> str | None:
    """The alias of a teacher whose sizes depend on who makes it."""
    for world in stock.runs.run(failure.recipe).worlds:
        made = [
            stock.runs.resolved(failure.recipe, replace(world, as_launched=as_launched)).model(failure.model or "")
            for as_launched in (True, False)
        ]
        sizes = {repr([value_of(model.cfg.get(key)) for key in (TP, EP, ETP)]) for model in made if model is not None}
        if len(sizes) > 1 and made[0] is not None:
            return made[0].alias
    return None


def _other_half(tree: Tree, recipe: str) -> str | None:
    """A file with an old key that the recipe inherits from, and that was not given."""
    layers = (tree.files[layer] for layer in reversed(tree.orders[recipe]))
    return next((file.shown for file in layers if file.glance.old and not file.given and not file.set_aside), None)


def _keep(
    outcome: Outcome,
    tree: Tree,
    by_file: Mapping[str, list[Planned]],
    kept: Mapping[str, str],
    layers: Mapping[str, list[str]],
    groups: Groups,
) -> None:
    """Puts down what is to be written, in the order of writing."""
    grouped: dict[str, list[Edited]] = {}
    for path in writing_order(layers.values(), set(kept)):
        recipe = tree.recipe_of[path]
        shown = tree.layers[recipe].source.shown
        before = tree.text(recipe)
        changes = [planned.change for planned in by_file[path]]
        meanwhile = None
        if any(getattr(change, "is_null", False) for change in changes):
            meanwhile = edit(before, changes, keep_nulls=True).encode("utf-8")
        edited = Edited(path, shown, before.encode("utf-8"), kept[path].encode("utf-8"), meanwhile)
        outcome.edited.append(edited)
        grouped.setdefault(groups.find(path), []).append(edited)
    outcome.groups = list(grouped.values())
    outcome.changes = [
        _placed(planned, tree) for path, changes in by_file.items() if path in kept for planned in changes
    ]


def _placed(planned: Planned, tree: Tree) -> Planned:
    """An entry that is added, with the line of the mapping that takes it."""
    change = planned.change
    if not isinstance(change, Add):
        return planned
    line, column = where(tree.text(tree.recipe_of[planned.real]), (*change.path, change.key))
    return replace(planned, place=replace(planned.place, line=line, column=column))


def _is_left(stock: Stock, planned: Plan, kept: set[str]) -> bool:
    """Whether a setting that should be changed stays in a given file."""
    done = {each.setting for each in planned.changes if each.real in kept}
    wanted = {each.setting for each in planned.changes} | planned.left
    tree = stock.tree
    unread = (tree.files[recipe] for recipe in tree.unreadable)
    return bool(wanted - done) or any(file.given and file.glance.old for file in unread)


def _say_outside(outcome: Outcome, stock: Stock, layers: Mapping[str, list[str]], kept: set[str], after: Runs) -> None:
    """Names old keys that given recipes get, or will get, from files that are not ours to change."""
    tree = stock.tree
    ours = {file.found.real for file in tree.files.values() if file.given}
    heirs: dict[tuple[str, int], tuple[Leaf, set[str]]] = {}
    for recipe in stock.recipes:
        if not tree.files[recipe].given:
            continue
        runs = stock.runs if kept.isdisjoint(layers[recipe]) else after
        for model in runs.resolved(recipe, stock.runs.run(recipe).worlds[0]).models:
            for axis in AXES:
                entry = entry_of(side(model.cfg, axis).size)
                if entry is not None and entry.source.real not in ours:
                    heirs.setdefault(entry.key, (entry, set()))[1].add(tree.shown(recipe))
    aside = {file.found.real for file in tree.files.values() if file.set_aside}
    for entry, recipes in heirs.values():
        more = f" and {len(recipes) - 1} more" if len(recipes) > 1 else ""
        whose = f"holds {entry.path[-1]} for {min(recipes)}{more}, and is"
        what, todo = f"{whose} outside the given paths", "give this file too"
        if entry.source.real in aside:
            what, todo = f"{whose} excluded", "give this file too, without excluding it"
        outcome.problems.append(Problem(entry.place, what, todo))


def mention(outcome: Outcome, tree: Tree) -> None:
    """Names old keys in texts, where nobody can tell what becomes of them: a line a file."""
    said = {problem.place for problem in outcome.problems}
    seen: set[str] = set()
    for recipe, layer in tree.layers.items():
        places = [place for place in layer.mentions if place not in said]
        if not places or layer.source.real in seen or not tree.files[recipe].given:
            continue
        seen.add(layer.source.real)
        lines = f", and {len(places) - 1} more" if len(places) > 1 else ""
        what = f"mentions {OLD_KEY_TEXT} in a text or a longer key{lines}"
        todo = "look whether something reads it there, and write the number of shards instead"
        outcome.problems.append(Problem(places[0], what, todo))
        outcome.left = True
