"""The whole way: paths → tree → runs → plan → edited text → proof → settle; then, on demand, the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gtp_migrate.edit import EditError, edit
from gtp_migrate.forms import Style, Target
from gtp_migrate.outcome import Edited, Outcome
from gtp_migrate.plan.needs import KeepHusk, Need, NoInterpolation, OwnNumber
from gtp_migrate.plan.own import own_number
from gtp_migrate.plan.planner import Plan, Planned, plan
from gtp_migrate.plan.stock import Stock, is_pinned, take_stock
from gtp_migrate.plan.changes import Drop, Move
from gtp_migrate.problems import Place, Problem, RecipeError
from gtp_migrate.proof import Failure, Proof, same_elsewhere
from gtp_migrate.recipes.checkout import Surroundings, surroundings
from gtp_migrate.recipes.discover import Found, discover, shorten
from gtp_migrate.recipes.keys import SETTINGS
from gtp_migrate.recipes.layer import Leaf
from gtp_migrate.recipes.survey import Progress, Survey
from gtp_migrate.recipes.tree import Tree, read_tree
from gtp_migrate.runs import nemo_rl
from gtp_migrate.runs.layout import layout
from gtp_migrate.runs.models import Kind
from gtp_migrate.runs.runs import Assumed, Runs
from gtp_migrate.settle import Groups, settle, writing_order
from gtp_migrate.write import WriteError, check_unchanged, check_writable, write


@dataclass(frozen=True)
class Options:
    """What a person asked for."""

    paths: tuple[str, ...]
    #: None: find out.
    target: Target | None = None
    style: Style = Style.AUTO
    assumed: Assumed = field(default_factory=Assumed)
    #: These runs install the runtime shim, which keeps copied models whole.
    runtime_shim: bool = False
    #: Folders that stand for others in absolute paths of `defaults:`.
    maps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Proven:
    """A plan with its edited texts, and what the proof says of them."""

    plan: Plan
    #: By real path.
    texts: Mapping[str, str]
    unwritable: tuple[Problem, ...]
    failures: tuple[Failure, ...]
    after: Runs


def migrate(options: Options, surveyed: Survey, progress: Progress = lambda *_: None) -> Outcome:
    """Works out everything, and proves it. Nothing is written.

    Args:
        options: what a person asked for.
        surveyed: the given files.
        progress: called now and then.

    Raises:
        UndecidedError: nobody can tell which form to write.
    """
    outcome = Outcome(files=surveyed.count, problems=list(surveyed.problems))
    checkouts = surroundings(options.paths)
    tree = read_tree(surveyed, _in(checkouts), options.maps)
    _note(outcome, surveyed, checkouts, tree)
    if not tree.recipes:
        return outcome
    # Also what a recipe inherits from may stand in a NeMo-RL, as in a submodule beside the recipes.
    layers = {layer for recipe in tree.recipes for layer in (recipe, *tree.orders.get(recipe, ()))}
    roots = nemo_rl.around(layers) or nemo_rl.installed()
    outcome.choice = nemo_rl.Choice(options.target, "--target") if options.target else nemo_rl.choose(roots)
    pins_copies = options.runtime_shim or outcome.choice.target is Target.MEGATRON_CFG
    runs = Runs(tree, options.assumed, nemo_rl.launchers(roots))
    progress("planning", 0, len(tree.recipes))
    stock = take_stock(tree, runs, outcome.choice.target, pins_copies=pins_copies)
    progress("proving", 0, len(tree.recipes))
    proven = _plan_until_it_holds(stock, options.style)
    _settle(outcome, stock, proven)
    _mention(outcome, tree)
    outcome.problems = sorted(dict.fromkeys(outcome.problems), key=lambda problem: problem.place)
    return outcome


def _in(checkouts: Surroundings) -> Iterable[Found]:
    return (folder.found(name) for folder in discover(checkouts.roots) for name in folder.names)


def _note(outcome: Outcome, surveyed: Survey, checkouts: Surroundings, tree: Tree) -> None:
    """What was not looked at, as far as somebody may think that it was."""
    for pattern in surveyed.unmatched:
        outcome.notes.append(f"--exclude {pattern} names no file")
    ignored = sum(1 for file in surveyed.ignored if file.id in tree.files and tree.files[file.id].glance.old)
    if ignored:
        files = "1 file that git ignores mentions" if ignored == 1 else f"{ignored:,} files that git ignores mention"
        outcome.notes.append(f"{files} an old key and was left alone (--no-ignore takes such files too)")
    for root, outer in checkouts.outer.items() if tree.recipes else ():
        outcome.notes.append(
            f"{shorten(root)} is a submodule: recipes of {shorten(outer)} around it that inherit from these were not looked at"
        )
    outcome.not_followed = list(surveyed.not_followed)


# -- plan, edit, prove -----------------------------------------------------------------------------------


def _plan_until_it_holds(stock: Stock, style: Style) -> _Proven:
    """Plans with more and more needs, until the proof holds or asks for nothing that could help."""
    needs: frozenset[Need] = frozenset()
    editor = _Editor(stock.tree)
    proof = Proof(stock.runs, stock.target, pins_copies=stock.pins_copies)
    while True:
        proven = _try(stock, plan(stock, needs, style), editor, proof)
        more = frozenset(_needs(stock, proven, needs)) - needs
        if not more:
            return proven
        needs |= more


def _try(stock: Stock, planned: Plan, editor: _Editor, proof: Proof) -> _Proven:
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
    failures = tuple(failure for recipe in stock.recipes for failure in proof.failures(recipe, after))
    return _Proven(planned, texts, tuple(unwritable), failures, after)


class _Editor:
    """Edits files, each set of changes once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._edited: dict[tuple[str, str], str | Problem] = {}
        self._recipes = {layer.source.real: recipe for recipe, layer in tree.layers.items()}

    def edit(self, real: str, changes: tuple[Planned, ...]) -> str | Problem:
        """The new text of a file, or why it cannot be written."""
        known = (real, repr([planned.change for planned in changes]))
        if known not in self._edited:
            self._edited[known] = self._edit(self._recipes[real], real, changes)
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


