"""One model in every world of its run: which of its numbers hold in all of them, and what the others are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from gtp_migrate.forms import Target
from gtp_migrate.plan.describe import describe_parallel
from gtp_migrate.plan.stock import Stock
from gtp_migrate.recipes.interpolation import Computed, entry_of, value_of
from gtp_migrate.recipes.keys import ETP
from gtp_migrate.runs.models import Model
from gtp_migrate.runs.runs import World, open_leaves
from gtp_migrate.runs.topology import ABSENT, TopologyError, gtp_size, parallel_size, shard_count, side
from gtp_migrate.shards import DENSE, EXPERT, Axis, shards_from_size

#: What may make a number another one, and what is said of it.
_REASONS = (
    ({"supplied": ()}, "comes with the run"),
    ({"other_reading": False}, "is read differently by PyYAML 6.0.3 and 6.0.4"),
    ({"as_launched": True}, "depends on who makes the teachers"),
)
_NO_NUMBER = "depends on what comes with the run"


@dataclass(frozen=True)
class Meant:
    """The GTP that is meant on one axis: numbers, or what they are made of: `3` and `3 × TP`, `12 / TP` and `12`."""

    size: str
    count: str


class Everywhere:
    """A model in all worlds in which it is built."""

    def __init__(self, stock: Stock, recipe: str, name: str) -> None:
        """
        Args:
            stock: all that is known of the runs.
            recipe: that of the run.
            name: the model's.
        """
        self.stock = stock
        self.recipe = recipe
        worlds = stock.runs.run(recipe).worlds
        found = [(world, stock.runs.resolved(recipe, world).model(name)) for world in worlds]
        self.models: dict[World, Model] = {world: model for world, model in found if model is not None}
        #: Whether it is built however things turn out.
        self.is_always_built = len(self.models) == len(found)
        self.world, self.first = next(iter(self.models.items()))
        plain = stock.runs.resolved(recipe, World(self.world.other_reading, self.world.as_launched)).model(name)
        #: As the files say it, nothing supplied.
        self.plain = plain or self.first

    def why_open(self, read: Callable[[Model], Any]) -> str:
        """Why what is read is not the same in all worlds; empty where it is."""
        values = {world: repr(read(model)) for world, model in self.models.items()}
        for neutral, why in _REASONS:
            for (one, value), (other, another) in combinations(values.items(), 2):
                if value != another and replace(one, **neutral) == replace(other, **neutral):
                    return why
        return "" if len(set(values.values())) < 2 else _NO_NUMBER

    def why_key_is_open(self, key: str) -> str:
        """The same of a key of its `megatron_cfg`."""
        return self.why_open(lambda model: value_of(model.cfg.get(key)))

    def why_value_is_open(self, value: Any) -> str:
        """The same of a value that is an interpolation, which is not tried in several ways."""
        if isinstance(value, Computed):
            resolution = self.stock.runs.resolved(self.recipe, self.world).resolution
            if open_leaves(resolution, value):
                return "comes with the run"
        return ""

    def model_beside(self, world: World, name: str) -> Model | None:
        """Another model of the run in the same world."""
        return self.stock.runs.resolved(self.recipe, world).model(name)

    # -- TP and ETP ------------------------------------------------------------------------------------

    def why_parallel_is_open(self, axis: Axis) -> str:
        """The same of TP, or of ETP as it is derived."""
        return self.why_open(lambda model: _parallel(model, axis))

    def parallel(self, axis: Axis) -> str:
        """TP or ETP and where it comes from: `TP 4 (base.yaml:5)`, `TP comes with the run (base.yaml:5)`."""
        why = self.why_parallel_is_open(axis)
        if not why:
            return describe_parallel(self.recipe, self.first, axis, self.stock, self.world)
        if axis is EXPERT and self._follows_tp():
            return "ETP as TP"
        entry = entry_of(self.plain.cfg.get(axis.parallel_size))
        where = entry.place.file_and_line if entry is not None and entry.value is not None else "no file says it"
        return f"{axis.abbreviation} {why} ({where})"

    def _follows_tp(self) -> bool:
        return all(
            value_of(model.cfg.get(ETP)) is None and _parallel(model, EXPERT) == _parallel(model, DENSE)
            for model in self.models.values()
        )

    def size_of(self, axis: Axis) -> str:
        """TP or ETP as a number, or its name where it is open."""
        return axis.abbreviation if self.why_parallel_is_open(axis) else str(_parallel(self.first, axis) or "?")

    # -- GTP -------------------------------------------------------------------------------------------

    def is_open(self, target: Target) -> bool:
        """Whether any of its sizes is."""
        return any(self.why_parallel_is_open(axis) or self._why_gtp_is_open(axis, target) for axis in (DENSE, EXPERT))

    def _why_gtp_is_open(self, axis: Axis, target: Target) -> str:
        if self._expression(axis, target):
            return "comes with the run"
        return self.why_open(lambda model: _gtp(model, axis, target))

    def _expression(self, axis: Axis, target: Target) -> str:
        """The setting that counts, as it is written, where the environment has a say in it; empty where none has."""
        of = side(self.plain.cfg, axis)
        counts = (of.typed, of.override) if target is Target.MEGATRON_CFG else (of.override,)
        setting = next((each for each in counts if value_of(each) is not None and each is not ABSENT), of.size)
        return str(setting.leaf.value) if self.why_value_is_open(setting) else ""

    def gtp(self, axis: Axis, target: Target) -> str:
        """The GTP size that it trains with: a number, `12 / TP`, or why it is not known; 1 where it is off."""
        if self._why_gtp_is_open(axis, target):
            meant = self.meant(axis, target)
            return meant.size if meant is not None else _NO_NUMBER
        size = _gtp(self.first, axis, target)
        return "comes with the run" if size is None else str(size) if type(size) is int else f"not known ({size})"

    def trains_with(self, target: Target) -> str:
        """All four sizes, where some are open."""
        parallel = (self.parallel(axis).split(" (")[0] for axis in (DENSE, EXPERT))
        return f"{', '.join(parallel)}, GTP {self.gtp(DENSE, target)}, expert GTP {self.gtp(EXPERT, target)}"

    def meant(self, axis: Axis, target: Target) -> Meant | None:
        """The GTP that is set on an axis; None where nothing valid is."""
        # A count that this NeMo-RL never reads was meant all the same.
        of = side(self.first.cfg, axis)
        target = Target.MEGATRON_CFG if value_of(of.typed) is not None else target
        count = self._one(lambda model: shard_count(side(model.cfg, axis), target, before=True))
        if expression := self._expression(axis, target):
            parallel = self.size_of(axis)
            is_count = count is not None
            return Meant(
                f"{expression} / {parallel}" if is_count else expression,
                expression if is_count else f"{expression} × {parallel}",
            )
        if self.why_parallel_is_open(axis):
            if count is not None:
                return Meant(f"{count} / {axis.abbreviation}", str(count))
            size = self._one(lambda model: gtp_size(model.cfg, axis, target, before=True))
            return Meant(str(size), f"{size} × {axis.abbreviation}") if size is not None else None
        if len({_gtp(model, axis, target) for model in self.models.values()}) > 1:
            return Meant("comes with the run", "comes with the run")
        fixed, beside = _gtp(self.first, axis, target), _parallel(self.first, axis)
        if not isinstance(fixed, int) or beside is None:
            return None
        return Meant(str(fixed), str(shards_from_size(fixed, beside)))

    def _one(self, read: Callable[[Model], int | None]) -> int | None:
        """The number that is read in all worlds; None where there is none, or more than one."""
        try:
            numbers = {read(model) for model in self.models.values()}
        except TopologyError:
            return None
        return numbers.pop() if len(numbers) == 1 else None


def _parallel(model: Model, axis: Axis) -> int | None:
    try:
        return parallel_size(model.cfg, axis)
    except TopologyError:
        return None


def _gtp(model: Model, axis: Axis, target: Target) -> int | str | None:
    """None where it is `???`; why, where it is not known."""
    try:
        return gtp_size(model.cfg, axis, target, before=True)
    except TopologyError as error:
        return str(error)
