"""What the first cut got wrong, point by point."""

from __future__ import annotations

import copy
import importlib
import io
import logging
import sys
from dataclasses import replace

import pytest
from bridge_machine import gpt, nemo_rl, ranks, weights
from bridge_machine.checkpoints import MODEL, NEW, RELEASED, save
from bridge_machine.weights import Mlp
from megatron.bridge.models.distillation_provider import convert_to_distillation_provider
from megatron.bridge.training import checkpointing
from megatron.bridge.training.model_load_save import load_megatron_model, load_model_config
from megatron.bridge.training.utils import checkpoint_utils
from megatron.bridge.utils import instantiate_utils

from gtp_migrate import shim

SHARDS, SIZE = "tensor_parallel_num_weight_shards", "gtp_weight_remat_size"


def counts(config):
    return config.tensor_parallel_num_weight_shards, config.gtp_weight_remat_size


def import_and_train(rank, folder):
    """TP 1 without GTP, then weights into a run that asks for 12 shards at TP 1 (GTP 12)."""
    gpt.on_cpu()
    config = gpt.provider(RELEASED.provider)
    config.finalize()
    imported = gpt.save(gpt.build(config), folder)
    shim.install()
    config, _ = load_model_config(imported)
    config = nemo_rl.set_up(config, {SHARDS: 12}, tp=1)
    checkpointing._load_model_weights_from_checkpoint(imported, gpt.build(config))
    return gpt.save(gpt.build(config), f"{folder}/trained"), counts(config)


def export(rank, store, checkpoint):
    gpt.on_cpu()
    shim.install()
    load_megatron_model(checkpoint, use_cpu_init=True)
    return True


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return ranks.run(1, import_and_train, str(tmp_path_factory.mktemp("import")))[0]


class TestWholeWeightsAreNotRefused:
    def test_1_a_run_that_starts_from_an_import(self, trained):
        assert trained[1] == (12, 12)

    def test_2_an_export_of_such_a_run(self, trained):
        assert ranks.run(1, export, trained[0], init=False) == [True]


def read_where_rank_0_knows_the_file(rank, store, folder):
    gpt.on_cpu()
    shim.install()
    if rank == 0:
        load_model_config(folder)
    ranks.start(rank, 2, store)
    config = gpt.provider(RELEASED.provider, tensor_model_parallel_size=2)
    config.finalize()
    model = gpt.build(config)
    checkpointing._load_model_weights_from_checkpoint(folder, model)
    return True


def write_at_tp_2(rank, folder):
    gpt.on_cpu()
    config = gpt.provider(RELEASED.provider, tensor_model_parallel_size=2)
    config.finalize()
    return gpt.save(gpt.build(config), folder)


def test_3_a_read_of_weights_waits_for_no_other_rank(tmp_path):
    folder = ranks.run(2, write_at_tp_2, str(tmp_path))[0]
    assert ranks.run(2, read_where_rank_0_knows_the_file, folder, init=False, seconds=60) == [True, True]


ADAPTERS = Mlp(tp=2, gtp=2, adapters=True)


def read_adapters(rank, store, folder):
    """``load_peft_adapter_checkpoint`` of Bridge, on a model that is nothing but its adapters."""
    from megatron.bridge.peft import utils

    ranks.start(rank, 1, store)
    reader = replace(ADAPTERS, tp=1, gtp=1)
    weights.groups_of(reader)
    shim.install()

    class Model:
        def load_state_dict(self, state, strict):
            pass

    utils._model_state_dict = lambda *args, **kwargs: {"model": reader.sharded(blank=True)[0]}
    checkpointing.apply_peft_adapter_filter_to_state_dict = lambda state, peft: state
    try:
        utils.load_peft_adapter_checkpoint([Model()], folder, peft=None, fully_parallel_load=False)
    except shim.GTPReshardError:
        return "refused"
    return "read"


def test_4_adapters_are_guarded_too(tmp_path):
    ranks.run(4, weights.write, ADAPTERS, str(tmp_path))
    (tmp_path / "run_config.yaml").write_text("model: {tensor_model_parallel_size: 2, gated_linear_unit: true}")
    assert ranks.run(1, read_adapters, str(tmp_path), init=False) == ["refused"]


def read_with_a_newer_core(rank, folder):
    import types

    name = "megatron.core.tensor_parallel.gtp_ckpt"
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    shim.install()
    gpt.on_cpu()
    config, _ = load_model_config(folder)
    config = nemo_rl.set_up(config, {SHARDS: 12}, tp=1)
    checkpointing._load_model_weights_from_checkpoint(folder, gpt.build(config))
    return counts(config)


def test_5_a_core_that_saves_in_logical_order_is_not_stopped(tmp_path):
    folder = ranks.run(2, write_at_tp_2, str(tmp_path))[0]
    assert ranks.run(1, read_with_a_newer_core, folder) == [(12, 12)]


def expert_counts_without_experts(rank, folder):
    gpt.on_cpu()
    shim.install()
    config, _ = load_model_config(folder)
    config.tensor_model_parallel_size = 1
    config.expert_tensor_parallel_size = 1
    config.expert_tensor_parallel_num_weight_shards = 3
    config.finalize()
    checkpointing._load_model_weights_from_checkpoint(folder, gpt.build(config))
    return config.expert_gtp_weight_remat_size


