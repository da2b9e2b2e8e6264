"""A number of its own for a model that needs another one than its layers give it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gtp_migrate.forms import Target
from gtp_migrate.plan.changes import Add
from gtp_migrate.plan.needs import OwnNumber
from gtp_migrate.plan.stock import Stock
from gtp_migrate.recipes.interpolation import Computed, parse, value_of
from gtp_migrate.recipes.keys import MERGE, MODEL_OVERRIDES, SETTINGS, TP, KeyPath
from gtp_migrate.recipes.values import at
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
from gtp_migrate.shards import AXES, Axis, shards_from_size


class _CannotError(Exception):
    pass


def own_number(stock: Stock, need: OwnNumber) -> Add | None:
    """The entry to add to the recipe's own file; None where nothing in it can say it."""
    if not stock.tree.files[need.recipe].given or need.recipe not in stock.recipes:
        return None
    numbers = needed(stock, need)
    if len(numbers) != 1:
        return None
    resolved, model = next(_where_it_is_made(stock, need))
    try:
        return _Adder(stock, need, resolved, model, numbers.pop()).add()
    except _CannotError:
        return None


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
    """The worlds that have the model: what is left open may decide whether NeMo-RL makes it."""
    for world in stock.runs.run(need.recipe).worlds:
        resolved = stock.runs.resolved(need.recipe, world)
        model = resolved.model(need.model)
        if model is not None:
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
    def __init__(self, stock: Stock, need: OwnNumber, resolved: Resolved, model: Model, number: int | None) -> None:
        self.stock = stock
        self.key = need.axis.num_weight_shards
        self.after = need.axis.parallel_size
        self.layer = stock.tree.layers[need.recipe]
        self.lookup = resolved.resolution.lookup
        self.tree = resolved.tree
        self.model = model
        # GTP is off where a model has no size: that too has to be said where its layers give it a number.
        self.number = "null" if number is None else str(number)
        self.is_typed = stock.target is Target.MEGATRON_CFG

    def add(self) -> Add:
        if self.model.kind is Kind.MAPPING:
            return self._to_mapping()
        if self.model.kind is Kind.TEACHER:
            return self._to_teacher()
        if self.model.kind is Kind.GENERATION:
            return self._to_generation()
        raise _CannotError

    def _to_mapping(self) -> Add:
        path = self._real(self.model.path)
        if self.is_typed:
            return self._count(path)
        return self._override(path)

    def _to_teacher(self) -> Add:
        entry = (*TEACHER_OVERRIDES, self.model.alias)
        place = entry if isinstance(self._at(entry), dict) else DEFAULT_TEACHER
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
        if place == DEFAULT_TEACHER and not more and self._at(TEACHER_OVERRIDES):
            # As a key of its own: what the default overrides reach those teachers that have an entry, or not, by who
            # makes them; its other keys always do, below the entry's own.
            return Add(self._real(place), MODEL_OVERRIDES, self._whole())
        return Add((*self._real(place), MEGATRON_CFG_OVERRIDES), MODEL_OVERRIDES, self._whole())

    def _to_generation(self) -> Add:
        own = self._at(GENERATION_CFG)
        own = own if isinstance(own, dict) else {}
        if self.is_typed:
            return self._count(GENERATION_CFG)
        if isinstance(own.get(MODEL_OVERRIDES), dict):
            return self._override(GENERATION_CFG)
        return Add(self._real(GENERATION_CFG), MODEL_OVERRIDES, self._whole(), TP)

    def _override(self, holder: KeyPath) -> Add:
        """A count in the `model_overrides` of a mapping."""
        overrides = (*holder, MODEL_OVERRIDES)
        if MODEL_OVERRIDES in self.layer.merged_keys.get(holder, ()) or self._is_shared(overrides):
            # An own `model_overrides` hides the one that is merged in: it needs all that is in that.
            return Add(self._real(holder), MODEL_OVERRIDES, self._whole(), TP)
        return self._count(overrides, MERGE)

    def _count(self, path: KeyPath, after: str | None = None) -> Add:
        if any(setting.path == (*path, self.key) for setting in self.layer.settings):
            raise _CannotError
        return Add(self._real(path), self.key, self.number, after or self.after)

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

    def _whole(self) -> dict[str, Any]:
        """A `model_overrides` with all that the model gets today, counts in place of sizes."""
        overrides = self.model.cfg.get(MODEL_OVERRIDES)
        if not isinstance(overrides, dict):
            raise _CannotError
        whole = {str(key): _repeatable(value) for key, value in overrides.items() if key not in SETTINGS}
        for axis in AXES:
            try:
                count = _count_of(self.model, axis, self.stock.target)
            except TopologyError:
                raise _CannotError from None
            if count is not None:
                whole[axis.num_weight_shards] = count
        return whole


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
