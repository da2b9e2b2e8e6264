"""The decision as plain functions: reset_weight_shards, SavedTopology, and the rule behind them."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import yaml
from bridge_machine import checkpoints
from bridge_machine.checkpoints import MODEL, save
from hypothesis import given
from hypothesis import strategies as st
from megatron.bridge.training.model_load_save import load_model_config

from gtp_migrate import shim
from gtp_migrate.shards import DENSE, EXPERT, ShardsError
from gtp_migrate.shim.reset import Count, decide
from gtp_migrate.shim.topology import SavedTopology, Side

NONSENSE = [0, -12, 10, 3, True, 12.0, "12"]


@pytest.fixture
def folder(bridge, tmp_path):
    provider = bridge.provider(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12)
    return save(provider, tmp_path / "iter_0000100")


def loaded(folder, tp):
    config, _ = load_model_config(folder)
    config.tensor_model_parallel_size = tp
    return config


class TestDecide:
    @given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 16), st.booleans(), st.booleans())
    def test_gtp_stays_where_the_parallel_size_does_and_only_there(self, was, now, size, as_size, keep):
        side = Side(DENSE, was, None if as_size else was * size, size)
        count = decide(side, now, keep_gtp=keep)
        assert count.gtp_size == (size if was == now or keep else 1)
        assert count.num_weight_shards in (None, count.gtp_size * now)
        if count.gtp_size > 1:
            assert count.num_weight_shards == count.gtp_size * now

    def test_the_recorded_size_counts_only_without_shards(self):
        assert decide(Side(DENSE, 4, 12, 7), 4) == Count(12, 3)

    @pytest.mark.parametrize("shards", NONSENSE)
    def test_nonsense_is_an_error_here(self, shards):
        with pytest.raises(ShardsError):
            decide(Side(DENSE, 4, shards, 1), 4)

    @pytest.mark.parametrize("size", [0, -1, True, 2.5, "2", None])
    def test_a_nonsense_size_is_an_error_here(self, size):
        with pytest.raises(ShardsError):
            decide(Side(EXPERT, 4, None, size), 4)


class TestResetWeightShards:
    @pytest.mark.parametrize("given_as", ["mapping", "model section", "folder", "root", "file", "topology"])
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
            "topology": SavedTopology.of(folder),
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

    def test_keep_gtp(self, folder, monkeypatch):
        config = loaded(folder, 8)
        shim.reset_weight_shards(config, folder, keep_gtp=True)
        assert config.tensor_parallel_num_weight_shards == 24
        monkeypatch.setenv("GTP_MIGRATE_KEEP_GTP", "1")
        config = loaded(folder, 2)
        assert shim.reset_weight_shards(config, folder)["tensor_parallel_num_weight_shards"] == (12, 6)

    def test_the_newest_iteration_counts(self, bridge, tmp_path):
        for iteration, tp in (("iter_0000900", 2), ("iter_0001000", 4)):
            save(bridge.provider(**MODEL, tensor_model_parallel_size=tp), tmp_path / iteration)
        assert SavedTopology.of(tmp_path).dense.parallel_size == 4
        assert SavedTopology.of(tmp_path).checkpoint == str(tmp_path / "iter_0001000")

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

    def test_after_finalize_too(self, folder):
        config = loaded(folder, 2)
        config.finalize()
        assert config.gtp_weight_remat_size == 6
        shim.reset_weight_shards(config, folder)
        assert (config.tensor_parallel_num_weight_shards, config.gtp_weight_remat_size) == (None, 1)

    def test_a_builder_config(self, bridge, tmp_path):
        transformer = bridge.config(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12)
        folder = save(checkpoints.builder(transformer), tmp_path)
        config = loaded(folder, 8)
        assert shim.reset_weight_shards(config, folder)["tensor_parallel_num_weight_shards"] == (12, None)
        assert config.transformer.tensor_parallel_num_weight_shards is None

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
