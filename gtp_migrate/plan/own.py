"""A number of its own for a model that needs another one than its layers give it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gtp_migrate.forms import Style, Target
from gtp_migrate.plan.changes import Add
from gtp_migrate.plan.needs import OwnNumber
from gtp_migrate.plan.stock import Stock
from gtp_migrate.recipes.interpolation import Computed, parse, value_of
from gtp_migrate.recipes.keys import MERGE, MISSING, MODEL_OVERRIDES, SETTINGS, TP, KeyPath
from gtp_migrate.recipes.values import at, raw
from gtp_migrate.runs.models import (
    DEFAULT_TEACHER,
    GENERATION_CFG,
    MEGATRON_CFG_OVERRIDES,
    TEACHER_OVERRIDES,
    Kind,
    Model,
)
from gtp_migrate.runs.runs import Resolved, open_leaves
from gtp_migrate.runs.topology import TopologyError, old_size, parallel_size, shard_count, side
from gtp_migrate.shards import AXES, DENSE, Axis, shards_from_size


class _CannotError(Exception):
    pass


def own_number(stock: Stock, need: OwnNumber, style: Style) -> Add | None:
    """The entry to add to the recipe's own file; None where nothing in it can say it."""
    if not stock.tree.files[need.recipe].given or need.recipe not in stock.recipes:
        return None
    made = list(_where_it_is_made(stock, need))
    try:
        return _Adder(stock, need, made, style).add() if made else None
    except (_CannotError, TopologyError):
        return None


def has_size_of_its_own(tree: dict[Any, Any], model: Model, axis: Axis) -> bool:
    """Whether a model made in Python does not follow the policy's parallel size, however they compare today."""
    return (model.kind is Kind.TEACHER and axis is DENSE) or _holder(tree, model, axis.parallel_size) is not None


def _holder(tree: dict[Any, Any], model: Model, key: str) -> KeyPath | None:
    """The mapping that holds a parallel size that is this model's alone; None where there is none."""
    if model.kind is Kind.GENERATION:
        places = [GENERATION_CFG]
    elif model.kind is Kind.TEACHER:
        place = _teacher_place(tree, model)
        places = [(*place, MEGATRON_CFG_OVERRIDES), place]
    else:
        places = []
    return next((place for place in places if value_of(at(tree, (*place, key))) is not None), None)


def _teacher_place(tree: dict[Any, Any], model: Model) -> KeyPath:
    """Where a teacher's own number goes: into its entry, if it has one."""
    entry = (*TEACHER_OVERRIDES, model.alias)
    return entry if isinstance(at(tree, entry), dict) else DEFAULT_TEACHER


def needed(stock: Stock, need: OwnNumber) -> set[int | None]:
    """The numbers that the model needs, one where it is the same in all worlds that have it; empty where no number
    would do."""
    numbers: set[int | None] = set()
    for resolved, model in _where_it_is_made(stock, need):
        of = side(model.cfg, need.axis)
        values = (of.size, of.override, of.typed)
        if any(isinstance(value, Computed) and open_leaves(resolved.resolution, value) for value in values):
            return set()  # no number follows it
        try:
            numbers.add(_count_of(model, need.axis, stock.target))
        except TopologyError:
            return set()
    return numbers


def _where_it_is_made(stock: Stock, need: OwnNumber) -> Iterator[tuple[Resolved, Model]]:
    """The worlds that have the model: what is left open may decide whether NeMo-RL makes it, and whether as a copy,
    for which nothing can be written."""
    for world in stock.runs.run(need.recipe).worlds:
        resolved = stock.runs.resolved(need.recipe, world)
        model = resolved.model(need.model)
        if model is not None and model.kind is not Kind.COPY:
            yield resolved, model


def _count_of(model: Model, axis: Axis, target: Target) -> int | None:
    """Shards per weight that a model has today; None where nothing says any.

    Raises:
        TopologyError: a number is not known, or none that NeMo-RL would accept.
    """
    of = side(model.cfg, axis)
    count, size = shard_count(of, target, before=True), old_size(of)
    if count is None and size is not None:
        return shards_from_size(size, parallel_size(model.cfg, axis))
    return count


