"""Where weights are read: GTP-sharded ones fit only the topology they were written with."""

from __future__ import annotations

import logging
import sys
import types
from types import SimpleNamespace

import pytest
from bridge_machine import checkpoints
from bridge_machine.checkpoints import MODEL, MOE, save
from hypothesis import given
from hypothesis import strategies as st
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training import checkpointing
from megatron.bridge.training.checkpointing import load_checkpoint  # bound before the hooks are on
from megatron.bridge.training.model_load_save import load_megatron_model

from gtp_migrate import shim
from gtp_migrate.shards import DENSE, EXPERT
from gtp_migrate.shim import GTPReshardError
from gtp_migrate.shim.topology import SavedTopology, Side
from gtp_migrate.shim.weights import check

OFF_EXPERT = Side(EXPERT, 1, None, 1)


def dense(tp, gtp):
    return SavedTopology(Side(DENSE, tp, None, gtp), OFF_EXPERT, "ckpt")


def expert(etp, egtp):
    return SavedTopology(Side(DENSE, 4, None, 1), Side(EXPERT, etp, None, egtp), "ckpt")


SIZES = st.tuples(st.integers(1, 8), st.integers(1, 4))


@pytest.mark.parametrize("side", [dense, expert])
@given(saved=SIZES, requested=SIZES)
def test_a_side_with_gtp_on_either_end_must_match(side, saved, requested):
    if saved == requested or saved[1] == requested[1] == 1:
        check(side(*saved), side(*requested))
    else:
        with pytest.raises(GTPReshardError):
            check(side(*saved), side(*requested))


def test_the_message_says_what_and_why_and_the_ways_out():
    with pytest.raises(GTPReshardError) as raised:
        check(dense(4, 3), dense(8, 1))
    message = str(raised.value)
    for part in (
        "ckpt",
        "dense",
        "TP 4, GTP size 3",
        "TP 8, GTP size 1",
        "scrambled",
        "tensor_model_parallel_size: 4 and tensor_parallel_num_weight_shards: 12",
        "HF",
        "allow_gtp_reshard=True",
        "GTP_MIGRATE_ALLOW_RESHARD=1",
    ):
        assert part in message
    assert isinstance(raised.value, ValueError)


def test_numbers_that_make_no_sense_pass_with_a_warning(caplog):
    check(dense(4, 0), dense(8, 3))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.fixture(scope="session")
def folder(bridge, tmp_path_factory):
    """A checkpoint with TP 4 and GTP 3, with the common state that Bridge reads first."""
    tmp_path = tmp_path_factory.mktemp("weights")
    provider = bridge.provider(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12)
    checkpoints.save_megatron_lm(tmp_path / "iter_0000001")
    return save(provider, tmp_path / "iter_0000001")


def finalized(bridge, **kwargs):
    config = bridge.provider(**MODEL, **kwargs)
    config.finalize()
    return config


class Read(Exception):
    """Bridge went on to read the weights."""


def read(*args, **kwargs):
    raise Read


def by_weights_function(folder, config, monkeypatch):
    monkeypatch.setattr(checkpointing.dist_checkpointing, "load_common_state_dict", read)
    checkpointing._load_model_weights_from_checkpoint(folder, [SimpleNamespace(module=SimpleNamespace(config=config))])


def by_load_checkpoint(folder, config, monkeypatch):
    """As training and NeMo-RL do."""
    monkeypatch.setattr(checkpointing.dist_checkpointing, "load_content_metadata", read)
    monkeypatch.setattr(checkpointing, "get_rng_state", lambda *args, **kwargs: None)
    run = checkpoints.container(config)
    run.checkpoint = checkpointing.CheckpointConfig(load=folder, load_rng=False, finetune=True)
    load_checkpoint(SimpleNamespace(cfg=run), [], None, None, pg_collection=object())


READERS = pytest.mark.parametrize("reader", [by_weights_function, by_load_checkpoint])
REQUESTED = [
    ({"tensor_model_parallel_size": 4, "tensor_parallel_num_weight_shards": 12}, True),
    ({"tensor_model_parallel_size": 4}, False),
    ({"tensor_model_parallel_size": 8}, False),
    ({"tensor_model_parallel_size": 1, "tensor_parallel_num_weight_shards": 12}, False),
    ({"tensor_model_parallel_size": 8, "tensor_parallel_num_weight_shards": 24}, False),
]


