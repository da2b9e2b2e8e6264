"""NeMo-RL's own functions on providers loaded through the shim, and the restatement held against them."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
from bridge_machine import nemo_rl as restated
from bridge_machine.checkpoints import MODEL, save
from megatron.bridge.training.model_load_save import load_model_config

from gtp_migrate import shim

SOURCE = Path(__file__).parents[3] / "shared" / "corpus" / "nemo_rl_source"
SHARDS, EXPERT_SHARDS = "tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards"


@pytest.fixture(scope="module")
def setup():
    if not SOURCE.is_dir():
        pytest.skip("NeMo-RL's source is not here (../shared/corpus/nemo_rl_source)")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "path", [*sys.path, str(SOURCE)])
        from nemo_rl.models.megatron import setup

        yield setup


def megatron_cfg(**kwargs):
    return {
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "expert_tensor_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None,
        "sequence_parallel": False,
        "moe_router_dtype": None,
        "moe_router_load_balancing_type": "none",
        "moe_router_bias_update_rate": 0.0,
        "moe_permute_fusion": False,
        "moe_enable_deepep": False,
        "moe_token_dispatcher_type": "allgather",
        "moe_shared_expert_overlap": False,
        "freeze_moe_router": False,
        "apply_rope_fusion": False,
        **kwargs,
    }


def counts(config):
    return config.tensor_parallel_num_weight_shards, config.gtp_weight_remat_size


def load(setup, folder, overrides, tp):
    """As ``setup_model_config``: the checkpoint, the overrides, the parallel sizes, ``finalize()``."""
    config, _ = load_model_config(folder)
    if overrides:
        config = setup._merge_model_overrides(config, overrides)
    setup._apply_parallelism_config(config, {"megatron_cfg": megatron_cfg(tensor_model_parallel_size=tp)})
    config.finalize()
    config.__post_init__()
    return config


@pytest.mark.parametrize(
    ("overrides", "tp", "right"),
    [
        ({}, 4, (12, 3)),
        ({}, 2, (None, 1)),
        ({"layernorm_epsilon": 1e-6}, 4, (12, 3)),
        ({"layernorm_epsilon": 1e-6}, 8, (None, 1)),
        ({SHARDS: 12}, 2, (12, 6)),
        ({SHARDS: 16}, 8, (16, 2)),
        ({SHARDS: None}, 4, (None, 1)),
    ],
)
def test_a_policy(setup, bridge, saved, overrides, tp, right, hooked):
    folder = saved(bridge.provider, {SHARDS: 12})
    assert counts(load(setup, folder, overrides, tp)) == right
    config, _ = load_model_config(folder)
    config = restated.set_up(config, overrides, tp=tp)
    config.finalize()
    assert counts(config) == right, "the restatement"


def test_the_old_setting_again_at_another_tp(setup, saved, hooked):
    """The recipe's size of 3 is this run's, also where the checkpoint recorded the same one."""
    from bridge_machine.checkpoints import RELEASED

    folder = saved(RELEASED.provider, {SHARDS: 12})
    assert counts(load(setup, folder, {"gtp_weight_remat_size": 3}, 2)) == (None, 3)


class Finalized(Exception):
    pass


def inference_copy(setup, monkeypatch, training, sizes, generation=None):
    """``build_inference_model`` up to ``finalize()``; after that it asks for the world's size."""
    copied = copy.deepcopy(training)

    def stop():
        raise Finalized

    monkeypatch.setattr(setup.torch.distributed, "get_world_size", stop)
    policy = {"megatron_cfg": megatron_cfg(**sizes), "generation": {"mcore_generation_config": generation or {}}}
    with pytest.raises(Finalized):
        setup.build_inference_model(policy, None, copied)
    return copied


@pytest.mark.parametrize(("tp", "etp"), [(1, 1), (2, 1), (8, 2), (4, 1)])
def test_the_inference_copy_has_whole_weights(setup, bridge, saved, monkeypatch, tp, etp, hooked):
    training = load(setup, saved(bridge.provider, {SHARDS: 12}), {"layernorm_epsilon": 1e-6}, 4)
    sizes = {"tensor_model_parallel_size": tp, "expert_tensor_parallel_size": etp}
    copied = inference_copy(setup, monkeypatch, training, sizes)
    assert counts(copied) == (tp, 1)
    assert (copied.expert_tensor_parallel_num_weight_shards, copied.expert_gtp_weight_remat_size) == (etp, 1)
    assert counts(training) == (12, 3)


@pytest.mark.parametrize("asked", [{SHARDS: 4}, {"model_overrides": {SHARDS: 4}}])
def test_unless_the_generation_config_sets_them(setup, bridge, saved, monkeypatch, asked, hooked):
    training = load(setup, saved(bridge.provider, {SHARDS: 12}), {}, 4)
    copied = inference_copy(setup, monkeypatch, training, {"tensor_model_parallel_size": 2}, asked)
    assert counts(copied) == (4, 2)


def test_it_stands_back_where_nemo_rl_types_the_counts(setup, saved, monkeypatch, hooked):
    from bridge_machine.checkpoints import RELEASED
    from nemo_rl.models.policy import MegatronConfig

    monkeypatch.setitem(MegatronConfig.__annotations__, SHARDS, int)
    training = load(setup, saved(RELEASED.provider, {SHARDS: 12}), {}, 4)
    assert counts(inference_copy(setup, monkeypatch, training, {"tensor_model_parallel_size": 2})) == (12, 6)


def test_without_the_shim_it_is_as_measured(setup, tmp_path, monkeypatch):
    from bridge_machine.checkpoints import RELEASED

    provider = RELEASED.provider(**MODEL, tensor_model_parallel_size=4, **{SHARDS: 12})
    training = load(setup, save(provider, tmp_path), {}, 4)
    sizes = [counts(inference_copy(setup, monkeypatch, training, {"tensor_model_parallel_size": t}))[1] for t in (1, 2)]
    assert sizes == [12, 6]
    with pytest.raises(ValueError, match="12"):
        inference_copy(setup, monkeypatch, training, {"tensor_model_parallel_size": 8})
    assert not shim.INSTALLATION.on
