"""The whole way: paths → tree → plan → edited text → proof; then, on demand, the files."""

from __future__ import annotations

import contextlib
import graphlib
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from gtp_migrate.edit import EditError, edit
from gtp_migrate.forms import Style, Target
from gtp_migrate.layout import Layout, layouts
from gtp_migrate.nemo_rl import Choice, choose
from gtp_migrate.plan.changes import Change, Plan
from gtp_migrate.plan.planner import Planner
from gtp_migrate.plan.settings import has_setting, out_of_place
from gtp_migrate.problems import Problem, RecipeError
from gtp_migrate.recipes.checkout import surroundings
from gtp_migrate.recipes.discover import Found, discover
from gtp_migrate.recipes.layer import read_layer
from gtp_migrate.recipes.resolve import Assumed, Resolver
from gtp_migrate.recipes.survey import Progress, Survey
from gtp_migrate.recipes.tree import Tree
from gtp_migrate.verify import Failure, same_elsewhere, verify
from gtp_migrate.write import WriteError, check_unchanged, check_writable, write


@dataclass(frozen=True)
class Options:
    """What a person asked for."""

    paths: tuple[str, ...]
    #: None: find out.
    target: Target | None = None
    style: Style = Style.AUTO
    assumed: Assumed = field(default_factory=Assumed)


@dataclass(frozen=True)
class Edited:
    """One file, before and after."""

    #: The file behind all links, and its name.
    path: str
    shown: str
    before: bytes
    after: bytes
    #: What to have on the disk until all other files are written; None where that is `after`.
    meanwhile: bytes | None = None


@dataclass
class Outcome:
    """All that there is to say about a run."""

    files: int = 0
    choice: Choice | None = None
    #: What is changed, in the order of writing, and the changes in it.
    edited: list[Edited] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    #: What needs a person.
    problems: list[Problem] = field(default_factory=list)
    #: Whether settings are left that a person has to migrate.
    left: bool = False
    #: The layouts of the recipes with GTP on, by the recipe's name.
    layouts: list[tuple[str, Layout]] = field(default_factory=list)
    #: Recipes whose topology was compared.
    proven: int = 0
    #: Groups of files that inherit from each other and were not written as a whole.
    groups: list[list[Edited]] = field(default_factory=list)


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
    tree = Tree.of(surveyed)
    tree.read_parents_outside()
    if not any(file.glance.old or file.glance.new for file in tree.files.values()):
        return outcome
    outcome.choice = (
        Choice(options.target, "--target")
        if options.target
        else choose(file.found.id for file in tree.files.values() if file.given and file.data)
    )
    return _Migration(options, tree, outcome, outcome.choice.target, progress).run(surveyed.set_aside)


