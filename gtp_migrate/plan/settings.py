"""Which settings there are, and in which recipes each of them counts."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from gtp_migrate.forms import Target
from gtp_migrate.problems import Place, Problem
from gtp_migrate.recipes.keys import (
    MEGATRON_CFG,
    MODEL_OVERRIDES,
    NEW_KEYS,
    OLD_KEYS,
    OVERRIDE_MARKER,
    KeyPath,
    dotted,
)
from gtp_migrate.recipes.layer import Entry, Layer, mentions_old_key, references
from gtp_migrate.recipes.resolve import ABSENT, Holder, Resolver, Settings, of_axis
from gtp_migrate.recipes.tree import RecipeFile, Tree
from gtp_migrate.shards import AXES, DENSE, Axis, shards_from_size
from gtp_migrate.topology import TopologyError, effective_ep, old_size, parallel_size, shard_count


class Form(Enum):
    """Which of the three ways an entry is written in (:mod:`gtp_migrate.forms`)."""

    SIZE = "A"
    OVERRIDE = "B"
    TYPED = "C"


def form_of(path: KeyPath) -> Form | None:
    """The form of an entry that stands at `path` of a recipe; None where it is no setting."""
    if len(path) >= 3 and path[-3:-1] == (MEGATRON_CFG, MODEL_OVERRIDES):
        if path[-1] in OLD_KEYS:
            return Form.SIZE
        if path[-1] in NEW_KEYS:
            return Form.OVERRIDE
    if len(path) >= 2 and path[-2] == MEGATRON_CFG and path[-1] in NEW_KEYS:
        return Form.TYPED
    return None


def has_setting(layer: Layer, everything: Layer, target: Target) -> bool:
    """Whether a file holds a setting that this target has something to say about.

    An old key in a mapping that is not a `model_overrides` may become one, through an interpolation.

    Args:
        layer: of the file.
        everything: the same, with all there is.
        target: the form to write.
    """
    for path, entry in layer.entries.items():
        form = form_of(path)
        if form is Form.SIZE:
            return True
        if form is Form.OVERRIDE and target is Target.MEGATRON_CFG:
            return True
        if form is Form.TYPED and target is Target.MODEL_OVERRIDES and entry.value is not None:
            return True
    return any(path[-1] in OLD_KEYS or mentions_old_key(entry.value) for path, entry in everything.entries.items())


def out_of_place(everything: Layer, file: RecipeFile) -> Iterator[Problem]:
    """Old keys that NeMo-RL hands on with all of a `model_overrides`, but deeper in it than the rule is known for.

    Args:
        everything: the file's layer, with all there is.
        file: the file.
    """
    for path, entry in everything.entries.items():
        if path[-1] in OLD_KEYS and not form_of(path) and (MEGATRON_CFG, MODEL_OVERRIDES) in itertools.pairwise(path):
            what = f"{dotted(path)} stands deeper in model_overrides than TP does"
            todo = "write the number of shards there by hand: size × TP, or size × ETP"
            yield Problem(Place(file.shown, entry.line, entry.column), what, todo)


@dataclass(frozen=True)
class Use:
    """A recipe in which a setting is the one that counts."""

    recipe: str
    holder: Holder
    axis: Axis

    @property
    def settings(self) -> Settings:
        """What the trainer sees."""
        return self.holder.settings

    @property
    def is_complete(self) -> bool:
        """Whether the recipe says, or was told, its TP."""
        return len(self.holder.cases) == 1

    def shards(self) -> int | None:
        """Shards per weight that the recipe needs by its old size; None for none.

        Raises:
            TopologyError: a number is not known, or none that NeMo-RL would accept.
        """
        size = old_size(self.settings, self.axis)
        return None if size is None else shards_from_size(size, parallel_size(self.settings, self.axis))


@dataclass
class Setting:
    """An entry of a file that stands for a setting, with all the recipes it counts in."""

    file: str
    entry: Entry
    form: Form
    axis: Axis
    #: Where the file has it: several where an anchor or a merge key repeats it; the first is where it stands.
    paths: list[KeyPath] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    #: Of an old size: recipes that get it, but have a count that is the later word.
    overruled: list[Use] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The key as it stands there."""
        return self.axis.gtp_size if self.form is Form.SIZE else self.axis.num_weight_shards

    @property
    def is_in_holders(self) -> bool:
        """Whether a mapping with parallel sizes is around it wherever a recipe has it, so that `..` can name one."""
        return all(
            use.holder.overrides is not None
            and (use.holder.overrides[:-1] == use.holder.real or use.holder.overrides[-2:-1] == (MEGATRON_CFG,))
            for use in self.uses
        )


