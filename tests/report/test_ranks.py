"""The groups of ranks, against those that Megatron-Core itself makes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gtp_migrate.report.ranks import Dimension, dense, expert, group, ranks_of
from gtp_migrate.runs.layout import Layout
from gtp_migrate.runs.topology import Topology


def layout(
    tp: int = 1, gtp: int = 1, cp: int = 1, pp: int = 1, etp: int = 1, ep: int = 1, expert_gtp: int = 1, gpus: int = 0
) -> Layout:
    return Layout("policy", Topology(tp, etp, gtp, expert_gtp), cp, pp, ep, gpus or None)


def groups(dimensions: tuple[Dimension, ...], ranks: int, *names: str) -> list[list[int]]:
    return sorted({tuple(group(dimensions, names, rank)): None for rank in range(ranks)})


#: Names of ours, as Core's orders have them.
TOKENS = {
    "TP": "tp",
    "GTP": "gtp_remat",
    "CP": "cp",
    "copies": "dp",
    "PP": "pp",
    "ETP": "tp",
    "EP": "ep",
    "expert GTP": "gtp_remat",
    "expert copies": "dp",
}

SHAPES = [
    layout(tp=4, gtp=3, etp=4, gpus=24),
    layout(tp=2, gtp=3, cp=2, pp=2, etp=2, gpus=48),
    layout(tp=4, gtp=2, etp=1, ep=4, expert_gtp=2, gpus=16),
    layout(tp=4, gtp=2, etp=2, ep=2, expert_gtp=4, gpus=16),
    layout(tp=2, gtp=2, pp=3, etp=1, ep=2, expert_gtp=2, gpus=48),
    layout(tp=1, gtp=1, gpus=3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("side", ["dense", "expert"])
def test_groups_are_cores_own(shape: Layout, side: str) -> None:
    reason = "needs megatron-core"
    state: Any = pytest.importorskip("megatron.core.parallel_state", reason=reason, exc_type=ImportError)
    ranks = ranks_of(shape)
    default_order = "tp-cp-ep-dp-pp"
    sizes = shape.topology
    if side == "dense":
        ours = dense(shape)
        generator = state.RankGenerator(
            tp=sizes.tp,
            ep=1,
            dp=ranks // shape.ranks_per_copy,
            pp=shape.pp,
            cp=shape.cp,
            order=state._inject_gtp_remat_axis(default_order, after="tp"),
            gtp_remat=sizes.gtp,
        )
    else:
        ours = expert(shape)
        generator = state.RankGenerator(
            tp=sizes.etp,
            ep=shape.ep,
            dp=ranks // shape.expert_ranks_per_copy,
            pp=shape.pp,
            cp=1,
            order=state._inject_gtp_remat_axis(default_order, after="ep"),
            gtp_remat=sizes.expert_gtp,
        )
    assert generator.world_size == ranks
    names = [each.name for each in ours]
    for count in (1, 2, 3):
        for some in itertools.combinations(names, count):
            theirs = generator.get_ranks("-".join(TOKENS[name] for name in some))
            assert groups(ours, ranks, *some) == sorted(tuple(sorted(ranks)) for ranks in theirs), some


def test_the_example() -> None:
    """24 GPUs with TP 4 and 12 shards: GTP 3, 2 copies, 6 lanes."""
    shape = SHAPES[0]
    assert (shape.copies, shape.data_lanes) == (2, 6)
    assert groups(dense(shape), 24, "TP") == [tuple(range(first, first + 4)) for first in range(0, 24, 4)]
    assert groups(dense(shape), 24, "GTP")[:2] == [(0, 4, 8), (1, 5, 9)]
    assert groups(dense(shape), 24, "TP", "GTP", "CP", "PP") == [tuple(range(12)), tuple(range(12, 24))]


def test_without_gpus_one_copy() -> None:
    assert ranks_of(layout(tp=2, gtp=3, etp=1, ep=4)) == 12


def test_what_does_not_fit_has_no_ranks() -> None:
    assert ranks_of(layout(tp=4, gtp=3, gpus=8)) == 0


def test_no_expert_groups_without_etp() -> None:
    shape = Layout("policy", Topology(2, None, 2, 1), 1, 1, 1, 8)
    assert expert(shape) == ()
    assert len(dense(shape)) == 5