class _Migration:
    def __init__(self, options: Options, tree: Tree, outcome: Outcome, target: Target, progress: Progress) -> None:
        self.options = options
        self.tree = tree
        self.outcome = outcome
        self.target = target
        self.progress = progress
        self.blocked: set[str] = set()
        self.edited: dict[tuple[str, tuple[Change, ...]], bytes] = {}

    def run(self, set_aside: list[Found]) -> Outcome:
        seeds = self._seeds()
        if not seeds:
            self.outcome.left = self.outcome.left or bool(self.blocked)
            return self.outcome
        self._take_in_surroundings(set_aside)
        recipes = self._recipes(seeds, {found.id for found in set_aside})
        before = self._resolver(self.tree, recipes)
        planner = Planner(self.tree, before, self.target, self.options.style)
        planner.plan.blocked |= self.blocked
        plan = planner.draft(recipes)
        self.progress("proving", 0, len(recipes))
        texts, failures, after = self._edit_and_prove(planner, before)
        self._settle(plan, texts, failures, before, after)
        return self.outcome

    def _seeds(self) -> set[str]:
        """The files that hold a setting which this target has something to say about."""
        seeds = set()
        for identity, file in list(self.tree.files.items()):
            if not (file.glance.old or file.glance.new):
                continue
            try:
                layer = everything = self.tree.layer(identity)
                if file.glance.old:
                    everything = read_layer(self.tree.text(identity), file.shown, everything=True)
                    if file.given:
                        self.outcome.problems += out_of_place(everything, file)
                        self.outcome.left = bool(self.outcome.problems)
                if has_setting(layer, everything, self.target):
                    seeds.add(identity)
            except RecipeError as error:
                if file.glance.old and file.given:
                    self.outcome.problems.append(error.problem)
                    self.blocked.add(identity)
        return seeds

    def _take_in_surroundings(self, set_aside: list[Found]) -> None:
        """Reads the recipes that may inherit from the given ones without being given: never written, but proven."""
        around = (
            folder.found(name) for folder in discover(surroundings(self.options.paths).roots) for name in folder.names
        )
        for found in itertools.chain(set_aside, around):
            if found.id not in self.tree.files:
                with contextlib.suppress(OSError):
                    self.tree.add(found)
        self.tree.read_parents_outside()

    def _recipes(self, seeds: set[str], set_aside: set[str]) -> set[str]:
        """All recipes that a file with a setting is a layer of, as far as it can be told."""
        # A file that is reached by several names is a recipe by each.
        texts = {self._real(identity) for identity in seeds}
        heirs = self.tree.heirs(identity for identity in self.tree.files if self._real(identity) in texts)
        for identity in sorted(self.tree.unknown_parents - set_aside):
            if not self.tree.file(identity).given:
                self._say_unknown_parents(identity)
        return heirs | self.blocked | {each for each in self.tree.unknown_parents if self.tree.file(each).given}

    def _say_unknown_parents(self, identity: str) -> None:
        try:
            self.tree.layer(identity)
        except RecipeError as error:
            self.outcome.problems.append(error.problem)

    def _resolver(self, tree: Tree, recipes: Iterable[str]) -> Resolver:
        files = set(recipes)
        for identity in recipes:
            with contextlib.suppress(RecipeError):
                files.update(tree.order(identity))
        return Resolver(tree, self.options.assumed, tree.widen(files))

    # -- edit and prove --------------------------------------------------------------------------------

    def _edit_and_prove(self, planner: Planner, before: Resolver) -> tuple[dict[str, bytes], list[Failure], Resolver]:
        """Edits, proves, and adds to the recipes that the proof finds to need a number of their own."""
        plan = planner.plan
        while True:
            texts = self._texts(plan)
            after = before.on(self._tree_with(texts))
            failures = list(verify(plan.recipes, before, after, self.target))
            if not self._add_where_needed(planner, failures):
                return texts, failures, after

    def _add_where_needed(self, planner: Planner, failures: list[Failure]) -> bool:
        failed = {failure.recipe for failure in failures}
        added = False
        for failure in failures:
            if failure.holder is None or failure.axis is None:
                continue
            above = set(self.tree.order(failure.recipe)[:-1])
            if not above & failed and planner.add(failure.recipe, failure.holder, failure.axis):
                added = True
        return added

    def _texts(self, plan: Plan) -> dict[str, bytes]:
        """The new content of each file, by its real path; a file that cannot be edited blocks itself."""
        texts: dict[str, bytes] = {}
        for path, changes in self._by_file(plan.changes).items():
            if changes[0].file in plan.blocked:
                continue
            key = (path, tuple(changes))
            if key not in self.edited:
                try:
                    self.edited[key] = self._edit(changes)
                except EditError as error:
                    plan.problems.append(error.problem)
                    plan.blocked.add(changes[0].file)
                    continue
            texts[path] = self.edited[key]
        return texts

    def _edit(self, changes: list[Change]) -> bytes:
        """The new content of one file. Raises `EditError`."""
        before = self.tree.text(changes[0].file)
        after = edit(before, changes, self.target)
        try:
            same = same_elsewhere(before, after)
        except RecipeError:
            same = False
        if not same:
            raise EditError(
                Problem(
                    changes[0].place,
                    "cannot be rewritten without changing something else in the file",
                    "migrate this file by hand",
                )
            )
        return after.encode("utf-8")

    def _by_file(self, changes: Iterable[Change]) -> dict[str, list[Change]]:
        by_file: dict[str, list[Change]] = {}
        for change in changes:
            by_file.setdefault(self._real(change.file), []).append(change)
        return by_file

    def _real(self, identity: str) -> str:
        return self.tree.file(identity).found.real

    def _tree_with(self, texts: dict[str, bytes]) -> Tree:
        return self.tree.with_edits(
            {identity: texts[file.found.real] for identity, file in self.tree.files.items() if file.found.real in texts}
        )

    # -- what is done and what is left -----------------------------------------------------------------

    def _settle(
        self, plan: Plan, texts: dict[str, bytes], failures: list[Failure], before: Resolver, after: Resolver
    ) -> None:
        """Leaves the files that are connected with a failure as they are, and keeps the rest."""
        outcome = self.outcome
        groups = _Groups()
        blocked = {self._real(identity) for identity in plan.blocked}
        bad = blocked | {path for path in self._by_file(plan.changes) if path not in texts}
        if plan.blocked & self.tree.unknown_parents:
            bad |= texts.keys()
        layers = {recipe: self._layers(recipe) for recipe in plan.recipes}
        for paths in layers.values():
            groups.join([path for path in paths if path in texts or path in bad])
        for failure in failures:
            paths = layers[failure.recipe]
            bad.update(path for path in paths if path in texts)
            if blocked.isdisjoint(paths):
                plan.report(failure.problem)
        bad_groups = {groups.find(path) for path in bad}
        kept = {path: text for path, text in texts.items() if groups.find(path) not in bad_groups}
        if len(kept) < len(texts):
            after = before.on(self._tree_with(kept))
            touched = [recipe for recipe, paths in layers.items() if not kept.keys().isdisjoint(paths)]
            still = list(verify(touched, before, after, self.target))
            if still:  # pragma: no cover - groups do not share a recipe
                plan.problems.extend(failure.problem for failure in still)
                kept = {}
                after = before
        by_file = self._by_file(plan.changes)
        outcome.problems.extend(problem for problem in plan.problems if problem not in outcome.problems)
        outcome.problems.sort(key=lambda problem: problem.place)
        outcome.left = outcome.left or len(kept) < len(by_file) or bool(bad)
        outcome.proven = sum(not kept.keys().isdisjoint(paths) for paths in layers.values())
        grouped: dict[str, list[Edited]] = {}
        for path in self._writing_order(layers.values(), kept):
            changes = by_file[path]
            edited = self._edited(path, changes, kept[path])
            outcome.edited.append(edited)
            grouped.setdefault(groups.find(path), []).append(edited)
        outcome.groups = list(grouped.values())
        outcome.changes = [change for change in plan.changes if self._real(change.file) in kept]
        self._lay_out(layers, kept, before, after)

    def _edited(self, path: str, changes: list[Change], text: bytes) -> Edited:
        identity = changes[0].file
        before = self.tree.text(identity)
        meanwhile = None
        if any(change.is_null for change in changes):
            meanwhile = edit(before, changes, self.target, keep_nulls=True).encode("utf-8")
        return Edited(path, self.tree.file(identity).shown, before.encode("utf-8"), text, meanwhile)

    def _order(self, recipe: str) -> tuple[str, ...]:
        """The layers of a recipe, as far as they can be told where it cannot be read."""
        try:
            return self.tree.order(recipe)
        except RecipeError:
            seen: dict[str, None] = {}
            pending = [recipe]
            while pending:
                identity = pending.pop()
                if identity not in seen and identity in self.tree.files:
                    seen[identity] = None
                    pending.extend(self.tree.likely_parents(identity))
            return tuple(reversed(seen))

    def _layers(self, recipe: str) -> list[str]:
        return [self._real(identity) for identity in self._order(recipe)]

    @staticmethod
    def _writing_order(recipes: Iterable[list[str]], kept: dict[str, bytes]) -> list[str]:
        """Later layers before earlier ones.

        A count in a later layer wins over an old size below it, so that a tree that is half written still
        means the same; the other way round it would not.
        """
        later: dict[str, set[str]] = {path: set() for path in sorted(kept)}
        for paths in recipes:
            layers = [path for path in dict.fromkeys(reversed(paths)) if path in kept]
            for one, other in itertools.pairwise(layers):
                later[other].add(one)
        try:
            return list(graphlib.TopologicalSorter(later).static_order())
        except graphlib.CycleError:
            return _order_with_circles(later)

    def _lay_out(self, layers: dict[str, list[str]], kept: dict[str, bytes], before: Resolver, after: Resolver) -> None:
        for recipe, paths in layers.items():
            if not self.tree.file(recipe).given:
                continue
            is_done = not kept.keys().isdisjoint(paths)
            resolver = after if is_done else before
            with contextlib.suppress(RecipeError):
                for layout in layouts(resolver.resolve(recipe), self.target, before=not is_done):
                    self.outcome.layouts.append((self.tree.file(recipe).shown, layout))


