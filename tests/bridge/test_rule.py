"""The rule of gtp_migrate.shards against the real packages: the old setting and the new give the same sizes."""

from __future__ import annotations

import itertools

import pytest
from bridge_machine import checkpoints, nemo_rl
from bridge_machine.checkpoints import MODEL, MOE
from megatron.core.model_parallel_config import resolve_tensor_parallel_weight_shards

from gtp_migrate.shards import (
    ShardsError,
    expert_parallel_size,
    shards_from_size,
    size_from_shards,
)

RELEASED = checkpoints.RELEASED.provider
NEW = checkpoints.NEW.provider

GRID = [
    (tp, etp, ep, size, expert_size)
    for tp, etp, ep in itertools.product((1, 2, 4), (None, 1, 2), (1, 2))
    for size, expert_size in ((1, 1), (3, 1), (1, 2), (2, 3))
]


def new_setting(tp, etp, ep, size, expert_size):
    return {
        "tensor_parallel_num_weight_shards": shards_from_size(size, tp),
        "expert_tensor_parallel_num_weight_shards": shards_from_size(expert_size, expert_parallel_size(etp, ep, tp)),
    }


def old_setting(size, expert_size):
    return {"gtp_weight_remat_size": size, "expert_gtp_weight_remat_size": expert_size}


def topology(provider):
    provider.finalize()
    return (
        provider.tensor_model_parallel_size,
        provider.expert_tensor_parallel_size,
        provider.gtp_weight_remat_size,
        provider.expert_gtp_weight_remat_size,
    )


def parallel(tp, etp, ep):
    return {
        "tensor_model_parallel_size": tp,
        "expert_tensor_parallel_size": etp,
        "expert_model_parallel_size": ep,
        "sequence_parallel": tp > 1,
    }


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("tp", [1, 2, 4, 6])
def test_core(tp, size):
    shards = shards_from_size(size, tp)
    assert resolve_tensor_parallel_weight_shards(tp, None, size) == (shards, size)
    assert resolve_tensor_parallel_weight_shards(tp, shards, 1) == (shards, size)
    assert resolve_tensor_parallel_weight_shards(tp, shards, 99) == (shards, size)
    assert size_from_shards(shards, tp) == size


@pytest.mark.parametrize(("tp", "shards"), [(4, 2), (4, 6), (4, 13), (8, 12)])
def test_what_core_refuses_is_an_error(tp, shards):
    with pytest.raises(ValueError, match=str(shards)):
        resolve_tensor_parallel_weight_shards(tp, shards, 1)
    with pytest.raises(ShardsError, match=str(shards)):
        size_from_shards(shards, tp)


@pytest.mark.parametrize(("tp", "etp", "ep", "size", "expert_size"), GRID)
class TestProvider:
    def test_released_bridge_takes_both_settings_alike(self, tp, etp, ep, size, expert_size):
        base = {**MODEL, **MOE, **parallel(tp, etp, ep)}
        old = topology(RELEASED(**base, **old_setting(size, expert_size)))
        new = topology(RELEASED(**base, **new_setting(tp, etp, ep, size, expert_size)))
        assert old == new == (tp, expert_parallel_size(etp, ep, tp), size, expert_size)

    def test_new_bridge_gives_the_same_sizes_for_the_new_setting(self, tp, etp, ep, size, expert_size):
        base = {**MODEL, **MOE, **parallel(tp, etp, ep)}
        new = topology(NEW(**base, **new_setting(tp, etp, ep, size, expert_size)))
        assert new == (tp, expert_parallel_size(etp, ep, tp), size, expert_size)

    def test_merged_as_nemo_rl_does(self, tp, etp, ep, size, expert_size):
        base = {**MODEL, **MOE, **parallel(tp, etp, ep)}
        right = (tp, expert_parallel_size(etp, ep, tp), size, expert_size)
        new = new_setting(tp, etp, ep, size, expert_size)
        old = old_setting(size, expert_size)
        assert topology(nemo_rl.merge_model_overrides(RELEASED(**base), old)) == right
        assert topology(nemo_rl.merge_model_overrides(RELEASED(**base), new)) == right
        assert topology(nemo_rl.merge_model_overrides(NEW(**base), new)) == right
        for name, value in old.items():
            with pytest.raises(AttributeError, match=rf"model_overrides\.{name} does not match"):
                nemo_rl.merge_model_overrides(NEW(**base), {name: value})
