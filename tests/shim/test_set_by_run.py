"""What this run sets after loading wins, whatever the value and whichever the door; what it does not set is
never taken for its own."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from bridge_machine import checkpoints, nemo_rl, released
from bridge_machine.checkpoints import MODEL, save
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.model_load_save import load_model_config
from megatron.bridge.training.utils import checkpoint_utils
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides
from megatron.bridge.utils import instantiate_utils

from gtp_migrate import shim

SHARDS = "tensor_parallel_num_weight_shards"


@pytest.fixture
def folder(bridge, saved):
    return saved(bridge.provider, {SHARDS: 12})


def counts(config):
    return config.tensor_parallel_num_weight_shards, config.gtp_weight_remat_size


# The TP of this run, the shards it sets, the counts that are right. 12 is the checkpoint's own number.
SET = [
    (2, 12, (12, 6)),
    (2, 4, (4, 2)),
    (8, 16, (16, 2)),
    (4, 12, (12, 3)),
    (4, 8, (8, 2)),
    (4, None, (None, 1)),
]
SET += [(8, None, (None, 1)), (4, 4, (4, 1))]


@pytest.mark.parametrize(("tp", "shards", "right"), SET)
class TestSet:
    def test_by_attribute(self, folder, tp, shards, right, hooked):
        config, _ = load_model_config(folder)
        config.tensor_model_parallel_size = tp
        config.tensor_parallel_num_weight_shards = shards
        config.finalize()
        assert counts(config) == right

    def test_by_attribute_before_the_parallel_size(self, folder, tp, shards, right, hooked):
        config, _ = load_model_config(folder)
        config.tensor_parallel_num_weight_shards = shards
        config.tensor_model_parallel_size = tp
        config.finalize()
        config.finalize()
        assert counts(config) == right

    def test_without_finalize(self, bridge, folder, tp, shards, right, hooked):
        config, _ = load_model_config(folder)
        config.tensor_parallel_num_weight_shards = shards
        config = nemo_rl.set_up(config, {}, tp=tp)
        if bridge.name == "new":  # derives its sizes only later, before it makes its process groups
            config.finalize()
        assert counts(config) == right

    def test_by_model_overrides(self, folder, tp, shards, right, hooked):
        config, _ = load_model_config(folder)
        config = nemo_rl.set_up(config, {SHARDS: shards}, tp=tp)
        assert counts(config) == right

    def test_by_replace_with_the_parallel_size(self, folder, tp, shards, right, hooked):
        config, _ = load_model_config(folder)
        config = dataclasses.replace(config, tensor_model_parallel_size=tp, **{SHARDS: shards})
        config.finalize()
        assert counts(config) == right

    def test_then_replaced_copied_and_replaced_again(self, folder, tp, shards, right, hooked):
        config, _ = load_model_config(folder)
        config.tensor_parallel_num_weight_shards = shards
        for _ in range(2):
            config = copy.deepcopy(nemo_rl.merge_model_overrides(config, {"layernorm_epsilon": 1e-6}))
        config.tensor_model_parallel_size = tp
        config.finalize()
        assert counts(config) == right

    def test_in_a_builder_config(self, bridge, saved, tp, shards, right, hooked):
        config, _ = load_model_config(saved(bridge.builder, {SHARDS: 12}))
        config.tensor_model_parallel_size = tp
        config.tensor_parallel_num_weight_shards = shards
        config.finalize()
        assert counts(config) == right

    def test_by_what_a_load_function_passes_on(self, folder, tp, shards, right, hooked):
        config = ConfigContainer.from_yaml(f"{folder}/run_config.yaml").model
        for name, value in {"tensor_model_parallel_size": tp, SHARDS: shards}.items():
            setattr(config, name, value)
        config.finalize()
        assert counts(config) == right


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("tp", "right"), [(4, (12, 3)), (2, (None, 1)), (8, (None, 1))])
def test_unset_counts_come_through_replace_as_the_checkpoints(folder, tp, right, again, hooked):
    config, _ = load_model_config(folder)
    config = nemo_rl.merge_model_overrides(config, {"layernorm_epsilon": 1e-6})
    if again:
        config = nemo_rl.merge_model_overrides(config, {"layernorm_epsilon": 1e-5})
    assert config.tensor_parallel_num_weight_shards == 12  # a plain number for whoever looks
    config.tensor_model_parallel_size = tp
    config.finalize()
    assert counts(config) == right


@pytest.mark.parametrize(("tp", "right"), [(4, (12, 3)), (2, (None, 1)), (8, (None, 1))])
def test_replaced_with_the_parallel_size_alone(folder, tp, right, hooked):
    config, _ = load_model_config(folder)
    config = dataclasses.replace(config, tensor_model_parallel_size=tp)
    config.finalize()
    assert counts(config) == right


@pytest.mark.parametrize(("tp", "right"), [(4, (12, 3)), (2, (None, 1)), (8, (None, 1))])
def test_a_class_that_declares_the_fields_again(tmp_path, tp, right, hooked):
    provider = released.OwnDefaults(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12)
    folder = save(provider, tmp_path)
    config, _ = load_model_config(folder)
    config = nemo_rl.set_up(config, {"layernorm_epsilon": 1e-6}, tp=tp)
    assert counts(config) == right
    config, _ = load_model_config(folder)
    config.tensor_parallel_num_weight_shards = 12
    config.tensor_model_parallel_size = 2
    config.finalize()
    assert counts(config) == (12, 6)
    assert released.OwnDefaults.tensor_parallel_num_weight_shards == 8


def test_such_a_class_loaded_in_another_process(tmp_path):
    """What comes in as a pickle is of a class that nothing was loaded as here."""
    provider = released.OwnDefaults(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12)
    folder = save(provider, tmp_path)
    with shim.installed():
        pickled = pickle.dumps(load_model_config(folder)[0])
    with shim.installed():
        config = nemo_rl.set_up(pickle.loads(pickled), {"layernorm_epsilon": 1e-6}, tp=2)
    assert counts(config) == (None, 1)


def test_one_side_set_by_override_leaves_the_other_the_checkpoints(bridge, tmp_path, hooked):
    provider = bridge.provider(
        **MODEL,
        **checkpoints.MOE,
        tensor_model_parallel_size=4,
        tensor_parallel_num_weight_shards=12,
        expert_tensor_parallel_size=2,
        expert_tensor_parallel_num_weight_shards=6,
    )
    folder = save(provider, tmp_path)
    for etp, right in ((2, (6, 3)), (1, (None, 1))):
        config, _ = load_model_config(folder)
        config = nemo_rl.set_up(config, {SHARDS: 16}, tp=8, etp=etp)
        assert counts(config) == (16, 2)
        expert = config.expert_tensor_parallel_num_weight_shards, config.expert_gtp_weight_remat_size
        assert expert == right


@pytest.mark.parametrize("size", [2, 1])  # 1 is the class's own default too
def test_the_size_set_on_released_bridge_wins_over_the_loaded_shards(tmp_path, size, hooked):
    provider = checkpoints.RELEASED.provider(
        **MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12
    )
    folder = save(provider, tmp_path)
    for tp in (4, 2, 8):
        config, _ = load_model_config(folder)
        config.tensor_model_parallel_size = tp
        config.gtp_weight_remat_size = size
        config.finalize()
        assert counts(config) == (None, size)

        config, _ = load_model_config(folder)
        assert counts(nemo_rl.set_up(config, {"gtp_weight_remat_size": size}, tp=tp)) == (None, size)


def test_a_provider_that_sets_shards_in_its_own_finalize_wins(tmp_path, bridge, hooked):
    config, _ = load_model_config(save(bridge.own_finalize(**MODEL, tensor_model_parallel_size=4), tmp_path))

    class Sixteen(bridge.own_finalize):
        def finalize(self):
            self.tensor_parallel_num_weight_shards = 16
            super().finalize()

    config.__class__ = Sixteen
    config.tensor_model_parallel_size = 8
    config.finalize()
    assert counts(config) == (16, 2)


@pytest.mark.parametrize(
    ("tp", "overrides", "right"),
    [
        (2, [], (None, 1)),
        (8, [], (None, 1)),
        (4, [], (12, 3)),
        (8, ["model.tensor_parallel_num_weight_shards=16"], (16, 2)),
        (2, ["model.tensor_parallel_num_weight_shards=12"], (12, 6)),
        (4, ["model.tensor_parallel_num_weight_shards=12"], (12, 3)),
        (2, ["++model.tensor_parallel_num_weight_shards=12"], (12, 6)),
        (2, ["model.seq_length=${model.tensor_parallel_num_weight_shards}"], (None, 1)),
        (4, ["model.tensor_parallel_num_weight_shards=null"], (None, 1)),
    ],
)
def test_command_line_overrides(folder, tp, overrides, right, hooked):
    run = ConfigContainer.from_yaml(f"{folder}/run_config.yaml")
    process_config_with_overrides(run, cli_overrides=[f"model.tensor_model_parallel_size={tp}", *overrides])
    run.model.finalize()
    assert counts(run.model) == right


@pytest.mark.parametrize(("shards", "right"), [(16, (16, 2)), (None, (None, 1))])
def test_set_in_what_was_read_before_the_config_was_made_of_it(folder, shards, right, hooked):
    run_config = checkpoint_utils.read_run_config(f"{folder}/run_config.yaml")
    run_config["model"][SHARDS] = shards
    config = instantiate_utils.instantiate(run_config["model"])
    config.tensor_model_parallel_size = 8
    config.finalize()
    assert counts(config) == right


def test_set_while_the_hooks_were_off(folder):
    with shim.installed():
        config, _ = load_model_config(folder)
    config.tensor_parallel_num_weight_shards = 16
    config.tensor_model_parallel_size = 8
    with shim.installed():
        config.finalize()
    assert counts(config) == (16, 2)


def test_a_config_the_run_made_itself_is_left_alone(bridge, hooked):
    config = bridge.provider(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12)
    config.finalize()
    config.tensor_model_parallel_size = 2
    config.finalize()
    assert counts(config) == (12, 6)


@pytest.mark.parametrize("finalized", [True, False])
@pytest.mark.parametrize(("tp", "right"), [(4, 3), (8, 1)])
@pytest.mark.parametrize("recorded", ["shards", "size"])
def test_saved_again_it_holds_plain_numbers_and_loads_without_the_shim(
    bridge, tmp_path, recorded, tp, right, finalized
):
    shards = {"tensor_parallel_num_weight_shards": 12} if recorded == "shards" else {}
    provider = bridge.provider(**MODEL, tensor_model_parallel_size=4, **shards)
    first = save(provider, tmp_path / "first", **({} if shards else {"gtp_weight_remat_size": 3}))
    with shim.installed():
        config, _ = load_model_config(first)
        config.tensor_model_parallel_size = tp
        if finalized:
            config.finalize()
        again = tmp_path / "again"
        again.mkdir()
        checkpoints.container(config).to_yaml(str(again / "run_config.yaml"))
    text = (again / "run_config.yaml").read_text()
    assert f"tensor_model_parallel_size: {tp}\n" in text
    assert f"\n  tensor_parallel_num_weight_shards: {12 if tp == 4 else 'null'}\n" in text
    assert f"\n  gtp_weight_remat_size: {right}\n" in text
    assert "gtp_migrate" not in text

    config, _ = load_model_config(str(again))
    config.finalize()
    assert config.gtp_weight_remat_size == right
