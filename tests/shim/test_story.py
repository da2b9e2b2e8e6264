"""The whole story of a model, with real weights: imported at TP 1, trained at TP 4 with 12 shards, resumed at TP 4
and at TP 2, exported at TP 1. GTP is not active on released Bridge, so no read is wrong and none is refused."""

from __future__ import annotations

import logging
import sys
import types

import numpy as np
import pytest
from bridge_machine import gpt, nemo_rl, new_bridge, ranks
from bridge_machine.checkpoints import NEW, RELEASED
from megatron.bridge.training import checkpointing
from megatron.bridge.training.model_load_save import load_megatron_model, load_model_config

from gtp_migrate import shim

OVERRIDES = {"tensor_parallel_num_weight_shards": 12}
#: A fused weight and a row-parallel one.
NAMES = ("decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.1.mlp.linear_fc2.weight")


def said(function):
    logger = logging.getLogger("gtp_migrate.shim")
    handler = logging.Handler()
    lines = []
    handler.emit = lambda record: lines.append((record.levelname, record.getMessage()))
    logger.addHandler(handler)
    try:
        return function(), lines
    finally:
        logger.removeHandler(handler)


def whole(tp_pieces):
    fc1, fc2 = ([piece[name] for piece in tp_pieces] for name in NAMES)
    halves = [np.concatenate([np.split(piece, 2)[half] for piece in fc1]) for half in (0, 1)]
    return np.concatenate(halves), np.concatenate(fc2, axis=1)


def import_from_hf(rank, cls, folder):
    gpt.on_cpu()
    config = gpt.provider(cls)
    config.finalize()
    model = gpt.build(config)
    return gpt.save(model, folder), {name: gpt.weights(model)[name] for name in NAMES}


def train(rank, checkpoint, folder, tp, overrides):
    """As NeMo-RL: the provider from the checkpoint, its overrides and parallel sizes, the weights; then save."""
    gpt.on_cpu()
    shim.install()

    def run():
        config, _ = load_model_config(checkpoint)
        config = nemo_rl.set_up(config, overrides, tp=tp)
        config.finalize()
        model = gpt.build(config)
        checkpointing._load_model_weights_from_checkpoint(checkpoint, model)
        return config, model

    (config, model), lines = said(run)
    saved = gpt.save(model, folder) if folder else None
    sizes = config.tensor_parallel_num_weight_shards, config.gtp_weight_remat_size
    return saved, {name: gpt.weights(model)[name] for name in NAMES}, sizes, lines


def export(rank, store, checkpoint):
    gpt.on_cpu()
    shim.install()
    model, lines = said(lambda: load_megatron_model(checkpoint, use_cpu_init=True))
    return {name: gpt.weights(model)[name] for name in NAMES}, lines


@pytest.fixture(scope="module", params=[RELEASED, NEW], ids=["released", "new"])
def story(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("story")
    cls = request.param.provider
    [(imported, first)] = ranks.run(1, import_from_hf, cls, str(root / "import"))
    found = {"import": ([first], None, [])}

    def step(name, checkpoint, folder, tp, overrides):
        answers = ranks.run(tp, train, checkpoint, folder and str(root / folder), tp, overrides)
        sizes = {answer[2] for answer in answers}
        found[name] = [answer[1] for answer in answers], sizes, [line for answer in answers for line in answer[3]]
        return answers[0][0]

    trained = step("train at TP 4", imported, "train", 4, OVERRIDES)
    step("resume at TP 4", trained, None, 4, {})
    step("resume at TP 2", trained, None, 2, {})
    step("resume at TP 2 with the recipe's 12", trained, None, 2, OVERRIDES)
    [(weights, lines)] = ranks.run(1, export, trained, init=False)
    found["export at TP 1"] = [weights], None, lines
    return found


def test_every_read_is_right_and_none_is_refused(story):
    first = whole(story["import"][0])
    for name, (pieces, *_) in story.items():
        for part, right in zip(whole(pieces), first, strict=True):
            assert np.array_equal(part, right), name


@pytest.mark.parametrize(
    ("step", "sizes"),
    [
        ("train at TP 4", (12, 3)),
        ("resume at TP 4", (12, 3)),
        ("resume at TP 2", (None, 1)),
        ("resume at TP 2 with the recipe's 12", (12, 6)),
    ],
)
def test_the_sizes_are_as_the_table_says(story, step, sizes):
    assert story[step][1] == {sizes}


def test_what_changed_is_said_once_and_on_rank_0(story):
    for name, (_, _, lines) in story.items():
        changed = name in ("resume at TP 2", "export at TP 1")
        assert [level for level, _ in lines] == ["WARNING"] * changed, name


def with_new_bridges_check(rank, checkpoint, mp_overrides):
    """What new Bridge does first in a load of weights (``training/gtp.py`` of its pull request 6116)."""
    gpt.on_cpu()
    module = types.ModuleType("megatron.bridge.training.gtp")
    module._validate_checkpoint_weight_topology = new_bridge.validate_checkpoint_weight_topology
    sys.modules[module.__name__] = module
    shim.install()
    original = checkpointing._load_model_weights_from_checkpoint

    def checked(path, model, *args, **kwargs):
        module._validate_checkpoint_weight_topology(
            saved=new_bridge.checkpoint_weight_topology(new_bridge.read_model_section(path)),
            requested=new_bridge.checkpoint_weight_topology(model[0].config),
        )
        return original(path, model, *args, **kwargs)

    checkpointing._load_model_weights_from_checkpoint = checked
    config, _ = load_model_config(checkpoint)
    for name, value in {"tensor_model_parallel_size": 1, **mp_overrides}.items():
        setattr(config, name, value)
    config.finalize()
    try:
        model = gpt.build(config)
        checkpointing._load_model_weights_from_checkpoint(checkpoint, model)
    except ValueError as error:
        return type(error).__name__, str(error)
    return "read", config.gtp_weight_remat_size


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("trained")
    [(imported, _)] = ranks.run(1, import_from_hf, NEW.provider, str(root / "import"))
    return ranks.run(4, train, imported, str(root / "train"), 4, OVERRIDES)[0][0]


def test_new_bridges_own_check_decides_there_and_its_way_through_works(trained):
    [(kind, text)] = ranks.run(1, with_new_bridges_check, trained, {})
    assert kind == "ValueError", "Bridge's own, not ours"
    assert "mp_overrides" in text
    as_saved = {"tensor_model_parallel_size": 4, "tensor_parallel_num_weight_shards": 12}
    assert set(ranks.run(4, with_new_bridges_check, trained, as_saved)) == {("read", 3)}
