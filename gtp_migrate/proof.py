"""The proof: the run starts as before, and every model that it builds has the same (TP, ETP, GTP, expert GTP).

It looks at the edited texts, before anything is written, and knows nothing of how the edit was planned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gtp_migrate.forms import Target
from gtp_migrate.plan.stock import is_pinned
from gtp_migrate.problems import Place, RecipeError
from gtp_migrate.recipes.interpolation import Computed, Lookup, Resolution, Unresolved, entry_of, targets, value_of
from gtp_migrate.recipes.keys import MODEL_OVERRIDES, NEW_KEYS, OLD_KEY_TEXT, SETTINGS, TP, KeyPath, dotted
from gtp_migrate.recipes.layer import Layer
from gtp_migrate.recipes.values import Leaf, raw, same
from gtp_migrate.runs.models import (
    GENERATION_CFG,
    MEGATRON_CFG_OVERRIDES,
    TEACHERS,
    Model,
    algorithms,
    has_to_have_sizes,
)
from gtp_migrate.runs.runs import Resolved, Runs, World, is_built
from gtp_migrate.runs.topology import ABSENT, Topology, TopologyError, side, topology
from gtp_migrate.shards import AXES, Axis

#: Mappings that are models' in all but name: what a model gets of them is compared model by model.
MODELS_OWN = (TEACHERS, GENERATION_CFG)
_HUSKS = frozenset({MODEL_OVERRIDES, MEGATRON_CFG_OVERRIDES})
_NOTHING = object()


@dataclass(frozen=True)
class Failure:
    """A recipe that would not run as before, or of which that is not known."""

    recipe: str
    place: Place
    what: str
    #: The way out, where there is another than doing it by hand.
    todo: str = ""
    #: The model and the axis that it is about, where it is about one.
    model: str | None = None
    axis: Axis | None = None
    #: The entry of the edited text that fails, by file and by its path in it.
    entry: Leaf | None = None
    #: Whether something refers to a mapping that is gone.
    is_dangling: bool = False
    #: Whether it was so before: nothing was compared.
    is_unknown: bool = False


def same_elsewhere(before: Layer, after: Layer) -> bool:
    """Whether a file says the same as before in all but the settings."""
    if before.defaults != after.defaults:
        return False
    pairs = [(before.data, after.data)]
    if before.other_reading is not None or after.other_reading is not None:
        pairs.append((before.other_reading or before.data, after.other_reading or after.data))
    return all(_is_setting(path, a, b) for one, other in pairs for path, a, b in differences(one, other))


class Proof:
    """Compares runs before and after, each state of each run once."""

    def __init__(self, before: Runs, target: Target, *, pins_copies: bool) -> None:
        """
        Args:
            before: the runs of the tree as it is.
            target: the form that this NeMo-RL takes.
            pins_copies: whether the runs themselves keep the weights of copied models whole.
        """
        self.before = before
        self.target = target
        self.pins_copies = pins_copies
        self._known: dict[tuple[str, tuple[int, ...]], tuple[Failure, ...]] = {}

    def failures(self, recipe: str, after: Runs) -> tuple[Failure, ...]:
        """What would be otherwise in a recipe's run.

        Args:
            recipe: one that can be loaded.
            after: the runs of the tree as it would be.
        """
        state = after.tree.state(recipe)
        if not state:
            # Nothing of it is touched. An old key that is left in it is said where it stands.
            return ()
        if (recipe, state) not in self._known:
            try:
                comparison = _Comparison(recipe, self.before, after, self.target, self.pins_copies)
                found = tuple(comparison.failures())
            except RecipeError as error:
                found = (Failure(recipe, error.problem.place, error.problem.what, error.problem.todo),)
            self._known[recipe, state] = found
        return self._known[recipe, state]


class _Comparison:
    def __init__(self, recipe: str, before: Runs, after: Runs, target: Target, pins_copies: bool) -> None:
        self.recipe = recipe
        self.before = before
        self.after = after
        self.target = target
        self.pins_copies = pins_copies
        self.place = Place(before.tree.shown(recipe))

    def failures(self) -> Iterator[Failure]:
        compared: set[bool] = set()
        said: set[tuple[str | None, Axis | None]] = set()
        for world in self.before.run(self.recipe).worlds:
            old, new = self.before.resolved(self.recipe, world), self.after.resolved(self.recipe, world)
            if world.other_reading not in compared:
                compared.add(world.other_reading)
                yield from self._compare_recipes(old, new)
            for failure in self._compare_models(old, new, world):
                if (failure.model, failure.axis) not in said:
                    said.add((failure.model, failure.axis))
                    yield failure

    def _failure(self, what: str, **more: Any) -> Failure:
        return Failure(self.recipe, more.pop("place", self.place), what, **more)

    # -- models ----------------------------------------------------------------------------------------

    def _compare_models(self, old: Resolved, new: Resolved, world: World) -> Iterator[Failure]:
        names = [model.name for model in old.models]
        if names != [model.name for model in new.models]:
            yield self._failure("would build other models")
            return
        for one, other in zip(old.models, new.models, strict=True):
            if not is_pinned(one, self.pins_copies):
                yield from self._compare_model(one, other, world)

    def _compare_model(self, old: Model, new: Model, world: World) -> Iterator[Failure]:
        sides = [(side(old.cfg, axis), side(new.cfg, axis)) for axis in AXES]
        if all(one.is_silent and other.is_silent for one, other in sides):
            return
        waits = False
        for _, other in sides:
            if other.size is ABSENT:
                continue
            entry = entry_of(other.size)
            if entry is not None and not self._is_ours(entry):
                waits = True
            else:
                what = f"{new.name} would still have {other.axis.gtp_size}"
                yield self._failure(what, model=new.name, axis=other.axis, entry=entry)
        if not _same_but_settings(_without(old.cfg), _without(new.cfg)):
            yield self._failure(f"{new.name} would differ in more than its shards", model=new.name)
        if not is_built(self.before.run(self.recipe), old):
            return
        # A recipe that still gets an old key from a file that is not ours waits for that file, and must mean
        # until then what it means now.
        yield from self._difference(old, new, world, waits=waits)

    def _is_ours(self, entry: Leaf) -> bool:
        return any(
            file.given and file.found.real == entry.source.real
            for file in (self.before.tree.files[layer] for layer in self.before.tree.orders[self.recipe])
        )

    def _difference(self, old: Model, new: Model, world: World, *, waits: bool) -> Iterator[Failure]:
        try:
            was = topology(old.cfg, self.target, before=True)
        except TopologyError as error:
            what = f"{old.name} cannot be proven: {error}"
            yield self._failure(what, model=old.name, axis=error.axis, is_unknown=True)
            return
        where = f" (with {_supplied(world)}, say)" if world.supplied and self.before.run(self.recipe).is_open else ""
        try:
            would_be = topology(new.cfg, self.target, before=waits)
        except TopologyError as error:
            entry = self._entry_of_count(new, error.axis)
            what = f"{old.name}{where} would change from {was} to a run that cannot start: {error}"
            yield self._failure(what, model=old.name, axis=error.axis, entry=entry)
            return
        if was != would_be:
            axis = _axis_of(was, would_be)
            what = f"{old.name}{where} would change from {was} to {would_be}"
            yield self._failure(what, model=old.name, axis=axis, entry=self._entry_of_count(new, axis))

    def _entry_of_count(self, model: Model, axis: Axis | None) -> Leaf | None:
        if axis is None:
            return None
        of = side(model.cfg, axis)
        return entry_of(of.typed) if self.target is Target.MEGATRON_CFG else entry_of(of.override)

    # -- the recipe as a whole -------------------------------------------------------------------------

    def _compare_recipes(self, old: Resolved, new: Resolved) -> Iterator[Failure]:
        """The merged recipe differs in nothing but the settings, and what resolved before resolves after."""
        changed: list[KeyPath] = []
        for path, one, other in differences(old.resolution.root, new.resolution.root, exact=False):
            changed.append(path)
            if path[-1] == MODEL_OVERRIDES:
                # NeMo-RL looks whether there is anything in it: an inherited null says the same as an empty mapping.
                one, other = (_NOTHING if raw(each) is None else each for each in (one, other))
            if not _is_setting(path, one, other):
                yield self._failure(f"{dotted(path)} would change, which is no setting")
        for path, leaf in new.resolution.touched(changed):
            yield from self._compare_values(path, leaf, old.resolution, new.resolution)

    def _compare_values(self, path: KeyPath, leaf: Leaf, old: Resolution, new: Resolution) -> Iterator[Failure]:
        known = dict(old.holes)
        before = old.evaluate(path, known[path]) if path in known else _NOTHING
        if isinstance(before, Unresolved):
            return
        after = new.evaluate(path, leaf)
        is_new = before is _NOTHING or path[-1] in NEW_KEYS
        if path[-1] in NEW_KEYS and not self.before.run(self.recipe).is_started:
            return  # it is resolved in its heirs
        if path[-1] in NEW_KEYS and (missing := self._only_assumed(path, leaf)):
            what = f"{dotted(path)} would not resolve: no file sets {dotted(missing)}, which this run does without"
            yield self._failure(what, entry=leaf)
            return
        if isinstance(after, Unresolved):
            yield self._unresolved(path, leaf, after.why)
        elif not is_new and not _same_but_settings(before, after):
            what = f"{dotted(path)} refers to an old key ({leaf.value})"
            yield self._failure(what, place=leaf.place, todo="give it the value itself and run again", is_dangling=True)

    def _unresolved(self, path: KeyPath, leaf: Leaf, why: str) -> Failure:
        """What resolved before, or was just written, and does not resolve."""
        if path[-1] in NEW_KEYS:
            return self._failure(f"{dotted(path)} would not resolve: {why}", entry=leaf)
        if OLD_KEY_TEXT in leaf.value:
            what = f"{dotted(path)} refers to an old key ({leaf.value})"
            todo = "give it the value itself and run again"
            return self._failure(what, place=leaf.place, todo=todo, is_dangling=True)
        what = f"{dotted(path)} ({leaf.value}) would no longer resolve: {why}"
        return self._failure(what, place=leaf.place, is_dangling=True)

    def _only_assumed(self, path: KeyPath, leaf: Leaf) -> KeyPath | None:
        """What a new value refers to that is only assumed, for a mapping that no command line has to give sizes."""
        root = self.after.tree.merged(self.recipe).root
        missing = (target for target in targets(leaf.value, path) if target and not _stands(root, target))
        for target in missing:
            models = self.after.resolved(self.recipe, World()).models
            is_on = any(model.path == target[:-1] and model.is_on for model in models)
            if not is_on or not has_to_have_sizes(target[:-1], algorithms(root)):
                return target
        return None


def _stands(root: dict[Any, Any], path: KeyPath) -> bool:
    """Whether there is something at a path of a merged recipe, or behind a reference on the way."""
    found = Lookup(root).at(path)
    return not isinstance(found, Unresolved)


def _supplied(world: World) -> str:
    names = {TP: "TP", "expert_tensor_parallel_size": "ETP", "expert_model_parallel_size": "EP"}
    return ", ".join(
        dict.fromkeys(f"{names.get(str(path[-1]), dotted(path))} {value}" for path, value in world.supplied)
    )


def _axis_of(old: Topology, new: Topology) -> Axis:
    return AXES[0] if old.gtp != new.gtp else AXES[1]


def _without(cfg: dict[Any, Any]) -> dict[Any, Any]:
    """A `megatron_cfg` without the `model_overrides` that nothing is in."""
    overrides = cfg.get(MODEL_OVERRIDES)
    if isinstance(overrides, dict) and not overrides.keys() - SETTINGS:
        return {key: value for key, value in cfg.items() if key != MODEL_OVERRIDES}
    if value_of(overrides) is None:
        return {key: value for key, value in cfg.items() if key != MODEL_OVERRIDES}
    return cfg


def _same_but_settings(one: Any, other: Any) -> bool:
    """Whether two resolved values are the same in all but the settings."""
    if one is other:
        return True
    if isinstance(one, Computed) and isinstance(other, Computed) and one.leaf is other.leaf and one.path == other.path:
        return True  # what it refers to is compared where it stands
    one, other = value_of(one), value_of(other)
    if isinstance(one, Unresolved) and isinstance(other, Unresolved):
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            a, b = one.get(key, _NOTHING), other.get(key, _NOTHING)
            if a is b or key in SETTINGS:
                continue
            if key in _HUSKS:
                a, b = ({} if each is _NOTHING else each for each in (a, b))
            if not _same_but_settings(a, b):
                return False
        return True
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same_but_settings(a, b) for a, b in zip(one, other, strict=True))
    return same(one, other)


def differences(one: Any, other: Any, path: KeyPath = (), *, exact: bool = True) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Where two pieces of data differ, interpolations as texts: the path, and what stands there in each.

    A mapping that is gone or new counts as an empty one, so that each entry of it is named.

    Args:
        one: before.
        other: after.
        path: where they stand.
        exact: tell 1 from true. Where the layers have been compared so, their merge need not be again.
    """
    if one is other:
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for key, a in one.items():
            b = other.get(key, _NOTHING)
            if a is not b and (exact or a != b):
                yield from _differences_at((*path, key), a, b, exact)
        for key in other if len(other) != len(one) or other.keys() != one.keys() else ():
            if key not in one:
                yield from _differences_at((*path, key), _NOTHING, other[key], exact)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(a, b, (*path, index), exact=exact)
    elif not same(one, other):
        yield path, one, other


