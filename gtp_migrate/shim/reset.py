"""The decision: what becomes of a checkpoint's shard counts in this run.

A count belongs to the parallel size it was saved with. Where the run has that size, the count stays, as a
shard count even if only a GTP size was recorded: Bridge versions that derive the size would drop it. Where
the run has another size, the count is reset, or rescaled on request. What the run sets itself always wins.

Source: ``ModelParallelConfig.__post_init__`` in Megatron-Core (``megatron/core/model_parallel_config.py``)
derives GTP size = shards // parallel size from whatever count it finds.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from gtp_migrate.shards import positive_int, shards_from_size
from gtp_migrate.shim.log import say
from gtp_migrate.shim.settings import KEEP_GTP, environment_flag
from gtp_migrate.shim.topology import COUNTS, SavedTopology, Side, transformer_config


class Count(NamedTuple):
    """Shards per weight (None: unset) and the GTP size that goes with it."""

    num_weight_shards: int | None
    gtp_size: int


OFF = Count(None, 1)


def decide(saved: Side, parallel_size: int, *, keep_gtp: bool = False) -> Count:
    """The count of a side in a run that sets none itself.

    Args:
        saved: the side as the checkpoint recorded it.
        parallel_size: this run's TP or effective ETP.
        keep_gtp: where the parallel size differs, keep the GTP size instead of turning GTP off.

    Raises:
        ShardsError: a number makes no sense.
    """
    size = saved.gtp()
    positive_int(parallel_size, "the parallel size")
    if saved.num_weight_shards is None and size == 1:
        return OFF
    if parallel_size == saved.parallel_size or keep_gtp:
        return Count(shards_from_size(size, parallel_size), size)
    return OFF


def apply(
    config: Any, saved: SavedTopology, *, keep_gtp: bool, set_by_run: Collection[str]
) -> tuple[dict[str, tuple[Any, Any]], list[tuple[int, str]]]:
    """Give ``config`` the counts this run should have; a side whose numbers make no sense is left alone.

    Args:
        config: the object with the count fields (of a builder config, its ``transformer``).
        saved: what the checkpoint recorded.
        keep_gtp: see :func:`decide`.
        set_by_run: names of count fields that this run set itself.

    Returns:
        Each changed field with its old and new value; a line to log for each side that was reset,
        rescaled or could not be decided, with its level.
    """
    changed: dict[str, tuple[Any, Any]] = {}
    lines: list[tuple[int, str]] = []
    for side, now in zip(saved.sides, SavedTopology.of_config(config).sides, strict=True):
        shards_field, size_field = side.axis.num_weight_shards, side.axis.gtp_size
        wanted: dict[str, Any] = {}
        moved = side.parallel_size != now.parallel_size
        if shards_field in set_by_run:
            # Core derives the size, but only in finalize(), and without a count leaves the loaded size in force.
            size = _gtp(Side(side.axis, now.parallel_size, now.num_weight_shards, 1))
            if size is not None and size_field not in set_by_run:
                wanted = {size_field: size}
        elif size_field in set_by_run:
            wanted = {shards_field: None}
        else:
            try:
                count = decide(side, now.parallel_size, keep_gtp=keep_gtp)
            except ValueError as error:
                line = f"{saved.checkpoint}: the {side.axis.name} side's shard count is left as loaded: {error}"
                lines.append((logging.WARNING, line))
                continue
            wanted = {shards_field: count.num_weight_shards, size_field: count.gtp_size}
            if moved and (side.num_weight_shards is not None or side.gtp() > 1):
                outcome = (
                    f"rescaled to {count.num_weight_shards} weight shards, GTP size {count.gtp_size}"
                    if keep_gtp
                    else f"reset: GTP is off unless this run sets {shards_field}"
                )
                line = (
                    f"{saved.checkpoint}: the {side.axis.name} side was saved with {side} and runs with "
                    f"{side.axis.abbreviation} {now.parallel_size}: its shard count is {outcome}"
                )
                lines.append((logging.INFO, line))
        for name, value in wanted.items():
            old = getattr(config, name, COUNTS[name])
            if old != value:
                # Not setattr: this is not the run setting it.
                vars(config)[name] = value
                changed[name] = (old, value)
    return changed, lines


def _gtp(side: Side) -> int | None:
    try:
        return side.gtp()
    except ValueError:
        return None


def differing(config: Any, known: Mapping[str, Any]) -> set[str]:
    """The count fields whose value is not the ``known`` one, so that only this run can have set it.

    A GTP size does not count where it is no setting: derived from a shard count, or not taken by the
    constructor, as in Bridge versions whose ``finalize()`` derives it.
    """
    fields = getattr(type(config), "__dataclass_fields__", {})
    found = {name for name, value in known.items() if getattr(config, name, COUNTS[name]) != value}
    for side in SavedTopology.of_config(config).sides:
        name = side.axis.gtp_size
        if name in found and (
            (name in fields and not fields[name].init)
            or (side.num_weight_shards is not None and _gtp(side) == side.gtp_size)
        ):
            found.remove(name)
    return found


def reset_weight_shards(
    model_config: Any, saved: Any, *, keep_gtp: bool = False
) -> dict[str, tuple[int | None, int | None]]:
    """Make the shard counts of a loaded model config fit this run, without any hook.

    Call it after this run's TP, ETP and EP are set and before ``finalize()``. A side whose parallel size is
    not the saved one has its loaded count reset to unset and its GTP size to 1; a side whose parallel size
    is the saved one keeps its GTP, as a shard count even where only a size was recorded. A count that
    differs from the saved one was set by this run and stays, null too. (The same number set again cannot be
    told from the loaded one here; the hooks of :func:`gtp_migrate.shim.install` can.)

    Args:
        model_config: a Bridge model provider, a builder config, or a Core config.
        saved: the checkpoint's run_config as a mapping, its folder, or a :class:`SavedTopology`.
        keep_gtp: rescale instead of reset: 12 shards at TP 4 become 24 at TP 8. The environment variable
            GTP_MIGRATE_KEEP_GTP does the same.

    Returns:
        Each changed field with its old and its new value; empty where nothing changed.

    Raises:
        FileNotFoundError: ``saved`` is a folder without a run_config.yaml.
        ValueError: ``saved`` holds no model config. Counts in it that make no sense raise nothing: they stay
            as loaded, with a warning, for Bridge to judge.
        TypeError: ``saved`` is none of the three.
    """
    topology = SavedTopology.of(saved)
    config = transformer_config(model_config)
    recorded = {
        name: value
        for side in topology.sides
        for name, value in (
            (side.axis.num_weight_shards, side.num_weight_shards),
            (side.axis.gtp_size, side.gtp_size),
        )
    }
    changed, lines = apply(
        config,
        topology,
        keep_gtp=keep_gtp or environment_flag(KEEP_GTP),
        set_by_run=differing(config, recorded),
    )
    for level, line in lines:
        if changed or level > logging.INFO:
            say(level, line)
    return changed