class _Adder:
    def __init__(self, stock: Stock, need: OwnNumber, made: list[tuple[Resolved, Model]], style: Style) -> None:
        self.stock = stock
        self.axis = need.axis
        self.made = made
        self.style = style
        self.run = stock.runs.run(need.recipe)
        self.layer = stock.tree.layers[need.recipe]
        self.model = made[0][1]
        # As the files say it: what only a run puts in is nothing to write beside, or into.
        plain = stock.runs.resolved(need.recipe, replace(self.run.worlds[0], supplied=()))
        self.lookup = plain.resolution.lookup
        self.tree = plain.tree
        self.is_typed = stock.target is Target.MEGATRON_CFG
        if any(open_leaves(each.resolution, value) for each, value in self._own_values(need.axis)):
            raise _CannotError  # neither a number nor an interpolation follows it

    def _own_values(self, axis: Axis) -> Iterator[tuple[Resolved, Computed]]:
        for resolved, model in self.made:
            of = side(model.cfg, axis)
            for value in (of.size, of.override, of.typed):
                if isinstance(value, Computed):
                    yield resolved, value

    def _spelled(self, axis: Axis, place: KeyPath) -> str | None:
        """A count as it is written in the mapping at `place`; None where GTP is off and nothing says so.

        Raises:
            _CannotError: it is not the same in all worlds, and no interpolation says it.
            TopologyError: a number is not known.
        """
        counts = {_count_of(model, axis, self.stock.target) for _, model in self.made}
        if self.style is Style.INTERPOLATION or len(counts) > 1:
            follows = self._interpolation(axis, place)
            if follows is not None:
                return follows
        if len(counts) > 1:
            raise _CannotError
        count = counts.pop()
        return None if count is None else str(count)

    def _interpolation(self, axis: Axis, place: KeyPath) -> str | None:
        """Size times the parallel size that is the model's own, by a reference to that."""
        sizes = {old_size(side(model.cfg, axis)) for _, model in self.made}
        holder = _holder(self.tree, self.model, axis.parallel_size)
        if len(sizes) > 1 or None in sizes or holder is None:
            return None
        holder = self._written_at(holder)
        if self._real(holder) != place[: len(holder)]:
            return None
        if not self.run.has_resolvers or "mul" not in self.run.resolvers:
            return None
        dots = "." * (len(place) - len(holder) + 1)
        return f"${{mul:{sizes.pop()},${{{dots}{axis.parallel_size}}}}}"

    def add(self) -> Add:
        if self.model.kind is Kind.MAPPING:
            return self._to_mapping()
        if self.model.kind is Kind.TEACHER:
            return self._to_teacher()
        return self._to_generation()

    def _to_mapping(self) -> Add:
        path = self._real(self.model.path)
        if self.is_typed:
            return self._count(path)
        return self._override(path)

    def _to_teacher(self) -> Add:
        place = self._written_at(_teacher_place(self.tree, self.model))
        teacher = self._at(place)
        if teacher is not None and not isinstance(teacher, dict):
            raise _CannotError
        teacher = teacher or {}
        more = teacher.get(MEGATRON_CFG_OVERRIDES)
        more = more if isinstance(more, dict) else {}
        if self.is_typed:
            return self._count((*place, MEGATRON_CFG_OVERRIDES))
        if isinstance(more.get(MODEL_OVERRIDES), dict):
            return self._override((*place, MEGATRON_CFG_OVERRIDES))
        if isinstance(teacher.get(MODEL_OVERRIDES), dict):
            return self._override(place)
        if _teacher_place(self.tree, self.model) == DEFAULT_TEACHER and not more and self._at(TEACHER_OVERRIDES):
            # As a key of its own: what the default overrides reach those teachers that have an entry, or not, by who
            # makes them; its other keys always do, below the entry's own.
            return Add(self._real(place), MODEL_OVERRIDES, self._whole(place))
        more_place = (*self._real(place), MEGATRON_CFG_OVERRIDES)
        return Add(more_place, MODEL_OVERRIDES, self._whole(more_place))

    def _to_generation(self) -> Add:
        place = self._written_at(GENERATION_CFG)
        own = self._at(place)
        own = own if isinstance(own, dict) else {}
        if self.is_typed:
            return self._count(place)
        if isinstance(own.get(MODEL_OVERRIDES), dict):
            return self._override(place)
        return Add(self._real(place), MODEL_OVERRIDES, self._whole(place), TP)

    def _written_at(self, path: KeyPath) -> KeyPath:
        """Where this file writes a mapping that it has at `path` by an alias or an interpolation: a number that stands
        there is for all that get it, and the proof sees to it that it is right for them."""
        real, _ = self.lookup.find(path)
        data = at(self.layer.data, real)
        return next(_places_of(data, self.layer.data), real) if isinstance(data, dict) else path

    def _override(self, holder: KeyPath) -> Add:
        """A count in the `model_overrides` of a mapping."""
        overrides = (*holder, MODEL_OVERRIDES)
        if MODEL_OVERRIDES in self.layer.merged_keys.get(holder, ()) or self._is_shared(overrides):
            # An own `model_overrides` hides the one that is merged in: it needs all that is in that.
            return Add(self._real(holder), MODEL_OVERRIDES, self._whole(holder), TP)
        return self._count(overrides, MERGE)

    def _count(self, path: KeyPath, after: str | None = None) -> Add:
        key = self.axis.num_weight_shards
        if any(setting.path == (*path, key) for setting in self.layer.settings):
            raise _CannotError
        # GTP is off where a model has no size: that too has to be said where its layers give it a number.
        number = self._spelled(self.axis, path) or "null"
        return Add(self._real(path), key, number, after or self.axis.parallel_size)

    def _at(self, path: KeyPath) -> Any:
        return at(self.tree, path)

    def _real(self, path: KeyPath) -> KeyPath:
        """The path, if nothing on it is an interpolation, or in a list that another file has."""
        for length in range(1, len(path) + 1):
            real, found = self.lookup.find(path[:length])
            if real != path[:length] or (
                isinstance(path[length - 1], int) and at(self.layer.data, path[:length]) is None
            ):
                raise _CannotError
            if raw(found) == MISSING:
                raise _CannotError
            if not isinstance(found, (dict, list)):
                break
        return path

    def _is_shared(self, path: KeyPath) -> bool:
        """Whether this file writes the mapping at `path` as an alias: its settings stand elsewhere in it, and no `<<`
        of its own brings them."""
        data = at(self.layer.data, path)
        if not isinstance(data, dict):
            return False
        entries = [entry for entry in self.layer.settings if any(data.get(name) is entry for name in SETTINGS)]
        merged = self.layer.merged_keys.get(path, frozenset())
        return any(entry.path[:-1] != path and entry.path[-1] not in merged for entry in entries)

    def _whole(self, holder: KeyPath) -> dict[str, Any]:
        """A `model_overrides` in a mapping, with all that the model gets today, counts in place of sizes."""
        overrides = self.model.cfg.get(MODEL_OVERRIDES)
        if not isinstance(overrides, dict):
            raise _CannotError
        whole = {str(key): _repeatable(value) for key, value in overrides.items() if key not in SETTINGS}
        for axis in AXES:
            count = self._spelled(axis, (*holder, MODEL_OVERRIDES))
            if count is not None:
                whole[axis.num_weight_shards] = int(count) if count.isdigit() else count
        return whole


def _places_of(wanted: Any, root: Any) -> Iterator[KeyPath]:
    """The paths of an object in the data of a file, in its order; what aliases share is walked once."""
    seen: set[int] = set()
    pending: list[tuple[KeyPath, Any]] = [((), root)]
    while pending:
        path, node = pending.pop()
        if node is wanted:
            yield path
        if isinstance(node, (dict, list)) and id(node) not in seen:
            seen.add(id(node))
            entries = node.items() if isinstance(node, dict) else enumerate(node)
            pending += reversed([((*path, key), value) for key, value in entries])


def _repeatable(value: Any) -> Any:
    """A value as it can be written in another place."""
    if isinstance(value, dict):
        return {key: _repeatable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_repeatable(inner) for inner in value]
    if isinstance(value, Computed):
        parsed = parse(value.leaf.value)
        if parsed.is_dynamic or any(reference.dots for reference in parsed.references):
            raise _CannotError
        return value.leaf.value
    return value_of(value)
