"""A load that worked still works, whatever the checkpoint says; and what is said about it."""

from __future__ import annotations

import logging
import pickle

import pytest
from bridge_machine import checkpoints
from bridge_machine.checkpoints import MODEL, save
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.model_load_save import load_model_config
from megatron.bridge.training.utils import checkpoint_utils
from megatron.bridge.utils import instantiate_utils
from megatron.bridge.utils.instantiate_utils import InstantiationMode

from gtp_migrate import shim
from gtp_migrate.shards import AXES

LOGGER = "gtp_migrate.shim"


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG, LOGGER)

    def said():
        return [(r.levelno, r.getMessage()) for r in caplog.records if r.name == LOGGER]

    return said


def outcome(folder, tp, through):
    """The counts of the finalized config, or the error."""
    try:
        if through == "load_model_config":
            config, _ = load_model_config(folder)
        else:
            config = ConfigContainer.from_yaml(f"{folder}/run_config.yaml").model
        config.tensor_model_parallel_size = tp
        config.finalize()
    except Exception as error:
        return type(error), str(error)
    return (
        config.tensor_parallel_num_weight_shards,
        config.gtp_weight_remat_size,
        config.expert_tensor_parallel_num_weight_shards,
        config.expert_gtp_weight_remat_size,
    )


@pytest.mark.parametrize("through", ["load_model_config", "from_yaml"])
@pytest.mark.parametrize(
    "raw",
    [
        {"tensor_parallel_num_weight_shards": 0},
        {"tensor_parallel_num_weight_shards": -12},
        {"tensor_parallel_num_weight_shards": 10},
        {"tensor_parallel_num_weight_shards": 2},
        {"tensor_parallel_num_weight_shards": "12"},
        {"tensor_parallel_num_weight_shards": True},
        {"tensor_parallel_num_weight_shards": 12.0},
        {"tensor_parallel_num_weight_shards": [12]},
        {"gtp_weight_remat_size": 0},
        {"gtp_weight_remat_size": -3},
        {"gtp_weight_remat_size": 2.5},
        {"gtp_weight_remat_size": "3"},
        {"gtp_weight_remat_size": None},
        {"gtp_weight_remat_size": {"a": 1}},
    ],
    ids=str,
)
def test_counts_that_make_no_sense_are_left_to_bridge_with_a_warning(bridge, tmp_path, raw, through, lines):
    folder = save(bridge.provider(**MODEL, tensor_model_parallel_size=4), tmp_path, **raw)
    without = [outcome(folder, tp, through) for tp in (4, 8)]
    checkpoint_utils.read_run_config.cache_clear()  # a size that Bridge has dropped, nobody can judge
    with shim.installed():
        assert [outcome(folder, tp, through) for tp in (4, 8)] == without
    assert {level for level, _ in lines()} == {logging.WARNING}
    assert all("dense" in line for _, line in lines())


@pytest.mark.parametrize("through", ["load_model_config", "from_yaml"])
@pytest.mark.parametrize(
    "raw",
    [
        {"tensor_model_parallel_size": ...},
        {"expert_tensor_parallel_size": ...},
        {"expert_model_parallel_size": ...},
        {"tensor_parallel_num_weight_shards": ...},
        {"gtp_weight_remat_size": ...},
        {"expert_tensor_parallel_num_weight_shards": ..., "expert_gtp_weight_remat_size": ...},
        dict.fromkeys(
            [n for a in AXES for n in (a.num_weight_shards, a.gtp_size)] + ["tensor_model_parallel_size"], ...
        ),
    ],
    ids=lambda raw: "-".join(raw),
)
def test_a_run_config_with_keys_missing_says_what_the_class_says(bridge, tmp_path, raw, through):
    folder = save(bridge.provider(**MODEL, tensor_model_parallel_size=4), tmp_path, **raw)
    without = outcome(folder, 8, through)
    with shim.installed():
        assert outcome(folder, 8, through) == without == (None, 1, None, 1)


@pytest.mark.parametrize("through", ["load_model_config", "from_yaml"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "model:",
        "[]",
        "model: 3",
        "model: {}",
        "{",
        "model: {_target_: nowhere.Nothing}",
        "other: 1",
        "\x00",
    ],
)
def test_an_unreadable_run_config_fails_as_it_did(tmp_path, text, through):
    (tmp_path / "run_config.yaml").write_text(text)

    without = outcome(str(tmp_path), 8, through)
    assert without[0] not in (12, None), "no config comes out of this"
    with shim.installed():
        assert outcome(str(tmp_path), 8, through) == without


def not_here(path):
    raise FileNotFoundError(path)


