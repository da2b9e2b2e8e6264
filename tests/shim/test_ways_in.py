"""Every way into a checkpoint's config gives the same right answer, on both Bridges.

ROWS are the measured facts: what was saved, at which TP it is loaded, and the GTP size that comes out
without the shim on each Bridge and with it.
"""

from __future__ import annotations

import copy
import pickle

import pytest
from bridge_machine import checkpoints, nemo_rl
from bridge_machine.checkpoints import BLOCKS, MODEL, save
from megatron.bridge.models.conversion.auto_bridge import AutoBridge
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training import model_load_save
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.mlm_compat import model as mlm_model
from megatron.bridge.training.model_load_save import load_megatron_model, load_model_config
from megatron.bridge.utils.instantiate_utils import InstantiationMode
from megatron.training.models.gpt import GPTModelConfig

from gtp_migrate import shim

SHARDS_12 = {"tensor_parallel_num_weight_shards": 12}
SIZE_3 = {"gtp_weight_remat_size": 3}

# saved at TP 4, loaded at TP, without the shim on released and on new Bridge, with it
ROWS = [
    (SHARDS_12, 4, 3, 3, 3),
    (SHARDS_12, 1, 12, 12, 1),
    (SHARDS_12, 2, 6, 6, 1),
    (SHARDS_12, 8, ValueError, ValueError, 1),
    (SIZE_3, 4, 3, 1, 3),
    (SIZE_3, 8, 3, 1, 1),
    (SIZE_3, 1, 3, 1, 1),
    ({}, 4, 1, 1, 1),
    ({}, 8, 1, 1, 1),
]
IDS = [f"{'-'.join(f'{k[-6:]}{v}' for k, v in row[0].items()) or 'off'}-tp{row[1]}" for row in ROWS]


def outcome(config):
    """Shards and GTP size of a finalized config, which must agree."""
    shards, size = config.tensor_parallel_num_weight_shards, config.gtp_weight_remat_size
    assert type(size) is int
    assert shards is None or shards == size * config.tensor_model_parallel_size
    return size


class Captured(Exception):
    """The config as the model would be built from it."""

    def __init__(self, config):
        self.config = config


def capture(self, *args, **kwargs):
    raise Captured(self)


def load(bridge, folder, tp):
    config, _ = load_model_config(folder)
    config.tensor_model_parallel_size = tp
    config.finalize()
    return config


def megatron_model(bridge, folder, tp, monkeypatch):
    monkeypatch.setattr(GPTModelProvider, "provide_distributed_model", capture)
    overrides = {"tensor_model_parallel_size": tp}
    with pytest.raises(Captured) as captured:
        load_megatron_model(folder, use_cpu_init=True, skip_temp_dist_context=True, mp_overrides=overrides)
    return captured.value.config


def auto_bridge(bridge, folder, tp, monkeypatch):
    monkeypatch.setattr(GPTModelProvider, "provide_distributed_model", capture)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda *a: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda *a: 1)
    monkeypatch.setattr("torch.distributed.broadcast_object_list", lambda *a, **k: None)
    monkeypatch.setattr("torch.distributed.get_backend", lambda *a: "gloo")
    auto = object.__new__(AutoBridge)
    auto.trust_remote_code = False
    with pytest.raises(Captured) as captured:
        auto.load_megatron_model(folder, mp_overrides={"tensor_model_parallel_size": tp})
    return captured.value.config


def lenient_yaml(bridge, folder, tp):
    config = ConfigContainer.from_yaml(f"{folder}/run_config.yaml").model
    config.tensor_model_parallel_size = tp
    config.finalize()
    return config


def strict_yaml(bridge, folder, tp):
    config = ConfigContainer.from_yaml(f"{folder}/run_config.yaml", mode=InstantiationMode.STRICT).model
    config.tensor_model_parallel_size = tp
    config.finalize()
    return config


def nemo_rl_with_overrides(bridge, folder, tp):
    config, _ = load_model_config(folder)
    return nemo_rl.set_up(config, {"layernorm_epsilon": 1e-6}, tp=tp)


def nemo_rl_without_overrides(bridge, folder, tp):
    config, _ = load_model_config(folder)
    config = nemo_rl.set_up(config, {}, tp=tp)
    if bridge.name == "new":  # derives its sizes only later, before it makes its process groups
        config.finalize()
    return config