def _differences_at(path: KeyPath, one: Any, other: Any, exact: bool) -> Iterator[tuple[KeyPath, Any, Any]]:
    if one is not _NOTHING and other is not _NOTHING:
        yield from differences(one, other, path, exact=exact)
        return
    yield path, one, other
    if isinstance(one, dict) and one:
        yield from differences(one, {}, path, exact=exact)
    elif isinstance(other, dict) and other:
        yield from differences({}, other, path, exact=exact)


def _is_setting(path: KeyPath, one: Any, other: Any) -> bool:
    """Whether a difference is one of settings: an old or new key, a mapping that holds nothing else, or the overrides
    of a model made in Python, which are compared model by model."""
    if path[-1] in SETTINGS:
        return True
    if _is_models_own(path) and not _HUSKS.isdisjoint(path):
        return True
    if one is not _NOTHING and other is not _NOTHING:
        return False
    return _is_all_settings(path, other if one is _NOTHING else one)


def _is_models_own(path: KeyPath) -> bool:
    return any(path[: len(own)] == own for own in MODELS_OWN)


def _is_all_settings(path: KeyPath, value: Any) -> bool:
    key = path[-1]
    if key in SETTINGS or (key in _HUSKS and _is_models_own(path)):
        return True
    if not isinstance(value, dict) or (not value and key not in _HUSKS):
        return False
    return all(_is_all_settings((*path, name), inner) for name, inner in value.items())