class Source(NamedTuple):
    """The layer that gives a recipe a value, and the entry in it."""

    file: str
    entry: Entry


@dataclass
class Beside:
    """The settings of one axis in one mapping of one file."""

    size: Setting | None = None
    override: Setting | None = None
    typed: Setting | None = None


class Inventory:
    """All settings of a tree."""

    def __init__(self, tree: Tree, resolver: Resolver, target: Target) -> None:
        self.tree = tree
        self.resolver = resolver
        self.target = target
        #: Recipes that can be read and resolved.
        self.recipes: list[str] = []
        self._settings: dict[tuple[str, int], Setting] = {}
        self._collected: set[str] = set()

    def take(self, recipe: str) -> Iterator[tuple[Holder, Axis, str]]:
        """Takes in a recipe with all its layers.

        Yields:
            The settings that count in it but could not be found in a file: the holder, the axis, the key.

        Raises:
            RecipeError: NeMo-RL could not load it.
        """
        resolved = self.resolver.resolve(recipe)
        self.recipes.append(recipe)
        for identity in self.tree.order(recipe):
            if identity not in self._collected:
                self._collected.add(identity)
                for path, entry in self.tree.layer(identity).entries.items():
                    form = form_of(path)
                    if form:
                        self._setting(identity, path, entry, form)
        for holder in resolved.holders:
            for axis in AXES:
                for key in self._use(Use(recipe, holder, axis)):
                    yield holder, axis, key

    def _use(self, use: Use) -> Iterator[str]:
        holder, axis, settings = use.holder, use.axis, use.settings
        for value, parent, key, form in (
            (of_axis(settings.size, axis), holder.overrides, axis.gtp_size, Form.SIZE),
            (of_axis(settings.override_shards, axis), holder.overrides, axis.num_weight_shards, Form.OVERRIDE),
            (of_axis(settings.typed_shards, axis), holder.real, axis.num_weight_shards, Form.TYPED),
        ):
            if value is ABSENT or parent is None:
                continue
            source = self.source(use.recipe, (*parent, key))
            if source is None:
                yield key
                continue
            setting = self._setting(source.file, (*parent, key), source.entry, form)
            is_overruled = form is Form.SIZE and self._is_overruled(use)
            (setting.overruled if is_overruled else setting.uses).append(use)

    def _is_overruled(self, use: Use) -> bool:
        """Whether a count makes the old size beside it of no effect."""
        with contextlib.suppress(TopologyError):
            return shard_count(use.settings, use.axis, self.target, before=True) is not None
        return False

    def _setting(self, identity: str, path: KeyPath, entry: Entry, form: Form) -> Setting:
        axis = next(axis for axis in AXES if path[-1] in (axis.gtp_size, axis.num_weight_shards))
        # A file that is reached by two names is one text.
        key = (self.tree.file(identity).found.real, entry.offset)
        setting = self._settings.setdefault(key, Setting(identity, entry, form, axis))
        if self.tree.file(identity).given and not self.tree.file(setting.file).given:
            setting.file = identity
        if path not in setting.paths:
            setting.paths.append(path)
        return setting

    def settings(self) -> list[Setting]:
        """All settings, by file and place."""
        for setting in self._settings.values():
            setting.uses = setting.uses or setting.overruled
        return sorted(
            self._settings.values(), key=lambda setting: (self.tree.file(setting.file).shown, setting.entry.offset)
        )

    def source(self, recipe: str, path: KeyPath) -> Source | None:
        """Where a recipe has its value at `path` from."""
        return self._source(self.tree.order(recipe), path, 0)

    def _source(self, order: tuple[str, ...], path: KeyPath, depth: int) -> Source | None:
        unfilled = None
        for index in reversed(range(len(order))):
            identity = order[index]
            layer = self.tree.layer(identity)
            entry = layer.entries.get(path)
            if entry is not None:
                if entry.value != "???":
                    return Source(identity, entry)
                unfilled = unfilled or Source(identity, entry)
            behind = _interpolated(layer, path)
            if behind is not None and depth < 10:
                # A later layer was merged over the mapping that an interpolation stands for.
                return self._source(order[: index + 1], behind, depth + 1) or unfilled
            if _drops(layer, path):
                break
        return unfilled

    def is_from_environment(self, recipe: str, path: KeyPath, below: frozenset[KeyPath] = frozenset()) -> bool:
        """Whether a value may depend on an environment variable, itself or by what it refers to."""
        source = self.source(recipe, path)
        if source is None or not isinstance(source.entry.value, str) or path in below:
            return False
        # What a resolver other than the plain ones reads (the empty path), nobody can tell.
        return "oc.env" in source.entry.value or any(
            reference == () or self.is_from_environment(recipe, reference, below | {path})
            for reference in references(source.entry.value, path)
        )

    def is_later(self, recipe: str, one: Source, other: Source) -> bool:
        """Whether `one` stands in a later layer of the recipe than `other`, so that it has the last word."""
        order = self.tree.order(recipe)[::-1]
        return order.index(one.file) < order.index(other.file)

    def beside(self, setting: Setting) -> Beside:
        """The settings of the same axis in the same mapping, this one left out."""
        beside = Beside()
        overrides = setting.paths[0][:-1]
        if overrides[-1] != MODEL_OVERRIDES:
            return beside
        entries = self.tree.layer(setting.file).entries

        def find(path: KeyPath, form: Form) -> Setting | None:
            entry = entries.get(path)
            if entry is None or entry.offset == setting.entry.offset:
                return None
            return self._setting(setting.file, path, entry, form)

        beside.size = find((*overrides, setting.axis.gtp_size), Form.SIZE)
        beside.override = find((*overrides, setting.axis.num_weight_shards), Form.OVERRIDE)
        beside.typed = find((*overrides[:-1], setting.axis.num_weight_shards), Form.TYPED)
        return beside

    def given_heirs(self, setting: Setting) -> list[str]:
        """The given recipes that get the setting's key, be it with a value of their own."""

        def sees_key(holders: Iterable[Holder]) -> bool:
            pairs = (
                holder.settings.size if setting.form is Form.SIZE else holder.settings.override_shards
                for holder in holders
            )
            return any(of_axis(pair, setting.axis) is not ABSENT for pair in pairs)

        return [
            recipe
            for recipe in self.recipes
            if self.tree.file(recipe).given
            and setting.file in self.tree.order(recipe)
            and sees_key(self.resolver.resolve(recipe).holders)
        ]

    def place(self, identity: str, entry: Entry) -> Place:
        """Where an entry stands."""
        return Place(self.tree.file(identity).shown, entry.line, entry.column)

    # -- for people ------------------------------------------------------------------------------------

    def parallel(self, setting: Setting) -> str:
        """The parallel size in the setting's own file, and those that other recipes have instead."""
        uses = sorted(setting.uses, key=lambda use: use.recipe != setting.file)
        if not uses:
            return ""
        own, *others = dict.fromkeys(self.describe_parallel(use) for use in uses)
        if len(others) > 1:
            sizes = {text.split(" (")[0].removeprefix(f"{setting.axis.abbreviation} ") for text in others}
            return f"{own}; {', '.join(sorted(sizes, key=lambda size: (len(size), size)))} in other recipes"
        return "; ".join([own, *others])

    def describe_parallel(self, use: Use) -> str:
        """The parallel size of a recipe and where it comes from: `TP 4 (base.yaml:12)`."""
        name = use.axis.abbreviation
        if not use.is_complete:
            return f"{name} not set"
        try:
            value = parallel_size(use.settings, use.axis)
        except TopologyError as error:
            return str(error)
        source = self.source(use.recipe, (*use.holder.real, use.axis.parallel_size))
        if source is not None and source.entry.value is not None:
            return f"{name} {value} ({self.place(*source).file_and_line})"
        if use.axis is not DENSE and (source is not None or self.resolver.assumed.etp is None):
            return f"{name} {value} ({'EP > 1' if effective_ep(use.settings) > 1 else 'as TP'})"
        return f"{name} {value} (--{name.lower()})"


def _interpolated(layer: Layer, path: KeyPath) -> KeyPath | None:
    """The path that `path` stands for, where a mapping on the way to it is an interpolation in this layer."""
    for length in range(1, len(path)):
        entry = layer.entries.get(path[:length])
        if entry is not None and isinstance(entry.value, str):
            targets = [target for target in references(entry.value, path[:length]) if target]
            if len(targets) == 1 and ":" not in entry.value:
                return targets[0] + path[length:]
    return None


def _drops(layer: Layer, path: KeyPath) -> bool:
    """Whether nothing below this layer can reach `path`: it replaces a mapping on the way to it."""
    marker = layer.entries.get((path[0], OVERRIDE_MARKER))
    if marker is not None and marker.value:
        return True
    return any(
        (entry := layer.entries.get(path[:length])) is not None and not entry.is_container and entry.value != "???"
        for length in range(1, len(path))
    )
