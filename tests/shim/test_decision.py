"""The decision as a plain function: reset_weight_shards."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import yaml
from bridge_machine import checkpoints
from bridge_machine.checkpoints import MODEL, save
from megatron.bridge.training.model_load_save import load_model_config
from megatron.core.model_parallel_config import ModelParallelConfig

from gtp_migrate import shim

NONSENSE = [0, -12, 10, 3, True, 12.0, "12"]


@pytest.fixture
def folder(bridge, tmp_path):
    provider = bridge.provider(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12)
    return save(provider, tmp_path / "iter_0000100")


def loaded(folder, tp):
    config, _ = load_model_config(folder)
    config.tensor_model_parallel_size = tp
    return config


class TestResetWeightShards:
    @pytest.mark.parametrize("given_as", ["mapping", "model section", "folder", "root", "file"])
    def test_takes_what_is_at_hand_and_returns_what_it_changed(self, folder, given_as):
        with open(f"{folder}/run_config.yaml") as file:
            run_config = yaml.safe_load(file)
        root = folder.removesuffix("/iter_0000100")
        saved = {
            "mapping": run_config,
            "model section": run_config["model"],
            "folder": folder,
            "root": root,
            "file": f"{folder}/run_config.yaml",
        }[given_as]
        config = loaded(folder, 8)
        size = config.gtp_weight_remat_size  # 1 already where the class does not take it
        changed = shim.reset_weight_shards(config, saved)
        assert changed.pop("gtp_weight_remat_size", (1, 1)) == (size, 1)
        assert changed == {"tensor_parallel_num_weight_shards": (12, None)}
        config.finalize()
        assert (config.tensor_parallel_num_weight_shards, config.gtp_weight_remat_size) == (None, 1)
        assert shim.reset_weight_shards(config, saved) == {}

    def test_nothing_to_change(self, bridge, folder):
        config = loaded(folder, 4)
        changed = shim.reset_weight_shards(config, folder)
        assert "tensor_parallel_num_weight_shards" not in changed
        config.finalize()
        assert config.gtp_weight_remat_size == 3

    def test_a_count_the_run_set_stays(self, folder):
        for shards, right in ((16, (16, 2)), (None, (None, 1))):
            config = loaded(folder, 8)
            config.tensor_parallel_num_weight_shards = shards
            shim.reset_weight_shards(config, folder)
            config.finalize()
            assert (config.tensor_parallel_num_weight_shards, config.gtp_weight_remat_size) == right

    def test_a_size_recorded_by_an_older_bridge(self, bridge, tmp_path):
        provider = bridge.provider(**MODEL, tensor_model_parallel_size=4)
        folder = save(provider, tmp_path, gtp_weight_remat_size=3)
        config = loaded(folder, 4)
        assert shim.reset_weight_shards(config, folder)["tensor_parallel_num_weight_shards"] == (None, 12)
        config.finalize()
        assert config.gtp_weight_remat_size == 3

    def test_a_builder_config(self, bridge, tmp_path):
        transformer = bridge.config(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12)
        folder = save(checkpoints.builder(transformer), tmp_path)
        config = loaded(folder, 8)
        assert shim.reset_weight_shards(config, folder)["tensor_parallel_num_weight_shards"] == (12, None)
        assert config.transformer.tensor_parallel_num_weight_shards is None

    def test_cores_own_class_takes_tp_for_etp(self):
        config = ModelParallelConfig(tensor_model_parallel_size=2, expert_model_parallel_size=2)
        config.expert_tensor_parallel_size = None
        config.expert_tensor_parallel_num_weight_shards = 3
        sizes = {"expert_tensor_parallel_size": 1, "expert_model_parallel_size": 2}
        changed = shim.reset_weight_shards(config, {"model": {**sizes, "expert_tensor_parallel_num_weight_shards": 3}})
        assert changed == {"expert_tensor_parallel_num_weight_shards": (3, None)}

    @pytest.mark.parametrize("shards", NONSENSE)
    def test_nonsense_stays_with_a_warning(self, folder, shards, caplog):
        config = SimpleNamespace(
            tensor_model_parallel_size=8, tensor_parallel_num_weight_shards=shards, gtp_weight_remat_size=1
        )
        saved = {"model": {"tensor_model_parallel_size": 4, "tensor_parallel_num_weight_shards": shards}}
        assert shim.reset_weight_shards(config, saved) == {}
        assert config.tensor_parallel_num_weight_shards == shards
        (record,) = [record for record in caplog.records if record.name == "gtp_migrate.shim"]
        assert record.levelno == logging.WARNING
        assert "dense" in record.getMessage()

    def test_errors(self, tmp_path):
        config = SimpleNamespace()
        with pytest.raises(FileNotFoundError, match=r"run_config\.yaml"):
            shim.reset_weight_shards(config, tmp_path)
        with pytest.raises(TypeError, match="int"):
            shim.reset_weight_shards(config, 4)
        with pytest.raises(ValueError, match="model section"):
            shim.reset_weight_shards(config, {"model": None})
        (tmp_path / "run_config.yaml").write_text("{")
        with pytest.raises(ValueError, match="YAML"):
            shim.reset_weight_shards(config, tmp_path)
