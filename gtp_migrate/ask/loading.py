"""What becomes of a checkpoint's shard counts and weights where it is loaded at another TP, ETP or EP.

A pure function of what `run_config.yaml` recorded. Source: `load_model_config` and `finalize()` in Megatron-Bridge;
`_validate_checkpoint_weight_topology` in its pull request 6116; the runtime shim (:mod:`gtp_migrate.shim`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from gtp_migrate.ask.run_config import SavedConfig
from gtp_migrate.forms import Target
from gtp_migrate.recipes.keys import EP, ETP, MODEL_OVERRIDES, TP
from gtp_migrate.runs.topology import TopologyError, gtp_size
from gtp_migrate.shards import AXES, DENSE, EXPERT, Axis, ShardsError, shards_from_size, size_from_shards


@dataclass(frozen=True)
class Where:
    """What a checkpoint is loaded with."""

    is_new: bool
    has_shim: bool

    def __str__(self) -> str:
        return f"{'new' if self.is_new else 'released'} Bridge{' + shim' if self.has_shim else ''}"


EVERYWHERE = tuple(Where(is_new, has_shim) for is_new in (False, True) for has_shim in (False, True))


class Weights(Enum):
    """What comes of reading the weights."""

    RIGHT = "read right"
    SCRAMBLED = "scrambled, silently"
    REFUSED = "ValueError"
    REFUSED_BY_SHIM = "GTPReshardError"
    #: The load has ended before.
    NOT_REACHED = "not reached"


@dataclass(frozen=True)
class Result:
    """One axis of one load."""

    where: Where
    #: 1 where GTP is off; None where the load ends in `error`.
    gtp: int | None
    error: str
    #: Where the saved weights are whole, as a Bridge whose GTP was not active left them; and where GTP had cut them.
    if_whole: Weights
    if_cut: Weights


@dataclass(frozen=True)
class Load:
    """One axis of a checkpoint at one parallel size."""

    axis: Axis
    saved_with: Any
    parallel_size: Any
    #: GTP size that was saved, asked for by the run that did; None where the numbers make no sense.
    saved_gtp: int | None
    results: tuple[Result, ...]


def reset(count: Any, size: Any, saved_with: Any, parallel_size: Any) -> tuple[Any, Any]:
    """The count and the size that the shim leaves of what a checkpoint recorded on one axis.

    Where the parallel size is the one it was saved with, GTP stays, as a count even where only a size was recorded;
    else it is off. Numbers that make no sense stay as they are, for Bridge to judge.

    Args:
        count: recorded; None for none.
        size: recorded, 1 for none.
        saved_with: the parallel size of the run that saved it.
        parallel_size: that of this run.
    """
    try:
        if count is None:
            if size == 1:
                return None, 1
            count = shards_from_size(size, saved_with)
        kept = size_from_shards(count, saved_with)
    except ShardsError:
        return count, size
    return (count, kept) if parallel_size == saved_with else (None, 1)


def loads(saved: SavedConfig, tp: int | None = None, etp: int | None = None, ep: int | None = None) -> Iterator[Load]:
    """What happens on each axis that matters.

    Args:
        saved: the checkpoint's config.
        tp: of the run that loads it; None: as saved. Likewise the others.
    """
    now = {name: value for name, value in ((TP, tp), (ETP, etp), (EP, ep)) if value is not None}
    here = replace(saved, values={**saved.values, **now})
    for axis in AXES:
        if axis is DENSE or saved.has_experts or not _is_silent(saved, EXPERT):
            yield _load(saved, here, axis)


def _is_silent(saved: SavedConfig, axis: Axis) -> bool:
    count, size = saved.values.get(axis.num_weight_shards), saved.values.get(axis.gtp_size, 1)
    return count is None and size == 1


def _load(saved: SavedConfig, here: SavedConfig, axis: Axis) -> Load:
    saved_with, parallel_size = (each.tp if axis is DENSE else each.etp for each in (saved, here))
    saved_gtp, _ = _gtp(saved, axis, saved.values.get(axis.num_weight_shards), saved.values.get(axis.gtp_size), False)
    results = []
    for where in EVERYWHERE:
        count, size = saved.values.get(axis.num_weight_shards), saved.values.get(axis.gtp_size, 1)
        if where.has_shim:
            count, size = reset(count, size, saved_with, parallel_size)
        gtp, error = _gtp(here, axis, count, size, where.is_new)
        there = (saved_with, saved_gtp)
        results.append(
            Result(
                where,
                gtp,
                error,
                _weights(where, there, (saved_with, 1), (parallel_size, gtp)),
                _weights(where, there, there, (parallel_size, gtp)),
            )
        )
    return Load(axis, saved_with, parallel_size, saved_gtp, tuple(results))


def _gtp(config: SavedConfig, axis: Axis, count: Any, size: Any, is_new: bool) -> tuple[int | None, str]:
    """The GTP size that `finalize()` comes to, or why it raises: a loaded config is as one with these overrides."""
    cfg = {
        **{name: config.values[name] for name in (TP, ETP, EP) if name in config.values},
        MODEL_OVERRIDES: {axis.num_weight_shards: count, axis.gtp_size: size},
    }
    try:
        return gtp_size({TP: 1, **cfg}, axis, Target.MODEL_OVERRIDES, before=not is_new), ""
    except TopologyError as error:
        return None, str(error)


_Sizes = tuple[Any, "int | None"]


def _weights(where: Where, asked: _Sizes, cut: _Sizes, here: _Sizes) -> Weights:
    """What comes of reading the weights of one axis.

    Args:
        where: what reads them.
        asked: parallel size and GTP size in the checkpoint's config.
        cut: those that its weights were really cut by.
        here: those of this run's config.
    """
    if here[1] is None or asked[1] is None:
        return Weights.NOT_REACHED
    # Where GTP is not active, a config may ask for it: weights stay whole.
    active = here if where.is_new else (here[0], 1)
    is_right = cut == active or (cut[1] == 1 and active[1] == 1)
    if where.is_new:
        # Its own check goes by the configs, and the shim leaves the checking to it.
        if asked != here and max(asked[1], here[1]) > 1:
            return Weights.REFUSED
        return Weights.RIGHT if is_right else Weights.SCRAMBLED
    if is_right:
        return Weights.RIGHT
    return Weights.REFUSED_BY_SHIM if where.has_shim else Weights.SCRAMBLED
