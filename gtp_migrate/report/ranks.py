"""Which ranks work together: the groups of a layout, as Megatron-Core numbers its ranks.

A rank is a number with one digit a dimension, the fastest first. The others of its group along a dimension are those
that differ in that digit alone.

Source: `RankGenerator`, `_inject_gtp_remat_axis` and the orders that `initialize_model_parallel` gives it, in
Megatron-Core 0.19.2 (`megatron/core/parallel_state.py`): `tp-gtp-cp-dp-pp` for the dense weights, and
`etp-ep-gtp-dp-pp` for the experts'.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gtp_migrate.runs.layout import Layout


@dataclass(frozen=True)
class Dimension:
    """One digit of a rank: `rank // stride % size`."""

    name: str
    size: int
    #: Distance between neighbours of a group, in ranks.
    stride: int


def ranks_of(layout: Layout) -> int:
    """The ranks that there are: a GPU each; where the GPUs are not known, the fewest that it fits on; 0 where it does
    not fit."""
    if layout.warning:
        return 0
    return layout.gpus or math.lcm(layout.ranks_per_copy, layout.expert_ranks_per_copy)


def dense(layout: Layout) -> tuple[Dimension, ...]:
    """The dimensions of the dense weights' groups."""
    gtp = layout.topology.gtp or 1
    copies = ranks_of(layout) // layout.ranks_per_copy
    return _dimensions(
        ("TP", layout.topology.tp), ("GTP", gtp), ("CP", layout.cp), ("copies", copies), ("PP", layout.pp)
    )


def expert(layout: Layout) -> tuple[Dimension, ...]:
    """The dimensions of the experts' groups; none where ETP is not known."""
    if layout.topology.etp is None:
        return ()
    gtp = layout.topology.expert_gtp or 1
    copies = ranks_of(layout) // layout.expert_ranks_per_copy
    return _dimensions(
        ("ETP", layout.topology.etp),
        ("EP", layout.ep),
        ("expert GTP", gtp),
        ("expert copies", copies),
        ("PP", layout.pp),
    )


def _dimensions(*sizes: tuple[str, int]) -> tuple[Dimension, ...]:
    found = []
    stride = 1
    for name, size in sizes:
        found.append(Dimension(name, size, stride))
        stride *= size
    return tuple(found)


def group(dimensions: Iterable[Dimension], names: Iterable[str], rank: int) -> list[int]:
    """The ranks of a rank's group along some dimensions, in order, itself among them.

    Args:
        dimensions: of the layout.
        names: of the dimensions that the group spans.
        rank: the rank.
    """
    wanted = set(names)
    ranks = [rank]
    for each in dimensions:
        if each.name in wanted:
            digit = rank // each.stride % each.size
            ranks = [other + (n - digit) * each.stride for other in ranks for n in range(each.size)]
    return sorted(ranks)