def _needs(stock: Stock, proven: _Proven, needs: frozenset[Need]) -> Iterable[Need]:
    """What could mend the failures; only of recipes above which none fails."""
    failed = {failure.recipe for failure in proven.failures}
    for failure in proven.failures:
        if failure.is_unknown or not failed.isdisjoint(stock.tree.orders[failure.recipe][:-1]):
            continue
        if failure.is_dangling:
            yield from _husks(stock.tree, failure, proven.plan)
        elif failure.model is not None and failure.axis is not None:
            own = OwnNumber(failure.recipe, failure.model, failure.axis)
            if own not in needs and own_number(stock, own) is not None:
                yield own
                continue
        if failure.entry is not None:
            yield from _without_interpolation(failure.entry, proven.plan)


def _husks(tree: Tree, failure: Failure, planned: Plan) -> Iterable[Need]:
    reals = {tree.files[layer].found.real for layer in tree.orders[failure.recipe]}
    for each in planned.changes:
        if each.real in reals and isinstance(each.change, (Move, Drop)):
            yield KeepHusk(each.real)


def _without_interpolation(entry: Leaf, planned: Plan) -> Iterable[Need]:
    for each in planned.changes:
        if each.real == entry.source.real and each.is_interpolation and each.setting is not None:
            place = each.mapping if isinstance(each.change, Move) else None
            if (entry.path[:-1] == place) if place is not None else entry.path[:-2] == each.mapping:
                yield NoInterpolation(each.setting)


# -- what is done and what is left -------------------------------------------------------------------------


def _settle(outcome: Outcome, stock: Stock, proven: _Proven) -> None:
    """Leaves the files that are connected with a failure as they are, and keeps the rest."""
    tree, planned = stock.tree, proven.plan
    real = {recipe: tree.files[recipe].found.real for recipe in tree.files}
    layers = {recipe: [real[layer] for layer in _order(tree, recipe)] for recipe in tree.recipes}
    by_file = planned.by_file()
    blocked = {real[recipe] for recipe in planned.blocked}
    bad = blocked | (by_file.keys() - proven.texts.keys())
    if any(recipe in tree.unknown_parents and tree.files[recipe].given for recipe in planned.blocked):
        bad |= by_file.keys()
    outcome.problems += [*planned.problems, *proven.unwritable]
    for failure in proven.failures:
        paths = [path for path in layers[failure.recipe] if path in proven.texts]
        is_set_aside = tree.files[failure.recipe].set_aside
        if not is_set_aside:
            bad.update(paths)
        if blocked.isdisjoint(layers[failure.recipe]) and paths:
            outcome.problems.append(_problem(tree, failure, is_set_aside))
    kept, groups = settle(layers, set(proven.texts), bad)
    after = proven.after if len(kept) == len(proven.texts) else stock.runs.on(
        tree.with_texts({path: proven.texts[path] for path in kept})
    )
    _keep(outcome, tree, by_file, {path: proven.texts[path] for path in kept}, layers, groups)
    outcome.left = outcome.left or _is_left(stock, planned, kept)
    _lay_out(outcome, stock, layers, kept, after)


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
            pending += tree.parents.get(here, ())
    return tuple(reversed(seen))


def _problem(tree: Tree, failure: Failure, is_set_aside: bool) -> Problem:
    todo = failure.todo or "nothing that is connected with it was changed; migrate it by hand"
    if is_set_aside:
        todo = "it is left out on purpose and was not looked after; give it its own number by hand"
    elif not tree.files[failure.recipe].given:
        todo = "nothing that is connected with it was changed; give this file too"
    elif failure.model == "generation" and not failure.todo:
        todo = (
            "nothing that is connected with it was changed; give --target megatron-cfg for a NeMo-RL that types the "
            "fields, or --runtime-shim where these runs install the shim: both keep this copy's weights whole"
        )
    return Problem(failure.place, failure.what, todo)


