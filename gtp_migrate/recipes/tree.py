"""The recipes that a run of the rewriter is about: read once, then frozen.

Source: `load_config_with_inheritance` in NeMo-RL (`nemo_rl/utils/config.py`).
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gtp_migrate.problems import Place, Problem, RecipeError
from gtp_migrate.recipes.discover import Found, found, recipe_id
from gtp_migrate.recipes.glance import Glance, glance
from gtp_migrate.recipes.layer import Layer, decode, read_layer
from gtp_migrate.recipes.merge import Merged, MergeError, merge_with_override
from gtp_migrate.recipes.reader import UnknownParentsError
from gtp_migrate.recipes.survey import Survey, read_bytes
from gtp_migrate.recipes.values import Landmarks, Source, graft, landmarks

#: NeMo-RL follows `defaults:` by calling itself, which Python ends here.
_LONGEST_CHAIN = 900
#: Layers of one recipe: more come only of diamonds on diamonds.
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class RecipeFile:
    """One file."""

    found: Found
    glance: Glance
    #: Whether the file is ours to change: given, and neither excluded nor ignored.
    given: bool
    #: Whether somebody has left it out on purpose: it blocks nobody.
    set_aside: bool
    data: bytes

    @property
    def shown(self) -> str:
        """Its name for people."""
        return self.found.shown


@dataclass(frozen=True)
class Tree:
    """All recipes that matter, with their layers; frozen, but for what has been merged already."""

    files: Mapping[str, RecipeFile]
    layers: Mapping[str, Layer]
    #: Why a file cannot be read or parsed.
    unreadable: Mapping[str, Problem]
    #: The layers of each recipe, earliest first, itself last. A file that is reached twice stands there twice:
    #: NeMo-RL merges it again.
    orders: Mapping[str, tuple[str, ...]]
    #: Why a recipe cannot be loaded: it, or a file that it inherits from, cannot be read.
    broken: Mapping[str, Problem]
    #: Recipes of which it cannot be told what they inherit.
    unknown_parents: frozenset[str]
    parents: Mapping[str, tuple[str, ...]]
    #: What a recipe that cannot be loaded may be made of, as far as can be told: its own files, where it can.
    suspects: Mapping[str, tuple[str, ...]]
    #: The recipes that have a layer with a setting, by name.
    recipes: tuple[str, ...]
    #: What has been read and merged, in this and in other states of the tree; and which layers are others than on the
    #: disk.
    _layers_of: dict[tuple[str, str], Layer] = field(default_factory=dict)
    _merged: dict[Any, Merged | RecipeError] = field(default_factory=dict)
    _edited: frozenset[str] = frozenset()
    _states: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def recipe_of(self) -> Mapping[str, str]:
        """A recipe that each file is by itself, by its real path: where it has several names, any of them."""
        return {layer.source.real: recipe for recipe, layer in self.layers.items()}

    def shown(self, recipe: str) -> str:
        """The recipe's name for people."""
        return self.files[recipe].shown

    def text(self, recipe: str) -> str:
        """The text of a file that could be read."""
        return self.files[recipe].data.decode("utf-8")

    def is_ambiguous(self, recipe: str) -> bool:
        """Whether two versions of PyYAML read a layer of the recipe in two ways."""
        return any(self.layers[layer].other_reading is not None for layer in self.orders[recipe])

    def state(self, recipe: str) -> tuple[int, ...]:
        """What tells a recipe in this state of the tree from the same one in another: the layers that are edited."""
        if not self._edited:
            return ()
        if recipe not in self._states:
            edited = (layer for layer in self.orders[recipe] if layer in self._edited)
            self._states[recipe] = tuple(id(self.layers[layer]) for layer in edited)
        return self._states[recipe]

    def merged(self, recipe: str, other_reading: bool = False) -> Merged:
        """The recipe with all that it inherits, interpolations as they are.

        Raises:
            RecipeError: its layers cannot be merged.
        """
        known = (recipe, other_reading, self.state(recipe))
        pending = [recipe]
        while known not in self._merged:
            above = [
                parent
                for parent in self.parents[pending[-1]]
                if (parent, other_reading, self.state(parent)) not in self._merged
            ]
            if above:
                pending += above
            else:
                self._merge(pending.pop(), other_reading)
        merged = self._merged[known]
        if isinstance(merged, RecipeError):
            raise merged
        return merged

    def _merge(self, recipe: str, other_reading: bool) -> None:
        known = (recipe, other_reading, self.state(recipe))
        if known in self._merged:
            return
        layer = self.layers[recipe]
        own = Merged(layer.data, layer.landmarks)
        if other_reading and layer.other_reading is not None:
            own = Merged(layer.other_reading, layer.other_landmarks)
        if layer.defaults_place is None:
            self._merged[known] = own
            return
        base = Merged({}, Landmarks())
        try:
            for parent in self.parents[recipe]:
                above = self._merged[parent, other_reading, self.state(parent)]
                if isinstance(above, RecipeError):
                    raise above
                base = merge_with_override(base, above)
            self._merged[known] = merge_with_override(base, own)
        except (MergeError, OverflowError) as error:
            what = f"cannot be merged as NeMo-RL merges it ({error})"
            problem = Problem(Place(self.shown(recipe)), what, "correct it and run again")
            self._merged[known] = RecipeError(problem)
        except RecipeError as error:
            self._merged[known] = error

    def read_text(self, real: str, text: str) -> Layer:
        """What a file would add to a recipe with another text, read once.

        Raises:
            RecipeError: the text is not a recipe.
        """
        if (real, text) not in self._layers_of:
            before = self.layers[self.recipe_of[real]]
            layer = read_layer(text, before.source)
            other = layer.other_reading
            if other is not None and before.other_reading is not None:
                other = graft(before.other_reading, other)
            data = graft(before.data, layer.data)
            # What is shared must be found as what it is there.
            found = landmarks(data)
            other_found = landmarks(other) if other is not None else layer.other_landmarks
            self._layers_of[real, text] = replace(
                layer, data=data, other_reading=other, landmarks=found, other_landmarks=other_found
            )
        return self._layers_of[real, text]

    def with_texts(self, texts: Mapping[str, str]) -> Tree:
        """The same tree with other texts in some files, by real path. Nothing is written.

        Raises:
            RecipeError: a text is not a recipe.
        """
        layers = {
            recipe: self.read_text(layer.source.real, texts[layer.source.real])
            for recipe, layer in self.layers.items()
            if layer.source.real in texts
        }
        return replace(self, layers={**self.layers, **layers}, _edited=frozenset(layers), _states={})