def deep_copied(bridge, folder, tp):
    config, _ = load_model_config(folder)
    config = copy.deepcopy(config)
    config.tensor_model_parallel_size = tp
    config.finalize()
    return config


def replaced_and_deep_copied(bridge, folder, tp):
    config, _ = load_model_config(folder)
    config = copy.deepcopy(nemo_rl.merge_model_overrides(config, {"layernorm_epsilon": 1e-6}))
    config.tensor_model_parallel_size = tp
    config.finalize()
    return config


def pickled(bridge, folder, tp):
    config, _ = load_model_config(folder)
    config = pickle.loads(pickle.dumps(config))
    config.tensor_model_parallel_size = tp
    config.finalize()
    return config


PLAIN_WAYS = [
    load,
    lenient_yaml,
    strict_yaml,
    nemo_rl_with_overrides,
    nemo_rl_without_overrides,
    deep_copied,
    replaced_and_deep_copied,
    pickled,
]


@pytest.mark.parametrize(("counts", "tp", "released", "new", "right"), ROWS, ids=IDS)
def test_without_the_shim_the_table_is_as_measured(bridge, saved, counts, tp, released, new, right):
    folder = saved(bridge.provider, counts)
    expected = {"released": released, "new": new}[bridge.name]
    if expected is ValueError:
        with pytest.raises(ValueError, match="12"):
            load(bridge, folder, tp)
    else:
        assert load(bridge, folder, tp).gtp_weight_remat_size == expected


