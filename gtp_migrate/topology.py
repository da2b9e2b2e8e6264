"""What a recipe trains with: (TP, ETP, GTP, expert GTP), before and after the migration.

Source: the order in which NeMo-RL applies a recipe to a provider (`setup_model_config` in
`nemo_rl/models/megatron/setup.py`), then Core's rule (:mod:`gtp_migrate.shards`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gtp_migrate.forms import Target
from gtp_migrate.recipes.resolve import ABSENT, MISSING, Settings, Unresolved, of_axis
from gtp_migrate.shards import (
    AXES,
    DENSE,
    Axis,
    ShardsError,
    expert_parallel_size,
    positive_int,
    size_from_shards,
)


class TopologyError(Exception):
    """A recipe that no run could have been started with, or whose topology cannot be known."""

    #: The axis it is about, where it is about one.
    axis: Axis | None = None


@dataclass(frozen=True)
class Topology:
    """The parallel sizes that weights are sharded over. A GTP size is None where it is `???`."""

    tp: int
    etp: int
    gtp: int | None
    expert_gtp: int | None

    def __str__(self) -> str:
        gtp, expert_gtp = ("???" if size is None else size for size in (self.gtp, self.expert_gtp))
        return f"TP {self.tp}, ETP {self.etp}, GTP {gtp}, expert GTP {expert_gtp}"


def parallel_size(settings: Settings, axis: Axis) -> int:
    """TP, or ETP as Bridge and Core resolve it.

    Raises:
        TopologyError: it is not a positive int, or not known.
    """
    tp = _parallel(settings.tp, "TP")
    if axis is DENSE:
        return tp
    etp = None if settings.etp is ABSENT else settings.etp
    if etp is not None:
        return _parallel(etp, "ETP")
    ep = 1 if settings.ep is ABSENT or settings.ep is None else _parallel(settings.ep, "EP")
    return expert_parallel_size(None, ep, tp)


def effective_ep(settings: Settings) -> int:
    """EP, 1 where it is not set or not known."""
    return settings.ep if isinstance(settings.ep, int) else 1


def _parallel(value: Any, name: str) -> int:
    if isinstance(value, Unresolved):
        raise TopologyError(f"{name} is not known ({value.why})")
    if isinstance(value, str) and value.strip().isdigit():
        raise TopologyError(f'{name} is the text "{value}", not a number (${{oc.decode:…}} makes it one)')
    try:
        return positive_int(value, name)
    except ShardsError as error:
        raise TopologyError(str(error)) from None


def old_size(settings: Settings, axis: Axis) -> int | None:
    """The old setting's size; None where it is unset or null.

    Raises:
        TopologyError: NeMo-RL would not accept it.
    """
    return _positive(of_axis(settings.size, axis), axis.gtp_size)


def shard_count(settings: Settings, axis: Axis, target: Target, before: bool) -> int | None:
    """The new setting's count; None where it is unset or null.

    A typed setting counts only for a NeMo-RL that types it. An override beside it counts only before the
    migration: such a NeMo-RL rejects it.

    Raises:
        TopologyError: it is no positive int.
    """
    override = _positive(of_axis(settings.override_shards, axis), axis.num_weight_shards)
    typed = _positive(of_axis(settings.typed_shards, axis), axis.num_weight_shards)
    if target is Target.MODEL_OVERRIDES:
        return override
    return typed if typed is not None or not before else override


def _positive(value: Any, name: str) -> int | None:
    if value is None or value is ABSENT:
        return None
    if isinstance(value, Unresolved):
        raise TopologyError(f"{name} is not known ({value.why})")
    try:
        return positive_int(value, name)
    except ShardsError as error:
        raise TopologyError(str(error)) from None


def topology(settings: Settings, target: Target, *, before: bool) -> Topology:
    """What a run with these settings trains with.

    Args:
        settings: of one `megatron_cfg`.
        target: the form that this NeMo-RL takes.
        before: as a recipe ran on a Bridge that takes the old setting; else on one that rejects it.

    Raises:
        TopologyError: no run could be started, or the values are not known.
    """
    gtp = []
    for axis in AXES:
        try:
            gtp.append(_gtp(settings, axis, target, before))
        except TopologyError as error:
            error.axis = axis
            raise
    return Topology(parallel_size(settings, AXES[0]), parallel_size(settings, AXES[1]), gtp[0], gtp[1])


def _gtp(settings: Settings, axis: Axis, target: Target, before: bool) -> int | None:
    override, typed = of_axis(settings.override_shards, axis), of_axis(settings.typed_shards, axis)
    if not before and override is not ABSENT:
        if typed is not ABSENT:
            raise TopologyError(
                f"{axis.num_weight_shards} is set both in megatron_cfg and in its model_overrides, "
                "which NeMo-RL rejects"
            )
        if target is Target.MEGATRON_CFG:
            raise TopologyError(f"model_overrides still sets {axis.num_weight_shards}, which this NeMo-RL rejects")
    if MISSING in ((of_axis(settings.size, axis), override, typed) if before else (override, typed)):
        return None
    shards = shard_count(settings, axis, target, before)
    if shards is None:
        return (old_size(settings, axis) or 1) if before else 1
    try:
        return size_from_shards(shards, parallel_size(settings, axis))
    except ShardsError as error:
        raise TopologyError(f"{axis.num_weight_shards}: {error}") from None