def test_a_run_config_that_is_no_plain_file(bridge, tmp_path, monkeypatch, hooked):
    """Bridge reads from object stores too: what the config holds is what was recorded."""
    provider = bridge.provider(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12)
    folder = save(provider, tmp_path)
    monkeypatch.setattr("gtp_migrate.shim.hooks.read_yaml", not_here)
    assert [outcome(folder, tp, "from_yaml")[:2] for tp in (4, 8)] == [(12, 3), (None, 1)]


def test_a_container_without_a_model(tmp_path, monkeypatch, hooked):
    path = str(tmp_path / "config.yaml")
    checkpoints.NoModel(number=3).to_yaml(path)
    assert checkpoints.NoModel.from_yaml(path) == checkpoints.NoModel(number=3)
    monkeypatch.setattr("gtp_migrate.shim.hooks.read_yaml", not_here)
    assert checkpoints.NoModel.from_yaml(path) == checkpoints.NoModel(number=3)


def test_two_checkpoints_read_before_either_config_is_made(bridge, tmp_path, hooked):
    read = []
    for tp, shards in ((4, 12), (2, 4)):
        provider = bridge.provider(**MODEL, tensor_model_parallel_size=tp, tensor_parallel_num_weight_shards=shards)
        folder = save(provider, tmp_path / str(tp))
        read.append(checkpoint_utils.read_run_config(f"{folder}/run_config.yaml"))
    sizes = []
    for run_config, tp in zip(read * 2, (8, 2, 4, 4), strict=True):
        config = instantiate_utils.instantiate(run_config["model"])
        config.tensor_model_parallel_size = tp
        config.finalize()
        sizes.append(config.gtp_weight_remat_size)
    assert sizes == [1, 2, 3, 1]


@pytest.mark.parametrize("bound", ["before", "after"])
def test_what_bridge_reads_is_what_it_read_without(bridge, tmp_path, bound):
    provider = bridge.provider(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12)
    folder = save(provider, tmp_path)
    plain = checkpoint_utils.read_run_config(f"{folder}/run_config.yaml")
    read_run_config = checkpoint_utils.read_run_config
    checkpoint_utils.read_run_config.cache_clear()
    with shim.installed():
        if bound == "after":
            read_run_config = checkpoint_utils.read_run_config
        for _ in range(2):
            read = read_run_config(f"{folder}/run_config.yaml")
            assert read == plain
        ConfigContainer.from_dict(read, mode=InstantiationMode.STRICT)


def test_every_rank_gets_what_rank_0_read(tmp_path, hooked, monkeypatch):
    """Ranks other than 0 do not read the file: all they have is the broadcast."""
    folder = save(checkpoints.NEW.provider(**MODEL, tensor_model_parallel_size=4), tmp_path, gtp_weight_remat_size=3)
    sent = []
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda *a: 2)
    monkeypatch.setattr("torch.distributed.get_rank", lambda *a: 0)
    monkeypatch.setattr(
        "torch.distributed.broadcast_object_list", lambda objects, **k: sent.append(pickle.dumps(objects))
    )
    assert outcome(folder, 4, "load_model_config") == (12, 3, None, 1)

    checkpoint_utils.read_run_config.cache_clear()
    (tmp_path / "run_config.yaml").write_text("")
    monkeypatch.setattr("torch.distributed.get_rank", lambda *a: 1)

    def receive(objects, **kwargs):
        objects[:] = pickle.loads(sent[0])

    monkeypatch.setattr("torch.distributed.broadcast_object_list", receive)
    assert outcome(folder, 4, "load_model_config") == (12, 3, None, 1)


def test_one_line_for_each_reset(bridge, tmp_path, lines, hooked):
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
    config.expert_tensor_parallel_size = 1
    config.finalize()
    config.finalize()
    (dense_level, dense), (expert_level, expert) = lines()
    assert dense_level == expert_level == logging.WARNING
    for part in (folder, "dense side", "TP 4", "12 weight shards", "GTP size 3", "TP 8", "reset"):
        assert part in dense
    for part in (folder, "expert side", "ETP 2", "6 weight shards", "GTP size 3", "ETP 1", "reset"):
        assert part in expert


def test_nothing_is_said_where_nothing_changed(bridge, tmp_path, lines, hooked):
    for number, (counts, raw, tp) in enumerate(
        [
            ({"tensor_parallel_num_weight_shards": 12}, {}, 4),
            ({}, {"gtp_weight_remat_size": 3}, 4),
            ({}, {}, 4),
            ({}, {}, 8),
        ]
    ):
        provider = bridge.provider(**MODEL, tensor_model_parallel_size=4, **counts)
        outcome(save(provider, tmp_path / str(number), **raw), tp, "load_model_config")
    config, _ = load_model_config(str(tmp_path / "0"))
    config.tensor_model_parallel_size = 8
    config.tensor_parallel_num_weight_shards = 16
    config.finalize()
    assert lines() == []