@pytest.mark.parametrize("way", PLAIN_WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(("counts", "tp", "released", "new", "right"), ROWS, ids=IDS)
def test_way(bridge, way, saved, counts, tp, released, new, right, hooked):
    folder = saved(bridge.provider, counts)
    assert outcome(way(bridge, folder, tp)) == right


@pytest.mark.parametrize("way", [megatron_model, auto_bridge], ids=lambda way: way.__name__)
@pytest.mark.parametrize(("counts", "tp", "released", "new", "right"), ROWS, ids=IDS)
def test_way_to_a_model(bridge, way, saved, counts, tp, released, new, right, hooked, monkeypatch):
    folder = saved(bridge.provider, counts)
    assert outcome(way(bridge, folder, tp, monkeypatch)) == right


@pytest.mark.parametrize("kind", ["config", "mla", "heterogeneous", "own_finalize"])
@pytest.mark.parametrize(("counts", "tp", "released", "new", "right"), ROWS, ids=IDS)
def test_class(bridge, kind, saved, counts, tp, released, new, right, hooked):
    extra = {"heterogeneous_layers_config_encoded_json": BLOCKS} if kind == "heterogeneous" else {}
    folder = saved(getattr(bridge, kind), counts, **extra)
    config = load(bridge, folder, tp)
    assert type(config) is getattr(bridge, kind)
    assert outcome(config) == right


@pytest.mark.parametrize("through", ["load_model_config", "from_yaml", "load_megatron_model"])
@pytest.mark.parametrize(("counts", "tp", "released", "new", "right"), ROWS, ids=IDS)
def test_builder_config(bridge, through, saved, counts, tp, released, new, right, hooked, monkeypatch):
    folder = saved(bridge.builder, counts)
    if through == "load_megatron_model":
        monkeypatch.setattr(GPTModelConfig, "get_builder_cls", capture)
        with pytest.raises(Captured) as captured:
            load_megatron_model(folder, skip_temp_dist_context=True, mp_overrides={"tensor_model_parallel_size": tp})
        config = captured.value.config
    else:
        if through == "from_yaml":
            config = ConfigContainer.from_yaml(f"{folder}/run_config.yaml").model
        else:
            config, _ = load_model_config(folder)
        config.tensor_model_parallel_size = tp
        config.finalize()
    assert type(config) is GPTModelConfig
    assert type(config.transformer) is bridge.config
    assert outcome(config) == right


@pytest.mark.parametrize(("counts", "tp", "released", "new", "right"), ROWS, ids=IDS)
class TestMegatronLM:
    """Core's class, finalized on construction and by nobody after."""

    def folder(self, tmp_path, counts):
        return checkpoints.save_megatron_lm(tmp_path, tensor_model_parallel_size=4, **counts)

    def test_without_the_shim_the_saved_size_stays(self, tmp_path, counts, tp, released, new, right):
        config, args = load_model_config(self.folder(tmp_path, counts))
        config.tensor_model_parallel_size = tp
        assert args is not None
        assert config.gtp_weight_remat_size == (3 if counts else 1)

    def test_finalized_again(self, tmp_path, counts, tp, released, new, right, hooked):
        config, _ = load_model_config(self.folder(tmp_path, counts))
        config.tensor_model_parallel_size = tp
        config.__post_init__()
        assert outcome(config) == right

    def test_as_far_as_the_model(self, tmp_path, counts, tp, released, new, right, monkeypatch):
        monkeypatch.setattr(mlm_model, "_get_model", lambda args, provider, model_cfg: capture(model_cfg))
        monkeypatch.setattr(model_load_save, "build_tokenizer", lambda config: type("T", (), {"vocab_size": 256}))
        folder = self.folder(tmp_path, counts)
        with shim.installed(), pytest.raises(Captured) as captured:
            load_megatron_model(
                folder,
                model_type="gpt",
                skip_temp_dist_context=True,
                mp_overrides={"tensor_model_parallel_size": tp},
            )
        assert outcome(captured.value.config) == right


MOE_ROWS = [
    # saved, then loaded with; the expert GTP size that is right
    ({"etp": 2, "shards": 6}, {"etp": 2}, 3),
    ({"etp": 2, "shards": 6}, {"etp": 1}, 1),
    ({"etp": 2, "shards": 6}, {"etp": 4}, 1),
    ({"etp": 2, "size": 3}, {"etp": 2}, 3),
    ({"etp": 2, "size": 3}, {"etp": 4}, 1),
    # unset: 1 where EP > 1, else TP, on both ends
    ({"etp": None, "ep": 4, "shards": 2}, {"etp": None, "ep": 4}, 2),
    ({"etp": None, "ep": 4, "shards": 2}, {"etp": None, "ep": 1}, 1),
    ({"etp": None, "ep": 1, "shards": 8}, {"etp": 4, "ep": 1}, 2),
    ({"etp": None, "ep": 1, "shards": 8}, {"etp": None, "ep": 2}, 1),
    ({"etp": None, "ep": 1, "shards": 8}, {"etp": None, "ep": 1, "tp": 2}, 1),
]


@pytest.mark.parametrize("unfinalized", [False, True], ids=["finalized", "null-in-file"])
@pytest.mark.parametrize(("was", "now", "right"), MOE_ROWS, ids=range(len(MOE_ROWS)))
def test_expert_side(bridge, tmp_path, was, now, right, unfinalized, hooked):
    provider = bridge.provider(
        **MODEL,
        **checkpoints.MOE,
        tensor_model_parallel_size=4,
        expert_tensor_parallel_size=was["etp"],
        expert_model_parallel_size=was.get("ep", 1),
        expert_tensor_parallel_num_weight_shards=was.get("shards"),
    )
    raw = {"expert_gtp_weight_remat_size": was["size"]} if "size" in was else {}
    if unfinalized:
        raw["expert_tensor_parallel_size"] = was["etp"]
    config, _ = load_model_config(save(provider, tmp_path, **raw))
    config.tensor_model_parallel_size = now.get("tp", 4)
    config.expert_tensor_parallel_size = now["etp"]
    config.expert_model_parallel_size = now.get("ep", 1)
    config.finalize()
    assert config.expert_gtp_weight_remat_size == right
    assert config.gtp_weight_remat_size == 1


def test_the_other_side_is_not_touched(bridge, tmp_path, hooked):
    provider = bridge.provider(
        **MODEL,
        **checkpoints.MOE,
        tensor_model_parallel_size=4,
        tensor_parallel_num_weight_shards=12,
        expert_tensor_parallel_size=2,
        expert_tensor_parallel_num_weight_shards=6,
    )
    folder = save(provider, tmp_path)
    config, _ = load_model_config(folder)
    config.tensor_model_parallel_size = 8
    config.finalize()
    assert (config.tensor_parallel_num_weight_shards, config.gtp_weight_remat_size) == (None, 1)
    assert (config.expert_tensor_parallel_num_weight_shards, config.expert_gtp_weight_remat_size) == (6, 3)

    config, _ = load_model_config(folder)
    config.expert_tensor_parallel_size = 1
    config.finalize()
    assert (config.tensor_parallel_num_weight_shards, config.gtp_weight_remat_size) == (12, 3)
    assert (config.expert_tensor_parallel_num_weight_shards, config.expert_gtp_weight_remat_size) == (None, 1)
