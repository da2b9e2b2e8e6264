"""The rule: shards = parallel size x GTP size, on each axis of its own.

Source: ``resolve_tensor_parallel_weight_shards`` in Megatron-Core 0.19.2
(``megatron/core/model_parallel_config.py``) and ``TransformerConfig.finalize`` in Megatron-Bridge
(``megatron/bridge/models/transformer_config.py``). No I/O and no imports outside the standard library:
the rewriter and the runtime shim both stand on this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class ShardsError(ValueError):
    """A size or a count that Core, Bridge or NeMo-RL would reject. The message says which and why."""


@dataclass(frozen=True)
class Axis:
    """One of the two groups of ranks that weights are sharded over, with the names of its config fields."""

    name: str
    #: How the parallel size is abbreviated: TP or ETP.
    abbreviation: str
    #: Field of the parallel size: over how many ranks a layer's computation is split.
    parallel_size: str
    #: Field of the new, user-facing setting: shards per weight.
    num_weight_shards: str
    #: Field of the old setting, derived by new Bridge: the GTP size.
    gtp_size: str


DENSE = Axis(
    name="dense",
    abbreviation="TP",
    parallel_size="tensor_model_parallel_size",
    num_weight_shards="tensor_parallel_num_weight_shards",
    gtp_size="gtp_weight_remat_size",
)
EXPERT = Axis(
    name="expert",
    abbreviation="ETP",
    parallel_size="expert_tensor_parallel_size",
    num_weight_shards="expert_tensor_parallel_num_weight_shards",
    gtp_size="expert_gtp_weight_remat_size",
)
AXES = (DENSE, EXPERT)


def positive_int(value: Any, what: str) -> int:
    """``value`` if it is an int of 1 or more; a bool, a float and a numeric text are not.

    Raises:
        ShardsError: otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ShardsError(f"{what} must be a positive integer, not {value!r}")
    return value


def shards_from_size(size: int, parallel_size: int) -> int:
    """Shards per weight of a run with this GTP size.

    Raises:
        ShardsError: either number is not a positive int.
    """
    return positive_int(size, "the GTP size") * positive_int(parallel_size, "the parallel size")


def size_from_shards(shards: int | None, parallel_size: int) -> int:
    """GTP size of a run with this many shards per weight; unset (None) is 1: GTP off.

    Raises:
        ShardsError: a number is not a positive int, or ``shards`` is smaller than the parallel size or
            not divisible by it.
    """
    positive_int(parallel_size, "the parallel size")
    if shards is None:
        return 1
    positive_int(shards, "the number of weight shards")
    if shards % parallel_size:
        raise ShardsError(
            f"the number of weight shards ({shards}) must be a multiple of the parallel size ({parallel_size})"
        )
    return shards // parallel_size


def expert_parallel_size(etp: int | None, ep: int, tp: int) -> int:
    """ETP as Bridge and Core resolve it: unset (None) is 1 where EP > 1, else TP."""
    if etp is not None:
        return etp
    return 1 if ep > 1 else tp