class Test6:
    def test_expert_counts_of_a_model_without_experts(self, tmp_path):
        folder = ranks.run(2, write_at_tp_2, str(tmp_path))[0]
        assert ranks.run(1, expert_counts_without_experts, folder) == [3]

    @pytest.mark.parametrize("copied", [False, True])
    @pytest.mark.parametrize(("tp", "right"), [(4, [(12, 3), (8, 2)]), (2, [(None, 1), (None, 1)])])
    def test_a_distillation_pair(self, bridge, tmp_path, tp, right, copied, hooked):
        pair = []
        for name, shards in (("student", 12), ("teacher", 8)):
            provider = bridge.provider(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=shards)
            pair.append(load_model_config(save(provider, tmp_path / name))[0])
        student = convert_to_distillation_provider(*pair)
        if copied:
            student = copy.deepcopy(student)
        student.tensor_model_parallel_size = tp
        for _ in range(2):
            student.finalize()
            student.teacher.finalize()
            assert [counts(student), counts(student.teacher)] == right

    def test_a_teacher_without_gtp_stays_so(self, bridge, tmp_path, hooked):
        pair = []
        for name, shards in (("student", 16), ("teacher", None)):
            provider = bridge.provider(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=shards)
            pair.append(load_model_config(save(provider, tmp_path / name))[0])
        student = copy.deepcopy(convert_to_distillation_provider(*pair))
        student.finalize()
        student.teacher.finalize()
        assert [counts(student), counts(student.teacher)] == [(16, 4), (None, 1)]

    @pytest.mark.parametrize("copied", [dict, copy.deepcopy, lambda section: {**section}])
    def test_a_copy_of_the_section_that_bridge_read(self, bridge, saved, copied, hooked):
        folder = saved(bridge.provider, {SHARDS: 12})
        run_config = checkpoint_utils.read_run_config(f"{folder}/run_config.yaml")
        config = instantiate_utils.instantiate(copied(run_config["model"]))
        config.tensor_model_parallel_size = 2
        config.finalize()
        assert counts(config) == (None, 1)

    def test_the_iteration_that_was_finished_last(self, bridge, tmp_path):
        for iteration, tp in (("iter_0000100", 4), ("iter_0000200", 8)):
            save(bridge.provider(**MODEL, tensor_model_parallel_size=tp, **{SHARDS: 16}), tmp_path / iteration)
        (tmp_path / "iter_0000300").mkdir()

        def reset(tp):
            config, _ = load_model_config(str(tmp_path / "iter_0000200"))
            config.tensor_model_parallel_size = tp
            if tp == 4:
                config, _ = load_model_config(str(tmp_path / "iter_0000100"))
            shim.reset_weight_shards(config, tmp_path)
            return config.tensor_parallel_num_weight_shards

        assert (reset(8), reset(4)) == (16, None), "the newest that has a run_config, where nobody says which"
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("100\n")
        assert (reset(8), reset(4)) == (None, 16)

    def test_a_reloaded_module_is_hooked(self, bridge, saved):
        folder = saved(bridge.provider, {SHARDS: 12})
        shim.install()
        try:
            importlib.reload(checkpoint_utils)
            shim.install()
            run_config = checkpoint_utils.read_run_config(f"{folder}/run_config.yaml")
            config = instantiate_utils.instantiate(run_config["model"])
            config.tensor_model_parallel_size = 2
            config.finalize()
            assert counts(config) == (None, 1)
        finally:
            shim.uninstall()
            checkpointing.read_run_config = checkpoint_utils.read_run_config


def reset_twice(rank, store, folder):
    """What plain Python, where nobody has set logging up, shows on stderr."""
    shim.install()
    logging.getLogger().handlers.clear()
    sys.stderr = io.StringIO()
    for _ in range(2):
        config, _ = load_model_config(folder)
        config.tensor_model_parallel_size = 2
        config.finalize()
    return sys.stderr.getvalue()


def test_7_a_reset_is_seen_in_plain_python(saved):
    folder = saved(RELEASED.provider, {SHARDS: 12})
    [shown] = ranks.run(1, reset_twice, folder, init=False)
    lines = [line for line in shown.splitlines() if folder in line]
    assert len(lines) == 1
    for part in ("TP 4", "12 weight shards", "GTP size 3", "TP 2", "reset"):
        assert part in lines[0]


@pytest.mark.parametrize(("rank", "said"), [("0", 1), ("1", 0)])
def test_7_once_and_on_rank_0(bridge, saved, hooked, monkeypatch, caplog, rank, said):
    monkeypatch.setenv("RANK", rank)
    for _ in range(3):
        config, _ = load_model_config(saved(bridge.provider, {SHARDS: 12}))
        config.tensor_model_parallel_size = 2
        config.finalize()
        assert counts(config) == (None, 1)
    found = [record for record in caplog.records if record.name == "gtp_migrate.shim"]
    assert [record.levelno for record in found] == [logging.WARNING] * said


@pytest.mark.parametrize("bridge_name", ["released", "new"])
@pytest.mark.parametrize(("tp", "etp"), [(1, 1), (2, 2), (8, 4), (4, 1)])
def test_9_the_inference_copy_has_whole_weights(bridge_name, tp, etp, tmp_path, monkeypatch):
    """By a restatement of NeMo-RL's function; test_nemo_rl.py has the real one."""
    bridge = {"released": RELEASED, "new": NEW}[bridge_name]
    provider = bridge.provider(**MODEL, tensor_model_parallel_size=4, **{SHARDS: 12})
    config, _ = load_model_config(save(provider, tmp_path))
    with nemo_rl.module(monkeypatch) as setup, shim.installed():
        training = nemo_rl.set_up(config, {"layernorm_epsilon": 1e-6}, tp=4)
        assert counts(training) == (12, 3)
        sizes = {"tensor_model_parallel_size": tp, "expert_tensor_parallel_size": etp, "expert_model_parallel_size": 1}
        copied = copy.deepcopy(training)
        setup.build_inference_model({"megatron_cfg": sizes}, None, copied)
        assert copied.gtp_weight_remat_size == copied.expert_gtp_weight_remat_size == 1
        assert counts(training) == (12, 3)