def _order_with_circles(first: dict[str, set[str]]) -> list[str]:
    """Each after those it waits for; where some wait for each other, one of them goes first.

    That is so where one recipe inherits from two files in one order, and another in the other: none is right
    for both. A run that is killed between the two leaves a tree of which the next run says so.
    """

    def awaited(path: str) -> set[str]:
        found: set[str] = set()
        pending = [path]
        while pending:
            for other in first[pending.pop()]:
                if other not in found and other not in done:
                    found.add(other)
                    pending.append(other)
        return found

    done: dict[str, None] = {}
    while len(done) < len(first):
        waiting = [path for path in first if path not in done]
        ready = [path for path in waiting if first[path] <= done.keys()]
        if not ready:
            ready = [next(path for path in waiting if all(path in awaited(other) for other in awaited(path)))]
        done.update(dict.fromkeys(ready))
    return list(done)


class _Groups:
    """Files that are layers of one recipe, directly or through others: changed together or not at all."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def find(self, path: str) -> str:
        root = path
        while (above := self._above.get(root, root)) != root:
            root = above
        while path != root:
            self._above[path], path = root, self._above.get(path, path)
        return root

    def join(self, paths: list[str]) -> None:
        for path in paths[1:]:
            self._above[self.find(path)] = self.find(paths[0])


def write_all(outcome: Outcome, progress: Progress = lambda *_: None) -> None:
    """Writes the edited files. What is not written is taken out of the outcome, and said.

    A group of files that inherit from each other is checked as a whole before the first of it is written.
    """
    written: list[Edited] = []
    for group in outcome.groups:
        try:
            for edited in group:
                check_writable(edited.path, edited.shown)
                check_unchanged(edited.path, edited.shown, edited.before)
        except WriteError as error:
            outcome.problems.append(error.problem)
            outcome.left = True
            continue
        last: list[Edited] = []
        try:
            for edited in group:
                progress("writing", len(written), len(outcome.edited))
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
        except WriteError as error:
            outcome.problems.append(error.problem)
            outcome.left = True
    paths = {edited.path for edited in written}
    outcome.edited = [edited for edited in outcome.edited if edited.path in paths]
    outcome.changes = [change for change in outcome.changes if os.path.realpath(change.file) in paths]