def read_tree(
    surveyed: Survey,
    around: Iterable[Found],
    maps: Mapping[str, str] | None = None,
    always: Iterable[str] = (),
) -> Tree:
    """Reads all recipes that have a layer with a setting, and all their layers.

    Args:
        surveyed: the given files.
        around: files that were not given, but may inherit from those: read and proven, never written.
        maps: folders that stand for others in absolute paths of `defaults:`, as in a container.
        always: given recipes to read whatever they have, by id.
    """
    return _Reader(maps or {}).read(surveyed, around, frozenset(always))


class _Reader:
    def __init__(self, maps: Mapping[str, str]) -> None:
        self.maps = maps
        self.files: dict[str, RecipeFile] = {}
        self.layers: dict[str, Layer] = {}
        self.unreadable: dict[str, Problem] = {}
        self.unknown_parents: set[str] = set()
        self.by_real: dict[str, Layer | RecipeError] = {}
        self.parents: dict[str, tuple[str, ...]] = {}
        self.suspects: dict[str, tuple[str, ...]] = {}
        #: Parents that are named by an absolute path.
        self.absolute: set[str] = set()
        self.orders: dict[str, tuple[str, ...]] = {}
        self.broken: dict[str, Problem] = {}
        self.depths: dict[str, int] = {}

    def read(self, surveyed: Survey, around: Iterable[Found], always: frozenset[str]) -> Tree:
        for file, seen in surveyed.files():
            self.files[file.id] = RecipeFile(file, seen, True, False, surveyed.data.get(file.id, b""))
        ignored = {file.id for file in surveyed.ignored}
        for file in surveyed.set_aside:
            # What git ignores was not left out by a person: a recipe there must not change unseen.
            self._take_in(file, set_aside=file.id not in ignored)
        self._follow_parents(list(self.files))
        if any(file.glance.old or file.glance.new for file in self.files.values()):
            self._follow_parents([file.id for file in around if self._take_in(file)])
        recipes = self._concerned() | (always & self.files.keys())
        for recipe in recipes:
            self._order(recipe)
        return Tree(
            self.files,
            self.layers,
            self.unreadable,
            self.orders,
            self.broken,
            frozenset(self.unknown_parents),
            self.parents,
            self.suspects,
            tuple(sorted(recipes, key=lambda recipe: self.files[recipe].shown)),
        )

    def _take_in(self, file: Found, set_aside: bool = False) -> bool:
        """Reads a file that is not ours to change, if it is not known yet. False where it cannot be read."""
        if file.id in self.files:
            return False
        try:
            if not stat.S_ISREG(os.stat(file.id).st_mode):
                return False
            data = read_bytes(file.id)
        except OSError:
            return False
        seen = glance(data)
        self.files[file.id] = RecipeFile(file, seen, False, set_aside, data if seen.old or seen.new else b"")
        return True

    def _follow_parents(self, pending: list[str]) -> None:
        """Takes in all parents at any distance that are not known yet and can be read."""
        while pending:
            for parent in self._likely_parents(pending.pop()):
                if parent not in self.files and self._take_in(found(parent)):
                    pending.append(parent)

    def _likely_parents(self, recipe: str) -> tuple[str, ...]:
        """The recipes a file inherits from, by a glance where that is enough; none where it cannot be told."""
        defaults = self.files[recipe].glance.defaults
        if defaults is None:
            try:
                defaults = self._layer(recipe).defaults
            except UnknownParentsError:
                self.unknown_parents.add(recipe)
                defaults = ()
            except RecipeError:
                defaults = ()
        return self._ids(recipe, defaults)

    def _ids(self, recipe: str, defaults: Iterable[str]) -> tuple[str, ...]:
        folder = os.path.dirname(recipe)
        ids = []
        for path in defaults:
            plain = os.path.normpath(path) if self.maps else path
            for start, end in self.maps.items():
                if plain == start or plain.startswith(os.path.join(start, "")):
                    path = os.path.join(end, plain[len(os.path.join(start, "")) :])
                    break
            ids.append(recipe_id(os.path.join(folder, path)))
            if os.path.isabs(path):
                self.absolute.add(ids[-1])
        return tuple(ids)

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for recipe in self.files:
            names.setdefault(os.path.basename(recipe), []).append(recipe)
        return names

    def _may_be(self, parent: str) -> list[str]:
        """The files that a parent may be where the recipe runs: itself, else those whose paths end like its absolute
        one, which is another machine's or a container's, for longest."""
        if parent in self.files:
            return [parent]
        if parent not in self.absolute:
            return []
        ends = {recipe: _common_end(recipe, parent) for recipe in self._by_name.get(os.path.basename(parent), ())}
        return [recipe for recipe, length in ends.items() if length == max(ends.values())]

    def _concerned(self) -> set[str]:
        """Files that mention a setting, and all that inherit from one, at any distance."""
        children: dict[str, list[str]] = {}
        for recipe in list(self.files):
            for parent in self._likely_parents(recipe):
                for file in self._may_be(parent):
                    children.setdefault(file, []).append(recipe)
        # A file that is reached by several names is a recipe by each.
        texts = {file.found.real for file in self.files.values() if file.glance.old or file.glance.new}
        reached = {recipe for recipe, file in self.files.items() if file.found.real in texts}
        pending = list(reached)
        while pending:
            for child in children.get(pending.pop(), ()):
                if child not in reached:
                    reached.add(child)
                    pending.append(child)
        # Those of which it cannot be told what they inherit may inherit from any of these.
        return reached | self.unknown_parents if reached else reached

    # -- layers ----------------------------------------------------------------------------------------

    def _layer(self, recipe: str) -> Layer:
        """What a file adds to a recipe, parsed once whatever names it has.

        Raises:
            RecipeError: it cannot be read or parsed.
        """
        file = self.files[recipe]
        real = file.found.real
        known = self.by_real.get(real)
        if known is None:
            try:
                data = file.data or self._read_again(file)
                known = read_layer(decode(data, file.shown), Source(real, self._best_name(real, file)))
                self.files[recipe] = replace(file, data=data)
            except RecipeError as error:
                known = error
            self.by_real[real] = known
        if isinstance(known, RecipeError):
            raise known
        if not self.files[recipe].data:
            self.files[recipe] = replace(file, data=self._same_text(real))
        return known

    def _best_name(self, real: str, file: RecipeFile) -> str:
        if file.given:
            return file.shown
        return next((each.shown for each in self.files.values() if each.given and each.found.real == real), file.shown)

    def _same_text(self, real: str) -> bytes:
        return next(each.data for each in self.files.values() if each.found.real == real and each.data)

    def _read_again(self, file: RecipeFile) -> bytes:
        try:
            return read_bytes(file.found.id)
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise RecipeError(Problem(Place(file.shown), what, "make it readable and run again")) from None

    # -- orders ----------------------------------------------------------------------------------------

    def _order(self, recipe: str) -> None:
        """Works out the layers of a recipe, or why it cannot be loaded, with those of all that it inherits from.

        A stack of its own follows chains that are longer than Python's.
        """
        stack: list[tuple[str, int]] = [(recipe, 0)]
        below: dict[str, None] = {recipe: None}
        while stack:
            here, index = stack.pop()
            if here in self.orders or here in self.broken:
                below.pop(here, None)
                continue
            if not index and not self._read_parents(here):
                below.pop(here, None)
                continue
            parents = self.parents[here]
            if index < len(parents):
                stack.append((here, index + 1))
                parent = parents[index]
                if parent in below:
                    self._circle(list(below), parent)
                elif parent not in self.orders and parent not in self.broken:
                    below[parent] = None
                    stack.append((parent, 0))
                continue
            below.pop(here, None)
            self._close(here)

    def _read_parents(self, recipe: str) -> bool:
        try:
            layer = self._layer(recipe)
        except RecipeError as error:
            self.unreadable[recipe] = self.broken[recipe] = error.problem
            self.suspects[recipe] = self._likely_parents(recipe)
            if isinstance(error, UnknownParentsError):
                self.unknown_parents.add(recipe)
            return False
        self.layers[recipe] = layer
        self.parents[recipe] = self._ids(recipe, layer.defaults)
        for parent, written in zip(self.parents[recipe], layer.defaults, strict=True):
            if parent not in self.files and not self._take_in(found(parent)):
                self.broken[recipe] = self._missing_parent(layer, written, parent)
                self.suspects[recipe] = tuple(file for each in self.parents[recipe] for file in self._may_be(each))
                return False
        return True

    @staticmethod
    def _missing_parent(layer: Layer, written: str, parent: str) -> Problem:
        try:
            is_file = stat.S_ISREG(os.stat(parent).st_mode)
            with open(parent, "rb"):
                why = "" if is_file else os.strerror(errno.EINVAL)
        except OSError as error:
            why = error.strerror or str(error)
        todo = "correct `defaults:` or bring the file back, and run again"
        if os.path.isabs(written):
            todo = "correct `defaults:`, or give --map FROM=TO where that is a container's path, and run again"
        assert layer.defaults_place is not None
        return Problem(
            layer.defaults_place, f"inherits from {written}, which cannot be read ({why or 'not a file'})", todo
        )

    def _circle(self, below: list[str], parent: str) -> None:
        circle = below[below.index(parent) :]
        # Named by the same file whoever runs into it: one circle is one problem.
        first = min(circle)
        at = circle.index(first)
        names = [self.files[step].shown for step in (*circle[at:], *circle[:at], first)]
        place = self.layers[first].defaults_place
        assert place is not None
        problem = Problem(place, "inherits from itself: " + " → ".join(names), "break the circle and run again")
        for step in circle:
            self.broken[step] = problem

    def _close(self, recipe: str) -> None:
        """All parents are worked out: the recipe's own order."""
        order: list[str] = []
        depth = 1
        for parent in self.parents[recipe]:
            if parent in self.broken:
                self.broken[recipe] = self.broken[parent]
                return
            order += self.orders[parent]
            depth = max(depth, self.depths[parent] + 1)
            if len(order) > _MOST_LAYERS:
                break
        if depth > _LONGEST_CHAIN or len(order) > _MOST_LAYERS:
            what = f"inherits from more files, one through the other, than NeMo-RL can follow ({depth} deep)"
            if depth <= _LONGEST_CHAIN:
                what = (
                    f"has more than {_MOST_LAYERS:,} layers, as its parents inherit from the same files again and again"
                )
            self.broken[recipe] = Problem(Place(self.files[recipe].shown), what, "shorten `defaults:`")
            return
        self.depths[recipe] = depth
        self.orders[recipe] = (*order, recipe)


def _common_end(one: str, other: str) -> int:
    """How many parts two paths have in common at their ends."""
    parts = zip(reversed(one.split(os.sep)), reversed(other.split(os.sep)), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], parts))
