"""What a model trains with: (TP, ETP, GTP, expert GTP), before and after the migration.

Source: the order in which NeMo-RL applies a `megatron_cfg` to a provider (`setup_model_config` in
`nemo_rl/models/megatron/setup.py`), then Core's rule (:mod:`gtp_migrate.shards`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gtp_migrate.forms import Target
from gtp_migrate.recipes.interpolation import Unresolved, value_of
from gtp_migrate.recipes.keys import EP, ETP, MISSING, MODEL_OVERRIDES, TP
from gtp_migrate.recipes.values import written
from gtp_migrate.shards import (
    AXES,
    DENSE,
    EXPERT,
    Axis,
    ShardsError,
    expert_parallel_size,
    positive_int,
    size_from_shards,
)

#: The key is not there at all.
ABSENT = Unresolved("not set")


class TopologyError(Exception):
    """A model that no run could have been started with, or whose topology cannot be known."""

    #: The axis it is about, where it is about one.
    axis: Axis | None = None


@dataclass(frozen=True)
class Topology:
    """The parallel sizes that weights are sharded over. A GTP size is None where it is `???`; ETP is None where it is
    not known and nothing needs it."""

    tp: int
    etp: int | None
    gtp: int | None
    expert_gtp: int | None

    def __str__(self) -> str:
        etp, gtp, expert_gtp = ("???" if size is None else size for size in (self.etp, self.gtp, self.expert_gtp))
        return f"TP {self.tp}, ETP {etp}, GTP {gtp}, expert GTP {expert_gtp}"


@dataclass(frozen=True)
class Side:
    """All that a `megatron_cfg` says of one axis, as a resolved recipe has it; `ABSENT` for what it does not say."""

    axis: Axis
    #: `model_overrides`' old size and its shard count.
    size: Any
    override: Any
    #: The shard count in `megatron_cfg` itself.
    typed: Any

    @property
    def is_silent(self) -> bool:
        """Whether nothing is said of GTP."""
        return all(each is ABSENT or value_of(each) is None for each in (self.size, self.override, self.typed))


def side(cfg: dict[Any, Any], axis: Axis) -> Side:
    """What a `megatron_cfg` says of an axis."""
    overrides = value_of(cfg.get(MODEL_OVERRIDES))
    if isinstance(overrides, Unresolved):
        return Side(axis, overrides, overrides, cfg.get(axis.num_weight_shards, ABSENT))
    if not isinstance(overrides, dict):
        overrides = {}
    return Side(
        axis,
        overrides.get(axis.gtp_size, ABSENT),
        overrides.get(axis.num_weight_shards, ABSENT),
        cfg.get(axis.num_weight_shards, ABSENT),
    )


def parallel_size(cfg: dict[Any, Any], axis: Axis) -> int:
    """TP, or ETP as Bridge and Core resolve it.

    Raises:
        TopologyError: it is not a positive int, or not known.
    """
    if axis is DENSE:
        return _parallel(cfg.get(TP, ABSENT), "TP")
    etp = value_of(cfg.get(ETP))
    if etp is not None:
        return _parallel(etp, "ETP")
    ep = effective_ep(cfg)
    return 1 if ep > 1 else expert_parallel_size(None, ep, _parallel(cfg.get(TP, ABSENT), "TP"))


def effective_ep(cfg: dict[Any, Any]) -> int:
    """EP, 1 where it is not set.

    Raises:
        TopologyError: it is not a positive int, or not known.
    """
    ep = value_of(cfg.get(EP))
    return 1 if ep is None else _parallel(ep, "EP")


def _parallel(value: Any, name: str) -> int:
    value = value_of(value)
    if isinstance(value, Unresolved):
        raise TopologyError(f"{name} is not known ({value.why})")
    if value == MISSING:
        raise TopologyError(f"{name} is not known ({MISSING})")
    if isinstance(value, str) and value.strip().isdigit():
        raise TopologyError(f'{name} is the text "{value}", not a number (${{oc.decode:…}} makes it one)')
    return _int(value, name)


def old_size(of: Side) -> int | None:
    """The old setting's size; None where it is unset or null.

    Raises:
        TopologyError: NeMo-RL would not accept it.
    """
    return _positive(of.size, of.axis.gtp_size)


def shard_count(of: Side, target: Target, *, before: bool) -> int | None:
    """The new setting's count; None where it is unset or null.

    A typed setting counts only for a NeMo-RL that types it. An override beside it counts only before the
    migration: such a NeMo-RL rejects it.

    Raises:
        TopologyError: it is no positive int.
    """
    override = _positive(of.override, of.axis.num_weight_shards)
    if target is Target.MODEL_OVERRIDES:
        return override
    typed = _positive(of.typed, of.axis.num_weight_shards)
    return typed if typed is not None or not before else override


def _positive(value: Any, name: str) -> int | None:
    value = value if value is ABSENT else value_of(value)
    if value is None or value is ABSENT:
        return None
    if isinstance(value, Unresolved):
        raise TopologyError(f"{name} is not known ({value.why})")
    return _int(value, name)


def _int(value: Any, name: str) -> int:
    try:
        return positive_int(value, name)
    except ShardsError:
        raise TopologyError(f"{name} must be a positive integer, not {written(value)}") from None


def topology(cfg: dict[Any, Any], target: Target, *, before: bool) -> Topology:
    """What a model with this `megatron_cfg` trains with.

    Args:
        cfg: of the model.
        target: the form that this NeMo-RL takes.
        before: as it ran on a Bridge that takes the old setting; else on one that rejects it.

    Raises:
        TopologyError: no run could be started, or the values are not known.
    """
    sizes = {axis: gtp_size(cfg, axis, target, before=before) for axis in AXES}
    try:
        etp: int | None = parallel_size(cfg, EXPERT)
    except TopologyError:
        if not side(cfg, EXPERT).is_silent:
            raise
        etp = None
    return Topology(parallel_size(cfg, DENSE), etp, sizes[DENSE], sizes[EXPERT])


def gtp_size(cfg: dict[Any, Any], axis: Axis, target: Target, *, before: bool) -> int | None:
    """The GTP size on one axis, 1 where GTP is off; None where it is `???`.

    Raises:
        TopologyError: no run could be started, or the values are not known.
    """
    try:
        return _gtp_size(cfg, side(cfg, axis), target, before)
    except TopologyError as error:
        error.axis = axis
        raise


def _gtp_size(cfg: dict[Any, Any], of: Side, target: Target, before: bool) -> int | None:
    axis = of.axis
    if not before and of.override is not ABSENT:
        if of.typed is not ABSENT:
            raise TopologyError(
                f"{axis.num_weight_shards} is set both in megatron_cfg and in its model_overrides, "
                "which NeMo-RL rejects"
            )
        if target is Target.MEGATRON_CFG:
            raise TopologyError(f"model_overrides still sets {axis.num_weight_shards}, which this NeMo-RL rejects")
    if any(
        value_of(each) == MISSING for each in ((of.size, of.override, of.typed) if before else (of.override, of.typed))
    ):
        return None
    shards = shard_count(of, target, before=before)
    if shards is None:
        return (old_size(of) or 1) if before else 1
    try:
        return size_from_shards(shards, parallel_size(cfg, axis))
    except ShardsError as error:
        raise TopologyError(f"{axis.num_weight_shards}: {error}") from None