@READERS
@pytest.mark.parametrize(("requested", "fits"), REQUESTED)
class TestReaders:
    def test_checked(self, bridge, folder, requested, fits, reader, monkeypatch, hooked):
        config = finalized(bridge, **requested)
        with pytest.raises(Read if fits else GTPReshardError):
            reader(folder, config, monkeypatch)

    def test_not_without_the_shim(self, bridge, folder, requested, fits, reader, monkeypatch):
        config = finalized(bridge, **requested)
        with pytest.raises(Read):
            reader(folder, config, monkeypatch)

    @pytest.mark.parametrize("by", ["argument", "environment"])
    def test_allowed_with_a_warning(self, bridge, folder, requested, fits, reader, monkeypatch, by, caplog):
        config = finalized(bridge, **requested)
        if by == "environment":
            monkeypatch.setenv("GTP_MIGRATE_ALLOW_RESHARD", "1")
        with shim.installed(allow_gtp_reshard=True if by == "argument" else None), pytest.raises(Read):
            reader(folder, config, monkeypatch)
        warnings = [record for record in caplog.records if record.name == "gtp_migrate.shim"]
        assert [record.levelno for record in warnings] == ([] if fits else [logging.WARNING])

    def test_out_of_the_way_where_bridge_checks_itself(
        self, bridge, folder, requested, fits, reader, monkeypatch, hooked
    ):
        own = types.ModuleType("megatron.bridge.training.gtp")
        own._validate_checkpoint_weight_topology = lambda **kwargs: None
        monkeypatch.setitem(sys.modules, own.__name__, own)
        config = finalized(bridge, **requested)
        with pytest.raises(Read):
            reader(folder, config, monkeypatch)


def test_allowed_it_warns_once_for_both_reads_of_a_load(bridge, folder, monkeypatch, caplog):
    monkeypatch.setattr(
        checkpointing, "_load_global_dist_base_checkpoint", lambda *args, **kwargs: ({}, folder, False, None)
    )
    run = checkpoints.container(finalized(bridge, tensor_model_parallel_size=8))
    run.checkpoint = checkpointing.CheckpointConfig(load=folder)
    with shim.installed(allow_gtp_reshard=True):
        for rank0 in (True, False):
            checkpointing._load_base_checkpoint(folder, run.checkpoint, rank0=rank0, cfg=run, pg_collection=object())
    assert [record.name for record in caplog.records].count("gtp_migrate.shim") == 1


@READERS
def test_plain_tp_changes_pass(bridge, tmp_path, reader, monkeypatch, hooked):
    checkpoints.save_megatron_lm(tmp_path)
    folder = save(bridge.provider(**MODEL, tensor_model_parallel_size=4), tmp_path)
    with pytest.raises(Read):
        reader(folder, finalized(bridge, tensor_model_parallel_size=8), monkeypatch)


@READERS
def test_the_sides_are_checked_each_on_its_own(bridge, tmp_path, reader, monkeypatch, hooked):
    kwargs = {**MOE, "expert_tensor_parallel_size": 2, "expert_tensor_parallel_num_weight_shards": 6}
    checkpoints.save_megatron_lm(tmp_path)
    folder = save(bridge.provider(**MODEL, **kwargs, tensor_model_parallel_size=4), tmp_path)
    with pytest.raises(Read):
        reader(folder, finalized(bridge, **kwargs, tensor_model_parallel_size=8), monkeypatch)
    kwargs["expert_tensor_parallel_num_weight_shards"] = 2
    with pytest.raises(GTPReshardError, match="expert"):
        reader(folder, finalized(bridge, **kwargs, tensor_model_parallel_size=4), monkeypatch)


@READERS
def test_a_size_that_an_old_checkpoint_recorded_counts(bridge, tmp_path, reader, monkeypatch, hooked):
    checkpoints.save_megatron_lm(tmp_path)
    folder = save(bridge.provider(**MODEL, tensor_model_parallel_size=4), tmp_path, gtp_weight_remat_size=3)
    with pytest.raises(GTPReshardError, match="GTP size 3"):
        reader(folder, finalized(bridge, tensor_model_parallel_size=4), monkeypatch)


@pytest.mark.parametrize(("tp", "fits"), [(4, True), (2, False)])
def test_a_megatron_lm_checkpoint(tmp_path, tp, fits, monkeypatch, hooked):
    folder = checkpoints.save_megatron_lm(tmp_path, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12)
    config = finalized(checkpoints.RELEASED, tensor_model_parallel_size=tp)
    config.gtp_weight_remat_size = 3 if fits else 1
    with pytest.raises(Read if fits else GTPReshardError):
        by_load_checkpoint(folder, config, monkeypatch)


@READERS
def test_a_checkpoint_that_says_nothing_passes(bridge, tmp_path, reader, monkeypatch, hooked):
    checkpoints.save_megatron_lm(tmp_path)
    (tmp_path / "run_config.yaml").write_text("model: {tensor_model_parallel_size: 4, pipeline_model_parallel_size: 1}")
    with pytest.raises(Read):
        reader(str(tmp_path), finalized(bridge, tensor_model_parallel_size=8), monkeypatch)


def test_load_megatron_model_of_a_gtp_checkpoint_on_one_gpu(bridge, folder, monkeypatch, hooked):
    monkeypatch.setattr(
        GPTModelProvider, "provide_distributed_model", lambda self, **kwargs: [SimpleNamespace(config=self)]
    )
    with pytest.raises(GTPReshardError, match="TP 4, 12 weight shards, GTP size 3"):
        load_megatron_model(folder, use_cpu_init=True, skip_temp_dist_context=True)