def _keep(
    outcome: Outcome,
    tree: Tree,
    by_file: Mapping[str, list[Planned]],
    kept: Mapping[str, str],
    layers: Mapping[str, list[str]],
    groups: Groups,
) -> None:
    """Puts down what is to be written, in the order of writing."""
    by_real = {tree.files[recipe].found.real: recipe for recipe in tree.layers}
    grouped: dict[str, list[Edited]] = {}
    for path in writing_order(layers.values(), set(kept)):
        recipe = by_real[path]
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
    outcome.changes = [planned for path, changes in by_file.items() if path in kept for planned in changes]
    outcome.proven = {
        tree.shown(recipe): frozenset(paths) & kept.keys()
        for recipe, paths in layers.items()
        if not kept.keys().isdisjoint(paths)
    }


def _is_left(stock: Stock, planned: Plan, kept: set[str]) -> bool:
    """Whether a setting that should be changed stays in a given file."""
    done = {each.setting for each in planned.changes if each.real in kept}
    wanted = {each.setting for each in planned.changes} | planned.left
    tree = stock.tree
    unread = (tree.files[recipe] for recipe in tree.unreadable)
    return bool(wanted - done) or any(file.given and file.glance.old for file in unread)


def _mention(outcome: Outcome, tree: Tree) -> None:
    """Names old keys in texts, where nobody can tell what becomes of them: a line a file."""
    seen: set[str] = set()
    for recipe, layer in tree.layers.items():
        if not layer.mentions or layer.source.real in seen or not tree.files[recipe].given:
            continue
        seen.add(layer.source.real)
        more = len(layer.mentions) - 1
        lines = f", and {more} more" if more else ""
        what = f"mentions {min(SETTINGS - _NEW, key=len)} in a text or a longer key{lines}"
        todo = "look whether something reads it there, and write the number of shards instead"
        outcome.problems.append(Problem(layer.mentions[0], what, todo))
        outcome.left = True


_NEW = frozenset(key for key in SETTINGS if "num_weight_shards" in key)


def _lay_out(
    outcome: Outcome, stock: Stock, layers: Mapping[str, list[str]], kept: set[str], after: Runs
) -> None:
    for recipe in stock.recipes:
        if not stock.tree.files[recipe].given:
            continue
        is_done = not kept.isdisjoint(layers[recipe])
        runs = after if is_done else stock.runs
        run = stock.runs.run(recipe)
        if len({world.supplied for world in run.worlds}) > 1:
            continue
        resolved = runs.resolved(recipe, run.worlds[0])
        found = []
        for model in resolved.models:
            pinned = is_pinned(model, stock.pins_copies)
            each = layout(resolved.tree, model, stock.target, before=not is_done, is_pinned=pinned)
            if each is not None:
                found.append((model, each))
        if any(each.has_gtp for _, each in found):
            shown = stock.tree.shown(recipe)
            outcome.layouts += [(shown, each) for model, each in found if each.has_gtp or model.kind is not Kind.MAPPING]


# -- writing -----------------------------------------------------------------------------------------------


def write_all(outcome: Outcome, progress: Progress = lambda *_: None) -> None:
    """Writes the edited files. What is not written is taken out of the outcome, and said.

    A group of files that inherit from each other is checked as a whole before the first of it is written.
    """
    written: list[Edited] = []
    try:
        for group in outcome.groups:
            try:
                for edited in group:
                    check_writable(edited.path, edited.shown)
                    check_unchanged(edited.path, edited.shown, edited.before)
                _write_group(group, written, lambda: progress("writing", len(written), len(outcome.edited)))
            except WriteError as error:
                outcome.problems.append(error.problem)
                outcome.left = True
    finally:
        _only_written(outcome, {edited.path for edited in written})


def _write_group(group: list[Edited], written: list[Edited], progress: object) -> None:
    last: list[Edited] = []
    for edited in group:
        assert callable(progress)
        progress()
        meanwhile = edited.meanwhile if len(group) > 1 else None
        write(edited.path, edited.shown, edited.before, meanwhile or edited.after)
        if meanwhile:
            last.append(edited)
        else:
            written.append(edited)
    for edited in last:
        assert edited.meanwhile is not None
        write(edited.path, edited.shown, edited.meanwhile, edited.after)
        written.append(edited)


def _only_written(outcome: Outcome, paths: set[str]) -> None:
    """Only what was written counts as done, and as proven."""
    outcome.edited = [edited for edited in outcome.edited if edited.path in paths]
    outcome.changes = [planned for planned in outcome.changes if planned.real in paths]
    outcome.proven = {recipe: files for recipe, files in outcome.proven.items() if files <= paths}
